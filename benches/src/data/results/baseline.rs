//! What changed against earlier runs, beyond the noise.
//!
//! The noise is what repeats of one run differ by. The range of five repeats covers the median with a confidence of 94 %. A
//! number changed when the two ranges do not meet and are further apart than the wider one is wide: so an outlier makes the
//! comparison careful, not wrong. With fewer repeats nothing is called a change.

use serde::{Deserialize, Serialize};

use super::row::is_overlaps;
use super::{Results, Row};
use crate::data::median::median;

/// What changed against earlier runs.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct BaselineResult {
    pub(crate) files: Vec<String>,
    pub(crate) compared: usize,
    pub(crate) too_few: usize,
    pub(crate) changes: Vec<Change>,
    pub(crate) notes: Vec<String>,
}

/// A number that changed beyond the noise.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Change {
    pub(crate) scenario: String,
    pub(crate) backend: String,
    pub(crate) metric: String,
    pub(crate) unit: String,
    pub(crate) old: Spread,
    pub(crate) new: Spread,
}

/// Repeats of one number.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    pub(crate) repeats: usize,
}

impl BaselineResult {
    /// Compares the rows of a run with those of earlier ones, whose repeats are taken together.
    pub(crate) fn of(new: &Results, old: &[(String, Results)]) -> Self {
        let mut result = Self {
            files: old.iter().map(|(file, _)| file.clone()).collect(),
            compared: 0,
            too_few: 0,
            changes: Vec::new(),
            notes: notes(new, old),
        };
        for row in new.rows.iter().filter(|row| !is_overlaps(row)) {
            let same = |other: &&Row| {
                (&other.scenario, &other.backend, &other.metric, &other.unit)
                    == (&row.scenario, &row.backend, &row.metric, &row.unit)
            };
            let earlier: Vec<f64> = old
                .iter()
                .filter(|(_, run)| run.meta.mode == new.meta.mode)
                .filter_map(|(_, run)| run.rows.iter().rev().find(same))
                .flat_map(Row::repeats)
                .collect();
            let (Some(old), Some(new)) = (Spread::of(earlier), Spread::of(row.repeats())) else { continue };
            if old.repeats.min(new.repeats) < ENOUGH {
                result.too_few += 1;
                continue;
            }
            result.compared += 1;
            if new.differs_from(old) {
                let [scenario, backend] = [&row.scenario, &row.backend].map(Clone::clone);
                let [metric, unit] = [&row.metric, &row.unit].map(Clone::clone);
                result.changes.push(Change { scenario, backend, metric, unit, old, new });
            }
        }
        result
    }

    pub(crate) fn summary(&self) -> String {
        let changed = match self.changes.len() {
            _ if self.compared == 0 => "nothing could be compared".to_owned(),
            0 => "none".to_owned(),
            changes => format!("{changes} of {}", self.compared),
        };
        let few = match self.too_few {
            0 => String::new(),
            few => format!(
                "; {few} numbers have fewer than {ENOUGH} repeats (see --repeat) and were not compared"
            ),
        };
        format!("Changes beyond the noise: {changed}{few}.")
    }
}

impl Change {
    pub(crate) fn ratio(&self) -> f64 {
        self.new.median / self.old.median
    }
}

impl Spread {
    /// The spread of some repeats; `None` without any.
    fn of(mut repeats: Vec<f64>) -> Option<Self> {
        repeats.retain(|value| value.is_finite());
        let (least, most) =
            (repeats.iter().copied().reduce(f64::min)?, repeats.iter().copied().reduce(f64::max)?);
        let count = repeats.len();
        Some(Self { median: median(repeats), least, most, repeats: count })
    }

    fn differs_from(self, other: Self) -> bool {
        let gap = (self.least - other.most).max(other.least - self.most);
        gap > (self.most - self.least).max(other.most - other.least)
    }
}

fn notes(new: &Results, old: &[(String, Results)]) -> Vec<String> {
    let mut notes = Vec::new();
    for (file, run) in old {
        if run.meta.mode != new.meta.mode {
            notes.push(format!(
                "{file} is a {} run and this is a {} run: not compared",
                run.meta.mode, new.meta.mode
            ));
        } else if (&run.meta.cpu, run.meta.cores) != (&new.meta.cpu, new.meta.cores) {
            notes.push(format!(
                "{file} was measured on another machine: {}, {} cores",
                run.meta.cpu, run.meta.cores
            ));
        }
    }
    notes
}

/// The least number of repeats on each side.
const ENOUGH: usize = 5;

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn run(values: &[f64]) -> Results {
        let mut results = Results::new(sample().meta);
        results.rows =
            values.iter().map(|value| Row::new("uncontended", "zk", "p50", "us", *value)).collect();
        let starts: Vec<usize> = (0..values.len()).collect();
        results.join_repeats(&starts);
        results
    }

    fn compare(old: &[&[f64]], new: &[f64]) -> BaselineResult {
        let old: Vec<_> = old.iter().map(|values| ("old.json".to_owned(), run(values))).collect();
        BaselineResult::of(&run(new), &old)
    }

    #[test]
    fn noise_is_no_change() {
        let old: &[f64] = &[100.0, 104.0, 98.0, 101.0, 99.0];
        assert!(compare(&[old], old).summary().starts_with("Changes beyond the noise: none."));
        // The ranges meet.
        assert_eq!(compare(&[old], &[103.0, 109.0, 108.0, 107.0, 106.0]).changes, []);
        // They do not meet, but are closer than they are wide.
        assert_eq!(compare(&[old], &[106.0, 109.0, 108.0, 107.0, 110.0]).changes, []);
    }

    #[test]
    fn a_change_has_both_medians() {
        let result = compare(&[&[100.0, 104.0, 98.0, 101.0, 99.0]], &[120.0, 121.0, 122.0, 123.0, 124.0]);
        assert_eq!(result.changes.len(), 1);
        let change = &result.changes[0];
        assert_eq!((change.old.median, change.new.median, change.new.repeats), (100.0, 122.0, 5));
        assert!(result.summary().contains("1 of 1"), "{}", result.summary());
    }

    #[test]
    fn too_few_repeats_are_not_compared() {
        let result = compare(&[&[1.0]], &[1000.0]);
        assert_eq!((result.compared, result.too_few, result.changes.len()), (0, 1, 0));
        assert!(result.summary().contains("nothing could be compared"), "{}", result.summary());
        // The repeats of several files count together.
        let one_each: [&[f64]; 5] = [&[1.0], &[1.1], &[1.2], &[1.0], &[1.1]];
        assert_eq!(compare(&one_each, &[9.0; 5]).changes.len(), 1);
    }

    #[test]
    fn runs_of_another_mode_are_left_out() {
        let mut old = run(&[1.0; 5]);
        old.meta.mode = super::super::Mode::Full;
        let result = BaselineResult::of(&run(&[9.0; 5]), &[("old.json".into(), old)]);
        assert_eq!((result.compared, result.changes.len(), result.notes.len()), (0, 0, 1));
    }
}
