//! Reads the output of test programs: which tests ran, how long each took, and what failed ones print.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::failure::Failure;
use crate::steps::seconds;

/// The results of all programs.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) ran: usize,
    /// The number of skipped tests by reason.
    pub(super) left_out: BTreeMap<String, usize>,
    slowest: Vec<(Duration, String)>,
    /// The processor time of each program.
    cpu: Vec<(Duration, String)>,
    failed: Vec<Failed>,
}

/// A program that failed.
#[derive(Debug)]
struct Failed {
    program: String,
    tests: Vec<String>,
    /// The output of its failed tests.
    said: Vec<String>,
}

/// How the test kit reports that a test is left out.
const NOT_ON_THIS_SERVER: &str = "not on this server: ";
/// How many lines of a program are repeated at the end.
const MOST_LINES: usize = 200;

impl Results {
    /// Adds the output of a program.
    pub(super) fn add(&mut self, program: &str, lines: &[String], succeeded: bool) {
        let mut tests = Vec::new();
        for line in lines {
            if let Some(lacks) = line.strip_prefix(NOT_ON_THIS_SERVER) {
                let what = lacks.split_once(": ").map_or(lacks, |(_, what)| what);
                *self.left_out.entry(what.to_owned()).or_default() += 1;
            }
            let Some(result) = TestLine::read(line) else { continue };
            match result.outcome {
                TestOutcome::Ignored => {
                    let reason = result.reason.unwrap_or_else(|| "ignored".into());
                    *self.left_out.entry(reason).or_default() += 1;
                    continue;
                }
                TestOutcome::Failed => tests.push(result.name.to_owned()),
                TestOutcome::Passed => {}
            }
            self.ran += 1;
            self.slowest.extend(result.took.map(|took| (took, format!("{program}: {}", result.name))));
        }
        if !succeeded {
            let report = lines.iter().position(|line| line == "failures:").unwrap_or(0);
            let said = lines[report..].iter().take(MOST_LINES).cloned().collect();
            self.failed.push(Failed { program: program.to_owned(), tests, said });
        }
    }

    /// Adds the processor time of a program, where it is known.
    pub(super) fn add_cpu(&mut self, program: &str, cpu: Option<Duration>) {
        self.cpu.extend(cpu.map(|cpu| (cpu, program.to_owned())));
    }

    /// Prints the programs that took most processor time, and the slowest tests.
    pub(super) fn show(&mut self, slowest: usize) {
        self.cpu.sort_unstable_by(|one, other| other.cmp(one));
        if self.cpu.len() > 1 {
            eprintln!("\n    {} of CPU; most of it:", seconds(self.cpu()));
        }
        for (cpu, program) in self.cpu.iter().take(slowest) {
            eprintln!("{:>10}  {program}", seconds(*cpu));
        }
        self.slowest.sort_unstable_by(|one, other| other.cmp(one));
        if !self.slowest.is_empty() {
            eprintln!("\n    {} tests ran; the slowest:", self.ran);
        }
        for (took, test) in self.slowest.iter().take(slowest) {
            eprintln!("{:>10}  {test}", seconds(*took));
        }
    }

    /// The processor time of all programs.
    pub(super) fn cpu(&self) -> Duration {
        self.cpu.iter().map(|(cpu, _)| *cpu).sum()
    }

    /// The tests that failed, each with its program; nothing when a program failed otherwise.
    pub(super) fn failed_tests(&self) -> Vec<(&str, &str)> {
        if self.failed.iter().any(|failed| failed.tests.is_empty()) {
            return Vec::new();
        }
        let mut tests = Vec::new();
        for failed in &self.failed {
            tests.extend(failed.tests.iter().map(|test| (failed.program.as_str(), test.as_str())));
        }
        tests
    }

    /// Fails when a program has failed, and repeats the output of its failed tests.
    pub(super) fn judge(&self) -> Result<(), Failure> {
        if self.failed.is_empty() {
            return Ok(());
        }
        for failed in &self.failed {
            eprintln!("\n==> FAILED: {}", failed.program);
            failed.said.iter().for_each(|line| eprintln!("{line}"));
        }
        let names: Vec<_> = self.failed.iter().map(Failed::name).collect();
        Err(Failure::new(format!("failed: {}", names.join(", "))))
    }
}

impl Failed {
    fn name(&self) -> String {
        if self.tests.is_empty() {
            return self.program.clone();
        }
        format!("{} ({})", self.program, self.tests.join(", "))
    }
}

/// The line of a test: `test NAME ... ok <0.123s>`, `test NAME ... ignored, REASON`.
#[derive(Debug, PartialEq)]
struct TestLine<'a> {
    name: &'a str,
    outcome: TestOutcome,
    reason: Option<String>,
    took: Option<Duration>,
}

#[derive(Debug, PartialEq)]
enum TestOutcome {
    Passed,
    Failed,
    Ignored,
}

impl<'a> TestLine<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let name = name.trim_end();
        let outcome = match rest.split([' ', ',']).next()? {
            "ok" => TestOutcome::Passed,
            "FAILED" => TestOutcome::Failed,
            "ignored" => TestOutcome::Ignored,
            _ => return None,
        };
        let reason = rest.strip_prefix("ignored, ").map(str::to_owned);
        let took = rest.split_once('<').and_then(|(_, time)| time.strip_suffix("s>")?.parse().ok());
        Some(Self { name, outcome, reason, took: took.map(Duration::from_secs_f64) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_on_a_test_is_read() {
        let read = |line| TestLine::read(line).unwrap();
        let passed = read("test queue::waits ... ok <1.500s>");
        assert_eq!((passed.name, passed.outcome), ("queue::waits", TestOutcome::Passed));
        assert_eq!(passed.took, Some(Duration::from_millis(1500)));
        assert_eq!(read("test a ... FAILED <0.001s>").outcome, TestOutcome::Failed);
        assert_eq!(read("test zk::dyn::a  ... ok").name, "zk::dyn::a");
        let ignored = read("test a ... ignored, full: takes a minute");
        assert_eq!(ignored.reason.as_deref(), Some("full: takes a minute"));
        assert_eq!(TestLine::read("test result: ok. 3 passed"), None);
    }

    #[test]
    fn a_test_that_a_server_lacks_something_for_is_left_out() {
        let line = "not on this server: gates::finds_writers: Redis 6.2.5 has no selectors (7.0)".to_owned();
        let mut results = Results::default();
        results.add("redis", &[line.clone(), line], true);
        assert_eq!(results.left_out["Redis 6.2.5 has no selectors (7.0)"], 2);
    }

    #[test]
    fn a_failed_program_is_reported_with_its_tests_and_what_they_said() {
        let output = "running 2 tests\ntest a ... ok <0.1s>\ntest b ... FAILED <0.2s>\n\nfailures:\n\n---- b stdout ----\nit broke";
        let lines: Vec<String> = output.lines().map(str::to_owned).collect();
        let mut results = Results::default();
        results.add("tests/x.rs", &lines, false);
        assert_eq!(results.ran, 2);
        assert_eq!(results.judge().unwrap_err().to_string(), "failed: tests/x.rs (b)");
        assert_eq!(results.failed[0].said.last().unwrap(), "it broke");
        assert_eq!(results.failed_tests(), [("tests/x.rs", "b")]);
        results.add("tests/y.rs", &[], false);
        assert!(results.failed_tests().is_empty(), "what failed in the second program has no name");
        assert_eq!(results.judge().unwrap_err().to_string(), "failed: tests/x.rs (b), tests/y.rs");
    }
}
