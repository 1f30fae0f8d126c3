//! The command line.

use std::env;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

use crate::failure::{EXITS, Exit, Failure};
use crate::manual::{CompletionsOptions, ManOptions};
use crate::operate::breaking::BreakOptions;
use crate::operate::doctor::DoctorOptions;
use crate::operate::holders::HoldersOptions;
use crate::operate::install::InstallOptions;
use crate::operate::migrate::MigrateOptions;
use crate::output::{Output, printable_lines};
#[cfg(target_os = "linux")]
use crate::under_lock::hold::HoldOptions;
#[cfg(target_os = "linux")]
use crate::under_lock::run::RunOptions;

/// Distributed locks over ZooKeeper, Redis and PostgreSQL: runs programs under them, and shows and moves them.
#[derive(Debug, Parser)]
#[command(name = "polylock", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXITS}"))]
pub(crate) struct Options {
    /// Print one JSON document on standard output, also for errors, and nothing else
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What the command does.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while a lock is held
    #[cfg(target_os = "linux")]
    Run(RunOptions),
    /// Hold a lock until a signal: for several steps of one script
    #[cfg(target_os = "linux")]
    Hold(HoldOptions),
    /// Show the holders and the waiters of a lock
    Holders(HoldersOptions),
    /// Remove a lock from its holder
    Break(BreakOptions),
    /// Check the servers for what endangers locks; exits with 1 if there is a warning
    Doctor(DoctorOptions),
    /// Create or upgrade the tables and functions that keep locks in PostgreSQL
    Install(InstallOptions),
    /// Move the locks of a running fleet from Redis to ZooKeeper, and back
    Migrate(MigrateOptions),
    /// Print the completions of a shell
    Completions(CompletionsOptions),
    /// Print the manual page
    Man(ManOptions),
}

impl Options {
    /// Parses the command line. Prints help, or what is wrong.
    pub(crate) fn from_command_line() -> Result<Self, Exit> {
        Self::try_parse().map_err(|error| {
            if !error.use_stderr() {
                let _ = error.print();
                return Exit::Done;
            }
            let arguments: Vec<_> = env::args_os().map(|text| text.to_string_lossy().into_owned()).collect();
            // What follows is of another command.
            let mut own = arguments.iter().take_while(|argument| *argument != "--");
            let text = without_urls(&error.to_string(), &arguments);
            let hint = way_out(&error, &arguments).map(|hint| without_urls(&hint, &arguments));
            // What was parsed is lost with the error.
            if own.any(|argument| argument == "--json") {
                let message = match error.kind() {
                    ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "a command is missing",
                    _ => text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: "),
                };
                let hint = hint.unwrap_or_else(|| "see `polylock --help`".to_owned());
                return Output::new(true).fail(&Failure::usage(message.trim(), hint));
            }
            let hint = hint.map(|hint| format!("\nway out: {hint}\n\n")).unwrap_or_else(|| "\n\n".to_owned());
            Output::new(false).say(&printable_lines(text.replacen("\n\n", &hint, 1).trim_end()));
            Exit::Usage
        })
    }
}

/// What the user may have meant: another subcommand, or a `run` whose command does not follow `--`.
fn way_out(error: &clap::Error, arguments: &[String]) -> Option<String> {
    if let Some(ContextValue::String(command)) = error.get(ContextKind::InvalidSubcommand) {
        return OTHER_NAMES
            .iter()
            .find(|(names, _)| names.contains(&&**command))
            .map(|(_, meant)| (*meant).to_owned());
    }
    let is_run = arguments.get(1).is_some_and(|argument| argument == "run");
    if !is_run || arguments.iter().any(|argument| argument == "--") {
        return None;
    }
    let form = "write the command after --";
    match error.get(ContextKind::InvalidArg) {
        // The rest of the line is not shown: it may have a password.
        Some(ContextValue::String(argument))
            if error.kind() == ErrorKind::UnknownArgument && !argument.starts_with('-') =>
        {
            Some(format!("{form}: polylock run NAME -- {argument} ..."))
        }
        _ if error.kind() == ErrorKind::MissingRequiredArgument => {
            Some(format!("{form}: polylock run NAME -- COMMAND"))
        }
        _ => None,
    }
}

/// The names that other tools have for our subcommands.
const OTHER_NAMES: [(&[&str], &str); 3] = [
    (&["list", "ls", "ps", "show", "status", "who"], "polylock holders --all shows the locks that are held"),
    (&["unlock", "release", "delete", "rm", "kill"], "polylock break NAME removes a lock from its holder"),
    (
        &["lock", "acquire", "exec", "with"],
        "polylock run NAME -- COMMAND, or polylock hold NAME without a command",
    ),
];

/// The text without the URLs of the command line, which may have passwords.
fn without_urls(text: &str, arguments: &[String]) -> String {
    let urls = arguments.iter().filter(|argument| argument.contains("://"));
    urls.fold(text.to_owned(), |text, url| text.replace(&**url, "URL"))
}

const EXAMPLES: &str = "\
Examples:
  export POLYLOCK_URL=redis://host                     or zk://host:2181, redlock://h1,h2,h3,h4,h5
  polylock run nightly-report -n -- ./report.sh        not twice at once, on any host
  polylock holders nightly-report                      who has it, and who waits
  polylock doctor                                      what endangers the locks";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn a_complaint_shows_no_url() {
        let arguments = ["migrate", "redis://:secret@a"].map(str::to_owned);
        let error = Options::try_parse_from(["polylock", &*arguments[0], &*arguments[1]]).unwrap_err();
        let text = without_urls(&error.to_string(), &arguments);
        assert!(text.starts_with("error: unrecognized subcommand 'URL'"), "{text}");
    }

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }
}
