//! `ferret inspect`: what a checkpoint holds and what using it needs.

use super::common::{grouping, working};
use crate::error::Result;
use crate::fsio;
use crate::method::Tune;
use crate::method::groups::Groups;
use crate::model::checkpoint::{self, Checkpoint};
use crate::model::config::{Activation, Config, Norm, Position};
use crate::model::memory;
use crate::model::tokenizer::Tokenizer;
use crate::model::{Layout, ParamId, Weights};
use serde_json::{Value, json};
use std::fmt::Write;

/// Samples and tokens for which memory is estimated.
const BATCH: usize = 4;
const CONTEXT: usize = 128;

/// Show a checkpoint: tensors, shapes, parameters, and the memory each kind of training needs.
///
/// The whole checkpoint is read and checked on the way, so that a broken one is found here.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ferret inspect --model openai-community/gpt2\n  \
                        ferret inspect --model my-model --show-groups --method ferret-eighth")]
pub struct Args {
    /// A folder in the Hugging Face layout, or a hub name
    #[arg(long, value_name = "FOLDER|NAME")]
    model: String,
    /// Which tensors are tuned, as in `train`: memory and groups are of these
    #[arg(long, value_name = "SET", default_value = "all")]
    tune: Tune,
    /// Show the groups that fire together in FERRET training
    #[arg(long)]
    show_groups: bool,
    /// With --show-groups: ferret-max, ferret-half, ferret-quarter, ferret-eighth, ferret-2, or ferret with --groups or --bucket
    #[arg(long, default_value = "ferret-max", requires = "show_groups")]
    method: String,
    /// With --method ferret: cut the tensors into N groups
    #[arg(long, value_name = "N", requires = "method", conflicts_with = "bucket")]
    groups: Option<usize>,
    /// With --method ferret: N consecutive tensors a group
    #[arg(long, value_name = "N", requires = "method")]
    bucket: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(long)]
    quiet: bool,
}

/// Tell what is in a checkpoint: shapes, groups, memory.
pub fn run(args: Args) -> Result<()> {
    let shown = working("reading and hashing the checkpoint", args.quiet);
    let checkpoint = checkpoint::load(&args.model)?;
    let tokenizer = Tokenizer::from_folder(&checkpoint.folder)?;
    if let Some(tokenizer) = &tokenizer {
        tokenizer.check(&checkpoint.weights.config)?;
    }
    let layout = &checkpoint.weights.layout;
    let tuned = args.tune.ids(layout)?;
    let groups = if args.show_groups {
        Some(Groups::tuned(&tuned, grouping(&args.method, args.groups, args.bucket)?)?)
    } else {
        None
    };
    if args.json {
        let mut out = to_json(&args, &checkpoint, &tuned, tokenizer.as_ref());
        if let Some(groups) = &groups {
            out["groups"] = groups.members.iter().map(|ids| names(layout, ids)).collect();
        }
        drop(shown);
        fsio::print(&format!("{out}\n"))
    } else {
        let mut text = String::new();
        describe(&mut text, &args, &checkpoint, &tuned, tokenizer.as_ref()).expect("writing to a string");
        if let Some(groups) = &groups {
            text += &format!("\n{} groups of {}:\n", groups.len(), args.method);
            for (g, ids) in groups.members.iter().enumerate() {
                let scalars = groups.scalars(layout, g);
                text += &format!("  {g:>4} {scalars:>12}  {}\n", names(layout, ids).join(" "));
            }
        }
        drop(shown);
        fsio::print(&text)
    }
}

fn names(layout: &Layout, ids: &[ParamId]) -> Vec<String> {
    ids.iter().map(|&p| layout.spec(p).name.clone()).collect()
}

fn activation(checkpoint: &Checkpoint) -> &'static str {
    match checkpoint.weights.config.mlp.activation() {
        Activation::GeluTanh => "gelu (tanh)",
        Activation::GeluErf => "gelu (erf)",
        Activation::Silu => "silu",
    }
}

fn norm(config: &Config) -> &'static str {
    match config.norm {
        Norm::Layer => "layer norm",
        Norm::Rms => "RMS norm",
    }
}

fn position(config: &Config) -> &'static str {
    match config.position {
        Position::Learned => "learned positions",
        Position::Rope(_) => "rotated positions",
        Position::Alibi => "sloped scores",
    }
}

fn context(checkpoint: &Checkpoint) -> usize {
    CONTEXT.min(checkpoint.weights.config.positions)
}

/// What each kind of use of it needs where `tuned` is tuned.
fn needs(checkpoint: &Checkpoint, tuned: &[ParamId]) -> Vec<memory::Need> {
    let Weights { config, layout, .. } = &checkpoint.weights;
    memory::estimate_tuned(config, layout, tuned, BATCH, context(checkpoint))
}

