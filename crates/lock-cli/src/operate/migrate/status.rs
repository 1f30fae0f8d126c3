//! `polylock migrate status`.

mod table;

use std::time::Duration;

use clap::Args;
use polylock::{ErrorKind, Operator};
use tokio::time::sleep;

use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::terminal;

/// The options of `status`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct StatusOptions {
    /// Show it again every 2 s, or every SECS, until Ctrl-C; with --json as lines
    #[arg(long, value_name = "SECS", num_args = 0..=1, default_missing_value = "2")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    watch: Option<u64>,
}

const EXAMPLES: &str = "\
It changes nothing. It looks at every tombstone, and at up to 500 locks that are held.

Examples:
  polylock migrate status
  polylock migrate status --watch 10
  polylock migrate status --json | jq '.obstacles'";

impl StatusOptions {
    pub(super) const fn is_watching(&self) -> bool {
        self.watch.is_some()
    }

    pub(super) async fn run(&self, operator: &Operator, output: Output) -> Result<Exit, Failure> {
        let Some(seconds) = self.watch else {
            let status = operator.status().await?;
            output.result(&table::text(&status), &status)?;
            return Ok(Exit::Done);
        };
        loop {
            match operator.status().await {
                Ok(status) if output.is_json() => output.line(&status)?,
                Ok(status) => {
                    output.result(&format!("{}{}\n", terminal::clear(), table::text(&status)), &status)?;
                    output.blank()?;
                }
                // It may come back.
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    output.fail(&Failure::from(error));
                }
                Err(error) => return Err(error.into()),
            }
            sleep(Duration::from_secs(seconds)).await;
        }
    }
}
