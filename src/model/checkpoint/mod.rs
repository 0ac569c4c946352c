//! Checkpoints in the Hugging Face layout: a folder with `config.json`, `model.safetensors` (or shards and their
//! index) and a tokenizer, read into [`Weights`] and written back.

mod open;
pub mod safetensors;
mod unused;

use self::safetensors::File;
use super::config::Config;
use super::embedded;
use super::family::{self, Parsed, Preset};
use super::hub::{self, Need};
use super::layout::ParamSpec;
use super::weights::Weights;
use crate::error::{Error, Result};
use crate::fsio;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

pub use self::open::Opened;
#[cfg(feature = "hub")]
pub(super) use self::open::shards;
pub use self::safetensors::{Dtype, Tensor};
pub use self::unused::{is_in_order, refuse_unused};

/// The single-file weights of a checkpoint.
pub const WEIGHTS: &str = "model.safetensors";
/// Names the shards where the weights are split.
pub const INDEX: &str = "model.safetensors.index.json";
/// The decoder's shape.
pub const CONFIG: &str = "config.json";
/// What belongs to a tokenizer and is copied along with the weights.
pub const TOKENIZER_FILES: [&str; 8] = [
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.jinja",
];

/// A checkpoint in memory, with what is needed to write it back as it was.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Config, layout and scalars.
    pub weights: Weights,
    /// How the file stored them; f32 where tensors differ.
    pub dtype: Dtype,
    /// Whether the file's names carry their family's prefix.
    pub prefixed: bool,
    /// Sentences that whoever uses the checkpoint should see.
    pub notes: Vec<String>,
    /// The text of `config.json`, verbatim.
    pub config_json: String,
    /// The folder it came from.
    pub folder: PathBuf,
}

impl Checkpoint {
    /// Write it back as it came: names, dtype, config and tokenizer.
    pub fn save_options(&self) -> SaveOptions {
        SaveOptions {
            dtype: self.dtype,
            prefixed: self.prefixed,
            config_json: Some(self.config_json.clone()),
            tokenizer_from: Some(self.folder.clone()),
            metadata: Vec::new(),
        }
    }
}

/// Read the checkpoint in a folder, or of a hub name.
pub fn load(path_or_name: &str) -> Result<Checkpoint> {
    load_folder(&hub::locate(path_or_name, Need::Everything)?)
}

/// Open the checkpoint in a folder, or of a hub name, without reading its tensors yet.
pub fn open(path_or_name: &str) -> Result<Opened> {
    Opened::folder(&hub::locate(path_or_name, Need::Everything)?)
}

/// Before the name of a shape that no checkpoint is needed for.
const PRESET: &str = "preset:";

/// Read the config of a folder, of a hub name, or of a shape by name (`preset:tinyllama-1.1b`).
pub fn read_config(path_or_name: &str) -> Result<Config> {
    if let Some(name) = path_or_name.strip_prefix(PRESET) {
        let known = || Preset::all().map(Preset::name).collect::<Vec<_>>().join(", ");
        let unknown = || Error::usage(format!("{path_or_name}: there is no such preset; there are {}", known()));
        return Preset::find(name).map(Preset::config).ok_or_else(unknown);
    }
    let folder = hub::locate(path_or_name, Need::Config)?;
    Ok(config_of(&folder)?.0.config)
}

fn config_of(folder: &Path) -> Result<(Parsed, String)> {
    let path = folder.join(CONFIG);
    if let Some(text) = embedded::text(&path) {
        return Ok((family::parse(&text, &path)?, text));
    }
    hub::must_stay_inside(folder)?;
    if !path.exists() {
        let what =
            "has no config.json: a folder in the Hugging Face layout (config.json, model.safetensors) is expected";
        return Err(Error::file(folder, what));
    }
    let text = fsio::read_text(&path)?;
    Ok((family::parse(&text, &path)?, text))
}

/// Read the checkpoint in `folder`.
pub fn load_folder(folder: &Path) -> Result<Checkpoint> {
    let opened = Opened::folder(folder)?;
    let dtype = opened.dtype()?;
    let tensors = opened.layout.ids().map(|p| Ok(opened.tensor(p)?.into_f32())).collect::<Result<_>>()?;
    let Opened { config, layout, mut notes, config_json, prefixed, folder, .. } = opened;
    if dtype.is_none() {
        notes.push("the tensors are stored in different precisions; they are written back as f32".into());
    }
    let (weights, dtype) = (Weights { config, layout, tensors }, dtype.unwrap_or_default());
    Ok(Checkpoint { weights, dtype, prefixed, notes, config_json, folder })
}

/// How and with what a checkpoint is written.
#[derive(Clone, Debug, Default)]
pub struct SaveOptions {
    /// Precision of the file.
    pub dtype: Dtype,
    /// Put the family's prefix before the names, as transformers does.
    pub prefixed: bool,
    /// The text of `config.json`; built from the [`Config`] where there is none.
    pub config_json: Option<String>,
    /// A folder whose tokenizer files are copied.
    pub tokenizer_from: Option<PathBuf>,
    /// Added to the safetensors header, in this order.
    pub metadata: Vec<(String, String)>,
}

