//! The test programs: selects them by name, and builds them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use serde_json::Value;

use super::lanes::Job;
use crate::failure::Failure;
use crate::servers::Store;
use crate::steps::{cargo, command_line, stdout_of, workspace};

/// A program of integration tests.
#[derive(Debug, PartialEq)]
struct Known {
    /// The name of its target, unlike all others.
    target: &'static str,
    package: &'static str,
    /// Where its modules are, in the workspace.
    folder: &'static str,
    /// Modules that only compute, without real servers and real time.
    computing: &'static [&'static str],
    /// Whether libtest-mimic runs it, which does not know libtest's unstable options.
    is_mimic: bool,
    /// The tier of its first tests: the others do not build it.
    tier: Tier,
    /// Whether it runs the lock clients of other languages.
    has_peers: bool,
}

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    First,
    Full,
    Deep,
}

impl Tier {
    fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Full => "full",
            Self::Deep => "deep",
        }
    }

    /// How many foreground programs run at a time: those of the first tier mostly wait.
    pub(super) fn at_a_time(self) -> usize {
        match self {
            Self::First => 4,
            Self::Full | Self::Deep => 2,
        }
    }
}

/// Those that take longest first.
const KNOWN: &[Known] = &[
    mimic("conformance", "polylock", "tests/conformance", Tier::First),
    libtest("facade", "polylock", "tests/it", &[]),
    libtest("zk", "lock-zk", "crates/lock-zk/tests/it", &["model", "simulation"]),
    Known { has_peers: true, ..mimic("interop", "polylock", "tests/interop", Tier::Full) },
    libtest("redis", "lock-redis", "crates/lock-redis/tests/it", &["simulation"]),
    libtest("migrate", "lock-migrate", "crates/lock-migrate/tests/it", &["models"]),
    libtest("cli", "lock-cli", "crates/lock-cli/tests/it", &[]),
    libtest("postgres", "lock-postgres", "crates/lock-postgres/tests/it", &["models"]),
    libtest(
        "redlock",
        "lock-redlock",
        "crates/lock-redlock/tests/it",
        &["models", "simulation", "virtual_time"],
    ),
    Known { tier: Tier::Full, ..libtest("harness", "lock-bench", "benches/tests/it", &[]) },
    mimic("flock", "lock-flock", "crates/lock-flock/tests/conformance", Tier::First),
    libtest("layers", "lock-layers", "crates/lock-layers/tests/it", &[]),
];

const fn libtest(
    target: &'static str,
    package: &'static str,
    folder: &'static str,
    computing: &'static [&'static str],
) -> Known {
    Known { target, package, folder, computing, is_mimic: false, tier: Tier::First, has_peers: false }
}

const fn mimic(target: &'static str, package: &'static str, folder: &'static str, tier: Tier) -> Known {
    Known { target, package, folder, computing: &[], is_mimic: true, tier, has_peers: false }
}

impl Known {
    fn of(target: &str) -> Option<&'static Self> {
        KNOWN.iter().find(|known| known.target == target)
    }

    fn folder(&self) -> PathBuf {
        workspace().join(self.folder)
    }

    fn has_module(&self, name: &str) -> bool {
        self.folder().join(name).with_extension("rs").is_file()
    }
}

/// A program of tests that cargo has built.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Program {
    executable: PathBuf,
    /// The folder of its package, in which it runs.
    package: PathBuf,
    source: PathBuf,
    /// `None` for unit tests.
    known: Option<&'static Known>,
    /// The variable that names the servers; those that are installed without.
    server: Option<(&'static str, OsString)>,
}

impl Program {
    /// Reads a line of cargo's JSON; `None` unless it is about a test program.
    fn of_message(message: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(message).ok()?;
        if message["profile"]["test"] != true {
            return None;
        }
        let path = |value: &Value| value.as_str().map(PathBuf::from);
        let target = &message["target"];
        let is_integration = target["kind"][0] == "test";
        Some(Self {
            executable: path(&message["executable"])?,
            package: path(&message["manifest_path"])?.parent()?.to_owned(),
            source: path(&target["src_path"])?,
            known: target["name"].as_str().filter(|_| is_integration).and_then(Known::of),
            server: None,
        })
    }

