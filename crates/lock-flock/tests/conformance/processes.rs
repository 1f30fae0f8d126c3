//! Other processes: killed, stopped, children that outlive their parent, and programs that know nothing of this library.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::pin::Pin;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use lock_core::{ErrorKind, GuardState, Holder, LockMode, LockOptions, Locks, LossReason, Released};
use lock_flock::FlockConfig;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, timeout};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough that nothing here is due to it.
const SESSION: Duration = Duration::from_secs(600);
/// The first argument of another process.
const OTHER: &str = "--other";
const ROUNDS: usize = 12;

fn config(dir: &TempDir) -> FlockConfig {
    FlockConfig::new(dir.path()).session_timeout(SESSION)
}

/// Another process, which acquires the lock `a` and prints its token, once for each line that it reads.
struct Other {
    child: Child,
    orders: ChildStdin,
    tokens: BufReader<ChildStdout>,
}

impl Other {
    fn start(dir: &TempDir) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.arg(OTHER).arg(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (orders, tokens) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, orders, tokens: BufReader::new(tokens) }
    }

    /// Has it acquire the lock, and returns the token.
    fn acquire(&mut self) -> u64 {
        writeln!(self.orders, "acquire").unwrap();
        self.token()
    }

    fn token(&mut self) -> u64 {
        loop {
            let mut line = String::new();
            assert!(self.tokens.read_line(&mut line).unwrap() > 0, "the other process has ended");
            if let Some(token) = line.trim().strip_prefix("token ") {
                return token.parse().unwrap();
            }
        }
    }

    /// By SIGKILL.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Runs this program as the other process, if it was called so: it acquires the lock once for each line.
pub(crate) fn serve(words: &[String]) -> Option<ExitCode> {
    let [dir] = words.strip_prefix(&[OTHER.to_owned()])? else { return None };
    let runtime = runtime();
    let mut guards = Vec::new();
    let locks = runtime.block_on(FlockConfig::new(dir).session_timeout(SESSION).connect()).unwrap();
    for order in std::io::stdin().lines() {
        assert_eq!(order.unwrap(), "acquire");
        let guard = runtime.block_on(locks.mutex("a").acquire()).unwrap();
        println!("\ntoken {}", guard.token());
        guards.push(guard);
    }
    Some(ExitCode::SUCCESS)
}

pub(crate) fn trials() -> Vec<Trial> {
    CASES.iter().map(|(name, case)| trial(name, *case)).collect()
}

fn trial(name: &str, case: Case) -> Trial {
    Trial::test(format!("processes::{name}"), move || {
        runtime().block_on(case());
        Ok(())
    })
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("the system has files to spare")
}

type Case = fn() -> Pin<Box<dyn Future<Output = ()>>>;

macro_rules! cases {
    ($($case:ident),* $(,)?) => { [$((stringify!($case), (|| Box::pin($case())) as Case)),*] };
}

const CASES: [(&str, Case); 8] = cases![
    a_killed_holder_frees_the_lock_at_once_and_tokens_grow,
    a_killed_waiter_leaves_its_turn,
    a_program_that_the_holder_starts_does_not_inherit_the_lock,
    other_programs_share_the_lock,
    a_lock_that_is_replaced_before_it_is_locked_excludes_all_the_same,
    a_paused_holder_learns_by_its_deadline,
    what_cannot_be_written_is_said,
    a_process_that_is_stopped_within_its_step_is_reported,
];

async fn a_killed_holder_frees_the_lock_at_once_and_tokens_grow() {
    let dir = tempfile::tempdir().unwrap();
    let locks = config(&dir).connect().await.unwrap();
    let mut last = 0;
    for round in 0..ROUNDS {
        let mut other = Other::start(&dir);
        let token = other.acquire();
        assert!(token > last, "{round}: {token} came after {last}");
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
        let mutex = locks.mutex("a");
        let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
        tokio::task::yield_now().await;
        other.kill();
        // Long before the session timeout.
        let next = timeout(PATIENCE, waiter).await.expect("a crash frees the lock").unwrap();
        assert!(next.token().get() > token, "{round}: {} came after {token}", next.token());
        last = next.token().get();
        next.release().await.unwrap();
    }
}

