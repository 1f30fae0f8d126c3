//! A process in which every panic is the end, as with `panic = "abort"`: sessions end, and it goes on.

use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use std::{env, panic, process};

use lock_core::{ErrorKind, Guard, GuardState, LockOptions, Locks, LossReason, Persistence, Result};
use lock_zk::{ZkRecipe, ZkWait};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::common::*;

/// Ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: a minute"]
async fn a_program_that_aborts_on_panics_outlives_its_sessions() {
    if lock_testkit::ZooKeeper::lacks("end of the watches that are set while their connection ends", (3, 6)) {
        return;
    }
    let server = server().await;
    let proxy = proxy(&server);
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "connect::abort::the_program", "--nocapture", "--quiet"]);
    command.env(PROGRAM, format!("{} {}", server.connect_string(), proxy.addr()));
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut program = Program(child);
    let mut input = program.0.stdin.take().unwrap();
    let mut output = BufReader::new(program.0.stdout.take().unwrap()).lines();
    let mut hears = |what: &str| assert!(output.any(|line| line.unwrap() == what), "it never says {what}");
    hears("held");
    black_hole(&proxy, true);
    writeln!(input).unwrap();
    hears("lost");
    proxy.heal();
    writeln!(input).unwrap();
    hears("done");
    assert!(program.0.wait().unwrap().success());
}

/// The process of the test above.
#[test]
fn the_program() {
    let Ok(hosts) = env::var(PROGRAM) else { return };
    let (direct, proxied) = hosts.split_once(' ').unwrap();
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        process::abort();
    }));
    let runtime = runtime();
    for recipe in [ZkRecipe::Queue, ZkRecipe::Ephemeral(ZkWait::Watch), ZkRecipe::Ephemeral(ZkWait::Poll)] {
        a_runtime_ends(direct, recipe, &runtime);
    }
    runtimes_end_with_their_waiters(direct);
    runtime.block_on(a_session_is_closed(direct));
    runtime.block_on(a_session_expires(proxied));
    println!("\ndone");
}

const PROGRAM: &str = "LOCK_ZK_ABORT";

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

async fn open(hosts: &str) -> Locks {
    opened(&config_of(hosts.to_owned())).await
}

/// A waiter, once it watches its node. It ends with its session.
async fn waiter(locks: &Locks, name: &str) -> JoinHandle<Result<Guard>> {
    let strict = LockOptions::new().persistence(Persistence::Strict);
    let lock = locks.mutex_with(name, strict).unwrap();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    settled().await;
    waiter
}

/// The connection ends with its runtime, and the waiters continue on another one.
fn a_runtime_ends(hosts: &str, recipe: ZkRecipe, elsewhere: &Runtime) {
    let runtime = runtime();
    let config = config_of(hosts.to_owned()).recipe(recipe);
    // Where each recipe has its own kind of node.
    let dir = if recipe == ZkRecipe::Queue { "/locks" } else { "/ephemeral" };
    let locks = runtime.block_on(config.dir(dir).connect()).unwrap();
    let guard = runtime.block_on(locks.mutex("runtime").acquire()).unwrap();
    let waiters = (0..3).map(|_| {
        let locks = Locks::from_dyn(Arc::clone(locks.backend()));
        let mut waiter = Box::pin(async move { locks.mutex("runtime").acquire().await });
        // Time: it is polled until it waits.
        runtime.block_on(async { timeout(Duration::from_millis(100), &mut waiter).await }).unwrap_err();
        waiter
    });
    let waiters: Vec<_> = waiters.collect();
    runtime.shutdown_timeout(TIMEOUT);
    for waiter in waiters {
        let error = elsewhere.block_on(waiter).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    let error = elsewhere.block_on(locks.mutex("other").acquire()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    drop(guard);
}

/// The same with the waiters on the runtime that ends, beside the task of the driver.
fn runtimes_end_with_their_waiters(hosts: &str) {
    for round in 0..20 {
        let runtime = runtime();
        runtime.block_on(async {
            let (one, other) = (open(hosts).await, open(hosts).await);
            let guard = one.mutex(format!("round/{round}")).acquire().await.unwrap();
            for _ in 0..4 {
                let lock = Locks::from_dyn(Arc::clone(other.backend())).mutex(format!("round/{round}"));
                drop(tokio::spawn(async move { lock.acquire().await }));
            }
            // Time: they wait by then, or are about to.
            sleep(Duration::from_millis(30)).await;
            drop(tokio::spawn(async move { guard.lost().await }));
        });
        drop(runtime);
    }
}

async fn a_session_is_closed(hosts: &str) {
    let (one, other) = (open(hosts).await, open(hosts).await);
    let guard = take(&one, "closed").await;
    let waiter = waiter(&other, "closed").await;
    other.close().await.unwrap();
    waiter.await.unwrap().unwrap_err();
    one.close().await.unwrap();
    assert_eq!(guard.state(), GuardState::Lost(LossReason::SessionEnded));
}

async fn a_session_expires(hosts: &str) {
    let (one, other) = (open(hosts).await, open(hosts).await);
    let guard = take(&one, "expired").await;
    let waiter = waiter(&other, "expired").await;
    tell_and_wait("held");
    guard.lost().await;
    waiter.await.unwrap().unwrap_err();
    // Time: the driver notices the end of its sessions later.
    sleep(TIMEOUT).await;
    tell_and_wait("lost");
    let next = take(&one, "expired").await;
    assert!(next.token() > guard.token());
}

fn tell_and_wait(text: &str) {
    println!("\n{text}");
    stdin().read_line(&mut String::new()).unwrap();
}
