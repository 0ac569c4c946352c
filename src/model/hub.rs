//! From a model's name to a folder: a folder as it is, `embedded` as itself, a hub name by way of the local Hugging Face cache or a
//! download (feature `hub`).

#[cfg(feature = "hub")]
mod client;

#[cfg(feature = "hub")]
pub use client::{Settings, fetch};

use super::embedded;
use crate::error::{Error, Result};
#[cfg(feature = "hub")]
use crate::progress::{Progress, Unheard};
use std::path::{Path, PathBuf};

/// Where downloads are told of.
#[cfg(feature = "hub")]
static HEARD: std::sync::OnceLock<&'static dyn Progress> = std::sync::OnceLock::new();

/// From now on, tell `progress` of every download of this process: loading a model by its name may begin one far from whoever waits.
/// Only the first call counts.
#[cfg(feature = "hub")]
pub fn report_to(progress: &'static dyn Progress) {
    let _ = HEARD.set(progress);
}

#[cfg(feature = "hub")]
fn progress() -> &'static dyn Progress {
    *HEARD.get_or_init(|| &Unheard)
}

/// Which files of a repository are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// `config.json` alone.
    Config,
    /// Config, weights, and the tokenizer where there is one.
    Everything,
}

/// The folder that `path_or_name` means, with the files in it that are needed, as far as they exist.
pub fn locate(path_or_name: &str, need: Need) -> Result<PathBuf> {
    if path_or_name == embedded::NAME {
        return embedded::folder();
    }
    let path = Path::new(path_or_name);
    if path.is_dir() {
        return Ok(path.to_owned());
    }
    if path.exists() {
        return Err(Error::file(path, "is a file, and a model's folder is expected: name the folder it lies in"));
    }
    if !is_hub_name(path_or_name) {
        let what = "there is no such folder (a hub name looks like openai-community/gpt2)";
        return Err(Error::file(path, what));
    }
    from_hub(path_or_name, need)
}

#[cfg(feature = "hub")]
fn from_hub(name: &str, need: Need) -> Result<PathBuf> {
    fetch(name, need, &Settings::from_env())
}

#[cfg(not(feature = "hub"))]
fn from_hub(name: &str, _: Need) -> Result<PathBuf> {
    let what =
        "there is no such folder, and the feature `hub`, which would ask the hub for it, was not built: name a folder";
    Err(Error::file(name, what))
}

/// Refuse a model's folder in which a file that would be read is a link to somewhere else.
///
/// A folder may come from a stranger: a `tokenizer.json` that is a link to a private file would be read, quoted in messages and
/// copied beside whatever is trained from it. Links within the folder are followed, and so is the layout of the Hugging Face cache,
/// `snapshots/COMMIT/FILE` to `blobs/HASH` two folders up.
pub fn must_stay_inside(folder: &Path) -> Result<()> {
    // What is missing or no folder has its own sentence where it is read.
    let (Ok(entries), Ok(own)) = (std::fs::read_dir(folder), folder.canonicalize()) else { return Ok(()) };
    let snapshot = own.parent().filter(|p| p.file_name().is_some_and(|n| n == "snapshots"));
    let blobs = snapshot.and_then(Path::parent).map(|repo| repo.join("blobs"));
    for entry in entries {
        let path = entry.map_err(|e| Error::io(folder, e))?.path();
        let read = path.extension().is_some_and(|e| e == "json" || e == "txt" || e == "safetensors" || e == "jinja");
        if !read || !path.is_symlink() {
            continue;
        }
        // A link that leads nowhere is missed when it is read.
        let Ok(target) = path.canonicalize() else { continue };
        if !target.starts_with(&own) && !blobs.as_ref().is_some_and(|blobs| target.starts_with(blobs)) {
            let what = "is a link out of the model's folder, and those are not followed: put the file itself there, or name the \
                        folder that it lies in";
            return Err(Error::file(path, what));
        }
    }
    Ok(())
}

/// `name` or `owner/name`, of letters, digits, `-`, `_` and `.`.
pub fn is_hub_name(name: &str) -> bool {
    let part = |p: &str| {
        !p.is_empty()
            && p.len() <= 96
            && !p.starts_with(['.', '-'])
            && !p.ends_with(['.', '-'])
            && p.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    let parts: Vec<&str> = name.split('/').collect();
    parts.len() <= 2 && parts.iter().all(|p| part(p)) && !name.ends_with(".safetensors") && !name.ends_with(".json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_paths() {
        for name in ["gpt2", "openai-community/gpt2", "a_b/c.d-1"] {
            assert!(is_hub_name(name), "{name}");
        }
        for path in ["./gpt2", "/models/gpt2", "a/b/c", "../x", "~/x", "a/", "", "x.safetensors", "a\\b", "a b", "-x"] {
            assert!(!is_hub_name(path), "{path}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_out_of_a_folder_are_refused_and_the_caches_are_followed() {
        use std::os::unix::fs::symlink;
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        for dir in ["model", "repo/blobs", "repo/snapshots/c0ffee", "other"] {
            std::fs::create_dir_all(at(dir)).unwrap();
        }
        for file in ["model/real.json", "secret", "repo/blobs/1234", "repo/own.json"] {
            std::fs::write(at(file), "{}").unwrap();
        }
        symlink("real.json", at("model/config.json")).unwrap();
        symlink("nowhere", at("model/vocab.json")).unwrap();
        symlink("../secret", at("model/README.md")).unwrap();
        must_stay_inside(&at("model")).unwrap();
        symlink(at("model"), at("alias")).unwrap();
        must_stay_inside(&at("alias")).unwrap();
        for target in ["../secret".into(), at("secret"), "../repo/blobs/1234".into()] {
            symlink(target, at("model/tokenizer.json")).unwrap();
            let error = must_stay_inside(&at("alias")).unwrap_err().to_string();
            assert!(error.contains("tokenizer.json") && error.contains("is a link out of"), "{error}");
            std::fs::remove_file(at("model/tokenizer.json")).unwrap();
        }
        let cached = at("repo/snapshots/c0ffee");
        symlink("../../blobs/1234", cached.join("config.json")).unwrap();
        must_stay_inside(&cached).unwrap();
        symlink("../../own.json", cached.join("merges.txt")).unwrap();
        assert!(must_stay_inside(&cached).is_err(), "only to the cache's blobs");
        std::fs::remove_file(cached.join("merges.txt")).unwrap();
        // A crafted folder of the cache's shape gains nothing: blobs that are themselves a link lead elsewhere.
        std::fs::create_dir_all(at("fake/snapshots/c0ffee")).unwrap();
        symlink(home.path(), at("fake/blobs")).unwrap();
        symlink("../../blobs/secret", at("fake/snapshots/c0ffee/config.json")).unwrap();
        assert!(must_stay_inside(&at("fake/snapshots/c0ffee")).is_err());
    }
}
