//! The claims: one line each with its verdict, and a section for each.

use std::fmt::Write as _;

use super::html::{capitalised, escape};
use super::picture::pictures;
use crate::data::results::labels::{number, quantity, title};
use crate::data::results::{ClaimResult, Figure, Results, Verdict};

/// All claims with their verdicts, linked to their sections.
pub(super) fn list(page: &mut String, results: &Results) {
    if !results.has_claims() {
        return;
    }
    page.push_str("<section id=\"claims\">\n<h2>What people say, and what this run measured</h2>\n");
    page.push_str("<div class=\"wide\">\n<table class=\"words\">\n<tbody>\n");
    for claim in &results.claims {
        let _ = writeln!(
            page,
            "<tr><td>{id}</td><td><a href=\"#claim-{id}\">{}</a></td><td>{}{}</td></tr>",
            escape(&claim.claim),
            pill(&claim.verdict),
            if claim.broken_promise.is_none() { "" } else { BROKEN_PROMISE },
            id = claim.id,
        );
    }
    page.push_str("</tbody>\n</table>\n</div>\n</section>\n");
}

/// The sections of all claims.
pub(super) fn sections(page: &mut String, results: &Results) {
    for claim in results.claims.iter().filter(|_| results.has_claims()) {
        section(page, results, claim);
    }
}

fn section(page: &mut String, results: &Results, claim: &ClaimResult) {
    let _ = writeln!(
        page,
        "<section id=\"claim-{id}\">\n<h2>{id}. {}</h2>\n<p>{}{} {}.</p>",
        escape(&claim.claim),
        pill(&claim.verdict),
        if claim.broken_promise.is_none() { "" } else { BROKEN_PROMISE },
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
    pictures(page, results, claim);
    let _ = writeln!(
        page,
        "<details>\n<summary>The rule, and how it was measured</summary>\n\
         <p><b>Rule.</b> {}</p>\n<p><b>How.</b> {}</p>\n</details>",
        escape(&claim.rule),
        escape(&claim.how)
    );
    figures(page, claim);
    let _ = writeln!(
        page,
        "<p class=\"soft\">To measure it again: <code>{}</code></p>\n</section>",
        escape(&claim.command)
    );
}

/// A row per subject and place on the curve, a column per metric.
fn figures(page: &mut String, claim: &ClaimResult) {
    let figures = &claim.figures;
    if figures.is_empty() {
        return;
    }
    let columns = distinct(figures.iter().map(|figure| (&*figure.metric, &*figure.unit)));
    let rows = distinct(figures.iter().map(|figure| (&*figure.subject, figure.x)));
    let curve = rows.iter().any(|(_, x)| x.is_some());
    let x_name = claim.x_name();
    let _ = write!(
        page,
        "<details>\n<summary>All {} figures</summary>\n<div class=\"wide\">\n<table>\n<thead>\n<tr><th></th>",
        figures.len()
    );
    if curve {
        let _ = write!(page, "<th>{}</th>", escape(x_name));
    }
    for (metric, unit) in &columns {
        let _ = write!(page, "<th>{}<small>{}</small></th>", escape(&title(metric)), escape(&shown(unit)));
    }
    page.push_str("</tr>\n</thead>\n<tbody>\n");
    for (subject, x) in rows {
        let _ = write!(page, "<tr><td>{}</td>", escape(subject));
        if curve {
            let _ = write!(page, "<td>{}</td>", x.map_or_else(String::new, number));
        }
        for (metric, unit) in &columns {
            let same = |figure: &&Figure| {
                figure.subject == subject && figure.x == x && figure.metric == *metric && figure.unit == *unit
            };
            let cell = figures.iter().find(same).map_or_else(|| "–".into(), value);
            let _ = write!(page, "<td>{}</td>", escape(&cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table>\n</div>\n</details>\n");
}

fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for one in all {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

/// The unit in the head of a column; a time has its unit in each cell.
fn shown(unit: &str) -> String {
    if TIMES.contains(&unit) { String::new() } else { unit.to_owned() }
}

fn value(figure: &Figure) -> String {
    if TIMES.contains(&&*figure.unit) { quantity(figure.value, &figure.unit) } else { number(figure.value) }
}

fn pill(verdict: &Verdict) -> String {
    format!("<span class=\"pill {}\">{}</span>", class(verdict), escape(&verdict.to_string()))
}

const fn class(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "held",
        Verdict::DoesNotHold => "broken",
        Verdict::DependsOn(_) => "unchecked",
        Verdict::NotJudged => "none",
    }
}

const TIMES: &[&str] = &["ns", "us", "ms", "s"];
const BROKEN_PROMISE: &str = " <span class=\"pill broken\">polylock breaks its promise</span>";
