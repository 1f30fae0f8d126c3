//! The claims: one line each with its verdict, and a section for each.

use std::fmt::Write as _;

use super::html::{capitalised, escape};
use super::sheet::{Cell, Sheet};
use super::tone::Tone;
use crate::data::results::distinct;
use crate::data::results::numbers::{number, quantity};
use crate::data::{ClaimResult, Figure, Results};

/// All claims with their verdicts, linked to their sections.
pub(super) fn list(page: &mut String, results: &Results) {
    if let Some(sheet) = sheet(results, false) {
        page.push_str("<section id=\"claims\">\n<h2>What people say, and what this run measured</h2>\n");
        page.push_str(&sheet.html(" class=\"words\""));
        page.push_str("</section>\n");
    }
}

/// A row per claim, if any was measured; also with the reason of its verdict.
pub(super) fn sheet(results: &Results, with_reason: bool) -> Option<Sheet> {
    let sheet = Sheet::of(["", "claim", "verdict"]);
    let mut sheet = if with_reason { sheet.words("why") } else { sheet };
    for claim in &results.claims {
        let linked = Cell::from(&*claim.claim).to(&format!("claim-{}", claim.id));
        let reason = with_reason.then(|| Cell::from(&*claim.because));
        sheet.row([claim.id.to_string().into(), linked, verdict(claim)].into_iter().chain(reason));
    }
    results.has_claims().then_some(sheet)
}

fn verdict(claim: &ClaimResult) -> Cell {
    let verdict = Cell::verdict(&claim.verdict, &claim.verdict);
    match claim.broken_promise {
        Some(_) => verdict.and_verdict("polylock breaks its promise", Tone::Broken),
        None => verdict,
    }
}

pub(super) fn sections(page: &mut String, results: &Results) {
    for claim in results.claims.iter().filter(|_| results.has_claims()) {
        section(page, results, claim);
    }
}

fn section(page: &mut String, results: &Results, claim: &ClaimResult) {
    let _ = writeln!(
        page,
        "<section id=\"claim-{id}\">\n<h2>{id}. {}</h2>\n<p>{} {}.</p>",
        escape(&claim.claim),
        verdict(claim).html(),
        capitalised(claim.because.trim_end_matches('.')),
        id = claim.id,
    );
    if !claim.missing.is_empty() {
        page.push_str("<ul class=\"broken box\">\n");
        for missing in &claim.missing {
            let _ = writeln!(page, "<li>Missing: {}</li>", escape(missing));
        }
        page.push_str("</ul>\n");
    }
    let _ = writeln!(page, "<div class=\"charts\" data-claim=\"{}\"></div>", claim.id);
    let _ = writeln!(
        page,
        "<details>\n<summary>The rule, and how it was measured</summary>\n\
         <p><b>Rule.</b> {}</p>\n<p><b>How.</b> {}</p>\n</details>",
        escape(&claim.rule),
        escape(&claim.how)
    );
    figures(page, results, claim);
    let _ = writeln!(
        page,
        "<p class=\"soft\">To measure it again: <code>{}</code></p>\n</section>",
        escape(&claim.command)
    );
}

/// A row per subject and place on the curve, a column per metric.
fn figures(page: &mut String, results: &Results, claim: &ClaimResult) {
    let figures = &claim.figures;
    if figures.is_empty() {
        return;
    }
    let columns = distinct(figures.iter().map(|figure| (&*figure.metric, &*figure.unit)));
    let rows = distinct(figures.iter().map(|figure| (&*figure.subject, figure.x)));
    let is_curve = rows.iter().any(|(_, x)| x.is_some());
    let mut sheet = Sheet::of([""]);
    if is_curve {
        sheet = sheet.number(claim.x_name(), "");
    }
    for (metric, unit) in &columns {
        sheet = sheet.number(&results.title(metric), shown(unit));
    }
    for (subject, x) in rows {
        let of = |(metric, unit): &(&str, &str)| {
            let same = |figure: &&Figure| {
                figure.subject == subject && figure.x == x && figure.metric == *metric && figure.unit == *unit
            };
            figures.iter().find(same).map_or_else(Cell::none, |figure| value(figure).into())
        };
        let place = is_curve.then(|| Cell::from(x.map_or_else(String::new, number)));
        sheet.row([Cell::from(subject)].into_iter().chain(place).chain(columns.iter().map(of)));
    }
    let _ = writeln!(
        page,
        "<details>\n<summary>All {} figures</summary>\n{}</details>",
        figures.len(),
        sheet.html("")
    );
}

/// The unit in the head of a column; a time has its unit in each cell.
fn shown(unit: &str) -> &str {
    if TIMES.contains(&unit) { "" } else { unit }
}

fn value(figure: &Figure) -> String {
    if TIMES.contains(&&*figure.unit) { quantity(figure.value, &figure.unit) } else { number(figure.value) }
}

const TIMES: &[&str] = &["ns", "us", "ms", "s"];
