//! `polylock completions` and `polylock man`: the command line for shells and manuals.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::{Shell, generate};

use crate::failure::{Exit, Failure};

/// The options of `polylock completions`.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS)]
pub(crate) struct CompletionsOptions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

const COMPLETIONS: &str = "\
Examples:
  polylock completions bash > /usr/share/bash-completion/completions/polylock
  polylock completions zsh  > /usr/share/zsh/site-functions/_polylock
  polylock completions fish > ~/.config/fish/completions/polylock.fish";

/// The options of `polylock man`.
#[derive(Debug, Args)]
#[command(after_help = MANUAL)]
pub(crate) struct ManOptions {
    /// Write a page for each subcommand into this folder
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

const MANUAL: &str = "\
Examples:
  polylock man | man -l -
  polylock man --dir /usr/share/man/man1";

/// Prints the completions of this command line for a shell.
pub(crate) fn completions(options: &CompletionsOptions, mut line: Command) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    generate(options.shell, &mut line, "polylock", &mut script);
    print(&script)
}

/// Prints the manual page, or writes all of them.
pub(crate) fn man(options: &ManOptions, line: Command) -> Result<Exit, Failure> {
    let Some(dir) = &options.dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(line).render(&mut page)?;
        return print(&page);
    };
    fs::create_dir_all(dir)?;
    clap_mangen::generate_to(line, dir)?;
    Ok(Exit::Done)
}

fn print(text: &[u8]) -> Result<Exit, Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text)?;
    stdout.flush()?;
    Ok(Exit::Done)
}
