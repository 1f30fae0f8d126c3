//! SQLite files that cannot be used, and one that is.

use std::fs;
use std::time::Duration;

use lock_core::{ErrorKind, Outcome};
use lock_kv::SqliteConfig;
use lock_testkit::take;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_and_tokens_outlive_their_processes() {
    let dir = tempfile::tempdir().unwrap();
    let connect = async || SqliteConfig::new(dir.path().join("locks.db")).connect().await.unwrap();
    let one = connect().await;
    let guard = take(&one, "a").await;
    let token = guard.token();
    let other = connect().await;
    assert!(other.mutex("a").try_acquire().await.unwrap().is_none(), "it is held");
    guard.release().await.unwrap();
    one.close().await.unwrap();
    assert!(take(&other, "a").await.token() > token);
}

#[tokio::test]
async fn files_that_cannot_be_used_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    fs::write(&text, "no database, but a text that is longer than the header of one: ".repeat(20)).unwrap();
    for (path, kind) in
        [(text, ErrorKind::InvalidConfig), (dir.path().join("none/locks.db"), ErrorKind::Denied)]
    {
        let error = SqliteConfig::new(path).connect().await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (kind, Outcome::NotApplied), "{error}");
        assert!(error.hint().is_some(), "{error}");
    }
}

/// SQLite itself would go on writing to it.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_was_deleted_keeps_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks.db");
    let connect = async || SqliteConfig::new(&path).connect().await.unwrap();
    let one = connect().await;
    let guard = take(&one, "a").await;
    for file in fs::read_dir(dir.path()).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    let other = connect().await;
    assert!(other.mutex("a").try_acquire().await.unwrap().is_some(), "the file is a new one");
    let error = guard.extend(Duration::from_secs(60)).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("connect again")), "{error}");
    assert!(one.mutex("b").acquire().await.is_err());
}

#[test]
fn an_acquisition_is_dropped_outside_of_its_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let locks = runtime.block_on(SqliteConfig::new(dir.path().join("locks.db")).connect()).unwrap();
    for turns in 0..50 {
        let lock = locks.mutex("a");
        let mut acquiring = Box::pin(lock.acquire());
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = &mut acquiring => {}
                () = async { for _ in 0..turns { tokio::task::yield_now().await } } => {}
            }
        });
        drop(acquiring);
    }
    runtime.block_on(async { take(&locks, "a").await.release().await.unwrap() });
}
