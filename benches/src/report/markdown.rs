//! The results as Markdown, for a pull request: the choice, the verdicts and the faults. The pictures are in the page.

use std::fmt::Write as _;

use super::choice::BACKENDS;
use super::needs::Need;
use super::summary::{headline, verdict_line};
use crate::data::results::labels::{quantity, title};
use crate::data::results::{FaultVerdict, Results};

/// The text.
pub(super) fn render(results: &Results) -> String {
    let meta = &results.meta;
    let mut text = format!("# {}\n\n", plain(&headline(results)));
    let _ = writeln!(text, "**{}**\n", plain(&verdict_line(results, results.verdict())));
    if let Some(how_far) = &meta.interrupted {
        let _ = writeln!(text, "The run was interrupted {}.\n", plain(how_far));
    }
    if !results.failures.is_empty() {
        text.push_str("Failed:\n\n");
        for failure in &results.failures {
            let _ = writeln!(text, "* {}", plain(&failure.to_string()));
        }
        text.push('\n');
    }
    choice(&mut text, results);
    claims(&mut text, results);
    faults(&mut text, results);
    changes(&mut text, results);
    let _ = writeln!(
        text,
        "polylock {}, {} run of {} on {}, {} cores ({}), {}, Redis {}, ZooKeeper {}. Measured by `{}`.",
        meta.version,
        meta.mode,
        quantity(meta.duration_s, "s"),
        meta.date,
        meta.cores,
        plain(&meta.cpu),
        plain(&meta.kernel),
        meta.redis.as_deref().unwrap_or("not measured"),
        meta.zookeeper.as_deref().unwrap_or("not measured"),
        meta.command.replace('`', "'"),
    );
    text
}

fn choice(text: &mut String, results: &Results) {
    text.push_str("## Which one should I use?\n\n");
    row(text, ["need"].into_iter().chain(BACKENDS.iter().copied()));
    row(text, [""; 4].map(|_| "---"));
    for need in Need::ALL {
        let offers = BACKENDS.iter().map(|backend| {
            let offer = need.offer(results, backend);
            let figure = if offer.measurable { offer.measured() } else { "" };
            let parts = [offer.words, figure].into_iter().filter(|part| !part.is_empty());
            parts.collect::<Vec<_>>().join("; ")
        });
        row(text, [need.text().to_owned()].into_iter().chain(offers));
    }
    text.push('\n');
}

fn claims(text: &mut String, results: &Results) {
    if !results.has_claims() {
        return;
    }
    text.push_str("## Claims\n\n");
    row(text, ["", "claim", "verdict", "why"]);
    row(text, ["---"; 4]);
    for claim in &results.claims {
        row(text, [&claim.id.to_string(), &claim.claim, &claim.verdict.to_string(), &claim.because]);
    }
    text.push('\n');
}

fn faults(text: &mut String, results: &Results) {
    if results.faults.is_empty() {
        return;
    }
    text.push_str("## Faults\n\n");
    row(text, ["fault", "backend", "verdict", "L1", "L2", "L3", "unavailable"]);
    row(text, ["---"; 7]);
    for fault in &results.faults {
        let verdict = match fault.verdict {
            FaultVerdict::Differs => format!("**{}**", fault.verdict),
            verdict => verdict.to_string(),
        };
        let [l1, l2, l3] = [fault.l1, fault.l2, fault.l3].map(|count| count.to_string());
        row(
            text,
            [&fault.fault, &fault.subject(), &verdict, &l1, &l2, &l3, &quantity(fault.outage_ms, "ms")],
        );
    }
    text.push('\n');
}

fn changes(text: &mut String, results: &Results) {
    let Some(baseline) = &results.baseline else { return };
    let _ = writeln!(text, "## What changed\n\n{}\n", plain(&baseline.summary()));
    if baseline.changes.is_empty() {
        return;
    }
    row(text, ["metric", "backend", "before", "now", "now / before"]);
    row(text, ["---"; 5]);
    for change in &baseline.changes {
        let [old, new] = [&change.old, &change.new].map(|spread| quantity(spread.median, &change.unit));
        let metric = format!("{}: {}", change.scenario, title(&change.metric));
        row(text, [&metric, &change.backend, &old, &new, &format!("{:.2}x", change.ratio())]);
    }
    text.push('\n');
}

fn row(text: &mut String, cells: impl IntoIterator<Item = impl AsRef<str>>) {
    for cell in cells {
        let cell = cell.as_ref();
        let cell = if cell.starts_with("**") { cell.to_owned() } else { plain(cell) };
        let _ = write!(text, "| {cell} ");
    }
    text.push_str("|\n");
}

/// Text that Markdown shows as it is.
fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '~' | '&' => {
                safe.extend(['\\', character]);
            }
            '\n' => safe.push(' '),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::results::sample;

    #[test]
    fn verdicts_and_figures_are_in_tables() {
        let mut results = sample();
        results.fail("contended on zk", "stuck | for ever");
        let text = render(&results);
        for line in [
            "| 3 | Without sequential nodes there is a herd. | holds | 64 requests against 4 |",
            "| client paused | redis | holds | 1 | 0 | 0 | 1.25 s |",
            "* contended on zk: stuck \\| for ever",
            "| What has to run | one Redis server | five independent Redis servers | a ZooKeeper ensemble of three |",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(text.contains("88.2 µs to acquire and release"), "{text}");
        assert!(text.contains("(Sample \\<CPU\\> \\& Co)"), "{text}");
    }

    #[test]
    fn every_row_of_a_table_has_the_same_number_of_cells() {
        let text = render(&sample());
        let mut width = None;
        for line in text.lines() {
            let cells = line.replace("\\|", "").matches('|').count();
            width = if line.starts_with('|') { Some(*width.get_or_insert(cells)) } else { None };
            assert!(width.is_none_or(|width| width == cells), "{line}");
        }
    }
}
