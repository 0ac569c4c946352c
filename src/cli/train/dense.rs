//! Training by the methods that release a whole update at every step.

use super::{
    AccountantKind, Args, Begun, PRIVATE_LOG, ReleaseKind, ScheduleKind, Start, text_tail, tiny, took, write_statement,
};
use crate::backend::Backend;
use crate::cli::common::{Job, progress, working};
use crate::cli::interrupt;
use crate::error::{Error, Result};
use crate::fsio;
use crate::method::dense::{Claims, Method, Privacy, RECORD, Record, Run, Settings, State, Trainer};
use crate::method::ferret::{Engine, MaskKind, Payload, Route, transcript};
use crate::method::folder::Folder;
use crate::method::{Opening, Sensitive};
use crate::model::checkpoint::{self, Dtype};
use crate::model::{Layout, Weights};
use crate::optim::Silent;
use crate::privacy::statement::Sampler;
use crate::privacy::{calibrate, mi};
use crate::rng::{Direction, Secret};
use serde_json::{Value, json};
use std::time::Instant;

/// The methods of this file.
pub(super) const METHODS: [&str; 5] = ["dpsgd", "dp-signsgd", "nonprivate", "signsgd", "qsgd"];

/// What the run was begun with.
pub(super) const BEGUN: &str = "run.json";
/// Where weights and moments are saved.
const SAVED: &str = "dense";

/// Plan, train, write.
pub(super) fn run(args: &Args) -> Result<()> {
    interrupt::listen();
    refuse_strangers(args)?;
    let start = args.start()?;
    let settings = settings(args, &start.checkpoint.weights.layout, start.records.examples.len() as u64)?;
    // What is planned is accounted for before anything starts: a delta or a noise that cannot be is refused here.
    let planned = settings.claims(settings.steps, args.delta)?;
    let begun = Begun::new(&settings, &start, args.quiet);
    let (folder, secret, logged) = if args.resume {
        resume(args, &begun)?
    } else {
        let secret = args.secret()?;
        let folder = Folder::begin(&args.out, &secret)?;
        begun.write(&folder.state(BEGUN))?;
        (folder, secret, false)
    };
    if let Some(privacy) = settings.method.privacy() {
        args.note(&format!("note: noise multiplier {:.4}, clipping bound {}", privacy.noise_multiplier, privacy.clip));
        if !privacy.holds() {
            args.note("note: not private: without clipping or without noise nothing is promised");
        }
        if settings.sampler != Sampler::Poisson {
            args.note("note: (eps, delta) is proven for --sampler poisson only: the statement will promise nothing");
        }
    } else {
        args.note(&format!("note: {} is not private", settings.method.name()));
    }
    if secret.is_insecure() {
        args.note("note: not private: sampling and noise are known (--insecure-seed)");
    }
    let summary = args.compute.run(Work {
        args,
        start,
        settings,
        base_sha256: begun.base_sha256,
        folder,
        secret,
        logged,
        planned,
    })?;
    super::conclude(args, summary, text)
}

/// Arguments of other methods are refused, not passed over.
fn refuse_strangers(args: &Args) -> Result<()> {
    let (f, d, method) = (&args.ferret, &args.dense, args.method.as_str());
    let private = matches!(method, "dpsgd" | "dp-signsgd");
    if args.epsilon.is_some() {
        return Err(Error::usage(if private {
            format!(
                "--epsilon is FERRET's budget in nats of mutual information: {method} takes --dp-epsilon and --delta, or \
                 --noise-multiplier"
            )
        } else {
            format!("--epsilon: {method} is not private and has no budget")
        }));
    }
    let ferret = f.bucket.is_some()
        || f.batch_per.is_some()
        || f.flip.is_some()
        || f.dither.is_some()
        || f.unbiased
        || f.silent != Silent::default()
        || f.direction != Direction::default()
        || f.payload != Payload::default()
        || f.mask != MaskKind::default()
        || f.engine != Engine::default()
        || f.release != ReleaseKind::Bit;
    let given = [
        (ferret, "arguments of FERRET", false),
        (args.dp_epsilon.is_some() && !private, "--dp-epsilon", false),
        (d.noise_multiplier.is_some() && !private, "--noise-multiplier", false),
        (d.accountant.is_some() && !private, "--accountant", false),
        (d.clipping.is_some() && !private, "--clipping", false),
        (d.clip_function.is_some() && !private, "--clip-function", false),
        (f.groups.is_some() && !private, "--groups", false),
        (d.variant.is_some(), "--variant", method == "signsgd"),
        (d.bits.is_some(), "--bits", method == "qsgd"),
    ];
    match given.iter().find(|g| g.0 && !g.2) {
        Some((_, what, _)) => Err(Error::usage(format!("--method {method} has no use for {what}: leave it out"))),
        None => Ok(()),
    }
}

