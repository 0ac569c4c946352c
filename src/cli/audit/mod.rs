//! `ferret audit`: what a tuned model gives away about its records.

mod canaries;
mod charge;
mod leakage;
mod members;
mod own;
mod plant;
mod shadows;

use crate::error::Result;
pub(super) use own::{OwnArgs, OwnRun};

/// What a tuned model gives away: membership attacks on a base and a tuned model, canaries, FERRET's leakage meter.
///
/// Without a further verb: every membership attack on --tuned, with intervals, the null's own intervals and, where theory gives one,
/// the bound. Members were trained on, non-members were not; both must come from the same source, or the attacks tell the sources
/// apart.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:
  ferret audit --base base --tuned tuned --members in.jsonl --nonmembers out.jsonl --membership random-subset --out report
  ferret audit --base base --tuned tuned --members in.jsonl --nonmembers out.jsonl --shadows 16 --shadow-data other.jsonl --json
  ferret audit plant --data records.jsonl --format \"The code of unit {number} is ######.\" --frequencies 0,1,4,16 --each 10 \\
    --out planted.jsonl --canaries canaries.json
  ferret audit canaries --base base --tuned tuned --canaries canaries.json
  ferret audit leakage --base base --tuned tuned --data records.jsonl")]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    members: members::Args,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    Plant(plant::Args),
    Canaries(canaries::Args),
    Leakage(leakage::Args),
}

impl Args {
    /// Whether all ranks work on it.
    pub(super) fn is_shared(&self) -> bool {
        !matches!(self.what, Some(What::Plant(_)))
    }
}

/// Membership attacks, or the audit that the further verb names.
pub fn run(args: Args) -> Result<()> {
    match args.what {
        None => members::run(args.members),
        Some(What::Plant(args)) => plant::run(args),
        Some(What::Canaries(args)) => canaries::run(args),
        Some(What::Leakage(args)) => leakage::run(args),
    }
}
