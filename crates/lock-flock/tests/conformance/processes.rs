//! Other processes: killed, stopped, children that outlive their parent, and programs that know nothing of this library.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use lock_core::{
    ErrorKind, Guard, GuardState, Holder, LockMode, LockOptions, Locks, LossReason, Released, Result, Token,
};
use lock_flock::FlockConfig;
use lock_testkit::{PATIENCE, Worker, acquiring, come, give_back, soon, take, until};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

/// Long enough that nothing here is due to it.
const SESSION: Duration = Duration::from_secs(600);
/// The first argument of another process.
const OTHER: &str = "--other";
const WAITERS: usize = 20;

async fn connect(dir: &TempDir) -> Locks {
    FlockConfig::new(dir.path()).session_timeout(SESSION).connect().await.unwrap()
}

async fn folder() -> (TempDir, Locks) {
    let dir = tempfile::tempdir().unwrap();
    let locks = connect(&dir).await;
    (dir, locks)
}

/// A file of the folder, locked by a program that knows nothing of this library.
fn locked(dir: &TempDir, name: &str) -> fs::File {
    let file =
        fs::File::options().create(true).truncate(false).write(true).open(dir.path().join(name)).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    file
}

/// Another process, which does what each line says that it reads, with the lock `a`, and prints the result.
pub(crate) struct Other(Worker);

impl Other {
    fn start(dir: &TempDir) -> Self {
        Self::of(Command::new(env::current_exe().unwrap()), &format!("flock://{}?", dir.path().display()))
    }

    /// The command runs this program; the URL has a query.
    pub(crate) fn of(mut command: Command, url: &str) -> Self {
        command.args([OTHER, &format!("{url}&session_timeout={}s", SESSION.as_secs())]);
        Self(Worker::spawn(&command).unwrap())
    }

    /// Has it acquire the lock, and returns the token.
    pub(crate) async fn acquire(&self) -> Token {
        let result = self.does("acquire").await;
        Token::new(result.parse().unwrap_or_else(|_| panic!("it acquires the lock: {result}")))
    }

    /// Has it do this, and returns the result.
    pub(crate) async fn does(&self, order: &str) -> String {
        self.0.send(&json!(order)).await.unwrap();
        let result = self.0.recv_deadline(2 * PATIENCE).await.unwrap();
        result.as_str().expect("the result is text").to_owned()
    }
}

/// Runs this program as the other process, if it was called so.
pub(crate) fn serve(words: &[String]) -> Option<ExitCode> {
    let [url] = words.strip_prefix(&[OTHER.to_owned()])? else { return None };
    let (runtime, mut guards) = (runtime(), Vec::new());
    let locks = runtime.block_on(FlockConfig::from_url(url).unwrap().connect()).unwrap();
    for order in std::io::stdin().lines() {
        let order: Value = serde_json::from_str(&order.unwrap()).unwrap();
        let result = runtime.block_on(done(order.as_str().unwrap(), &locks, &mut guards));
        println!("\n{}", json!(result.unwrap_or_else(|error| format!("{:?}: {error}", error.kind()))));
    }
    Some(ExitCode::SUCCESS)
}

async fn done(order: &str, locks: &Locks, guards: &mut Vec<Guard>) -> Result<String> {
    Ok(match order {
        "acquire" => {
            guards.push(locks.mutex("a").acquire().await?);
            guards.last().unwrap().token().to_string()
        }
        "read" => {
            guards.push(locks.rw("a").read().await?);
            guards.last().unwrap().token().to_string()
        }
        "release" => format!("{:?}", guards.pop().unwrap().release().await?),
        "list" => format!("{:?}", locks.list("").await?),
        "inspect" => locks.inspect("a").await?.to_string(),
        "doctor" => locks.doctor().await?.to_string().replace('\n', " "),
        "wait" => watches_of_waiters(locks).await,
        _ => panic!("what does {order} mean?"),
    })
}

/// How many inotify instances this process has while many wait, and after.
async fn watches_of_waiters(locks: &Locks) -> String {
    let waiters: Vec<_> =
        (0..WAITERS).map(|waiter| acquiring(locks.mutex(format!("held/{waiter}")))).collect();
    until("they watch", async || instances() > 0).await;
    // Time: the others could have more.
    sleep(Duration::from_millis(300)).await;
    let waiting = instances();
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    until("the watch ends", async || instances() == 0).await;
    format!("{waiting}, then 0")
}

fn instances() -> usize {
    let open = fs::read_dir("/proc/self/fd").expect("the tests run on Linux").flatten();
    let paths = open.filter_map(|file| fs::read_link(file.path()).ok());
    paths.filter(|path| path.to_string_lossy().contains("inotify")).count()
}

pub(crate) fn trials(module: &str, cases: &[(&str, Case)]) -> Vec<Trial> {
    cases.iter().map(|(name, case)| trial(format!("{module}::{name}"), *case)).collect()
}

