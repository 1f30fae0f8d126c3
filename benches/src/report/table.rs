//! The results as tables for a terminal or a file.

use std::fmt::Write as _;
use std::io::IsTerminal;

use comfy_table::presets::{ASCII_FULL_CONDENSED, UTF8_FULL_CONDENSED};
use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table};

use crate::data::results::labels::{number, quantity, title};
use crate::data::results::{Change, ExclusionVerdict, PromiseResult, Results, Row, Scenario, Verdict};

/// How the tables are drawn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Look {
    /// Plain text, no colours: for files and pipes.
    Plain,
    /// Lines and colours, as wide as the terminal.
    Terminal,
}

impl Look {
    /// The look that fits standard output; respects `NO_COLOR`.
    pub(crate) fn of_stdout() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if wanted && std::io::stdout().is_terminal() { Self::Terminal } else { Self::Plain }
    }
}

/// All results: the tables of each scenario, the promises, the verdict and the machine.
pub(crate) fn render(results: &Results, look: Look) -> String {
    let mut text = measured(&results.rows, look);
    for backend in results.backends() {
        if let Some(promises) = promises(results, backend, look) {
            let _ = writeln!(text, "promises of {backend}\n{promises}\n");
        }
    }
    claims(&mut text, results, look);
    if let Some(baseline) = &results.baseline {
        let _ = writeln!(text, "{}", baseline.summary());
        for change in &baseline.changes {
            let Change { scenario, backend, metric, unit, old, new } = change;
            let (old, new) = (quantity(old.median, unit), quantity(new.median, unit));
            let _ = writeln!(text, "  {scenario} on {backend}, {}: {old} before, {new} now", title(metric));
        }
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
    for (server, version) in [("Redis", &meta.redis), ("ZooKeeper", &meta.zookeeper)] {
        if let Some(version) = version {
            let _ = write!(text, ", {server} {version}");
        }
    }
    text.push('\n');
    text
}

/// The tables of the scenarios that have these rows.
pub(crate) fn measured(rows: &[Row], look: Look) -> String {
    let mut text = String::new();
    for scenario in Scenario::all_in(rows) {
        let about = scenario.about();
        let colon = if about.is_empty() { "" } else { ": " };
        let _ = writeln!(text, "{}{colon}{about}\n{}\n", scenario.name, blocks(&scenario, look));
    }
    text
}

/// The tables of a scenario: one, or more to keep plain text within the width of a page.
fn blocks(scenario: &Scenario<'_>, look: Look) -> String {
    let backends = scenario.backends();
    let columns = scenario.metrics().into_iter().map(|metric| Column::new(scenario, metric, &backends));
    let ends = backends.iter().map(|name| name.len()).max().unwrap_or(0).max("backend".len()) + VERDICT;
    let mut blocks: Vec<Vec<Column>> = vec![Vec::new()];
    let mut width = ends;
    for column in columns {
        width += column.width();
        if look == Look::Plain && width > WIDEST {
            width = ends + column.width();
            blocks.push(Vec::new());
        }
        blocks.last_mut().expect("never empty").push(column);
    }
    let tables = blocks.iter().map(|columns| block(scenario, &backends, columns, look).to_string());
    tables.collect::<Vec<_>>().join("\n")
}

fn block(scenario: &Scenario<'_>, backends: &[&str], columns: &[Column], look: Look) -> Table {
    let mut table = empty(look);
    let header = columns.iter().map(|column| right(column.header.clone()).add_attribute(Attribute::Bold));
    let last = scenario.has_rivals().then(|| bold("mutual exclusion"));
    table.set_header([bold("backend")].into_iter().chain(header).chain(last));
    for (index, backend) in backends.iter().enumerate() {
        let cells = columns.iter().map(|column| right(column.cells[index].clone()));
        let verdict = scenario.verdict(backend);
        let verdict = Cell::new(verdict).fg(match verdict {
            ExclusionVerdict::Held => Color::Green,
            ExclusionVerdict::Broken(_) => Color::Red,
            ExclusionVerdict::Unchecked => Color::Yellow,
        });
        let verdict = scenario.has_rivals().then_some(verdict);
        table.add_row([Cell::new(backend)].into_iter().chain(cells).chain(verdict));
    }
    table
}

/// The measured promises, and how many were not measured.
fn promises(results: &Results, backend: &str, look: Look) -> Option<String> {
    let promises: Vec<&PromiseResult> = results.promises_of(backend).collect();
    let measured: Vec<&PromiseResult> =
        promises.iter().copied().filter(|result| result.met.is_some()).collect();
    if measured.is_empty() {
        return None;
    }
    let mut table = empty(look);
    table.set_header(["scenario", "promise", "target", "seen", "met"].map(bold));
    for result in &measured {
        let (scenario, promise) = (Cell::new(&result.scenario), Cell::new(result.about()));
        let colour = if result.met == Some(true) { Color::Green } else { Color::Yellow };
        let met = Cell::new(result.met()).fg(colour);
        table.add_row([scenario, promise, right(result.target()), right(result.seen()), met]);
    }
    let mut text = table.to_string();
    if measured.len() < promises.len() {
        let missing = promises.len() - measured.len();
        let _ = write!(text, "\n{missing} of {} were not measured in this run", promises.len());
    }
    Some(text)
}

/// A line per claim, with its verdict.
fn claims(text: &mut String, results: &Results, look: Look) {
    if !results.has_claims() {
        return;
    }
    let words: Vec<String> = results.claims.iter().map(|claim| claim.verdict.to_string()).collect();
    let width = words.iter().map(|word| word.chars().count()).max().unwrap_or(0);
    text.push_str("claims\n");
    for (claim, word) in results.claims.iter().zip(&words) {
        let colour = match claim.verdict {
            Verdict::Holds => "32",
            Verdict::DoesNotHold => "31",
            Verdict::DependsOn(_) => "33",
            Verdict::NotJudged => "2",
        };
        let verdict = match look {
            Look::Plain => format!("{word:width$}"),
            Look::Terminal => format!("\u{1b}[{colour}m{word:width$}\u{1b}[0m"),
        };
        let _ = writeln!(text, "{:>3}  {verdict}  {}", claim.id, claim.claim);
    }
    text.push('\n');
}

/// An empty table.
pub(crate) fn empty(look: Look) -> Table {
    let mut table = Table::new();
    match look {
        Look::Plain => {
            table.load_style(ASCII_FULL_CONDENSED).force_no_tty();
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
        Look::Terminal => {
            table.load_style(UTF8_FULL_CONDENSED).enforce_styling();
            table.set_content_arrangement(ContentArrangement::Dynamic);
        }
    }
    table
}

/// A metric: its numbers, with floor and ratio where any backend has them.
struct Column {
    header: String,
    cells: Vec<String>,
}

impl Column {
    fn new(scenario: &Scenario<'_>, metric: &str, backends: &[&str]) -> Self {
        let rows: Vec<Option<&Row>> = backends.iter().map(|backend| scenario.row(backend, metric)).collect();
        let show = |of: fn(&Row) -> Option<String>| -> Vec<String> {
            rows.iter().map(|row| row.and_then(of).unwrap_or_else(|| "-".into())).collect()
        };
        let unit = scenario.unit(metric);
        let mut parts = vec![(unit, show(|row| Some(number(row.value))))];
        if rows.iter().flatten().any(|row| row.floor.is_some()) {
            parts.push((scenario.floor_name(metric), show(|row| row.floor.map(number))));
            parts.push(("ratio", show(|row| row.ratio.map(|ratio| format!("{ratio:.2}x")))));
        }
        let mut subtitle = String::new();
        let mut cells = vec![String::new(); backends.len()];
        for (index, (name, shown)) in parts.iter().enumerate() {
            let width = shown.iter().chain([&(*name).to_owned()]).map(String::len).max().unwrap_or(0);
            let gap = if index == 0 { "" } else { "  " };
            let _ = write!(subtitle, "{gap}{name:>width$}");
            for (cell, text) in cells.iter_mut().zip(shown) {
                let _ = write!(cell, "{gap}{text:>width$}");
            }
        }
        Self {
            header: format!(
                "{}
{subtitle}",
                title(metric)
            ),
            cells,
        }
    }
}

impl Column {
    /// The width with the line beside it.
    fn width(&self) -> usize {
        let lines = self.header.lines().chain(self.cells.iter().map(String::as_str));
        lines.map(str::len).max().unwrap_or(0) + 3
    }
}

fn bold(text: &str) -> Cell {
    Cell::new(text).add_attribute(Attribute::Bold)
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// The width of a table in plain text.
const WIDEST: usize = 120;
/// The last column, and the lines around the first one.
const VERDICT: usize = "| ".len() + " | held (0 overlaps) |".len();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::plan::Plan;
    use crate::data::promises;
    use crate::data::results::{Mode, sample};

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
            "| redis | 88.2 78.1 1.13x | 113 97.4 1.16x | 241 204 1.18x | 10,904 | held (0 overlaps) |"
        );
        assert_eq!(
            line("uncontended", "memory"),
            "| memory | 0.610 - - | 0.740 - - | 2.20 - - | 1,420,113 | held (0 overlaps) |"
        );
        assert_eq!(
            line("contended", "zk"),
            "| zk | 289 | 1,960 | 5,400 | 29,800 | 1.00 | 4.01 | held (0 overlaps) |"
        );
        assert_eq!(line("crash", "zk"), "| zk | 1,605 4,000 0.40x | held (0 overlaps) |");
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
        results.promises = promises::judge(&results, &Plan::new(Mode::Quick));
        let text = render(&results, Look::Plain);
        let line = text.lines().find(|line| line.contains("requests per grant")).expect("a line");
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>().join(" "),
            "| contended | requests per grant | <= 4.20 | 3.42 | yes (8 processes) |"
        );
        assert!(text.contains(" were not measured in this run"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    }

    #[test]
    fn each_claim_has_a_line_with_its_verdict() {
        let text = render(&sample(), Look::Plain);
        let claims: Vec<&str> = text.lines().skip_while(|line| *line != "claims").skip(1).take(5).collect();
        let expected = [
            "  2  holds                                                   A Redis waiter must keep polling.",
            "  3  holds                                                   Without sequential nodes there is a herd.",
            "  4  depends on how many clocks jump, and on the quarantine  ZooKeeper locks are fair.",
            "  8  does not hold                                           ZooKeeper is not absolutely safe either.",
            " 12  not judged                                              A fleet can move.",
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
            zeal_of_all.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
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
