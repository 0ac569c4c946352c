//! Data that cannot be used, and what is said about it: one table for the library's tests and for those of the program.

/// A file of records or text that must be refused.
pub struct Case {
    pub what: &'static str,
    /// Its name; the content is not written where it ends with `/` (a folder) or `?` (no file at all).
    pub file: &'static str,
    pub content: &'static [u8],
    /// Phrases of the sentence.
    pub says: &'static [&'static str],
}

const fn case(what: &'static str, file: &'static str, content: &'static [u8], says: &'static [&'static str]) -> Case {
    Case { what, file, content, says }
}

/// For the tiny checkpoint (vocabulary 101, no tokenizer).
pub const CASES: &[Case] = &[
    case("no such file", "gone.jsonl?", b"", &["gone.jsonl", "no such file"]),
    case("a folder", "folder.jsonl/", b"", &["is a folder where a file is expected"]),
    case("an unknown kind", "a.csv", b"a,b\n", &[".jsonl", ".txt"]),
    case("empty", "a.jsonl", b"", &["is empty"]),
    case("nothing but blanks", "a.jsonl", b"\n \n", &["is empty"]),
    case("invalid UTF-8", "a.jsonl", b"{\"tokens\":[1,2]}\n{\"text\":\"\xff\"}\n", &["line 2 is not valid UTF-8"]),
    case("not JSON", "a.jsonl", b"{\"tokens\":[1,2]}\nhello\n", &["line 2", "not valid JSON"]),
    case("cut off", "a.jsonl", b"{\"tokens\":[1,2", &["line 1", "not valid JSON"]),
    case("a blank line", "a.jsonl", b"{\"tokens\":[1,2]}\n\n{\"tokens\":[1,2]}\n", &["line 2", "blank"]),
    case("a broken array", "a.json", b"[\n{\"tokens\":[1,2]}\n", &["line 3", "JSON array"]),
    case("no record in an array", "a.json", b"[{\"tokens\":[1,2]}, [3]]", &["record 2"]),
    case("unknown keys", "a.jsonl", b"{\"txt\":\"a\"}\n", &["line 1", "1 other key)", "\"prompt\""]),
    case("a wrong type", "a.jsonl", b"{\"tokens\":\"1 2 3\"}\n", &["line 1", "\"tokens\" is a string"]),
    case("not a token", "a.jsonl", b"{\"tokens\":[1,2.5]}\n", &["line 1", "no token id at index 1"]),
    case(
        "vocabulary too small",
        "a.jsonl",
        b"{\"tokens\":[1,101]}\n",
        &["line 1", "token at index 1", "vocabulary of 101"],
    ),
    case("text without a tokenizer", "a.jsonl", b"{\"text\":\"hello\"}\n", &["line 1", "needs a tokenizer"]),
    case("plain text without a tokenizer", "a.txt", b"hello", &["needs a tokenizer"]),
    case("nothing to predict", "a.jsonl", b"{\"tokens\":[1]}\n{\"tokens\":[]}\n", &["nothing to learn from"]),
];

impl Case {
    /// Put the file into `folder` and return its path.
    pub fn write(&self, folder: &std::path::Path) -> std::path::PathBuf {
        let path = folder.join(self.file.trim_end_matches(['/', '?']));
        if self.file.ends_with('/') {
            std::fs::create_dir(&path).unwrap();
        } else if !self.file.ends_with('?') {
            std::fs::write(&path, self.content).unwrap();
        }
        path
    }
}
