//! The safetensors container: a mapped file to read from.
//!
//! Layout: header length (u64, little-endian), header (JSON, padded with spaces to a multiple of 8), tensor data.
//! Reading goes through the `safetensors` crate.

use crate::error::{Error, Result};
use crate::fsio;
use crate::kernel::{Stored, View};
use half::{bf16, f16};
use memmap2::Mmap;
use rayon::prelude::*;
use safetensors::tensor::{SafeTensorError, SafeTensors, TensorView};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// How scalars are stored in a file. In memory they are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Dtype {
    /// 32-bit IEEE.
    #[default]
    F32,
    /// 16-bit IEEE: 11 bits of precision, largest value 65504.
    F16,
    /// The upper half of an f32: 8 bits of precision.
    Bf16,
}

impl Dtype {
    /// Bytes a scalar.
    pub fn size(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// The name in a safetensors header.
    pub fn header_name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
        }
    }

    /// The name in a `config.json`.
    pub fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }
}

/// A mapped or embedded, checked safetensors file.
pub struct File {
    path: PathBuf,
    map: Bytes,
}

/// Where a file's bytes are.
enum Bytes {
    Mapped(Mmap),
    Embedded(&'static [u8]),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Embedded(bytes) => bytes,
        }
    }
}

impl File {
    /// Map `path` and check its header.
    pub fn open(path: &Path) -> Result<Self> {
        fsio::must_be_file(path)?;
        let file = std::fs::File::open(path).map_err(|e| Error::io(path, e))?;
        let length = file.metadata().map_err(|e| Error::io(path, e))?.len();
        if length == 0 {
            return Err(Error::file(path, "is empty, and a safetensors file is expected"));
        }
        // SAFETY: the map is read-only and private to this value. Another process that shortens the file while it is
        // mapped would kill this one with SIGBUS, as with every program that maps files; checkpoints are replaced by
        // rename, never rewritten in place.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io(path, e))?;
        Self { path: path.to_owned(), map: Bytes::Mapped(map) }.checked()
    }

    /// A file that is part of the program.
    pub fn embedded(path: &Path, bytes: &'static [u8]) -> Result<Self> {
        Self { path: path.to_owned(), map: Bytes::Embedded(bytes) }.checked()
    }

    fn checked(self) -> Result<Self> {
        self.check_size()?;
        self.tensors()?;
        Ok(self)
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's tensors; no data is read.
    pub fn tensors(&self) -> Result<SafeTensors<'_>> {
        SafeTensors::deserialize(&self.map).map_err(|e| Error::file(&self.path, self.explain(e)))
    }

    /// Say that `data`, a part of this file that has been read, is not needed soon: what is copied elsewhere should not be in memory
    /// twice.
    pub fn forget(&self, data: &[u8]) {
        #[cfg(unix)]
        if let Bytes::Mapped(map) = &self.map {
            let offset = data.as_ptr() as usize - map.as_ptr() as usize;
            // SAFETY: the map is of a file, shared and read-only: pages that are given back are read again when they are touched.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, data.len()) };
        }
        let _ = data;
    }

    /// What the header says beside the tensors.
    pub fn metadata(&self) -> Result<Vec<(String, String)>> {
        let (_, header) =
            SafeTensors::read_metadata(&self.map).map_err(|e| Error::file(&self.path, self.explain(e)))?;
        Ok(header.metadata().clone().into_iter().flatten().collect())
    }

    /// The tensors as the header lists them, each with where its data begin.
    pub fn order(&self) -> Result<Vec<(String, u64)>> {
        let begin = |tensor: &Value| tensor["data_offsets"][0].as_u64().unwrap_or(u64::MAX);
        let said = self.header()?;
        let tensors = said.as_object().into_iter().flatten().filter(|(name, _)| *name != "__metadata__");
        Ok(tensors.map(|(name, tensor)| (name.clone(), begin(tensor))).collect())
    }

    /// How much longer the header is than what it says: blanks between its words, words said twice.
    pub fn idle_header_bytes(&self) -> Result<usize> {
        Ok(self.header_text().len().saturating_sub(self.header()?.to_string().len()))
    }