/// The settings that the arguments and the data make.
fn settings(args: &Args, layout: &Layout, records: u64) -> Result<Settings> {
    if args.batch == 0 || args.batch > records {
        return Err(Error::usage(format!("--batch {} of {records} records: give 1 to all of them", args.batch)));
    }
    let steps = mi::run_steps(records, args.batch, args.epochs)?;
    let sampling_rate = args.batch as f64 / records as f64;
    let d = &args.dense;
    let privacy = || -> Result<Privacy> {
        Ok(Privacy {
            noise_multiplier: noise_multiplier(args, sampling_rate, steps)?,
            clip: args.clip,
            clip_rule: d.clip_function.unwrap_or_default(),
            clip_style: d.clipping.unwrap_or_default(),
            clip_groups: args.ferret.groups.map(|n| n.try_into().unwrap_or(u32::MAX)),
        })
    };
    let method = match args.method.as_str() {
        "dpsgd" => Method::Dpsgd(privacy()?),
        "dp-signsgd" => Method::DpSignsgd(privacy()?),
        "signsgd" => Method::Signsgd { variant: d.variant.unwrap_or_default() },
        "qsgd" => Method::Qsgd { bits: d.bits.unwrap_or(8) },
        _ => Method::Nonprivate,
    };
    let plain = method == Method::Nonprivate;
    let settings = Settings {
        method,
        records,
        batch: args.batch,
        epochs: args.epochs,
        steps,
        sampling_rate,
        sampler: args.sampler,
        micro_batch: args.micro_batch.try_into().unwrap_or(u32::MAX),
        route: args.route,
        learning_rate: args.learning_rate.unwrap_or(if plain { 1e-4 } else { 2e-4 }),
        schedule: args.schedule(if plain { ScheduleKind::Linear } else { ScheduleKind::Constant }),
        weight_decay: if args.route == Route::Direct { 0.0 } else { args.weight_decay },
        seed: args.seed,
    };
    settings.check()?;
    if let Some(privacy) = settings.method.privacy() {
        privacy.clipping(layout)?;
    }
    Ok(settings)
}

/// The noise that was asked for, or the least that the accountant proves to suffice for the planned steps.
fn noise_multiplier(args: &Args, sampling_rate: f64, steps: u32) -> Result<f64> {
    match (args.dp_epsilon, args.dense.noise_multiplier) {
        (_, Some(_)) if args.dense.accountant.is_some() => {
            Err(Error::usage("--accountant finds the noise for --dp-epsilon: leave it out with --noise-multiplier"))
        }
        (_, Some(sigma)) => Ok(sigma),
        (Some(epsilon), None) => {
            let _shown = working("finding the noise", args.quiet);
            let found = calibrate::noise_multiplier(epsilon, args.delta, sampling_rate, steps.into())?;
            Ok(match args.dense.accountant.unwrap_or(AccountantKind::Pld) {
                AccountantKind::Pld => found.pld.upper,
                AccountantKind::Rdp => found.rdp,
            })
        }
        (None, None) => Err(Error::usage(format!(
            "--method {} needs --dp-epsilon E (with --delta) or --noise-multiplier S",
            args.method
        ))),
    }
}

/// What an earlier part of the run left: folder, key, and whether it wrote private logs.
fn resume(args: &Args, begun: &Begun<Settings>) -> Result<(Folder, Secret, bool)> {
    let (folder, secret) = Folder::resume(&args.out)?;
    if args.insecure_seed.is_some() != secret.is_insecure() {
        return Err(Error::usage("the run to resume was begun differently: --insecure-seed must be the same"));
    }
    let path = folder.state(BEGUN);
    if path.exists() {
        begun.check(&path)?;
    } else if [SAVED, super::ferret::BEGUN, transcript::FILE].iter().any(|file| folder.state(file).exists()) {
        return Err(Error::file(args.out.as_path(), "the unfinished run there is of another method, or not whole"));
    } else {
        begun.write(&path)?;
    }
    let logged = folder.state(PRIVATE_LOG).exists();
    Ok((folder, secret, logged))
}

struct Work<'a> {
    args: &'a Args,
    start: Start,
    settings: Settings,
    base_sha256: String,
    folder: Folder,
    secret: Secret,
    logged: bool,
    planned: Claims,
}

