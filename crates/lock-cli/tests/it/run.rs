//! `polylock run` on real servers: the command that it runs, the signals, and what happens when the lock is lost.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::{PATIENCE, POLYLOCK, Run, Terminal, eventually};
use lock_testkit::process::{self, Child, Output};
use lock_testkit::proxy::{Direction, FaultProxy, Protocol};
use lock_testkit::{RedisFive, RedisServer, ZooKeeper};
use polylock::Locks;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

/// `polylock run` of this lock and command, with options before them.
pub(crate) fn run(url: &str, options: &str, command: &[&str]) -> Command {
    let mut run = Command::new("env");
    // A test may be started in the background of a script, where these are ignored.
    run.args(["--default-signal=INT,QUIT,HUP", POLYLOCK, "run"]).env("POLYLOCK_URL", url);
    run.args(options.split_whitespace()).args(["job", "--"]).args(command);
    run
}

/// The same with a script of a shell, to its end.
pub(crate) async fn sh(url: &str, options: &str, script: &str) -> Run {
    Run::of(run(url, options, &["sh", "-c", script])).await
}

/// A `polylock run` in the background.
pub(crate) struct Background {
    pub(crate) process: Child,
    log: PathBuf,
}

impl Background {
    /// Runs a script of bash; what it prints is appended to the log.
    pub(crate) fn start(folder: &Path, url: &str, options: &str, script: &str) -> Self {
        Self::of(folder, &run(url, options, &["bash", "-c", script]))
    }

    pub(crate) fn of(folder: &Path, command: &Command) -> Self {
        let log = folder.join(format!("log{}", fs::read_dir(folder).unwrap().count()));
        let process = Child::spawn(command, &Output::File(log.clone())).unwrap();
        Self { process, log }
    }

    pub(crate) fn text(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) async fn prints(&self, text: &str) {
        eventually(text, async || self.text().contains(text)).await;
    }

    pub(crate) fn watchdog(&self) -> Pid {
        children_of(self.process.pid() as i32)[0]
    }

    /// The process of its command.
    pub(crate) fn command(&self) -> Pid {
        children_of(self.watchdog().as_raw_nonzero().get())[0]
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.process.pid() as i32).unwrap(), signal).unwrap();
    }

    pub(crate) async fn ends(self) -> (i32, String) {
        let log = self.log.clone();
        let status: Option<ExitStatus> =
            spawn_blocking(move || self.process.wait_for(PATIENCE)).await.unwrap();
        let text = fs::read_to_string(log).unwrap();
        println!("{text}[{status:?}]\n");
        (status.expect("it does not end").code().expect("it ends by an exit"), text)
    }
}

/// A script that holds a file lock while it runs, and prints `running`. The kernel keeps the lock as long as any process of it
/// lives, so that [`takes_over`] notices two at once. It ignores SIGTERM, and so do its own children.
fn stubborn(file: &Path) -> String {
    format!(
        "trap 'echo terminated' TERM; exec 9>{}; flock -n 9 || exit 99; echo running; \
         (trap '' TERM; while :; do sleep 0.05; done) & while :; do wait; sleep 0.05; done",
        file.display()
    )
}

/// A waiter whose command fails if that of the holder before still runs.
fn successor(folder: &Path, url: &str, file: &Path) -> Background {
    let script = format!("flock -n {} echo succeeded || echo OVERLAP", file.display());
    Background::start(folder, url, "--ttl 10s", &script)
}

async fn takes_over(successor: Background) {
    let (code, text) = successor.ends().await;
    assert!(code == 0 && text.contains("succeeded") && !text.contains("OVERLAP"), "{code}: {text}");
}

