//! SQLite files that cannot be used, and one that is.

use std::fs;

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
