//! Going on with a run: by its folder alone, and which flags the library's sentences are about.

use super::Args;
use crate::error::{Error, Result};
use crate::method::folder::{Call, Told};
use std::ffi::OsString;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

/// The arguments of this process, as [`expand`] gives them.
static ARGUMENTS: OnceLock<Vec<OsString>> = OnceLock::new();

/// `arguments`; or, where they are `train --resume FOLDER` with whatever else is given, those of the unfinished run there and that.
pub(crate) fn expand(arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    let found = match folder(&arguments) {
        Some((at, taken, dir)) => with_those_of(&dir, &arguments, at..at + taken)?,
        None => arguments,
    };
    let _ = ARGUMENTS.set(found.clone());
    Ok(found)
}

/// Where `--resume FOLDER` is among the arguments of `train`, how many it is, and the folder.
fn folder(arguments: &[OsString]) -> Option<(usize, usize, OsString)> {
    arguments.iter().position(|a| a == "train")?;
    let equals = |a: &OsString| a.to_string_lossy().strip_prefix("--resume=").map(OsString::from);
    let at = arguments.iter().position(|a| a == "--resume" || equals(a).is_some())?;
    match equals(&arguments[at]) {
        Some(dir) => Some((at, 1, dir)),
        None => Some((at, 2, arguments.get(at + 1).filter(|a| !a.to_string_lossy().starts_with('-')).cloned()?)),
    }
}

/// What the run in `dir` was begun with, there where it was, and then the other arguments of this call.
fn with_those_of(dir: &OsString, arguments: &[OsString], at: Range<usize>) -> Result<Vec<OsString>> {
    let dir = std::path::absolute(dir).map_err(|e| Error::io(Path::new(dir), e))?;
    let Some(Call { arguments: then, folder }) = Told::read(&dir)?.call else {
        let what =
            "the run there does not tell what it was begun with: give all of its arguments, with --out and --resume";
        return Err(Error::file(dir, what));
    };
    std::env::set_current_dir(&folder).map_err(|e| Error::io(Path::new(&folder), e))?;
    let mut out = vec![arguments[0].clone(), "train".into()];
    out.extend(then.into_iter().map(OsString::from));
    let others = arguments[1..at.start].iter().chain(&arguments[at.end..]);
    out.extend(others.filter(|a| *a != "train").cloned());
    out.extend(["--resume".into(), "--out".into(), dir.into()]);
    Ok(out)
}

/// The arguments that say what the run is: all but whether it is resumed.
pub(super) fn call() -> Option<Call> {
    let arguments: Vec<String> =
        ARGUMENTS.get()?.iter().map(|a| a.clone().into_string().ok()).collect::<Option<_>>()?;
    let verb = arguments.iter().position(|a| a == "train")?;
    let arguments = [&arguments[1..verb], &arguments[verb + 1..]].concat();
    let arguments = arguments.into_iter().filter(|a| a != "--resume" && a != "--restart-diverged").collect();
    Some(Call { arguments, folder: std::env::current_dir().ok()?.to_str()?.to_owned() })
}

impl Args {
    /// Add to what the library says which flag helps.
    pub(super) fn with_flags(&self, e: Error) -> Error {
        let out = self.out.display();
        let flag = |what: &str| match what {
            w if w.contains("unfinished run is there") => Some("--resume does the former"),
            w if w.contains("has diverged, and would again") => Some("--restart-diverged does that"),
            w if w.contains("began at another model") => Some("that is --model"),
            w if w.contains("began with other records") => Some("that is --data"),
            w if w.contains("begun to stop after") => Some("give --max-steps as then, or leave it out as then"),
            w if w.contains("a fixed seed of sampling") => Some("that is --insecure-seed"),
            w if w.contains("records to evaluate on") => Some("that is --eval-data"),
            _ => None,
        };
        match e {
            Error::Interrupted(what) => Error::Interrupted(format!(
                "{what}: the same command with --resume continues, and so does ferret train --resume {out}"
            )),
            Error::Diverged(what) => Error::Diverged(format!(
                "{what}; the same command with another --learning-rate and --restart-diverged begins again"
            )),
            Error::File { path, what } => match flag(&what) {
                Some(flag) => Error::File { path, what: format!("{what} ({flag})") },
                None => Error::File { path, what },
            },
            Error::Usage(what) => match flag(&what) {
                Some(flag) => Error::Usage(format!("{what} ({flag})")),
                None => Error::Usage(what),
            },
            e => e,
        }
    }
}
