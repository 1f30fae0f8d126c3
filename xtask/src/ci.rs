//! `cargo xtask ci`: everything that a commit must pass, cheapest first.

use std::collections::BTreeSet;
use std::process::Command;

use crate::command::{Result, cargo, holds, shell, stdout_of, workspace};
use crate::steps::Steps;
use crate::{compare, peers, setup, test, time_in_tests};

/// Runs every step.
///
/// No step sets RUSTFLAGS, and the features of the whole workspace are always `--all-features`, so that dependencies are
/// built once for checking and once for running.
pub(crate) fn run() -> Result {
    let mut steps = Steps::start();
    steps.command("format", cargo("fmt --all --check"))?;
    steps.run("time in tests", time_in_tests::check)?;
    for (tool, line) in TOOLS {
        if holds(&format!("command -v {tool}")) {
            steps.command(tool, in_workspace(line))?;
        } else {
            steps.note("left out", format!("{tool}: it is not installed"));
        }
    }
    steps.run("set-up", setup::ensure)?;
    steps.run("dependencies of each feature", || TREES.iter().try_for_each(Tree::check))?;
    // The one waits for the network, the others compute.
    let peers = || peers::ensure().and_then(|()| setup::offer_optional());
    steps.beside("peers", peers, check)?;
    test::full(&mut steps)?;
    // As the tests built it: no target is judged here.
    steps.command("compare", compare::harness("debug", &["--quick".into()])?)?;
    steps.command("faults", compare::harness("debug", &["--faults".into(), "--quick".into()])?)?;
    steps.summary();
    Ok(())
}

/// Lints the facade with each feature alone.
pub(crate) fn features() -> Result {
    let mut steps = Steps::start();
    TREES.iter().try_for_each(|tree| lint(&mut steps, tree.features))?;
    steps.summary();
    Ok(())
}

fn lint(steps: &mut Steps, features: &str) -> Result {
    let line =
        format!("clippy --package polylock --no-default-features --features={features} -- -D warnings");
    steps.command(&format!("lints with features [{features}]"), cargo(&line))
}

/// Checks the code, and runs none of it.
fn check(steps: &mut Steps) -> Result {
    steps.command("lints", cargo("clippy --workspace --all-targets --all-features -- -D warnings"))?;
    // Each feature alone is linted at night: others of their dependencies' features have them built anew, which takes minutes.
    for features in ["", "flock,postgres,redis,redlock,zk"] {
        lint(steps, features)?;
    }
    for target in PLATFORMS {
        if !holds(&format!("ls \"$(rustc --print target-libdir --target {target})\"/*.rlib")) {
            let why = format!("lints for {target}: it is not installed (rustup target add {target})");
            steps.note("left out", why);
            continue;
        }
        let features = "blocking,flock,postgres,redis,redlock,zk,sasl";
        let line =
            format!("clippy --package polylock --features {features} --target {target} -- -D warnings");
        steps.command(&format!("lints for {target}"), cargo(&line))?;
    }
    let version = env!("CARGO_PKG_RUST_VERSION");
    let mut check = in_workspace(include_str!("msrv.sh"));
    check.args(["msrv.sh", version]);
    if holds(&format!("rustup toolchain list | grep '^{version}[.-]'")) {
        steps.command(&format!("check by Rust {version}"), check)?;
    } else {
        steps.note("left out", format!("check by Rust {version}: rustup toolchain install {version}"));
    }
    let mut docs = cargo("doc --workspace --no-deps --all-features");
    docs.env("RUSTDOCFLAGS", "-D warnings");
    steps.command("docs", docs)
}

fn in_workspace(lines: &str) -> Command {
    let mut command = shell(lines);
    command.current_dir(workspace());
    command
}

/// Tools that are run when they are installed: they take long to build. Spelling; licences. (Advisories need the network, and are
/// checked by the nightly workflow.)
const TOOLS: [(&str, &str); 2] =
    [("typos", "typos"), ("cargo-deny", "cargo-deny check bans licenses sources")];

