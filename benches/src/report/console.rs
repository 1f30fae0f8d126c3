//! The results on the console.

use std::fmt::Write as _;

use super::sheet::Look;
use super::{baseline, claims, promises, scenario};
use crate::data::results::labels::number;
use crate::data::{Results, Scenario};

/// All results: the tables of each scenario, the promises, the verdict and the machine.
pub(crate) fn render(results: &Results, look: Look) -> String {
    let mut text = measured(results, 0, look);
    for backend in results.backends() {
        if let Some((sheet, note)) = promises::sheet(results, backend, false) {
            let _ = writeln!(text, "promises of {backend}\n{}\n{note}\n", sheet.text(look));
        }
    }
    if let Some(claims) = claims::sheet(results, false) {
        let _ = writeln!(text, "claims\n{}\n", claims.text(look));
    }
    if let Some(baseline) = &results.baseline {
        let changes = baseline::sheet(baseline).map_or_else(String::new, |sheet| sheet.text(look) + "\n");
        let _ = writeln!(text, "{}\n{changes}", baseline.summary());
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
        let text = render(&sample(), Look::Plain);
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
        assert!(text.contains("\nMutual exclusion: held (0 overlaps)\n"), "{text}");
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 120).collect();
        assert_eq!(wide, Vec::<&str>::new());
    }

    #[test]
    fn wide_tables_are_split_and_narrow_ones_are_not() {
        let mut results = sample();
        for metric in ["one_more", "and_another", "and_the_last_one_of_all"] {
            results.push(Row::new("contended", "redis", metric, "us", 1e7).with_floor(1e6));
        }
        let text = render(&results, Look::Plain);
        let heads = text.lines().filter(|line| line.starts_with("| backend ")).count();
        assert_eq!(heads, 5, "{text}");
        assert!(text.contains("and the last one of all"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        assert_eq!(render(&sample(), Look::Plain).matches("| backend ").count(), 3);
    }

    #[test]
    fn promises_are_shown_with_the_measured_numbers() {
        let mut results = sample();
        assert!(!render(&results, Look::Plain).contains("promises"));
        // The longest promise, and the longest verdict.
        let row = Row::new("throughput", "redis 256 tasks", "pairs_per_s_minting", "1/s", 1.0);
        results.push(row.with_floor(2.0));
        results.promises = promises::judge(&results, &Plan::new(Mode::Quick));
        let text = render(&results, Look::Plain);
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
            text.lines().skip_while(|line| *line != "claims").skip(4).take(5).map(words).collect();
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
        let text = render(&results, Look::Plain);
        assert!(text.contains("| BROKEN (3) "), "{text}");
        assert!(text.contains("\nMutual exclusion: BROKEN (3)\n"), "{text}");
    }

    #[test]
    fn unknown_names_and_missing_numbers_are_shown() {
        let mut results = sample();
        results.push(Row::new("zeal_of_all", "etcd", "wake_ups", "", 7.0));
        results.push(Row::new("zeal_of_all", "redis", "p50", "ms", 7.5));
        let text = render(&results, Look::Plain);
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
    fn terminal_tables_have_colours() {
        assert!(render(&sample(), Look::Terminal).contains("\u{1b}["));
    }
}
