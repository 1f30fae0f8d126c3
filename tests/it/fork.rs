//! A process that forks: its children are holders of their own, and what it connected stays with it.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio, exit};
use std::thread;
use std::time::{Duration, Instant};

use fork::{Fork, fork, waitpid};
use lock_core::OwnerId;
use lock_testkit::process::spawn;
use lock_testkit::{RedisFive, RedisServer, ZooKeeper};
use polylock::{Error, ErrorKind, Locks, blocking};
use tokio::runtime::Runtime;

use crate::common::one_thread;

/// Longer than all of it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time: how long a child asks; it holds for twice as long.
const WHILE: Duration = Duration::from_secs(3);
/// Less than any attempt that is in vain.
const AT_ONCE: Duration = Duration::from_secs(5);
const PARENT: &str = "POLYLOCK_FORK";

#[tokio::test(flavor = "multi_thread")]
async fn of_two_children_one_gets_the_lock() {
    let (redis, masters) = (RedisServer::start().await.unwrap(), RedisFive::start().await.unwrap());
    let zookeeper = ZooKeeper::start().await.unwrap();
    masters.have_been_used().await.unwrap();
    for url in [redis.url(), format!("{}?master_timeout=5s", masters.url()), zk(&zookeeper)] {
        for kind in ["asynchronous", "blocking"] {
            let said = parent(kind, &url).await;
            let count = |what: &str| said.iter().filter(|line| line.starts_with(what)).count();
            assert_eq!((count("holds "), count("busy")), (1, 1), "{kind} on {url}: {said:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_the_parent_are_refused_in_a_child_at_once() {
    let (redis, zookeeper) = (RedisServer::start().await.unwrap(), ZooKeeper::start().await.unwrap());
    for url in [redis.url(), zk(&zookeeper)] {
        for kind in ["inherited", "inherited-blocking"] {
            let said = parent(kind, &url).await;
            assert_eq!(said, ["refused", "the parent holds"], "{kind} on {url}");
        }
    }
}

/// The driver has one reactor for the whole process, and a thread that the child does not have.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_of_a_process_that_used_zookeeper_learns_at_once_that_it_cannot_connect() {
    let zookeeper = ZooKeeper::start().await.unwrap();
    for kind in ["used", "used-blocking", "used-lazily", "used-and-open"] {
        let said = parent(kind, &zk(&zookeeper)).await;
        assert_eq!(said, ["refused", "the parent goes on"], "{kind}");
    }
}

fn zk(server: &ZooKeeper) -> String {
    format!("zk://{}?session_timeout=10s", server.addr())
}

/// Runs this program as the process that forks, and returns what it and its children say.
async fn parent(kind: &str, url: &str) -> Vec<String> {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "fork::the_parent", "--nocapture", "--quiet"]);
    command.env(PARENT, format!("{kind} {url}"));
    let mut child = spawn(&command, Stdio::null(), Stdio::piped(), Stdio::inherit()).unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let said = thread::spawn(move || {
        let lines = output.lines().map(Result::unwrap);
        lines.filter_map(|line| Some(line.strip_prefix("> ")?.to_owned())).collect()
    });
    let said = tokio::task::spawn_blocking(|| said.join().unwrap());
    let said = tokio::time::timeout(PATIENCE, said).await.expect("it ends").unwrap();
    child.wait().unwrap();
    said
}

#[test]
fn the_parent() {
    let Ok(words) = env::var(PARENT) else { return };
    let (kind, url) = words.split_once(' ').unwrap();
    match kind {
        "asynchronous" => two_children(|| holds(url)),
        "blocking" => two_children(|| holds_by_blocking(url)),
        "inherited" => inherits(url),
        "inherited-blocking" => inherits_by_blocking(url),
        "used-blocking" => used_by_blocking(url),
        kind => used(url, kind),
    }
}

fn two_children(child: impl Fn()) {
    // A generator in memory would go on alike in both.
    let _ = OwnerId::random();
    let children = [in_a_child(&child), in_a_child(&child)];
    for child in children {
        waitpid(child).unwrap();
    }
}

fn in_a_child(work: impl Fn()) -> i32 {
    match fork().unwrap() {
        Fork::Parent(child) => child,
        Fork::Child => {
            // Nobody ends the child of a child.
            thread::spawn(|| {
                // Time: far longer than it works.
                thread::sleep(PATIENCE / 2);
                exit(1)
            });
            work();
            exit(0)
        }
    }
}