impl SaveOptions {
    /// A checkpoint that transformers would have written.
    pub fn fresh(dtype: Dtype) -> Self {
        Self { dtype, prefixed: true, ..Self::default() }
    }
}

/// Write `weights` to the folder `dir` in the layout that transformers loads, every file whole or not at all and
/// `model.safetensors` last; a folder that did not exist appears complete.
pub fn save(dir: &Path, weights: &Weights, options: &SaveOptions) -> Result<()> {
    fsio::fill_folder(dir, |dir| {
        let config = match &options.config_json {
            Some(text) => with_dtype(text, options.dtype),
            None => with_dtype(&weights.config.family.to_json(&weights.config), options.dtype),
        };
        fsio::write(&dir.join(CONFIG), config.as_bytes())?;
        if let Some(from) = &options.tokenizer_from {
            copy_tokenizer(from, dir)?;
        }
        let family = weights.config.family;
        let mut tensors: Vec<Tensor<'_>> = weights
            .layout
            .specs()
            .iter()
            .zip(&weights.tensors)
            .map(|(s, t)| {
                (family.file_name(&s.name, options.prefixed), s.shape.clone(), in_file(&weights.config, s, t))
            })
            .collect();
        if family.sorts_files() {
            tensors.sort_by(|a, b| a.0.cmp(&b.0));
        }
        safetensors::write(&dir.join(WEIGHTS), &tensors, options.dtype, &options.metadata, fsio::Access::Shared)
    })
}

/// A tensor's rows as a file has them, from those in memory: weights, or a gradient in their shape.
pub fn in_file<'a>(config: &Config, spec: &ParamSpec, memory: &'a [f32]) -> Cow<'a, [f32]> {
    let Some(order) = config.family.row_order(config, spec) else { return Cow::Borrowed(memory) };
    let width = memory.len() / order.len();
    let mut file = vec![0.0; memory.len()];
    for (from, &to) in memory.chunks_exact(width).zip(&order) {
        file[to * width..(to + 1) * width].copy_from_slice(from);
    }
    Cow::Owned(file)
}

/// Copy the tokenizer's files from one folder to another; files that are not there are not missed.
pub fn copy_tokenizer(from: &Path, to: &Path) -> Result<()> {
    let same = matches!((from.canonicalize(), to.canonicalize()), (Ok(a), Ok(b)) if a == b);
    for name in TOKENIZER_FILES {
        let source = from.join(name);
        if let Some(bytes) = embedded::file(&source) {
            fsio::write(&to.join(name), bytes)?;
        } else if !same && source.is_file() {
            fsio::write(&to.join(name), &fsio::read_bytes(&source)?)?;
        }
    }
    Ok(())
}

/// Write named f32 tensors (gradients, references) to a safetensors file, in their order, readable by its owner alone: a gradient
/// tells about the records it was computed on.
pub fn save_tensors<'a>(path: &Path, tensors: impl IntoIterator<Item = Tensor<'a>>) -> Result<()> {
    let tensors: Vec<Tensor<'a>> = tensors.into_iter().collect();
    safetensors::write(path, &tensors, Dtype::F32, &[], fsio::Access::Private)
}

/// `text` verbatim, unless it names another precision than the file's: a loader that trusts it would round the weights.
fn with_dtype(text: &str, dtype: Dtype) -> String {
    let Ok(Value::Object(mut object)) = serde_json::from_str(text) else { return text.to_owned() };
    let mut changed = false;
    for key in ["dtype", "torch_dtype"] {
        if let Some(value) = object.get_mut(key)
            && value.is_string()
            && value != dtype.torch_name()
        {
            *value = dtype.torch_name().into();
            changed = true;
        }
    }
    if changed { format!("{:#}\n", Value::Object(object)) } else { text.to_owned() }
}

/// SHA-256 of the tensors, not of a file's formatting: for each parameter in layout order, the name's length and
/// bytes, the rank, the sizes (all u64) and the scalars as f32, everything little-endian. Lower-case hexadecimal.
pub fn tensors_sha256(weights: &Weights) -> String {
    let mut hash = Sha256::new();
    for (spec, tensor) in weights.layout.specs().iter().zip(&weights.tensors) {
        hash.update((spec.name.len() as u64).to_le_bytes());
        hash.update(spec.name.as_bytes());
        hash.update((spec.shape.len() as u64).to_le_bytes());
        for &n in &spec.shape {
            hash.update((n as u64).to_le_bytes());
        }
        let _ = safetensors::f32_bytes(tensor, |bytes| -> Result<()> {
            hash.update(bytes);
            Ok(())
        });
    }
    crate::hash::finish(hash)
}
