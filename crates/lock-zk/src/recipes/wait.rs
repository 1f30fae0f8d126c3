//! Waits for the turn in the queue: which nodes a waiter watches, and what it does when one is deleted.
//!
//! A waiter watches the nodes that certainly block it (`near`). If the deletion of one is all that it waits for, that is the
//! grant, without a listing; only the end of a writer is not, as a downgraded reader may take over its number. Otherwise the
//! predecessor may have been a waiter that gave up, and the directory is listed. To have that done before its turn, a
//! waiter also watches the node before the predecessor (`far`). A release so wakes two waiters, however many there are.
//!
//! In a [long queue](LONG), or in a session that is short of [watches](crate::nodes::watches), a waiter spares the requests for `far`
//! and its own node. It lists the directory when its predecessor is deleted: one round trip more per grant.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::future::{OptionFuture, join_all, join3};
use lock_core::{AcquireRequest, Error, ErrorKind, Wait};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::error::{Fault, Stop, error};
use crate::nodes::held_node::OwnWatch;
use crate::nodes::lock_path::LockPath;
use crate::nodes::node::CreatedNode;
use crate::nodes::own_node::OwnNode;
use crate::nodes::watches::{Event, Need, Room, Watch};
use crate::recipes::queue::{Obstacles, Queue, is_exhausted, list_around};
use crate::sessions::session::{ConnectionContinuity, Session, SessionHandle};

/// A waiter in the queue, and its watches.
pub(crate) struct Waiter<'a> {
    session: &'a SessionHandle,
    lock: &'a LockPath,
    node: &'a CreatedNode,
    request: &'a AcquireRequest,
    own_watch: &'a mut OwnWatch,
    /// The contenders that block it while they all exist.
    near: Vec<Neighbour>,
    /// Whether there was no room to watch some of them.
    unwatched: bool,
    /// The contender after whose deletion it lists the directory again.
    far: Option<Neighbour>,
}

/// Another contender, watched.
struct Neighbour {
    name: String,
    watch: Watch,
}

/// A change of the queue.
enum QueueChange {
    /// A `near` node was deleted, while the own node existed.
    NearDeleted,
    Other,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(
        own: &'a OwnNode,
        node: &'a CreatedNode,
        request: &'a AcquireRequest,
        own_watch: &'a mut OwnWatch,
    ) -> Self {
        let (session, lock) = (&own.session, &own.lock);
        Self { session, lock, node, request, own_watch, near: Vec::new(), unwatched: false, far: None }
    }

