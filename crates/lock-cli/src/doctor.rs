//! `polylock doctor`: what endangers the locks of a store.

use clap::Args;
use polylock::Locks;
use serde_json::json;

use crate::connect::{self, LocksOptions};
use crate::failure::{Exit, Failure};
use crate::findings::{documents, text, warnings};
use crate::output::Output;
use crate::session;
use crate::text::count;

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
    let work = async |locks: &Locks| {
        let findings = locks.doctor().await?.findings;
        let warnings = warnings(&findings);
        let verdict = match warnings {
            0 => "No warning.".to_owned(),
            _ => format!("{}: repair that.", count(warnings, "warning")),
        };
        let document = json!({ "passed": warnings == 0, "findings": documents(&findings) });
        output.result(&format!("{}\n{verdict}", text(&findings)), &document)?;
        Ok(if warnings == 0 { Exit::Done } else { Exit::Blocked })
    };
    session::work_with(connect::locks(options.store), work, || Err(Failure::interrupted(false))).await
}
