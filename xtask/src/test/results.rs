//! Reads the output of test programs: which tests ran, how long each took, and what failed ones print.

use std::collections::BTreeMap;

use crate::command::Result;

/// The results of all programs.
#[derive(Default)]
pub(super) struct Results {
    pub(super) ran: usize,
    /// The number of skipped tests by reason.
    pub(super) left_out: BTreeMap<String, usize>,
    /// A program and its test, without a name when the program failed otherwise.
    pub(super) failed: Vec<(String, String)>,
    /// The output of the failed tests.
    said: Vec<String>,
    /// In seconds.
    took: Vec<(f64, String)>,
}

/// How the test kit reports that a test is left out.
const NOT_ON_THIS_SERVER: &str = "not on this server: ";
/// How many lines of a program are repeated at the end.
const MOST_LINES: usize = 200;
/// How many of the slowest tests are shown.
const SLOWEST: usize = 10;

impl Results {
    /// Adds the output of a program.
    ///
    /// The lines of tests are `test NAME ... ok <0.123s>` and `test NAME ... ignored, REASON`.
    pub(super) fn add(&mut self, program: &str, lines: &[String], succeeded: bool) {
        let failed_before = self.failed.len();
        for line in lines {
            if let Some(lacks) = line.strip_prefix(NOT_ON_THIS_SERVER) {
                let what = lacks.split_once(": ").map_or(lacks, |(_, what)| what);
                *self.left_out.entry(what.to_owned()).or_default() += 1;
            }
            let test = line.strip_prefix("test ").and_then(|test| test.split_once(" ... "));
            let Some((name, outcome)) = test else { continue };
            let name = name.trim_end().trim_end_matches(" - should panic");
            match outcome.split([' ', ',']).next() {
                Some("ignored") => {
                    let why = outcome.strip_prefix("ignored, ").unwrap_or("a higher tier has them");
                    let why = match why.split_once(": ") {
                        Some((tier @ ("full" | "deep"), _)) => format!("the tier --{tier} has them"),
                        _ => why.to_owned(),
                    };
                    *self.left_out.entry(why).or_default() += 1;
                    continue;
                }
                Some("FAILED") => self.failed.push((program.to_owned(), name.to_owned())),
                Some("ok") => {}
                _ => continue,
            }
            self.ran += 1;
            let took = outcome.split_once('<').and_then(|(_, time)| time.strip_suffix("s>")?.parse().ok());
            self.took.extend(took.map(|took| (took, format!("{program}: {name}"))));
        }
        if succeeded {
            return;
        }
        if self.failed.len() == failed_before {
            self.failed.push((program.to_owned(), String::new()));
        }
        let report = lines.iter().position(|line| line == "failures:").unwrap_or(0);
        self.said.push(format!("\n==> FAILED: {program}"));
        self.said.extend(lines[report..].iter().take(MOST_LINES).cloned());
    }

    /// Prints the slowest tests.
    pub(super) fn show(&mut self) {
        eprintln!("\n    {} tests ran; the slowest:", self.ran);
        self.took.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        self.took.iter().take(SLOWEST).for_each(|(took, test)| eprintln!("{took:>8.1} s  {test}"));
    }

    /// Fails when a program has failed, and repeats the output of its failed tests.
    pub(super) fn judge(&self) -> Result {
        self.said.iter().for_each(|line| eprintln!("{line}"));
        let names: Vec<_> = self.failed.iter().map(|(program, test)| format!("{program} {test}")).collect();
        if names.is_empty() { Ok(()) } else { Err(format!("failed: {}", names.join(", "))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_program_is_read() {
        let output = "running 5 tests\ntest queue::waits ... ok <1.500s>\ntest zk::dyn::a  ... ok\n\
                      test b ... ignored, full: takes a minute\nnot on this server: c: Redis 6.2.5 has no selectors\n\
                      test c - should panic ... FAILED <0.2s>\n\nfailures:\n\n---- c stdout ----\nit broke\n\n\
                      test result: FAILED. 2 passed; 1 failed";
        let lines: Vec<String> = output.lines().map(str::to_owned).collect();
        let mut results = Results::default();
        results.add("x", &lines, false);
        assert_eq!(results.ran, 3);
        assert_eq!(results.took, [(1.5, "x: queue::waits".into()), (0.2, "x: c".into())]);
        let left_out: Vec<_> = results.left_out.keys().map(String::as_str).collect();
        assert_eq!(left_out, ["Redis 6.2.5 has no selectors", "the tier --full has them"]);
        assert_eq!(results.said[4], "it broke");
        results.add("y", &[], false);
        assert_eq!(results.judge().unwrap_err(), "failed: x c, y ");
    }
}
