//! The test programs: selects them by name, and builds them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use serde_json::Value;

use super::lanes::Job;
use crate::failure::Failure;
use crate::interrupt;
use crate::steps::{cargo, command_line, workspace};

/// Tests that only compute, without real servers and real time.
const COMPUTING: &[&str] = &[
    "crates/lock-redis/tests/simulation.rs",
    "crates/lock-migrate/tests/models.rs",
    "crates/lock-redlock/tests/models.rs",
    "crates/lock-redlock/tests/simulation.rs",
    "crates/lock-redlock/tests/virtual_time.rs",
    "crates/lock-zk/tests/model.rs",
    "crates/lock-zk/tests/simulation.rs",
];

/// Tests whose output is shown although they pass.
const SHOWN: &[&str] =
    &["crates/lock-redlock/tests/contention.rs", "tests/failover.rs", "tests/migration_story.rs"];

/// Tests with the lock clients of other languages.
const WITH_PEERS: &[&str] =
    &["tests/interop.rs", "tests/interop_migration.rs", "tests/interop_zk.rs", "tests/migration_story.rs"];

/// Test programs without libtest, and so without its unstable options.
const OWN_HARNESS: &[&str] = &[
    "tests/conformance.rs",
    "tests/election.rs",
    "tests/interop.rs",
    "tests/interop_migration.rs",
    "tests/interop_zk.rs",
    "tests/migration_processes.rs",
    "tests/migration_story.rs",
];

/// A program of tests that cargo has built.
#[derive(Debug, PartialEq)]
pub(super) struct Program {
    executable: PathBuf,
    /// The folder of its package, in which it runs.
    package: PathBuf,
    source: PathBuf,
}

impl Program {
    /// Reads a line of cargo's JSON; `None` unless it is about a test program.
    fn of_message(message: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(message).ok()?;
        if message["profile"]["test"] != true {
            return None;
        }
        let path = |value: &Value| value.as_str().map(PathBuf::from);
        Some(Self {
            executable: path(&message["executable"])?,
            package: path(&message["manifest_path"])?.parent()?.to_owned(),
            source: path(&message["target"]["src_path"])?,
        })
    }

    fn name(&self) -> String {
        let root = workspace().canonicalize().unwrap_or_default();
        self.source.strip_prefix(root).unwrap_or(&self.source).display().to_string()
    }

    fn is_in(&self, list: &[&str]) -> bool {
        list.iter().any(|source| self.source.ends_with(source))
    }

    pub(super) fn needs_peers(&self) -> bool {
        self.is_in(WITH_PEERS)
    }

