//! `ferret completions` and `ferret man`: what shells and `man` know of the program, from its own flags.

use super::words::command;
use crate::error::{Error, Result};
use crate::fsio;
use std::path::PathBuf;

/// Print completions for a shell.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  ferret completions bash > ~/.local/share/bash-completion/completions/ferret
  ferret completions zsh > ~/.zfunc/_ferret
  ferret completions fish > ~/.config/fish/completions/ferret.fish")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Print the manual page, or write one for every verb.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  ferret man | man -l -
  ferret man --out ~/.local/share/man/man1")]
pub struct ManArgs {
    /// Write ferret.1, ferret-train.1 and so on to this folder
    #[arg(long, short = 'o', value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// Print completions.
pub fn completions(args: CompletionsArgs) -> Result<()> {
    let mut out = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "ferret", &mut out);
    fsio::print(&String::from_utf8_lossy(&out))
}

/// Print or write manual pages.
pub fn man(args: ManArgs) -> Result<()> {
    let page = |command: clap::Command| -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let written = clap_mangen::Man::new(command).render(&mut out);
        written.map_err(|e| Error::usage(format!("the manual page cannot be written: {e}")))?;
        Ok(out)
    };
    let Some(dir) = args.out else {
        return fsio::print(&String::from_utf8_lossy(&page(command())?));
    };
    let mut all = command();
    all.build();
    let mut written = 1;
    std::fs::create_dir_all(&dir).map_err(|e| Error::io(&dir, e))?;
    fsio::write(&dir.join("ferret.1"), &page(all.clone())?)?;
    for verb in all.get_subcommands().filter(|c| c.get_name() != "help") {
        let name: &'static str = Box::leak(format!("ferret-{}", verb.get_name()).into_boxed_str());
        fsio::write(&dir.join(format!("{name}.1")), &page(verb.clone().name(name))?)?;
        written += 1;
    }
    fsio::print(&format!("{}: {written} pages\n", dir.display()))
}
