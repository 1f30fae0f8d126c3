//! The file with the tokens and the holders of a lock.
#![no_main]

use std::fs::{self, File};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use lock_core::Locks;
use lock_flock::FlockConfig;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// A directory with a lock that is held.
struct Held {
    dir: TempDir,
    _file: File,
    locks: Locks,
    runtime: Runtime,
}

static HELD: LazyLock<Held> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("there is room");
    let file = File::create(dir.path().join("a.lock")).expect("there is room");
    file.lock().expect("it is new");
    let runtime = Builder::new_current_thread().build().expect("the system has threads to spare");
    let locks = runtime.block_on(FlockConfig::new(dir.path()).connect()).expect("the directory exists");
    Held { dir, _file: file, locks, runtime }
});

fuzz_target!(|text: &[u8]| {
    fs::write(HELD.dir.path().join("a.token"), text).expect("there is room");
    let state = HELD.runtime.block_on(HELD.locks.inspect("a")).expect("a damaged file is no error");
    assert!(state.is_held() && !state.to_string().is_empty());
    assert!(state.token.is_none_or(|token| i64::try_from(token.get()).is_ok()));
});
