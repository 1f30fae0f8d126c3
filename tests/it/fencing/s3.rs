//! S3 compares entity tags, and a client compares tokens by them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lock_testkit::process::{Child, Output};
use polylock::Locks;
use tokio::task::spawn_blocking;

const PATIENCE: Duration = Duration::from_secs(120);

/// The server is moto's, which compares tags as S3 does.
#[tokio::test]
#[ignore = "full: needs Python packages"]
async fn a_late_write_is_refused() {
    let locks = Locks::connect("memory://").await.unwrap();
    let stale = locks.mutex("account").acquire().await.unwrap();
    assert!(locks.break_lock("account").await.unwrap());
    let current = locks.mutex("account").acquire().await.unwrap();

    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("peers/s3");
    let pins = include_bytes!("../../peers/s3/requirements.txt");
    let is_installed = fs::read(folder.join("installed")).is_ok_and(|installed| installed == pins);
    assert!(is_installed, "{} is out of date: install it with `cargo xtask setup`", folder.display());
    let mut command = Command::new(folder.join("bin/python"));
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fencing/s3.py"));
    command.args([stale.token().to_string(), current.token().to_string()]);
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("s3.log");
    // It is appended to.
    drop(fs::remove_file(&log));
    let child = Child::spawn(&command, &Output::File(log.clone())).unwrap();
    let ended = spawn_blocking(move || child.wait_for(PATIENCE)).await.unwrap();
    let text = fs::read_to_string(log).unwrap();
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}: {text}");
}
