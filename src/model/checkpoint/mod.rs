//! Checkpoints in the Hugging Face layout: a folder with `config.json`, `model.safetensors` (or shards and their
//! index) and a tokenizer, read into [`Weights`] and written back.

pub mod safetensors;
mod unused;

use self::safetensors::{File, to_f32};
use super::config::Config;
use super::embedded;
use super::family::gpt2::{self, TensorName};
use super::hub::{self, Need};
use super::layout::Layout;
use super::weights::Weights;
use crate::error::{Error, Result};
use crate::fsio;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

pub use self::safetensors::{Dtype, Tensor};
pub use self::unused::refuse_unused;

/// The single-file weights of a checkpoint.
pub const WEIGHTS: &str = "model.safetensors";
/// Names the shards where the weights are split.
pub const INDEX: &str = "model.safetensors.index.json";
/// The decoder's shape.
pub const CONFIG: &str = "config.json";
/// What belongs to a tokenizer and is copied along with the weights.
pub const TOKENIZER_FILES: [&str; 7] = [
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
];

/// A checkpoint in memory, with what is needed to write it back as it was.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Config, layout and scalars.
    pub weights: Weights,
    /// How the file stored them; f32 where tensors differ.
    pub dtype: Dtype,
    /// Whether the file's names carry `transformer.`.
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

/// Read the config of a folder, or of a hub name.
pub fn read_config(path_or_name: &str) -> Result<Config> {
    let folder = hub::locate(path_or_name, Need::Config)?;
    Ok(config_of(&folder)?.0.config)
}

fn config_of(folder: &Path) -> Result<(gpt2::Parsed, String)> {
    let path = folder.join(CONFIG);
    if let Some(text) = embedded::text(&path) {
        return Ok((gpt2::parse(&text, &path)?, text));
    }
    hub::must_stay_inside(folder)?;
    if !path.exists() {
        let what =
            "has no config.json: a folder in the Hugging Face layout (config.json, model.safetensors) is expected";
        return Err(Error::file(folder, what));
    }
    let text = fsio::read_text(&path)?;
    Ok((gpt2::parse(&text, &path)?, text))
}

/// Read the checkpoint in `folder`.
pub fn load_folder(folder: &Path) -> Result<Checkpoint> {
    let (gpt2::Parsed { config, mut notes }, config_json) = config_of(folder)?;
    let files = open_weights(folder)?;
    let layout = Layout::new(&config);
    let sources = match_names(&files, &layout, config.tied)?;
    check_shapes(&sources, &layout, &files)?;

    let mut dtypes = Vec::new();
    let mut tensors = Vec::with_capacity(layout.len());
    for spec in layout.specs() {
        let source = &sources.found[spec.name.as_str()];
        let (values, dtype) = read(&files[source.file], &source.name)?;
        dtypes.push(dtype);
        tensors.push(values);
    }
    let weights = Weights { config, layout, tensors };
    if let Some(head) = &sources.tied_head {
        let (values, _) = read(&files[head.file], &head.name)?;
        if values != weights.get(weights.layout.tokens) {
            let what = format!(
                "{} differs from wte.weight, but config.json says that they are tied: set \"tie_word_embeddings\" to \
                 false there, or remove the tensor",
                head.name
            );
            return Err(Error::file(files[head.file].path(), what));
        }
    }
    let dtype = if dtypes.iter().all(|&d| d == dtypes[0]) {
        dtypes[0]
    } else {
        notes.push("the tensors are stored in different precisions; they are written back as f32".into());
        Dtype::F32
    };
    Ok(Checkpoint { weights, dtype, prefixed: sources.prefixed, notes, config_json, folder: folder.to_owned() })
}

fn read(file: &File, name: &str) -> Result<(Vec<f32>, Dtype)> {
    let tensors = file.tensors()?;
    let view = tensors.tensor(name).map_err(|e| Error::file(file.path(), e.to_string()))?;
    to_f32(&view, file.path(), name)
}

/// Open `model.safetensors`, or every shard that the index names.
fn open_weights(folder: &Path) -> Result<Vec<File>> {
    let single = folder.join(WEIGHTS);
    if let Some(bytes) = embedded::file(&single) {
        return Ok(vec![File::embedded(&single, bytes)?]);
    }
    if single.exists() {
        return Ok(vec![File::open(&single)?]);
    }
    let index = folder.join(INDEX);
    if !index.exists() {
        let what = if folder.join("pytorch_model.bin").exists() {
            "has its weights in pytorch_model.bin only: save the model with safe_serialization=True to get a \
             model.safetensors"
        } else {
            "has neither model.safetensors nor model.safetensors.index.json"
        };
        return Err(Error::file(folder, what));
    }
    let files = shards(&index)?.iter().map(|shard| File::open(&folder.join(shard))).collect::<Result<Vec<_>>>()?;
    Ok(files)
}

