//! Our own targets, and what was measured of them.

use super::sheet::{Cell, Sheet};
use super::tone::Tone;
use crate::data::{Results, TargetResult};

/// How targets are judged.
pub(super) const RULE: &str = "A target is missed where the whole interval of the ratio misses it: of a quick run by more than a quarter, \
                               as its few rounds may all be off. Otherwise the run was too short to tell, or too small.";

/// What was measured of the targets of a backend, and how many targets were not measured; nothing if none was. A table with
/// intervals is too wide for the console.
pub(super) fn sheet(results: &Results, backend: &str, has_intervals: bool) -> Option<(Sheet, String)> {
    let (measured, others): (Vec<&TargetResult>, Vec<&TargetResult>) =
        results.targets_of(backend).partition(|result| result.met.is_some());
    if measured.is_empty() {
        return None;
    }
    let mut sheet = Sheet::of(["target", "scenario"]).number("bound", "").number("seen", "").words("met");
    let all = measured.len() + others.len();
    for result in measured {
        let tone = if result.met == Some(true) { Tone::Held } else { Tone::Unchecked };
        let met = Cell::verdict(result.met(), tone);
        let seen = if has_intervals { result.seen_in_interval() } else { result.seen() };
        let words = [result.about(), result.scenario.clone(), result.target(), seen];
        sheet.row(words.map(Cell::from).into_iter().chain([met]));
    }
    let note = match others.len() {
        0 => String::new(),
        missing => format!("{missing} of {all} were not measured in this run"),
    };
    Some((sheet, note))
}
