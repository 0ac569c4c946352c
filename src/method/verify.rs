//! Is a trained checkpoint what its files say, and is its statement the one that its run leads to?
//!
//! A run of FERRET or FERRET-k is replayed: the weights are then a function of the base model and the transcript's bits, whoever wrote them. The other
//! methods cannot be: of them the hashes and the statement are checked. What no one can check afterwards is listed.

use super::ferret::{Release, transcript};
use super::list::Record;
use super::{Tune, dense};
use crate::error::{Error, Result};
use crate::fsio;
use crate::kernel::{Scalars, Stored};
use crate::model::checkpoint::{self, Checkpoint, OpenCheckpoint, adapter};
use crate::model::{Config, ParamId, Weights, embedded};
use crate::privacy::Statement;
use crate::privacy::statement::{AUDITED, FILE as STATEMENT, PAGE, RESTARTED};
use crate::progress::Progress;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What was found right, and what was not looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verification {
    /// Always: what is wrong is an error.
    pub verified: bool,
    /// Whether the weights were computed again; if not, only their hash was.
    pub replayed: bool,
    /// Steps of the run.
    pub steps: u32,
    /// What it released: bits, scalars or updates.
    pub releases: u64,
    /// Scalars of the model.
    pub scalars: usize,
    /// SHA-256 of the base model's tensors.
    pub base_sha256: String,
    /// SHA-256 of the tuned model's tensors.
    pub tuned_sha256: String,
    /// Version of the statement, which was made again and is the same; none where there is none.
    pub statement: Option<u32>,
    /// What lies in the folder and is bound by nothing.
    pub not_bound: Vec<String>,
    /// What no one can check afterwards.
    pub not_checkable: Vec<String>,
}

/// Check the checkpoint in `dir` against the files beside it and against `base`, whose tensors are used up: there is one copy of them in
/// memory while a transcript is replayed.
pub fn verify(dir: &Path, base: &mut Checkpoint<impl Scalars>, progress: &dyn Progress) -> Result<Verification> {
    let adapted = adapter::is_adapter(dir);
    let found = match adapted {
        true => checkpoint::load_opened(OpenCheckpoint::folder(&base.folder)?.adapted(dir)?)?.weights,
        false => checkpoint::load_folder_stored(dir)?.weights,
    };
    let bare = Config { adapter: base.weights.config.adapter.clone(), ..found.config.clone() };
    if bare != base.weights.config {
        let what = format!(
            "its config.json describes another decoder than {}'s: is this the base of the run?",
            base.folder.display()
        );
        return Err(Error::file(dir, what));
    }
    let Some(record) = Record::read(dir)? else {
        let what = format!("has neither {} nor {}: there is nothing to verify it by", transcript::FILE, dense::RECORD);
        return Err(Error::file(dir, what));
    };
    let path = dir.join(record.file());
    if let Some(own) = &found.config.adapter {
        // The tensors' hash does not know how much an adapter counts.
        let method = record.method();
        let made = method.adapter().or(base.weights.config.adapter.as_ref());
        if !made.is_some_and(|made| made.is_same(own, &found.config)) {
            let what =
                "describes another adapter than that of the run: rank, lora_alpha and target_modules are part of it";
            return Err(Error::file(dir.join(adapter::CONFIG), what));
        }
    }
    let replayed = replays(dir, base, &found, &record, &path, progress)?;
    if !replayed {
        began_at(base, record.base_sha256(), &path)?;
        is_frozen(dir, &base.weights, &found, record.method().tune())?;
    }
    let tuned_sha256 = checkpoint::tensors_sha256(&found);
    if record.tuned_sha256() != Some(&tuned_sha256) {
        let what = format!(
            "is not of the model beside it: its tuned_sha256 names other tensors than those found, {tuned_sha256}"
        );
        return Err(Error::file(path, what));
    }
    let statement = statement(dir, |stated| record.restate(&found.layout, stated))?;
    let (releases, mut not_checkable) = not_checkable(&record);
    if record.method().scales().is_some() {
        not_checkable.push("that the scales came from public text or the base model, and not from the records".into());
    }
    not_checkable.extend(never_checkable(statement.as_ref()));
    let mut verified = Verification {
        verified: true,
        replayed,
        steps: record.steps_run(),
        releases,
        scalars: found.layout.scalars(),
        base_sha256: record.base_sha256().to_owned(),
        tuned_sha256,
        statement: statement.as_ref().map(|s| s.version),
        not_bound: unbound(statement.as_ref()),
        not_checkable,
    };
    let (mut looked_at, in_order) = match adapted {
        true => adapter::refuse_unused(dir, record.base_sha256())?,
        false => (checkpoint::refuse_unused(dir, &base.folder)?, checkpoint::is_in_order(dir)?),
    };
    looked_at.extend([path, dir.join(STATEMENT), dir.join(PAGE)]);
    if adapted {
        verified.not_bound.push(format!("what {} says beside rank, alpha and targets", adapter::CONFIG));
    }
    if !in_order {
        verified.not_bound.push(
            "the order of the tensors in the weight files, which is not this program's, and can tell anything in few words".into(),
        );
    }
    verified.not_bound.extend(other_files(dir, &base.folder, &looked_at)?);
    Ok(verified)
}