    /// Runs it as cargo would.
    pub(super) fn job(&self) -> Job {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        let computes = self.is_in(COMPUTING);
        // Otherwise libtest hides the output of tests that pass.
        if computes || self.is_in(SHOWN) {
            command.arg("--show-output");
        }
        if !self.is_in(OWN_HARNESS) {
            // The variable enables libtest's unstable options on stable Rust.
            command.args(["-Z", "unstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
        }
        Job::test(self.name(), command, computes)
    }
}

/// Which tests are built.
#[derive(Debug, Default)]
pub(super) struct Selection {
    args: Vec<String>,
    filter: Option<String>,
    is_package: bool,
    /// Whether it must have all programs that the lists of this file name.
    is_whole: bool,
}

impl Selection {
    pub(super) fn all() -> Self {
        Self { args: words("--workspace"), is_whole: true, ..Self::default() }
    }

    pub(super) fn simulations() -> Self {
        Self { args: words("--workspace --test simulation"), ..Self::default() }
    }

    pub(super) fn without(mut self, package: &str) -> Self {
        self.args.extend(["--exclude".into(), package.into()]);
        self
    }

    /// Selects by name: a package, a test program, or the programs whose sources have it in the name of a function.
    pub(super) fn of(name: &str) -> Result<Self, Failure> {
        let packages =
            packages().map_err(|error| Failure::new(format!("cannot look for packages: {error}")))?;
        let dashed = name.replace('_', "-");
        if packages.iter().any(|(package, _)| *package == dashed) {
            return Ok(Self { args: vec!["--package".into(), dashed], is_package: true, ..Self::default() });
        }
        let tests: Vec<_> = packages.iter().flat_map(|(_, folder)| tests_of(folder)).collect();
        let mut args = words("--workspace");
        if tests.iter().any(|test| test.file_stem().is_some_and(|stem| stem == name)) {
            args.extend(["--test".into(), name.to_owned()]);
            return Ok(Self { args, ..Self::default() });
        }
        let function = name.rsplit("::").next().unwrap_or(name);
        let mut programs: Vec<String> =
            tests.iter().filter(|test| defines(test, function)).map(|test| stem(test)).collect();
        // The test kit lists the cases; the names of their tests begin with backends and flavours.
        let suite = workspace().join("crates/lock-testkit/src/conformance");
        let cases = fs::read_to_string(suite.join("cases.rs")).unwrap_or_default();
        if name.contains("::") || cases.contains(function) {
            programs.push("conformance".into());
        }
        programs.sort_unstable();
        programs.dedup();
        args.extend(programs.into_iter().flat_map(|program| ["--test".into(), program]));
        let is_unit = |file: &Path| !file.starts_with(&suite) && mentions(file, function);
        let with_units = packages.into_iter().filter(|(_, folder)| any_file(&folder.join("src"), &is_unit));
        let (libraries, binaries): (Vec<_>, Vec<_>) =
            with_units.partition(|(_, folder)| folder.join("src/lib.rs").exists());
        // Cargo takes it once.
        args.extend(libraries.first().map(|_| "--lib".into()));
        args.extend(binaries.into_iter().flat_map(|(package, _)| ["--bin".into(), binary(package)]));
        // Names made by macros are in no source.
        Ok(Self { args, filter: Some(name.to_owned()), ..Self::default() })
    }

    /// The part of the names of the tests to run.
    pub(super) fn filter(&self) -> Option<&str> {
        self.filter.as_deref()
    }

    pub(super) fn is_package(&self) -> bool {
        self.is_package
    }

    /// Runs the examples in the docs.
    pub(super) fn docs(&self) -> Command {
        let mut command = self.command();
        command.arg("--doc");
        command
    }

    fn command(&self) -> Command {
        let mut command = cargo(["test", "--all-features"]);
        command.args(&self.args);
        command
    }

    /// Builds the tests and the examples, as `cargo test` does.
    pub(super) fn build(&self) -> Result<Vec<Program>, Failure> {
        let mut command = self.command();
        command.args(["--no-run", "--message-format=json-render-diagnostics"]).stderr(Stdio::inherit());
        let line = command_line(&command);
        eprintln!("    {line}");
        let output =
            command.output().map_err(|error| Failure::new(format!("cannot run `{line}`: {error}")))?;
        interrupt::check()?;
        if !output.status.success() {
            return Err(Failure::new(format!(
                "`{line}` ended with {}; its own output is above",
                output.status
            )));
        }
        let messages = String::from_utf8_lossy(&output.stdout);
        let mut programs: Vec<_> = messages.lines().filter_map(Program::of_message).collect();
        // Cargo reports them in the order of their completion.
        programs.sort_by(|one, other| one.source.cmp(&other.source));
        let is_there = |source: &&&str| programs.iter().any(|program| program.source.ends_with(source));
        let mut named = [COMPUTING, SHOWN, WITH_PEERS, OWN_HARNESS].into_iter().flatten();
        // Otherwise a renamed test would silently run in the wrong lane or without its output.
        match named.find(|source| !is_there(source)).filter(|_| self.is_whole) {
            Some(absent) => Err(Failure::new(format!(
                "`{line}` built no {absent}, which xtask/src/test/programs.rs names"
            ))),
            None => Ok(programs),
        }
    }
}

/// The packages of the workspace with their folders. Each folder in `crates/` is named after its package.
fn packages() -> io::Result<Vec<(String, PathBuf)>> {
    let root = workspace();
    let mut packages: Vec<(String, PathBuf)> = vec![
        ("polylock".into(), root.clone()),
        ("lock-bench".into(), root.join("benches")),
        ("xtask".into(), root.join("xtask")),
    ];
    for entry in fs::read_dir(root.join("crates"))? {
        let entry = entry?;
        packages.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    Ok(packages)
}

/// The name of the binary of a package without a library.
fn binary(package: String) -> String {
    if package == "lock-cli" { "polylock".into() } else { package }
}

fn tests_of(package: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(package.join("tests")).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "rs"))
        .collect()
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Whether a function of this test program has this in its name, in its file or its folder.
fn defines(test: &Path, part: &str) -> bool {
    mentions(test, part) || any_file(&test.with_extension(""), &|file| mentions(file, part))
}

fn any_file(folder: &Path, is_it: &impl Fn(&Path) -> bool) -> bool {
    fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() { any_file(&path, is_it) } else { is_it(&path) }
    })
}