    fn header_text(&self) -> &[u8] {
        let length = self.map.first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b)) as usize;
        self.map.get(8..8 + length).unwrap_or_default()
    }

    /// The header, its keys in their order.
    fn header(&self) -> Result<Value> {
        serde_json::from_slice(self.header_text())
            .map_err(|e| Error::file(&self.path, format!("has a broken header ({e})")))
    }

    /// Header length against the file's length, before anything believes either.
    fn check_size(&self) -> Result<()> {
        let length = self.map.len() as u64;
        let Some(header) = self.map.first_chunk::<8>().map(|b| u64::from_le_bytes(*b)) else {
            let what = format!("has {length} bytes, too few for a safetensors file: was the download cut off?");
            return Err(Error::file(&self.path, what));
        };
        if header > length - 8 {
            let what = format!(
                "announces a header of {header} bytes, but the file has {length}: it is cut off, or no safetensors file"
            );
            return Err(Error::file(&self.path, what));
        }
        Ok(())
    }

    fn explain(&self, error: SafeTensorError) -> String {
        match error {
            SafeTensorError::MetadataIncompleteBuffer => {
                let header = self.map.first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b)) as usize;
                let announced = self
                    .map
                    .get(8..8 + header)
                    .and_then(|json| serde_json::from_slice::<Map<String, Value>>(json).ok())
                    .and_then(|map| map.values().filter_map(|t| t["data_offsets"][1].as_u64()).max());
                format!(
                    "announces {} bytes of tensors, but {} follow the header: was the download cut off?",
                    announced.unwrap_or(0),
                    self.map.len() - 8 - header
                )
            }
            SafeTensorError::HeaderTooLarge => "announces a header of more than 100 MB: no safetensors file".into(),
            other => format!("is not a valid safetensors file ({other})"),
        }
    }
}

impl Dtype {
    /// How `view` is stored.
    pub fn of(view: View<'_>) -> Self {
        match view {
            View::F32(_) => Self::F32,
            View::Bf16(_) => Self::Bf16,
            View::F16(_) => Self::F16,
        }
    }
}

/// How `view` is stored: F32, F16 and BF16 are read.
pub fn dtype_of(view: &TensorView<'_>, file: &File, name: &str) -> Result<Dtype> {
    use safetensors::Dtype as D;
    match view.dtype() {
        D::F32 => Ok(Dtype::F32),
        D::F16 => Ok(Dtype::F16),
        D::BF16 => Ok(Dtype::Bf16),
        other => Err(Error::file(file.path(), format!("{name} is stored as {other:?}; F32, F16 and BF16 are read"))),
    }
}

/// The scalars of `view` as they are stored, all finite. `name` is for messages.
pub fn to_stored(view: &TensorView<'_>, file: &File, name: &str) -> Result<Stored> {
    let data = view.data();
    let (stored, wrong) = match dtype_of(view, file, name)? {
        Dtype::F32 => {
            let x = convert(data, f32::from_le_bytes);
            let wrong = first(&x, |x| (!x.is_finite()).then_some(*x));
            (Stored::F32(x), wrong)
        }
        Dtype::F16 => {
            let x = convert(data, f16::from_le_bytes);
            let wrong = first(&x, |x| (!x.is_finite()).then_some(x.to_f32()));
            (Stored::F16(x), wrong)
        }
        Dtype::Bf16 => {
            let x = convert(data, bf16::from_le_bytes);
            let wrong = first(&x, |x| (!x.is_finite()).then_some(x.to_f32()));
            (Stored::Bf16(x), wrong)
        }
    };
    if let Some((at, value)) = wrong {
        let what = format!("{name} holds {value} at index {at}: these weights cannot be used");
        return Err(Error::file(file.path(), what));
    }
    file.forget(data);
    Ok(stored)
}

/// The first scalar of which `f` has something to say, and where it is.
fn first<T: Sync>(x: &[T], f: impl Fn(&T) -> Option<f32> + Sync + Send) -> Option<(usize, f32)> {
    x.par_iter().enumerate().find_map_first(|(i, x)| f(x).map(|value| (i, value)))
}

/// Little-endian scalars of N bytes; the map gives no promise about alignment.
fn convert<const N: usize, T: Copy + Default + Send + Sync>(
    data: &[u8],
    one: impl Fn([u8; N]) -> T + Sync + Send,
) -> Vec<T> {
    const RUN: usize = 1 << 16;
    let (chunks, _) = data.as_chunks::<N>();
    let mut values = vec![T::default(); chunks.len()];
    values.par_chunks_mut(RUN).zip(chunks.par_chunks(RUN)).for_each(|(values, chunks)| {
        for (value, &bytes) in values.iter_mut().zip(chunks) {
            *value = one(bytes);
        }
    });
    values
}
