//! A program with `panic = "abort"`, whose sessions end in every way there is. It talks with `tests/abort.rs` by lines.

use std::io::stdin;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Guard, Locks, LossReason, Result, GuardState};
use lock_zk::{ZkRecipe, ZkWait, ZkConfig};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const TIMEOUT: Duration = Duration::from_secs(4);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

async fn connect(hosts: &str) -> Locks {
    let config = ZkConfig::new(hosts).session_timeout(TIMEOUT).private_session(true);
    config.connect().await.unwrap()
}

/// A waiter, once it watches its node.
async fn waiter(locks: &Locks, name: &str) -> JoinHandle<Result<Guard>> {
    let lock = locks.mutex(name);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    sleep(Duration::from_millis(100)).await;
    waiter
}

/// The connection ends with its runtime, and the waiters continue on another one.
fn a_runtime_ends(hosts: &str, recipe: ZkRecipe, elsewhere: &Runtime) {
    let runtime = runtime();
    let config = ZkConfig::new(hosts).session_timeout(TIMEOUT).private_session(true).recipe(recipe);
    // Where each recipe has its own kind of node.
    let dir = if recipe == ZkRecipe::Queue { "/locks" } else { "/ephemeral" };
    let locks = runtime.block_on(config.dir(dir).connect()).unwrap();
    let guard = runtime.block_on(locks.mutex("runtime").acquire()).unwrap();
    let waiters = (0..3).map(|_| {
        let locks = Locks::from_dyn(Arc::clone(locks.backend()));
        let mut waiter = Box::pin(async move { locks.mutex("runtime").acquire().await });
        runtime.block_on(async { timeout(Duration::from_millis(100), &mut waiter).await }).unwrap_err();
        waiter
    });
    let waiters: Vec<_> = waiters.collect();
    runtime.shutdown_timeout(TIMEOUT);
    for waiter in waiters {
        elsewhere.block_on(waiter).unwrap_err();
    }
    drop(guard);
}

/// The same with the waiters on the runtime that ends, beside the task of the driver.
fn runtimes_end_with_their_waiters(hosts: &str) {
    for round in 0..20 {
        let runtime = runtime();
        runtime.block_on(async {
            let (one, other) = (connect(hosts).await, connect(hosts).await);
            let guard = one.mutex(format!("round/{round}")).acquire().await.unwrap();
            for _ in 0..4 {
                let lock = Locks::from_dyn(Arc::clone(other.backend())).mutex(format!("round/{round}"));
                drop(tokio::spawn(async move { lock.acquire().await }));
            }
            sleep(Duration::from_millis(30)).await;
            drop(tokio::spawn(async move { guard.lost().await }));
        });
        drop(runtime);
    }
}

async fn a_session_is_closed(hosts: &str) {
    let (one, other) = (connect(hosts).await, connect(hosts).await);
    let guard = one.mutex("closed").acquire().await.unwrap();
    let waiter = waiter(&other, "closed").await;
    other.close().await.unwrap();
    waiter.await.unwrap().unwrap_err();
    one.close().await.unwrap();
    assert_eq!(guard.state(), GuardState::Lost(LossReason::SessionEnded));
}

async fn a_session_expires(hosts: &str) {
    let (one, other) = (connect(hosts).await, connect(hosts).await);
    let guard = one.mutex("expired").acquire().await.unwrap();
    let waiter = waiter(&other, "expired").await;
    tell_and_wait("held");
    guard.lost().await;
    waiter.await.unwrap().unwrap_err();
    // The driver notices the end of its sessions later.
    sleep(TIMEOUT).await;
    tell_and_wait("lost");
    let next = one.mutex("expired").try_acquire_for(TIMEOUT * 4).await.unwrap().expect("nobody has it");
    assert!(next.token() > guard.token());
}

fn tell_and_wait(text: &str) {
    println!("{text}");
    stdin().read_line(&mut String::new()).unwrap();
}

fn main() {
    assert!(cfg!(panic = "abort"));
    let [_, direct, proxied] = &std::env::args().collect::<Vec<_>>()[..] else { panic!("direct proxied") };
    let runtime = runtime();
    for recipe in [ZkRecipe::Queue, ZkRecipe::Ephemeral(ZkWait::Watch), ZkRecipe::Ephemeral(ZkWait::Poll)] {
        a_runtime_ends(direct, recipe, &runtime);
    }
    runtimes_end_with_their_waiters(direct);
    runtime.block_on(a_session_is_closed(direct));
    runtime.block_on(a_session_expires(proxied));
    println!("done");
}
