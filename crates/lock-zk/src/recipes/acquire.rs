//! An acquisition, from the request to the lease.
//!
//! Source of the default recipe: "Locks" and "Shared Locks" in ZooKeeper's "Recipes and Solutions", with two changes.
//!
//! * Where the directory may be written, the transaction that creates the node also reports whether it is alone there, so
//!   nothing is listed. Numbers only grow, so no later node gets ahead.
//! * When the deletion of a predecessor is all that a waiter waits for, it is the grant, without another listing; see
//!   [`wait`](crate::recipes::wait).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::FusedFuture;
use lock_core::background::Background;
use lock_core::{AcquireRequest, Acquired, ErrorKind, Mode, Result, Wait};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use zookeeper_client::CreateMode;

use crate::capabilities::limits;
use crate::error::{Fault, Stop, doubted_if, unavailable};
use crate::nodes::held_node::OwnWatch;
use crate::nodes::lock_path::LockPath;
use crate::nodes::node::CreatedNode;
use crate::nodes::own_node::OwnNode;
use crate::nodes::token::Minted;
use crate::nodes::token_base::TokenBase;
use crate::recipes::ephemeral;
use crate::recipes::lease::ZkLease;
use crate::recipes::queue::{Queue, list, list_around};
use crate::recipes::recipe::ZkRecipe;
use crate::recipes::turns::Turn;
use crate::recipes::unpolled::unless_taken_back;
use crate::recipes::wait::{Waiter, until_deadline};
use crate::sessions::pool_share::PoolShare;
use crate::sessions::session::{PAUSE, Session, SessionHandle};

