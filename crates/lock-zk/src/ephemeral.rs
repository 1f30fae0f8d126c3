//! The recipe of older fleets: one node of a fixed name, whose maker holds the lock.
//!
//! There is no queue. When the node goes, all who watch it ask at once, and whoever is first has it: a release costs as
//! many notifications and creations as there are waiters, and nobody is ever sure to get its turn. (The "herd effect"
//! of ZooKeeper's "Recipes and Solutions".) Outcomes that are not known, the lease and its watch are as in the queue.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lock_core::AcquireRequest;
use rand::Rng;
use tokio::time::{Instant, sleep};
use zookeeper_client::{self as zk, CreateMode};

use crate::acquire::{confirm, make_directories};
use crate::deadline::Deadline;
use crate::error::{Fault, Stop, no_chroot};
use crate::node::{CreatedNode, OwnNode};
use crate::recipe::ZkWait;
use crate::session::{Event, Session};
use crate::watches::{Claim, Need};

/// Gives our node once we made it, or nothing when the lock is busy.
pub(crate) async fn contend(
    own: &mut OwnNode,
    by: ZkWait,
    chroot: &str,
    request: &AcquireRequest,
    deadline: &Deadline,
) -> Result<Option<Arc<CreatedNode>>, Stop> {
    if request.wait.is_expired() {
        // A try that fails writes nothing.
        let (session, path) = (own.session(), &own.lock().dir);
        let stat = session.retry_until_definite(|| session.stat(path)).await;
        if stat.map_err(|fault| Stop::of(fault, path))?.is_some() {
            return Ok(None);
        }
    }
    let node = match enter(own, chroot, request, deadline).await? {
        Some(node) => node,
        None if request.wait.is_expired() => return Ok(None),
        None => match deadline.limit(pin!(turn(own, by, chroot, request, deadline))).await {
            Some(node) => node?,
            None => return Ok(None),
        },
    };
    confirm(own.session(), own.lock()).await?;
    Ok(Some(node))
}

/// Asks whenever the lock seems to be free, until it is ours.
async fn turn(
    own: &mut OwnNode,
    by: ZkWait,
    chroot: &str,
    request: &AcquireRequest,
    deadline: &Deadline,
) -> Result<Arc<CreatedNode>, Stop> {
    loop {
        let (session, path) = (own.session(), &own.lock().dir);
        let free = match by {
            ZkWait::Watch => watch(session, path, own.claim()).await,
            ZkWait::Poll => poll(session, path).await,
        };
        free.map_err(|fault| Stop::of(fault, path))?;
        if let Some(node) = enter(own, chroot, request, deadline).await? {
            return Ok(node);
        }
    }
}

/// Makes our node, and what is missing above it; nothing if somebody else was first.
async fn enter(
    own: &mut OwnNode,
    chroot: &str,
    request: &AcquireRequest,
    deadline: &Deadline,
) -> Result<Option<Arc<CreatedNode>>, Stop> {
    let until = Instant::now() + own.session().timeout();
    loop {
        let fault = match own.create_fixed(&request.owner, deadline).await {
            Ok(node) => return Ok(Some(node)),
            Err(fault) => fault,
        };
        let unknown = matches!(fault, Fault::Unknown(_)) && Instant::now() < until;
        match fault {
            Fault::Refused(zk::Error::NodeExists) if own.is_certain() => return Ok(None),
            // It may be the one that we made when the answer was lost.
            Fault::Refused(zk::Error::NodeExists) => {
                let settled = own.settle(deadline).await;
                return settled.map_err(|fault| Stop::of(fault, &own.lock().dir));
            }
            Fault::Unknown(error) if unknown => {
                tracing::debug!(%error, path = own.lock().dir, "the answer to a creation was lost");
                let settled = own.settle(deadline).await;
                if let Some(node) = settled.map_err(|fault| Stop::of(fault, &own.lock().dir))? {
                    return Ok(Some(node));
                }
            }
            fault if fault.is_no_node() => match own.lock().dir.rsplit_once('/') {
                Some((above, _)) if !above.is_empty() => {
                    make_directories(own.session(), above, CreateMode::Persistent, chroot).await?;
                }
                _ => return Err(Stop::Failed(no_chroot(chroot))),
            },
            fault => return Err(Stop::of(fault, &own.lock().dir)),
        }
    }
}

/// Waits until the node is gone. An event may be lost, so that it is [looked at](Session::second_look) now and then.
async fn watch(session: &Session, path: &str, claim: &Arc<Claim>) -> Result<(), Fault> {
    loop {
        let watched =
            session.retry_until_definite(|| session.watch(path, claim.room(path, Need::Must))).await;
        let (mut watch, seen) = match watched {
            Ok((watch, _, stat)) => (watch, stat),
            Err(fault) if fault.is_no_node() => return Ok(()),
            Err(fault) => return Err(fault),
        };
        let event = loop {
            tokio::select! {
                biased;
                // The driver tells the watches of it much later.
                () = session.ended() => return Err(Fault::SessionEnded),
                event = &mut watch => break event,
                () = sleep(session.second_look()) => match session.retry_until_definite(|| session.stat(path)).await? {
                    Some(stat) if stat.mzxid == seen.mzxid => {}
                    // The watch has been used up.
                    Some(_) => break Event::Changed,
                    None => break Event::Deleted,
                },
            }
        };
        match event {
            Event::Deleted => return Ok(()),
            Event::Changed => {}
            Event::SessionEnded => return Err(Fault::SessionEnded),
        }
    }
}

/// Looks again and again until the node is gone.
async fn poll(session: &Session, path: &str) -> Result<(), Fault> {
    loop {
        let pause = lock_core::random::rng().random_range(POLL / 2..POLL * 3 / 2);
        session.pause(pause).await;
        if session.retry_until_definite(|| session.stat(path)).await?.is_none() {
            return Ok(());
        }
    }
}

/// How long a waiter that polls sleeps, on average.
const POLL: Duration = Duration::from_millis(100);
