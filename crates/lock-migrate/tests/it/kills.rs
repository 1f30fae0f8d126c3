//! A mover is killed after each request to either store, its answer unseen: between any two steps of a move.

use std::process::Command;

use futures_util::future::join_all;
use lock_core::{ErrorKind, Locks, Token};
use lock_migrate::Rung;
use lock_testkit::proxy::Then;
use lock_testkit::{PATIENCE, Worker, give_back, soon, take, until};
use serde_json::json;
use tokio::task::{spawn_blocking, yield_now};

use crate::common::{Servers, at_last, is_busy, pass};
use crate::faults::{Process, Side, migration};

/// How many movers are killed at the same time.
const AT_ONCE: usize = 4;

#[derive(Debug)]
#[allow(dead_code, reason = "it is printed")]
struct Killed {
    side: Side,
    step: u64,
    at_the_step: bool,
    has_moved: bool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mover_is_killed_at_every_step() {
    let servers = Servers::start().await;
    // So that the base is raised in one of them at most.
    pass(&Process::on(&servers, Rung::Move).await.locks, "warm-up").await;
    let mut killed = Vec::new();
    for side in [Side::Old, Side::New] {
        // Until a move has no more steps.
        for first in (1..).step_by(AT_ONCE) {
            let steps = (first..).take(AT_ONCE).map(|step| kill_at(&servers, side, step));
            let steps = join_all(steps).await;
            let was_last = steps.iter().any(|killed| !killed.at_the_step);
            killed.extend(steps);
            if was_last {
                break;
            }
        }
    }
    let at_a_step = killed.iter().filter(|killed| killed.at_the_step).count();
    let moved = killed.iter().filter(|killed| killed.at_the_step && killed.has_moved).count();
    println!("{at_a_step} killed at a step, {moved} of them after the tombstone: {killed:#?}");
    // Before the tombstone and after it.
    assert!(at_a_step > 6 && moved > 0 && moved < at_a_step, "{killed:#?}");
}

async fn kill_at(servers: &Servers, side: Side, step: u64) -> Killed {
    let name = format!("kill-{side:?}-{step:02}").to_lowercase();
    let (old_client, mover) = (servers.apart().await.0, Process::on(servers, Rung::Move).await);
    let mut last = pass(&old_client, &name).await;

    let proxies = [servers.proxy(Side::Old), servers.proxy(Side::New)];
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["kills::a_child_that_moves_a_lock", "--exact", "--nocapture"]);
    command.env(CHILD, format!("{} {} {name}", proxies[0].addr(), proxies[1].addr()));
    let child = Worker::spawn(&command).unwrap();
    assert_eq!(child.recv_deadline(PATIENCE).await.unwrap(), json!("ready"));
    let proxy = &proxies[side as usize];
    proxy.swallow_reply(step, Then::Hang);
    child.send(&json!("go")).await.unwrap();
    let at_the_step = tokio::select! {
        () = until("it is at the step", async || proxy.fired() > 0) => true,
        held = child.recv_deadline(PATIENCE) => {
            last = Token::new(held.unwrap().as_u64().unwrap());
            assert!(servers.is_moved(&name).await, "the guard was handed out before the tombstone");
            false
        }
    };
    child.kill();

    // Nobody gets it on one store while it is held on the other one.
    let has_moved = servers.is_moved(&name).await;
    let answer = soon(async {
        loop {
            match old_client.mutex(&*name).try_acquire().await {
                Ok(None) => yield_now().await,
                answer => return answer,
            }
        }
    });
    match answer.await {
        Ok(guard) => {
            let guard = guard.expect("it is none that is busy");
            assert!(!servers.is_moved(&name).await);
            assert!(is_busy(&mover.locks, &name).await, "two hold {name}");
            assert!(guard.token() > last, "{name}: {} after {last}", guard.token());
            last = guard.token();
            give_back(guard).await;
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Moved, "{error}"),
    }
    let guard = take(&mover.locks, &name).await;
    assert!(guard.token() > last, "{name}: {} after {last}", guard.token());
    let error = old_client.mutex(&*name).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Moved);
    give_back(guard).await;
    servers.is_clean(&name).await;
    Killed { side, step, at_the_step, has_moved }
}

/// The arguments of a child: the addresses of both stores, and the lock.
const CHILD: &str = "LOCK_MIGRATE_CHILD";

/// No test, but the process that [`a_mover_is_killed_at_every_step`] starts.
#[tokio::test]
async fn a_child_that_moves_a_lock() {
    let Ok(arguments) = std::env::var(CHILD) else { return };
    let [old, new, name] = arguments.split(' ').collect::<Vec<_>>()[..] else { panic!("{arguments}") };
    let stores = [old, new].map(|addr| addr.parse().unwrap());
    let locks = Locks::new(migration(Some(Rung::Move), stores).await);
    // At the start of a line, where the parent looks for messages.
    println!("\n{}", json!("ready"));
    spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await.unwrap().unwrap();
    let guard = at_last(async || locks.mutex(name).acquire().await).await;
    println!("{}", guard.token().get());
    std::future::pending::<()>().await;
}
