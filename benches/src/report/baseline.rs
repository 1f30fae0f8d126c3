//! What changed against earlier runs.

use std::fmt::Write as _;

use super::html::escape;
use super::sheet::{Cell, Sheet};
use crate::data::results::labels::{quantity, title};
use crate::data::{BaselineResult, Results, Spread};

/// The section; nothing without earlier runs.
pub(super) fn section(page: &mut String, results: &Results) {
    let Some(baseline) = &results.baseline else { return };
    let _ = write!(
        page,
        "<section id=\"baseline\">\n<h2>What changed</h2>\n<p>{}</p>\n<p class=\"soft\">Against {}. {RULE}</p>\n",
        escape(&baseline.summary()),
        escape(&baseline.files.join(", "))
    );
    for note in &baseline.notes {
        let _ = writeln!(page, "<p class=\"soft\">{}.</p>", escape(note));
    }
    if let Some(changes) = sheet(baseline) {
        page.push_str(&changes.html(""));
    }
    page.push_str("</section>\n");
}

pub(super) fn sheet(baseline: &BaselineResult) -> Option<Sheet> {
    let mut sheet = Sheet::of(["metric", "backend", "before", "now", "now / before"]);
    for change in &baseline.changes {
        let metric = format!("{}: {}", change.scenario, title(&change.metric));
        let [old, new] = [&change.old, &change.new].map(|one| spread(one, &change.unit));
        let ratio = format!("{:.2}x", change.ratio());
        sheet.row([metric.into(), Cell::from(&*change.backend), old, new, ratio.into()]);
    }
    (!baseline.changes.is_empty()).then_some(sheet)
}

fn spread(spread: &Spread, unit: &str) -> Cell {
    let [median, least, most] = [spread.median, spread.least, spread.most].map(|value| quantity(value, unit));
    Cell::from(median).and_small(format!("{least} to {most}"))
}

const RULE: &str = "A number changed when the ranges of at least five repeats on each side do not meet, and are further apart \
                    than the wider of them is wide.";
