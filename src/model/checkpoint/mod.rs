//! Checkpoints in the Hugging Face layout: a folder with `config.json`, `model.safetensors` (or shards and their
//! index) and a tokenizer, read into [`Weights`] and written back.

pub mod adapter;
mod open;
pub mod safetensors;
mod save;
mod unused;
mod write;

use super::config::Config;
use super::embedded;
use super::family::{self, ParsedConfig, Preset};
use super::hub::{self, Need};
use super::layout::ParamSpec;
use super::weights::Weights;
use crate::error::{Error, Result};
use crate::fsio;
use crate::kernel::{Scalars, Stored, View};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

pub use self::open::OpenCheckpoint;
#[cfg(feature = "hub")]
pub(super) use self::open::shards;
pub use self::safetensors::Dtype;
pub use self::save::{SaveOptions, copy_tokenizer, in_file, save, save_made, save_tensors};
pub use self::unused::{is_in_order, refuse_unused};
pub use self::write::Tensor;

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

/// A checkpoint in memory, in f32 or as it is stored, with what is needed to write it back as it was.
#[derive(Clone, Debug)]
pub struct Checkpoint<T = Vec<f32>> {
    /// Config, layout and scalars.
    pub weights: Weights<T>,
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

impl<T> Checkpoint<T> {
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
pub fn open(path_or_name: &str) -> Result<OpenCheckpoint> {
    OpenCheckpoint::folder(&hub::locate(path_or_name, Need::Everything)?)
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
    if adapter::is_adapter(&folder) {
        return adapter::full_config(&folder);
    }
    Ok(config_of(&folder)?.0.config)
}

fn config_of(folder: &Path) -> Result<(ParsedConfig, String)> {
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

/// Read the checkpoint in `folder`, widened to f32.
pub fn load_folder(folder: &Path) -> Result<Checkpoint> {
    let (mut loaded, mixed) = read(OpenCheckpoint::folder(folder)?)?;
    if mixed {
        loaded.notes.push("the tensors are stored in different precisions; they are written back as f32".into());
    }
    Ok(loaded)
}

/// Read the checkpoint in a folder, or of a hub name, each tensor as it is stored.
pub fn load_stored(path_or_name: &str) -> Result<Checkpoint<Stored>> {
    load_folder_stored(&hub::locate(path_or_name, Need::Everything)?)
}

/// As [`load_stored`], of the checkpoint in `folder`.
pub fn load_folder_stored(folder: &Path) -> Result<Checkpoint<Stored>> {
    Ok(read(OpenCheckpoint::folder(folder)?)?.0)
}

/// As [`load_stored`], of an opened one.
pub fn load_opened(opened: OpenCheckpoint) -> Result<Checkpoint<Stored>> {
    Ok(read(opened)?.0)
}

/// The checkpoint, and whether its tensors are stored in different precisions.
fn read<T: Scalars>(opened: OpenCheckpoint) -> Result<(Checkpoint<T>, bool)> {
    let dtype = opened.dtype()?;
    let tensors = opened.layout.ids().map(|p| Ok(opened.tensor(p)?.into())).collect::<Result<_>>()?;
    let OpenCheckpoint { config, layout, notes, config_json, prefixed, folder, .. } = opened;
    let weights = Weights { config, layout, tensors };
    Ok((
        Checkpoint { weights, dtype: dtype.unwrap_or_default(), prefixed, notes, config_json, folder },
        dtype.is_none(),
    ))
}

/// SHA-256 of the tensors, not of a file's formatting or precision: for each parameter in layout order, the name's length and
/// bytes, the rank, the sizes (all u64) and the scalars as f32, everything little-endian. Lower-case hexadecimal.
pub fn tensors_sha256(weights: &Weights<impl Scalars>) -> String {
    let mut hash = TensorHash::default();
    for (spec, tensor) in weights.layout.specs().iter().zip(&weights.tensors) {
        hash.add(spec, tensor.view());
    }
    hash.finish()
}

/// [`tensors_sha256`] of one tensor after the other.
#[derive(Default)]
struct TensorHash(Sha256);

impl TensorHash {
    fn add(&mut self, spec: &ParamSpec, tensor: View<'_>) {
        let hash = &mut self.0;
        hash.update((spec.name.len() as u64).to_le_bytes());
        hash.update(spec.name.as_bytes());
        hash.update((spec.shape.len() as u64).to_le_bytes());
        for &n in &spec.shape {
            hash.update((n as u64).to_le_bytes());
        }
        let _ = tensor.pieces(|x| {
            write::f32_bytes(x, |bytes| -> Result<()> {
                hash.update(bytes);
                Ok(())
            })
        });
    }

    fn finish(self) -> String {
        crate::hash::finish(self.0)
    }
}