    /// The same program with other servers.
    pub(super) fn on(&self, variable: &'static str, server: &OsStr) -> Self {
        Self { server: Some((variable, server.to_owned())), ..self.clone() }
    }

    /// The jobs of what depends on these servers: what only computes is left out.
    pub(super) fn jobs_of_servers(&self, store: Store) -> Vec<Job> {
        let (programs, suites): (&[&str], &[&str]) = match store {
            Store::Redis => (&["redis", "redlock"], &["redis::", "setnx::", "redlock::"]),
            Store::ZooKeeper => (&["zk"], &["zk::"]),
        };
        match self.known {
            Some(known) if known.target == "conformance" => {
                suites.iter().map(|suite| self.job(Tier::First).only(suite)).collect()
            }
            Some(known) if programs.contains(&known.target) => {
                self.jobs(Tier::Full).into_iter().take(1).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn name(&self) -> String {
        match self.known {
            Some(known) => known.target.to_owned(),
            None => {
                let root = workspace().canonicalize().unwrap_or_default();
                self.source.strip_prefix(root).unwrap_or(&self.source).display().to_string()
            }
        }
    }

    pub(super) fn needs_peers(&self) -> bool {
        self.known.is_some_and(|known| known.has_peers)
    }

    pub(super) fn simulates(&self) -> bool {
        self.known.is_some_and(|known| known.computing.contains(&"simulation"))
    }

    /// Runs a tier of it as cargo would: what computes in the background.
    pub(super) fn jobs(&self, tier: Tier) -> Vec<Job> {
        let modules = self.known.map_or(&[][..], |known| known.computing);
        let Some(first) = modules.first() else { return vec![self.job(tier)] };
        let path = |module: &&str| format!("{module}::");
        let mut front = self.command(tier);
        front.args(modules.iter().flat_map(|module| ["--skip".to_owned(), path(module)]));
        let mut behind = self.command(tier);
        // Otherwise libtest hides the output of tests that pass.
        behind.arg("--show-output").args(modules.iter().map(path));
        let more = if modules.len() > 1 { ", ..." } else { "" };
        let name = format!("{} ({first}{more})", self.name());
        vec![Job::test(self.name(), front, false), Job::test(name, behind, true)]
    }

    /// Runs a tier of it in the foreground.
    pub(super) fn job(&self, tier: Tier) -> Job {
        Job::test(self.name(), self.command(tier), false)
    }

    fn command(&self, tier: Tier) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        command.env("TEST_TIER", tier.name()).envs(self.server.clone());
        if !self.known.is_some_and(|known| known.is_mimic) {
            // The variable enables libtest's unstable options on stable Rust.
            command.args(["-Z", "unstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
        }
        match tier {
            Tier::First => {}
            Tier::Full => {
                command.args(["--include-ignored", "--skip", DEEP]);
            }
            Tier::Deep => {
                command.arg("--include-ignored");
            }
        }
        command
    }
}

/// In the names of the tests that run at night.
const DEEP: &str = "deep::";

/// Which tests are built.
#[derive(Debug, Default)]
pub(super) struct Selection {
    args: Vec<String>,
    filter: Option<String>,
    is_package: bool,
    /// The programs that must be built.
    must: Vec<&'static Known>,
}

impl Selection {
    /// Unit tests and all programs. Examples are checked by the lints, and two programs run them.
    pub(super) fn all() -> Self {
        let must = KNOWN.iter().collect();
        Self { args: words("--workspace --lib --bins --tests"), must, ..Self::default() }
    }

    /// Without the programs that have no test in the first tier, and without the harness.
    pub(super) fn first() -> Self {
        let must: Vec<_> = KNOWN.iter().filter(|known| known.tier == Tier::First).collect();
        let mut args = words("--workspace --exclude lock-bench --lib --bins");
        args.extend(must.iter().flat_map(|known| ["--test".into(), known.target.into()]));
        Self { args, must, ..Self::default() }
    }

    /// The programs that [depend on servers](Program::jobs_of_servers).
    pub(super) fn of_servers() -> Self {
        let must: Vec<_> =
            ["redis", "redlock", "zk", "conformance"].into_iter().filter_map(Known::of).collect();
        let targets = must.iter().flat_map(|known| ["--test".into(), known.target.into()]);
        Self { args: words("--workspace").into_iter().chain(targets).collect(), must, ..Self::default() }
    }

    /// Built so that what computes for long is quick.
    pub(super) fn optimized(mut self) -> Self {
        self.args.extend(words("--profile deep"));
        self
    }

    /// Selects by name: a package, a test program, a module of one, or the programs whose sources have it in the name of a
    /// function.
    pub(super) fn of(name: &str) -> Result<Self, Failure> {
        let packages =
            packages().map_err(|error| Failure::new(format!("cannot look for packages: {error}")))?;
        let dashed = name.replace('_', "-");
        if let Some((package, folder)) = packages.iter().find(|(package, _)| *package == dashed) {
            return Ok(Self::of_package(package, folder));
        }
        let mut args = words("--workspace");
        if let Some(known) = Known::of(name) {
            args.extend(["--test".into(), name.to_owned()]);
            return Ok(Self { args, must: vec![known], ..Self::default() });
        }
        let modules: Vec<_> =
            KNOWN.iter().filter(|known| !known.is_mimic && known.has_module(name)).collect();
        if !modules.is_empty() {
            args.extend(modules.iter().flat_map(|known| ["--test".into(), known.target.into()]));
            return Ok(Self { args, filter: Some(format!("{name}::")), must: modules, ..Self::default() });
        }
        let function = name.rsplit("::").next().unwrap_or(name);
        // The test kit lists the cases; the names of their tests begin with backends and flavours.
        let suite = workspace().join("crates/lock-testkit/src/conformance");
        let cases = fs::read_to_string(suite.join("cases.rs")).unwrap_or_default();
        let is_case = name.contains("::") || cases.contains(function);
        let must: Vec<_> = KNOWN
            .iter()
            .filter(|known| {
                let is_suite = known.target == "conformance" && is_case;
                is_suite || any_file(&known.folder(), &|file| mentions(file, function))
            })
            .collect();
        args.extend(must.iter().flat_map(|known| ["--test".into(), known.target.into()]));
        let is_unit = |file: &Path| !file.starts_with(&suite) && mentions(file, function);
        let with_units = packages.into_iter().filter(|(_, folder)| any_file(&folder.join("src"), &is_unit));
        let (libraries, binaries): (Vec<_>, Vec<_>) =
            with_units.partition(|(_, folder)| folder.join("src/lib.rs").exists());
        // Cargo takes it once.
        args.extend(libraries.first().map(|_| "--lib".into()));
        args.extend(binaries.into_iter().flat_map(|(package, _)| ["--bin".into(), binary(package)]));
        // Names made by macros are in no source.
        Ok(Self { args, filter: Some(name.to_owned()), must, ..Self::default() })
    }

    /// The unit tests and the programs of a package.
    ///
    /// The command is selected with it, of which nothing is built: its dependencies enable most features that the workspace
    /// enables, so that what was built for all tests need not be built again for these.
    fn of_package(package: &str, folder: &Path) -> Self {
        let mut args = words("--package lock-cli");
        if package != "lock-cli" {
            args.extend(["--package".into(), package.to_owned()]);
        }
        if folder.join("src/lib.rs").is_file() {
            args.push("--lib".into());
        } else {
            args.extend(["--bin".into(), binary(package.to_owned())]);
        }
        let must: Vec<_> = KNOWN.iter().filter(|known| known.package == package).collect();
        args.extend(must.iter().flat_map(|known| ["--test".into(), known.target.into()]));
        Self { args, is_package: true, must, ..Self::default() }
    }

    /// The part of the names of the tests to run.
    pub(super) fn filter(&self) -> Option<&str> {
        self.filter.as_deref()
    }

    pub(super) fn is_package(&self) -> bool {
        self.is_package
    }

    /// Runs the examples in the docs of all packages but this one.
    pub(super) fn docs(without: Option<&str>) -> Command {
        let mut command = cargo(["test", "--all-features", "--workspace", "--doc"]);
        command.args(without.into_iter().flat_map(|package| ["--exclude", package]));
        command
    }

    /// Builds the tests, as `cargo test` does.
    pub(super) fn build(&self) -> Result<Vec<Program>, Failure> {
        let mut command = cargo(["test", "--all-features"]);
        command.args(&self.args);
        command.args(["--no-run", "--message-format=json-render-diagnostics"]);
        let line = command_line(&command);
        eprintln!("    {line}");
        let messages = stdout_of(&mut command)?;
        let mut programs: Vec<_> = messages.lines().filter_map(Program::of_message).collect();
        // Cargo reports them in the order of their completion. Those that take longest begin.
        programs.sort_by_key(|program| {
            // Unit tests are quick, but for those of the test kit.
            let at = KNOWN.iter().position(|known| program.known == Some(known));
            let is_kit = program.package.ends_with("lock-testkit");
            (at.unwrap_or(if is_kit { 0 } else { KNOWN.len() }), program.source.clone())
        });
        // Otherwise what is renamed would silently run in the wrong lane, or not at all.
        for known in &self.must {
            if !programs.iter().any(|program| program.known == Some(*known)) {
                return Err(absent(&format!("`{line}` built no {}", known.target)));
            }
            if let Some(module) = known.computing.iter().find(|module| !known.has_module(module)) {
                return Err(absent(&format!("{} has no {module}.rs", known.folder)));
            }
        }
        Ok(programs)
    }
}

fn absent(what: &str) -> Failure {
    Failure::new(format!("{what}, which xtask/src/test/programs.rs names"))
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

fn any_file(folder: &Path, is_it: &impl Fn(&Path) -> bool) -> bool {
    fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() { any_file(&path, is_it) } else { is_it(&path) }
    })
}

/// Whether a function in this file has this in its name.
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

    const MESSAGE: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///p/crates/lock-zk#0.1.0","manifest_path":"/p/crates/lock-zk/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"zk","src_path":"/p/crates/lock-zk/tests/it/main.rs","edition":"2024","doc":false,"doctest":false,"test":true},"profile":{"opt_level":"1","debuginfo":1,"debug_assertions":true,"overflow_checks":true,"test":true},"features":["tls"],"filenames":["/t/zk-1"],"executable":"/t/zk-1","fresh":true}"#;

    #[test]
    fn test_programs_are_recognised_among_cargos_messages() {
        let program = Program::of_message(MESSAGE).unwrap();
        assert_eq!(program.executable, PathBuf::from("/t/zk-1"));
        assert_eq!(program.package, PathBuf::from("/p/crates/lock-zk"));
        assert_eq!(program.known, Known::of("zk"));
        let unit = MESSAGE.replace(r#""kind":["test"]"#, r#""kind":["lib"]"#);
        assert_eq!(Program::of_message(&unit).unwrap().known, None);
        let library = MESSAGE.replace(r#""executable":"/t/zk-1""#, r#""executable":null"#);
        assert_eq!(Program::of_message(&library), None);
        // The profile says whether a program is a test; an example may contain some.
        let example = MESSAGE
            .replace(r#""overflow_checks":true,"test":true"#, r#""overflow_checks":true,"test":false"#);
        assert_eq!(Program::of_message(&example), None);
        assert_eq!(Program::of_message("running 3 tests"), None);
    }

    #[test]
    fn what_computes_runs_in_the_background_and_nothing_runs_twice() {
        let program = Program::of_message(MESSAGE).unwrap();
        let args = program
            .jobs(Tier::Full)
            .iter()
            .map(|job| job.args().collect::<Vec<_>>().join(" ".as_ref()))
            .collect::<Vec<_>>();
        assert_eq!(args.len(), 2);
        assert!(args[0].to_string_lossy().ends_with("--skip model:: --skip simulation::"), "{args:?}");
        assert!(args[1].to_string_lossy().ends_with("--show-output model:: simulation::"), "{args:?}");
    }

    #[test]
    fn a_program_runs_on_the_servers_that_it_is_about() {
        let program = Program::of_message(MESSAGE).unwrap().on("ZOOKEEPER_CLASSPATH", "/t/*".as_ref());
        assert!(program.jobs_of_servers(Store::Redis).is_empty());
        let [job] = &program.jobs_of_servers(Store::ZooKeeper)[..] else {
            panic!("one job: the rest only computes")
        };
        assert!(job.args().any(|arg| arg == "simulation::"), "it is skipped: {job:?}");
        assert!(format!("{job:?}").contains("ZOOKEEPER_CLASSPATH"), "{job:?}");
    }

    #[test]
    fn what_runs_at_night_is_in_modules_of_that_name() {
        // These commands speak of the attribute.
        for (_, folder) in packages().unwrap().into_iter().filter(|(package, _)| package != "xtask") {
            let is_misplaced = |file: &Path| {
                let text = fs::read_to_string(file).unwrap_or_default();
                let outside = text.split("mod deep {").next().unwrap_or_default();
                outside.contains("#[ignore = \"deep: ")
            };
            let file = |file: &Path| file.extension().is_some_and(|kind| kind == "rs") && is_misplaced(file);
            for part in ["src", "tests"] {
                assert!(
                    !any_file(&folder.join(part), &file),
                    "{} has a test of --deep outside",
                    folder.display()
                );
            }
        }
    }

    #[test]
    fn every_program_of_the_workspace_is_known() {
        let with_tests = packages().unwrap().into_iter().filter(|(_, folder)| folder.join("tests").is_dir());
        for (package, folder) in with_tests {
            let known: Vec<_> = KNOWN.iter().filter(|known| known.package == package).collect();
            for entry in fs::read_dir(folder.join("tests")).unwrap() {
                let path = entry.unwrap().path();
                let is_program =
                    path.join("main.rs").is_file() || path.extension().is_some_and(|kind| kind == "rs");
                assert!(
                    !is_program || known.iter().any(|known| path.ends_with(known.folder)),
                    "{}",
                    path.display()
                );
            }
        }
    }

    #[test]
    fn a_name_is_that_of_a_package_a_program_a_module_or_a_part_of_a_test() {
        let args = |name: &str| Selection::of(name).unwrap().args.join(" ");
        assert_eq!(args("lock_core"), "--package lock-cli --package lock-core --lib");
        assert_eq!(args("lock-cli"), "--package lock-cli --bin polylock --test cli");
        assert_eq!(args("redis"), "--workspace --test redis");
        assert_eq!(args("connection"), "--workspace --test redis");
        assert_eq!(Selection::of("connection").unwrap().filter(), Some("connection::"));
        assert_eq!(args("ghosts"), "--workspace --test redis --test redlock");
        assert_eq!(args("closed_locks_refuse"), "--workspace --test conformance");
        assert_eq!(args("permits_are_renewed_each"), "--workspace --test conformance");
        assert!(args("zk::dyn").contains("--test conformance"));
        assert_eq!(args("the_background_has"), "--workspace --bin xtask");
        assert_eq!(args("a_complaint_shows"), "--workspace --bin polylock");
    }
}
