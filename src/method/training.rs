//! Training into a folder: plan, lock, run, evaluate, state, write; or go on with what is there.
//!
//! [`Training::open`] reads nothing but what it is given, and refuses before anything starts what would be refused at the end.
//! [`Training::run`] drives the run to its end. What is then left to do (an audit, say) is done before [`Training::close`].

mod share;
mod work;

pub use work::{Evaluation, write_statement};

use super::folder::{Call, Folder, Stage, Terms, stage};
use super::list::Method;
use super::shards::{self, Begin};
use crate::backend::Backend;
use crate::data::{Dataset, Example, examples_sha256, shared};
use crate::error::{Error, Result};
use crate::kernel::Stored;
use crate::model::checkpoint::{self, Checkpoint};
use crate::privacy::statement::{Circumstances, RESTARTED, Statement};
use crate::progress::Progress;
use crate::ranks::{Ranks, broadcast};
use crate::rng::Secret;
use serde_json::{Value, json};
use share::StateFolder;
use std::path::PathBuf;
use std::sync::Arc;
use work::Work;

/// What is asked for.
pub struct Request {
    /// The model it begins at.
    pub base: Checkpoint<Stored>,
    /// What it learns from.
    pub records: Dataset,
    /// Whether `records` are a shard, which this rank has and no other. The method's settings count those of all ranks.
    pub shards: bool,
    /// What loss and perplexity are reported on, before and after.
    pub held_out: Option<Dataset>,
    /// How it learns.
    pub method: Method,
    /// Stop after so many of the planned steps: part of the plan.
    pub stop: Option<u32>,
    /// The delta of (eps, delta).
    pub delta: f64,
    /// The folder for the tuned model.
    pub out: PathBuf,
    /// Fixes sampling and noise: the result is then not private.
    pub insecure_seed: Option<u64>,
    /// Log what depends on the realised batch, and state so.
    pub log_private: bool,
    /// Run blocks again in backward instead of keeping their activations.
    pub recompute: bool,
    /// Save after so many computed steps.
    pub save_every: u32,
    /// Go on with an unfinished run, if there is one.
    pub resume: bool,
    /// Begin again where a run has diverged.
    pub restart_diverged: bool,
    /// What to call the program with to go on.
    pub call: Option<Call>,
    /// Who works on it: every one of them opens, runs and closes the same, and the first writes. [`Alone`](crate::ranks::Alone) where nobody else does.
    pub ranks: Arc<dyn Ranks>,
}

impl Request {
    /// Steps that are to be made of those planned.
    fn steps(&self) -> u32 {
        self.stop.unwrap_or(u32::MAX).min(self.method.steps())
    }

    fn statement(&self, stop: u32, private_logs: bool) -> Result<Statement> {
        let circumstances = Circumstances {
            insecure_seed: self.insecure_seed.is_some(),
            private_logs,
            windows: self.records.windows,
            users: self.records.users,
            shards: self.shards.then_some(self.ranks.size() as u32),
        };
        self.method.statement(&self.method.layout(&self.base.weights.config)?, stop, self.delta, circumstances)
    }

    /// The summary of the run as far as it is known before it begins. Nothing is computed on records, and nothing written.
    pub fn plan(&self) -> Result<Value> {
        self.method.check()?;
        let stop = self.steps();
        let layout = self.method.layout(&self.base.weights.config)?;
        let mut summary = work::summary(&self.method, &layout, stop, &self.statement(stop, self.log_private)?)?;
        summary["record_gradients"] = json!(self.method.sample_gradients(stop));
        Ok(summary)
    }
}

/// A run in its folder, ready to go.
pub struct Training {
    request: Request,
    /// None on ranks that do not write.
    folder: Option<Folder>,
    told: Terms,
    saved: StateFolder,
    /// None where the results are written already.
    secret: Option<Secret>,
    shards: Option<shards::OpenShard>,
    statement: Statement,
}

