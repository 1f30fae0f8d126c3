//! What an examination of servers has found, for people and for programs.

use polylock::{Finding, FindingLevel};
use serde::Serialize;
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::output::{Output, printable_lines};
use crate::text::{count, rows};

/// Shows the findings and the verdict: `fine` without warnings, else what to do with them.
pub(crate) fn report(findings: &[Finding], fine: &str, else_: &str, output: Output) -> Result<Exit, Failure> {
    let warnings = warnings(findings);
    let verdict = match warnings {
        0 => fine.to_owned(),
        _ => format!("{}: {else_}.", count(warnings, "warning")),
    };
    let document = json!({ "passed": warnings == 0, "findings": documents(findings) });
    output.result(&format!("{}\n{verdict}", text(findings)), &document)?;
    Ok(if warnings == 0 { Exit::Done } else { Exit::Blocked })
}

/// How many of them are warnings.
pub(crate) fn warnings(findings: &[Finding]) -> usize {
    findings.iter().filter(|finding| finding.level >= FindingLevel::Warning).count()
}

/// The findings as a table, warnings first.
pub(crate) fn text(findings: &[Finding]) -> String {
    let mut table = rows();
    let mut findings: Vec<_> = findings.iter().collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    for finding in findings {
        let Finding { server, what, advice, .. } = finding;
        let mut text = if server.is_empty() { what.clone() } else { format!("{server}: {what}") };
        if !advice.is_empty() {
            text.push_str(&format!("\nway out: {advice}"));
        }
        table.add_row([level(finding).to_owned(), printable_lines(&text)]);
    }
    table.trim_fmt()
}

/// A finding for programs.
#[derive(Debug, Serialize)]
pub(crate) struct FindingDocument<'a> {
    level: &'static str,
    server: &'a str,
    what: &'a str,
    advice: &'a str,
}

/// The findings for programs.
pub(crate) fn documents(findings: &[Finding]) -> Vec<FindingDocument<'_>> {
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
