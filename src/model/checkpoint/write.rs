//! A writer of safetensors files whose bytes depend on its input alone.
//!
//! The `safetensors` crate keeps metadata in a hash map, whose order changes from run to run, and a replayed checkpoint must come out byte for
//! byte. Tensors are asked for one after the other, so that they need not exist all at once.

use super::safetensors::Dtype;
use crate::error::{Error, Result};
use crate::fsio;
use crate::kernel::{Scalars, Stored, View};
use half::{bf16, f16};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

/// Feed the little-endian f32 bytes of `data` to `sink`, without copying where the machine is little-endian.
pub(super) fn f32_bytes<E>(data: &[f32], mut sink: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    if cfg!(target_endian = "little") {
        return sink(bytemuck::cast_slice(data));
    }
    for chunk in data.chunks(1 << 14) {
        let bytes: Vec<u8> = chunk.iter().flat_map(|x| x.to_le_bytes()).collect();
        sink(&bytes)?;
    }
    Ok(())
}

/// A tensor to write: name, shape, scalars.
pub type Tensor<'a> = (String, Vec<usize>, Cow<'a, [f32]>);

/// A tensor to write, how, and where its scalars are: stored so already, or in f32, or still to be made.
pub struct Entry<'a> {
    /// Its name in the file.
    pub name: String,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// How the file stores it.
    pub dtype: Dtype,
    /// Its scalars, asked for once, when their turn comes.
    pub content: Box<dyn Fn() -> Result<Content<'a>> + 'a>,
}

/// Scalars to write.
pub enum Content<'a> {
    /// As they lie in memory.
    Lent(View<'a>),
    /// Made for the file.
    Made(Stored),
}

impl Content<'_> {
    pub(super) fn view(&self) -> View<'_> {
        match self {
            Self::Lent(view) => *view,
            Self::Made(stored) => stored.view(),
        }
    }
}

/// Write `entries`, in their order, to `path`, whole or not at all. `metadata` appears in its order; `format: pt`,
/// which transformers insists on, is put first.
pub fn write(path: &Path, entries: &[Entry<'_>], metadata: &[(String, String)], access: fsio::Access) -> Result<()> {
    let mut header = Map::new();
    let mut extra = Map::new();
    extra.insert("format".into(), json!("pt"));
    extra.extend(metadata.iter().map(|(k, v)| (k.clone(), json!(v))));
    header.insert("__metadata__".into(), Value::Object(extra));
    let mut offset = 0;
    for Entry { name, shape, dtype, .. } in entries {
        let end = offset + shape.iter().product::<usize>() * dtype.size();
        let entry = json!({"dtype": dtype.header_name(), "shape": shape, "data_offsets": [offset, end]});
        if header.insert(name.clone(), entry).is_some() {
            return Err(Error::file(path, format!("two tensors are named {name}")));
        }
        offset = end;
    }
    let mut header = serde_json::to_vec(&header).expect("a map of strings is JSON");
    header.resize(header.len().next_multiple_of(8), b' ');
    // What goes wrong with a tensor is told as it is; nothing of the file stays.
    let mut wrong = None;
    let written = fsio::write_with(path, access, |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        for entry in entries {
            let content = (entry.content)().map_err(|e| stop(&mut wrong, e))?;
            let data = content.view();
            assert_eq!(entry.shape.iter().product::<usize>(), data.len(), "{}", entry.name);
            entry.write(path, data, out).map_err(|e| e.unwrap_or_else(|e| stop(&mut wrong, e)))?;
        }
        Ok(())
    });
    match wrong {
        Some(error) => Err(error),
        None => written,
    }
}

/// Keep `error` for the caller, and give what ends the writing.
fn stop(wrong: &mut Option<Error>, error: Error) -> std::io::Error {
    *wrong = Some(error);
    std::io::Error::other("the tensor cannot be written")
}

impl Entry<'_> {
    /// A tensor that is in f32 and is written as `dtype`.
    pub fn wide<'a>((name, shape, data): &'a Tensor<'_>, dtype: Dtype) -> Entry<'a> {
        let content = Box::new(|| Ok(Content::Lent(View::F32(data))));
        Entry { name: name.clone(), shape: shape.clone(), dtype, content }
    }

    fn write(&self, path: &Path, data: View<'_>, out: &mut dyn Write) -> Result<(), Result<std::io::Error, Error>> {
        match (self.dtype, data) {
            // As they are, but for the order of bytes.
            (Dtype::Bf16, View::Bf16(x)) => each(x, out, |x| x.to_le_bytes()).map_err(Ok),
            (Dtype::F16, View::F16(x)) => each(x, out, |x| x.to_le_bytes()).map_err(Ok),
            (dtype, data) => data.pieces(|x| {
                if let Some(x) = x.iter().find(|x| !fits(**x, dtype)) {
                    let what = format!(
                        "{} holds {x}, which {} cannot store: choose f32 or bf16",
                        self.name,
                        dtype.header_name()
                    );
                    return Err(Err(Error::file(path, what)));
                }
                match dtype {
                    Dtype::F32 => f32_bytes(x, |bytes| out.write_all(bytes)),
                    Dtype::F16 => each(x, out, |x| f16::from_f32(x).to_le_bytes()),
                    Dtype::Bf16 => each(x, out, |x| bf16::from_f32(x).to_le_bytes()),
                }
                .map_err(Ok)
            }),
        }
    }
}

/// Whether rounding `x` to `dtype` keeps it finite, if it was.
fn fits(x: f32, dtype: Dtype) -> bool {
    match dtype {
        Dtype::F32 => true,
        Dtype::F16 => f16::from_f32(x).is_finite() || !x.is_finite(),
        Dtype::Bf16 => bf16::from_f32(x).is_finite() || !x.is_finite(),
    }
}

fn each<T: Copy>(data: &[T], out: &mut dyn Write, one: impl Fn(T) -> [u8; 2]) -> std::io::Result<()> {
    for chunk in data.chunks(1 << 14) {
        let bytes: Vec<u8> = chunk.iter().flat_map(|&x| one(x)).collect();
        out.write_all(&bytes)?;
    }
    Ok(())
}
