//! Other processes: killed, stopped, children that outlive their parent, and programs that know nothing of this library.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use lock_core::{
    ErrorKind, Guard, GuardState, Holder, LockMode, LockOptions, Locks, LossReason, Released, Result, Token,
};
use lock_flock::FlockConfig;
use lock_testkit::{acquiring, give_back};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough that nothing here is due to it.
const SESSION: Duration = Duration::from_secs(600);
/// The first argument of another process.
const OTHER: &str = "--other";
/// Begins what the other process prints.
const RESULT: &str = "result:";
const ROUNDS: usize = 12;
const WAITERS: usize = 20;

fn config(dir: &TempDir) -> FlockConfig {
    FlockConfig::new(dir.path()).session_timeout(SESSION)
}

/// Another process, which does what each line says that it reads, with the lock `a`, and prints the result.
pub(crate) struct Other {
    child: Child,
    orders: ChildStdin,
    results: BufReader<ChildStdout>,
}

impl Other {
    fn start(dir: &TempDir) -> Self {
        Self::of(Command::new(env::current_exe().unwrap()), &format!("flock://{}?", dir.path().display()))
    }

    /// The command runs this program; the URL has a query.
    pub(crate) fn of(mut command: Command, url: &str) -> Self {
        let url = format!("{url}&session_timeout={}s", SESSION.as_secs());
        command.args([OTHER, &url]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (orders, results) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, orders, results: BufReader::new(results) }
    }

    /// Has it acquire the lock, and returns the token.
    pub(crate) fn acquire(&mut self) -> u64 {
        let result = self.does("acquire");
        result.parse().unwrap_or_else(|_| panic!("it acquires the lock: {result}"))
    }

    /// Has it do this, and returns the result.
    pub(crate) fn does(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        loop {
            let mut line = String::new();
            assert!(self.results.read_line(&mut line).unwrap() > 0, "the other process has ended");
            if let Some(result) = line.trim().strip_prefix(RESULT) {
                return result.trim().to_owned();
            }
        }
    }