pub(crate) async fn waits(locks: &Locks, waiters: usize) {
    let waiting = async || locks.inspect("job").await.is_ok_and(|state| state.waiters == waiters);
    eventually("the number of waiters", waiting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_can_be_kept_for_longer_than_the_command_runs() {
    let redis = RedisServer::start().await.unwrap();
    let keeps = "-n --ttl 1s --hold-at-least 10s";
    let began = Instant::now();
    sh(&redis.url(), keeps, "echo ran").await.is(0, &["ran"]);
    sh(&redis.url(), keeps, "echo ran").await.is(75, &["busy"]);
    sh(&redis.url(), "-w 60s", "echo ran").await.is(0, &["ran"]);
    // The second polylock could begin before the lock of the first ended; not so the third.
    assert!(began.elapsed() >= Duration::from_secs(10), "{:?}", began.elapsed());
    let zk = ZooKeeper::start().await.unwrap();
    sh(&zk.url(), keeps, "echo ran").await.is(64, &["hold_at_least"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_kept_when_polylock_or_its_command_is_killed() {
    let redis = RedisServer::start().await.unwrap();
    let masters = RedisFive::start().await.unwrap();
    for url in [redis.url(), masters.url()] {
        for is_polylock in [true, false] {
            let (folder, began) = (TempDir::new().unwrap(), Instant::now());
            let keeps = "-n --ttl 1s --hold-at-least 8s";
            let holder = Background::start(folder.path(), &url, keeps, "echo running; exec sleep 60");
            holder.prints("running").await;
            let command = holder.command();
            if is_polylock {
                holder.process.kill();
                eventually("the end of the command", async || command_line(command).is_empty()).await;
            } else {
                kill_process(command, Signal::KILL).unwrap();
                assert_eq!(holder.ends().await.0, 137);
            }
            sh(&url, "-w 60s", "echo ran").await.is(0, &["ran"]);
            assert!(began.elapsed() >= Duration::from_secs(8), "{:?}", began.elapsed());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_its_streams_its_exit_code_and_its_token() {
    let redis = RedisServer::start().await.unwrap();
    let url = redis.url();
    let input: Vec<u8> = (0..1_048_576_u32).map(|n| b'a' + (n % 23) as u8).collect();
    let cat = Run::with_input(run(&url, "", &["cat"]), input.clone()).await;
    assert!(cat.code == 0 && cat.stdout.as_bytes() == input, "{}: {}", cat.code, cat.stdout.len());

    for code in [0, 1, 64, 70, 75, 127, 255] {
        sh(&url, "", &format!("echo out; echo err >&2; exit {code}")).await.is(code, &["out", "err"]);
    }
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("USR2", 140)] {
        sh(&url, "", &format!("kill -{signal} $$")).await.is(code, &[]);
    }
    let first = sh(&url, "", "echo $POLYLOCK_NAME $POLYLOCK_TOKEN").await;
    let second = sh(&url, "", "echo $POLYLOCK_NAME $POLYLOCK_TOKEN").await;
    let token = |run: &Run| run.stdout.trim().strip_prefix("job ").unwrap().parse::<u64>().unwrap();
    assert!(token(&first) < token(&second), "{first:?} {second:?}");

    // As a shell would: no shell is involved, nothing is left of the closed stream, and SIGPIPE is as ever.
    Run::of(run(&url, "", &["echo", "$HOME", "a  b"])).await.is(0, &["$HOME a  b"]);
    let line = format!("{POLYLOCK} run job -- sh -c 'echo lost; exit 5' >&-; echo $?");
    shell(&url, &line).await.is(0, &["5"]);
    let line = format!("{POLYLOCK} run job -- sh -c 'yes; exit 9' | head -1; echo ${{PIPESTATUS[0]}}");
    shell(&url, &line).await.is(0, &["y\n", "9"]);
    let line = format!("{POLYLOCK} run job -- yes | head -1; echo ${{PIPESTATUS[0]}}");
    shell(&url, &line).await.is(0, &["y\n", "141"]);
}

pub(crate) async fn shell(url: &str, line: &str) -> Run {
    let mut command = Command::new("bash");
    command.args(["-c", line]).env("POLYLOCK_URL", url);
    Run::of(command).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_gets_no_lock_says_why() {
    let redis = RedisServer::start().await.unwrap();
    let url = redis.url();
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.mutex("job").acquire().await.unwrap();
    for (options, code) in [("-n", 75), ("-w 1.5", 75), ("-w 1500ms -E 9", 9), ("-n -E 0", 0)] {
        sh(&url, options, "echo ran").await.is(code, &["\"job\" is busy", "polylock holders job"]);
    }
    sh(&url, "--shared -n", "echo ran").await.is(75, &["is busy"]);
    guard.release().await.unwrap();
    let reader = locks.rw("job").read().await.unwrap();
    sh(&url, "--shared -n", "echo ran").await.is(0, &["ran"]);
    sh(&url, "-n", "echo ran").await.is(75, &["is busy"]);
    reader.release().await.unwrap();
    let permit = locks.semaphore("job", 2).acquire().await.unwrap();
    sh(&url, "--permits 2 -n", "echo ran").await.is(0, &["ran"]);
    sh(&url, "--permits 1 -n", "echo ran").await.is(75, &["is busy"]);
    permit.release().await.unwrap();

    for (url, options, code, part) in [
        ("", "", 64, "no store is named"),
        ("memory://", "", 64, "end with this process"),
        ("etcd://a", "", 64, "etcd:// is unknown"),
        (&*url, "--json", 64, "leave out --json"),
        (&*url, "--ttl soon", 64, "--ttl"),
        (&*url, "-n -w 1", 64, "cannot be used with"),
        (&*url, "--permits 0", 64, "--permits"),
        ("redis://127.0.0.1:1", "", 69, "way out: "),
    ] {
        let run = sh(url, options, "echo ran").await;
        run.is(code, &[part]);
        assert!(!run.stdout.contains("ran\n"), "{run:?}");
    }
    let mut unreadable = run(&url, "--bad", &["cat", "--json"]);
    unreadable.arg(OsStr::from_bytes(b"\xff"));
    Run::of(unreadable).await.is(64, &["error: unexpected argument '--bad'"]);
    Run::of(run(&url, "", &["no-such-command"])).await.is(127, &["does not exist", "sh -c"]);
    let text = tempfile::NamedTempFile::new().unwrap();
    let command = text.path().to_str().unwrap();
    Run::of(run(&url, "", &[command])).await.is(126, &["cannot be run", "chmod +x"]);
    let locked = locks.list("").await.unwrap();
    assert!(!locks.inspect("job").await.unwrap().is_held(), "{locked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_runs_lose_no_increment_on_redis() {
    let redis = RedisServer::start().await.unwrap();
    fifty_runs_lose_no_increment(&format!("{}?command_timeout=5s&connect_timeout=10s", redis.url())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_runs_lose_no_increment_on_redlock() {
    let masters = RedisFive::start().await.unwrap();
    masters.have_been_used().await.unwrap();
    fifty_runs_lose_no_increment(&format!("{}?master_timeout=5s&connect_timeout=10s", masters.url())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_runs_lose_no_increment_on_zookeeper() {
    let zk = ZooKeeper::start().await.unwrap();
    fifty_runs_lose_no_increment(&zk.url()).await;
}

/// Fifty processes that start at once are slow to hear of any answer.
async fn fifty_runs_lose_no_increment(url: &str) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("number");
    fs::write(&file, "0").unwrap();
    let script = format!("n=$(cat {0}); sleep 0.01; echo $((n+1)) > {0}", file.display());
    let runs = (0..50).map(|_| {
        let command = run(url, "", &["sh", "-c", &script]);
        tokio::spawn(async move { Run::of(command).await.code })
    });
    for run in Vec::from_iter(runs) {
        assert_eq!(run.await.unwrap(), 0);
    }
    assert_eq!(fs::read_to_string(&file).unwrap().trim(), "50");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_a_wait_and_leaves_no_waiter() {
    let redis = RedisServer::start().await.unwrap();
    let zk = ZooKeeper::start().await.unwrap();
    let folder = TempDir::new().unwrap();
    for url in [redis.url(), zk.url()] {
        let locks = Locks::connect(&url).await.unwrap();
        let guard = locks.mutex("job").acquire().await.unwrap();
        for (signal, code) in [
            (Signal::INT, 130),
            (Signal::TERM, 143),
            (Signal::HUP, 129),
            (Signal::QUIT, 131),
            (Signal::USR1, 138),
            (Signal::USR2, 140),
        ] {
            let run = Background::start(folder.path(), &url, "", "echo ran");
            waits(&locks, 1).await;
            run.signal(signal);
            let (ended, text) = run.ends().await;
            assert_eq!(ended, code, "{text}");
            assert!(!text.contains("ran"), "{text}");
            waits(&locks, 0).await;
        }
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_goes_to_the_process_group_of_the_command() {
    let redis = RedisServer::start().await.unwrap();
    let folder = TempDir::new().unwrap();
    let traps = "for s in INT HUP QUIT USR1 USR2; do trap \"echo outer $s\" $s; done; trap 'exit 3' TERM; \
                 (trap 'echo inner USR1' USR1; trap 'echo inner TERM; exit' TERM; trap '' INT HUP QUIT USR2; echo inner; \
                 while :; do sleep 0.02; done) & echo outer; while :; do sleep 0.02; done";
    let run = Background::start(folder.path(), &redis.url(), "", traps);
    run.prints("outer\n").await;
    run.prints("inner\n").await;
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        run.signal(signal);
        run.prints(&format!("outer {name}")).await;
    }
    run.prints("inner USR1").await;
    run.signal(Signal::TERM);
    let (code, text) = run.ends().await;
    assert_eq!(code, 3, "{text}");

    // What nohup ignores is ignored by both.
    let mut command = Command::new("nohup");
    command.args([POLYLOCK, "run", "job", "--", "sh", "-c", "kill -HUP 0; echo alive"]);
    command.env("POLYLOCK_URL", redis.url());
    Run::of(command).await.is(0, &["alive"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_lost_stops_the_command() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    let file = folder.path().join("file");
    let locks = Locks::connect(&url).await.unwrap();

    let polite = "trap 'echo cleaned; exit 0' TERM; echo running; while :; do sleep 0.02; done";
    let run = Background::start(folder.path(), &url, "--ttl 4s", polite);
    run.prints("running").await;
    assert!(locks.break_lock("job").await.unwrap());
    let (code, text) = run.ends().await;
    assert!(
        code == 70 && text.contains("is lost: the lock was removed") && text.contains("cleaned"),
        "{code}: {text}"
    );

    let run = Background::start(folder.path(), &url, "--ttl 4s --grace 60s", &stubborn(&file));
    run.prints("running").await;
    assert!(locks.break_lock("job").await.unwrap());
    let (code, text) = run.ends().await;
    let signals = ["gets SIGTERM", "terminated", "gets SIGKILL"];
    assert!(code == 70 && signals.iter().all(|part| text.contains(part)), "{code}: {text}");
    takes_over(successor(folder.path(), &url, &file)).await;

    // What a polite command leaves behind is killed as well.
    let leaves = format!(
        "exec 9>{}; flock -n 9; (trap '' TERM; echo running; while :; do sleep 0.05; done) & trap 'exit 0' TERM; wait",
        file.display()
    );
    let run = Background::start(folder.path(), &url, "--ttl 4s", &leaves);
    run.prints("running").await;
    assert!(locks.break_lock("job").await.unwrap());
    let (code, text) = run.ends().await;
    assert_eq!(code, 70, "{text}");
    takes_over(successor(folder.path(), &url, &file)).await;

    let run = Background::start(folder.path(), &url, "--ttl 4s --on-lost kill", &stubborn(&file));
    run.prints("running").await;
    assert!(locks.break_lock("job").await.unwrap());
    let (code, text) = run.ends().await;
    assert!(code == 70 && !text.contains("terminated") && text.contains("gets SIGKILL"), "{code}: {text}");
    takes_over(successor(folder.path(), &url, &file)).await;

    let patient =
        "trap 'echo terminated' TERM; echo running; while ! [ -e go ]; do sleep 0.02; done; echo done";
    let run = Background::start(
        folder.path(),
        &url,
        "--ttl 4s --on-lost warn",
        &patient.replace("go", &file.with_extension("go").display().to_string()),
    );
    run.prints("running").await;
    assert!(locks.break_lock("job").await.unwrap());
    run.prints("goes on without it").await;
    fs::write(file.with_extension("go"), "").unwrap();
    let (code, text) = run.ends().await;
    assert!(code == 70 && text.contains("done") && !text.contains("terminated"), "{code}: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_that_only_the_release_finds_is_reported() {
    let (redis, folder) = (RedisServer::start().await.unwrap(), TempDir::new().unwrap());
    let go = folder.path().join("go");
    let script = format!("echo running; until [ -e {} ]; do sleep 0.02; done", go.display());
    let run = Background::start(folder.path(), &redis.url(), "", &script);
    run.prints("running").await;
    redis.command(&["FLUSHALL"]).await.unwrap();
    fs::write(go, "").unwrap();
    let (code, text) = run.ends().await;
    assert!(code == 70 && text.contains("was lost before its release"), "{code}: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_ends_before_its_lock_when_redis_is_cut_off_or_paused() {
    let redis = RedisServer::start().await.unwrap();
    let proxy = FaultProxy::start(redis.addr(), Protocol::Redis).unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    let url = format!("redis://{}", proxy.addr());
    let holder = Background::start(folder.path(), &url, "--ttl 3s", &stubborn(&file));
    holder.prints("running").await;
    let next = successor(folder.path(), &redis.url(), &file);
    waits(&Locks::connect(&redis.url()).await.unwrap(), 1).await;
    proxy.black_hole(Direction::ToClient, true);
    proxy.black_hole(Direction::ToServer, true);
    takes_over(next).await;
    let (code, text) = holder.ends().await;
    assert!(code == 70 && text.contains("may be lost soon") && text.contains("terminated"), "{code}: {text}");

    proxy.heal();
    let holder = Background::start(folder.path(), &redis.url(), "--ttl 3s", &stubborn(&file));
    holder.prints("running").await;
    let next = successor(folder.path(), &redis.url(), &file);
    waits(&Locks::connect(&redis.url()).await.unwrap(), 1).await;
    redis.stop();
    holder.prints("gets SIGKILL").await;
    redis.cont();
    takes_over(next).await;
    assert_eq!(holder.ends().await.0, 70);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_ends_before_its_lock_when_nobody_reads_the_messages() {
    let redis = RedisServer::start().await.unwrap();
    let proxy = FaultProxy::start(redis.addr(), Protocol::Redis).unwrap();
    let folder = TempDir::new().unwrap();
    let [file, started] = ["file", "started"].map(|name| folder.path().join(name));
    // The pipe of standard error is full before the lock is in danger.
    let script = format!(
        "trap '' TERM; exec 9>{}; flock -n 9 && yes >&2 & sleep 0.3; touch {}; while :; do sleep 0.05; done",
        file.display(),
        started.display()
    );
    let url = format!("redis://{}", proxy.addr());
    let command = run(&url, "--ttl 3s", &["bash", "-c", &script]);
    let mut holder = process::spawn(&command, Stdio::null(), Stdio::null(), Stdio::piped()).unwrap();
    eventually("the start", async || started.exists()).await;
    let next = successor(folder.path(), &redis.url(), &file);
    waits(&Locks::connect(&redis.url()).await.unwrap(), 1).await;
    proxy.black_hole(Direction::ToClient, true);
    proxy.black_hole(Direction::ToServer, true);
    takes_over(next).await;
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_ends_before_its_lock_when_zookeeper_is_cut_off_or_killed() {
    let zk = ZooKeeper::builder().tick_time(Duration::from_millis(200)).start().await.unwrap();
    let proxy = FaultProxy::start(zk.addr(), Protocol::ZooKeeper).unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    let session = "?session_timeout=2s";
    let (url, cut) = (format!("{}{session}", zk.url()), format!("zk://{}{session}", proxy.addr()));
    let holder = Background::start(folder.path(), &cut, "", &stubborn(&file));
    holder.prints("running").await;
    let next = successor(folder.path(), &url, &file);
    waits(&Locks::connect(&url).await.unwrap(), 1).await;
    proxy.black_hole(Direction::ToClient, true);
    proxy.black_hole(Direction::ToServer, true);
    takes_over(next).await;
    let (code, text) = holder.ends().await;
    assert!(code == 70 && text.contains("terminated"), "{code}: {text}");

    let holder = Background::start(folder.path(), &url, "", &stubborn(&file));
    holder.prints("running").await;
    zk.kill();
    let (code, text) = holder.ends().await;
    assert!(code == 70 && text.contains("gets SIGKILL"), "{code}: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_ends_before_its_lock_when_polylock_is_killed_or_stopped() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    let file = folder.path().join("file");
    for signal in [Signal::KILL, Signal::STOP] {
        let holder = Background::start(folder.path(), &url, "--ttl 2s", &stubborn(&file));
        holder.prints("running").await;
        let next = successor(folder.path(), &url, &file);
        waits(&Locks::connect(&url).await.unwrap(), 1).await;
        holder.signal(signal);
        takes_over(next).await;
        if signal == Signal::STOP {
            holder.signal(Signal::CONT);
            let (code, text) = holder.ends().await;
            assert!(code == 70 && text.contains("is lost"), "{code}: {text}");
        }
    }
    // The kernel continues a watchdog that was stopped.
    let holder = Background::start(folder.path(), &url, "--ttl 60s", "echo running; exec sleep 60");
    holder.prints("running").await;
    let (watchdog, command) = (holder.watchdog(), holder.command());
    kill_process(watchdog, Signal::STOP).unwrap();
    holder.process.kill();
    eventually("the end of the command", async || command_line(command).is_empty()).await;
    eventually("the end of the watchdog", async || command_line(watchdog).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watchdog_that_was_killed_takes_the_command_with_it_and_one_that_was_stopped_goes_on() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    let file = folder.path().join("file");
    let holder = Background::start(folder.path(), &url, "--ttl 60s", &away(&file));
    holder.prints("running").await;
    let next = successor(folder.path(), &url, &file);
    waits(&Locks::connect(&url).await.unwrap(), 1).await;
    kill_process(holder.watchdog(), Signal::KILL).unwrap();
    let (code, text) = holder.ends().await;
    assert!(code == 137 && text.contains("the watchdog was killed"), "{code}: {text}");
    takes_over(next).await;

    let holder = Background::start(folder.path(), &url, "", "echo running; sleep 1; echo ends");
    holder.prints("running").await;
    kill_process(holder.watchdog(), Signal::STOP).unwrap();
    assert_eq!(holder.ends().await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_ends_as_it_wants_to_whatever_else_is_signalled() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    let cleans = "trap 'sleep 0.3; echo cleaned; exit 5' TERM; echo running; while :; do sleep 0.02; done";
    let holder = Background::start(folder.path(), &url, "", cleans);
    holder.prints("running").await;
    // As at the end of a service, whose processes are all signalled.
    kill_process(holder.watchdog(), Signal::TERM).unwrap();
    holder.signal(Signal::TERM);
    let (code, text) = holder.ends().await;
    assert!(code == 5 && text.contains("cleaned"), "{code}: {text}");

    sh(&url, "", "kill -34 $$").await.is(128 + 34, &[]);
    let orphan = "(setsid sh -c 'sleep 0.1; kill -34 $$' &); sleep 0.5; exit 3";
    sh(&url, "", orphan).await.is(3, &[]);
    let mut deaf = Command::new("env");
    deaf.args(["--ignore-signal=CHLD", POLYLOCK, "run", "job", "--", "sh", "-c", "exit 3"]);
    Run::of({
        deaf.env("POLYLOCK_URL", &url);
        deaf
    })
    .await
    .is(3, &[]);

    // The grace is that of all processes.
    let grace = "--max-run 3s --grace 10s";
    let worker = "trap 'sleep 0.5; echo cleaned; exit' TERM; while :; do sleep 0.02; done";
    sh(&url, grace, &format!("sh -c \"{worker}\"; echo after")).await.is(124, &["cleaned"]);
}

/// A script whose processes leave its process group, ignore SIGTERM, and hold a file lock, as [`stubborn`] does.
fn away(file: &Path) -> String {
    let work = format!(
        "trap \"\" TERM; exec 9<{}; flock -s -n 9 || exit 99; echo running; while :; do sleep 0.05; done",
        file.display()
    );
    format!("touch {}; setsid bash -c '({work}) &' & timeout 1h bash -c '{work}'", file.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_left_the_process_group_ends_before_the_lock_as_well() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    let locks = Locks::connect(&url).await.unwrap();
    let file = folder.path().join("file");
    for round in 0..3 {
        let holder = Background::start(folder.path(), &url, "--ttl 2s --grace 500ms", &away(&file));
        eventually("both", async || holder.text().matches("running").count() == 2).await;
        let next = successor(folder.path(), &url, &file);
        waits(&locks, 1).await;
        match round {
            0 => {
                assert!(locks.break_lock("job").await.unwrap());
                assert_eq!(holder.ends().await.0, 70);
                // A lock that was broken is the next one's at once.
                let (code, text) = next.ends().await;
                assert!(code == 0 && !text.is_empty(), "{code}: {text}");
                continue;
            }
            1 => holder.signal(Signal::KILL),
            _ => holder.signal(Signal::STOP),
        }
        takes_over(next).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_runs_for_too_long_is_stopped() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    let file = folder.path().join("file");
    for options in ["--max-run 2s --grace 2s", "--max-run 2s --on-lost warn --grace 2s"] {
        let holder = Background::start(folder.path(), &url, options, &stubborn(&file));
        let (code, text) = holder.ends().await;
        let signals = ["--max-run", "gets SIGTERM", "terminated", "gets SIGKILL"];
        assert!(code == 124 && signals.iter().all(|part| text.contains(part)), "{code}: {text}");
        takes_over(successor(folder.path(), &url, &file)).await;
    }
    sh(&url, "--max-run 60s", "exit 3").await.is(3, &[]);
}

/// `polylock` as nobody, for whom root may have set programs aside.
fn as_nobody(folder: &Path, url: &str, options: &str, command: &[&str]) -> Command {
    let mut run = as_user(65_534, folder, &[], url);
    run.args(options.split_whitespace()).args(["job", "--"]).args(command);
    run
}

/// `polylock run` as this user, by this program, without its own arguments.
fn as_user(user: u32, folder: &Path, by: &[&str], url: &str) -> Command {
    let polylock = folder.join("polylock");
    if !polylock.exists() {
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        fs::copy(POLYLOCK, &polylock).unwrap();
    }
    let (mut run, user) = (Command::new("setpriv"), user.to_string());
    run.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).args(by).arg(polylock);
    run.arg("run").env("POLYLOCK_URL", url);
    run
}

/// A program that becomes root altogether, as sudo does.
fn sudo(folder: &Path) -> String {
    let sudo = folder.join("sudo");
    fs::copy("/usr/bin/setpriv", &sudo).unwrap();
    fs::set_permissions(&sudo, Permissions::from_mode(0o4755)).unwrap();
    sudo.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_stopped_is_refused_or_reported() {
    if !geteuid().is_root() {
        eprintln!("left out: only root can make a program that is run as root");
        return;
    }
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    let sudo = sudo(folder.path());
    let job = [&*sudo, "--reuid", "0", "--clear-groups", "sleep", "8"];

    let refused = as_nobody(folder.path(), &url, "", &job);
    Run::of(refused).await.is(70, &["set-user-ID", "--on-lost warn"]);
    Run::of(as_nobody(folder.path(), &url, "--on-lost warn", &job[..5])).await.is(1, &[]);

    let script = format!("{} & echo running; wait", job.join(" "));
    let command = as_nobody(folder.path(), &url, "--ttl 1s --grace 100ms", &["sh", "-c", &script]);
    let holder = Background::of(folder.path(), &command);
    holder.prints("running").await;
    // It becomes root first.
    sleep(Duration::from_millis(300)).await;
    assert!(Locks::connect(&url).await.unwrap().break_lock("job").await.unwrap());
    let (code, text) = holder.ends().await;
    assert!(
        code == 70 && text.contains("gets SIGTERM") && text.contains("processes of another user"),
        "{text}"
    );
    assert_eq!(text.matches("watchdog").count(), 0, "{text}");

    // A lock that is valid is kept for as long as they run.
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let job = format!("exec 9<{}; flock -s 9; {sudo} --reuid 0 sleep 5 & echo running; wait", file.display());
    let command = as_nobody(folder.path(), &url, "--max-run 2s --grace 100ms", &["sh", "-c", &job]);
    let holder = Background::of(folder.path(), &command);
    holder.prints("running").await;
    let succeeds = ["flock", "-n", file.to_str().unwrap(), "echo", "succeeded"];
    takes_over(Background::of(folder.path(), &as_nobody(folder.path(), &url, "", &succeeds))).await;
    let (code, text) = holder.ends().await;
    assert!(code == 124 && text.contains("is kept until they end"), "{code}: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_stays_locked_until_the_last_process_of_a_killed_polylock_is_gone() {
    if !geteuid().is_root() {
        eprintln!("left out: only root can make a process that polylock cannot kill");
        return;
    }
    let folder = TempDir::new().unwrap();
    let [locks, file] = ["locks", "file"].map(|name| folder.path().join(name));
    fs::create_dir(&locks).unwrap();
    fs::set_permissions(&locks, Permissions::from_mode(0o777)).unwrap();
    let (url, sudo) = (format!("flock://{}", locks.display()), sudo(folder.path()));
    fs::write(&file, "").unwrap();
    let script =
        format!("exec 9<{}; flock -s 9; {sudo} --reuid 0 sleep 8 & echo running; wait", file.display());
    let holder = Background::of(folder.path(), &as_nobody(folder.path(), &url, "", &["sh", "-c", &script]));
    holder.prints("running").await;
    let next =
        as_nobody(folder.path(), &url, "", &["flock", "-n", file.to_str().unwrap(), "echo", "succeeded"]);
    let next = Background::of(folder.path(), &next);
    next.prints("waiting for the lock").await;
    holder.process.kill();
    takes_over(next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_of_processes_is_no_obstacle() {
    let redis = RedisServer::start().await.unwrap();
    let no_zombies = "! grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | grep .";
    for (namespace, check) in [
        // Its /proc is that of all processes.
        (&["--pid", "--fork"][..], "true"),
        // It is process 1 itself, and inherits all orphans.
        (&["--pid", "--fork", "--mount-proc"], no_zombies),
    ] {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user"]).args(namespace).args([POLYLOCK, "run", "job", "--"]);
        let orphans = format!("for i in 1 2 3 4 5; do (sleep 0.1 &) ; done; sleep 0.5; {check} && exit 7");
        command.args(["sh", "-c", &orphans]).env("POLYLOCK_URL", redis.url());
        let run = Run::of(command).await;
        if run.stderr.starts_with("unshare:") {
            eprintln!("left out: no namespaces here");
            return;
        }
        run.is(7, &[]);
    }
}

/// A user may have so many processes and threads: `polylock` lacks one for itself, for its watchdog or for the command.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_lacks_a_process_or_a_thread_ends_with_an_error() {
    if !geteuid().is_root() {
        eprintln!("left out: only root can be a user who has no other process");
        return;
    }
    let (redis, zk) = (RedisServer::start().await.unwrap(), ZooKeeper::start().await.unwrap());
    let folder = TempDir::new().unwrap();
    let locks = folder.path().join("locks");
    fs::create_dir(&locks).unwrap();
    fs::set_permissions(&locks, Permissions::from_mode(0o777)).unwrap();
    // Nobody else has it.
    let user = 2_000_000 + std::process::id();
    for url in [redis.url(), format!("zk://{}", zk.addr()), format!("flock://{}?mode=0666", locks.display())]
    {
        let mut succeeded = false;
        for most in 1..=20 {
            let limit = format!("--nproc={most}:{most}");
            let mut command = as_user(user, folder.path(), &["prlimit", &limit], &url);
            command.args(["-n", "job", "--", "true"]);
            let (code, text) = Background::of(folder.path(), &command).ends().await;
            if code == 0 {
                succeeded = true;
                break;
            }
            // The driver of ZooKeeper panics on a thread of its own.
            let says_so = text.contains("ulimit -u") || url.starts_with("zk:") && text.contains("spawn");
            assert!([69, 70].contains(&code) && says_so, "{url}, {most}: {code}: {text}");
            let free = Locks::connect(&url).await.unwrap().mutex("job").try_acquire().await.unwrap();
            free.expect("the lock was released").release().await.unwrap();
        }
        assert!(succeeded, "{url}");
    }
}

/// Signals the watchdog of a process again and again, as soon as there is one, until that process has ended. A child that is not yet the
/// watchdog is left alone: stopped there, it would stop its parent in the system call.
fn signal_watchdog(of: &Child, signal: Signal) -> thread::JoinHandle<()> {
    let pid = of.pid();
    thread::spawn(move || {
        while let Ok(children) = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) {
            let is_watchdog = |pid: &&str| {
                fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|name| name.starts_with(b"polylock-watchdog\0"))
            };
            let watchdogs = children.split_whitespace().filter(is_watchdog);
            watchdogs
                .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
                .for_each(|watchdog| _ = kill_process(watchdog, signal));
            thread::sleep(Duration::from_micros(200));
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_watchdog_dies_at_its_start_ends_with_an_error() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    let locks = Locks::connect(&url).await.unwrap();
    loop {
        let run = Background::start(folder.path(), &url, "-v", "echo began");
        let killer = signal_watchdog(&run.process, Signal::KILL);
        let (code, text) = run.ends().await;
        spawn_blocking(|| killer.join().unwrap()).await.unwrap();
        assert!(locks.mutex("job").try_acquire().await.unwrap().is_some(), "the lock is released");
        if !text.contains("the command runs") {
            assert!(code == 70 && text.contains("its watchdog has ended"), "{code}: {text}");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_a_run_whose_watchdog_does_not_report() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    let locks = Locks::connect(&url).await.unwrap();
    loop {
        let run = Background::start(folder.path(), &url, "-v", "echo began; sleep 60");
        let stopper = signal_watchdog(&run.process, Signal::STOP);
        let is_held = async || locks.inspect("job").await.unwrap().is_held();
        eventually("the lock", is_held).await;
        let had_begun = run.text().contains("the command runs");
        run.signal(Signal::TERM);
        let (code, text) = run.ends().await;
        spawn_blocking(|| stopper.join().unwrap()).await.unwrap();
        assert_eq!(code, 143, "{text}");
        assert!(locks.mutex("job").try_acquire().await.unwrap().is_some(), "the lock is released");
        if !had_begun {
            assert!(!text.contains("the command runs"), "{text}");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_proc_says_so() {
    let redis = RedisServer::start().await.unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
    command.arg(format!("mount -t tmpfs none /proc && exec {POLYLOCK} run job -- echo began"));
    command.env("POLYLOCK_URL", redis.url());
    let run = Run::of(command).await;
    if run.stderr.starts_with("unshare:") || run.stderr.starts_with("mount:") {
        eprintln!("left out: no namespaces here");
        return;
    }
    run.is(70, &["/proc is not mounted", "mount -t proc"]);
    assert!(!run.stdout.contains("began"), "{run:?}");
}

/// systemd names the process that it starts, and the library of a service compares that with itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_the_sockets_and_the_watchdog_of_its_service() {
    let redis = RedisServer::start().await.unwrap();
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("socket");
    fs::write(&socket, "of the socket").unwrap();
    let service = async |variables: &str, check: &str| {
        let mut command = Command::new("sh");
        let run = format!("exec env {variables} {POLYLOCK} run job -- sh -c '{check}'");
        command.args(["-c", &format!("{run} 3<{}", socket.display())]);
        command.env("POLYLOCK_URL", redis.url());
        Run::of(command).await
    };
    let ours = "LISTEN_PID=$$ LISTEN_FDS=1 WATCHDOG_PID=$$ WATCHDOG_USEC=30000000 LISTEN_PIDFDID=1";
    let check = "test $LISTEN_PID = $$ && test $WATCHDOG_PID = $$ && test -z \"$LISTEN_PIDFDID\" && cat <&3";
    service(ours, check).await.is(0, &["of the socket"]);
    // They are meant for another process.
    service("LISTEN_PID=1 WATCHDOG_PID=1", "test $LISTEN_PID$WATCHDOG_PID = 11").await.is(0, &[]);
    service("", "test -z \"$LISTEN_PID$WATCHDOG_PID\"").await.is(0, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_was_stopped_runs_nothing_under_a_lock_of_the_past() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    let [file, go] = ["file", "go"].map(|name| folder.path().join(name));
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.mutex("job").acquire().await.unwrap();
    let stopped = successor(folder.path(), &url, &file);
    waits(&locks, 1).await;
    stopped.process.stop();
    guard.release().await.unwrap();
    // It gets the lock once that of the stopped waiter has expired.
    let script = format!(
        "exec 9>{}; flock -n 9 && echo running; while ! [ -e {} ]; do sleep 0.02; done",
        file.display(),
        go.display()
    );
    let next = Background::start(folder.path(), &url, "--ttl 2s", &script);
    next.prints("running").await;
    stopped.process.cont();
    waits(&locks, 1).await;
    fs::write(go, "").unwrap();
    takes_over(stopped).await;
    assert_eq!(next.ends().await.0, 0);
}

fn children_of(pid: i32) -> Vec<Pid> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect()
}

fn command_line(pid: Pid) -> Vec<u8> {
    fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_command_leads_again() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    let locks = Locks::connect(&url).await.unwrap();
    let script = "echo leads $POLYLOCK_TOKEN; while :; do sleep 0.02; done";
    let [one, two] = [(); 2].map(|()| Background::start(folder.path(), &url, "--ttl 2s --restart", script));
    let leads = |run: &Background| run.text().matches("leads").count();
    for round in 1..=3 {
        eventually("a leader", async || leads(&one) + leads(&two) == round).await;
        waits(&locks, 1).await;
        // Killed as if it had crashed, or the lock is lost.
        if round == 1 {
            assert!(locks.break_lock("job").await.unwrap());
        } else {
            let leader = locks.inspect("job").await.unwrap().holders[0].owner().unwrap().pid;
            let leader = if one.process.pid() == leader { &one } else { &two };
            kill_process(leader.command(), Signal::KILL).unwrap();
        }
    }
    eventually("a leader", async || leads(&one) + leads(&two) == 4).await;
    one.signal(Signal::TERM);
    two.signal(Signal::TERM);
    assert_eq!((one.ends().await.0, two.ends().await.0), (143, 143));
    assert!(!locks.inspect("job").await.unwrap().is_held());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_is_wrong_for_a_while_ends_no_standby_and_no_waiter() {
    let redis = RedisServer::builder().user("app", "on >right ~* &* +@all").start().await.unwrap();
    let url = format!("redis://app:right@{}", redis.addr());
    let (folder, script) = (TempDir::new().unwrap(), "echo has it; while :; do sleep 0.02; done");
    let has_it = |run: &Background| run.text().contains("has it");
    let leader = Background::start(folder.path(), &url, "--ttl 2s --restart", script);
    leader.prints("has it").await;
    let start = |options| Background::start(folder.path(), &url, options, script);
    let [standby, waiter, strict] = ["--ttl 2s --restart", "--ttl 2s", "--ttl 2s --strict"].map(start);
    let locks = Locks::connect(&redis.url()).await.unwrap();
    waits(&locks, 3).await;
    let set_password = async |password: &str| {
        for words in
            [vec!["ACL", "SETUSER", "app", "resetpass", password], vec!["CLIENT", "KILL", "USER", "app"]]
        {
            assert!(!redis.command(&words).await.unwrap().is_error());
        }
    };
    set_password(">wrong").await;
    let (code, text) = strict.ends().await;
    assert!(code == 70 && text.contains("refused the user name or password"), "{code}: {text}");
    for run in [&standby, &waiter, &leader] {
        run.prints("going on until that passes").await;
    }
    sleep(Duration::from_secs(2)).await;
    for run in [&standby, &waiter] {
        assert_eq!(run.text().matches("refused the user name").count(), 1, "{}", run.text());
    }
    set_password(">right").await;
    let again = |run: &Background| run.text().matches("has it").count();
    eventually("a holder", async || has_it(&standby) || has_it(&waiter) || again(&leader) == 2).await;
    // Whoever ends is followed by the next one.
    for run in [leader, standby, waiter] {
        run.signal(Signal::TERM);
        assert_eq!(run.ends().await.0, 143);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_does_not_keep_a_command_that_has_ended() {
    let redis = RedisServer::start().await.unwrap();
    let masters = RedisFive::start().await.unwrap();
    let zk = ZooKeeper::start().await.unwrap();
    let folder = TempDir::new().unwrap();
    let go = folder.path().join("go");
    let script = format!("echo running; while ! [ -e {} ]; do sleep 0.02; done; exit 4", go.display());
    for url in [redis.url(), masters.url(), zk.url()] {
        // Longer than it takes to notice that the lock cannot be renewed.
        let run = Background::start(folder.path(), &format!("{url}{}", lasting(&url)), "", &script);
        run.prints("running").await;
        hang(&redis, &masters, &zk, true);
        fs::write(&go, "").unwrap();
        let ended = Instant::now();
        let (code, text) = run.ends().await;
        let took = ended.elapsed();
        hang(&redis, &masters, &zk, false);
        let says = ["was not released", "ends with its lease or session, in about "];
        assert!(code == 4 && says.iter().all(|part| text.contains(part)), "{code}: {text}");
        // It takes 5 s on an idle machine.
        assert!(took < Duration::from_secs(10), "{took:?} after the command");
        fs::remove_file(&go).unwrap();
    }
}

fn lasting(url: &str) -> &'static str {
    if url.starts_with("zk") { "?session_timeout=30s" } else { "?ttl=30s" }
}

fn hang(redis: &RedisServer, masters: &RedisFive, zk: &ZooKeeper, hangs: bool) {
    if hangs {
        redis.stop();
        masters.servers().iter().for_each(RedisServer::stop);
        zk.stop();
    } else {
        redis.cont();
        masters.servers().iter().for_each(RedisServer::cont);
        zk.cont();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_that_of_the_command() {
    let redis = RedisServer::start().await.unwrap();
    let url = redis.url();
    let variables = [("POLYLOCK_URL", &*url)];
    let open =
        |script: &str| Terminal::open(&format!("{POLYLOCK} run job -- bash -c '{script}'"), &variables);

    let mut terminal = open("stty -echo; echo ready; read line; echo got $line; stty echo; exit 6");
    terminal.shows("ready", 1).await;
    terminal.types("words\n");
    let (code, screen) = terminal.ends().await;
    assert!(code == 6 && screen.contains("got words"), "{screen}");

    // In the background of the terminal, and in its foreground.
    for begin in ["", "stty -echo; "] {
        let mut terminal = open(&format!(
            "{begin}trap \"echo interrupted; exit 7\" INT; echo ready; while :; do sleep 0.02; done"
        ));
        terminal.shows("ready", 1).await;
        terminal.types("\u{3}");
        let (code, screen) = terminal.ends().await;
        assert!(code == 7 && screen.matches("interrupted").count() == 1, "{screen}");
    }
    let mut terminal = open("trap \"\" INT; echo ready; read line; echo got $line");
    terminal.shows("ready", 1).await;
    terminal.types("\u{1a}\u{3}words\n");
    let (code, screen) = terminal.ends().await;
    assert!(code == 0 && screen.contains("got words"), "an orphaned job is not stopped: {screen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphaned_job_that_reads_from_the_terminal_is_hung_up_and_does_not_spin() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    let locks = Locks::connect(&url).await.unwrap();
    for (begin, survives) in [("", false), ("trap : HUP; ", true)] {
        let log = folder.path().join(format!("log{survives}"));
        let reads = format!("{begin}sleep 0.5; while :; do read line </dev/tty; done");
        // The shell leaves the job in the background of the terminal, and nobody continues it.
        let orphan = format!(
            "set -m; ({POLYLOCK} run job -- bash -c \"{reads}\" >{} 2>&1 &); sleep 60",
            log.display()
        );
        let terminal = Terminal::open(&format!("bash -c '{orphan}'"), &[("POLYLOCK_URL", &url)]);
        let hung_up = async || fs::read_to_string(&log).is_ok_and(|text| text.contains("it gets SIGHUP"));
        eventually("the message", hung_up).await;
        if survives {
            let pid = locks.inspect("job").await.unwrap().holders[0].owner().unwrap().pid;
            let before = cpu_ticks(pid);
            sleep(Duration::from_secs(2)).await;
            // A hundred ticks are a second.
            assert!(cpu_ticks(pid) - before < 40, "it spins");
            assert_eq!(fs::read_to_string(&log).unwrap().matches("SIGHUP").count(), 1);
            kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::TERM).unwrap();
        }
        eventually("its end", async || !locks.inspect("job").await.unwrap().is_held()).await;
        drop(terminal);
    }
}

fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace().map(|field| field.parse().unwrap_or(0));
    fields.skip(11).take(2).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_stops_and_continues_the_job() {
    let redis = RedisServer::start().await.unwrap();
    let url = redis.url();
    let locks = Locks::connect(&url).await.unwrap();
    let mut shell = Terminal::open("bash --norc -i", &[("POLYLOCK_URL", &url)]);
    shell.shows("bash-", 1).await;
    let count = |shell: &Terminal| shell.screen().matches("\ntick ").count();
    let ticks = "i=0; while :; do echo tick $((++i)); sleep 0.05; done";
    for (round, begin) in [(1, ""), (2, "stty -echo; ")] {
        shell.types(&format!("{POLYLOCK} run job --ttl 20s -- bash -c '{begin}{ticks}'\n"));
        shell.shows("tick 3\r", round).await;
        shell.types("\u{1a}");
        shell.shows("Stopped", round).await;
        // The whole job stands still.
        let before = count(&shell);
        sleep(Duration::from_millis(500)).await;
        assert_eq!(count(&shell), before, "{}", shell.screen());
        assert!(locks.inspect("job").await.unwrap().is_held());
        shell.types("fg\n");
        eventually("more ticks", async || count(&shell) > before + 3).await;
        shell.types("\u{3}");
        shell.types(&format!("echo code$?-{round}\n"));
        shell.shows(&format!("code130-{round}"), 1).await;
        assert!(!locks.inspect("job").await.unwrap().is_held());
    }
    // A lock that was lost meanwhile: the command does not go on.
    shell.types(&format!("{POLYLOCK} run job --ttl 1s -- bash -c 'trap \"\" TERM; {ticks}'\n"));
    shell.shows("tick 3\r", 3).await;
    shell.types("\u{1a}");
    shell.shows("Stopped", 3).await;
    let held = async || !locks.inspect("job").await.unwrap().is_held();
    eventually("the end of the lock", held).await;
    let before = count(&shell);
    shell.types("fg\n");
    shell.types("echo code$?-3\n");
    shell.shows("code70-3", 1).await;
    assert_eq!(count(&shell), before, "{}", shell.screen());
    // A command that is killed leaves the terminal as it was.
    shell.types(&format!("{POLYLOCK} run job --grace 0.1 -- bash -c 'stty -echo raw; trap \"\" TERM; echo $((40+2)); while :; do sleep 0.05; done'\n"));
    shell.shows("42", 1).await;
    assert!(locks.break_lock("job").await.unwrap());
    shell.shows("removed on the server; the command gets SIGKILL", 1).await;
    shell.types("stty -a | grep -o ' echo '; echo code$?-4\n");
    shell.shows("code0-4", 1).await;
    // Who reads from a pipe keeps the terminal.
    shell.types(&format!(
        "{POLYLOCK} run job -- seq 3 | bash -c 'cat; read line </dev/tty; echo got $line'\n"
    ));
    shell.shows("3\r\n", 1).await;
    shell.types("words\n");
    shell.shows("got words", 1).await;
    shell.types("exit\n");
    timeout(PATIENCE, shell.ends()).await.unwrap();
}
