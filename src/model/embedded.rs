//! The model inside the library, by the name `embedded` (feature `embedded`).
//!
//! A small GPT-2 that this engine trained on its own public text ([`crate::data::synthetic`]), so that everything can be tried
//! without a download. `models/ferret-mini/README.md` says how it was made. Loaders treat it as a folder with three files;
//! a real folder of the name `embedded` is reached as `./embedded`.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// What it is called where a model is named.
pub const NAME: &str = "embedded";

/// Stands where a checkpoint's folder would; no file of it is on the disk.
pub const FOLDER: &str = "<embedded model>";

#[cfg(not(feature = "embedded"))]
const FILES: [(&str, &[u8]); 0] = [];
#[cfg(feature = "embedded")]
const FILES: [(&str, &[u8]); 3] = [
    ("config.json", include_bytes!("../../models/ferret-mini/config.json")),
    ("model.safetensors", include_bytes!("../../models/ferret-mini/model.safetensors")),
    ("tokenizer.json", include_bytes!("../../models/ferret-mini/tokenizer.json")),
];

/// The folder that the loaders know it by; an error where it was left out of the build.
pub fn folder() -> Result<PathBuf> {
    if FILES.is_empty() {
        return Err(Error::usage(
            "the embedded model is not inside: build with the feature `embedded`, or name a model's folder",
        ));
    }
    Ok(FOLDER.into())
}

/// The bytes of its file `path`; none where `path` is not in [`folder`].
pub fn file(path: &Path) -> Option<&'static [u8]> {
    let name = path.strip_prefix(FOLDER).ok()?;
    FILES.iter().find(|(n, _)| Path::new(n) == name).map(|(_, bytes)| *bytes)
}

/// [`file()`] as text.
pub fn text(path: &Path) -> Option<String> {
    file(path).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}