    /// By SIGKILL.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Runs this program as the other process, if it was called so.
pub(crate) fn serve(words: &[String]) -> Option<ExitCode> {
    let [url] = words.strip_prefix(&[OTHER.to_owned()])? else { return None };
    let runtime = runtime();
    let mut guards = Vec::new();
    let locks = runtime.block_on(FlockConfig::from_url(url).unwrap().connect()).unwrap();
    for order in std::io::stdin().lines() {
        let result = runtime.block_on(done(&order.unwrap(), &locks, &mut guards));
        println!("\n{RESULT}{}", result.unwrap_or_else(|error| format!("{:?}: {error}", error.kind())));
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
    let mut waiters = Vec::new();
    for waiter in 0..WAITERS {
        let mutex = locks.mutex(format!("held/{waiter}"));
        waiters.push(tokio::spawn(async move { mutex.acquire().await.unwrap() }));
    }
    let begin = Instant::now();
    while instances() == 0 && begin.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let waiting = instances();
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    let begin = Instant::now();
    while instances() > 0 && begin.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    format!("{waiting}, then {}", instances())
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
    a_killed_waiter_leaves_its_turn,
    a_program_that_the_holder_starts_does_not_inherit_the_lock,
    other_programs_share_the_lock,
    a_lock_that_is_replaced_before_it_is_locked_excludes_all_the_same,
    a_paused_holder_learns_by_its_deadline,
    what_cannot_be_written_is_said,
    a_process_that_is_stopped_within_its_step_is_reported,
    waiters_have_one_watch_in_common,
    a_file_is_broken_for_the_holder_that_was_shown,
    a_killed_holder_is_not_taken_for_another_program,
    a_killed_reader_does_not_count_among_the_readers,
    a_waiter_watches_the_file_that_replaced_its_own,
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
        let waiter = acquiring(locks.mutex("a"));
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
    give_back(guard).await;
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
    let waiter = acquiring(locks.mutex("a"));
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

async fn waiters_have_one_watch_in_common() {
    let dir = tempfile::tempdir().unwrap();
    let locks = config(&dir).connect().await.unwrap();
    let mut guards = Vec::new();
    for held in 0..WAITERS {
        guards.push(locks.mutex(format!("held/{held}")).acquire().await.unwrap());
    }
    // A user has 128 of them by default, in all programs.
    assert_eq!(Other::start(&dir).does("wait"), "1, then 0");
}

async fn a_file_is_broken_for_the_holder_that_was_shown() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (config(&dir).connect().await.unwrap(), config(&dir).connect().await.unwrap());
    assert!(!two.break_lock_if("a", Token::new(1)).await.unwrap(), "there is no such lock");
    let reader = one.rw("a").read().await.unwrap();
    let last = two.rw("a").read().await.unwrap();
    let error = two.break_lock_if("a", reader.token()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("process")), "{error}");
    assert!(!two.break_lock_if("a", Token::new(1)).await.unwrap(), "nobody has this token");
    last.release().await.unwrap();
    assert!(two.break_lock_if("a", reader.token()).await.unwrap(), "it is alone by now");
    assert_eq!(reader.verify().await.unwrap(), GuardState::Lost(LossReason::Removed));
    let next = two.mutex("a").try_acquire().await.unwrap().expect("the lock is broken");
    assert!(!one.break_lock_if("a", reader.token()).await.unwrap(), "another one holds it");
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
}

async fn a_killed_holder_is_not_taken_for_another_program() {
    let dir = tempfile::tempdir().unwrap();
    let locks = config(&dir).connect().await.unwrap();
    let mut other = Other::start(&dir);
    let killed = Token::new(other.acquire());
    other.kill();
    let file = fs::File::open(dir.path().join("a.lock")).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let state = locks.inspect("a").await.unwrap();
    assert!(matches!(state.holder(), Some(Holder::Unknown(_))), "{state}");
    assert!(!locks.break_lock_if("a", killed).await.unwrap(), "another program has the file");
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
}

async fn a_killed_reader_does_not_count_among_the_readers() {
    let dir = tempfile::tempdir().unwrap();
    let locks = config(&dir).connect().await.unwrap();
    let reader = locks.rw("a").read().await.unwrap();
    let mut other = Other::start(&dir);
    other.does("read");
    assert_eq!(locks.inspect("a").await.unwrap().holders.len(), 2);
    other.kill();
    let holders = locks.inspect("a").await.unwrap().holders;
    let tokens: Vec<_> = holders.iter().map(|holder| holder.token).collect();
    assert_eq!(tokens, [Some(reader.token())]);
    assert!(locks.break_lock_if("a", reader.token()).await.unwrap(), "it is alone");
}

async fn a_waiter_watches_the_file_that_replaced_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.lock");
    let locks = config(&dir).connect().await.unwrap();
    let _first = locks.mutex("a").acquire().await.unwrap();
    let mutex = config(&dir).connect().await.unwrap().mutex("a");
    let _waiter = AbortOnDropHandle::new(tokio::spawn(async move { mutex.acquire().await }));
    until(|| is_watched(&file)).await;
    // Locked before it has its name, so that the waiter waits on.
    let new = dir.path().join("new");
    let program = fs::File::create(&new).unwrap();
    rustix::fs::flock(&program, rustix::fs::FlockOperation::LockExclusive).unwrap();
    fs::rename(&new, &file).unwrap();
    until(|| is_watched(&file)).await;
}

/// Whether this process watches the file that has this path now.
fn is_watched(path: &Path) -> bool {
    let inode = format!(" ino:{:x} ", fs::metadata(path).unwrap().ino());
    let open = fs::read_dir("/proc/self/fdinfo").expect("the tests run on Linux").flatten();
    let mut watches = open.filter_map(|file| fs::read_to_string(file.path()).ok());
    watches.any(|file| file.lines().any(|line| line.starts_with("inotify ") && line.contains(&inode)))
}

async fn until(happens: impl Fn() -> bool) {
    let begin = Instant::now();
    while !happens() {
        assert!(begin.elapsed() < PATIENCE, "it does not happen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
