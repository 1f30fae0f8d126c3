//! How a lock is acquired: a node in the queue, and the wait for those before it to go.
//!
//! Source: "Locks" and "Shared Locks" in ZooKeeper's "Recipes and Solutions", with these changes. Where the directory
//! may be written, the transaction that creates the node tells whether it is alone there, so that nothing need be
//! listed: numbers only grow, so nobody can get in before us. For the same reason, when the end of a predecessor is all
//! that is waited for, it is the grant, without another listing; but for the end of a writer, whose number a reader may
//! take over. Otherwise the predecessor may have been a waiter that gave up, and the directory is listed again; as the
//! one before the predecessor is watched too, that has mostly happened by the time the predecessor gets its turn. A
//! release so tells two waiters, however many there are.
//!
//! Looking ahead takes requests: two to watch our own node and the one before the predecessor, and a listing. Who comes
//! to a [long queue](LONG) spares them, watches its predecessor alone, and lists the directory when that has gone, which
//! also shows whether its own node is still there: less work for the servers, where it matters, for one round trip more
//! per grant. A release then tells one. The same goes for a waiter whose session [watches much](crate::watches) already.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{FusedFuture, OptionFuture, join, join_all, join3};
use lock_core::background::Background;
use lock_core::{AcquireRequest, Error, ErrorKind, GuardState, Result, Token};
use tokio::time::{Instant, sleep_until};
use zookeeper_client::{self as zk, CreateMode};

use crate::BACKEND;
use crate::deadline::Deadline;
use crate::ephemeral;
use crate::error::{Fault, Stop, no_chroot};
use crate::layout::LockPath;
use crate::lease::{OwnWatch, ZkLease};
use crate::node::{CreatedNode, OwnNode};
use crate::queue::{Obstacles, Queue, is_exhausted};
use crate::recipe::ZkRecipe;
use crate::session::{ConnectionContinuity, Event, Session, Watch};
use crate::token::Base;
use crate::watches::{Claim, Need, Room};

/// What an attempt within one session ended with.
pub(crate) enum Attempt {
    Held(Box<ZkLease>),
    Busy,
    /// Our node is gone before it was its turn: removed by somebody, or with its session.
    StartOver,
}

/// Takes the lock within this session. Whatever is under way when the deadline passes is given up.
///
/// # Cancel safety
///
/// When the future is dropped, the node is deleted in the background, as a task of `cleanup`.
pub(crate) async fn attempt(
    session: &Arc<Session>,
    base: &Base,
    lock: &Arc<LockPath>,
    chroot: &str,
    request: &AcquireRequest,
    deadline: &Deadline,
    cleanup: &Background,
) -> Result<Attempt> {
    let mut own = OwnNode::new(session, lock, request.mode, request.writes, cleanup);
    let mut own_watch = OwnWatch::default();
    let granted = deadline.keep(pin!(grant(&mut own, &mut own_watch, base, chroot, request, deadline))).await;
    match granted {
        Some(Ok(Some((node, token)))) => {
            Ok(Attempt::Held(Box::new(ZkLease::new(own, node, own_watch, token, request))))
        }
        Some(Err(Stop::StartOver)) => Ok(Attempt::StartOver),
        Some(Err(Stop::Failed(error))) => {
            give_up(own).await;
            Err(error)
        }
        Some(Ok(None)) | None => {
            // The deletion uses up the watch of our node, which would take a request to remove.
            give_up(own).await;
            drop(own_watch);
            Ok(Attempt::Busy)
        }
    }
}

/// Gives our node and its token once it is its turn, or nothing when the lock is busy.
async fn grant(
    own: &mut OwnNode,
    own_watch: &mut OwnWatch,
    base: &Base,
    chroot: &str,
    request: &AcquireRequest,
    deadline: &Deadline,
) -> Result<Option<(Arc<CreatedNode>, Token)>, Stop> {
    let session = Arc::clone(own.session());
    let recipe = own.lock().recipe;
    let contended = alongside(base.watch(&session), async {
        match recipe {
            ZkRecipe::Queue => contend(own, own_watch, chroot, request, deadline).await,
            ZkRecipe::Ephemeral(by) => ephemeral::contend(own, by, chroot, request, deadline).await,
        }
    });
    let Some(node) = contended.await? else { return Ok(None) };
    match base.token(&session, node.czxid).await {
        Ok(token) => Ok(Some((node, token))),
        Err(_) if session.has_ended() => Err(Stop::StartOver),
        Err(error) => Err(Stop::Failed(error)),
    }
}