impl Training {
    /// Plan, and begin in a new folder or go on in an old one.
    pub fn open(request: Request, progress: &dyn Progress) -> Result<Self> {
        let Request { base, records, method, .. } = &request;
        method.check()?;
        if request.save_every == 0 {
            return Err(Error::usage("saving after every 0 steps would never end: expected at least 1"));
        }
        let (ranks, writes) = (request.ranks.clone(), request.ranks.is_first());
        let found = if writes { stage(&request.out)? } else { Stage::New };
        let goes_on = writes && goes_on(&request, found)?;
        if request.shards {
            shards::check(method, request.log_private)?;
        }
        progress.begin("hashing model and records", 0);
        let mut told = Terms {
            version: Terms::VERSION,
            stop: request.steps(),
            method: method.clone(),
            base_sha256: checkpoint::tensors_sha256(&base.weights),
            // Of a shard nobody else gets the hash: it would tell whether a guess at the shard is right.
            records_sha256: if request.shards { String::new() } else { examples_sha256(&records.examples) },
            key_sha256: String::new(),
            private_logs: request.log_private,
            restarts: 0,
            call: request.call.clone(),
            diverged: None,
            finished: None,
        };
        share::told_the_same(&request, &told)?;
        let begin = match (goes_on, found) {
            (true, Stage::Ending) => Begin::Ending,
            (true, _) => Begin::On,
            (false, _) => Begin::New,
        };
        let open = || shards::open(&*ranks, records, method, &request.out, request.insecure_seed, begin);
        let shards = request.shards.then(open).transpose()?;
        told.records_sha256.extend(shards.as_ref().map(|s| &s.sha256[..]));
        let mut folder = None;
        if goes_on {
            let held = Folder::lock(&request.out)?;
            let then = Terms::read(&request.out)?;
            if request.shards && begin == Begin::Ending {
                told.records_sha256.clone_from(&then.records_sha256);
            }
            same(&then, &told).map_err(|what| Error::file(&request.out, what))?;
            told = Terms { private_logs: then.private_logs || request.log_private, ..then };
            folder = Some(held);
        } else if found == Stage::Diverged {
            told.restarts = Terms::read(&request.out)?.restarts + 1;
        }
        let mut told = share::of_the_first(&*ranks, told)?;
        // What will have been spent is known now: what cannot be accounted for is refused before anything starts.
        progress.begin("accounting", 0);
        let mut statement = request.statement(told.stop, told.private_logs)?;
        if told.restarts > 0 {
            statement.not_met.push(RESTARTED.into());
        }
        progress.end();
        if let Some(held_out) = request.held_out.as_ref().filter(|_| statement.is_private()) {
            apart(records.records(), held_out.records())?;
        }
        let (folder, secret) = match folder {
            _ if !writes => (None, None),
            Some(folder) if found == Stage::Ending => (Some(folder), None),
            Some(folder) => {
                let secret = folder.key(&told)?;
                if request.insecure_seed.is_some() != secret.is_insecure() {
                    let what = "was begun differently: `insecure_seed` must be given then and now, or neither";
                    return Err(Error::file(&request.out, format!("the run to resume {what}")));
                }
                if request.insecure_seed.is_some_and(|seed| !secret.is_of(seed)) {
                    return Err(Error::file(&request.out, "the run to resume was begun with another `insecure_seed`"));
                }
                folder.tell(&told)?;
                (Some(folder), Some(secret))
            }
            None => {
                let secret = match request.insecure_seed {
                    Some(seed) => Secret::insecure(seed),
                    None => Secret::from_system()?,
                };
                let mut folder = Folder::lock(&request.out)?;
                // Someone else may have begun meanwhile.
                if stage(&request.out)? != found {
                    return Err(Error::file(&request.out, "another process began a run in this folder just now"));
                }
                folder.begin(&secret, &mut told)?;
                (Some(folder), Some(secret))
            }
        };
        if let Some(folder) = folder.as_ref().filter(|_| told.private_logs) {
            folder.hide_log()?;
        }
        shards.as_ref().map_or(Ok(()), shards::OpenShard::save)?;
        let (secret, saved) = share::key_and_state(&*ranks, secret, folder.as_ref())?;
        Ok(Self { request, folder, told, saved, secret, shards, statement })
    }

    /// Whether sampling and noise are known.
    pub fn is_insecure(&self) -> bool {
        self.secret.as_ref().is_some_and(Secret::is_insecure)
    }

    /// Run to the end and write the results; the summary. Interrupted by `progress` it saves, and can be gone on with.
    pub fn run<B: Backend>(&mut self, backend: B, progress: &dyn Progress) -> Result<Value> {
        let Some(secret) = &self.secret else {
            self.folder.as_ref().map_or(Ok(()), Folder::wipe_key)?;
            self.shards.as_ref().map_or(Ok(()), shards::OpenShard::wipe)?;
            return Ok(self.told.finished.clone().unwrap_or_default());
        };
        let (folder, saved) = (self.folder.as_mut(), &self.saved.path);
        let shard = self.shards.as_ref().and_then(|shards| shards.shard.clone());
        let done = Work { request: &mut self.request, folder, saved, told: &self.told, secret, shard, progress }
            .run(backend, &mut self.statement);
        match done {
            Ok(summary) => {
                if let Some(folder) = &self.folder {
                    // From here on there is nothing to compute again.
                    self.told.finished = Some(summary.clone());
                    folder.tell(&self.told)?;
                    folder.wipe_key()?;
                }
                if let Some(shards) = &self.shards {
                    // Until the results are written, going on needs every rank's key.
                    let ranks = &*self.request.ranks;
                    broadcast(ranks, "results are written", &[])?;
                    shards.wipe()?;
                    // And until no key is left, the state stays, so that going on tidies up after a rank that died here.
                    ranks.gather("keys of shards are gone", &[])?;
                }
                Ok(summary)
            }
            Err(Error::Diverged(why)) => {
                if let Some(folder) = &self.folder {
                    self.told.diverged = Some(why.clone());
                    folder.tell(&self.told)?;
                }
                Err(Error::Diverged(format!("{why}; `restart_diverged` begins again with other settings")))
            }
            Err(e) => Err(e),
        }
    }

