//! The test programs: selects them by name, and builds them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::lanes::{Job, tied_to_us};
use crate::command::{Result, cargo, line_of, metadata, shell, stdout_of, workspace};

/// How much is run.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Tier {
    First,
    Full,
    Deep,
}

/// Those that take longest begin.
const LONGEST: &str =
    "crates/lock-testkit/src/lib.rs conformance postgres facade zk interop cli migrate redis harness";
/// Runs the lock clients of other languages, and has no test in the first tier.
pub(super) const INTEROP: &str = "interop";
/// Has none either, and takes as long to build as everything else.
const HARNESS: &str = "lock-bench";
/// Modules of programs that only compute, without real servers and real time.
const COMPUTING: [&str; 4] = ["model", "models", "simulation", "virtual_time"];
/// In the names of the tests that run at night.
const DEEP: &str = "deep::";

/// A program of tests that cargo has built.
#[derive(Clone)]
pub(super) struct Program {
    /// Of unit tests their file.
    pub(super) name: String,
    executable: PathBuf,
    /// The folder of its package, in which it runs.
    package: PathBuf,
    is_libtest: bool,
    /// Its modules that only compute.
    pub(super) computing: Vec<&'static str>,
    /// The variable that names the servers; those that are installed without.
    server: Option<(&'static str, OsString)>,
}

impl Program {
    /// Reads a line of cargo's JSON; `None` unless it is about a test program.
    fn of_message(message: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(message).ok()?;
        // An example may contain tests, too.
        if message["profile"]["test"] != true {
            return None;
        }
        let path = |value: &Value| value.as_str().map(PathBuf::from);
        let target = &message["target"];
        let (source, is_unit) = (path(&target["src_path"])?, target["kind"][0] != "test");
        let file = source.strip_prefix(workspace()).unwrap_or(&source).to_str()?;
        let computing =
            COMPUTING.into_iter().filter(|module| !is_unit && has_module(&source, module)).collect();
        Some(Self {
            name: (if is_unit { file } else { target["name"].as_str()? }).to_owned(),
            executable: path(&message["executable"])?,
            package: path(&message["manifest_path"])?.parent()?.to_owned(),
            is_libtest: is_unit || is_libtest(&source),
            computing,
            server: None,
        })
    }

