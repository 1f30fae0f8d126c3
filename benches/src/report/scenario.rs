//! The section of a scenario: charts and a table of all its rows.

use std::fmt::Write as _;

use super::chart::{Bar, Chart, Group};
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
    let backends = scenario.backends().len();
    let begins = format!("{} on ", scenario.name);
    for failure in results.failures.iter().filter(|failure| failure.part.starts_with(&begins)) {
        let _ = writeln!(page, "<p class=\"broken box\">Failed: {}</p>", escape(&failure.to_string()));
    }
    // Many subjects make no chart; those of throughput are drawn as curves, in the claim.
    let families = if backends <= MOST_GROUPS { Family::of(scenario) } else { Vec::new() };
    let (large, small): (Vec<&Family<'_>>, Vec<&Family<'_>>) =
        families.iter().partition(|family| family.metrics.len() > 1 || families.len() == 1);
    for family in large {
        family.render(page, results, scenario, LARGE);
    }
    if !small.is_empty() {
        page.push_str("<div class=\"charts\">\n");
        for family in small {
            page.push_str("<div>\n");
            family.render(page, results, scenario, SMALL);
            page.push_str("</div>\n");
        }
        page.push_str("</div>\n");
    }
    page.push_str(&sheet(results, scenario).html(""));
    page.push_str("</section>\n");
}

struct Family<'a> {
    name: &'a str,
    metrics: Vec<&'a str>,
}

impl<'a> Family<'a> {
    fn of(scenario: &Scenario<'a>) -> Vec<Self> {
        let mut families: Vec<Self> = Vec::new();
        for metric in scenario.metrics() {
            let name = quantile(metric).map_or(metric, |(name, _)| name);
            let same = |family: &&mut Self| {
                family.name == name && scenario.unit(family.metrics[0]) == scenario.unit(metric)
            };
            match families.iter_mut().find(same) {
                Some(family) => family.metrics.push(metric),
                None => families.push(Self { name, metrics: vec![metric] }),
            }
        }
        families
    }

    fn render(&self, page: &mut String, results: &Results, scenario: &Scenario<'_>, width: f64) {
        let first = scenario.title(self.metrics[0]);
        let name = match self.metrics[..] {
            [_] => first,
            _ if self.name.is_empty() => "latency".into(),
            _ => first.rsplit_once(' ').map_or(first.clone(), |(name, _)| name.to_owned()),
        };
        let chart = self.chart(results, scenario, &name, width);
        let mut notes = Vec::new();
        if chart.is_logarithmic() {
            notes.push("logarithmic scale".to_owned());
        }
        if chart.is_marked() {
            notes.push(format!("the upright mark is the {}", scenario.floor_meaning(self.metrics[0])));
        }
        let meaning =
            self.metrics.iter().map(|metric| scenario.meaning(metric)).find(|text| !text.is_empty());
        notes.extend(meaning.map(str::to_owned));
        let notes = notes.join("; ");
        let notes = if notes.is_empty() {
            notes
        } else {
            format!(" <span class=\"soft\">({})</span>", escape(&notes))
        };
        let class = if width > SMALL { "wide large" } else { "wide" };
        let _ = writeln!(
            page,
            "<h3>{}{notes}</h3>\n<div class=\"{class}\">\n{}</div>",
            capitalised(&name),
            chart.render()
        );
    }

    fn chart<'r>(&self, results: &Results, scenario: &Scenario<'r>, name: &str, width: f64) -> Chart<'r> {
        let group = |backend| {
            let bars = self.metrics.iter().filter_map(|metric| {
                let row = scenario.row(backend, metric)?;
                let name =
                    if self.metrics.len() == 1 { "" } else { quantile(metric).map_or(*metric, |(_, of)| of) };
                let note = row.ratio.map(|ratio| format!("{ratio:.2}× {}", scenario.floor_name(metric)));
                Some(Bar {
                    name: name.to_owned(),
                    value: row.value,
                    mark: row.floor,
                    note: note.unwrap_or_default(),
                })
            });
            Group { name: backend, colour: colour(results, backend), bars: bars.collect() }
        };
        let groups = scenario.backends().into_iter().map(group).filter(|group| !group.bars.is_empty());
        Chart {
            label: format!("{}: {name} by backend", scenario.name),
            unit: scenario.unit(self.metrics[0]),
            mark_name: scenario.floor_name(self.metrics[0]),
            end: (self.name == "jain").then_some(1.0),
            width,
            groups: groups.collect(),
        }
    }
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

/// Splits `handoff_p50` into `handoff` and its quantile `p50`.
fn quantile(metric: &str) -> Option<(&str, &str)> {
    let (name, of) = metric.rsplit_once('_').unwrap_or(("", metric));
    let digits = of.strip_prefix('p')?;
    (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some((name, of))
}

/// The largest number of backends, peers and rungs in a chart.
const MOST_GROUPS: usize = 20;
/// The width of a chart over the whole page.
pub(super) const LARGE: f64 = 960.0;
/// The width of one of two charts side by side.
pub(super) const SMALL: f64 = 450.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_recognised() {
        assert_eq!(quantile("p50"), Some(("", "p50")));
        assert_eq!(quantile("handoff_p99"), Some(("handoff", "p99")));
        assert_eq!([quantile("grants_per_s"), quantile("p"), quantile("ops"), quantile("pool")], [None; 4]);
    }
}