async fn a_killed_waiter_leaves_its_turn() {
    let dir = tempfile::tempdir().unwrap();
    let locks = config(&dir).connect().await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    let mut other = Other::start(&dir);
    writeln!(other.orders, "acquire").unwrap();
    // It has its turn once nobody else can share the lock.
    let turn = fs::OpenOptions::new().read(true).open(dir.path().join("a.turn")).unwrap();
    let begin = Instant::now();
    let free = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    while rustix::fs::flock(&turn, free).is_ok() {
        rustix::fs::flock(&turn, rustix::fs::FlockOperation::Unlock).unwrap();
        assert!(begin.elapsed() < PATIENCE, "it does not wait");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    other.kill();
    guard.release().await.unwrap();
    let next = locks.mutex("a").try_acquire_for(PATIENCE).await.unwrap();
    assert!(next.is_some());
}

async fn a_program_that_the_holder_starts_does_not_inherit_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let locks = config(&dir).connect().await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let next = locks.mutex("a").try_acquire().await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(next.unwrap().is_some());
}

/// The command `flock` of util-linux.
async fn other_programs_share_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let locks = config(&dir).connect().await.unwrap();
    let file = dir.path().join("a.lock");
    let run = |option: &str| Command::new("flock").args([option, "-n"]).arg(&file).arg("true").status();
    let guard = locks.mutex("a").acquire().await.unwrap();
    assert!(!run("-x").expect("util-linux is installed").success());
    guard.release().await.unwrap();
    assert!(run("-x").unwrap().success());

    let mut holder = Command::new("flock");
    holder.arg("-s").arg(&file).args(["sh", "-c", "echo held; read end"]);
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    let reader = locks.rw("a").try_read().await.unwrap().expect("readers share the file");
    let seen = locks.inspect("a").await.unwrap();
    assert_eq!(seen.holder().and_then(Holder::owner).map(|owner| owner.pid), Some(std::process::id()));
    reader.release().await.unwrap();
    let state = locks.inspect("a").await.unwrap();
    assert!(matches!(state.holder(), Some(Holder::Unknown(_))), "{state:?}");
    assert_eq!(state.holders[0].mode, LockMode::Shared);
    let mutex = locks.mutex("a");
    let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert!(timeout(PATIENCE, waiter).await.expect("the file is free").unwrap().is_valid());
}

async fn a_lock_that_is_replaced_before_it_is_locked_excludes_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (config(&dir).connect().await.unwrap(), config(&dir).connect().await.unwrap());
    let first = one.mutex("a").acquire().await.unwrap();
    let mutex = two.mutex("a");
    // It has the file open that is deleted now.
    let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(100)).await;
    fs::remove_file(dir.path().join("a.lock")).unwrap();
    let second = timeout(PATIENCE, waiter).await.expect("the lock was broken").unwrap();
    assert!(second.token() > first.token());
    assert_eq!(first.verify().await.unwrap(), GuardState::Lost(LossReason::Removed));
    let third = config(&dir).connect().await.unwrap();
    assert!(third.mutex("a").try_acquire().await.unwrap().is_none(), "two files are locked");
    assert_eq!(first.release().await.unwrap(), Released::AlreadyLost);
    assert!(third.mutex("a").try_acquire().await.unwrap().is_none());
}

async fn a_paused_holder_learns_by_its_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let short = FlockConfig::new(dir.path()).session_timeout(Duration::from_millis(500));
    let guard = short.connect().await.unwrap().mutex("a").acquire().await.unwrap();
    // No task of this runtime can look at the file.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(guard.state(), GuardState::Lost(LossReason::DeadlinePassed));
    let next = config(&dir).connect().await.unwrap().mutex("a").try_acquire_for(PATIENCE).await.unwrap();
    assert!(next.is_some(), "a lost lock is given up");
}

async fn what_cannot_be_written_is_said() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let error = FlockConfig::new(dir.path().join("file")).connect().await.unwrap_err();
    assert_eq!(error.backend(), "flock");
    assert!(error.to_string().contains("file") && error.hint().is_some(), "{error}");
    // A link to a file of somebody else is not followed.
    let locks = config(&dir).connect().await.unwrap();
    std::os::unix::fs::symlink(dir.path().join("file"), dir.path().join("b.lock")).unwrap();
    let error = locks.mutex("b").acquire().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.lock().map(|name| name.as_str())),
        (ErrorKind::Denied, Some("b")),
        "{error}"
    );
    let ttl = LockOptions::new().hold_at_least(Duration::from_secs(1));
    assert_eq!(locks.mutex_with("c", ttl).unwrap_err().kind(), ErrorKind::Unsupported);
}

async fn a_process_that_is_stopped_within_its_step_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let locks: Locks = config(&dir).connect().await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    let ledger = fs::File::open(dir.path().join("a.token")).unwrap();
    rustix::fs::flock(&ledger, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let error = timeout(PATIENCE, locks.mutex("a").acquire()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("/proc/locks"), "{error}");
    drop(ledger);
    assert!(locks.mutex("a").acquire().await.unwrap().is_valid());
}