fn scalars(checkpoint: &Checkpoint, ids: &[ParamId]) -> usize {
    ids.iter().map(|&p| checkpoint.weights.layout.spec(p).len()).sum()
}

fn to_json(args: &Args, checkpoint: &Checkpoint, tuned: &[ParamId], tokenizer: Option<&Tokenizer>) -> Value {
    let weights = &checkpoint.weights;
    let config = &weights.config;
    let tensors: Vec<Value> = weights
        .layout
        .specs()
        .iter()
        .map(|s| json!({"name": s.name, "shape": s.shape, "parameters": s.len()}))
        .collect();
    let needs: Vec<Value> = needs(checkpoint, tuned)
        .iter()
        .map(|n| {
            json!({"kind": n.kind, "weights": n.weights, "gradients": n.gradients, "optimizer": n.optimizer,
                   "activations": n.activations, "total": n.total()})
        })
        .collect();
    json!({
        "model": args.model,
        "parameters": weights.layout.scalars(),
        "dtype": checkpoint.dtype.torch_name(),
        "sha256": checkpoint::tensors_sha256(weights),
        "config": {
            "vocab": config.vocab, "positions": config.positions, "width": config.width, "layers": config.layers,
            "family": config.family.name(), "heads": config.heads, "kv_heads": config.kv_heads,
            "head_width": config.head_width, "inner": config.inner, "norm_epsilon": config.norm_epsilon,
            "activation": activation(checkpoint), "tied": config.tied, "scale_by_width": config.scale_by_width,
            "scale_by_layer": config.scale_by_layer, "norm": norm(config), "position": position(config),
            "window": config.window.map(|w| w.size), "eos": config.eos,
        },
        "tokenizer": tokenizer.map(|t| t.len()),
        "notes": checkpoint.notes,
        "tensors": tensors,
        "tuned": {"tune": args.tune, "tensors": tuned.len(), "scalars": scalars(checkpoint, tuned)},
        "memory_estimate_bytes": {"batch": BATCH, "context": context(checkpoint), "kinds": needs},
    })
}

fn describe(
    out: &mut String,
    args: &Args,
    checkpoint: &Checkpoint,
    tuned: &[ParamId],
    tokenizer: Option<&Tokenizer>,
) -> std::fmt::Result {
    let weights = &checkpoint.weights;
    let config = &weights.config;
    writeln!(
        out,
        "{}: {} parameters in {} tensors, {}",
        args.model,
        weights.layout.scalars(),
        weights.layout.len(),
        checkpoint.dtype.torch_name()
    )?;
    let shared = match config.kv_heads {
        n if n == config.heads => String::new(),
        n => format!(" ({n} of keys and values)"),
    };
    writeln!(
        out,
        "  {}: {} blocks, {} wide, {} heads{}, hidden {}, {} positions, vocabulary {}, {}, {}, {}, output head {}",
        config.family.name(),
        config.layers,
        config.width,
        config.heads,
        shared,
        config.inner,
        config.positions,
        config.vocab,
        activation(checkpoint),
        norm(config),
        position(config),
        if config.tied { "tied" } else { "separate" }
    )?;
    match tokenizer {
        Some(t) => writeln!(out, "  tokenizer: {} entries", t.len())?,
        None => writeln!(out, "  no tokenizer: only {{\"tokens\"}} records can be used")?,
    }
    writeln!(out, "  tensors' SHA-256 {}", checkpoint::tensors_sha256(weights))?;
    for note in &checkpoint.notes {
        writeln!(out, "  note: {note}")?;
    }
    writeln!(out)?;
    for spec in weights.layout.specs() {
        writeln!(out, "  {:32} {:>16} {:>12}", spec.name, format!("{:?}", spec.shape), spec.len())?;
    }
    if !args.tune.is_all() {
        let (tensors, scalars) = (tuned.len(), scalars(checkpoint, tuned));
        writeln!(out, "\nTuned: {}, {scalars} parameters in {tensors} tensors", args.tune)?;
    }
    writeln!(out, "\nMemory, MiB, estimated for {BATCH} x {} tokens:", context(checkpoint))?;
    writeln!(
        out,
        "  {:28} {:>9} {:>9} {:>9} {:>11} {:>9}",
        "", "weights", "gradients", "optimizer", "activations", "total"
    )?;
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / (1 << 20) as f64);
    for n in needs(checkpoint, tuned) {
        let [w, g, o, a, t] = [n.weights, n.gradients, n.optimizer, n.activations, n.total()].map(mib);
        writeln!(out, "  {:28} {w:>9} {g:>9} {o:>9} {a:>11} {t:>9}", n.kind)?;
    }
    Ok(())
}
