//! Resources that check fencing tokens: what `docs/FENCING.md` shows runs here, on real servers.

mod postgres;
mod redis;
mod s3;
mod zookeeper;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lock_testkit::process::{Child, Output};
use tokio::task::spawn_blocking;

const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a program of this folder to its end, with the packages of these peers.
async fn python(peers: &str, program: &str, arguments: &[&str]) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("peers").join(peers);
    let pins = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(peers).join("requirements.txt");
    let is_installed = fs::read(folder.join("installed")).is_ok_and(|note| fs::read(pins).unwrap() == note);
    assert!(is_installed, "{} is out of date: install it with `cargo xtask setup`", folder.display());
    let mut command = Command::new(folder.join("bin/python"));
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fencing").join(program)).args(arguments);
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(program).with_extension("log");
    // It is appended to.
    drop(fs::remove_file(&log));
    let child = Child::spawn(&command, &Output::File(log.clone())).unwrap();
    let ended = spawn_blocking(move || child.wait_for(PATIENCE)).await.unwrap();
    let text = fs::read_to_string(log).unwrap();
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}: {text}");
}