    /// Everything that belongs to the run is done: its state goes.
    pub fn close(self) -> Result<()> {
        self.folder.map_or(Ok(()), Folder::close)
    }
}

/// Whether an unfinished run is to be gone on with; refuses what would overwrite anything.
fn goes_on(request: &Request, found: Stage) -> Result<bool> {
    let refuse = |what: &str| Err(Error::file(&request.out, what));
    match found {
        Stage::Diverged if request.restart_diverged => Ok(false),
        Stage::Diverged => refuse(
            "the run there has diverged, and would again: begin it again with other settings by `restart_diverged`",
        ),
        _ if request.restart_diverged => refuse("the run there has not diverged: there is nothing to begin again"),
        Stage::New => Ok(false),
        Stage::Finished if request.resume => refuse("the run there is finished: there is nothing to resume"),
        _ if request.resume => Ok(true),
        Stage::Begun | Stage::Ending => {
            refuse("an unfinished run is there, and nothing is overwritten: `resume` it, or choose a new folder")
        }
        Stage::Finished => refuse("is not empty, and nothing there is overwritten: choose a new folder"),
    }
}

/// Refuse to go on with the run that was told `then` if anything differs now.
fn same(then: &Terms, now: &Terms) -> Result<(), String> {
    if then.method != now.method {
        return Err(difference(&then.method, &now.method));
    }
    if then.stop != now.stop {
        return Err(format!(
            "the run to resume was begun to stop after {} steps, now it is {}: when a run stops is part of its plan, and what it spends \
             was stated for that; give `max_steps` as then",
            then.stop, now.stop
        ));
    }
    if then.base_sha256 != now.base_sha256 {
        return Err("the run to resume began at another model: give the same `model`".into());
    }
    if then.records_sha256 != now.records_sha256 {
        return Err("the run to resume began with other records: give the same `data`".into());
    }
    Ok(())
}

/// Names the first setting that differs.
fn difference(then: &Method, now: &Method) -> String {
    if then.name() != now.name() {
        return format!("the unfinished run there is of another method, {}", then.name());
    }
    let object = |method: &Method| match serde_json::to_value(method) {
        Ok(Value::Object(of)) => of.into_iter().next().map(|(_, settings)| settings).unwrap_or_default(),
        _ => Value::Null,
    };
    let (then, now) = (object(then), object(now));
    // A setting that is not written has its default.
    let mut keys = [&then, &now].into_iter().filter_map(Value::as_object).flat_map(|o| o.keys());
    let key = keys.find(|k| then[*k] != now[*k]).cloned().unwrap_or_default();
    let default = |value: &Value| if value.is_null() { "by default".into() } else { value.to_string() };
    let (a, b) = (default(&then[&key]), default(&now[&key]));
    format!("the run to resume was begun with {key} {a}, now it is {b}: give the same arguments and data")
}

/// Refuse held-out records that are trained on, each by itself, whoever's they are: what is reported on them would be published about the others.
fn apart(records: &[Example], held_out: &[Example]) -> Result<()> {
    match shared(records, held_out) {
        0 => Ok(()),
        n => Err(Error::usage(format!(
            "{n} of the {} records to evaluate on are trained on too: their loss would be published, and no promise covers it; \
             give `eval_data` that is apart from the training data",
            held_out.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::{Tune, ferret};

    /// Also where one of the two is not written because it is the default.
    #[test]
    fn the_setting_that_differs_is_named() {
        let groups = ferret::Cuts::try_from("4x1".to_owned()).unwrap();
        let all = Method::Ferret(ferret::Settings::paper("ferret-max", groups.clone()));
        let tune: Tune = "bias".parse().unwrap();
        let bias = Method::Ferret(ferret::Settings { tune, ..ferret::Settings::paper("ferret-max", groups) });
        for (then, now, says) in
            [(&all, &bias, "tune by default, now it is \"bias\""), (&bias, &all, "tune \"bias\", now it is by default")]
        {
            let said = difference(then, now);
            assert!(said.contains(says), "{said}");
        }
    }
}
