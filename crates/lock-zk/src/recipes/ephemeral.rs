//! The recipe `ephemeral`, for older fleets: one node of a fixed name, whose creator holds the lock.
//!
//! There is no queue. When the node is deleted, all waiters that watch it try to create it, and the first one succeeds: a
//! release costs as many notifications and creations as there are waiters, and a waiter may never get its turn (the "herd
//! effect" of ZooKeeper's "Recipes and Solutions"). Unknown outcomes, the lease and its watch are as in the queue.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::AcquireRequest;
use rand::Rng;
use tokio::time::{Instant, sleep};
use zookeeper_client::{self as zk, CreateMode};

use crate::error::{Fault, Stop, no_chroot};
use crate::nodes::node::CreatedNode;
use crate::nodes::own_node::OwnNode;
use crate::nodes::watches::{Claim, Event, Need};
use crate::recipes::recipe::ZkWait;
use crate::recipes::wait::until_deadline;
use crate::sessions::session::Session;

/// Waits until the node is created, and returns it; nothing if the lock is busy.
pub(crate) async fn contend(
    own: &OwnNode,
    by: ZkWait,
    request: &AcquireRequest,
    has_waited: &AtomicBool,
) -> Result<Option<Arc<CreatedNode>>, Stop> {
    let node = match create(own, request).await? {
        Some(node) => node,
        None if request.wait.is_expired() => return Ok(None),
        None => {
            has_waited.store(true, Ordering::Relaxed);
            match until_deadline(request.wait, pin!(wait(own, by, request))).await {
                Some(node) => node?,
                None => return Ok(None),
            }
        }
    };
    let dir = &own.lock.dir;
    own.session.ensure_valid(dir).await.map_err(|fault| Stop::of(fault, dir))?;
    Ok(Some(node))
}

/// Tries to create the node whenever the lock seems to be free, until that succeeds.
async fn wait(own: &OwnNode, by: ZkWait, request: &AcquireRequest) -> Result<Arc<CreatedNode>, Stop> {
    loop {
        let (session, path) = (&own.session, &own.lock.dir);
        let free = match by {
            ZkWait::Watch => watch(session, path, &own.session.claim).await,
            ZkWait::Poll => poll(session, path).await,
        };
        free.map_err(|fault| Stop::of(fault, path))?;
        if let Some(node) = create(own, request).await? {
            return Ok(node);
        }
    }
}

/// Creates the node, and missing nodes above it; returns nothing if another client was first.
async fn create(own: &OwnNode, request: &AcquireRequest) -> Result<Option<Arc<CreatedNode>>, Stop> {
    let until = Instant::now() + own.session.timeout;
    loop {
        let turn = own.session.turn().await;
        let fault = match own.create_fixed(&request.owner).await {
            Ok(node) => return Ok(Some(node)),
            Err(fault) => fault,
        };
        drop(turn);
        let unknown = matches!(fault, Fault::Unknown(_)) && Instant::now() < until;
        match fault {
            Fault::Refused(zk::Error::NodeExists) if own.is_certain() => return Ok(None),
            // It may be the one whose creation got no answer.
            Fault::Refused(zk::Error::NodeExists) => {
                let settled = own.recover().await;
                return settled.map_err(|fault| Stop::of(fault, &own.lock.dir));
            }
            Fault::Unknown(error) if unknown => {
                tracing::debug!(%error, path = own.lock.dir, "no answer to the creation of a node; looking for it");
                let settled = own.recover().await;
                if let Some(node) = settled.map_err(|fault| Stop::of(fault, &own.lock.dir))? {
                    return Ok(Some(node));
                }
            }
            fault if fault.is_no_node() => match own.lock.dir.rsplit_once('/') {
                Some((above, _)) if !above.is_empty() => {
                    own.session.make_directories(above, CreateMode::Persistent).await?;
                }
                _ => return Err(Stop::Failed(no_chroot(&own.session.chroot))),
            },
            fault => return Err(Stop::of(fault, &own.lock.dir)),
        }
    }
}

/// Waits until the node is deleted. It [looks again](Session::second_look) now and then, in case the event was lost.
async fn watch(session: &Session, path: &str, claim: &Arc<Claim>) -> Result<(), Fault> {
    loop {
        let watched =
            session.retry_until_definite(|| session.watch_existing(path, claim.room(path, Need::Must))).await;
        let (mut watch, seen) = match watched {
            Ok(watched) => watched,
            Err(fault) if fault.is_no_node() => return Ok(()),
            Err(fault) => return Err(fault),
        };
        let event = loop {
            tokio::select! {
                biased;
                // The watches of the driver fire much later.
                () = session.ended() => return Err(Fault::SessionEnded),
                event = &mut watch => break event,
                () = sleep(session.second_look()) => match session.retry_until_definite(|| session.stat(path)).await {
                    Ok(Some(stat)) if seen.is_some_and(|seen| stat.mzxid == seen.mzxid) => {}
                    // The watch has fired.
                    Ok(Some(_)) => break Event::Changed,
                    Ok(None) => break Event::Deleted,
                    Err(fault) if fault.forbids_reading() => break Event::Changed,
                    Err(fault) => return Err(fault),
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

/// Polls until the node is deleted.
async fn poll(session: &Session, path: &str) -> Result<(), Fault> {
    loop {
        let pause = lock_core::random::rng().random_range(POLL / 2..POLL * 3 / 2);
        session.pause(pause).await;
        if !session.retry_until_definite(|| session.exists(path)).await? {
            return Ok(());
        }
    }
}

/// The average interval between two polls.
const POLL: Duration = Duration::from_millis(100);
