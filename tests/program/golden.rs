//! Files of earlier versions: read for ever, and replayed to the bytes that they name.

use ferret::method::verify::verify;
use ferret::method::{Record, dense};
use ferret::model::checkpoint;
use ferret::privacy::Statement;
use ferret::progress::Unheard;
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
        let record = Record::from_transcript(&text, &path).unwrap();
        let base = checkpoint::load("embedded").unwrap().weights;
        let tuned = record.rebuild(base, |_| {}).unwrap();
        assert_eq!(Some(&*checkpoint::tensors_sha256(&tuned)), record.tuned_sha256(), "{}", dir.display());
        replayed += 1;
    }
    assert!(replayed >= 13, "{replayed} transcripts are kept");
}

#[test]
fn folders_of_earlier_versions_are_verified_whole_by_their_own_rules() {
    let mut versions = std::collections::BTreeSet::new();
    for dir in golden() {
        let path = dir.join("transcript.json");
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let record = Record::from_transcript(&text, &path).unwrap();
        let mut base = checkpoint::load("embedded").unwrap();
        let tuned = record.rebuild(base.weights.clone(), |_| {}).unwrap();
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("run");
        record.save(&folder, &base, &tuned).unwrap();
        for file in ["privacy.json", "PRIVACY.md", "transcript.json"] {
            std::fs::copy(dir.join(file), folder.join(file)).unwrap();
        }
        let found = verify(&folder, &mut base, &Unheard).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        assert!(found.verified && found.replayed, "{}", dir.display());
        versions.insert(found.statement.expect("a statement"));

        // One claim that is lower than what the run spent, and the same folder is refused.
        let stated = std::fs::read_to_string(folder.join("privacy.json")).unwrap();
        let mut statement: serde_json::Value = serde_json::from_str(&stated).unwrap();
        statement["steps"] = serde_json::json!(statement["steps"].as_u64().unwrap() - 1);
        std::fs::write(folder.join("privacy.json"), statement.to_string()).unwrap();
        let mut base = checkpoint::load("embedded").unwrap();
        assert!(verify(&folder, &mut base, &Unheard).is_err(), "{}", dir.display());
    }
    assert_eq!(versions.into_iter().collect::<Vec<_>>(), [1, 3]);
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
    assert!(statements >= 17 && records >= 4);
}
