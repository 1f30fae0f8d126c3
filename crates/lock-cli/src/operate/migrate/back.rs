//! `polylock migrate back`.

use std::time::Duration;

use clap::Args;
use polylock::Operator;
use polylock::migrate::Phase;

use super::summary::summary;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::progress::ProgressLine;
use crate::terminal::Question;

/// The options of `back`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct BackOptions {
    /// The longest wait until all sessions have seen that the way back has begun
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    patience: Duration,
}

const EXAMPLES: &str = "\
It can be used again, and goes on waiting. From move to dual alone is no way back: `polylock migrate set dual`.

Examples:
  polylock migrate back && polylock migrate clean
  polylock migrate back --patience 5m";

impl BackOptions {
    pub(super) async fn run(
        &self,
        operator: &Operator,
        output: Output,
        question: Question,
    ) -> Result<Exit, Failure> {
        let before = operator.brief_status().await?;
        output.say(&summary(&before));
        // In another phase it has begun already, or is refused.
        if before.record.is_some_and(|record| record.phase == Phase::Open) {
            output.say(PLAN);
            if !question.ask("Begin the way back?").await? {
                return super::declined(output);
            }
        }
        let progress = ProgressLine::new(output);
        let gate = operator.back(self.patience, |at| progress.gate(at)).await?;
        drop(progress);
        super::gate(&gate, "the way back has begun, but its end", DONE, output)
    }
}

const PLAN: &str = "\
This begins the way back: move becomes dual in all rules, and no process writes tombstones or relies on those that it has read.
It ends with `polylock migrate clean`.";

const DONE: &str = "\
The way back has begun, and all sessions have seen it.
Next: `polylock migrate clean` removes the tombstones.";
