//! The run itself, between opening a folder and closing it: evaluate, compute, save, log, state, write.

use super::Request;
use crate::backend::Backend;
use crate::data::{Dataset, examples_sha256};
use crate::error::{Error, Result};
use crate::method::crew::Crew;
use crate::method::folder::{Folder, Terms};
use crate::method::list::Method;
use crate::method::run::{Conclusion, Run, Step, Task, Watch, drive};
use crate::method::shards::Shard;
use crate::method::{Opening, Sensitive};
use crate::model::checkpoint::adapter::BASE;
use crate::model::checkpoint::{self, Dtype};
use crate::model::{Decoder, Layout};
use crate::privacy::guarantee::up;
use crate::privacy::statement::{FILE, PAGE, Statement};
use crate::privacy::{Accountant, Rdp};
use crate::progress::Progress;
use crate::ranks::{Ranks, agree};
use crate::rng::Secret;
use crate::{eval, fsio};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Loss and perplexity on held-out records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Mean over tokens.
    pub loss: f64,
    /// Its exponential.
    pub perplexity: f64,
    /// How many tokens count.
    pub tokens: usize,
    /// How many records there are.
    pub records: usize,
}

/// What was measured before the first step, and on what.
#[derive(Serialize, Deserialize)]
struct Before {
    records_sha256: String,
    found: Evaluation,
}

fn evaluate<B: Backend>(
    ranks: &dyn Ranks,
    decoder: &Decoder<B>,
    held_out: &Option<Dataset>,
    progress: &dyn Progress,
) -> Result<Option<Evaluation>> {
    let Some(Dataset { examples, .. }) = held_out else { return Ok(None) };
    progress.begin("held-out records", examples.len() as u64);
    // Whoever asks to stop meanwhile is heard at the next step.
    let losses = eval::losses_over(ranks, decoder, examples, |n| drop(progress.advance(n as u64)))?;
    progress.end();
    let (loss, tokens) = eval::token_mean(&losses);
    Ok(Some(Evaluation { loss, perplexity: loss.exp(), tokens, records: examples.len() }))
}

/// What a run needs of its training.
pub(super) struct Work<'a> {
    pub(super) request: &'a mut Request,
    /// None on ranks that do not write.
    pub(super) folder: Option<&'a mut Folder>,
    /// Where the run's progress lies.
    pub(super) saved: &'a Path,
    pub(super) told: &'a Terms,
    pub(super) secret: &'a Secret,
    /// This rank's own records, where no other has them.
    pub(super) shard: Option<Arc<Shard>>,
    pub(super) progress: &'a dyn Progress,
}

