//! `polylock migrate finish`.

use std::time::Duration;

use clap::Args;
use polylock::Operator;
use polylock::migrate::{FinishTerms, Phase};

use super::summary::summary;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::progress::ProgressLine;
use crate::terminal::Question;

/// The options of `finish`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct FinishOptions {
    /// Finish although the old store is gone for good and no process can reach it. Refused while this command or a process can
    #[arg(long)]
    gone: bool,

    /// All masters and replicas that the old store had, instead of those that processes have registered. Each has to be gone
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', requires = "gone")]
    servers: Vec<String>,

    /// The longest time to live of a lease of any client of the old store, such as 2m, where leases cannot be read
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    longest_ttl: Option<Duration>,
}

const EXAMPLES: &str = "\
The old store must be closed to all users first, so that no client can acquire a lock there: on each Redis master \
`ACL SETUSER NAME resetkeys` for every user that may write below the prefix, then `ACL SAVE`. The URL of the old store \
then names a user that may look, and nothing else:

  ACL SETUSER migrator on >PASSWORD -@all %R~* +hello +ping +select +client|setname \
+client|list +acl|list +acl|dryrun +info +time +scan +type +get +getrange +pttl +zscore +script|load

Examples:
  polylock migrate finish
  polylock migrate finish --longest-ttl 2m
  polylock migrate finish --gone --longest-ttl 2m    the servers were switched off";

impl FinishOptions {
    fn terms(&self) -> FinishTerms {
        let terms = FinishTerms::new().servers(&self.servers);
        let terms = if self.gone { terms.source_is_gone() } else { terms };
        match self.longest_ttl {
            Some(ttl) => terms.longest_ttl(ttl),
            None => terms,
        }
    }

    pub(super) async fn run(
        &self,
        operator: &Operator,
        output: Output,
        question: Question,
    ) -> Result<Exit, Failure> {
        let before = operator.brief_status().await?;
        output.say(&summary(&before));
        let terms = self.terms();
        // In another phase there is nothing to do, or it is refused.
        if before.record.is_some_and(|record| record.phase == Phase::Open) {
            output.say(PLAN);
            let obstacles = operator.obstacles_to_finish(&terms).await?;
            if !obstacles.is_empty() {
                return Ok(output.blocked("finish", &obstacles)?);
            }
            if !question.ask("Finish the migration for good?").await? {
                return super::declined(output);
            }
        }
        let progress = ProgressLine::new(output);
        let gate = operator.finish(&terms, |at| progress.gate(at)).await?;
        drop(progress);
        super::gate(&gate, "finish", DONE, output)
    }
}

const PLAN: &str = "\
This waits until no lease is left on the old store, raises the tokens of the new store above all of the old one, and writes
the seal: dual and move then act as new. There is no way back from it.";

const DONE: &str = "\
The migration is finished: all names are on the new store.
The old store can be switched off. Processes may now use the URL of the new store alone, with rung=new or without migrate://.";
