//! What a checkpoint's files hold beside the tensors that its model uses.

use super::open::{open_weights, tensors_of_model};
use super::safetensors::File;
use super::{CONFIG, Config, config_of};
use crate::error::{Error, Result};
use crate::model::layout::Layout;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A header is filled up to a multiple of eight bytes.
const PADDING: usize = 8;

/// Refuse what the weight files of `tuned` hold beside the tensors of its model, unless the files of `base` hold the same, byte for
/// byte. A hash of the tensors says nothing about it, and a buffer or a header is room enough for the records themselves.
/// Returns the files that were looked at.
pub fn refuse_unused(tuned: &Path, base: &Path) -> Result<Vec<PathBuf>> {
    let config = |folder: &Path| -> Result<Config> { Ok(config_of(folder)?.0.config) };
    let (files, others) = (open_weights(tuned)?, open_weights(base)?);
    let known = unused(&others, &Layout::new(&config(base)?), &config(base)?)?;
    for (name, (path, bytes)) in unused(&files, &Layout::new(&config(tuned)?), &config(tuned)?)? {
        if known.get(&name).is_none_or(|(_, own)| *own != bytes) {
            let what = format!(
                "holds {name}, {} bytes that the model in {CONFIG} does not use and the base model does not have: they can be anything, \
                 the records included; write the model without them",
                bytes.len()
            );
            return Err(Error::file(path, what));
        }
    }
    Ok(files.iter().map(|file| file.path().to_owned()).collect())
}

/// Whether the tensors in the folder `tuned` lie in the order in which this program writes them, in one file. Another order changes no
/// scalar, so that no hash knows of it, and an order of n tensors can tell ln n! nats of anything.
pub fn is_in_order(tuned: &Path) -> Result<bool> {
    let layout = Layout::new(&config_of(tuned)?.0.config);
    let files = open_weights(tuned)?;
    let [file] = &files[..] else { return Ok(false) };
    let found = file.order()?;
    let named = |(spec, (name, _)): (&crate::model::layout::ParamSpec, &(String, u64))| {
        *name == spec.name || name.ends_with(&format!(".{}", spec.name))
    };
    Ok(found.len() == layout.len()
        && layout.specs().iter().zip(&found).all(named)
        && found.windows(2).all(|pair| pair[0].1 <= pair[1].1))
}

/// Everything in `files` that is no tensor of the model, by name: buffers with dtype and shape, and what the headers say.
fn unused<'a>(files: &'a [File], layout: &Layout, config: &Config) -> Result<BTreeMap<String, (&'a Path, Vec<u8>)>> {
    let used = tensors_of_model(files, layout, config)?;
    let mut found = BTreeMap::new();
    for (i, file) in files.iter().enumerate() {
        for (name, view) in file.tensors()?.tensors() {
            if !used.contains(&(i, name.clone())) {
                let form = format!("{:?} {:?} ", view.dtype(), view.shape());
                found.insert(name, (file.path(), [form.as_bytes(), view.data()].concat()));
            }
        }
        let idle = file.idle_header_bytes()?;
        if idle > PADDING {
            let what = format!("has a header with {idle} bytes that say nothing: write the model anew, without them");
            return Err(Error::file(file.path(), what));
        }
        for (key, value) in file.metadata()? {
            // What transformers insists on.
            if (key.as_str(), value.as_str()) != ("format", "pt") {
                found.insert(format!("the note {key:?}"), (file.path(), value.into_bytes()));
            }
        }
    }
    Ok(found)
}
