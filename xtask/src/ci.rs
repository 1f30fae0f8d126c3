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
    steps.run("dependencies of each feature", || TREES.iter().try_for_each(check_tree))?;
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

/// Lints the facade with each feature alone, and the harness without its own.
pub(crate) fn features() -> Result {
    let mut steps = Steps::start();
    TREES.iter().try_for_each(|(features, ..)| lint(&mut steps, features))?;
    let without = "clippy --package lock-bench --no-default-features -- -D warnings";
    steps.command("lints of the harness without stores", cargo(without))?;
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
    lint(steps, "")?;
    for target in PLATFORMS {
        if !holds(&format!("ls \"$(rustc --print target-libdir --target {target})\"/*.rlib")) {
            let why = format!("lints for {target}: it is not installed (rustup target add {target})");
            steps.note("left out", why);
            continue;
        }
        let features = "blocking,etcd,flock,kv,mysql,postgres,redis,redlock,zk,sasl";
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

/// Other platforms, for which the library is only checked. Without the features `tls` and `s3`, whose cryptography needs a C compiler
/// for the platform, and `sqlite`, which is built from C.
const PLATFORMS: [&str; 2] = ["x86_64-pc-windows-gnu", "aarch64-apple-darwin"];

/// Features of the facade, what they pull in, and what they must not.
type Tree = (&'static str, &'static [&'static str], &'static [&'static [&'static str]]);

const TREES: &[Tree] = &[
    ("", &["lock-core"], &[REDIS, ZK, POSTGRES, &["lock-flock", "lock-layers"]]),
    ("blocking", &["lock-core"], &[REDIS, ZK, POSTGRES]),
    ("flock", &["lock-flock"], &[REDIS, ZK, POSTGRES]),
    ("redis", &["lock-redis"], &[ZK, POSTGRES, &["rustls"]]),
    ("redlock", &["lock-redlock"], &[ZK, POSTGRES, &["rustls"]]),
    ("zk", &["lock-zk"], &[REDIS, POSTGRES]),
    ("postgres", &["lock-postgres"], &[REDIS, ZK, &["rustls"]]),
    ("kv", &["lock-kv"], &[REDIS, ZK, POSTGRES, &["sqlx", "rustls"]]),
    ("etcd", &["lock-kv", "tonic"], &[REDIS, ZK, POSTGRES, &["sqlx", "rustls"]]),
    ("s3", &["lock-kv", "object_store"], &[REDIS, ZK, POSTGRES, &["sqlx", "tonic"]]),
    ("sqlite", &["lock-kv", "sqlx-sqlite"], &[REDIS, ZK, POSTGRES, &["sqlx-mysql", "rustls"]]),
    ("mysql", &["lock-kv", "sqlx-mysql"], &[REDIS, ZK, POSTGRES, &["sqlx-sqlite", "rustls"]]),
    ("redis,tls", &["lock-redis", "rustls"], &[ZK, &["lock-redlock", "native-tls", "openssl"]]),
    ("tls", &["lock-core"], &[REDIS, ZK, POSTGRES, &["rustls"]]),
    ("layers-prefix", &["lock-layers"], &[REDIS, ZK, POSTGRES, &["metrics"]]),
    ("layers-tracing", &["lock-layers"], &[REDIS, ZK, POSTGRES, &["metrics"]]),
    ("layers-metrics", &["metrics"], &[REDIS, ZK, POSTGRES]),
    ("layers-chaos", &["lock-layers"], &[REDIS, ZK, POSTGRES, &["metrics"]]),
];
const REDIS: &[&str] = &["lock-redis", "lock-redlock", "redis", "deadpool-redis"];
const ZK: &[&str] = &["lock-zk", "zookeeper-client"];
const POSTGRES: &[&str] = &["lock-postgres", "tokio-postgres", "sqlx-postgres"];

fn check_tree(tree: &Tree) -> Result {
    let line = "tree --package polylock --edges normal --prefix none --no-default-features";
    judge(tree, &stdout_of(&mut cargo(&format!("{line} --features={}", tree.0)))?)
}

fn judge((features, must, must_not): &Tree, said: &str) -> Result {
    let crates: BTreeSet<&str> = said.lines().filter_map(|line| line.split_whitespace().next()).collect();
    // Otherwise an empty tree or a renamed crate would pass.
    if let Some(absent) = must.iter().find(|name| !crates.contains(*name)) {
        return Err(format!(
            "polylock with [{features}] does not depend on {absent}: that it has no others proves nothing"
        ));
    }
    let Some(wrong) = must_not.iter().copied().flatten().find(|name| crates.contains(*name)) else {
        return Ok(());
    };
    Err(format!(
        "polylock with [{features}] pulls in {wrong}; see `cargo tree --package polylock --edges normal \
         --no-default-features --features={features} --invert {wrong}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_of_another_backend_is_named() {
        let zk = TREES.iter().find(|(features, ..)| *features == "zk").unwrap();
        judge(zk, "polylock v0.1.0 (/p)\nlock-zk v0.1.0 (/p/z)\nredis-protocol v6.0.0\n").unwrap();
        let failure = judge(zk, "polylock v0.1.0\nlock-zk v0.1.0\nredis v1.8.0\n").unwrap_err();
        assert!(failure.contains("[zk] pulls in redis;"), "{failure}");
        judge(zk, "polylock v0.1.0\n").unwrap_err();
    }
}
