//! Files of earlier versions: read for ever, and replayed to the bytes that they name.
#![cfg(feature = "embedded")]

use ferret::method::dense;
use ferret::method::ferret::{Transcript, replay};
use ferret::model::checkpoint;
use ferret::privacy::Statement;
use std::path::{Path, PathBuf};

fn golden() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let folders = |dir: &Path| -> Vec<PathBuf> {
        let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.is_dir()).collect()
    };
    let mut found: Vec<PathBuf> = folders(&root).iter().flat_map(|version| folders(version)).collect();
    found.sort();
    found
}

#[test]
fn earlier_transcripts_replay_to_the_hash_they_name() {
    let mut replayed = 0;
    for dir in golden() {
        let path = dir.join("transcript.json");
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let transcript = Transcript::from_json(&text, &path).unwrap();
        let base = checkpoint::load("embedded").unwrap().weights;
        let tuned = replay(base, &transcript, |_| {}).unwrap();
        assert_eq!(Some(checkpoint::tensors_sha256(&tuned)), transcript.tuned_sha256, "{}", dir.display());
        replayed += 1;
    }
    assert!(replayed >= 4, "{replayed} transcripts are kept");
}

#[test]
fn earlier_statements_and_records_are_read() {
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    let (mut statements, mut records) = (0, 0);
    for dir in golden() {
        let statement = Statement::from_json(&read(dir.join("privacy.json")).unwrap()).unwrap();
        assert!(statement.is_private() && !statement.claims.is_empty(), "{}", dir.display());
        statements += 1;
        if let Some(text) = read(dir.join("run.json")) {
            assert_eq!(u64::from(dense::Record::from_json(&text).unwrap().steps_run), statement.steps);
            records += 1;
        }
    }
    assert!(statements >= 5 && records >= 1);
}