fn trial(name: String, case: Case) -> Trial {
    Trial::test(name, move || {
        runtime().block_on(case());
        Ok(())
    })
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("the system has files to spare")
}

pub(crate) type Case = fn() -> Pin<Box<dyn Future<Output = ()>>>;

pub(crate) const CASES: [(&str, Case); 13] = cases![
    a_killed_holder_frees_the_lock_at_once_and_tokens_grow,
    a_program_that_the_holder_starts_does_not_inherit_the_lock,
    other_programs_share_the_lock,
    a_lock_that_is_replaced_before_it_is_locked_excludes_all_the_same,
    a_paused_holder_learns_by_its_deadline,
    what_cannot_be_written_is_said,
    a_process_that_is_stopped_within_its_step_is_reported,
    a_stopped_waiter_keeps_nobody_out,
    waiters_have_one_watch_in_common,
    a_file_is_broken_for_the_holder_that_was_shown,
    a_killed_holder_is_not_taken_for_another_program,
    a_killed_reader_does_not_count_among_the_readers,
    a_waiter_watches_the_file_that_replaced_its_own,
];

async fn a_killed_holder_frees_the_lock_at_once_and_tokens_grow() {
    let (dir, locks) = folder().await;
    let mut last = Token::new(0);
    for round in 0..12 {
        let other = Other::start(&dir);
        let token = other.acquire().await;
        assert!(token > last, "{round}: {token} came after {last}");
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
        let waiter = acquiring(locks.mutex("a"));
        tokio::task::yield_now().await;
        drop(other);
        // Long before the session timeout.
        let next = come(waiter).await;
        assert!(next.token() > token, "{round}: {} came after {token}", next.token());
        last = next.token();
        give_back(next).await;
    }
}

async fn a_stopped_waiter_keeps_nobody_out() {
    let (dir, locks) = folder().await;
    let guard = take(&locks, "a").await;
    let other = Other::start(&dir);
    other.0.send(&json!("acquire")).await.unwrap();
    let turn = dir.path().join("a.turn");
    let is_taken = |file: fs::File| flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
    until("it has the turn", async || fs::File::open(&turn).is_ok_and(is_taken)).await;
    other.0.stop();
    give_back(guard).await;
    give_back(take(&locks, "a").await).await;
    other.0.cont();
    assert!(other.0.recv_deadline(PATIENCE).await.unwrap().is_string(), "it has the lock");
}

async fn a_program_that_the_holder_starts_does_not_inherit_the_lock() {
    let (_dir, locks) = folder().await;
    let guard = take(&locks, "a").await;
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    give_back(guard).await;
    let next = locks.mutex("a").try_acquire().await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(next.unwrap().is_some());
}

/// The command `flock` of util-linux.
async fn other_programs_share_the_lock() {
    let (dir, locks) = folder().await;
    let file = dir.path().join("a.lock");
    let run = |option: &str| Command::new("flock").args([option, "-n"]).arg(&file).arg("true").status();
    let guard = take(&locks, "a").await;
    assert!(!run("-x").expect("util-linux is installed").success());
    give_back(guard).await;
    assert!(run("-x").unwrap().success());

    let mut holder = Command::new("flock");
    holder.arg("-s").arg(&file).args(["sh", "-c", "echo held; read end"]);
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    let reader = locks.rw("a").try_read().await.unwrap().expect("readers share the file");
    let seen = locks.inspect("a").await.unwrap();
    assert_eq!(seen.holder().and_then(Holder::owner).map(|owner| owner.pid), Some(std::process::id()));
    give_back(reader).await;
    let state = locks.inspect("a").await.unwrap();
    assert!(matches!(state.holder(), Some(Holder::Unknown(_))), "{state:?}");
    assert_eq!(state.holders[0].mode, LockMode::Shared);
    let waiter = acquiring(locks.mutex("a"));
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert!(come(waiter).await.is_valid());
}

async fn a_lock_that_is_replaced_before_it_is_locked_excludes_all_the_same() {
    let (dir, one) = folder().await;
    let two = connect(&dir).await;
    let first = take(&one, "a").await;
    // It has the file open that is deleted now.
    let waiter = acquiring(two.mutex("a"));
    until("it watches the file", async || is_watched(&dir.path().join("a.lock"))).await;
    fs::remove_file(dir.path().join("a.lock")).unwrap();
    let second = come(waiter).await;
    assert!(second.token() > first.token());
    assert_eq!(first.verify().await.unwrap(), GuardState::Lost(LossReason::Removed));
    let third = connect(&dir).await;
    assert!(third.mutex("a").try_acquire().await.unwrap().is_none(), "two files are locked");
    assert_eq!(first.release().await.unwrap(), Released::AlreadyLost);
    assert!(third.mutex("a").try_acquire().await.unwrap().is_none());
}

async fn a_paused_holder_learns_by_its_deadline() {
    let (dir, locks) = folder().await;
    // Time: the session ends.
    let short = FlockConfig::new(dir.path()).session_timeout(Duration::from_millis(500));
    let guard = take(&short.connect().await.unwrap(), "a").await;
    // Time: it has ended, and no task of this runtime could look at the file.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(guard.state(), GuardState::Lost(LossReason::DeadlinePassed));
    // A lost lock is given up.
    drop(take(&locks, "a").await);
}

