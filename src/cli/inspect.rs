//! `ferret inspect`: what a checkpoint holds and what using it needs.

use super::common::{TuneArgs, grouping, working};
use crate::error::Result;
use crate::fsio;
use crate::method::groups::Groups;
use crate::model::checkpoint::{self, Dtype, OpenCheckpoint};
use crate::model::config::{Activation, Config, Norm, Position};
use crate::model::footprint;
use crate::model::tokenizer::Tokenizer;
use crate::model::{Layout, ParamId};
use crate::study::table::thousands;
use serde_json::{Value, json};
use std::fmt::Write;

/// Samples and tokens for which memory is estimated.
const BATCH: usize = 4;
const CONTEXT: usize = 128;

/// Show a checkpoint: tensors, shapes, parameters, and the memory each kind of training needs.
///
/// The whole checkpoint is read and checked on the way, so that a broken one is found here.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ferret inspect openai-community/gpt2\n  \
                        ferret inspect my-model --show-groups --method ferret-eighth")]
pub struct Args {
    /// `embedded`, a folder in the Hugging Face layout, or a hub name
    #[arg(value_name = "FOLDER|NAME", required_unless_present = "model")]
    folder: Option<String>,
    /// The same, as other verbs take it
    #[arg(long, short = 'm', value_name = "FOLDER|NAME", conflicts_with = "folder")]
    model: Option<String>,
    #[command(flatten, next_help_heading = "What is tuned: memory and groups are of this")]
    tune: TuneArgs,
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
    #[arg(long, short = 'q')]
    quiet: bool,
}

impl Args {
    /// The checkpoint, however it was named.
    fn named(&self) -> &str {
        self.folder.as_deref().or(self.model.as_deref()).unwrap_or_default()
    }
}

/// Tell what is in a checkpoint: shapes, groups, memory.
pub fn run(args: Args) -> Result<()> {
    let shown = working("reading and hashing the checkpoint", args.quiet);
    let opened = checkpoint::open(args.named())?;
    let tokenizer = Tokenizer::from_folder(&opened.folder)?;
    if let Some(tokenizer) = &tokenizer {
        tokenizer.check(&opened.config)?;
    }
    let (layout, sha256, dtype) = (&args.tune.layout(&opened.config)?, opened.sha256()?, opened.dtype()?);
    let tuned = args.tune.tune.ids(layout)?;
    let told = Description { opened: &opened, layout, tuned: &tuned, sha256, dtype };
    let groups = if args.show_groups {
        Some(Groups::tuned(&tuned, grouping(&args.method, args.groups, args.bucket)?)?)
    } else {
        None
    };
    if args.json {
        let mut out = to_json(&args, &told, tokenizer.as_ref());
        if let Some(groups) = &groups {
            out["groups"] = groups.members.iter().map(|ids| names(layout, ids)).collect();
        }
        drop(shown);
        fsio::print(&format!("{out}\n"))
    } else {
        let mut text = String::new();
        describe(&mut text, &args, &told, tokenizer.as_ref()).expect("writing to a string");
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

/// What is told of a checkpoint.
struct Description<'a> {
    opened: &'a OpenCheckpoint,
    /// A fresh adapter included.
    layout: &'a Layout,
    tuned: &'a [ParamId],
    sha256: String,
    /// How all tensors are stored; none where they differ.
    dtype: Option<Dtype>,
}

impl Description<'_> {
    fn stored(&self) -> &'static str {
        self.dtype.map_or("mixed precisions", Dtype::torch_name)
    }

    fn context(&self) -> usize {
        CONTEXT.min(self.opened.config.positions)
    }

    /// Scalars that are tuned.
    fn scalars(&self) -> usize {
        self.layout.scalars_of(self.tuned)
    }

    /// What each kind of use of it needs.
    fn needs(&self) -> Vec<footprint::Need> {
        let (config, layout) = (&self.opened.config, self.layout);
        let stored = self.dtype.unwrap_or_default().size() as u64;
        footprint::Use { config, layout, tuned: self.tuned, stored, batch: BATCH, context: self.context() }.needs()
    }
}