/// The shard files that an index names, each once, in order of name.
pub(super) fn shards(index: &Path) -> Result<Vec<String>> {
    let text = fsio::read_text(index)?;
    let value: Value =
        serde_json::from_str(&text).map_err(|e| Error::file(index, format!("is not valid JSON ({e})")))?;
    let Some(map) = value["weight_map"].as_object().filter(|m| !m.is_empty()) else {
        return Err(Error::file(index, "has no weight_map, which says in which file each tensor lies"));
    };
    let mut names = Vec::new();
    for (tensor, file) in map {
        match file.as_str() {
            // Plain names only: an index may not point outside its folder.
            Some(f) if !f.is_empty() && f != ".." && !f.contains(['/', '\\']) => names.push(f.to_owned()),
            _ => return Err(Error::file(index, format!("{tensor} is said to lie in {file}, which is no file name"))),
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// Where a parameter lies: the file's index and the tensor's name there.
struct Source {
    file: usize,
    name: String,
}

struct Sources {
    found: HashMap<String, Source>,
    /// A `lm_head.weight` although the config ties it: must equal the embedding.
    tied_head: Option<Source>,
    prefixed: bool,
}

/// The tensors of `files` that the model uses: which file, and the name there.
fn tensors_of_model(files: &[File], layout: &Layout, config: &Config) -> Result<HashSet<(usize, String)>> {
    let Sources { found, tied_head, .. } = match_names(files, layout, config.tied)?;
    Ok(found.into_values().chain(tied_head).map(|source| (source.file, source.name)).collect())
}

/// Every parameter exactly once, nothing unknown.
fn match_names(files: &[File], layout: &Layout, tied: bool) -> Result<Sources> {
    let mut sources = Sources { found: HashMap::new(), tied_head: None, prefixed: false };
    let known: HashSet<&str> = layout.specs().iter().map(|s| s.name.as_str()).collect();
    for (file, opened) in files.iter().enumerate() {
        let tensors = opened.tensors()?;
        let mut names = tensors.names();
        names.sort_unstable();
        for name in names {
            let (TensorName::Parameter(short), prefixed) = gpt2::tensor_name(name) else { continue };
            let source = Source { file, name: name.to_owned() };
            if short == "lm_head.weight" && tied {
                sources.tied_head = Some(source);
                continue;
            }
            if !known.contains(short) {
                let what = format!("{name} is no tensor of the model that config.json describes");
                return Err(Error::file(opened.path(), what));
            }
            sources.prefixed |= prefixed;
            if let Some(first) = sources.found.insert(short.to_owned(), source) {
                let what = format!("{name} and {} are the same tensor, and may appear only once", first.name);
                return Err(Error::file(opened.path(), what));
            }
        }
    }
    let missing: Vec<&str> =
        layout.specs().iter().map(|s| s.name.as_str()).filter(|n| !sources.found.contains_key(*n)).collect();
    if let Some(first) = missing.first() {
        let others = match missing.len() - 1 {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        let hint = if *first == "lm_head.weight" {
            ", which config.json asks for with \"tie_word_embeddings\": false"
        } else {
            ": do it and config.json belong together?"
        };
        return Err(Error::file(files[0].path(), format!("has no {first}{others}{hint}")));
    }
    Ok(sources)
}

/// All shapes before any data: nothing is allocated for a file that does not fit its config.
fn check_shapes(sources: &Sources, layout: &Layout, files: &[File]) -> Result<()> {
    let check = |source: &Source, expected: &[usize]| {
        let file = &files[source.file];
        let tensors = file.tensors()?;
        let view = tensors.tensor(&source.name).map_err(|e| Error::file(file.path(), e.to_string()))?;
        if view.shape() != expected {
            let what = format!(
                "{} is {:?}, config.json says {expected:?}: do the two files belong together?",
                source.name,
                view.shape()
            );
            return Err(Error::file(file.path(), what));
        }
        Ok(())
    };
    for spec in layout.specs() {
        check(&sources.found[spec.name.as_str()], &spec.shape)?;
    }
    match &sources.tied_head {
        Some(head) => check(head, &layout.spec(layout.tokens).shape),
        None => Ok(()),
    }
}

/// How and with what a checkpoint is written.
#[derive(Clone, Debug, Default)]
pub struct SaveOptions {
    /// Precision of the file.
    pub dtype: Dtype,
    /// Put `transformer.` before the names, as transformers does.
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
            None => with_dtype(&gpt2::to_json(&weights.config), options.dtype),
        };
        fsio::write(&dir.join(CONFIG), config.as_bytes())?;
        if let Some(from) = &options.tokenizer_from {
            copy_tokenizer(from, dir)?;
        }
        let tensors: Vec<Tensor<'_>> = weights
            .layout
            .specs()
            .iter()
            .zip(&weights.tensors)
            .map(|(s, t)| (gpt2::file_name(&s.name, options.prefixed), s.shape.clone(), Cow::Borrowed(t.as_slice())))
            .collect();
        safetensors::write(&dir.join(WEIGHTS), &tensors, options.dtype, &options.metadata, fsio::Access::Shared)
    })
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
