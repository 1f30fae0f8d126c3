//! The results on the console.

use std::fmt::Write as _;

use super::sheet::Look;
use super::{claims, overview, scenario, targets as our_targets};
use crate::data::Results;

/// How many of the targets that were missed are shown.
const MOST_MISSED: usize = 10;

/// All results on one screen: a row per backend, a line per claim, the targets that were missed, the verdict and the machine.
pub(crate) fn render(results: &Results, look: Look) -> String {
    let mut text = String::new();
    if let Some(backends) = overview::sheet(results) {
        let _ = writeln!(text, "{}\n", backends.text(look));
    }
    if let Some(claims) = claims::sheet(results, false) {
        let _ = writeln!(text, "{}\n", claims.text(look));
    }
    let missed: Vec<_> = results.targets.iter().filter(|target| target.is_missed()).collect();
    for target in missed.iter().take(MOST_MISSED) {
        let _ = writeln!(
            text,
            "missed: {}: {}: {}, not {}",
            target.by,
            target.about(),
            target.seen(),
            target.target()
        );
    }
    if missed.len() > MOST_MISSED {
        let _ = writeln!(text, "missed: {} more targets, which the report has", missed.len() - MOST_MISSED);
    }
    if !results.faults.is_empty() {
        let surprises = results.faults.iter().filter(|fault| fault.verdict.is_failure()).count();
        let _ = writeln!(text, "fault table: {} cells, {surprises} surprises", results.faults.len());
    }
    let (machine, servers) = (results.meta.machine(), results.meta.servers());
    let _ = writeln!(text, "Mutual exclusion: {}\n{machine}\n{servers}", results.verdict());
    text
}

/// All our targets, with what was measured.
pub(crate) fn targets(results: &Results, look: Look) -> String {
    let mut text = String::new();
    for backend in results.backends() {
        if let Some((sheet, note)) = our_targets::sheet(results, backend, false) {
            let _ = writeln!(text, "targets of {backend}\n{}\n{note}\n", sheet.text(look));
        }
    }
    text
}

/// The tables of the scenarios that have rows from this one on.
pub(crate) fn measured(results: &Results, from: usize, look: Look) -> String {
    let mut text = String::new();
    for scenario in results.scenarios_from(from) {
        let about = scenario.about();
        let colon = if about.is_empty() { "" } else { ": " };
        let sheet = scenario::sheet(results, &scenario);
        let _ = writeln!(text, "{}{colon}{about}\n{}\n", scenario.name, sheet.text(look));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Row;
    use crate::data::results::sample;

    #[test]
    fn one_screen_has_each_backend_each_claim_and_what_was_missed() {
        let mut results = sample();
        results.targets[0].met = Some(false);
        results.targets[0].too_short = false;
        let text = render(&results, Look::Plain);
        let redis = text.lines().find(|line| line.starts_with("| redis ")).expect("a row");
        assert!(redis.contains("88.2") && redis.contains("1.13x"), "{redis}");
        for claim in &results.claims {
            assert!(text.contains(&claim.claim), "{text}");
        }
        assert!(text.contains("missed: redis: p50 against the bare commands: "), "{text}");
        for text in [text, measured(&results, 0, Look::Plain), targets(&results, Look::Plain)] {
            let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 120).collect();
            assert_eq!(wide, Vec::<&str>::new());
            assert!(!text.contains('\u{1b}'), "{text}");
        }
        assert!(render(&results, Look::Plain).lines().count() <= 60);
        assert!(render(&results, Look::Terminal).contains("\u{1b}["));
    }

    #[test]
    fn an_overlap_cannot_be_missed() {
        let mut results = sample();
        results.push(Row::overlaps("crash", "zk", 3));
        assert!(measured(&results, 0, Look::Plain).contains("| BROKEN (3) "));
        assert!(render(&results, Look::Plain).contains("\nMutual exclusion: BROKEN (3)\n"));
    }

    #[test]
    fn a_table_that_is_too_wide_is_split_and_an_unknown_metric_is_shown() {
        let mut results = sample();
        for metric in ["one_more", "and_another", "and_the_last_one_of_all"] {
            results.push(Row::new("contended", "redis", metric, "us", 1e7).with_floor(1e6));
        }
        let text = measured(&results, 0, Look::Plain);
        assert!(text.contains("and the last one of all"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    }
}
