//! The section of a scenario: a place for its pictures, and a table of all its rows.

use std::fmt::Write as _;

use super::colour::colour;
use super::html::{capitalised, escape};
use super::sheet::{Cell, Sheet};
use crate::data::results::numbers::number;
use crate::data::{Results, Row, Scenario};

pub(super) fn section(page: &mut String, results: &Results, scenario: &Scenario<'_>) {
    let _ = writeln!(page, "<section id=\"scenario-{0}\">\n<h2>{0}</h2>", escape(scenario.name));
    if !scenario.about().is_empty() {
        let _ = writeln!(page, "<p class=\"soft\">{}.</p>", capitalised(scenario.about()));
    }
    let prefix = format!("{}.", scenario.name);
    let settings = results.meta.settings.iter().filter_map(|(name, value)| {
        Some(format!("{} {}", name.strip_prefix(&prefix)?.replace('_', " "), value))
    });
    let settings = settings.collect::<Vec<_>>().join("; ");
    if !settings.is_empty() {
        let _ = writeln!(
            page,
            "<details><summary>Settings</summary>\n<p class=\"soft\">In this run: {}.</p>\n</details>",
            escape(&settings)
        );
    }
    let begins = format!("{} on ", scenario.name);
    for failure in results.failures.iter().filter(|failure| failure.part.starts_with(&begins)) {
        let _ = writeln!(page, "<p class=\"broken box\">Failed: {}</p>", escape(&failure.to_string()));
    }
    let _ = writeln!(page, "<div class=\"charts\" data-scenario=\"{}\"></div>", escape(scenario.name));
    let table = sheet(results, scenario).html("");
    let _ = writeln!(page, "<details>\n<summary>All numbers</summary>\n{table}</details>\n</section>");
}

type Part = fn(&Row) -> Option<String>;

/// All rows of a scenario: a row per backend; the metrics with floor and ratio where any backend has them.
pub(super) fn sheet(results: &Results, scenario: &Scenario<'_>) -> Sheet {
    let backends = scenario.backends();
    let mut sheet = Sheet::of(["backend"]);
    let mut columns: Vec<(&str, Part)> = Vec::new();
    for metric in scenario.metrics() {
        sheet = sheet.number(&scenario.title(metric), scenario.unit(metric));
        columns.push((metric, |row| Some(number(row.value))));
        if backends.iter().filter_map(|backend| scenario.row(backend, metric)).any(|row| row.floor.is_some())
        {
            sheet = sheet.part(scenario.floor_name(metric)).part("ratio");
            columns.push((metric, |row| row.floor.map(number)));
            columns.push((metric, ratio));
        }
    }
    if scenario.has_rivals() {
        sheet = sheet.words("mutual exclusion");
    }
    for backend in backends {
        let name = Cell::from(backend).with_dot(colour(results, backend));
        let numbers = columns.iter().map(|(metric, part)| {
            scenario.row(backend, metric).and_then(part).map_or_else(Cell::none, Cell::from)
        });
        let verdict = scenario.verdict(backend);
        let verdict = scenario.has_rivals().then(|| Cell::verdict(verdict, verdict));
        sheet.row([name].into_iter().chain(numbers).chain(verdict));
    }
    sheet
}

/// The ratio, and the confidence interval beside it.
fn ratio(row: &Row) -> Option<String> {
    let ratio = format!("{:.2}x", row.ratio?);
    Some(match row.interval {
        Some([least, most]) => format!("{ratio} ({least:.2} to {most:.2})"),
        None => ratio,
    })
}
