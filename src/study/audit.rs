//! The files of a membership audit: tables, every record's scores, curves.

use super::plot;
use crate::audit::bound::Bound;
use crate::audit::columns::WIDTH;
use crate::error::Result;
use crate::fsio;
use crate::measure::Finding;
use serde_json::Value;
use std::path::Path;

/// Write `finding` to the folder `dir`, each file for its owner alone: an audit is computed from private records. `summary` is what
/// [`Finding::json`] gave.
pub fn write(dir: &Path, finding: &Finding, summary: &Value) -> Result<()> {
    let Finding { report, curves, bound, .. } = finding;
    let attacks: Vec<_> = curves.iter().map(|(name, roc)| (name.clone(), roc.curve())).collect();
    let bounds = match bound {
        Bound::DoesNotApply(_) => Vec::new(),
        bound => vec![("bound".to_owned(), bound.curve(400, 1e-4))],
    };
    let low = "Membership attacks at low false-positive rates";
    for (name, text) in [
        ("audit.txt", report.text(WIDTH)),
        ("audit.csv", report.csv()),
        ("audit.json", format!("{summary:#}\n")),
        ("scores.csv", finding.scores_csv()),
        ("roc.svg", plot::roc("Membership attacks", &attacks, &bounds, None)),
        ("roc-log.svg", plot::roc(low, &attacks, &bounds, Some(1e-3))),
    ] {
        fsio::private_folder(dir)?;
        fsio::write_private(&dir.join(name), text.as_bytes())?;
    }
    Ok(())
}