fn say(what: &str) {
    println!("\n> {what}");
}

fn holds(url: &str) {
    Runtime::new().unwrap().block_on(async {
        let locks = Locks::connect(url).await.unwrap();
        let Some(guard) = locks.mutex("a").try_acquire_for(WHILE).await.unwrap() else { return say("busy") };
        say(&format!("holds {}", guard.owner()));
        // Time: the other one asks meanwhile.
        tokio::time::sleep(2 * WHILE).await;
        guard.release().await.unwrap();
    });
}

fn holds_by_blocking(url: &str) {
    let locks = blocking::Locks::connect(url).unwrap();
    let Some(guard) = locks.mutex("a").try_acquire_for(WHILE).unwrap() else { return say("busy") };
    say(&format!("holds {}", guard.owner()));
    // Time: the other one asks meanwhile.
    thread::sleep(2 * WHILE);
    guard.release().unwrap();
}

/// In a child, what it inherited says at once why it does not work; the parent goes on with it.
fn refuses(errors: impl Fn() -> Vec<Error>, parts: [&str; 2]) {
    let child = in_a_child(|| {
        let is_refusal = |error: &Error| {
            let text = error.to_string();
            error.kind() == ErrorKind::Unsupported && parts.iter().all(|part| text.contains(part))
        };
        let (began, errors) = (Instant::now(), errors());
        let is_right = errors.iter().all(is_refusal) && began.elapsed() < AT_ONCE;
        say(&if is_right { "refused".to_owned() } else { format!("{:?}: {errors:?}", began.elapsed()) });
    });
    waitpid(child).unwrap();
}

/// Without workers: the parent's are in the lists of `parking_lot` by which those of tokio wait, on stacks that the threads of a
/// child use again.
fn runtime_of_a_child() -> Runtime {
    one_thread()
}

const INHERITED: [&str; 2] = ["before a fork", "in the child"];
const USED: [&str; 2] = ["used ZooKeeper", "before a fork"];

fn inherits(url: &str) {
    let runtime = Runtime::new().unwrap();
    let locks = runtime.block_on(Locks::connect(url)).unwrap();
    let guard = runtime.block_on(locks.mutex("a").acquire()).unwrap();
    let asks = async || {
        vec![
            locks.mutex("b").try_acquire_for(PATIENCE).await.unwrap_err(),
            locks.inspect("a").await.unwrap_err(),
            guard.verify().await.unwrap_err(),
        ]
    };
    refuses(|| runtime_of_a_child().block_on(asks()), INHERITED);
    runtime.block_on(guard.verify()).unwrap();
    runtime.block_on(guard.release()).unwrap();
    say("the parent holds");
}

fn inherits_by_blocking(url: &str) {
    let locks = blocking::Locks::connect(url).unwrap();
    let guard = locks.mutex("a").acquire().unwrap();
    let asks = || vec![locks.mutex("b").try_acquire_for(PATIENCE).unwrap_err(), guard.verify().unwrap_err()];
    refuses(asks, INHERITED);
    guard.verify().unwrap();
    guard.release().unwrap();
    say("the parent holds");
}

fn used(url: &str, kind: &str) {
    let runtime = Runtime::new().unwrap();
    let locks = runtime.block_on(Locks::connect(url)).unwrap();
    if kind != "used-and-open" {
        runtime.block_on(locks.close()).unwrap();
    }
    let connects = async || match kind {
        "used-lazily" => Locks::connect_lazy(url).unwrap().mutex("a").acquire().await.map(drop),
        _ => Locks::connect(url).await.map(drop),
    };
    refuses(|| vec![runtime_of_a_child().block_on(connects()).unwrap_err()], USED);
    let locks = runtime.block_on(Locks::connect(url)).unwrap();
    drop(runtime.block_on(locks.mutex("a").acquire()).unwrap());
    say("the parent goes on");
}

fn used_by_blocking(url: &str) {
    blocking::Locks::connect(url).unwrap().close().unwrap();
    refuses(|| vec![blocking::Locks::connect(url).unwrap_err()], USED);
    blocking::Locks::connect(url).unwrap().mutex("a").acquire().unwrap().release().unwrap();
    say("the parent goes on");
}