/// Other platforms, for which the library is only checked. Without the feature `tls`, whose cryptography needs a C compiler
/// for the platform.
const PLATFORMS: [&str; 2] = ["x86_64-pc-windows-gnu", "aarch64-apple-darwin"];

/// What features of the facade may pull in.
struct Tree {
    features: &'static str,
    must: &'static [&'static str],
    must_not: &'static [&'static [&'static str]],
}

const TREES: &[Tree] = &[
    tree("", &["lock-core"], &[REDIS, ZK, POSTGRES, &["lock-flock", "lock-layers"]]),
    tree("blocking", &["lock-core"], &[REDIS, ZK, POSTGRES]),
    tree("flock", &["lock-flock"], &[REDIS, ZK, POSTGRES]),
    tree("redis", &["lock-redis"], &[ZK, POSTGRES, &["rustls"]]),
    tree("redlock", &["lock-redlock"], &[ZK, POSTGRES, &["rustls"]]),
    tree("zk", &["lock-zk"], &[REDIS, POSTGRES]),
    tree("postgres", &["lock-postgres"], &[REDIS, ZK, &["rustls"]]),
    tree("redis,tls", &["lock-redis", "rustls"], &[ZK, &["lock-redlock", "native-tls", "openssl"]]),
    tree("tls", &["lock-core"], &[REDIS, ZK, POSTGRES, &["rustls"]]),
    tree("layers-prefix", &["lock-layers"], &[REDIS, ZK, POSTGRES, &["metrics"]]),
    tree("layers-tracing", &["lock-layers"], &[REDIS, ZK, POSTGRES, &["metrics"]]),
    tree("layers-metrics", &["metrics"], &[REDIS, ZK, POSTGRES]),
    tree("layers-chaos", &["lock-layers"], &[REDIS, ZK, POSTGRES, &["metrics"]]),
];
const REDIS: &[&str] = &["lock-redis", "lock-redlock", "redis", "deadpool-redis"];
const ZK: &[&str] = &["lock-zk", "zookeeper-client"];
const POSTGRES: &[&str] = &["lock-postgres", "tokio-postgres"];

const fn tree(
    features: &'static str,
    must: &'static [&'static str],
    must_not: &'static [&'static [&'static str]],
) -> Tree {
    Tree { features, must, must_not }
}

impl Tree {
    fn check(&self) -> Result {
        let tree = "tree --package polylock --edges normal --prefix none --no-default-features";
        self.judge(&stdout_of(&mut cargo(&format!("{tree} --features={}", self.features)))?)
    }

    fn judge(&self, tree: &str) -> Result {
        let crates: BTreeSet<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
        // Otherwise an empty tree or a renamed crate would pass.
        if let Some(absent) = self.must.iter().find(|name| !crates.contains(*name)) {
            let why = "so the check of its dependencies proves nothing";
            return Err(format!("polylock with [{}] does not depend on {absent}, {why}", self.features));
        }
        let mut must_not = self.must_not.iter().copied().flatten();
        let Some(wrong) = must_not.find(|name| crates.contains(*name)) else { return Ok(()) };
        Err(format!(
            "polylock with [{0}] pulls in {wrong}; see `cargo tree --package polylock --edges normal \
             --no-default-features --features={0} --invert {wrong}`",
            self.features,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_of_another_backend_is_named() {
        let zk = TREES.iter().find(|tree| tree.features == "zk").unwrap();
        zk.judge("polylock v0.1.0 (/p)\nlock-zk v0.1.0 (/p/z)\nredis-protocol v6.0.0\n").unwrap();
        let failure = zk.judge("polylock v0.1.0\nlock-zk v0.1.0\nredis v1.8.0\n").unwrap_err();
        assert!(failure.contains("[zk] pulls in redis;"), "{failure}");
        zk.judge("polylock v0.1.0\n").unwrap_err();
    }
}
