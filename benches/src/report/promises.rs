//! Our own targets, and what was measured of them.

use std::fmt::Write as _;

use super::html::{capitalised, escape};
use crate::data::results::{PromiseResult, Results};

/// The section of a backend.
pub(super) fn promises(page: &mut String, results: &Results, backend: &str) {
    let (measured, others): (Vec<&PromiseResult>, Vec<&PromiseResult>) =
        results.promises_of(backend).partition(|result| result.met.is_some());
    if measured.is_empty() {
        return;
    }
    let _ = writeln!(page, "<h3>What {} promises</h3>", escape(backend));
    let all = measured.len() + others.len();
    page.push_str(concat!(
        "<div class=\"wide\">\n<table>\n<thead>\n<tr>",
        "<th>promise</th><th>scenario</th><th>target</th><th>seen</th><th>met</th></tr>\n",
        "</thead>\n<tbody>\n",
    ));
    for result in measured {
        let _ = write!(page, "<tr><td>{}</td>", capitalised(&result.about()));
        for cell in [&result.scenario, &result.target(), &result.seen()] {
            let _ = write!(page, "<td>{}</td>", escape(cell));
        }
        let class = if result.met == Some(true) { "held" } else { "unchecked" };
        let _ = writeln!(
            page,
            "<td><span class=\"pill {class}\">{}</span></td></tr>",
            escape(&result.met().to_lowercase())
        );
    }
    page.push_str("</tbody>\n</table>\n</div>\n");
    if !others.is_empty() {
        let _ =
            writeln!(page, "<p class=\"soft\">Not measured in this run: {} of {}.</p>", others.len(), all);
    }
}
