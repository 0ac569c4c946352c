//! A file of records or text as it lies on the disk: as it is or gzipped, an object a line or one array of them.

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
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    Some(Path::new(name).extension()?.to_str()?.to_owned())
}

/// The text of a file, unfolded where its name ends in `.gz`.
pub fn read(path: &Path) -> Result<String> {
    if !path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gz")) {
        return fsio::read_text(path);
    }
    let packed = fsio::read_bytes(path)?;
    let mut bytes = Vec::new();
    MultiGzDecoder::new(&packed[..])
        .take(MOST + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::file(path, format!("is no whole gzip file ({e}): was it cut off?")))?;
    if bytes.len() as u64 > MOST {
        return Err(Error::file(path, format!("unfolds to more than {} GiB: unpack it and give a part", MOST >> 30)));
    }
    String::from_utf8(bytes)
        .map_err(|e| Error::file(path, format!("holds no valid UTF-8 (byte {})", e.utf8_error().valid_up_to())))
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
