//! The results as Markdown, for a pull request: the choice, the verdicts and the faults. The pictures are in the page.

use std::fmt::Write as _;

use super::sheet::{Sheet, plain};
use super::summary::{headline, verdict_line};
use super::{choice, claims, faults};
use crate::data::Results;

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
    let by = format!("Measured by `{}`", meta.command.replace('`', "'"));
    for sentence in
        [plain(&meta.machine()), plain(&meta.servers()), by].iter().filter(|text| !text.is_empty())
    {
        let _ = write!(text, "{sentence}. ");
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::results::sample;

    #[test]
    fn every_row_of_a_table_has_the_same_number_of_cells() {
        let mut results = sample();
        results.fail("contended on zk", "stuck | for ever");
        let text = render(&results);
        assert!(text.contains("* contended on zk: stuck \\| for ever"), "{text}");
        let mut width = None;
        for line in text.lines() {
            let cells = line.replace("\\|", "").matches('|').count();
            width = if line.starts_with('|') { Some(*width.get_or_insert(cells)) } else { None };
            assert!(width.is_none_or(|width| width == cells), "{line}");
        }
    }
}
