//! How a lock is acquired: a node in the queue, and the wait for those before it to go.
//!
//! Source: "Locks" in ZooKeeper's "Recipes and Solutions", with these changes. The node is created and the directory
//! listed in one go. When the predecessor was the only one before us, its deletion is the grant, without another
//! listing: numbers only grow, so nobody can get in before us. Otherwise the predecessor may have been a waiter that
//! gave up, and the directory is listed again; as we also watch the one before the predecessor, that has mostly
//! happened by the time the predecessor gets its turn. A release so tells two waiters, however many there are.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join3;
use lock_core::{AcquireRequest, Error, ErrorKind, OwnerId, Result, Standing, Wait};
use tokio::time::{Instant, timeout_at};
use zookeeper_client::{self as zk, CreateMode};

use crate::BACKEND;
use crate::fault::{Fault, no_chroot};
use crate::layout::{Queue, Spot, is_exhausted};
use crate::lease::ZkLease;
use crate::node::{Made, Node};
use crate::session::{Event, Session, Steadiness, Watch};

/// What an attempt within one session ended with.
pub(crate) enum Attempt {
    Held(Box<ZkLease>),
    Busy,
    /// Our node is gone before it was its turn: removed by somebody, or with its session. `answered` tells whether
    /// the server had shown us the queue.
    Again {
        answered: bool,
    },
}

/// Takes the lock within this session.
///
/// # Cancel safety
///
/// When the future is dropped, the node is deleted in the background.
pub(crate) async fn attempt(
    session: &Arc<Session>,
    spot: &Arc<Spot>,
    chroot: &str,
    request: &AcquireRequest,
) -> Result<Attempt> {
    let mut node = Node::new(session, spot, OwnerId::random());
    let mut answered = false;
    match contend(&mut node, chroot, request, &mut answered).await {
        Ok(Some((made, own))) => {
            Ok(Attempt::Held(Box::new(ZkLease::new(node, &made, own, request.lease.max_hold)?)))
        }
        Ok(None) => {
            give_up(node).await;
            Ok(Attempt::Busy)
        }
        Err(Stop::Again) => Ok(Attempt::Again { answered }),
        Err(Stop::Failed(error)) => {
            give_up(node).await;
            Err(error)
        }
    }
}

