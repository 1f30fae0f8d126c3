//! The results as Markdown, for a pull request: the choice, the verdicts and the faults. The pictures are in the page.

use std::fmt::Write as _;

use super::sheet::{Sheet, plain};
use super::summary::{headline, verdict_line};
use super::{baseline, choice, claims, faults};
use crate::data::Results;
use crate::data::results::labels::quantity;

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
    let mut section = |title: &str, sheet: Option<Sheet>| {
        if let Some(sheet) = sheet {
            let _ = writeln!(text, "## {title}\n\n{}", sheet.markdown());
        }
    };
    section("Which one should I use?", Some(choice::sheet(results)));
    section("Claims", claims::sheet(results, true));
    section("Faults", (!results.faults.is_empty()).then(|| faults::list(&results.faults)));
    if let Some(baseline) = &results.baseline {
        section("What changed", baseline::sheet(baseline));
        let _ = writeln!(text, "{}\n", plain(&baseline.summary()));
    }
    let _ = writeln!(
        text,
        "polylock {}, {} run of {} on {}, {} cores ({}), {}, Redis {}, ZooKeeper {}, PostgreSQL {}. Measured by `{}`.",
        meta.version,
        meta.mode,
        quantity(meta.duration_s, "s"),
        meta.date,
        meta.cores,
        plain(&meta.cpu),
        plain(&meta.kernel),
        meta.redis.as_deref().unwrap_or("not measured"),
        meta.zookeeper.as_deref().unwrap_or("not measured"),
        meta.postgres.as_deref().unwrap_or("not measured"),
        meta.command.replace('`', "'"),
    );
    text
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
            "| client paused | redis | 1 | 0 | 0 | 1 | 1.25 s | holds |",
            "* contended on zk: stuck \\| for ever",
            "| What has to run | one Redis server | five independent Redis servers | a ZooKeeper ensemble of three | the database that has the data |",
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
