//! Going on with a run by its folder alone.

use crate::error::{Error, Result};
use crate::method::folder::{Call, Terms};
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
    let Some(Call { arguments: then, folder }) = Terms::read(&dir)?.call else {
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
