//! Reads the output of test programs: which tests ran, how long each took, and what failed ones print.

use std::collections::BTreeMap;

use crate::command::Result;

/// The results of all programs.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) ran: usize,
    /// The number of skipped tests by reason.
    pub(super) left_out: BTreeMap<String, usize>,
    /// In seconds.
    took: Vec<(f64, String)>,
    failed: Vec<FailedProgram>,
}

#[derive(Debug)]
struct FailedProgram {
    name: String,
    tests: Vec<String>,
    /// The output of its failed tests.
    said: Vec<String>,
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
        let mut tests = Vec::new();
        for line in lines {
            if let Some(lacks) = line.strip_prefix(NOT_ON_THIS_SERVER) {
                self.leave_out(lacks.split_once(": ").map_or(lacks, |(_, what)| what));
            }
            let Some((name, outcome)) = line.strip_prefix("test ").and_then(|test| test.split_once(" ... "))
            else {
                continue;
            };
            let name = name.trim_end().trim_end_matches(" - should panic");
            match outcome.split([' ', ',']).next() {
                Some("ignored") => self.leave_out(outcome.strip_prefix("ignored, ").unwrap_or("ignored")),
                Some("FAILED") => tests.push(name.to_owned()),
                Some("ok") => {}
                _ => continue,
            }
            self.ran += usize::from(!outcome.starts_with("ignored"));
            let took = outcome.split_once('<').and_then(|(_, time)| time.strip_suffix("s>")?.parse().ok());
            self.took.extend(took.map(|took| (took, format!("{program}: {name}"))));
        }
        if !succeeded {
            let report = lines.iter().position(|line| line == "failures:").unwrap_or(0);
            let said = lines[report..].iter().take(MOST_LINES).cloned().collect();
            self.failed.push(FailedProgram { name: program.to_owned(), tests, said });
        }
    }

    fn leave_out(&mut self, reason: &str) {
        *self.left_out.entry(reason.to_owned()).or_default() += 1;
    }

    /// Prints the slowest tests.
    pub(super) fn show(&mut self) {
        eprintln!("\n    {} tests ran; the slowest:", self.ran);
        self.took.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        for (took, test) in self.took.iter().take(SLOWEST) {
            eprintln!("{took:>8.1} s  {test}");
        }
    }

    /// The tests that failed, each with its program; nothing when a program failed otherwise.
    pub(super) fn failed_tests(&self) -> Vec<(&str, &str)> {
        if self.failed.iter().any(|program| program.tests.is_empty()) {
            return Vec::new();
        }
        let tests =
            self.failed.iter().flat_map(|failed| failed.tests.iter().map(|test| (&*failed.name, &**test)));
        tests.collect()
    }

    /// Fails when a program has failed, and repeats the output of its failed tests.
    pub(super) fn judge(&self) -> Result {
        if self.failed.is_empty() {
            return Ok(());
        }
        let mut names = Vec::new();
        for FailedProgram { name, tests, said } in &self.failed {
            eprintln!("\n==> FAILED: {name}");
            said.iter().for_each(|line| eprintln!("{line}"));
            names.push(if tests.is_empty() {
                name.clone()
            } else {
                format!("{name} ({})", tests.join(", "))
            });
        }
        Err(format!("failed: {}", names.join(", ")))
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
        assert_eq!(left_out, ["Redis 6.2.5 has no selectors", "full: takes a minute"]);
        assert_eq!(results.failed[0].said[3], "it broke");
        assert_eq!(results.failed_tests(), [("x", "c")]);
        results.add("y", &[], false);
        assert!(results.failed_tests().is_empty(), "what failed in the second program has no name");
        assert_eq!(results.judge().unwrap_err(), "failed: x (c), y");
    }
}
