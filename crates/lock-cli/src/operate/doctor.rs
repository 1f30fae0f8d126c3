//! `polylock doctor`: what endangers the locks of a store.

use clap::Args;
use polylock::Locks;

use crate::connect::{self, LocksOptions};
use crate::failure::{Exit, Failure};
use crate::operate::findings::report;
use crate::output::Output;
use crate::under_lock::session;

/// The options of `polylock doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorOptions {
    #[command(flatten)]
    store: LocksOptions,
}

const EXAMPLES: &str = "\
Examples:
  polylock doctor --url redis://host
  polylock doctor --json | jq '.findings[] | select(.level == \"warning\")'";

pub(crate) async fn run(options: DoctorOptions, output: Output) -> Result<Exit, Failure> {
    let work =
        async |locks: &Locks| report(&locks.doctor().await?.findings, "No warning.", "repair that", output);
    session::work_with(connect::locks(options.store, output), work, || Err(Failure::interrupted(false))).await
}