fn mentions(file: &Path, part: &str) -> bool {
    file.extension().is_some_and(|kind| kind == "rs")
        && fs::read_to_string(file).is_ok_and(|text| {
            text.split("fn ")
                .skip(1)
                .any(|rest| rest.split('(').next().is_some_and(|name| name.contains(part)))
        })
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///p/crates/lock-zk#0.1.0","manifest_path":"/p/crates/lock-zk/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"model","src_path":"/p/crates/lock-zk/tests/model.rs","edition":"2024","doc":false,"doctest":false,"test":true},"profile":{"opt_level":"1","debuginfo":1,"debug_assertions":true,"overflow_checks":true,"test":true},"features":["tls"],"filenames":["/t/model-1"],"executable":"/t/model-1","fresh":true}"#;

    #[test]
    fn test_programs_are_recognised_among_cargos_messages() {
        let program = Program::of_message(MESSAGE).unwrap();
        assert_eq!(program.executable, PathBuf::from("/t/model-1"));
        assert_eq!(program.package, PathBuf::from("/p/crates/lock-zk"));
        assert!(program.is_in(COMPUTING));
        let library = MESSAGE.replace(r#""executable":"/t/model-1""#, r#""executable":null"#);
        assert_eq!(Program::of_message(&library), None);
        // The profile says whether a program is a test; an example may contain some.
        let example = MESSAGE
            .replace(r#""overflow_checks":true,"test":true"#, r#""overflow_checks":true,"test":false"#);
        assert_eq!(Program::of_message(&example), None);
        assert_eq!(Program::of_message("running 3 tests"), None);
    }

    #[test]
    fn the_output_of_some_programs_is_shown() {
        let shows = |source: &str| {
            let program = Program {
                executable: "true".into(),
                package: ".".into(),
                source: format!("/p/{source}").into(),
            };
            program.job().args().any(|arg| arg == "--show-output")
        };
        for source in COMPUTING.iter().chain(SHOWN) {
            assert!(shows(source), "{source}");
        }
        assert!(!shows("crates/lock-redlock/tests/masters.rs"));
    }

    #[test]
    fn a_name_is_that_of_a_package_a_program_or_a_part_of_a_test() {
        let args = |name: &str| Selection::of(name).unwrap().args.join(" ");
        assert_eq!(args("lock_core"), "--package lock-core");
        assert_eq!(args("topologies"), "--workspace --test topologies");
        assert_eq!(args("closed_locks_refuse"), "--workspace --test conformance");
        assert_eq!(args("permits_are_renewed_each"), "--workspace --test conformance");
        assert!(args("zk::dyn").contains("--test conformance"));
        assert_eq!(args("the_background_has"), "--workspace --bin xtask");
        assert_eq!(args("a_complaint_shows"), "--workspace --bin polylock");
    }
}