fn activation(config: &Config) -> &'static str {
    match config.mlp.activation() {
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

fn to_json(args: &Args, told: &Description, tokenizer: Option<&Tokenizer>) -> Value {
    let OpenCheckpoint { config, layout, notes, .. } = told.opened;
    let tensors: Vec<Value> =
        layout.specs().iter().map(|s| json!({"name": s.name, "shape": s.shape, "parameters": s.len()})).collect();
    let needs: Vec<Value> = told
        .needs()
        .iter()
        .map(|n| {
            json!({"kind": n.kind, "weights": n.weights, "gradients": n.gradients, "optimizer": n.optimizer,
                   "activations": n.activations, "total": n.total()})
        })
        .collect();
    json!({
        "model": args.named(),
        "parameters": layout.scalars(),
        "dtype": told.stored(),
        "sha256": told.sha256,
        "config": {
            "vocab": config.vocab, "positions": config.positions, "width": config.width, "layers": config.layers,
            "family": config.family.name(), "heads": config.heads, "kv_heads": config.kv_heads,
            "head_width": config.head_width, "inner": config.inner, "norm_epsilon": config.norm_epsilon,
            "activation": activation(config), "tied": config.tied, "scale_by_width": config.scale_by_width,
            "scale_by_layer": config.scale_by_layer, "norm": norm(config), "position": position(config),
            "window": config.window.map(|w| w.size), "eos": config.eos,
        },
        "tokenizer": tokenizer.map(|t| t.len()),
        "notes": notes,
        "tensors": tensors,
        "tuned": {"tune": args.tune.tune, "tensors": told.tuned.len(), "scalars": told.scalars()},
        "memory_estimate_bytes": {"batch": BATCH, "context": told.context(), "kinds": needs},
    })
}

fn describe(out: &mut String, args: &Args, told: &Description, tokenizer: Option<&Tokenizer>) -> std::fmt::Result {
    let OpenCheckpoint { config, layout, notes, .. } = told.opened;
    let (scalars, stored) = (thousands(layout.scalars() as u64), told.stored());
    writeln!(out, "{}: {scalars} parameters in {} tensors, {stored}", args.named(), layout.len())?;
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
        activation(config),
        norm(config),
        position(config),
        if config.tied { "tied" } else { "separate" }
    )?;
    match tokenizer {
        Some(t) => writeln!(out, "  tokenizer: {} entries", t.len())?,
        None => writeln!(out, "  no tokenizer: only {{\"tokens\"}} records can be used")?,
    }
    writeln!(out, "  tensors' SHA-256 {}", told.sha256)?;
    for note in notes {
        writeln!(out, "  note: {note}")?;
    }
    writeln!(out)?;
    for spec in layout.specs() {
        let scalars = thousands(spec.len() as u64);
        writeln!(out, "  {:32} {:>16} {scalars:>12}", spec.name, format!("{:?}", spec.shape))?;
    }
    if !args.tune.tune.is_all() {
        let (tensors, scalars) = (told.tuned.len(), thousands(told.scalars() as u64));
        writeln!(out, "\nTuned: {}, {scalars} parameters in {tensors} tensors", args.tune.tune)?;
    }
    writeln!(out, "\nMemory, MiB, estimated for {BATCH} x {} tokens:", told.context())?;
    writeln!(
        out,
        "  {:28} {:>9} {:>9} {:>9} {:>11} {:>9}",
        "", "weights", "gradients", "optimizer", "activations", "total"
    )?;
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / (1 << 20) as f64);
    for n in told.needs() {
        let [w, g, o, a, t] = [n.weights, n.gradients, n.optimizer, n.activations, n.total()].map(mib);
        writeln!(out, "  {:28} {w:>9} {g:>9} {o:>9} {a:>11} {t:>9}", n.kind)?;
    }
    Ok(())
}