/// Refuse a model of which a tensor that the run did not tune is not the base model's.
fn is_frozen(dir: &Path, base: &Weights<impl Scalars>, found: &Weights<Stored>, tune: &Tune) -> Result<()> {
    let tuned = tune.ids(&found.layout)?;
    let same = |p: ParamId| {
        let (base, found) = (base.tensors[p.0].view().widened(), found.tensors[p.0].view().widened());
        base.iter().zip(&*found).all(|(x, y)| x.to_bits() == y.to_bits())
    };
    match found.layout.ids().find(|p| tuned.binary_search(p).is_err() && !same(*p)) {
        Some(p) => {
            let name = &found.layout.spec(p).name;
            Err(Error::file(dir, format!("{name} is not the base model's, but the run tuned only {tune}")))
        }
        None => Ok(()),
    }
}

/// Compute the weights again, if the record tells how, and compare: whether it was done.
fn replays(
    dir: &Path,
    base: &mut Checkpoint<impl Scalars>,
    found: &Weights<Stored>,
    record: &Record,
    path: &Path,
    progress: &dyn Progress,
) -> Result<bool> {
    let Some(replayed) = rebuild(base, record, progress) else { return Ok(false) };
    let replayed = replayed.map_err(|e| Error::file(path, e.to_string()))?;
    for (spec, (a, b)) in found.layout.specs().iter().zip(found.tensors.iter().zip(&replayed.tensors)) {
        let (a, b) = (&*a.view().widened(), &*b.view().widened());
        if let Some(i) = a.iter().zip(b).position(|(x, y)| x.to_bits() != y.to_bits()) {
            let differ = a.iter().zip(b).filter(|(x, y)| x.to_bits() != y.to_bits()).count();
            let what = format!(
                "is not its transcript's replay: {} differs in {differ} of {} scalars, first at {i} ({:e}, replayed {:e}); `ferret \
                 replay` writes the checkpoint that the transcript leads to",
                spec.name,
                a.len(),
                a[i],
                b[i]
            );
            return Err(Error::file(dir, what));
        }
    }
    Ok(true)
}

/// [`Record::rebuild`] from the tensors of `base`, which it uses up.
pub fn rebuild<T: Scalars>(
    base: &mut Checkpoint<T>,
    record: &Record,
    progress: &dyn Progress,
) -> Option<Result<Weights<T>>> {
    if !record.is_rebuildable() {
        return None;
    }
    let weights = base.weights.take();
    progress.begin("replaying steps", record.steps_run().into());
    let mut over = 0;
    let rebuilt = record.rebuild(weights, |step| {
        // Replaying is short, and has nothing to save.
        let _ = progress.advance(u64::from(step - over));
        over = step;
    });
    progress.end();
    Some(rebuilt)
}

/// How many releases the run made, and what no one can check about them afterwards.
fn not_checkable(record: &Record) -> (u64, Vec<String>) {
    match record {
        Record::Ferret(transcript) => {
            let drawn = match transcript.settings.release {
                Release::Bit => "",
                Release::Rr { .. } => ", and that bits were flipped,",
                Release::Gaussian { .. } => ", and that noise was added,",
            };
            let mut out = vec![
                format!("that batches were drawn{drawn} with a secret key that nobody kept"),
                "that the records moved the bits, and nothing else: whoever writes a transcript chooses them, and they can carry any \
                 message as long as they are"
                    .into(),
            ];
            if !record.is_rebuildable() {
                out.push("the weights: the true gradients that made them are in no file".into());
            }
            (transcript.releases.len() as u64, out)
        }
        Record::FerretK(transcript) => {
            let out = vec![
                "that batches were drawn, sketches clipped and noise added with a secret key that nobody kept".into(),
                "that the records moved what was released, and nothing else: whoever writes a transcript chooses it, and it can carry any \
                 message as long as it is"
                    .into(),
            ];
            (transcript.releases.len() as u64, out)
        }
        Record::Dense(run) => {
            let made = match run.settings.method.privacy() {
                Some(_) => "that the updates were clipped, noised and sampled as run.json says",
                None => "that the updates were made as run.json says",
            };
            let what = "the weights cannot be computed again without the records and the secret key";
            (run.steps_run.into(), vec![format!("{made}: {what}")])
        }
    }
}

