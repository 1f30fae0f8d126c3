//! `cargo xtask ci`: everything that a commit must pass, cheapest first.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::failure::Failure;
use crate::steps::{Steps, cargo, command_line, stdout_of, workspace};
use crate::{compare, msrv, peers, setup, test};

/// Runs every step.
///
/// No step sets RUSTFLAGS, and the features of the whole workspace are always `--all-features`, so that dependencies are
/// built once for checking and once for running.
pub(crate) fn run() -> Result<(), Failure> {
    let mut steps = Steps::start();
    steps.command("format", cargo(["fmt", "--all", "--check"]))?;
    for (tool, args) in TOOLS {
        if setup::in_path(tool).is_none() {
            steps.leave_out(format!("{tool}: it is not installed"));
            continue;
        }
        let mut check = Command::new(tool);
        check.args(args).current_dir(workspace());
        steps.command(tool, check)?;
    }
    steps.run("set-up", setup::ensure)?;
    steps.run("peers", peers::ensure)?;
    setup::offer_optional()?;
    for tree in TREES {
        steps.run(&format!("dependencies of {}", tree.name()), || tree.check())?;
    }
    steps.command("lints", cargo(words("clippy --workspace --all-targets --all-features -- -D warnings")))?;
    for tree in TREES {
        let mut lints = cargo(words("clippy --package polylock --no-default-features"));
        lints.args(tree.features()).args(["--", "-D", "warnings"]);
        steps.command(&format!("lints of {}", tree.name()), lints)?;
    }
    for target in PLATFORMS {
        if !is_installed(target)? {
            steps.leave_out(format!("lints for {target}: it is not installed (rustup target add {target})"));
            continue;
        }
        let mut lints = cargo(words(
            "clippy --package polylock --features blocking,flock,postgres,redis,redlock,zk,sasl",
        ));
        lints.args(["--target", target, "--", "-D", "warnings"]);
        steps.command(&format!("lints for {target}"), lints)?;
    }
    match msrv::toolchain()? {
        Some(toolchain) => steps.command(&format!("check by Rust {toolchain}"), msrv::check(&toolchain)?)?,
        None => steps.leave_out(format!("check by Rust {0}: rustup toolchain install {0}", msrv::VERSION)),
    }
    let mut docs = cargo(words("doc --workspace --no-deps --all-features"));
    docs.env("RUSTDOCFLAGS", "-D warnings");
    steps.command("docs", docs)?;
    test::full(&mut steps)?;
    // As the tests built it: no target is judged here.
    steps.command("compare", compare::harness("debug", &["--quick".into()])?)?;
    steps.command("faults", compare::harness("debug", &["--faults".into(), "--quick".into()])?)?;
    steps.summary();
    Ok(())
}

/// Tools that are run when they are installed: they take long to build. Spelling; licences. (Advisories need the network, and are
/// checked by the nightly workflow.)
const TOOLS: [(&str, &[&str]); 2] =
    [("typos", &[]), ("cargo-deny", &["check", "bans", "licenses", "sources"])];

/// Other platforms, for which the library is only checked. Without the feature `tls`, whose cryptography needs a C compiler
/// for the platform.
const PLATFORMS: [&str; 2] = ["x86_64-pc-windows-gnu", "aarch64-apple-darwin"];

/// Whether the standard library of this target is installed.
fn is_installed(target: &str) -> Result<bool, Failure> {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--print", "target-libdir", "--target", target]).current_dir(workspace());
    let libraries = Path::new(stdout_of(&mut rustc)?.trim()).read_dir();
    Ok(libraries.is_ok_and(|mut entries| entries.next().is_some()))
}

/// What one feature of the facade may pull in.
struct Tree {
    /// Empty for none.
    feature: &'static str,
    must: &'static [&'static str],
    must_not: &'static [&'static [&'static str]],
}