/// The directory of a lock, as the server that we are connected to knows it; `None` when there is none.
pub(crate) async fn list(session: &Session, spot: &Spot) -> Result<Option<Queue>, Fault> {
    match session.insist(|| session.children(&spot.dir)).await {
        Ok(children) => Ok(Some(Queue::parse(children))),
        Err(fault) if fault.is_no_node() => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Why there is no place in the queue any more.
enum Stop {
    Again,
    Failed(Error),
}

impl Stop {
    fn of(fault: Fault, path: &str) -> Self {
        match fault {
            Fault::Over => Self::Again,
            fault => Self::Failed(fault.on(path)),
        }
    }
}

/// Gives our node once it is its turn, with the watch for it if one is set, or nothing when the lock is busy.
async fn contend(
    node: &mut Node,
    chroot: &str,
    request: &AcquireRequest,
    answered: &mut bool,
) -> Result<Option<(Made, Option<Watch>)>, Stop> {
    let (session, spot) = (Arc::clone(node.session()), Arc::clone(node.spot()));
    if request.wait.is_over() {
        // A try that fails writes nothing.
        let queue = list(&session, &spot).await.map_err(|fault| Stop::of(fault, &spot.dir))?;
        *answered = true;
        if queue.is_some_and(|queue| !queue.contenders.is_empty()) {
            return Ok(None);
        }
    }
    let mut steady = session.steadiness().map_err(|_| Stop::Again)?;
    let (made, queue) = enter(node, chroot, request).await?;
    *answered = true;
    let mut place = Place::new(&session, &spot, &made);
    if place.check(&queue)? {
        confirm(&session, &spot).await?;
        return Ok(Some((made, None)));
    }
    let granted = match request.wait {
        _ if request.wait.is_over() => None,
        Wait::Until(deadline) => timeout_at(deadline, place.wait(queue, &mut steady)).await.ok(),
        _ => Some(place.wait(queue, &mut steady).await),
    };
    let own = place.own.take();
    match granted {
        Some(Ok(())) => Ok(Some((made, own))),
        Some(Err(Stop::Again)) => {
            // A listing or an event told it, or the session is over.
            node.forget();
            Err(Stop::Again)
        }
        Some(Err(stop)) => Err(stop),
        None => {
            // Its own deletion uses up the watch, which would take a request to remove.
            let _ = tokio::time::timeout(FAREWELL, node.delete()).await;
            Ok(None)
        }
    }
}

/// Creates our node, and its directory if need be, and lists the queue behind it.
async fn enter(node: &mut Node, chroot: &str, request: &AcquireRequest) -> Result<(Made, Queue), Stop> {
    let (session, spot) = (Arc::clone(node.session()), Arc::clone(node.spot()));
    let stop = |fault| Stop::of(fault, &spot.dir);
    // A container may be reaped between its creation and ours.
    let mut tries = 10;
    let until = Instant::now() + session.timeout();
    loop {
        let (made, children) = node.create(&request.owner).await;
        let made = match made {
            // The answer to an earlier creation was lost, and this one may be the second.
            Ok(_) if !node.is_certain() => node.settle().await.map_err(stop)?,
            Ok(made) => {
                if let Ok(children) = children {
                    return Ok((made, Queue::parse(children)));
                }
                Some(made)
            }
            Err(Fault::Unknown(error)) if Instant::now() < until => {
                tracing::debug!(%error, dir = spot.dir, "the answer to a creation was lost");
                node.settle().await.map_err(stop)?
            }
            Err(fault) if fault.is_no_node() && tries > 0 => {
                tries -= 1;
                make_directory(&session, &spot.dir, chroot).await?;
                None
            }
            Err(fault) => return Err(stop(fault)),
        };
        if let Some(made) = made {
            match list(&session, &spot).await.map_err(stop)? {
                Some(queue) => return Ok((made, queue)),
                None => return Err(Stop::Again),
            }
        }
    }
}

/// Creates the directory of a lock, a container so that the server removes it when it has been empty for a while, and
/// what is missing above it. A lost answer counts as done: the caller finds out.
async fn make_directory(session: &Session, dir: &str, chroot: &str) -> Result<(), Stop> {
    let mut missing = vec![dir];
    let mut container = true;
    while let Some(&path) = missing.last() {
        let mode = if container && path == dir { CreateMode::Container } else { CreateMode::Persistent };
        match session.create_directory(path, mode).await {
            Ok(()) | Err(Fault::Refused(zk::Error::NodeExists)) => {
                missing.pop();
            }
            Err(fault) if fault.is_no_node() => match path.rfind('/') {
                Some(at) if at > 0 && missing.len() <= dir.len() => missing.push(&path[..at]),
                _ => return Err(Stop::Failed(no_chroot(chroot))),
            },
            Err(Fault::Refused(zk::Error::Unimplemented)) if container => container = false,
            Err(Fault::Unknown(_)) => return Ok(()),
            Err(fault) => return Err(Stop::of(fault, path)),
        }
    }
    Ok(())
}

/// Makes sure that the session of a lock that is ours by the tree is one to believe in.
async fn confirm(session: &Session, spot: &Spot) -> Result<(), Stop> {
    loop {
        match session.validity().standing() {
            Standing::Valid => return Ok(()),
            Standing::Lost(_) => return Err(Stop::Again),
            Standing::Suspect => {
                let synced = session.insist(|| session.sync(&spot.dir)).await;
                synced.map_err(|fault| Stop::of(fault, &spot.dir))?;
            }
        }
    }
}

/// Deletes the node, for a moment while the caller waits and else in the background.
async fn give_up(mut node: Node) {
    let _ = tokio::time::timeout(FAREWELL, node.delete()).await;
}

/// Our place in the queue, and what we watch there.
struct Place<'a> {
    session: &'a Session,
    spot: &'a Spot,
    made: &'a Made,
    own: Option<Watch>,
    /// The predecessor.
    near: Option<Neighbour>,
    /// The one before the predecessor.
    far: Option<Neighbour>,
}

struct Neighbour {
    name: String,
    watch: Watch,
}

impl<'a> Place<'a> {
    fn new(session: &'a Session, spot: &'a Spot, made: &'a Made) -> Self {
        Self { session, spot, made, own: None, near: None, far: None }
    }

    /// Whether it is our turn.
    fn check(&self, queue: &Queue) -> Result<bool, Stop> {
        if is_exhausted(self.made.sequence) || queue.is_exhausted() {
            return Err(Stop::Failed(exhausted(&self.spot.dir)));
        }
        if !queue.has(&self.made.name) {
            return Err(Stop::Again);
        }
        Ok(queue.before(self.made.sequence, &self.made.name).is_empty())
    }

    /// Waits for our turn.
    async fn wait(&mut self, mut queue: Queue, steady: &mut Steadiness) -> Result<(), Stop> {
        while !self.check(&queue)? {
            let before = queue.before(self.made.sequence, &self.made.name);
            let mut names = before.iter().rev().map(|other| other.name.as_str());
            let (near, far) = (names.next().unwrap_or_default(), names.next());
            // A lock that is downgraded, in a directory of read/write locks, takes an old number again.
            let last = far.is_none() && queue.exclusive;
            if self.predecessor_gone(near, far).await? && last && steady.holds() {
                break;
            }
            *steady = self.session.steadiness().map_err(|_| Stop::Again)?;
            queue = match list(self.session, self.spot).await {
                Ok(Some(queue)) => queue,
                Ok(None) => return Err(Stop::Again),
                Err(fault) => return Err(Stop::of(fault, &self.spot.dir)),
            };
        }
        confirm(self.session, self.spot).await
    }

    /// Waits until the queue has moved, and says whether we watched our predecessor go.
    async fn predecessor_gone(&mut self, near: &str, far: Option<&str>) -> Result<bool, Stop> {
        while self.watch(near, far).await? {
            let Self { session, own: Some(own), near: Some(near), far, .. } = &mut *self else {
                return Ok(false);
            };
            let far_event = async {
                match far {
                    Some(far) => (&mut far.watch).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                // The driver tells the watches of it much later.
                () = session.ended() => return Err(Stop::Again),
                event = &mut *own => match event {
                    Event::Changed => self.own = None,
                    Event::Deleted | Event::Over => return Err(Stop::Again),
                },
                event = &mut near.watch => match event {
                    Event::Changed => self.near = None,
                    Event::Over => return Err(Stop::Again),
                    // Events come in the order of the deletions: if ours was removed first, that is known by now.
                    Event::Deleted => {
                        let removed = own.now_or_never().is_some_and(|event| event != Event::Changed);
                        self.near = None;
                        return if removed { Err(Stop::Again) } else { Ok(true) };
                    }
                },
                event = far_event => {
                    self.far = None;
                    match event {
                        Event::Changed => {}
                        Event::Deleted => return Ok(false),
                        Event::Over => return Err(Stop::Again),
                    }
                }
            }
        }
        Ok(false)
    }

    /// Watches our node and these, in one go as far as they are not watched yet, and says whether all are there.
    async fn watch(&mut self, near: &str, far: Option<&str>) -> Result<bool, Stop> {
        if self.near.as_ref().is_some_and(|neighbour| neighbour.name != near) {
            self.near = None;
        }
        if self.near.is_none() {
            self.near = self.far.take_if(|neighbour| neighbour.name == near);
        }
        if self.far.as_ref().is_some_and(|neighbour| Some(neighbour.name.as_str()) != far) {
            self.far = None;
        }
        let (own, near, far) = join3(
            set(self.session, self.spot, self.own.is_none().then_some(self.made.name.as_str())),
            set(self.session, self.spot, self.near.is_none().then_some(near)),
            set(self.session, self.spot, far.filter(|_| self.far.is_none())),
        )
        .await;
        let mut there = true;
        for (slot, set) in [(&mut self.near, near), (&mut self.far, far)] {
            match set {
                Ok(Some(neighbour)) => *slot = Some(neighbour),
                Ok(None) => {}
                Err(fault) if fault.is_no_node() => there = false,
                Err(fault) => return Err(Stop::of(fault, &self.spot.dir)),
            }
        }
        match own {
            Ok(Some(neighbour)) => self.own = Some(neighbour.watch),
            Ok(None) => {}
            Err(fault) if fault.is_no_node() => return Err(Stop::Again),
            Err(fault) => return Err(Stop::of(fault, &self.made.path)),
        }
        Ok(there)
    }
}

/// Watches this node, if there is one to watch.
async fn set(session: &Session, spot: &Spot, name: Option<&str>) -> Result<Option<Neighbour>, Fault> {
    let Some(name) = name else { return Ok(None) };
    let path = spot.child(name);
    let watch = session.insist(|| session.watch(&path)).await?;
    Ok(Some(Neighbour { name: name.to_owned(), watch }))
}

fn exhausted(dir: &str) -> Error {
    Error::new(ErrorKind::Exhausted, BACKEND)
        .message(format!(
            "the sequence numbers of {dir} are used up, so that the order of its queue is not known"
        ))
        .hint(format!("stop everybody who uses this lock, and delete {dir} with all that is in it"))
}

/// How long a caller waits for the end of its node, before that goes on without it.
const FAREWELL: Duration = Duration::from_millis(15);
