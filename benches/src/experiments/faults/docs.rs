//! The fault table in `docs/SAFETY.md`: written from a run, and compared with the expectations by a test.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use crate::data::fault::{Cell, Promise};
use crate::data::{BackendName, Failure, Fault, FaultResult, FaultVerdict, Outcome};

/// Writes the table into the documentation. Fails when a cell is missing or differs from its expectation.
pub(crate) fn update(results: &[FaultResult]) -> Outcome<()> {
    let path = path();
    let text = fs::read_to_string(&path)?;
    let (before, _, after) = parts(&text)?;
    fs::write(&path, format!("{before}{}{after}", render(results)?))?;
    println!("{}", path.display());
    Ok(())
}

/// The table, with a column for each backend.
fn render(results: &[FaultResult]) -> Outcome<String> {
    let titles = BackendName::IN_TABLE.map(BackendName::title).join(" | ");
    let mut table = format!("\n| fault | {titles} |\n|---|{}\n", "---|".repeat(BackendName::IN_TABLE.len()));
    for fault in Fault::of_table() {
        let _ = write!(table, "| {} |", fault.title());
        for backend in BackendName::IN_TABLE {
            let _ = write!(table, " {} |", cell(fault, backend, results)?);
        }
        table.push('\n');
    }
    table.push('\n');
    Ok(table)
}

/// The text of a cell: what was promised and happened, and how long the outage was.
fn cell(fault: Fault, backend: BackendName, results: &[FaultResult]) -> Outcome<String> {
    let expected = match fault.on(backend) {
        Cell::NoMeaning(why) => return Ok(why.to_owned()),
        Cell::Expected(expected) => expected,
    };
    let name = fault.name_on(backend);
    let result =
        results.iter().find(|result| result.fault == fault.title() && result.backend == backend.as_str());
    let result = result.ok_or_else(|| Failure::new(format!("{name} was not run")))?;
    let words = match (expected.promise, result.verdict) {
        (_, FaultVerdict::Holds) => HOLDS,
        (Promise::ExclusionButPaused, FaultVerdict::BreaksAsDocumented) => PAUSED,
        (_, FaultVerdict::BreaksAsDocumented) => TWO_VALID,
        (_, verdict) => return Err(Failure::new(format!("{name}: {verdict}: {}", result.what))),
    };
    let servers = result.servers.iter().map(|servers| format!(" ({servers})")).collect::<String>();
    Ok(format!("{words}, {:.1} s{servers}", result.outage_ms / 1e3))
}

/// The documentation before the table, the table, and the rest.
fn parts(text: &str) -> Outcome<(&str, &str, &str)> {
    let missing = || Failure::new(format!("docs/SAFETY.md has no `{BEGIN}` and `{END}`"));
    let begin = text.find(BEGIN).map(|at| at + BEGIN.len()).ok_or_else(missing)?;
    let end = text.find(END).filter(|&end| end >= begin).ok_or_else(missing)?;
    Ok((&text[..begin], &text[begin..end], &text[end..]))
}

fn path() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "docs", "SAFETY.md"].iter().collect()
}

const BEGIN: &str = "<!-- faults: written by `cargo xtask compare --faults --update-docs` -->\n";
const END: &str = "<!-- end of faults -->";
const HOLDS: &str = "holds";
const PAUSED: &str = "held beyond the lease";
const TWO_VALID: &str = "**two valid guards**";

#[cfg(test)]
mod tests {
    use super::super::judge;
    use super::*;

    fn normalized(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_documentation_has_every_sentence() {
        let text = normalized(&fs::read_to_string(path()).unwrap());
        let (mut run, mut missing) = (0, Vec::new());
        for fault in Fault::of_table() {
            for backend in BackendName::IN_TABLE {
                let Cell::Expected(expected) = fault.on(backend) else { continue };
                run += 1;
                if !text.contains(&normalized(expected.sentence)) {
                    missing.push(format!("{fault} on {backend}: {}", expected.sentence));
                }
            }
        }
        assert_eq!(missing, Vec::<String>::new());
        assert!(run > 40 && Fault::of_table().count() >= 14, "{run}");
    }

    #[test]
    fn the_table_in_the_documentation_agrees_with_the_expectations() {
        let text = fs::read_to_string(path()).unwrap();
        let (_, table, _) = parts(&text).unwrap();
        let rows: Vec<Vec<&str>> = table
            .lines()
            .filter(|line| line.starts_with("| "))
            .skip(1)
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        assert_eq!(rows.len(), Fault::of_table().count(), "{table}");
        for (row, fault) in rows.iter().zip(Fault::of_table()) {
            assert_eq!(row[0], fault.title());
            for (cell, backend) in row[1..].iter().zip(BackendName::IN_TABLE) {
                let allowed: &[&str] = match fault.on(backend) {
                    Cell::NoMeaning(why) => {
                        assert_eq!(*cell, why, "{fault} on {backend}");
                        continue;
                    }
                    Cell::Expected(expected) => match expected.promise {
                        Promise::Exclusion => &[HOLDS],
                        Promise::ExclusionButPaused => &[PAUSED],
                        Promise::TwoValid => &[TWO_VALID],
                        Promise::MaybeTwoValid => &[HOLDS, TWO_VALID],
                    },
                };
                let (words, outage) = cell.rsplit_once(", ").unwrap_or((cell, ""));
                // A remark on the servers may follow.
                let outage = outage.split(" (").next().unwrap_or_default();
                assert!(allowed.contains(&words), "{fault} on {backend}: {cell}, not {allowed:?}");
                assert!(outage.ends_with(" s"), "{fault} on {backend}: {cell}");
            }
        }
    }

    #[test]
    fn a_table_with_a_cell_that_is_missing_or_differs_is_not_written() {
        let missing = render(&[]).unwrap_err().to_string();
        assert!(missing.contains("client-paused on memory was not run"), "{missing}");
        let mut result = judge::not_run(Fault::ClientPaused, BackendName::Memory, &Failure::new("why"));
        result.verdict = FaultVerdict::Differs;
        let differs = render(&[result]).unwrap_err().to_string();
        assert!(differs.contains("client-paused on memory: differs: why"), "{differs}");
    }
}