/// Refuse a base model that is not the one that the file `path` names.
fn began_at(base: &Checkpoint<impl Scalars>, named: &str, path: &Path) -> Result<()> {
    let found = checkpoint::tensors_sha256(&base.weights);
    if found == named {
        return Ok(());
    }
    let what = format!(
        "the run began at tensors with SHA-256 {named}, this base model has {found}: give the one it was trained from"
    );
    Err(Error::file(path, what))
}

/// The statement in `dir`, if it is the one that `restate` makes again; none where there is none.
fn statement(dir: &Path, restate: impl FnOnce(&Statement) -> Result<Statement>) -> Result<Option<Statement>> {
    let (path, page) = (dir.join(STATEMENT), dir.join(PAGE));
    if !path.exists() {
        return match page.exists() {
            true => Err(Error::file(page, format!("promises what no {STATEMENT} beside it states: remove it"))),
            false => Ok(None),
        };
    }
    let stated = Statement::from_json(&fsio::read_text(&path)?).map_err(|e| Error::file(&path, e.to_string()))?;
    let made = restate(&stated).map_err(|e| Error::file(&path, format!("cannot be stated again: {e}")))?;
    let differences = stated.differences(&made, &[AUDITED, RESTARTED]);
    if !differences.is_empty() {
        let what = format!("is not the statement of this run: {}", differences.join("; "));
        return Err(Error::file(path, what));
    }
    if page.exists() && fsio::read_text(&page)? != stated.to_markdown() {
        let what = format!("does not say what {STATEMENT} states: believe neither, or write it again from there");
        return Err(Error::file(page, what));
    }
    Ok(Some(stated))
}

/// What the statement of an earlier version, or none at all, leaves open.
fn unbound(statement: Option<&Statement>) -> Vec<String> {
    match statement {
        None => vec![format!("there is no {STATEMENT}: nothing is promised, so nothing was compared")],
        Some(s) if s.version == 1 => vec![format!(
            "version 1 of {STATEMENT} does not name its model: it fits every run with the same settings and as many releases; and it does \
             not say that nats are counted given all other records, so that copies of a record add up"
        )],
        Some(_) => Vec::new(),
    }
}

/// What is beyond the files of every run.
fn never_checkable(statement: Option<&Statement>) -> Vec<String> {
    let mut out = vec![
        "that there were so many records, each of them once, and that no other run used them".to_owned(),
        "that nothing else of the run was published: logs, timings, evaluations, other runs that were not chosen"
            .to_owned(),
    ];
    if let Some(s) = statement {
        let kept = if s.private_logs { "were" } else { "were not" };
        out.push(format!("that private logs {kept} written, as {STATEMENT} says"));
        let unit = match (s.users, s.windows) {
            (true, _) => "all that one user gave",
            (_, true) => "a window of a text",
            _ => "a line of the data",
        };
        out.push(format!("that a record was {unit}, as {STATEMENT} says"));
        if let Some(ranks) = s.shards {
            out.push(format!("that the records lay on {ranks} ranks, apart from each other, as {STATEMENT} says"));
        }
        if !s.insecure_seed {
            out.push(format!("that the secret key came from the operating system, as {STATEMENT} says"));
        }
    }
    out
}

/// Files of the folder that nothing here has looked at, unless they are the base model's.
fn other_files(dir: &Path, base: &Path, looked_at: &[PathBuf]) -> Result<Vec<String>> {
    let bytes = |path: &Path| embedded::file(path).map(<[u8]>::to_vec).or_else(|| fsio::read_bytes(path).ok());
    let mut open = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, e))? {
        let path = entry.map_err(|e| Error::io(dir, e))?.path();
        let name = path.file_name().unwrap_or_default();
        let of_base = bytes(&path).is_some_and(|own| bytes(&base.join(name)) == Some(own));
        if !looked_at.contains(&path) && !of_base {
            open.push(format!("{} is not the base model's, and nothing says what it holds", name.display()));
        }
    }
    open.sort();
    Ok(open)
}