/// Acquires the lock at this path; repeats the attempt in a new session if one ends.
pub(crate) async fn acquire(
    share: &PoolShare,
    lock: Arc<LockPath>,
    request: AcquireRequest,
    cleanup: &Background,
) -> Result<Acquired> {
    let progress = Progress::default();
    let mut outage = Outage::default();
    let acquired = async {
        loop {
            let handle = outage.next_session(share, &lock, request.wait).await?;
            let session = Arc::clone(&handle);
            match in_session(handle, share, &lock, &request, &progress, cleanup).await {
                Ok(Some(lease)) => return Ok(Acquired::Held(lease)),
                Ok(None) => return Ok(Acquired::Busy),
                Err(Stop::StartOver) => outage.begin(&session).await,
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
    };
    let acquired = acquired.await;
    acquired.map_err(|error| {
        let error = doubted_if(progress.is_in_doubt.into_inner(), error);
        if progress.has_waited.into_inner() { error.while_waiting() } else { error }
    })
}

/// What the attempts of one acquisition have come to.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) has_waited: AtomicBool,
    /// Whether one that failed may have left a node on the servers, which is removed later.
    is_in_doubt: AtomicBool,
}

async fn in_session(
    session: SessionHandle,
    share: &PoolShare,
    lock: &Arc<LockPath>,
    request: &AcquireRequest,
    progress: &Progress,
    cleanup: &Background,
) -> Result<Option<Box<ZkLease>>, Stop> {
    limits(session.timeout).check(request.lease)?;
    if let Some(membership) = share.membership.get() {
        // Boxed, to keep the future of an acquisition small.
        let registered = membership.record(&session, &share.config.dir);
        Box::pin(session.answer_about(&lock.dir, registered)).await??;
    }
    let base = share.base(&session, &lock.dir);
    attempt(session, &base, lock, request, progress, cleanup).await
}

/// The ends of sessions during one acquisition.
#[derive(Debug, Default)]
struct Outage {
    /// Until when a new session is tried for.
    until: Option<Instant>,
    count: u32,
}

impl Outage {
    /// Counts the end of this session. If it goes on, pauses: whatever cost the node may cost the next one at once.
    async fn begin(&mut self, session: &Session) {
        if !session.has_ended() {
            return session.pause(PAUSE).await;
        }
        self.count += 1;
        self.until = Some(Instant::now() + session.timeout);
    }

    /// The session for the next attempt.
    async fn next_session(&self, share: &PoolShare, lock: &LockPath, wait: Wait) -> Result<SessionHandle> {
        if wait.is_expired() && self.count > 1 {
            return Err(unavailable("ZooKeeper sessions end as soon as they are opened"));
        }
        let bytes = lock.node_bytes();
        let Some(until) = self.until else { return share.with_room(bytes).await };
        loop {
            let session = timeout_at(until, share.with_room(bytes)).await;
            match session.unwrap_or_else(|_| Err(unavailable("no new session could be opened in time"))) {
                Err(error) if error.kind() == ErrorKind::Unavailable && Instant::now() < until => {
                    tracing::debug!(%error, "no new ZooKeeper session yet; trying again");
                    sleep(RECONNECT_PAUSE).await;
                }
                session => return session,
            }
        }
    }
}

/// Acquires the lock in this session; returns nothing if it is busy.
///
/// # Cancel safety
///
/// This function is cancel safe: the node is deleted in the background, by a task of `cleanup`.
pub(crate) async fn attempt(
    session: SessionHandle,
    base: &TokenBase,
    lock: &Arc<LockPath>,
    request: &AcquireRequest,
    progress: &Progress,
    cleanup: &Background,
) -> Result<Option<Box<ZkLease>>, Stop> {
    let own = OwnNode::new(session, lock, request.mode, request.writes, cleanup);
    let mut own_watch = OwnWatch::default();
    let granting = grant(&own, &mut own_watch, base, request, progress);
    match unless_taken_back(&own, granting).await {
        Ok(Some((node, minted))) => Ok(Some(Box::new(ZkLease::new(own, node, own_watch, &minted, request)))),
        not_granted => {
            // The deletion fires the watch of the node, which would take a request to remove.
            if !give_up(own).await {
                progress.is_in_doubt.store(true, Ordering::Relaxed);
            }
            drop(own_watch);
            not_granted.map(|_| None)
        }
    }
}

/// Waits for the grant, and returns the node and the token; nothing if the lock is busy.
async fn grant(
    own: &OwnNode,
    own_watch: &mut OwnWatch,
    base: &TokenBase,
    request: &AcquireRequest,
    progress: &Progress,
) -> Result<Option<(Arc<CreatedNode>, Minted)>, Stop> {
    let session = Arc::clone(&own.session);
    let granted = alongside(base.ranges(&session), async {
        let turn = session.turn().await;
        // A try that fails writes nothing.
        if request.wait.is_expired() && is_busy(own, request.mode).await? {
            return Ok(None);
        }
        match own.lock.recipe {
            ZkRecipe::Queue => contend(own, own_watch, request, progress, turn).await,
            ZkRecipe::Ephemeral(wait) => {
                drop(turn);
                ephemeral::contend(own, wait, request, &progress.has_waited).await
            }
        }
    });
    let Some(node) = granted.await? else { return Ok(None) };
    let minted = base.mint(&session, &node.path, node.czxid).await?;
    Ok(Some((node, minted)))
}

/// Polls `other`, which starts first, until `main` is ready.
async fn alongside<T>(other: impl Future, main: impl Future<Output = T>) -> T {
    let (mut other, mut main) = (pin!(other.fuse()), pin!(main));
    loop {
        tokio::select! {
            biased;
            _ = &mut other, if !other.is_terminated() => {}
            answer = &mut main => return answer,
        }
    }
}

/// Whether a new contender has to wait.
async fn is_busy(own: &OwnNode, mode: Mode) -> Result<bool, Stop> {
    let queue = list(&own.session, &own.lock).await.map_err(|fault| Stop::of(fault, &own.lock.dir))?;
    Ok(queue.is_some_and(|queue| queue.is_busy(mode)))
}

/// Enters the queue and waits for the turn, and returns the node; nothing if the lock is busy.
async fn contend(
    own: &OwnNode,
    own_watch: &mut OwnWatch,
    request: &AcquireRequest,
    progress: &Progress,
    turn: Turn,
) -> Result<Option<Arc<CreatedNode>>, Stop> {
    let (session, lock) = (Arc::clone(&own.session), Arc::clone(&own.lock));
    let stop = |fault| Stop::of(fault, &lock.dir);
    let mut continuity = session.continuity().map_err(stop)?;
    let (node, queue) = enter(own, request).await?;
    drop(turn);
    let mut waiter = Waiter::new(own, &node, request, own_watch);
    if waiter.obstacles(&queue)?.is_none() {
        session.ensure_valid(&lock.dir).await.map_err(stop)?;
        return Ok(Some(node));
    }
    if request.wait.is_expired() {
        return Ok(None);
    }
    progress.has_waited.store(true, Ordering::Relaxed);
    let turn = until_deadline(request.wait, pin!(waiter.wait(queue, &mut continuity))).await;
    let Some(turn) = turn else { return Ok(None) };
    if let Err(Stop::StartOver) = turn {
        // A listing or an event showed that the node is deleted, or the session ended.
        own.forget();
    }
    turn.map(|()| Some(node))
}

/// Creates the node, and its directory if necessary, and returns the queue with it.
async fn enter(own: &OwnNode, request: &AcquireRequest) -> Result<(Arc<CreatedNode>, Queue), Stop> {
    let (session, lock) = (Arc::clone(&own.session), Arc::clone(&own.lock));
    let stop = |fault| Stop::of(fault, &lock.dir);
    // The server may remove an empty container between its creation and the node's.
    let mut tries = 10;
    let until = Instant::now() + session.timeout;
    loop {
        let node = match own.create(&request.owner).await {
            // An earlier creation got no answer, and this may be the second one.
            Ok(_) if !own.is_certain() => own.recover().await.map_err(stop)?,
            Ok((node, Some(names))) => return Ok((node, Queue::parse(names))),
            Ok((node, None)) => Some(node),
            Err(Fault::Unknown(error)) if Instant::now() < until => {
                tracing::debug!(%error, dir = lock.dir, "no answer to the creation of a node; looking for it");
                own.recover().await.map_err(stop)?
            }
            Err(fault) if fault.is_no_node() && tries > 0 => {
                tries -= 1;
                session.make_directories(&lock.dir, CreateMode::Container).await?;
                None
            }
            Err(fault) => return Err(stop(fault)),
        };
        if let Some(node) = node {
            let queue = list_around(&session, &lock, &node).await?;
            return Ok((node, queue));
        }
    }
}

/// Deletes the node in the background, and waits for that for a moment. Returns whether nothing is left.
async fn give_up(own: OwnNode) -> bool {
    let is_undone = own.rollback.begin(&own.session);
    matches!(timeout(DELETE_LIMIT, is_undone).await, Ok(Ok(())))
}

const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// How long a caller waits for the deletion of its node.
const DELETE_LIMIT: Duration = Duration::from_millis(15);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::release::tests::open;
    use lock_core::LossReason;
    use lock_testkit::ZooKeeper;

    #[tokio::test]
    async fn an_attempt_that_starts_over_pauses_unless_its_session_has_ended() {
        let server = ZooKeeper::start().await.unwrap();
        let (session, mut outage) = (open(&server).await, Outage::default());
        let start = Instant::now();
        outage.begin(&session).await;
        assert!(start.elapsed() >= PAUSE && outage.until.is_none());
        session.end(LossReason::SessionEnded);
        assert!(outage.begin(&session).now_or_never().is_some());
        assert!(outage.until.is_some());
    }
}