impl Work<'_> {
    /// Compute, evaluate, state and write; the summary.
    pub(super) fn run<B: Backend>(self, backend: B, statement: &mut Statement) -> Result<Value> {
        let Work { request, mut folder, saved, told, secret, shard, progress } = self;
        let Request { base, records, held_out, method, ranks, .. } = request;
        let (here, all) = (records.examples.len() as u64, method.common().records);
        if shard.is_none() && here != all {
            return Err(Error::usage(format!("there are {here} records, and the settings say {all}")));
        }
        let records = Sensitive::new(std::mem::take(&mut records.examples));
        let task = Task {
            base: base.weights.take(),
            base_sha256: told.base_sha256.clone(),
            settings: method.clone(),
            stop: Some(told.stop),
            secret,
            records: records.as_slice(),
        };
        let mut run = task.begin(backend, Some(saved))?;
        run.recompute(request.recompute);
        let told_all = request.log_private || method.is_open();
        run.over(match shard {
            // Of a shard, batches and losses are told only by methods that promise nothing.
            Some(shard) => Crew::sharded(ranks.clone(), method.is_open(), shard),
            None => Crew::new(ranks.clone(), told_all),
        });
        if let Some(folder) = &mut folder {
            folder.rewind_log(run.next().unwrap_or(told.stop))?;
        }
        let before = match (run.progress().0, &held_out) {
            (_, None) => None,
            (0, Some(Dataset { examples, .. })) => {
                let found = evaluate(&**ranks, run.decoder(), held_out, progress)?;
                if let Some((found, folder)) = found.clone().zip(folder.as_ref()) {
                    folder.keep_before(&Before { records_sha256: examples_sha256(examples), found })?;
                }
                found
            }
            // A run that goes on stands elsewhere than at its beginning.
            (_, Some(Dataset { examples, .. })) => {
                let of = examples_sha256(examples);
                let kept = folder.as_ref().map(|folder| folder.before::<Before>()).transpose()?.flatten();
                kept.filter(|b| b.records_sha256 == of).map(|b| b.found)
            }
        };
        let clock = Instant::now();
        // Launchers give their processes a second to end. Releases are small enough to be saved at every step.
        let short = ranks.size() > 1 && !matches!(method, Method::Dense(_));
        let every = if short { 1 } else { request.save_every };
        progress.begin("steps", told.stop.into());
        let (folder_of, ranks) = (folder.as_deref_mut(), &**ranks);
        let shown =
            Caption { method, stop: told.stop, delta: epsilon(statement, "spent").and(statement.delta()), loss: None };
        let mut keeper =
            Keeper { folder: folder_of, ranks, progress, every, unsaved: 0, told_all, over: 0, clock, shown };
        drive(&mut *run, &mut keeper)?;
        let unsaved = keeper.unsaved;
        progress.end();
        let seconds = clock.elapsed().as_secs_f64();
        // Whoever resumes after a kill from here on must know how much was released.
        if let Some(folder) = folder.as_ref().filter(|_| unsaved > 0) {
            run.save(&folder.saved())?;
        }
        let Conclusion { mut weights, record, backend } = run.finish()?;
        let result = record.tuned_sha256().unwrap_or_default().to_owned();
        agree(ranks, "result", &[("result, by its SHA-256,", result)])?;
        let mut after = None;
        if held_out.is_some() {
            let decoder = Decoder::new(backend, weights)?;
            after = evaluate(ranks, &decoder, held_out, progress)?;
            weights = decoder.into_weights()?.0;
        }
        let Some(folder) = folder else { return Ok(Value::Null) };
        // The statement first: no model lies anywhere without one.
        statement.tuned_sha256 = record.tuned_sha256().map(str::to_owned);
        write_statement(folder.path(), statement)?;
        fsio::write(&folder.path().join(record.file()), record.to_json()?.as_bytes())?;
        let mut options = base.save_options();
        options.dtype = Dtype::F32;
        if method.adapter().is_some() {
            options.metadata.push((BASE.into(), told.base_sha256.clone()));
        }
        checkpoint::save(folder.path(), &weights, &options)?;
        // How long it took depends on the sizes of batches, which are as sensitive as what private logs show.
        let seconds = (request.log_private || !statement.is_private()).then_some(seconds);
        let mut summary = summary(method, &weights.layout, told.stop, statement)?;
        summary["out"] = json!(folder.path());
        summary["seconds"] = json!(seconds);
        summary["eval_before"] = json!(before);
        summary["eval_after"] = json!(after);
        Ok(summary)
    }
}

/// What is known of a run before it begins: what it is, and what its statement says.
pub(super) fn summary(method: &Method, layout: &Layout, stop: u32, statement: &Statement) -> Result<Value> {
    let mut summary = json!({
        "method": method.name(), "out": null, "steps": stop, "steps_planned": method.steps(),
        "computed_steps": method.computed_steps(stop), "sampling_rate": method.common().sampling_rate(), "seconds": null,
        "private": statement.is_private(), "nats_planned": statement.nats_planned, "nats_charged": statement.nats_charged,
        "nats_paper": statement.nats_paper,
        "delta": statement.delta(), "epsilon_spent": epsilon(statement, "spent"), "epsilon_planned": epsilon(statement, "planned"),
        "guarantees": statement.claims.iter().map(|c| format!("{} ({}, {})", c.guarantee, c.accountant, c.of)).collect::<Vec<_>>(),
        "claims": statement.claims, "not_met": statement.not_met, "eval_before": null, "eval_after": null,
    });
    if let (Value::Object(to), Value::Object(from)) = (&mut summary, method.summary(layout, stop)?) {
        to.extend(from);
    }
    Ok(summary)
}

