//! The model inside the program: `--model embedded`.
//!
//! A small GPT-2 that this engine trained on its own public text ([`crate::data::synthetic`]), so that everything can be tried
//! without a download. `models/ferret-mini/README.md` says how it was made. Loaders treat it as a folder with three files;
//! a real folder of the name `embedded` is reached as `./embedded`.

use std::path::{Path, PathBuf};

/// What `--model` calls it.
pub const NAME: &str = "embedded";

/// Stands where a checkpoint's folder would; no file of it is on the disk.
pub const FOLDER: &str = "<embedded model>";

const FILES: [(&str, &[u8]); 3] = [
    ("config.json", include_bytes!("../../models/ferret-mini/config.json")),
    ("model.safetensors", include_bytes!("../../models/ferret-mini/model.safetensors")),
    ("tokenizer.json", include_bytes!("../../models/ferret-mini/tokenizer.json")),
];

/// The folder that the loaders know it by.
pub fn folder() -> PathBuf {
    FOLDER.into()
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
