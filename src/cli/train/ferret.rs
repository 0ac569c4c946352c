//! Training by FERRET.

use super::{Args, Begun, PRIVATE_LOG, ReleaseKind, ScheduleKind, Start, text_tail, tiny, took, write_statement};
use crate::backend::{Backend, Cpu};
use crate::cli::common::{Job, grouping, progress, working};
use crate::cli::interrupt;
use crate::error::{Error, Result};
use crate::fsio;
use crate::method::ferret::{
    self, BatchPer, MaskKind, Payload, Release, Releases, Route, Run, Settings, Trainer, Transcript, transcript,
};
use crate::method::folder::Folder;
use crate::method::groups::Groups;
use crate::method::{Opening, Sensitive};
use crate::model::Decoder;
use crate::privacy::calibrate;
use crate::privacy::event::Fires;
use crate::privacy::mi::{self, Accounting};
use crate::privacy::statement::Statement;
use crate::rng::Secret;
use serde_json::{Value, json};
use std::time::Instant;

/// What the run was begun with.
pub(super) const BEGUN: &str = "ferret.json";

/// Plan, train, write.
pub(super) fn run(args: &Args) -> Result<()> {
    interrupt::listen();
    let d = &args.dense;
    if d.noise_multiplier.is_some()
        || d.accountant.is_some()
        || d.clipping.is_some()
        || d.clip_function.is_some()
        || d.variant.is_some()
        || d.bits.is_some()
    {
        return Err(Error::usage(format!(
            "--noise-multiplier, --accountant, --clipping, --clip-function, --variant and --bits belong to dpsgd and the other methods \
             with whole updates, not to {}",
            args.method
        )));
    }
    let start = args.start()?;
    let settings = settings(args, &start)?;
    let begun = Begun::new(&settings, &start, args.quiet);
    let steps_run = args.steps_run(settings.steps);
    let fires = settings.fires(steps_run);
    // What will have been spent is known now: what cannot be accounted for is refused before anything starts.
    let statement = |logged: bool| {
        let _shown = working("accounting", args.quiet);
        settings.statement(&fires, steps_run, args.delta, args.circumstances(&start, logged))
    };
    let (folder, secret, releases, statement) = if args.resume {
        let (folder, secret, releases) = resume(args, &begun)?;
        let logged = folder.state(PRIVATE_LOG).exists();
        (folder, secret, releases, statement(logged)?)
    } else {
        let (statement, secret) = (statement(false)?, args.secret()?);
        let folder = Folder::begin(&args.out, &secret)?;
        begun.write(&folder.state(BEGUN))?;
        (folder, secret, None, statement)
    };
    let plan = mi::Plan::by(
        settings.accounting,
        mi::Request {
            epsilon: settings.epsilon,
            groups: settings.groups.len() as u64,
            records: settings.records,
            batch: settings.batch,
            epochs: settings.epochs.into(),
        },
    )?;
    if plan.clamped() && settings.accounting == Accounting::Paper {
        args.note(&format!(
            "note: {} nats are above the ceiling G T s ln 2 = {:.4}: every group fires at every step, and {:.4} nats are spent",
            settings.epsilon, plan.ceiling, plan.nats_spent
        ));
    }
    if secret.is_insecure() {
        args.note("note: not private: sampling and noise are known (--insecure-seed)");
    }
    let base_sha256 = begun.base_sha256;
    let work = Work { args, start, settings, base_sha256, releases, folder, secret, fires, statement };
    let summary = args.compute.run(work)?;
    super::conclude(args, summary, text)
}