/// The eps of (eps, delta) by accountant, where the statement promises any.
fn epsilon(statement: &Statement, of: &str) -> Option<Value> {
    use crate::privacy::guarantee::Guarantee;
    let found: serde_json::Map<String, Value> = statement
        .claims
        .iter()
        .filter(|c| c.of == of && c.accountant != "total variation")
        .filter_map(|c| match c.guarantee {
            Guarantee::EpsDelta { eps, .. } => Some((c.accountant.to_lowercase(), json!(eps))),
            _ => None,
        })
        .collect();
    (!found.is_empty()).then_some(Value::Object(found))
}

/// Logs, saves and stops.
struct Keeper<'a> {
    folder: Option<&'a mut Folder>,
    ranks: &'a dyn Ranks,
    progress: &'a dyn Progress,
    every: u32,
    unsaved: u32,
    /// Whether the log tells what depends on the batch.
    told_all: bool,
    /// Steps over, silent ones included.
    over: u32,
    clock: Instant,
    shown: Caption<'a>,
}

/// What stands beside the bar.
struct Caption<'a> {
    method: &'a Method,
    stop: u32,
    /// That of (eps, delta), where any is promised.
    delta: Option<f64>,
    /// A mean over the last steps, of a method that hides nothing.
    loss: Option<f64>,
}

impl Caption<'_> {
    /// Of a run whose first `done` steps are over. Where records are private it follows from settings and seed alone.
    fn text(&self, done: u32) -> String {
        if self.method.is_open() {
            return self.loss.map_or(String::new(), |loss| format!("loss {loss:.3}"));
        }
        let bits = |of: &dyn Fn(u32) -> u64| format!("{} of {} bits", of(done), of(self.stop));
        match self.method {
            Method::Ferret(s) => bits(&|steps| s.count_fires(steps, u64::MAX)),
            Method::FerretK(s) => {
                bits(&|steps| s.count_fires(steps, u64::MAX) * s.release.bits(s.bits_per_step.into()))
            }
            Method::Dense(s) => {
                let spent = s.event(done).zip(self.delta).and_then(|(event, delta)| {
                    let epsilon = Rdp::default().epsilon(&event, delta).ok()?.upper;
                    Some(format!("({:.3}, {delta:e})-DP so far", up(epsilon, 3)))
                });
                spent.unwrap_or_default()
            }
        }
    }

    /// Hear the loss of a step.
    fn hear(&mut self, loss: f64) {
        self.loss = Some(self.loss.map_or(loss, |mean| 0.9 * mean + 0.1 * loss));
    }
}

impl<B: Backend> Watch<B> for Keeper<'_> {
    fn before(&mut self, run: &mut dyn Run<B>) -> Result<()> {
        if self.ranks.stop(self.progress.advance(0).is_err()) {
            if let Some(folder) = &self.folder {
                run.save(&folder.saved())?;
            }
            let (done, all) = run.progress();
            return Err(Error::Interrupted(format!(
                "stopped after {done} of {all} steps that compute something; they are saved, and `resume` continues"
            )));
        }
        self.clock = Instant::now();
        Ok(())
    }

    fn after(&mut self, run: &mut dyn Run<B>, step: Step) -> Result<()> {
        let mut line = json!({"step": step.step});
        if !step.groups.is_empty() {
            line["groups"] = json!(step.groups);
        }
        if self.told_all {
            let private = step.private.open(&Opening::evaluation("a log that the statement declares"));
            line["records"] = json!(private.records);
            line["tokens"] = json!(private.tokens);
            line["loss"] = json!(private.loss);
            line["seconds"] = json!(self.clock.elapsed().as_secs_f64());
            if let Some(loss) = private.loss.filter(|_| self.shown.method.is_open()) {
                self.shown.hear(loss);
            }
        }
        if let Some(folder) = &mut self.folder {
            folder.log(&line)?;
        }
        // Whether to stop is asked before the next step.
        let _ = self.progress.advance(u64::from(step.step + 1 - self.over));
        self.over = step.step + 1;
        self.progress.beside(&|| self.shown.text(self.over));
        self.unsaved += 1;
        if self.unsaved >= self.every {
            if let Some(folder) = &self.folder {
                run.save(&folder.saved())?;
            }
            self.unsaved = 0;
        }
        Ok(())
    }
}

/// Write the statement beside the model.
pub fn write_statement(dir: &Path, statement: &Statement) -> Result<()> {
    fsio::write(&dir.join(FILE), statement.to_json().as_bytes())?;
    fsio::write(&dir.join(PAGE), statement.to_markdown().as_bytes())
}
