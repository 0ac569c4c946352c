//! The program: one file a verb. Each verb has its arguments and a `run`.

pub mod account;
pub mod audit;
mod bars;
pub mod common;
mod compose;
pub mod devices;
pub mod eval;
pub mod explain;
pub mod first;
mod flags;
pub mod generate;
pub mod grad;
pub mod init;
pub mod inspect;
pub mod interrupt;
mod merge;
pub mod plan;
mod ranks;
pub mod replay;
pub mod shell;
pub mod study;
pub mod train;
pub mod verify;
mod words;
pub mod world;

use crate::error::Result;
use clap::{FromArgMatches, Parser, Subcommand};

/// A transformer trained privately, from the matrix product up.
#[derive(Parser, Debug)]
#[command(name = "ferret", about, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Threads on the processor [default: all cores]
    #[arg(long, value_name = "N", global = true)]
    threads: Option<usize>,
    /// Colours in help and errors; NO_COLOR turns them off as well
    #[arg(long, value_name = "WHEN", value_parser = ["auto", "always", "never"], default_value = "auto", global = true, hide_short_help = true)]
    color: String,
    /// No progress, only the result (here, without a verb; verbs have their own)
    #[arg(long, short)]
    quiet: bool,
    /// Seeds of the comparison that runs without a verb
    #[arg(long, value_name = "N", default_value_t = 3)]
    seeds: u64,
}

#[derive(Subcommand, Debug)]
enum Command {
    Train(Box<train::Args>),
    Devices(devices::Args),
    Generate(generate::Args),
    Eval(eval::Args),
    Grad(grad::Args),
    Init(init::Args),
    Inspect(inspect::Args),
    Merge(merge::Args),
    Replay(replay::Args),
    Verify(verify::Args),
    Explain(explain::Args),
    Plan(plan::Args),
    Account(account::Args),
    Study(study::Args),
    World(world::Args),
    Audit(Box<audit::Args>),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
}

/// Parse the command line, run the verb and return the exit code: 0 done, 1 failed, 2 misused, 130 interrupted.
pub fn main() -> i32 {
    #[cfg(feature = "hub")]
    {
        static DOWNLOADS: bars::Bars = bars::Bars::downloads();
        crate::model::hub::report_to(&DOWNLOADS);
    }
    let arguments = match train::expand(plan::expand(std::env::args_os().collect())) {
        Ok(arguments) => arguments,
        Err(e) => return failed(&e),
    };
    let parsed = words::coloured(&arguments).try_get_matches_from(arguments);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            if e.kind() == clap::error::ErrorKind::UnknownArgument
                && std::env::args_os().nth(1).is_some_and(|verb| verb == "plan")
            {
                crate::fsio::tell("With --data FILE in place of --records, plan takes every flag of train.");
            }
            return e.exit_code();
        }
    };
    let done = ranks::enter().and_then(|()| run(cli));
    // Said before parting: launchers end whoever is left once one has failed.
    let code = done.as_ref().map_or_else(failed, |()| 0);
    match ranks::leave(&done) {
        Ok(()) => code,
        Err(e) => failed(&e),
    }
}

/// Say what went wrong; the exit code.
fn failed(e: &crate::Error) -> i32 {
    ranks::say(&format!("{}{}", ranks::prefix(), flags::spell(&e.to_string())));
    match e {
        crate::Error::Usage(_) => 2,
        crate::Error::Interrupted(_) => 130,
        _ => 1,
    }
}

fn run(cli: Cli) -> Result<()> {
    if let Some(threads) = cli.threads {
        common::set_threads(threads)?;
    }
    let shared = match &cli.command {
        Some(Command::Train(_) | Command::Eval(_) | Command::Study(_)) => true,
        Some(Command::Audit(args)) => args.is_shared(),
        _ => false,
    };
    if !shared && !ranks::is_first() {
        return Ok(());
    }
    match cli.command {
        None => first::run(cli.seeds, cli.quiet),
        Some(command) => match command {
            Command::Train(args) => train::run(*args),
            Command::Devices(args) => devices::run(args),
            Command::Generate(args) => generate::run(args),
            Command::Eval(args) => eval::run(args),
            Command::Grad(args) => grad::run(args),
            Command::Init(args) => init::run(args),
            Command::Inspect(args) => inspect::run(args),
            Command::Merge(args) => merge::run(args),
            Command::Replay(args) => replay::run(args),
            Command::Verify(args) => verify::run(args),
            Command::Explain(args) => explain::run(args),
            Command::Plan(args) => plan::run(args),
            Command::Account(args) => account::run(args),
            Command::Study(args) => study::run(args),
            Command::World(args) => world::run(args),
            Command::Audit(args) => audit::run(*args),
            Command::Completions(args) => shell::completions(args),
            Command::Man(args) => shell::man(args),
        },
    }
}
