//! SQLite files that cannot be used, and one that is.

use std::fs;
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::{ErrorKind, Outcome};
use lock_kv::SqliteConfig;
use lock_testkit::{soon, take, until};
use sqlx::{Connection, SqliteConnection};
use tokio::time::sleep;

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
async fn doctor_says_how_many_records_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let locks = SqliteConfig::new(dir.path().join("locks.db")).connect().await.unwrap();
    for name in ["a", "b", "c"] {
        take(&locks, name).await.release().await.unwrap();
    }
    let report = locks.doctor().await.unwrap();
    assert!(report.to_string().contains("note: 3 records of locks"), "{report}");
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
    // An observer would see its leader for ever.
    assert!(one.inspect("a").await.is_err() && one.list("").await.is_err() && guard.verify().await.is_err());
}

/// Whoever comes next makes new ones, and has locks of its own in them.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_beside_it_that_were_deleted_keep_no_lock() {
    for ending in ["-wal", "-shm"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks.db");
        let locks = SqliteConfig::new(&path).connect().await.unwrap();
        let guard = take(&locks, "a").await;
        fs::remove_file(dir.path().join(format!("locks.db{ending}"))).unwrap();
        let error = guard.extend(Duration::from_secs(60)).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_none_of_ours_and_a_missing_table_are_answers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks.db");
    let locks = SqliteConfig::new(&path).connect().await.unwrap();
    take(&locks, "a").await.release().await.unwrap();
    let _guard = take(&locks, "held").await;
    let mut other = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    for row in ["(x'ff', 1, x'00')", "('lock/text', 'one', x'00')"] {
        sqlx::query(&format!("INSERT INTO polylock VALUES {row}")).execute(&mut other).await.unwrap();
    }
    let mut names: Vec<_> = locks.list("").await.unwrap().iter().map(ToString::to_string).collect();
    names.sort();
    assert_eq!(names, ["held", "text"]);
    assert_eq!(locks.inspect("text").await.unwrap_err().kind(), ErrorKind::Unexpected);
    sqlx::query("DROP TABLE polylock").execute(&mut other).await.unwrap();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::InvalidConfig, Outcome::NotApplied), "{error}");
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

/// It waits for its connection, its turn or its answer: whatever it is that nobody polls any more.
#[test]
fn a_runtime_that_is_not_polled_keeps_nothing_from_others() {
    let new_runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (paused, runtime) = (new_runtime(), new_runtime());
    let dir = tempfile::tempdir().unwrap();
    let locks = paused.block_on(SqliteConfig::new(dir.path().join("locks.db")).connect()).unwrap();
    let mut requests = Vec::new();
    for turns in 0..50 {
        let mutex = locks.mutex(format!("paused/{turns}"));
        let mut acquiring = Box::pin(async move { mutex.acquire().await });
        paused.block_on(async {
            tokio::select! {
                biased;
                _ = &mut acquiring => {}
                () = async { for _ in 0..turns { tokio::task::yield_now().await } } => {}
            }
        });
        requests.push(acquiring);
        runtime.block_on(async { take(&locks, "a").await.release().await.unwrap() });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_was_not_begun_is_not_applied() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks.db");
    // Time: it passes, and others have the file for as long.
    let locks = SqliteConfig::new(&path).command_timeout(Duration::from_secs(3)).ttl(Duration::from_secs(60));
    let locks = locks.connect().await.unwrap();
    let guards = [take(&locks, "a").await, take(&locks, "b").await, take(&locks, "c").await];
    let mut other = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    let transaction = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let extensions = guards.iter().map(|guard| guard.extend(Duration::from_secs(90)));
    for extended in join_all(extensions).await {
        let error = extended.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error}");
    }
    transaction.rollback().await.unwrap();
    for guard in guards {
        soon(guard.extend(Duration::from_secs(90))).await.unwrap();
    }
}

/// As SQLite refuses it while another process makes the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_refused_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks.db");
    let mut maker =
        SqliteConnection::connect(&format!("sqlite://{}?mode=rwc", path.display())).await.unwrap();
    let transaction = maker.begin_with("BEGIN EXCLUSIVE").await.unwrap();
    // Time: SQLite refuses the file after a third of it.
    let opened = tokio::spawn(SqliteConfig::new(&path).command_timeout(Duration::from_secs(6)).connect());
    // Time: after it has refused it once.
    sleep(Duration::from_secs(3)).await;
    transaction.rollback().await.unwrap();
    take(&soon(opened).await.unwrap().unwrap(), "a").await.release().await.unwrap();
}

/// Each looks once at the lock, as a process of cron does. The runtime of its holder has stopped.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crashed_holder_is_dead_for_processes_that_do_not_wait() {
    let dir = tempfile::tempdir().unwrap();
    // Time: the lease ends.
    let connect = || SqliteConfig::new(dir.path().join("locks.db")).ttl(Duration::from_secs(2)).connect();
    let (sender, held) = tokio::sync::oneshot::channel();
    let holder = connect();
    let crashed = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let guard = runtime.block_on(async { take(&holder.await.unwrap(), "a").await });
        sender.send(()).unwrap();
        (runtime, guard)
    });
    held.await.unwrap();
    let (runtime, guard) = crashed.join().unwrap();
    until("it is free", async || {
        let locks = connect().await.unwrap();
        let next = locks.mutex("a").try_acquire().await.unwrap();
        assert!(next.is_none() || !guard.is_valid());
        next.is_some()
    })
    .await;
    runtime.shutdown_background();
}