/// Lets `other` go on, begun first, for as long as `main` takes.
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

/// The directory of a lock, as the server that we are connected to knows it; `None` when there is none.
pub(crate) async fn list(session: &Session, lock: &LockPath) -> Result<Option<Queue>, Fault> {
    match session.retry_until_definite(|| session.children(&lock.dir)).await {
        Ok(children) => Ok(Some(Queue::parse(children))),
        Err(fault) if fault.is_no_node() => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// The queue that our node is in. Where names come again, the listing alone does not tell that the node is ours.
async fn list_around(session: &Session, lock: &LockPath, node: &CreatedNode) -> Result<Queue, Stop> {
    let listed = session.retry_until_definite(|| async {
        let own_watch = OptionFuture::from((!lock.is_unique()).then(|| session.stat(&node.path)));
        let (children, own_watch) = join(session.children(&lock.dir), own_watch).await;
        Ok((children?, own_watch.transpose()?.flatten()))
    });
    match listed.await {
        Ok((_, own_watch))
            if !lock.is_unique() && own_watch.is_none_or(|own_watch| own_watch.czxid != node.czxid) =>
        {
            Err(Stop::StartOver)
        }
        Ok((children, _)) => Ok(Queue::parse(children)),
        Err(fault) if fault.is_no_node() => Err(Stop::StartOver),
        Err(fault) => Err(Stop::of(fault, &lock.dir)),
    }
}

/// Gives our node once it is its turn, and notes what is known of it, or nothing when the lock is busy.
async fn contend(
    own: &mut OwnNode,
    own_watch: &mut OwnWatch,
    chroot: &str,
    request: &AcquireRequest,
    deadline: &Deadline,
) -> Result<Option<Arc<CreatedNode>>, Stop> {
    let (session, lock) = (Arc::clone(own.session()), Arc::clone(own.lock()));
    if request.wait.is_expired() {
        // A try that fails writes nothing.
        let queue = list(&session, &lock).await.map_err(|fault| Stop::of(fault, &lock.dir))?;
        if queue.is_some_and(|queue| queue.is_busy(request.mode)) {
            return Ok(None);
        }
    }
    let mut continuity = session.continuity().map_err(|_| Stop::StartOver)?;
    let (node, queue) = enter(own, chroot, request, deadline).await?;
    let claim = Arc::clone(own.claim());
    let mut place = Waiter::new(&session, &claim, &lock, &node, request, own_watch);
    if place.obstacles(&queue)?.is_none() {
        confirm(&session, &lock).await?;
        return Ok(Some(node));
    }
    if request.wait.is_expired() {
        return Ok(None);
    }
    let turn = deadline.limit(pin!(place.wait(queue, &mut continuity))).await;
    let Some(turn) = turn else { return Ok(None) };
    if let Err(Stop::StartOver) = turn {
        // A listing or an event told it, or the session is over.
        own.forget();
    }
    turn.map(|()| Some(node))
}

/// Creates our node, and its directory if need be, and gives the queue that it is in.
async fn enter(
    own: &mut OwnNode,
    chroot: &str,
    request: &AcquireRequest,
    deadline: &Deadline,
) -> Result<(Arc<CreatedNode>, Queue), Stop> {
    let (session, lock) = (Arc::clone(own.session()), Arc::clone(own.lock()));
    let stop = |fault| Stop::of(fault, &lock.dir);
    // A container may be reaped between its creation and ours.
    let mut tries = 10;
    let until = Instant::now() + session.timeout();
    loop {
        let node = match own.create(&request.owner, deadline).await {
            // The answer to an earlier creation was lost, and this one may be the second.
            Ok(_) if !own.is_certain() => own.settle(deadline).await.map_err(stop)?,
            Ok((node, Some(names))) => return Ok((node, Queue::parse(names))),
            Ok((node, None)) => Some(node),
            Err(Fault::Unknown(error)) if Instant::now() < until => {
                tracing::debug!(%error, dir = lock.dir, "the answer to a creation was lost");
                own.settle(deadline).await.map_err(stop)?
            }
            Err(fault) if fault.is_no_node() && tries > 0 => {
                tries -= 1;
                make_directories(&session, &lock.dir, CreateMode::Container, chroot).await?;
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

/// Creates a directory in this mode, and what is missing above it as persistent nodes. A lost answer counts as done: the
/// caller finds out. The directory of a lock is a container, so that the server removes it when it has been empty for a
/// while.
pub(crate) async fn make_directories(
    session: &Session,
    dir: &str,
    mut mode: CreateMode,
    chroot: &str,
) -> Result<(), Stop> {
    let mut missing = vec![dir];
    while let Some(&path) = missing.last() {
        let mode_here = if path == dir { mode } else { CreateMode::Persistent };
        match session.create(path, &[], mode_here).await {
            Ok(_) | Err(Fault::Refused(zk::Error::NodeExists)) => {
                missing.pop();
            }
            Err(fault) if fault.is_no_node() => match path.rfind('/') {
                Some(at) if at > 0 && missing.len() <= dir.len() => missing.push(&path[..at]),
                _ => return Err(Stop::Failed(no_chroot(chroot))),
            },
            Err(Fault::Refused(zk::Error::Unimplemented)) if mode == CreateMode::Container => {
                mode = CreateMode::Persistent;
            }
            Err(Fault::Unknown(_)) => return Ok(()),
            Err(fault) => return Err(Stop::of(fault, path)),
        }
    }
    Ok(())
}

/// Makes sure that the session of a lock that is ours by the tree is one to believe in.
pub(crate) async fn confirm(session: &Session, lock: &LockPath) -> Result<(), Stop> {
    loop {
        match session.validity().state() {
            GuardState::Valid => return Ok(()),
            GuardState::Lost(_) => return Err(Stop::StartOver),
            _ => {
                let passed = session.retry_until_definite(|| session.pass_quorum(&lock.dir)).await;
                passed.map_err(|fault| Stop::of(fault, &lock.dir))?;
            }
        }
    }
}

/// Deletes the node, for a moment while the caller waits and else in the background.
async fn give_up(mut own: OwnNode) {
    let _ = tokio::time::timeout(FAREWELL, own.delete()).await;
}

/// Our place in the queue, and what we watch there.
struct Waiter<'a> {
    session: &'a Session,
    claim: &'a Arc<Claim>,
    lock: &'a LockPath,
    node: &'a CreatedNode,
    request: &'a AcquireRequest,
    own_watch: &'a mut OwnWatch,
    /// Those that keep us waiting while they are all there.
    near: Vec<Neighbour>,
    /// Whether there are others for whose watches there is no room.
    unwatched: bool,
    /// The one after whose end it is worth while to look again.
    far: Option<Neighbour>,
}

struct Neighbour {
    name: String,
    watch: Watch,
    /// What its node says.
    data: Vec<u8>,
    /// The number of the transaction that made it.
    czxid: i64,
}

/// What has moved in the queue.
enum QueueChange {
    /// One of those that kept us waiting, and our own node was there until then.
    NearDeleted,
    /// Something else.
    Other,
}

impl<'a> Waiter<'a> {
    fn new(
        session: &'a Session,
        claim: &'a Arc<Claim>,
        lock: &'a LockPath,
        node: &'a CreatedNode,
        request: &'a AcquireRequest,
        own_watch: &'a mut OwnWatch,
    ) -> Self {
        Self { session, claim, lock, node, request, own_watch, near: Vec::new(), unwatched: false, far: None }
    }

    /// What keeps us from the lock; nothing when it is our turn.
    fn obstacles<'q>(&self, queue: &'q Queue) -> Result<Option<Obstacles<'q>>, Stop> {
        let own_watch = Some(self.node.name()).filter(|_| is_exhausted(self.node.sequence));
        if let Some(name) = own_watch.or_else(|| queue.exhausted_by()) {
            return Err(Stop::Failed(exhausted(&self.lock.dir, name)));
        }
        if !queue.has(self.node.name()) {
            return Err(Stop::StartOver);
        }
        Ok(queue.obstacles(self.node.sequence, self.node.name(), self.request.mode))
    }

    /// Waits for our turn.
    async fn wait(&mut self, mut queue: Queue, continuity: &mut ConnectionContinuity) -> Result<(), Stop> {
        let mut reported = None;
        while let Some(obstacles) = self.obstacles(&queue)? {
            if reported.replace(obstacles.before) != Some(obstacles.before) {
                self.request.report_position(obstacles.before);
            }
            let moved = self.moved(&obstacles).await?;
            if obstacles.last && matches!(moved, QueueChange::NearDeleted) && continuity.holds() {
                break;
            }
            *continuity = self.session.continuity().map_err(|_| Stop::StartOver)?;
            queue = list_around(self.session, self.lock, self.node).await?;
        }
        confirm(self.session, self.lock).await
    }

    /// Waits until the queue has moved, or may have: an event that the driver, a proxy or the server has lost must not
    /// hang the waiter, so that it [looks again](Session::second_look) after a while.
    ///
    /// [`QueueChange::NearDeleted`] relies on one event all the same, that of our own node: if that was deleted, its event lost, and the
    /// one of the predecessor not, the grant is wrong. A connection that was up all the time gives events in their order.
    async fn moved(&mut self, obstacles: &Obstacles<'_>) -> Result<QueueChange, Stop> {
        let looks_ahead = obstacles.before <= LONG;
        let (began, pause) = (Instant::now(), self.session.second_look());
        while self.watch(obstacles, looks_ahead).await? {
            // One listing shows them all.
            let pause = if self.unwatched { self.session.between_looks() } else { pause };
            let Self { session, own_watch, near, far, .. } = &mut *self;
            tokio::select! {
                biased;
                // The driver tells the watches of it much later.
                () = session.ended() => return Err(Stop::StartOver),
                event = told(own_watch.watch.as_mut()) => match event {
                    Event::Changed => self.own_watch.watch = None,
                    Event::Deleted | Event::SessionEnded => return Err(Stop::StartOver),
                },
                (at, event) = first(near) => {
                    drop(near.swap_remove(at));
                    match event {
                        Event::Changed => {}
                        Event::SessionEnded => return Err(Stop::StartOver),
                        // Events come in the order of the deletions: if ours was removed first, that is known by now.
                        Event::Deleted => return match own_watch.watch.as_mut().map(FutureExt::now_or_never) {
                            None => Ok(QueueChange::Other),
                            Some(None) => Ok(QueueChange::NearDeleted),
                            Some(Some(Event::Changed)) => {
                                own_watch.watch = None;
                                Ok(QueueChange::Other)
                            }
                            Some(Some(_)) => Err(Stop::StartOver),
                        },
                    }
                }
                event = told(far.as_mut().map(|far| &mut far.watch)) => {
                    self.far = None;
                    match event {
                        Event::Changed => {}
                        Event::Deleted => return Ok(QueueChange::Other),
                        Event::SessionEnded => return Err(Stop::StartOver),
                    }
                }
                () = sleep_until(began + pause) => return Ok(QueueChange::Other),
            }
        }
        Ok(QueueChange::Other)
    }

    /// Watches what keeps us waiting, and also our node and the far one if we look ahead and there is room for that: in one
    /// go as far as they are not watched yet. A single one without room for its watch is read now and then; of several only
    /// [a note](Self::unwatched) is made. Says whether all are there that were asked for.
    async fn watch(&mut self, obstacles: &Obstacles<'_>, looks_ahead: bool) -> Result<bool, Stop> {
        let far = obstacles.far.filter(|_| looks_ahead);
        self.near.retain(|neighbour| obstacles.near.contains(&neighbour.name.as_str()));
        self.near.extend(self.far.take_if(|neighbour| obstacles.near.contains(&neighbour.name.as_str())));
        self.far.take_if(|neighbour| Some(neighbour.name.as_str()) != far);
        let unwatched = |name: &&&str| self.near.iter().all(|neighbour| neighbour.name != **name);
        let missing: Vec<_> = obstacles.near.iter().filter(unwatched).copied().collect();
        let own_watch = Some(self.node.name()).filter(|_| looks_ahead && self.own_watch.watch.is_none());
        // What must be watched gets its room first.
        self.unwatched = false;
        let near = missing.into_iter().filter_map(|name| {
            let path = self.lock.child(name);
            let room = self.claim.room(&path, Need::Must).or_else(|| {
                (self.own_watch.watch, self.far) = (None, None);
                self.claim.room(&path, Need::Must)
            });
            if room.is_none() && obstacles.near.len() > 1 {
                self.unwatched = true;
                return None;
            }
            Some(set(self.session, name.to_owned(), path, room))
        });
        let near = join_all(near.collect::<Vec<_>>());
        let ahead = |name: &str| {
            let path = self.lock.child(name);
            let room = self.claim.room(&path, Need::Spare)?;
            Some(set(self.session, name.to_owned(), path, Some(room)))
        };
        let own_watch = OptionFuture::from(own_watch.and_then(ahead));
        let far = OptionFuture::from(far.filter(|_| self.far.is_none()).and_then(ahead));
        let (own_watch, near, far) = join3(own_watch, near, far).await;
        let mut there = true;
        let mut note = |set: Result<Neighbour, Fault>| match set {
            Err(fault) if fault.is_no_node() => {
                there = false;
                Ok(None)
            }
            set => set.map(Some).map_err(|fault| Stop::of(fault, &self.lock.dir)),
        };
        for set in near {
            self.near.extend(note(set)?);
        }
        if let Some(neighbour) = far.map(note).transpose()?.flatten() {
            self.far = Some(neighbour);
        }
        match own_watch {
            // Somebody else's node has the name by now.
            Some(Ok(own)) if own.czxid != self.node.czxid => return Err(Stop::StartOver),
            Some(Ok(own)) => *self.own_watch = OwnWatch { watch: Some(own.watch), data: own.data },
            None => {}
            Some(Err(fault)) if fault.is_no_node() => return Err(Stop::StartOver),
            Some(Err(fault)) => return Err(Stop::of(fault, &self.node.path)),
        }
        Ok(there)
    }
}

/// What this watch tells; nothing ever if there is none.
async fn told(watch: Option<&mut Watch>) -> Event {
    match watch {
        Some(watch) => watch.await,
        None => std::future::pending().await,
    }
}

/// Which of them is told something first, and what.
async fn first(neighbours: &mut [Neighbour]) -> (usize, Event) {
    poll_fn(|context| {
        for (at, neighbour) in neighbours.iter_mut().enumerate() {
            if let Poll::Ready(event) = neighbour.watch.poll_unpin(context) {
                return Poll::Ready((at, event));
            }
        }
        Poll::Pending
    })
    .await
}

/// Watches this node in this room; without one it is looked at.
async fn set(
    session: &Session,
    name: String,
    path: String,
    room: Option<Arc<Room>>,
) -> Result<Neighbour, Fault> {
    let (watch, data, stat) = session.retry_until_definite(|| session.watch(&path, room.clone())).await?;
    Ok(Neighbour { name, watch, data, czxid: stat.czxid })
}

fn exhausted(dir: &str, name: &str) -> Error {
    Error::new(ErrorKind::Exhausted, BACKEND)
        .with_message(format!(
            "the sequence numbers of {dir} are used up ({name}), so that the order of its queue is not known"
        ))
        .with_hint(format!(
            "delete {name} if no lock made it; otherwise stop all that use this lock, and delete {dir} with its nodes"
        ))
}

/// From so many before it on, a waiter does not look ahead.
const LONG: usize = 16;
/// How long a caller waits for the end of its node, before that goes on without it.
const FAREWELL: Duration = Duration::from_millis(15);
