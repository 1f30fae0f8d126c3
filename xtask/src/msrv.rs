//! Checks that the library builds with its minimum supported Rust version (MSRV).

use std::fs;
use std::process::Command;

use crate::command::{Result, holds, shell, stdout_of, workspace};

/// The `rust-version` of the library.
pub(crate) const VERSION: &str = env!("CARGO_PKG_RUST_VERSION");

/// A command that checks the library from a package of its own, as a user would; `None` if rustup has no such toolchain.
///
/// The workspace's lock file is of no use: peers of the harness need a newer Rust, and newer versions of what the library
/// depends on.
pub(crate) fn check() -> Result<Option<Command>> {
    let list = format!("rustup toolchain list | grep -o '^{VERSION}[.-][^ ]*'");
    if !holds(&list) {
        return Ok(None);
    }
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
    write().map_err(|error| format!("cannot write {}: {error}", folder.display()))?;
    let mut rustup = Command::new("rustup");
    rustup.args(["run", stdout_of(&mut shell(&list))?.trim(), "cargo", "check", "--target-dir", "target"]);
    // Cargo sets these for the compiler that runs this program.
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        rustup.env_remove(name);
    }
    rustup.current_dir(folder);
    Ok(Some(rustup))
}
