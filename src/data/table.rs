//! Records in a Parquet file: one a row, from the columns that records are read from. Other columns are not looked at.
//!
//! A value that is not there is a key that is not there. What the decoder says of a damaged file may quote the records, so none of it is told.

use crate::guard;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::Page;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::record::Field;
use parquet::record::reader::RowIter;
use parquet::schema::types::{Type, TypePtr};
use serde_json::{Map, Value};
use std::fs::File;
use std::path::Path;

/// The keys that a record is read from ([`super::records`]).
const KEYS: [&str; 10] =
    ["tokens", "learn", "messages", "prompt", "response", "instruction", "input", "output", "text", "user"];

/// Values of a page, beyond which no writer goes: a page that claims more is a trap.
const MOST_VALUES: u32 = 1 << 24;

/// What is wrong, as a sentence; none where it unfolds to more than it may.
type Fault = Option<String>;

/// The rows of the file at `path` as a JSON object a line, of at most so many bytes, unfolded and as lines.
pub(super) fn read(path: &Path, most: u64) -> Result<String, Fault> {
    let file = File::open(path).map_err(|e| Some(e.to_string()))?;
    guard::call(|| rows(file, most)).unwrap_or_else(|| Err(broken(())))
}

fn broken<T>(_: T) -> Fault {
    Some("is no whole Parquet file: was it cut off or damaged?".to_owned())
}

fn rows(file: File, most: u64) -> Result<String, Fault> {
    let file = SerializedFileReader::new(file).map_err(broken)?;
    let root = file.metadata().file_metadata().schema();
    let fields: Vec<TypePtr> = root.get_fields().iter().filter(|f| KEYS.contains(&f.name())).cloned().collect();
    if fields.is_empty() {
        let keys = KEYS.join(", ");
        return Err(Some(format!("has none of the columns that records are read from: {keys}")));
    }
    let wanted = Type::group_type_builder(root.name()).with_fields(fields).build().map_err(broken)?;
    let (mut out, mut row, mut unfolded) = (String::new(), 0_u64, 0_u64);
    for i in 0..file.num_row_groups() {
        let group = file.get_row_group(i).map_err(broken)?;
        check(&*group, most, &mut unfolded)?;
        for record in RowIter::from_row_group(Some(wanted.clone()), &*group).map_err(broken)? {
            row += 1;
            let columns = record.map_err(broken)?.into_columns();
            let object = object(&columns).ok_or_else(|| {
                Some(format!("row {row} holds a value that no record has, such as a date, or bytes that are no UTF-8"))
            })?;
            if object.is_empty() {
                return Err(Some(format!("row {row} is empty in every column that records are read from")));
            }
            out += &format!("{}\n", Value::Object(object));
            if out.len() as u64 > most {
                return Err(None);
            }
        }
    }
    Ok(out)
}

/// Refuse columns that cannot be unpacked here, and pages that claim more than they hold, before memory is asked for.
fn check(group: &dyn RowGroupReader, most: u64, unfolded: &mut u64) -> Result<(), Fault> {
    for (i, column) in group.metadata().columns().iter().enumerate() {
        let name = column.column_path().parts().first().map_or("", String::as_str);
        if !KEYS.contains(&name) {
            continue;
        }
        let codec = match column.compression() {
            Compression::UNCOMPRESSED | Compression::SNAPPY | Compression::GZIP(_) => None,
            Compression::LZ4 | Compression::LZ4_RAW => None,
            Compression::ZSTD(_) => Some("zstd"),
            Compression::BROTLI(_) => Some("brotli"),
            _ => Some("LZO"),
        };
        if let Some(codec) = codec {
            return Err(Some(format!(
                "the column {name} is packed by {codec}, and snappy, gzip and lz4 are read: write the file with one of these"
            )));
        }
        let mut pages = group.get_column_page_reader(i).map_err(broken)?;
        while let Some(page) = pages.get_next_page().map_err(broken)? {
            *unfolded += page.buffer().len() as u64;
            if *unfolded > most {
                return Err(None);
            }
            let values = match &page {
                Page::DictionaryPage { .. } => page.buffer().len().try_into().unwrap_or(MOST_VALUES).min(MOST_VALUES),
                _ => MOST_VALUES,
            };
            if page.num_values() > values {
                return Err(broken(()));
            }
            if matches!(page.encoding(), Encoding::DELTA_LENGTH_BYTE_ARRAY | Encoding::DELTA_BYTE_ARRAY) {
                return Err(Some(format!(
                    "the column {name} is written by deltas, and plain and dictionary pages are read: write the file with these"
                )));
            }
        }
    }
    Ok(())
}

/// The columns that have a value; none where one of them has no place in a record.
fn object(columns: &[(String, Field)]) -> Option<Map<String, Value>> {
    let given = columns.iter().filter(|(_, field)| !matches!(field, Field::Null));
    given.map(|(name, field)| Some((name.clone(), value(field)?))).collect()
}

fn value(field: &Field) -> Option<Value> {
    Some(match field {
        Field::Null => Value::Null,
        Field::Bool(x) => (*x).into(),
        Field::Byte(x) => (*x).into(),
        Field::Short(x) => (*x).into(),
        Field::Int(x) => (*x).into(),
        Field::Long(x) => (*x).into(),
        Field::UByte(x) => (*x).into(),
        Field::UShort(x) => (*x).into(),
        Field::UInt(x) => (*x).into(),
        Field::ULong(x) => (*x).into(),
        Field::Float(x) => (*x).into(),
        Field::Double(x) => (*x).into(),
        Field::Str(text) => text.as_str().into(),
        Field::Bytes(bytes) => std::str::from_utf8(bytes.data()).ok()?.into(),
        Field::Group(row) => {
            let columns: Vec<(String, Field)> = row.get_column_iter().map(|(n, f)| (n.clone(), f.clone())).collect();
            Value::Object(object(&columns)?)
        }
        Field::ListInternal(list) => list.elements().iter().map(value).collect::<Option<_>>()?,
        _ => return None,
    })
}
