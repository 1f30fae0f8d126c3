//! `polylock migrate preflight`.

use polylock::Operator;
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::findings::{documents, text, warnings};
use crate::output::Output;
use crate::text::count;

pub(super) const EXAMPLES: &str = "\
Examples:
  polylock migrate preflight && polylock migrate set dual
  polylock migrate preflight --json | jq '.findings[] | select(.level == \"warning\")'";

pub(super) async fn run(operator: &Operator, output: Output) -> Result<Exit, Failure> {
    let findings = operator.preflight().await?;
    let warnings = warnings(&findings);
    let verdict = match warnings {
        0 => "No warning: names can move.".to_owned(),
        _ => format!("{}: repair that before names move.", count(warnings, "warning")),
    };
    let document = json!({ "passed": warnings == 0, "findings": documents(&findings) });
    output.result(&format!("{}\n{verdict}", text(&findings)), &document)?;
    Ok(if warnings == 0 { Exit::Done } else { Exit::Blocked })
}