const TREES: &[Tree] = &[
    tree("", &["lock-core"], &[STORES, &["lock-flock", "lock-layers"]]),
    tree("blocking", &["lock-core"], &[STORES]),
    tree("flock", &["lock-flock"], &[STORES]),
    tree("redis", &["lock-redis"], &[ZK, POSTGRES, &["rustls"]]),
    tree("redlock", &["lock-redlock"], &[ZK, POSTGRES, &["rustls"]]),
    tree("zk", &["lock-zk"], &[REDIS, POSTGRES]),
    tree("postgres", &["lock-postgres"], &[REDIS, ZK, &["rustls"]]),
    tree("redis,tls", &["lock-redis", "rustls"], &[ZK, &["lock-redlock", "native-tls", "openssl"]]),
    tree("tls", &["lock-core"], &[STORES, &["rustls"]]),
    tree("layers-prefix", &["lock-layers"], &[STORES, &["metrics"]]),
    tree("layers-tracing", &["lock-layers"], &[STORES, &["metrics"]]),
    tree("layers-metrics", &["metrics"], &[STORES]),
    tree("layers-chaos", &["lock-layers"], &[STORES, &["metrics"]]),
];
const REDIS: &[&str] = &["lock-redis", "lock-redlock", "redis", "deadpool-redis"];
const ZK: &[&str] = &["lock-zk", "zookeeper-client"];
const POSTGRES: &[&str] = &["lock-postgres", "tokio-postgres"];
const STORES: &[&str] = &[
    "lock-redis",
    "lock-redlock",
    "redis",
    "deadpool-redis",
    "lock-zk",
    "zookeeper-client",
    "lock-postgres",
    "tokio-postgres",
];

const fn tree(
    feature: &'static str,
    must: &'static [&'static str],
    must_not: &'static [&'static [&'static str]],
) -> Tree {
    Tree { feature, must, must_not }
}

impl Tree {
    fn name(&self) -> String {
        if self.feature.is_empty() { "no feature".into() } else { format!("feature {}", self.feature) }
    }

    fn features(&self) -> Vec<&'static str> {
        if self.feature.is_empty() { Vec::new() } else { vec!["--features", self.feature] }
    }

    fn check(&self) -> Result<(), Failure> {
        let mut command =
            cargo(words("tree --package polylock --edges normal --prefix none --no-default-features"));
        command.args(self.features());
        eprintln!("    {}", command_line(&command));
        self.judge(&stdout_of(&mut command)?)
    }

    fn judge(&self, tree: &str) -> Result<(), Failure> {
        let crates: BTreeSet<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
        // Otherwise an empty tree or a renamed crate would pass.
        if let Some(absent) = self.must.iter().find(|name| !crates.contains(*name)) {
            return Err(Failure::new(format!(
                "polylock with {} does not depend on {absent}, so the check of its dependencies proves nothing",
                self.name()
            )));
        }
        let must_not = self.must_not.iter().copied().flatten().copied();
        let wrong: Vec<&str> = must_not.filter(|name| crates.contains(name)).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!(
            "polylock with {} pulls in {}; see `cargo tree --package polylock --edges normal \
             --no-default-features{} --invert {}`",
            self.name(),
            wrong.join(", "),
            self.features().iter().map(|word| format!(" {word}")).collect::<String>(),
            wrong[0],
        )))
    }
}

fn words(line: &str) -> std::str::SplitWhitespace<'_> {
    line.split_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZK: &Tree = &TREES[5];

    #[test]
    fn a_target_is_installed_or_not() {
        // The host, and a target that has no standard library.
        let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        assert!(is_installed(&host).unwrap());
        assert!(!is_installed("armv7-rtems-eabihf").unwrap());
        assert!(is_installed("no-such-target").unwrap_err().to_string().contains("no-such-target"));
    }

    #[test]
    fn a_clean_tree_passes() {
        ZK.judge("polylock v0.1.0 (/p)\nlock-zk v0.1.0 (/p/z)\nlock-core v0.1.0\nzookeeper-client v0.11.2\n")
            .unwrap();
    }

    #[test]
    fn a_crate_of_another_backend_is_named() {
        let failure = ZK.judge("polylock v0.1.0\nlock-zk v0.1.0\nredis v1.8.0\n").unwrap_err().to_string();
        assert!(failure.contains("feature zk pulls in redis;"), "{failure}");
        assert!(failure.contains("--features zk --invert redis"), "{failure}");
    }

    #[test]
    fn crates_with_similar_names_do_not_count() {
        ZK.judge("polylock v0.1.0\nlock-zk v0.1.0\nredis-protocol v6.0.0\n").unwrap();
    }

    #[test]
    fn a_tree_without_the_backend_itself_fails() {
        let failure = ZK.judge("polylock v0.1.0\n").unwrap_err().to_string();
        assert!(failure.contains("does not depend on lock-zk"), "{failure}");
    }
}
