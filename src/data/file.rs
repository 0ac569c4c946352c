//! A file of records or text as it lies on the disk: as it is, packed, an object a line or one array of them, or a table.

use crate::error::{Error, Result};
use crate::fsio;
use flate2::read::MultiGzDecoder;
use serde_json::Value;
use std::io::Read;
use std::path::Path;

/// The most that a compressed file may unfold to.
const MOST: u64 = 8 << 30;

/// What the name says of the contents, in small letters: its ending, without one of compression.
pub(super) fn kind(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let inner = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(&name);
    let kind = Path::new(inner).extension()?.to_str()?.to_owned();
    // A table is packed inside, column by column.
    Some(kind).filter(|kind| kind != TABLE || inner == name)
}

/// The ending of a table's name.
pub(super) const TABLE: &str = "parquet";

/// The text of a file, unfolded where its name ends in `.gz` or `.zst`; of a `.parquet`, its rows as a JSON object a line.
pub fn read(path: &Path) -> Result<String> {
    read_at_most(path, MOST)
}

/// [`read`], where a packed file may unfold to at most so many bytes.
pub fn read_at_most(path: &Path, most: u64) -> Result<String> {
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    let unfolded = match ending.as_str() {
        "gz" => gunzip(&fsio::read_bytes(path)?, most),
        "zst" => unfold_zst(path, most)?,
        TABLE => return read_table(path, most),
        _ => return fsio::read_text(path),
    };
    // Whatever a decoder says could be of the contents: the place is enough.
    let Some(bytes) = unfolded else {
        let what = if ending == "gz" { "gzip" } else { "zstd" };
        return Err(Error::file(path, format!("is no whole {what} file: was it cut off or damaged?")));
    };
    if bytes.len() as u64 > most {
        return Err(Error::file(path, too_large(most)));
    }
    String::from_utf8(bytes)
        .map_err(|e| Error::file(path, format!("holds no valid UTF-8 (byte {})", e.utf8_error().valid_up_to())))
}

/// Of a file that unfolds to more than `most` bytes.
fn too_large(most: u64) -> String {
    let most = if most >> 30 > 0 { format!("{} GiB", most >> 30) } else { format!("{most} bytes") };
    format!("unfolds to more than {most}: unpack it and give a part")
}

/// What gzip packed, or the first bytes of it, one more than `most`; none where it is not whole.
fn gunzip(packed: &[u8], most: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    MultiGzDecoder::new(packed).take(most + 1).read_to_end(&mut bytes).ok().map(|_| bytes)
}

#[cfg(feature = "formats")]
fn unfold_zst(path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    Ok(super::zst::unfold(&fsio::read_bytes(path)?, most))
}

#[cfg(feature = "formats")]
fn read_table(path: &Path, most: u64) -> Result<String> {
    fsio::must_be_file(path)?;
    super::table::read(path, most).map_err(|what| Error::file(path, what.unwrap_or_else(|| too_large(most))))
}

#[cfg(not(feature = "formats"))]
fn unfold_zst(path: &Path, _most: u64) -> Result<Option<Vec<u8>>> {
    Err(without(path, "zstd files", "unpack it"))
}

#[cfg(not(feature = "formats"))]
fn read_table(path: &Path, _most: u64) -> Result<String> {
    Err(without(path, "Parquet files", "write its rows as JSON lines"))
}

/// Of a file that only the feature `formats` reads.
#[cfg(not(feature = "formats"))]
fn without(path: &Path, what: &str, instead: &str) -> Error {
    match fsio::must_be_file(path) {
        Err(e) => e,
        Ok(()) => Error::file(
            path,
            format!(
                "{what} are read by the feature `formats`, which this build is without: build with it, or {instead}"
            ),
        ),
    }
}

/// A JSON array of records as one record a line; none where the text is no array, which is then lines already.
pub(super) fn array(path: &Path, text: &str) -> Result<Option<String>> {
    if !text.trim_start().starts_with('[') {
        return Ok(None);
    }
    // Records are private, and errors end in logs: the place, and nothing of the text.
    let records: Vec<Value> = serde_json::from_str(text).map_err(|e| {
        let what = format!("line {}, column {}: is no JSON array of records", e.line(), e.column());
        Error::file(path, format!("{what}: give one array of objects, or an object a line"))
    })?;
    Ok(Some(records.iter().map(|record| format!("{record}\n")).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_kind_through_compression() {
        for (name, kind) in [
            ("a.jsonl", Some("jsonl")),
            ("a.JSON.GZ", Some("json")),
            ("a.b.txt.gz", Some("txt")),
            ("a.gz", None),
            ("a.jsonl.zst", Some("jsonl")),
            ("a.Parquet", Some("parquet")),
            ("a.parquet.gz", None),
            ("gz", None),
        ] {
            assert_eq!(super::kind(Path::new(name)).as_deref(), kind, "{name}");
        }
    }

    #[test]
    fn an_array_becomes_lines_and_lines_stay() {
        let path = Path::new("x.json");
        let lines = array(path, " [{\"text\": \"a\\nb\"},\n {\"text\": 1.5}]\n").unwrap().unwrap();
        assert_eq!(lines, "{\"text\":\"a\\nb\"}\n{\"text\":1.5}\n");
        assert_eq!(array(path, "{\"text\": \"[\"}").unwrap(), None);
        let error = array(path, "[{\"text\": \"a secret\"}, {]").unwrap_err().to_string();
        assert!(error.contains("line 1") && !error.contains("secret"), "{error}");
    }
}