impl Job for Work<'_> {
    type Output = Value;

    fn run<B: Backend>(self, backend: B) -> Result<Value> {
        let Work { args, start, settings, base_sha256, mut folder, secret, logged, planned } = self;
        let circumstances = args.circumstances(&start, logged);
        let Start { checkpoint: mut base, records, held_out } = start;
        let private_method = settings.method.privacy().is_some();
        if args.log_private && !logged {
            fsio::write(&folder.state(PRIVATE_LOG), b"")?;
        }
        let records = Sensitive::new(records.examples);
        let mut weights = std::mem::replace(&mut base.weights, Weights::zeros(tiny()));
        let saved = folder.state(SAVED);
        let state = State::load(&saved, &mut weights)?;
        folder.rewind_log(state.as_ref().map_or(0, |s| s.step.into()))?;
        let records = records.as_slice();
        let mut trainer =
            Trainer::new(backend, Run { weights, settings: settings.clone(), state, secret: &secret, records })?;
        trainer.recompute(args.recompute);
        let before = args.evaluate_before(&folder, trainer.decoder(), trainer.next_step() == 0, &held_out)?;
        let steps_run = args.steps_run(settings.steps);
        args.check_done(steps_run, trainer.next_step())?;
        let bar = progress(steps_run.into(), "steps", args.quiet);
        bar.set_position(trainer.next_step().into());
        let begun = Instant::now();
        let mut unsaved = 0;
        while trainer.next_step() < steps_run {
            if interrupt::asked() {
                trainer.save(&saved)?;
                bar.abandon();
                return Err(Error::Interrupted(format!(
                    "stopped after {} of {steps_run} steps; the same command with --resume continues",
                    trainer.next_step()
                )));
            }
            let clock = Instant::now();
            let Some(step) = trainer.step()? else { break };
            let mut line = json!({"step": step.step});
            if args.log_private || !private_method {
                let private = step.private.open(&Opening::evaluation("a log that the statement declares"));
                line["records"] = json!(private.records);
                line["tokens"] = json!(private.tokens);
                line["loss"] = json!(private.loss);
                line["seconds"] = json!(clock.elapsed().as_secs_f64());
            }
            folder.log(&line)?;
            bar.inc(1);
            unsaved += 1;
            if unsaved >= args.checkpoint_every {
                trainer.save(&saved)?;
                unsaved = 0;
            }
        }
        bar.finish_and_clear();
        let seconds = begun.elapsed().as_secs_f64();
        // Whoever resumes after a kill from here on must know how much was released.
        if unsaved > 0 {
            trainer.save(&saved)?;
        }
        let after = args.evaluate(trainer.decoder(), &held_out)?;
        let bits_per_update = settings.method.bits_per_update(&trainer.decoder().layout);
        let weights = trainer.finish()?;
        let spent = settings.claims(steps_run, args.delta)?;
        let tuned_sha256 = checkpoint::tensors_sha256(&weights);
        let mut statement = settings.statement(&weights.layout, steps_run, &spent, Some(&planned), circumstances);
        statement.tuned_sha256 = Some(tuned_sha256.clone());
        write_statement(folder.path(), &statement)?;
        let record =
            Record { version: Record::VERSION, settings: settings.clone(), steps_run, base_sha256, tuned_sha256 };
        fsio::write(&folder.path().join(RECORD), record.to_json().as_bytes())?;
        let mut options = base.save_options();
        options.dtype = Dtype::F32;
        checkpoint::save(folder.path(), &weights, &options)?;
        let out = folder.path().to_owned();
        folder.finish()?;
        // Numbers only where the statement promises them.
        let epsilon = |claims: &Claims| claims.json().filter(|_| statement.is_private());
        Ok(json!({
            "method": settings.method.name(), "out": out, "steps": steps_run, "steps_planned": settings.steps,
            "sampling_rate": settings.sampling_rate, "bits_per_update": bits_per_update, "seconds": args.seconds(seconds, &statement),
            "noise_multiplier": settings.method.privacy().map(|p| p.noise_multiplier), "private": statement.is_private(),
            "delta": settings.method.privacy().map(|_| args.delta),
            "epsilon_spent": epsilon(&spent), "epsilon_planned": epsilon(&planned),
            "guarantees": statement.claims.iter().map(|c| format!("{} ({}, {})", c.guarantee, c.accountant, c.of)).collect::<Vec<_>>(),
            "not_met": statement.not_met, "eval_before": before, "eval_after": after,
        }))
    }
}

/// The summary for a reader.
fn text(summary: &Value) -> String {
    let sigma = summary["noise_multiplier"].as_f64().map_or(String::new(), |s| format!(", noise multiplier {s:.4}"));
    format!(
        "{}: {} updates of {} bits released{}{sigma}\n",
        summary["method"].as_str().unwrap_or_default(),
        summary["steps"],
        summary["bits_per_update"],
        took(summary)
    ) + &text_tail(summary)
}
