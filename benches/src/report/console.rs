//! The results on the console.

use std::fmt::Write as _;

use super::sheet::{Cell, Look, Sheet};
use super::{baseline, claims, promises, scenario};
use crate::data::results::labels::number;
use crate::data::{ExclusionVerdict, Peer, Results, Scenario};

/// How many of the targets that were missed are shown.
const MOST_MISSED: usize = 10;
/// The throughput that is shown.
const TASKS: &str = "256 tasks";

/// All results on one screen: a row per backend, a line per claim, the targets that were missed, the verdict and the machine.
pub(crate) fn render(results: &Results, look: Look) -> String {
    let mut text = String::new();
    if let Some(backends) = overview(results) {
        let _ = writeln!(text, "{}\n", backends.text(look));
    }
    if let Some(claims) = claims::sheet(results, false) {
        let _ = writeln!(text, "{}\n", claims.text(look));
    }
    if let Some(baseline) = &results.baseline {
        let changes = baseline::sheet(baseline).map_or_else(String::new, |sheet| sheet.text(look) + "\n");
        let _ = writeln!(text, "{}\n{changes}", baseline.summary());
    }
    let missed: Vec<_> = results.promises.iter().filter(|promise| promise.is_missed()).collect();
    for promise in missed.iter().take(MOST_MISSED) {
        let _ = writeln!(
            text,
            "missed: {}: {}: {}, not {}",
            promise.by,
            promise.about(),
            promise.seen(),
            promise.target()
        );
    }
    if missed.len() > MOST_MISSED {
        let _ = writeln!(text, "missed: {} more targets, which the report has", missed.len() - MOST_MISSED);
    }
    if !results.faults.is_empty() {
        let surprises = results.faults.iter().filter(|fault| fault.verdict.is_failure()).count();
        let _ = writeln!(text, "fault table: {} cells, {surprises} surprises", results.faults.len());
    }
    let meta = &results.meta;
    let _ = writeln!(text, "Mutual exclusion: {}", results.verdict());
    let _ = write!(
        text,
        "polylock {}, {} run of {} s, {} x {}, {}",
        meta.version,
        meta.mode,
        number(meta.duration_s.round()),
        meta.cores,
        meta.cpu,
        meta.kernel
    );
    let servers = [("Redis", &meta.redis), ("ZooKeeper", &meta.zookeeper), ("PostgreSQL", &meta.postgres)];
    for (server, version) in servers {
        if let Some(version) = version {
            let _ = write!(text, ", {server} {version}");
        }
    }
    text.push('\n');
    text
}

