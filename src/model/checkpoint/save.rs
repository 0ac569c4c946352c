//! Writing a checkpoint: config, tokenizer, and the tensors, each as it lies in memory or in the precision asked for.

use super::adapter;
use super::safetensors::Dtype;
use super::write::{self, Content, Entry, Tensor};
use super::{CONFIG, TOKENIZER_FILES, WEIGHTS};
use crate::error::Result;
use crate::fsio;
use crate::kernel::{Scalars, Stored, View};
use crate::model::config::Config;
use crate::model::embedded;
use crate::model::layout::{Layout, ParamSpec};
use crate::model::weights::Weights;
use serde_json::Value;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// How and with what a checkpoint is written.
#[derive(Clone, Debug, Default)]
pub struct SaveOptions {
    /// Precision in which tensors that are in f32 are written; those that are stored in two bytes are written as they are.
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
/// `model.safetensors` last; a folder that did not exist appears complete. Of weights with an adapter, the adapter is written, as PEFT does.
pub fn save(dir: &Path, weights: &Weights<impl Scalars>, options: &SaveOptions) -> Result<()> {
    let Weights { config, layout, tensors } = weights;
    if let Some(adapter) = &config.adapter {
        return adapter::save(dir, weights, adapter, options);
    }
    let views: Vec<View> = tensors.iter().map(Scalars::view).collect();
    let dtype = |i: usize| match Dtype::of(views[i]) {
        Dtype::F32 => options.dtype,
        narrow => narrow,
    };
    save_by(dir, config, layout, options, dtype, |i| Ok(Content::Lent(views[i])))
}

/// As [`save`], of tensors that exist one at a time: `make` gives that of an index of the layout, in f32, and is asked once for each.
pub fn save_made(
    dir: &Path,
    config: &Config,
    layout: &Layout,
    options: &SaveOptions,
    make: impl Fn(usize) -> Result<Vec<f32>>,
) -> Result<()> {
    save_by(dir, config, layout, options, |_| options.dtype, |i| Ok(Content::Made(Stored::F32(make(i)?))))
}

fn save_by<'a>(
    dir: &Path,
    config: &Config,
    layout: &Layout,
    options: &SaveOptions,
    dtype: impl Fn(usize) -> Dtype,
    content: impl Fn(usize) -> Result<Content<'a>>,
) -> Result<()> {
    let family = config.family;
    let (specs, content) = (layout.specs(), &content);
    let entry = |i: usize| entry(config, &specs[i], options.prefixed, dtype(i), move || content(i));
    let mut entries: Vec<Entry<'_>> = (0..specs.len()).map(entry).collect();
    if family.sorts_files() {
        entries.sort_by(|a, b| a.name.cmp(&b.name));
    }
    // Where precisions differ the widest is named: a loader that trusts it rounds nothing.
    let one = entries.iter().map(|e| e.dtype).reduce(|a, b| if a == b { a } else { Dtype::F32 }).unwrap_or_default();
    fsio::fill_folder(dir, |dir| {
        let config = match &options.config_json {
            Some(text) => with_dtype(text, one),
            None => with_dtype(&family.to_json(config), one),
        };
        fsio::write(&dir.join(CONFIG), config.as_bytes())?;
        if let Some(from) = &options.tokenizer_from {
            copy_tokenizer(from, dir)?;
        }
        write::write(&dir.join(WEIGHTS), &entries, &options.metadata, fsio::Access::Shared)
    })
}

/// The tensor of `spec` under its name in a file, its rows in the file's order.
pub(super) fn entry<'a>(
    config: &'a Config,
    spec: &'a ParamSpec,
    prefixed: bool,
    dtype: Dtype,
    content: impl Fn() -> Result<Content<'a>> + 'a,
) -> Entry<'a> {
    let in_file = move || Ok(ordered(config, spec, content()?));
    let name = config.family.file_name(&spec.name, prefixed);
    Entry { name, shape: spec.shape.clone(), dtype, content: Box::new(in_file) }
}

/// The tensor of `spec` with its rows as a file has them.
fn ordered<'a>(config: &Config, spec: &ParamSpec, content: Content<'a>) -> Content<'a> {
    let Some(order) = config.family.row_order(config, spec) else { return content };
    Content::Made(match content.view() {
        View::F32(x) => Stored::F32(rows_in_file(&order, x)),
        View::Bf16(x) => Stored::Bf16(rows_in_file(&order, x)),
        View::F16(x) => Stored::F16(rows_in_file(&order, x)),
    })
}

/// Row i of memory is row `order[i]` of the file.
fn rows_in_file<T: Copy>(order: &[usize], memory: &[T]) -> Vec<T> {
    let width = memory.len() / order.len();
    let mut file = memory.to_vec();
    for (from, &to) in memory.chunks_exact(width).zip(order) {
        file[to * width..(to + 1) * width].copy_from_slice(from);
    }
    file
}

/// A tensor's rows as a file has them, from those in memory: weights, or a gradient in their shape.
pub fn in_file<'a>(config: &Config, spec: &ParamSpec, memory: &'a [f32]) -> Cow<'a, [f32]> {
    match config.family.row_order(config, spec) {
        Some(order) => Cow::Owned(rows_in_file(&order, memory)),
        None => Cow::Borrowed(memory),
    }
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
    let entries: Vec<Entry<'_>> = tensors.iter().map(|t| Entry::wide(t, Dtype::F32)).collect();
    write::write(path, &entries, &[], fsio::Access::Private)
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