/// The settings that the arguments and the data make.
fn settings(args: &Args, start: &Start) -> Result<Settings> {
    let layout = &start.checkpoint.weights.layout;
    let grouping = grouping(&args.method, args.ferret.groups, args.ferret.bucket)?;
    let groups = Groups::new(layout, grouping)?;
    let Some(epsilon) = args.epsilon else {
        return Err(Error::usage("--epsilon NATS is needed: the budget of the run in nats of mutual information"));
    };
    let records = start.records.examples.len() as u64;
    if args.batch == 0 || args.batch > records {
        return Err(Error::usage(format!("--batch {} of {records} records: give 1 to all of them", args.batch)));
    }
    let steps = mi::run_steps(records, args.batch, args.epochs)?;
    let sampling_rate = args.batch as f64 / records as f64;
    let direct = args.route == Route::Direct;
    let noisy = args.ferret.release != ReleaseKind::Bit;
    let mut settings = Settings {
        method: args.method.clone(),
        groups: ferret::Cuts::of(&groups.members)?,
        epsilon,
        accounting: args.ferret.accounting,
        records,
        batch: args.batch,
        epochs: args.epochs,
        steps,
        sampling_rate,
        p: Settings::fire_probability(epsilon, groups.len() as u64, steps.into(), sampling_rate),
        mask: args.ferret.mask,
        direction: args.ferret.direction,
        release: Release::Bit,
        payload: args.ferret.payload,
        clip: args.clip,
        route: args.route,
        silent: args.ferret.silent,
        learning_rate: args.learning_rate.unwrap_or(2e-4),
        schedule: args.schedule(ScheduleKind::Constant),
        weight_decay: if direct { 0.0 } else { args.weight_decay },
        sampler: args.sampler,
        batch_per: args.ferret.batch_per.unwrap_or(if noisy { BatchPer::Bit } else { BatchPer::Step }),
        engine: args.ferret.engine,
        seed: args.seed,
    };
    if settings.accounting == Accounting::Exact {
        // How many bits the budget pays for depends on what is done to them.
        if args.dp_epsilon.is_some() {
            return Err(Error::usage(
                "--accounting exact counts bits by their flips or noise: give --flip or --dither, not --dp-epsilon",
            ));
        }
        settings.release = release(args, &settings)?;
        settings = settings.planned();
    } else {
        settings.check()?;
        settings.release = release(args, &settings)?;
    }
    settings.check()?;
    if settings.mask == MaskKind::Exact && settings.fires(steps).is_empty() {
        return Err(Error::usage(format!(
            "--epsilon {epsilon} does not pay for one bit at s = {sampling_rate:.4} (s ln 2 = {:.4} nats): raise it, or make the \
             batch smaller",
            mi::charge(sampling_rate, 1)
        )));
    }
    Ok(settings)
}

fn release(args: &Args, settings: &Settings) -> Result<Release> {
    let f = &args.ferret;
    let fires = settings.shared(&settings.fires(args.steps_run(settings.steps)));
    let calibrated =
        |find: fn(f64, f64, f64, &[Fires]) -> Result<calibrate::Settings>, what: &str| match args.dp_epsilon {
            Some(eps) if fires.is_empty() => {
                Err(Error::usage(format!("no group fires, so no {what} makes the run ({eps}, {})-DP", args.delta)))
            }
            Some(eps) => {
                let _shown = working("finding the noise", args.quiet);
                Ok(find(eps, args.delta, settings.sampling_rate, &fires)?.pld.upper)
            }
            None => Err(Error::usage(format!("give --{what}, or --dp-epsilon and --delta to have it found"))),
        };
    Ok(match f.release {
        ReleaseKind::Bit if f.flip.or(f.dither).or(args.dp_epsilon).is_some() => {
            return Err(Error::usage("--flip, --dither and --dp-epsilon belong to --release rr or gaussian"));
        }
        ReleaseKind::Bit => Release::Bit,
        ReleaseKind::Rr => {
            let flip = f.flip.map_or_else(|| calibrated(calibrate::flip, "flip"), Ok)?;
            Release::Rr { flip, unbiased: f.unbiased }
        }
        ReleaseKind::Gaussian => {
            Release::Gaussian { dither: f.dither.map_or_else(|| calibrated(calibrate::dither, "dither"), Ok)? }
        }
    })
}

/// What an earlier part of the run left: folder, key and releases.
fn resume(args: &Args, begun: &Begun<Settings>) -> Result<(Folder, Secret, Option<Releases>)> {
    let (mut folder, secret) = Folder::resume(&args.out)?;
    if args.insecure_seed.is_some() != secret.is_insecure() {
        return Err(Error::usage("the run to resume was begun differently: --insecure-seed must be the same"));
    }
    let (path, saved) = (folder.state(BEGUN), folder.state(transcript::FILE));
    if path.exists() {
        begun.check(&path)?;
    } else if folder.state(super::dense::BEGUN).exists() || saved.exists() {
        return Err(Error::file(args.out.as_path(), "the unfinished run there is of another method"));
    } else {
        begun.write(&path)?;
    }
    if !saved.exists() {
        folder.rewind_log(0)?;
        return Ok((folder, secret, None));
    }
    let so_far = Transcript::from_json(&fsio::read_text(&saved)?, &saved)?;
    if so_far.base_sha256 != begun.base_sha256 || so_far.settings != begun.settings {
        return Err(Error::file(saved, "is not of the run that it lies beside"));
    }
    // True gradients are in no transcript: such a run begins again.
    let done = if begun.settings.payload == Payload::TrueGradient { 0 } else { so_far.steps_run };
    args.check_done(args.steps_run(begun.settings.steps), done)?;
    folder.rewind_log(done.into())?;
    Ok((folder, secret, Some(so_far.releases)))
}