/// A row per backend: one task alone, a hand-over, many tasks, each with its ratio to the floor; and to the best peer.
fn overview(results: &Results) -> Option<Sheet> {
    let scenarios = results.scenarios();
    let row = |scenario: &str, backend: &str, metric: &str| {
        scenarios.iter().find(|found| found.name == scenario)?.row(backend, metric)
    };
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
    let mut is_empty = true;
    for backend in results.backends().into_iter().filter(|backend| is_ours(backend)) {
        let bare = row("contended", backend, "handoff_p50_bare");
        let tasks = format!("{backend} {TASKS}");
        let peers =
            scenarios.iter().find(|found| found.name == "throughput").map_or_else(Vec::new, |found| {
                let of_peers = found.metrics().into_iter().filter(|metric| of_peer(metric));
                of_peers.filter_map(|metric| found.row(&tasks, metric)?.ratio).collect()
            });
        let mut cells = vec![Cell::from(backend)];
        for figure in [
            row("uncontended", backend, "p50"),
            row("uncontended", backend, "p99"),
            bare.or_else(|| row("contended", backend, "handoff_p50")),
            row("throughput", &tasks, "pairs_per_s"),
        ] {
            is_empty &= figure.is_none();
            cells.push(figure.map_or_else(Cell::none, |row| number(row.value).into()));
            cells.push(times(figure.and_then(|row| row.ratio)));
        }
        cells.push(times(peers.into_iter().min_by(f64::total_cmp)));
        let verdicts = scenarios.iter().filter(|scenario| scenario.has_rivals());
        let verdict = ExclusionVerdict::of_all(verdicts.map(|scenario| scenario.verdict(backend)));
        let word = if verdict == ExclusionVerdict::Held { "held".into() } else { verdict.to_string() };
        cells.push(Cell::verdict(word, verdict));
        sheet.row(cells);
    }
    (!is_empty).then_some(sheet)
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

/// All our targets, with what was measured.
pub(crate) fn targets(results: &Results, look: Look) -> String {
    let mut text = String::new();
    for backend in results.backends() {
        if let Some((sheet, note)) = promises::sheet(results, backend, false) {
            let _ = writeln!(text, "promises of {backend}\n{}\n{note}\n", sheet.text(look));
        }
    }
    text
}

/// The tables of the scenarios that have rows from this one on.
pub(crate) fn measured(results: &Results, from: usize, look: Look) -> String {
    let mut text = String::new();
    for scenario in Scenario::all_in(&results.rows[from..]) {
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
    use crate::data::results::sample;
    use crate::data::{Mode, Plan, Row, promises};

    #[test]
    fn plain_tables_have_every_number_and_fit_120_columns() {
        let text = measured(&sample(), 0, Look::Plain);
        let line = |scenario: &str, backend: &str| {
            text.lines()
                .skip_while(|line| !line.starts_with(&format!("{scenario}:")))
                .find(|line| line.starts_with(&format!("| {backend} ")))
                .unwrap_or_else(|| panic!("no {backend} in {scenario}:\n{text}"))
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            line("uncontended", "redis"),
            "| redis | 88.2 | 78.1 | 1.13x | 113 | 97.4 | 1.16x | 241 | 204 | 1.18x | 10,904 | held (0 overlaps) |"
        );
        assert_eq!(
            line("uncontended", "memory"),
            "| memory | 0.610 | - | - | 0.740 | - | - | 2.20 | - | - | 1,420,113 | held (0 overlaps) |"
        );
        assert_eq!(
            line("contended", "zk"),
            "| zk | 289 | 1,960 | 5,400 | 29,800 | 1.00 | 4.01 | held (0 overlaps) |"
        );
        assert_eq!(line("crash", "zk"), "| zk | 1,605 | 4,000 | 0.40x | held (0 overlaps) |");
        assert!(!text.contains('\u{1b}'), "{text}");
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 120).collect();
        assert_eq!(wide, Vec::<&str>::new());
    }

    #[test]
    fn wide_tables_are_split_and_narrow_ones_are_not() {
        let mut results = sample();
        for metric in ["one_more", "and_another", "and_the_last_one_of_all"] {
            results.push(Row::new("contended", "redis", metric, "us", 1e7).with_floor(1e6));
        }
        let text = measured(&results, 0, Look::Plain);
        let heads = text.lines().filter(|line| line.starts_with("| backend ")).count();
        assert_eq!(heads, 5, "{text}");
        assert!(text.contains("and the last one of all"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        assert_eq!(measured(&sample(), 0, Look::Plain).matches("| backend ").count(), 3);
    }

    #[test]
    fn promises_are_shown_with_the_measured_numbers() {
        let mut results = sample();
        assert!(!targets(&results, Look::Plain).contains("promises"));
        // The longest promise, and the longest verdict.
        let row = Row::new("throughput", "redis 256 tasks", "pairs_per_s_minting", "1/s", 1.0);
        results.push(row.with_floor(2.0));
        results.promises = promises::judge(&results, &Plan::new(Mode::Quick));
        let text = targets(&results, Look::Plain);
        let line = text.lines().find(|line| line.contains("requests per grant")).expect("a line");
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>().join(" "),
            "| requests per grant | contended | <= 4.20 | 3.42 | yes (8 processes) |"
        );
        assert!(text.contains(" were not measured in this run"), "{text}");
        assert!(text.contains(" too short to tell "), "{text}");
        assert_eq!(text.matches("\n| promise ").count(), text.matches("promises of ").count(), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    }

    #[test]
    fn each_claim_has_a_line_with_its_verdict() {
        let text = render(&sample(), Look::Plain);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let claims: Vec<String> =
            text.lines().filter(|line| line.starts_with("| ") && line.contains(". ")).map(words).collect();
        let expected = [
            "| 2 | A Redis waiter must keep polling. | holds |",
            "| 3 | Without sequential nodes there is a herd. | holds |",
            "| 4 | ZooKeeper locks are fair. | depends on how many clocks jump, and on the quarantine |",
            "| 8 | ZooKeeper is not absolutely safe either. | does not hold |",
            "| 12 | A fleet can move. | not judged |",
        ];
        assert_eq!(claims, expected, "{text}");
    }

    #[test]
    fn an_overlap_cannot_be_missed() {
        let mut results = sample();
        results.push(Row::overlaps("crash", "zk", 3));
        assert!(measured(&results, 0, Look::Plain).contains("| BROKEN (3) "));
        let text = render(&results, Look::Plain);
        assert!(text.contains("| BROKEN (3) "), "{text}");
        assert!(text.contains("\nMutual exclusion: BROKEN (3)\n"), "{text}");
    }

    #[test]
    fn unknown_names_and_missing_numbers_are_shown() {
        let mut results = sample();
        results.push(Row::new("zeal_of_all", "etcd", "wake_ups", "", 7.0));
        results.push(Row::new("zeal_of_all", "redis", "p50", "ms", 7.5));
        let text = measured(&results, 0, Look::Plain);
        let zeal_of_all =
            text.lines().skip_while(|line| *line != "zeal_of_all").filter(|line| line.starts_with('|'));
        let zeal_of_all: Vec<String> =
            zeal_of_all.take(4).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "| backend | p50 | wake ups | mutual exclusion |",
            "| | ms | | |",
            "| redis | 7.50 | - | not checked |",
            "| etcd | - | 7 | not checked |",
        ];
        assert_eq!(zeal_of_all, expected, "{text}");
    }

    #[test]
    fn one_screen_has_each_backend_with_its_ratios() {
        let mut results = sample();
        for (metric, floor) in
            [("pairs_per_s", 50_000.0), ("pairs_per_s_minting", 45_000.0), ("pairs_per_s_rslock", 32_000.0)]
        {
            let row = Row::new("throughput", "redis 256 tasks", metric, "1/s", 40_000.0);
            results.push(row.with_floor(floor));
        }
        let text = render(&results, Look::Plain);
        let redis = text.lines().find(|line| line.starts_with("| redis ")).expect("a row");
        assert_eq!(
            redis.split_whitespace().collect::<Vec<_>>().join(" "),
            "| redis | 88.2 | 1.13x | 241 | 1.18x | 702 | - | 40,000 | 0.80x | 1.25x | held |"
        );
        assert!(text.contains("\nMutual exclusion: held (0 overlaps)\n"), "{text}");
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 120).collect();
        assert_eq!(wide, Vec::<&str>::new());
        assert!(text.lines().count() <= 60, "{text}");
    }

    #[test]
    fn targets_that_were_missed_are_named() {
        let mut results = sample();
        results.meta.mode = Mode::Full;
        results.push(Row::new("uncontended", "redis", "p50", "us", 900.0).with_floor(100.0));
        results.promises = promises::judge(&results, &Plan::new(Mode::Full));
        let text = render(&results, Look::Plain);
        assert!(text.contains("missed: redis: "), "{text}");
        assert!(text.contains(": 9.00x, not <= "), "{text}");
    }

    #[test]
    fn terminal_tables_have_colours() {
        assert!(render(&sample(), Look::Terminal).contains("\u{1b}["));
    }
}
