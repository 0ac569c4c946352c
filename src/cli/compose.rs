//! `ferret account --add`: what several runs on the same records give away together.

use crate::error::{Error, Result};
use crate::fsio;
use crate::privacy::Statement;
use crate::privacy::compose::compose;
use crate::privacy::statement::FILE;
use std::path::PathBuf;

/// Said below every sum.
const CAVEAT: &str = "The statements are taken at their word (`ferret verify` checks one against its run), and the sum is of these runs alone.";

/// Compose the statements in `files`, each a privacy.json or a folder with one.
pub(super) fn run(files: &[PathBuf], delta: Option<f64>, json: bool, quiet: bool) -> Result<()> {
    let read = |path: &PathBuf| {
        let path = if path.is_dir() { path.join(FILE) } else { path.clone() };
        Statement::from_json(&fsio::read_text(&path)?).map_err(|e| Error::file(path, e.to_string()))
    };
    let statements = files.iter().map(read).collect::<Result<Vec<_>>>()?;
    let composed = {
        let _shown = super::common::working("accounting", quiet);
        compose(&statements, delta)?
    };
    if json {
        return fsio::print(&format!("{}\n", serde_json::to_string(&composed).expect("plain values")));
    }
    let runs = if composed.runs == 1 { "1 run".into() } else { format!("{} runs on the same records", composed.runs) };
    let mut text = format!("{runs}, together\n");
    for c in &composed.claims {
        text += &format!("  {} ({})\n", c.guarantee, c.accountant);
    }
    for note in &composed.notes {
        text += &format!("  note: {note}\n");
    }
    fsio::print(&format!("{text}{CAVEAT}\n"))
}
