//! `polylock migrate clean`.

use std::time::Duration;

use clap::Args;
use polylock::Operator;
use polylock::migrate::Phase;

use super::summary::summary;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::progress::ProgressLine;
use crate::terminal::Question;
use crate::text::count;

pub(super) const EXAMPLES: &str = "\
It can be used again after an error or Ctrl-C: what is removed stays removed.

Examples:
  polylock migrate back && polylock migrate clean
  polylock migrate clean --yes";

/// The options of `clean`.
#[derive(Debug, Args)]
pub(super) struct CleanOptions {
    /// The longest time to live of a lease of any process that may have left meanwhile, such as 2m
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    longest_ttl: Option<Duration>,
}

impl CleanOptions {
    pub(super) async fn run(
        &self,
        operator: &Operator,
        output: Output,
        question: Question,
    ) -> Result<Exit, Failure> {
        let before = operator.brief_status().await?;
        output.say(&summary(&before));
        // In another phase it is refused.
        if before.record.is_some_and(|record| record.phase == Phase::Returning) {
            let moved = count(before.moved, "name");
            output.say(&format!(
                "This removes all tombstones from the old store ({moved} noted as moved){PLAN}"
            ));
            if !question.ask("Remove them?").await? {
                return super::declined(output);
            }
        }
        let progress = ProgressLine::new(output);
        let gate = operator.clean(self.longest_ttl, |at| progress.gate(at)).await?;
        drop(progress);
        super::gate(&gate, "clean", DONE, output)
    }
}

const PLAN: &str = ", each under the lock of the new store.
It takes one longest time to live of a lease, and 10 s more: nothing that is on its way may come later.";

const DONE: &str = "\
The way back has ended: no name has moved any more.
Next: `polylock migrate set old`, and the old store is enough; or `set move`, and names move again.";
