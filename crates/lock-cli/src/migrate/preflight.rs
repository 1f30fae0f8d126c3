//! `polylock migrate preflight`.

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use polylock::{Finding, FindingLevel, Operator};
use serde::Serialize;
use serde_json::json;

use super::summary::count;
use crate::failure::{Exit, Failure};
use crate::output::{Output, printable};

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

pub(super) fn warnings(findings: &[Finding]) -> usize {
    findings.iter().filter(|finding| finding.level >= FindingLevel::Warning).count()
}

/// The findings as a table, warnings first.
pub(super) fn text(findings: &[Finding]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    let mut findings: Vec<_> = findings.iter().collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    for finding in findings {
        let Finding { server, what, advice, .. } = finding;
        let mut text = if server.is_empty() { what.clone() } else { format!("{server}: {what}") };
        if !advice.is_empty() {
            text.push_str(&format!("\nway out: {advice}"));
        }
        table.add_row([level(finding).to_owned(), printable(&text)]);
    }
    table.trim_fmt()
}

/// A finding for programs.
#[derive(Debug, Serialize)]
pub(super) struct FindingDocument<'a> {
    level: &'static str,
    server: &'a str,
    what: &'a str,
    advice: &'a str,
}

pub(super) fn documents(findings: &[Finding]) -> Vec<FindingDocument<'_>> {
    findings.iter().map(FindingDocument::new).collect()
}

impl<'a> FindingDocument<'a> {
    fn new(finding: &'a Finding) -> Self {
        let Finding { server, what, advice, .. } = finding;
        Self { level: level(finding), server, what, advice }
    }
}

fn level(finding: &Finding) -> &'static str {
    if finding.level >= FindingLevel::Warning { "warning" } else { "note" }
}