struct Work<'a> {
    args: &'a Args,
    start: Start,
    settings: Settings,
    base_sha256: String,
    releases: Option<Releases>,
    folder: Folder,
    secret: Secret,
    fires: Vec<(u32, u32)>,
    statement: Statement,
}

impl Job for Work<'_> {
    type Output = Value;

    fn run<B: Backend>(self, backend: B) -> Result<Value> {
        let Work { args, start, settings, base_sha256, releases, mut folder, secret, fires, mut statement } = self;
        let Start { checkpoint: mut base, records, held_out } = start;
        if args.log_private {
            fsio::write(&folder.state(PRIVATE_LOG), b"")?;
        }
        let records = Sensitive::new(records.examples);
        let weights = std::mem::replace(&mut base.weights, crate::model::Weights::zeros(tiny()));
        let run = Run {
            base: weights,
            base_sha256,
            settings: settings.clone(),
            releases,
            secret: &secret,
            records: records.as_slice(),
            micro_batch: args.micro_batch,
        };
        let mut trainer = Trainer::new(backend, run)?;
        trainer.recompute(args.recompute);
        let before = args.evaluate_before(&folder, trainer.decoder(), trainer.progress().0 == 0, &held_out)?;
        let steps_run = args.steps_run(settings.steps);
        let bar = progress(steps_run.into(), "steps", args.quiet);
        let begun = Instant::now();
        let mut unsaved = 0;
        while trainer.next_fire().is_some_and(|next| next < steps_run) {
            if interrupt::asked() {
                save_state(&folder, &trainer)?;
                bar.abandon();
                return Err(Error::Interrupted(format!(
                    "stopped after {} of {} releases; the same command with --resume continues",
                    trainer.progress().0,
                    fires.len()
                )));
            }
            let clock = Instant::now();
            let Some(step) = trainer.step()? else { break };
            let mut line = json!({"step": step.step, "groups": step.groups});
            if args.log_private || settings.payload == Payload::TrueGradient {
                let private = step.private.open(&Opening::evaluation("a log that the statement declares"));
                line["records"] = json!(private.records);
                line["tokens"] = json!(private.tokens);
                line["loss"] = json!(private.loss);
                line["seconds"] = json!(clock.elapsed().as_secs_f64());
            }
            folder.log(&line)?;
            bar.set_position(u64::from(step.step) + 1);
            unsaved += 1;
            if unsaved >= args.checkpoint_every && settings.payload == Payload::Sign {
                save_state(&folder, &trainer)?;
                unsaved = 0;
            }
        }
        bar.finish_and_clear();
        let seconds = begun.elapsed().as_secs_f64();
        // Whoever resumes after a kill from here on must know how much was released.
        if settings.payload == Payload::Sign {
            save_state(&folder, &trainer)?;
        }
        let (weights, transcript) = trainer.finish(steps_run)?;
        let after = match &held_out {
            Some(_) => args.evaluate(&Decoder::new(Cpu::<f32>::new(), weights.clone())?, &held_out)?,
            None => None,
        };
        // The statement first: no model lies anywhere without one.
        transcript.check()?;
        statement.tuned_sha256.clone_from(&transcript.tuned_sha256);
        write_statement(folder.path(), &statement)?;
        ferret::replay::save(folder.path(), &base, &weights, &transcript)?;
        let out = folder.path().to_owned();
        folder.finish()?;
        Ok(json!({
            "method": settings.method, "out": out, "groups": settings.groups.len(), "steps": steps_run, "bits": fires.len(),
            "computed_steps": fires.chunk_by(|a, b| a.0 == b.0).count(), "seconds": args.seconds(seconds, &statement),
            "nats_planned": statement.nats_planned, "nats_charged": statement.nats_charged,
            "guarantees": statement.claims.iter().map(|c| format!("{} ({}, {})", c.guarantee, c.accountant, c.of)).collect::<Vec<_>>(),
            "not_met": statement.not_met, "eval_before": before, "eval_after": after,
        }))
    }
}

fn save_state<B: Backend>(folder: &Folder, trainer: &Trainer<B>) -> Result<()> {
    fsio::write(&folder.state(transcript::FILE), trainer.so_far().to_json()?.as_bytes())
}

/// The summary for a reader.
fn text(summary: &Value) -> String {
    let mut out = format!(
        "{}: {} bits released in {} steps, {} of them computed{}\n",
        summary["method"].as_str().unwrap_or_default(),
        summary["bits"],
        summary["steps"],
        summary["computed_steps"],
        took(summary)
    );
    out += &text_tail(summary);
    out
}
