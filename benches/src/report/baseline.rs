//! What changed against earlier runs.

use std::fmt::Write as _;

use super::html::escape;
use crate::data::results::labels::{quantity, title};
use crate::data::results::{Results, Spread};

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
    if !baseline.changes.is_empty() {
        page.push_str(concat!(
            "<div class=\"wide\">\n<table>\n<thead>\n<tr><th>metric</th><th>backend</th><th>before</th><th>now</th>",
            "<th>now / before</th></tr>\n</thead>\n<tbody>\n",
        ));
        for change in &baseline.changes {
            let _ = writeln!(
                page,
                "<tr><td>{}: {}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.2}×</td></tr>",
                escape(&change.scenario),
                escape(&title(&change.metric)),
                escape(&change.backend),
                spread(&change.old, &change.unit),
                spread(&change.new, &change.unit),
                change.ratio()
            );
        }
        page.push_str("</tbody>\n</table>\n</div>\n");
    }
    page.push_str("</section>\n");
}

fn spread(spread: &Spread, unit: &str) -> String {
    let [median, least, most] = [spread.median, spread.least, spread.most].map(|value| quantity(value, unit));
    format!("{} <small>{} to {}</small>", escape(&median), escape(&least), escape(&most))
}

const RULE: &str = "A number changed when the ranges of at least five repeats on each side do not meet, and are further apart \
                    than the wider of them is wide.";
