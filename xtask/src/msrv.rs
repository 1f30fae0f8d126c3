//! Checks that the library builds with its minimum supported Rust version (MSRV).

use std::fs;
use std::process::Command;

use crate::failure::Failure;
use crate::setup::{in_path, output_of};
use crate::steps::workspace;

/// The `rust-version` of the library.
pub(crate) const VERSION: &str = env!("CARGO_PKG_RUST_VERSION");

/// The installed toolchain of that version, if rustup has one.
pub(crate) fn toolchain() -> Result<Option<String>, Failure> {
    if in_path("rustup").is_none() {
        return Ok(None);
    }
    let output = output_of(Command::new("rustup").args(["toolchain", "list"]))?;
    let list = String::from_utf8_lossy(&output.stdout);
    let is_it = |name: &&str| name.strip_prefix(VERSION).is_some_and(|rest| rest.starts_with(['.', '-']));
    Ok(list.split_whitespace().find(is_it).map(str::to_owned))
}

/// A command that checks the library from a package of its own, as a user would.
///
/// The workspace's lock file is of no use: peers of the harness need a newer Rust, and newer versions of what the library
/// depends on.
pub(crate) fn check(toolchain: &str) -> Result<Command, Failure> {
    let folder = workspace().join("target/msrv");
    let text = format!(
        "[package]\nname = \"msrv\"\nedition = \"2024\"\nrust-version = \"{VERSION}\"\n\n[lib]\npath = \"lib.rs\"\n\n\
         [dependencies]\npolylock = {{ path = \"../..\", features = [\"redis\", \"redlock\", \"zk\", \"tls\", \"sasl\"] }}\n\n\
         [workspace]\nresolver = \"3\"\n"
    );
    let write = || {
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("lib.rs"), "")?;
        fs::write(folder.join("Cargo.toml"), text)
    };
    write().map_err(|error| Failure::new(format!("cannot write {}: {error}", folder.display())))?;
    let mut rustup = Command::new("rustup");
    rustup.args(["run", toolchain, "cargo", "check", "--target-dir", "target"]).current_dir(folder);
    // Cargo sets these for the compiler that runs this program.
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        rustup.env_remove(name);
    }
    Ok(rustup)
}