    /// The same program with other servers.
    pub(super) fn on(&self, server: &(&'static str, OsString)) -> Self {
        Self { server: Some(server.clone()), ..self.clone() }
    }

    /// The jobs of what depends on these servers: what only computes is left out.
    pub(super) fn jobs_of_servers(&self, server: &str) -> Vec<Job> {
        let (programs, suites): (&[_], &[_]) = match server.starts_with("zk") {
            true => (&["zk"], &["zk::"]),
            false => (&["redis", "redlock"], &["redis::", "setnx::", "redlock::"]),
        };
        match &*self.name {
            "conformance" => suites.iter().map(|suite| self.job(Tier::First, &[suite])).collect(),
            name if programs.contains(&name) => self.jobs(Tier::Full).into_iter().take(1).collect(),
            _ => Vec::new(),
        }
    }

    /// Runs a tier of it as cargo would: what computes in the background.
    pub(super) fn jobs(&self, tier: Tier) -> Vec<Job> {
        let modules: Vec<_> = self.computing.iter().map(|module| format!("{module}::")).collect();
        let mut front = self.job(tier, &[]);
        front.command.args(modules.iter().flat_map(|module| ["--skip", module]));
        // Otherwise libtest hides the output of tests that pass.
        let mut behind = self.run(tier, true, &["--show-output"]);
        behind.command.args(&modules);
        if modules.is_empty() { vec![front] } else { vec![front, behind] }
    }

    /// Runs a tier of it in the foreground, with these arguments.
    pub(super) fn job(&self, tier: Tier, more: &[&str]) -> Job {
        self.run(tier, false, more)
    }

    fn run(&self, tier: Tier, in_background: bool, more: &[&str]) -> Job {
        let (tier, args): (_, &[_]) = match tier {
            Tier::First => ("first", &[]),
            Tier::Full => ("full", &["--include-ignored", "--skip", DEEP]),
            Tier::Deep => ("deep", &["--include-ignored"]),
        };
        let mut command = tied_to_us(in_background);
        command.arg(&self.executable).args(args).args(more).envs(self.server.clone());
        // The test kit reads the tier.
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package).env("TEST_TIER", tier);
        if self.is_libtest {
            // The variable enables libtest's unstable options on stable Rust.
            command.args(["-Z", "unstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
        }
        Job { program: self.name.clone(), command, in_background }
    }
}

/// Builds tests as `cargo test` does, with these arguments.
pub(super) fn build(args: &str) -> Result<Vec<Program>> {
    let line = format!("test --all-features {args} --no-run --message-format=json-render-diagnostics");
    let mut command = cargo(&line);
    eprintln!("    {}", line_of(&command));
    let messages = stdout_of(&mut command)?;
    let mut programs: Vec<_> = messages.lines().filter_map(Program::of_message).collect();
    // Cargo reports them in the order of their completion.
    let place = |name: &str| LONGEST.find(name).unwrap_or(LONGEST.len());
    programs.sort_by_key(|program| (place(&program.name), program.name.clone()));
    Ok(programs)
}

/// Selects all but the programs that have no test in the first tier. Nothing is excluded, so that dependencies have the same
/// features as for all programs, and are built once.
pub(super) fn select_first() -> Result<String> {
    let is_first = |target: &Target| target.package != HARNESS && target.arg != format!("--test={INTEROP}");
    Ok(format!("--workspace {}", args_of(&targets()?, is_first)))
}

/// Selects by name: a package, a test program, a module of one, or the programs whose sources have it in the name of a function.
/// For the last two also returns the part of the names of the tests to run.
pub(super) fn select(name: &str) -> Result<(String, Option<String>)> {
    let targets = targets()?;
    let package = name.replace('_', "-");
    let of_package = args_of(&targets, |target| target.package == package);
    if !of_package.is_empty() {
        // The command is selected with it, of which nothing is built: its dependencies enable most features that the workspace
        // enables, so that what was built for all tests need not be built again for these.
        return Ok((format!("--package lock-cli --package {package} {of_package}"), None));
    }
    let program = args_of(&targets, |target| target.arg == format!("--test={name}"));
    if !program.is_empty() {
        return Ok((format!("--workspace {program}"), None));
    }
    let modules = args_of(&targets, |target| {
        target.is_test && is_libtest(&target.source) && has_module(&target.source, name)
    });
    if !modules.is_empty() {
        return Ok((format!("--workspace {modules}"), Some(format!("{name}::"))));
    }
    // The test kit lists the cases of the suite; the names of their tests begin with backends and flavours.
    let function = name.rsplit("::").next().unwrap_or(name);
    let suite = workspace().join("crates/lock-testkit/src/conformance");
    let cases = fs::read_to_string(suite.join("cases.rs")).unwrap_or_default();
    let is_case = name.contains("::") || cases.contains(function);
    let line = format!("grep -rlE --include=*.rs --exclude-dir=target 'fn [a-z0-9_]*{function}' .");
    let files = shell(&line).current_dir(workspace()).output().map_err(|error| error.to_string())?.stdout;
    let files = String::from_utf8_lossy(&files);
    let functions = args_of(&targets, |target| {
        let mut files = files.lines().map(|file| workspace().join(file.trim_start_matches("./")));
        let is_there =
            |file: PathBuf| file.starts_with(target.folder()) && !(is_case && file.starts_with(&suite));
        (is_case && target.arg == "--test=conformance") || files.any(is_there)
    });
    // Names made by macros are in no source: without one, everything is built.
    Ok((format!("--workspace {functions}"), Some(name.to_owned())))
}

/// A library, a program, or a program of tests.
struct Target {
    package: String,
    /// What selects it.
    arg: String,
    is_test: bool,
    source: PathBuf,
}

/// Those of the workspace.
fn targets() -> Result<Vec<Target>> {
    let metadata = metadata()?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| {
        package["targets"].as_array().into_iter().flatten().filter_map(move |target| {
            let (kind, name) = (text(&target["kind"][0]), text(&target["name"]));
            let arg = match &*kind {
                "lib" => "--lib".to_owned(),
                "bin" | "test" => format!("--{kind}={name}"),
                _ => return None,
            };
            let source = text(&target["src_path"]).into();
            Some(Target { package: text(&package["name"]), arg, is_test: kind == "test", source })
        })
    });
    Ok(targets.collect())
}

impl Target {
    fn folder(&self) -> &Path {
        self.source.parent().unwrap_or(&self.source)
    }
}

/// The arguments that select these.
fn args_of(targets: &[Target], is_one: impl Fn(&Target) -> bool) -> String {
    // Cargo takes `--lib` once.
    let args: BTreeSet<_> =
        targets.iter().filter(|target| is_one(target)).map(|target| &*target.arg).collect();
    args.into_iter().collect::<Vec<_>>().join(" ")
}

/// Not so if libtest-mimic runs the tests, which does not know libtest's unstable options.
fn is_libtest(source: &Path) -> bool {
    !fs::read_to_string(source).is_ok_and(|text| text.contains("libtest_mimic"))
}

/// In the folder of the program, or in one below.
fn has_module(source: &Path, name: &str) -> bool {
    source.parent().is_some_and(|folder| has_file(folder, &format!("{name}.rs")))
}

fn has_file(folder: &Path, name: &str) -> bool {
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    folder.join(name).is_file() || entries.any(|path| path.is_dir() && has_file(&path, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_a_package_a_program_a_module_or_a_part_of_a_test() {
        for (name, args, filter) in [
            ("lock_core", "--package lock-cli --package lock-core --lib", None),
            ("redis", "--workspace --test=redis", None),
            ("connection", "--workspace --test=redis", Some("connection::")),
            ("closed_locks_refuse", "--workspace --test=conformance", Some("closed_locks_refuse")),
            ("what_takes_too_long_is", "--workspace --bin=xtask", Some("what_takes_too_long_is")),
        ] {
            assert_eq!(select(name).unwrap(), (args.into(), filter.map(str::to_owned)));
        }
    }
}
