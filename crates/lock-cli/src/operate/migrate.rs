//! `polylock migrate`: moves a fleet from one store to another.

mod back;
mod clean;
mod finish;
mod preflight;
mod set;
mod status;
mod summary;

use clap::{Args, Subcommand};
use polylock::Operator;
use polylock::migrate::Gate;
use serde_json::json;

use self::back::BackOptions;
use self::clean::CleanOptions;
use self::finish::FinishOptions;
use self::set::SetOptions;
use self::status::StatusOptions;
use crate::connect::{self, StoreOptions};
use crate::failure::{EXITS, Exit, Failure};
use crate::output::Output;
use crate::terminal::Question;
use crate::under_lock::session;

/// The options of `polylock migrate`.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXITS}"))]
pub(crate) struct MigrateOptions {
    /// Do not ask for confirmation
    #[arg(long, short, global = true)]
    yes: bool,

    #[command(flatten)]
    stores: StoreOptions,

    #[command(subcommand)]
    command: MigrateCommand,
}

const EXAMPLES: &str = "\
Rungs, in order: old, shadow, dual, move, new. Every mixture of the first four excludes.

Examples:
  export POLYLOCK_MIGRATE_URL='migrate://shop?from=redis%3A%2F%2Fredis1&to=zk%3A%2F%2Fzk1:2181'
  polylock migrate status               who is where, and what the next step is
  polylock migrate preflight            what to repair before names move
  polylock migrate set dual             both locks for all names
  polylock migrate set move --names 'reports/*'
                                        a canary moves first
  polylock migrate finish               once the old store is closed to all
  polylock migrate back                 to the old store, then: polylock migrate clean";

/// A step of a migration, or a look at it.
#[derive(Debug, Subcommand)]
enum MigrateCommand {
    /// Show the rungs, the processes, what has moved, and what blocks the next step
    Status(StatusOptions),
    /// Check for what would endanger a migration; exits with 1 if there is a warning
    #[command(after_help = preflight::EXAMPLES)]
    Preflight,
    /// Set the rung of all names, or of those that match a pattern
    Set(SetOptions),
    /// Write the seal: from then on only the new store is used, and there is no way back
    Finish(FinishOptions),
    /// Begin the way back to the old store: no further lock moves
    Back(BackOptions),
    /// End the way back: remove all tombstones from the old store
    #[command(after_help = clean::EXAMPLES)]
    Clean(CleanOptions),
}

/// Runs a command. Ctrl-C ends it, and the connections are closed.
pub(crate) async fn run(options: MigrateOptions, output: Output) -> Result<Exit, Failure> {
    let MigrateOptions { stores, yes, command } = options;
    let asks = !matches!(command, MigrateCommand::Status(_) | MigrateCommand::Preflight);
    let question = Question::new(yes || !asks)?;
    let on_interrupt = || {
        // The cursor stands behind the ^C, or behind a question.
        output.say("");
        match &command {
            MigrateCommand::Status(options) if options.is_watching() => Ok(Exit::Done),
            _ => Err(Failure::interrupted(asks)),
        }
    };
    let work = async |operator: &Operator| command.run(operator, output, question).await;
    session::work_with(connect::operator(stores, output), work, on_interrupt).await
}

impl MigrateCommand {
    async fn run(&self, operator: &Operator, output: Output, question: Question) -> Result<Exit, Failure> {
        match self {
            Self::Status(options) => options.run(operator, output).await,
            Self::Preflight => preflight::run(operator, output).await,
            Self::Set(options) => options.run(operator, output, question).await,
            Self::Finish(options) => options.run(operator, output, question).await,
            Self::Back(options) => options.run(operator, output, question).await,
            Self::Clean(options) => options.run(operator, output, question).await,
        }
    }
}

/// Prints the outcome of a gate.
fn gate(gate: &Gate, step: &str, done: &str, output: Output) -> Result<Exit, Failure> {
    match gate {
        Gate::Passed(record) => {
            output.result(done, &json!({ "passed": true, "record": record }))?;
            Ok(Exit::Done)
        }
        Gate::Blocked(obstacles) => Ok(output.blocked(step, obstacles)?),
        _ => Ok(Exit::Blocked),
    }
}

/// Prints that the answer was no.
fn declined(output: Output) -> Result<Exit, Failure> {
    output.result("nothing was changed", &json!({ "passed": false, "declined": true }))?;
    Ok(Exit::Blocked)
}
