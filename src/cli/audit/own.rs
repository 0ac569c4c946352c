//! A run's audit of itself: `ferret train --audit`.

use super::members;
use crate::audit::bound::Design;
use crate::audit::stats::SeededRng;
use crate::cli::common::{Compute, DataArg, width};
use crate::cli::ranks;
use crate::data::{self, Example, LoadOptions};
use crate::error::{Error, Result};
use crate::fsio;
use crate::measure::{Audit, Pair, Provenance, ReadAs};
use crate::model::Config;
use crate::model::tokenizer::Tokenizer;
use crate::privacy::statement::{AUDITED, FILE, Statement};
use crate::ranks::{Alone, Ranks};
use crate::study;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder in the run's own.
const FOLDER: &str = "audit";

/// An audit after training.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Audit")]
pub(in crate::cli) struct OwnArgs {
    /// After training, run the threshold attacks of `ferret audit` on the run's own records against these, which it never saw;
    /// FOLDER/audit gets tables, curves and scores. They are computed from the private records: keep them as secret
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// Score at most N of the members and N of the non-members, chosen at random
    #[arg(long, value_name = "N", requires = "audit")]
    audit_records: Option<usize>,
    /// How it was decided which records are in --data and which in --audit; the bounds are about this choice
    #[arg(long, value_enum, value_name = "HOW", default_value = "given", requires = "audit")]
    audit_membership: Design,
}

/// The run that is audited.
pub(in crate::cli) struct OwnRun<'a> {
    /// The model it began at, by name.
    pub base: &'a str,
    /// Its folder.
    pub tuned: &'a Path,
    /// Its records.
    pub data: &'a DataArg,
    /// Where to compute.
    pub compute: &'a Compute,
    /// No progress, no notes.
    pub quiet: bool,
}

impl OwnArgs {
    /// Whether an audit is asked for.
    pub fn asked(&self) -> bool {
        self.audit.is_some()
    }

    /// Refuse before training what would be refused after it.
    pub fn check(&self, data: &DataArg, config: &Config, tokenizer: Option<&Tokenizer>) -> Result<()> {
        let Some(path) = &self.audit else { return Ok(()) };
        if self.audit_records == Some(0) {
            return Err(Error::usage("--audit-records 0 leaves nothing to audit: give at least 1"));
        }
        let unit = data.unit.unit()?;
        let options = LoadOptions { loss: data.loss_on, unit, ..LoadOptions::new(config) };
        data::load_examples(path, tokenizer, &options).map(drop)
    }

    /// Declare the audit in the run's statement, then do it: the summary and the table, or none where none is asked for, or another rank has them.
    pub fn run(&self, run: OwnRun) -> Result<Option<(Value, String)>> {
        let Some(nonmembers) = &self.audit else { return Ok(None) };
        let Some(tuned) = run.tuned.to_str() else {
            return Err(Error::file(run.tuned, "the audit needs a folder whose name is UTF-8"));
        };
        // Only the first rank has written the model: the others score it where they see the same folder.
        let ranks: Arc<dyn Ranks> = match ranks::all_see("statement of the run", &run.tuned.join(FILE))? {
            true => ranks::world(),
            false if ranks::is_first() => Arc::new(Alone),
            false => return Ok(None),
        };
        let mut pair = Pair::open(run.base, tuned)?;
        let provenance = Provenance::of(&pair)?;
        let (inside, m) = self.choose(&mut pair, &run.data.data, run.data, 1)?;
        let (outside, n) = self.choose(&mut pair, nonmembers, run.data, 2)?;
        if let Some(statement) = provenance.statement.as_ref().filter(|s| s.records != m) {
            let told = format!("the run there had {} records, and --data has {m}", statement.records);
            return Err(Error::file(run.tuned, format!("{told}: give the records it was trained on")));
        }
        let out = run.tuned.join(FOLDER);
        if ranks.is_first() {
            declare(run.tuned)?;
            make_private(&out)?;
        }
        let audit = Audit {
            candidates: (m, n),
            cache: members::cache(None, Some(&out))?,
            device: run.compute.device,
            ranks: ranks.clone(),
            ..Audit::new(pair, provenance, inside, outside, self.audit_membership)
        };
        let finding = audit.run(&members::bars(run.quiet))?;
        if !ranks.is_first() {
            return Ok(None);
        }
        let summary = finding.json(run.base, tuned, Some(&out));
        study::audit::write(&out, &finding, &summary)?;
        Ok(Some((summary, finding.report.text(width()))))
    }

    /// The records of a file, at most as many as asked for, and how many there are.
    fn choose(&self, pair: &mut Pair, path: &Path, data: &DataArg, seed: u64) -> Result<(Vec<Example>, u64)> {
        let mut records = pair.records(path, ReadAs { loss: data.loss_on, unit: data.unit.unit()? })?;
        let all = records.len() as u64;
        if let Some(most) = self.audit_records.filter(|&most| most < records.len()) {
            SeededRng::new(seed).shuffle(&mut records);
            records.truncate(most);
        }
        Ok((records, all))
    }
}

/// Say in the statement what the audit is, before any of it is written.
fn declare(dir: &Path) -> Result<()> {
    let path = dir.join(FILE);
    let mut statement =
        Statement::from_json(&fsio::read_text(&path)?).map_err(|e| Error::file(&path, e.to_string()))?;
    if !statement.not_met.iter().any(|note| note == AUDITED) {
        statement.not_met.push(AUDITED.into());
        crate::method::training::write_statement(dir, &statement)?;
    }
    Ok(())
}

/// A folder for its owner alone, where the system knows owners.
fn make_private(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|e| Error::io(dir, e))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).map_err(|e| Error::io(dir, e))?;
    }
    Ok(())
}
