//! A checkpoint's files, opened and checked before any tensor is read.

use super::adapter;
use super::safetensors::{Dtype, File, dtype_of, to_stored};
use super::{INDEX, TensorHash, WEIGHTS, config_of};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::fsio;
use crate::kernel::{Scalars, Stored};
use crate::model::config::Config;
use crate::model::decoder::Decoder;
use crate::model::embedded;
use crate::model::family::ParsedConfig;
use crate::model::layout::{Layout, ParamId, ParamSpec};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// A checkpoint whose names and shapes are known to fit, and whose tensors are read one by one, as they are stored.
pub struct OpenCheckpoint {
    /// The decoder that config.json describes.
    pub config: Config,
    /// Names and shapes; derived from `config`.
    pub layout: Layout,
    /// Sentences that whoever uses the checkpoint should see.
    pub notes: Vec<String>,
    /// The text of `config.json`, verbatim.
    pub config_json: String,
    /// The folder it lies in.
    pub folder: PathBuf,
    /// Whether the file's names carry their family's prefix.
    pub prefixed: bool,
    pub(super) files: Vec<File>,
    pub(super) sources: Sources,
}

impl OpenCheckpoint {
    /// Open the checkpoint in `folder`; an adapter's folder, on the base model that it names.
    pub fn folder(folder: &Path) -> Result<Self> {
        if adapter::is_adapter(folder) {
            return Self::adapter(folder);
        }
        let (ParsedConfig { config, notes }, config_json) = config_of(folder)?;
        let files = open_weights(folder)?;
        let layout = Layout::new(&config);
        let sources = match_names(&files, &layout, &config)?;
        check_shapes(&sources, &layout, &files)?;
        let prefixed = sources.prefixed;
        let opened = Self { config, layout, notes, config_json, folder: folder.to_owned(), prefixed, files, sources };
        opened.check_tied()?;
        Ok(opened)
    }

    /// How all tensors are stored; none where they differ.
    pub fn dtype(&self) -> Result<Option<Dtype>> {
        let mut all = self.layout.ids().map(|p| self.with(self.source(p), dtype_of));
        let first = all.next().expect("every decoder has embeddings")?;
        for dtype in all {
            if dtype? != first {
                return Ok(None);
            }
        }
        Ok(Some(first))
    }

    /// The parameter `p` as it is stored, its rows in memory's order. What was read of the file is given back to the system.
    pub fn tensor(&self, p: ParamId) -> Result<Stored> {
        let spec = self.layout.spec(p);
        Ok(in_memory(&self.config, spec, self.with(self.source(p), to_stored)?))
    }

    /// [`tensors_sha256`](super::tensors_sha256), reading one tensor at a time.
    pub fn sha256(&self) -> Result<String> {
        let mut hash = TensorHash::default();
        for p in self.layout.ids() {
            hash.add(self.layout.spec(p), self.tensor(p)?.view());
        }
        Ok(hash.finish())
    }

    /// A decoder of it in the memory of `backend`, one tensor at a time.
    pub fn decoder<B: Backend>(&self, backend: B) -> Result<Decoder<B>> {
        let tensors = self.layout.ids().map(|p| self.tensor(p));
        Decoder::from_tensors(backend, self.config.clone(), self.layout.clone(), tensors)
    }

    fn source(&self, p: ParamId) -> &Source {
        &self.sources.found[self.layout.spec(p).name.as_str()]
    }

    fn with<R>(
        &self,
        source: &Source,
        f: impl FnOnce(&safetensors::tensor::TensorView<'_>, &File, &str) -> Result<R>,
    ) -> Result<R> {
        let file = &self.files[source.file];
        let tensors = file.tensors()?;
        let view = tensors.tensor(&source.name).map_err(|e| Error::file(file.path(), e.to_string()))?;
        f(&view, file, &source.name)
    }

    /// An output head that the config ties must be the embedding, number for number.
    fn check_tied(&self) -> Result<()> {
        let Some(head) = &self.sources.tied_head else { return Ok(()) };
        let read = |source: &Source| self.with(source, to_stored).map(Stored::into_f32);
        if read(head)? == read(self.source(self.layout.tokens))? {
            return Ok(());
        }
        let what = format!(
            "{} differs from {}, but config.json says that they are tied: set \"tie_word_embeddings\" to false there, or remove the \
             tensor",
            head.name,
            self.layout.spec(self.layout.tokens).name
        );
        Err(Error::file(self.files[head.file].path(), what))
    }
}

/// A tensor's rows as memory has them, from those of a file.
fn in_memory(config: &Config, spec: &ParamSpec, file: Stored) -> Stored {
    fn ordered<T: Copy>(rows: &[usize], file: &[T]) -> Vec<T> {
        let width = file.len() / rows.len();
        rows.iter().flat_map(|&row| &file[row * width..(row + 1) * width]).copied().collect()
    }
    let Some(rows) = config.family.row_order(config, spec) else { return file };
    match file {
        Stored::F32(x) => Stored::F32(ordered(&rows, &x)),
        Stored::Bf16(x) => Stored::Bf16(ordered(&rows, &x)),
        Stored::F16(x) => Stored::F16(ordered(&rows, &x)),
    }
}

/// Open `model.safetensors`, or every shard that the index names.
pub(super) fn open_weights(folder: &Path) -> Result<Vec<File>> {
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
pub(in crate::model) fn shards(index: &Path) -> Result<Vec<String>> {
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
pub(super) struct Source {
    pub(super) file: usize,
    pub(super) name: String,
}

pub(super) struct Sources {
    pub(super) found: HashMap<String, Source>,
    /// A `lm_head.weight` although the config ties it: must equal the embedding.
    tied_head: Option<Source>,
    prefixed: bool,
}

/// The tensors of `files` that the model uses: which file, and the name there.
pub(super) fn tensors_of_model(files: &[File], layout: &Layout, config: &Config) -> Result<HashSet<(usize, String)>> {
    let Sources { found, tied_head, .. } = match_names(files, layout, config)?;
    Ok(found.into_values().chain(tied_head).map(|source| (source.file, source.name)).collect())
}

/// Every parameter exactly once, nothing unknown.
fn match_names(files: &[File], layout: &Layout, config: &Config) -> Result<Sources> {
    let head = config.family.head_name();
    let mut sources = Sources { found: HashMap::new(), tied_head: None, prefixed: false };
    let known: HashSet<&str> = layout.specs().iter().map(|s| s.name.as_str()).collect();
    for (file, opened) in files.iter().enumerate() {
        let tensors = opened.tensors()?;
        let mut names = tensors.names();
        names.sort_unstable();
        for name in names {
            let Some((short, prefixed)) = config.family.tensor_name(name) else { continue };
            let source = Source { file, name: name.to_owned() };
            if short == head && config.tied {
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
        let hint = if *first == head {
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
