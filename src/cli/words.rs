//! The command line as clap knows it, with what holds for all verbs: its version, colours, and a short help that fits a screen.

use super::Cli;
use clap::builder::Resettable;
use clap::{ColorChoice, Command, CommandFactory};
use std::ffi::OsString;
use std::sync::OnceLock;

/// What `-h` shows of the verbs that have more flags than a screen has lines; `--help` shows all.
const SHORT: [(&str, &[&str]); 3] = [
    (
        "train",
        &[
            "method",
            "model",
            "data",
            "out",
            "eval_data",
            "epsilon",
            "dp_epsilon",
            "delta",
            "epochs",
            "batch",
            "learning_rate",
            "accounting",
            "release",
            "resume",
            "json",
            "quiet",
            "help",
            "threads",
            "version",
            "tune",
        ],
    ),
    (
        "plan",
        &[
            "method",
            "epsilon",
            "accounting",
            "nats",
            "dp_epsilon",
            "delta",
            "release",
            "flip",
            "records",
            "batch",
            "epochs",
            "model",
            "tune",
            "group_count",
            "ranks",
            "network",
            "json",
            "quiet",
            "help",
            "threads",
            "version",
        ],
    ),
    (
        "audit",
        &[
            "base",
            "tuned",
            "members",
            "nonmembers",
            "membership",
            "out",
            "shadows",
            "shadow_data",
            "fail_on_alarm",
            "json",
            "quiet",
            "help",
            "threads",
            "device",
            "version",
        ],
    ),
];

/// The features that this program was built with.
fn features() -> String {
    let all = [
        ("hub", cfg!(feature = "hub")),
        ("embedded", cfg!(feature = "embedded")),
        ("gpu", cfg!(feature = "gpu")),
        ("tiles", cfg!(feature = "tiles")),
        ("mpi", cfg!(feature = "mpi")),
        ("formats", cfg!(feature = "formats")),
    ];
    let on: Vec<&str> = all.iter().filter(|f| f.1).map(|f| f.0).collect();
    if on.is_empty() { "none".into() } else { on.join(", ") }
}

/// `0.1.0 (1a2b3c4)`, or without a commit where the build knew none.
pub fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| match crate::COMMIT {
        Some(commit) => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
        None => env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// [`version`], and what is in this build.
pub fn long_version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
        format!("{}\nfeatures: {}\ntarget: {target}", version(), features())
    })
}

/// The whole command line.
pub fn command() -> Command {
    let mut command = Cli::command().version(version()).long_version(long_version());
    let verbs: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    for verb in verbs {
        command = command.mut_subcommand(&verb, |c| {
            let shown = SHORT.iter().find(|s| s.0 == verb).map(|s| s.1);
            let c = match c.get_after_help().cloned() {
                Some(examples) => c.after_help(Resettable::Reset).after_long_help(examples),
                None => c,
            };
            c.mut_args(|arg| {
                let hidden =
                    arg.is_hide_short_help_set() || shown.is_some_and(|shown| !shown.contains(&arg.get_id().as_str()));
                let takes = arg.get_action().takes_values();
                // A number below zero is a value that its flag refuses, not a flag.
                arg.hide_short_help(hidden).allow_negative_numbers(takes)
            })
        });
    }
    command
}

/// [`command`] in the colours that these arguments ask for: clap itself asks for them only after its first words.
pub fn coloured(arguments: &[OsString]) -> Command {
    let mut words = arguments.iter().skip(1).map(|a| a.to_string_lossy());
    let mut asked = None;
    while let Some(word) = words.next() {
        match word.strip_prefix("--color") {
            Some("") => asked = words.next().map(|w| w.into_owned()),
            Some(rest) => asked = rest.strip_prefix('=').map(str::to_owned),
            None => {}
        }
    }
    command().color(match asked.as_deref() {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        _ => ColorChoice::Auto,
    })
}
