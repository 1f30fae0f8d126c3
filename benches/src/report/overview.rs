//! All backends side by side, in one table.

use super::sheet::{Cell, Sheet};
use crate::data::results::numbers::number;
use crate::data::{ExclusionVerdict, Peer, Results};

/// A row per backend: one task alone, a hand-over, many tasks, each with its ratio to the floor; and to the best peer.
pub(super) fn sheet(results: &Results) -> Option<Sheet> {
    let scenarios = results.scenarios();
    let mut sheet = Sheet::of(["backend"])
        .number("alone p50", "us")
        .part("floor")
        .number("p99", "us")
        .part("floor")
        .number("hand-off p50", "us")
        .part("floor")
        .number(TASKS, "pairs/s")
        .part("floor")
        .part("best peer")
        .words("exclusion");
    let mut has_rows = false;
    for backend in results.backends().into_iter().filter(|backend| is_ours(backend)) {
        let bare = results.row("contended", backend, "handoff_p50_bare");
        let tasks = format!("{backend} {TASKS}");
        let of_peers = results.rows.iter().filter(|row| row.backend == tasks && of_peer(&row.metric));
        let best_peer = of_peers.filter_map(|row| row.ratio).min_by(f64::total_cmp);
        let figures = [
            results.row("uncontended", backend, "p50"),
            results.row("uncontended", backend, "p99"),
            bare.or_else(|| results.row("contended", backend, "handoff_p50")),
            results.row("throughput", &tasks, "pairs_per_s"),
        ];
        // Another recipe, or a migration: its numbers are with those of its scenario.
        if figures.iter().all(Option::is_none) {
            continue;
        }
        has_rows = true;
        let mut cells = vec![Cell::from(backend)];
        for figure in figures {
            cells.push(figure.map_or_else(Cell::none, |row| number(row.value).into()));
            cells.push(times(figure.and_then(|row| row.ratio)));
        }
        cells.push(times(best_peer));
        let verdicts = scenarios
            .iter()
            .filter(|scenario| scenario.has_rivals() && scenario.backends().contains(&backend));
        let verdict = ExclusionVerdict::of_all(verdicts.map(|scenario| scenario.verdict(backend)));
        let word = if verdict == ExclusionVerdict::Held { "held".into() } else { verdict.to_string() };
        cells.push(Cell::verdict(word, verdict));
        sheet.row(cells);
    }
    has_rows.then_some(sheet)
}

/// Not a peer, nor a number of tasks, nor a rung of a migration.
fn is_ours(backend: &str) -> bool {
    Peer::named(backend).is_none() && !backend.contains(' ')
}

/// Whether the floor of this metric is what a peer does.
fn of_peer(metric: &str) -> bool {
    metric.strip_prefix("pairs_per_s_").is_some_and(|floor| floor != "minting")
}

fn times(ratio: Option<f64>) -> Cell {
    ratio.map_or_else(Cell::none, |ratio| format!("{ratio:.2}x").into())
}

/// The throughput that is shown.
const TASKS: &str = "256 tasks";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Meta, Mode, Row};

    #[test]
    fn the_verdict_is_that_of_the_scenarios_that_a_backend_has() {
        let mut results = Results::new(Meta::of_this_run(Mode::Full));
        for backend in ["redis", "zk"] {
            results.rows.push(Row::new("uncontended", backend, "p50", "us", 7.0));
            results.rows.push(Row::overlaps("uncontended", backend, 0));
        }
        for backend in ["zk", "zk-ephemeral"] {
            results.rows.push(Row::overlaps("herd", backend, 0));
        }
        let text = sheet(&results).unwrap().markdown();
        assert_eq!(text.matches("held").count(), 2, "{text}");
        assert!(!text.contains("zk-ephemeral"), "{text}");
    }
}