    /// What blocks this waiter; nothing when it is its turn.
    pub(crate) fn obstacles<'q>(&self, queue: &'q Queue) -> Result<Option<Obstacles<'q>>, Stop> {
        let own = Some(self.node.name()).filter(|_| is_exhausted(self.node.sequence));
        if let Some(name) = own.or_else(|| queue.exhausted_by()) {
            return Err(Stop::Failed(exhausted(&self.lock.dir, name)));
        }
        if !queue.has(self.node.name()) {
            return Err(Stop::StartOver);
        }
        Ok(queue.obstacles(self.node.sequence, self.node.name(), self.request.mode))
    }

    pub(crate) async fn wait(
        &mut self,
        mut queue: Queue,
        continuity: &mut ConnectionContinuity,
    ) -> Result<(), Stop> {
        let stop = |fault| Stop::of(fault, &self.lock.dir);
        let (session, lock) = (self.session, self.lock);
        let mut reported = None;
        while let Some(obstacles) = self.obstacles(&queue)? {
            if reported.replace(obstacles.before) != Some(obstacles.before) {
                self.request.report_position(obstacles.before);
            }
            let change = self.next_change(&obstacles).await?;
            if obstacles.last && matches!(change, QueueChange::NearDeleted) && continuity.holds() {
                break;
            }
            *continuity = session.continuity().map_err(stop)?;
            queue = list_around(session, lock, self.node).await?;
        }
        session.ensure_valid(&lock.dir).await.map_err(stop)
    }

    /// Waits until the queue has changed, or may have: if an event is lost, the waiter [looks again](Session::second_look)
    /// after a while.
    ///
    /// [`QueueChange::NearDeleted`] still relies on one event, that of the own node: if that was deleted and its event lost, but
    /// not the predecessor's, the grant is wrong. An unbroken connection delivers events in order.
    async fn next_change(&mut self, obstacles: &Obstacles<'_>) -> Result<QueueChange, Stop> {
        let looks_ahead = obstacles.before <= LONG;
        let (began, pause) = (Instant::now(), self.session.second_look());
        while self.watch(obstacles, looks_ahead).await? {
            // One listing shows all unwatched nodes.
            let pause = if self.unwatched { self.session.poll_interval() } else { pause };
            let Self { session, own_watch, near, far, .. } = &mut *self;
            tokio::select! {
                biased;
                // The watches of the driver fire much later.
                () = session.ended() => return Err(Stop::StartOver),
                event = event_of(own_watch.watch.as_mut()) => match event {
                    Event::Changed => self.own_watch.watch = None,
                    Event::Deleted | Event::SessionEnded => return Err(Stop::StartOver),
                },
                (at, event) = first_event(near) => {
                    drop(near.swap_remove(at));
                    match event {
                        Event::Changed => {}
                        Event::SessionEnded => return Err(Stop::StartOver),
                        // Events come in the order of the deletions: an earlier one of the own node has arrived.
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
                event = event_of(far.as_mut().map(|far| &mut far.watch)) => {
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

    /// Sets the watches that are missing, all at once: of the `near` nodes, and, if this waiter looks ahead and there is
    /// room, of the own node and `far`. A single `near` node without room is polled; of several, only
    /// [`unwatched`](Self::unwatched) is set. Returns whether all nodes existed.
    async fn watch(&mut self, obstacles: &Obstacles<'_>, looks_ahead: bool) -> Result<bool, Stop> {
        let far = obstacles.far.filter(|_| looks_ahead);
        self.near.retain(|neighbour| obstacles.near.contains(&neighbour.name.as_str()));
        self.near.extend(self.far.take_if(|neighbour| obstacles.near.contains(&neighbour.name.as_str())));
        self.far.take_if(|neighbour| Some(neighbour.name.as_str()) != far);
        let unwatched = |name: &&&str| self.near.iter().all(|neighbour| neighbour.name != **name);
        let missing: Vec<_> = obstacles.near.iter().filter(unwatched).copied().collect();
        let watches_own = looks_ahead && self.own_watch.watch.is_none();
        // The necessary watches get their room first.
        self.unwatched = false;
        let near = missing.into_iter().filter_map(|name| {
            let path = self.lock.child(name);
            let room = self.session.claim.room(&path, Need::Must).or_else(|| {
                (self.own_watch.watch, self.far) = (None, None);
                self.session.claim.room(&path, Need::Must)
            });
            if room.is_none() && obstacles.near.len() > 1 {
                self.unwatched = true;
                return None;
            }
            Some(watch_neighbour(self.session, name.to_owned(), path, room))
        });
        let near = join_all(near.collect::<Vec<_>>());
        let spare = |path: &str| self.session.claim.room(path, Need::Spare);
        let own = watches_own.then(|| spare(&self.node.path)).flatten();
        let own = OptionFuture::from(own.map(|room| watch_own(self.session, self.node, room)));
        let far = far.filter(|_| self.far.is_none()).and_then(|name| {
            let path = self.lock.child(name);
            let room = spare(&path)?;
            Some(watch_neighbour(self.session, name.to_owned(), path, Some(room)))
        });
        let far = OptionFuture::from(far);
        let (own, near, far) = join3(own, near, far).await;
        let mut all_exist = true;
        let mut existing = |watched: Result<Neighbour, Fault>| match watched {
            Err(fault) if fault.is_no_node() => {
                all_exist = false;
                Ok(None)
            }
            watched => watched.map(Some).map_err(|fault| Stop::of(fault, &self.lock.dir)),
        };
        for watched in near {
            self.near.extend(existing(watched)?);
        }
        // Without it, the queue is listed a little later.
        if let Some(Ok(neighbour)) = far.map(existing) {
            self.far = self.far.take().or(neighbour);
        }
        match own {
            Some(Ok(Some(own_watch))) => *self.own_watch = own_watch,
            // The name belongs to a later node.
            Some(Ok(None)) => return Err(Stop::StartOver),
            None => {}
            Some(Err(fault)) if fault.is_no_node() => return Err(Stop::StartOver),
            Some(Err(fault)) => return Err(Stop::of(fault, &self.node.path)),
        }
        Ok(all_exist)
    }
}

/// The output of a wait for a busy lock; nothing if its deadline passes before.
pub(crate) async fn until_deadline<T>(wait: Wait, waiting: impl Future<Output = T>) -> Option<T> {
    match wait.deadline() {
        Some(deadline) => timeout_at(deadline, waiting).await.ok(),
        None => Some(waiting.await),
    }
}

/// The event of this watch; none ever if there is no watch.
async fn event_of(watch: Option<&mut Watch>) -> Event {
    match watch {
        Some(watch) => watch.await,
        None => pending().await,
    }
}

/// The first event of these watches, and whose it is.
async fn first_event(neighbours: &mut [Neighbour]) -> (usize, Event) {
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

async fn watch_neighbour(
    session: &Session,
    name: String,
    path: String,
    room: Option<Arc<Room>>,
) -> Result<Neighbour, Fault> {
    let watched = session.retry_until_definite(|| session.watch_existing(&path, room.clone()));
    let (watch, _) = watched.await?;
    Ok(Neighbour { name, watch })
}

/// Watches the own node; nothing if another node has its name.
async fn watch_own(
    session: &Session,
    node: &CreatedNode,
    room: Arc<Room>,
) -> Result<Option<OwnWatch>, Fault> {
    let watched = session.retry_until_definite(|| session.watch_in(Arc::clone(&room), &node.path));
    let (watch, data, stat) = watched.await?;
    let own = OwnWatch { watch: Some(watch), data, version: stat.version };
    Ok((stat.czxid == node.czxid).then_some(own))
}

fn exhausted(dir: &str, name: &str) -> Error {
    let message =
        format!("the sequence numbers of {dir} are used up ({name}), so the order of its queue is unknown");
    let hint = format!(
        "delete {name} if no lock created it; otherwise stop all clients of this lock, and delete {dir} with its nodes"
    );
    error(ErrorKind::Exhausted, message, hint).with_can_pass(false)
}

/// With more contenders ahead, a waiter does not look ahead.
const LONG: usize = 32;
