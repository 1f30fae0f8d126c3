//! `polylock migrate preflight`.

use polylock::Operator;

use crate::failure::{Exit, Failure};
use crate::operate::findings::report;
use crate::output::Output;

pub(super) const EXAMPLES: &str = "\
Examples:
  polylock migrate preflight && polylock migrate set dual
  polylock migrate preflight --json | jq '.findings[] | select(.level == \"warning\")'";

pub(super) async fn run(operator: &Operator, output: Output) -> Result<Exit, Failure> {
    let findings = operator.preflight().await?;
    report(&findings, "No warning: names can move.", "repair that before names move", output)
}