async fn what_cannot_be_written_is_said() {
    let (dir, locks) = folder().await;
    fs::write(dir.path().join("file"), "").unwrap();
    let error = FlockConfig::new(dir.path().join("file")).connect().await.unwrap_err();
    assert_eq!(error.backend(), "flock");
    assert!(error.to_string().contains("file") && error.hint().is_some(), "{error}");
    // A link to a file of somebody else is not followed.
    std::os::unix::fs::symlink(dir.path().join("file"), dir.path().join("b.lock")).unwrap();
    let error = locks.mutex("b").acquire().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.lock().map(|name| name.as_str())),
        (ErrorKind::Denied, Some("b")),
        "{error}"
    );
    let kept = LockOptions::new().hold_at_least(Duration::from_secs(1));
    assert_eq!(locks.mutex_with("c", kept).unwrap_err().kind(), ErrorKind::Unsupported);
}

async fn a_process_that_is_stopped_within_its_step_is_reported() {
    let (dir, locks) = folder().await;
    give_back(take(&locks, "a").await).await;
    let ledger = locked(&dir, "a.token");
    let error = soon(locks.mutex("a").acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("/proc/locks"), "{error}");
    drop(ledger);
    drop(take(&locks, "a").await);
}

async fn waiters_have_one_watch_in_common() {
    let (dir, locks) = folder().await;
    let mut guards = Vec::new();
    for held in 0..WAITERS {
        guards.push(take(&locks, &format!("held/{held}")).await);
    }
    // A user has 128 of them by default, in all programs.
    assert_eq!(Other::start(&dir).does("wait").await, "1, then 0");
}

async fn a_file_is_broken_for_the_holder_that_was_shown() {
    let (dir, one) = folder().await;
    let two = connect(&dir).await;
    assert!(!two.break_lock_if("a", Token::new(1)).await.unwrap(), "there is no such lock");
    let reader = one.rw("a").read().await.unwrap();
    let last = two.rw("a").read().await.unwrap();
    let error = two.break_lock_if("a", reader.token()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("process")), "{error}");
    assert!(!two.break_lock_if("a", Token::new(1)).await.unwrap(), "nobody has this token");
    give_back(last).await;
    assert!(two.break_lock_if("a", reader.token()).await.unwrap(), "it is alone by now");
    assert_eq!(reader.verify().await.unwrap(), GuardState::Lost(LossReason::Removed));
    let next = two.mutex("a").try_acquire().await.unwrap().expect("the lock is broken");
    assert!(!one.break_lock_if("a", reader.token()).await.unwrap(), "another one holds it");
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
}

async fn a_killed_holder_is_not_taken_for_another_program() {
    let (dir, locks) = folder().await;
    let other = Other::start(&dir);
    let killed = other.acquire().await;
    drop(other);
    let _file = locked(&dir, "a.lock");
    let state = locks.inspect("a").await.unwrap();
    assert!(matches!(state.holder(), Some(Holder::Unknown(_))), "{state}");
    assert!(!locks.break_lock_if("a", killed).await.unwrap(), "another program has the file");
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
}

async fn a_killed_reader_does_not_count_among_the_readers() {
    let (dir, locks) = folder().await;
    let reader = locks.rw("a").read().await.unwrap();
    let other = Other::start(&dir);
    other.does("read").await;
    assert_eq!(locks.inspect("a").await.unwrap().holders.len(), 2);
    drop(other);
    let holders = locks.inspect("a").await.unwrap().holders;
    let tokens: Vec<_> = holders.iter().map(|holder| holder.token).collect();
    assert_eq!(tokens, [Some(reader.token())]);
    assert!(locks.break_lock_if("a", reader.token()).await.unwrap(), "it is alone");
}

async fn a_waiter_watches_the_file_that_replaced_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.lock");
    let locks = connect(&dir).await;
    let _first = take(&locks, "a").await;
    let _waiter = AbortOnDropHandle::new(acquiring(connect(&dir).await.mutex("a")));
    until("the file is watched", async || is_watched(&file)).await;
    // Locked before it has its name, so that the waiter waits on.
    let _program = locked(&dir, "new");
    fs::rename(dir.path().join("new"), &file).unwrap();
    until("the new file is watched", async || is_watched(&file)).await;
}

/// Whether this process watches the file that has this path now.
fn is_watched(path: &Path) -> bool {
    let inode = format!(" ino:{:x} ", fs::metadata(path).unwrap().ino());
    let open = fs::read_dir("/proc/self/fdinfo").expect("the tests run on Linux").flatten();
    let mut watches = open.filter_map(|file| fs::read_to_string(file.path()).ok());
    watches.any(|file| file.lines().any(|line| line.starts_with("inotify ") && line.contains(&inode)))
}
