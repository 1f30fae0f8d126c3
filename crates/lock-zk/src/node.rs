//! Our own node in the queue of a lock, from the moment that it may exist until it is known to be gone.

use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join};
use lock_core::background::Background;
use lock_core::{Mode, OwnerId, OwnerInfo};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use zookeeper_client::{self as zk, CreateMode};

use crate::ZkRecipe;
use crate::deadline::Deadline;
use crate::downgrade::{Downgrade, Downgraded};
use crate::error::{Fault, Right};
use crate::layout::LockPath;
use crate::session::{Entry, PAUSE, Session, SessionHandle};
use crate::watches::Claim;

/// Our node, or the attempt to make one. Dropping it undoes in the background what the server may have done.
///
/// A request that was sent takes effect even if nobody waits for its answer, and one whose answer was lost may have.
/// So the requests that change something live in here and not in the future of the caller: when that is dropped,
/// a task waits for their answers and then deletes what there is.
pub(crate) struct OwnNode {
    session: SessionHandle,
    lock: Arc<LockPath>,
    ours: NodeIdentity,
    state: State,
    /// Whether there is surely no second node of the same owner, from a creation whose answer was lost.
    certain: bool,
    /// Whether a deletion of it may have been sent that was refused in the end.
    retried: bool,
    /// The roll-backs of dropped acquisitions.
    cleanup: Background,
}

/// How the nodes of one acquisition are known.
#[derive(Clone, Copy, Debug)]
struct NodeIdentity {
    owner: OwnerId,
    mode: Mode,
    writes: bool,
}

enum State {
    Nothing,
    Creating(InFlight<Created>),
    There(Arc<CreatedNode>),
    Deleting(Arc<CreatedNode>, InFlight<Result<Gone, Fault>>),
}

/// The node, and whether it was the only one in its directory then, if that is known.
type Created = Result<(Arc<CreatedNode>, bool), Fault>;

/// A request under way. Never locked: it only makes the node `Sync`.
struct InFlight<T>(Mutex<BoxFuture<'static, T>>);

impl<T> InFlight<T> {
    fn new(request: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Mutex::new(request.boxed()))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<T> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).poll_unpin(context)
    }

    async fn end(mut self) -> T {
        poll_fn(|context| self.poll(context)).await
    }
}

/// A node that the server made for us.
#[derive(Debug)]
pub(crate) struct CreatedNode {
    pub(crate) path: String,
    pub(crate) sequence: i64,
    /// The number of the transaction that made it.
    pub(crate) czxid: i64,
    pub(crate) downgrade: Downgrade,
    deletion: Deletion,
}

/// The deletion of a node whose name comes again.
///
/// The server deletes by name alone, so the node is looked at first. No other deletion of it may be under way then: the
/// first would free the name, and the second hit the node of the next holder. So whoever deletes it, the
/// [lease](crate::lease) at its end, a release or a drop, waits for the same task.
#[derive(Debug, Default)]
struct Deletion(Mutex<Option<Deleting>>);

type Deleting = Shared<BoxFuture<'static, Result<Gone, Fault>>>;

impl PartialEq for CreatedNode {
    fn eq(&self, other: &Self) -> bool {
        (self.czxid, &self.path) == (other.czxid, &other.path)
    }
}

impl CreatedNode {
    /// The node at this path, whose sequence number begins after so many bytes, if it has one.
    pub(crate) fn at(mut path: String, digits: usize, czxid: i64) -> Option<Self> {
        let digits = path.get(digits..)?;
        let sequence = if digits.is_empty() { 0 } else { digits.parse().ok()? };
        // The driver leaves room for more.
        path.shrink_to_fit();
        Some(Self { path, sequence, czxid, downgrade: Downgrade::default(), deletion: Deletion::default() })
    }

    /// The node that stands in its place by now, or this one.
    pub(crate) async fn latest(self: &Arc<Self>) -> Arc<Self> {
        self.downgrade.reader().await.unwrap_or_else(|| Arc::clone(self))
    }

    /// The node at this path, as the server completed it.
    fn below(prefix: &str, path: String, czxid: i64) -> Result<Self, Fault> {
        let text = format!("the server named {prefix} so: {path}");
        Self::at(path, prefix.len(), czxid).ok_or(Fault::Unknown(zk::Error::UnexpectedError(text)))
    }

    /// The name in the directory.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

impl NodeIdentity {
    /// What stands before the sequence number.
    fn prefix(&self, lock: &LockPath) -> String {
        lock.layout.prefix(self.owner, self.mode, self.writes)
    }

    /// What our node says.
    fn card(&self, info: &OwnerInfo) -> Vec<u8> {
        let card = NodeData::new(info.clone(), self.owner.to_string());
        // Strings and numbers always make JSON.
        serde_json::to_vec(&card).unwrap_or_default()
    }
}

/// What a deletion found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// We deleted it.
    Now,
    /// It was gone before.
    Before,
    /// The session is over, and its nodes with it.
    WithSession,
}

/// What a node says about its owner.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NodeData {
    #[serde(flatten)]
    pub(crate) info: OwnerInfo,
    /// The owner id.
    pub(crate) owner: String,
    /// Of a reader that was a writer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) writer: Option<Origin>,
    /// Whether the owner is asked to give the lock up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) revoke: bool,
}

impl NodeData {
    pub(crate) const fn new(info: OwnerInfo, owner: String) -> Self {
        Self { info, owner, writer: None, revoke: false }
    }
}

/// How the node was made by which a holder got the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// The number of the transaction, by which the token is counted.
    pub(crate) czxid: i64,
    /// When, in milliseconds by the clock of the server.
    pub(crate) ctime: i64,
}

impl Origin {
    pub(crate) fn time(&self) -> Option<SystemTime> {
        let since = Duration::from_millis(u64::try_from(self.ctime).ok()?);
        SystemTime::UNIX_EPOCH.checked_add(since)
    }
}

impl OwnNode {
    /// No node yet, but for this acquisition.
    pub(crate) fn new(
        session: &Arc<Session>,
        lock: &Arc<LockPath>,
        mode: Mode,
        writes: bool,
        cleanup: &Background,
    ) -> Self {
        let (session, lock) = (SessionHandle::new(session, lock.node_bytes()), Arc::clone(lock));
        let ours = NodeIdentity { owner: OwnerId::random(), mode, writes };
        let (state, cleanup) = (State::Nothing, cleanup.clone());
        Self { session, lock, ours, state, certain: true, retried: false, cleanup }
    }

    pub(crate) fn owner(&self) -> OwnerId {
        self.ours.owner
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// What may be watched for it.
    pub(crate) const fn claim(&self) -> &Arc<Claim> {
        self.session.claim()
    }

    pub(crate) const fn lock(&self) -> &Arc<LockPath> {
        &self.lock
    }

    /// Whether there may be a second node of the same owner.
    pub(crate) const fn is_certain(&self) -> bool {
        self.certain
    }

    /// Creates the node, and gives the names in its directory then, if the answers tell them.
    pub(crate) async fn create(
        &mut self,
        info: &OwnerInfo,
        deadline: &Deadline,
    ) -> Result<(Arc<CreatedNode>, Option<Vec<String>>), Fault> {
        let (session, lock) = (Arc::clone(&self.session), Arc::clone(&self.lock));
        let (prefix, data) = (lock.child(&self.ours.prefix(&lock)), self.ours.card(info));
        // One that is written later than it was known to be empty may be somebody's.
        let known = session.directories().version(&lock.dir).filter(|_| session.is_connected());
        if let Some(version) = known {
            let (session, lock) = (Arc::clone(&session), Arc::clone(&lock));
            self.begin(enter(session, lock, version, prefix.clone(), data.clone()));
            match self.created(deadline).await {
                Err(Fault::Denied { right: Right::Write, .. } | Fault::Refused(zk::Error::BadVersion)) => {}
                created => {
                    let (node, alone) = created?;
                    let names = alone.then(|| vec![node.name().to_owned()]);
                    return Ok((node, names));
                }
            }
        }
        self.begin(make(Arc::clone(&session), prefix, data, CreateMode::EphemeralSequential));
        let (created, children) = join(self.created(deadline), session.children(&lock.dir)).await;
        created.map(|(node, _)| (node, children.ok()))
    }

    /// Creates the node in the place of the directory.
    pub(crate) async fn create_fixed(
        &mut self,
        info: &OwnerInfo,
        deadline: &Deadline,
    ) -> Result<Arc<CreatedNode>, Fault> {
        let (path, data) = (self.lock.dir.clone(), self.ours.card(info));
        self.begin(make(Arc::clone(&self.session), path, data, CreateMode::Ephemeral));
        self.created(deadline).await.map(|(node, _)| node)
    }

    fn begin(&mut self, creation: impl Future<Output = Created> + Send + 'static) {
        self.state = State::Creating(InFlight::new(creation));
    }

    /// Notes the answer in the same poll that sees it, so that it cannot be lost with this future.
    async fn created(&mut self, deadline: &Deadline) -> Created {
        poll_fn(|context| {
            let State::Creating(creation) = &mut self.state else {
                return Poll::Ready(Err(Fault::SessionEnded));
            };
            let answer = std::task::ready!(creation.poll(context));
            self.state = match &answer {
                Ok((node, _)) => State::There(Arc::clone(node)),
                Err(_) => State::Nothing,
            };
            self.certain &= !matches!(answer, Err(Fault::Unknown(_)));
            if !matches!(answer, Err(Fault::Unknown(_) | Fault::SessionEnded)) {
                deadline.note_answer();
            }
            Poll::Ready(answer)
        })
        .await
    }

    /// Finds out what became of creations whose answers were lost: keeps the lowest node, deletes the others, and
    /// gives what is kept.
    pub(crate) async fn settle(&mut self, deadline: &Deadline) -> Result<Option<Arc<CreatedNode>>, Fault> {
        let paths = candidates(&self.session, &self.lock, self.ours).await?;
        deadline.note_answer();
        let mut found = find_among(&self.session, &self.lock, self.ours, paths).await?;
        if found.is_empty() {
            self.state = State::Nothing;
            return Ok(None);
        }
        let kept = Arc::new(found.remove(0));
        self.state = State::There(Arc::clone(&kept));
        for extra in &found {
            delete(&self.session, &self.lock, extra, false).await;
        }
        self.certain = true;
        Ok(Some(kept))
    }

    /// Notes that the node is known to be gone.
    pub(crate) fn forget(&mut self) {
        self.state = State::Nothing;
    }

    /// Puts the node of a reader in the place of ours, which is a writer's, however often that takes.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped it goes on, and the next call gives what came of it.
    pub(crate) async fn downgrade(&self) -> Downgraded {
        let State::There(node) = &self.state else { return Downgraded::Gone };
        Downgrade::of(node, &self.session, &self.lock, self.ours.owner).await
    }

    /// Deletes the node, however often answers are lost, or gives the refusal of the server. After that it can be
    /// called again.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped the deletion has begun; the next call, or the drop of the node, goes on with it.
    pub(crate) async fn delete(&mut self) -> Result<Gone, Fault> {
        if let State::There(node) = &self.state {
            let (session, lock, node) = (Arc::clone(&self.session), Arc::clone(&self.lock), Arc::clone(node));
            let (latest, retried) = (Arc::clone(&node), self.retried);
            let deletion = async move {
                let node = latest.latest().await;
                remove(&session, &lock, &node, retried).await
            };
            self.state = State::Deleting(node, InFlight::new(deletion));
        }
        poll_fn(|context| {
            let State::Deleting(node, deletion) = &mut self.state else {
                return Poll::Ready(Ok(Gone::Before));
            };
            let gone = std::task::ready!(deletion.poll(context));
            (self.state, self.retried) = match &gone {
                Ok(_) => (State::Nothing, false),
                Err(_) => (State::There(Arc::clone(node)), true),
            };
            Poll::Ready(gone)
        })
        .await
    }
}

impl Drop for OwnNode {
    fn drop(&mut self) {
        let state = mem::replace(&mut self.state, State::Nothing);
        if (matches!(state, State::Nothing) && self.certain) || self.session.has_ended() {
            return;
        }
        let (session, lock, ours) = (self.session.another(), Arc::clone(&self.lock), self.ours);
        // The task holds no node, so that it can be dropped in its turn when the runtime shuts down.
        self.cleanup.spawn(self.session.runtime(), undo(session, lock, ours, state, self.certain));
    }
}

impl fmt::Debug for OwnNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Nothing => "nothing",
            State::Creating(_) => "being created",
            State::There(node) => &node.path,
            State::Deleting(..) => "being deleted",
        };
        f.debug_struct("OwnNode").field("ours", &self.ours).field("state", &state).finish_non_exhaustive()
    }
}

/// Creates a node in the queue, and tells whether nobody else is in it.
async fn enter(
    session: Arc<Session>,
    lock: Arc<LockPath>,
    version: i32,
    prefix: String,
    data: Vec<u8>,
) -> Created {
    let entered = session.enter(&lock.dir, version, &prefix, &data).await;
    if let Err(Fault::Denied { right: Right::Write, .. } | Fault::Refused(zk::Error::BadVersion)) = &entered {
        session.directories().spare(&lock.dir);
    }
    let Entry { path, czxid, alone } = entered?;
    Ok((Arc::new(CreatedNode::below(&prefix, path, czxid)?), alone))
}

/// Creates a node.
async fn make(session: Arc<Session>, prefix: String, data: Vec<u8>, mode: CreateMode) -> Created {
    let (path, stat) = session.create(&prefix, &data, mode).await?;
    let mut czxid = stat.czxid;
    if stat.is_invalid() {
        // A server before 3.5 does not tell.
        czxid = session.stat(&path).await?.ok_or(Fault::Unknown(zk::Error::NoNode))?.czxid;
    }
    Ok((Arc::new(CreatedNode::below(&prefix, path, czxid)?), false))
}

/// Deletes our node, or the one that has taken its place, however often that takes.
pub(crate) async fn delete_ours(session: &Arc<Session>, lock: &Arc<LockPath>, node: &Arc<CreatedNode>) {
    let (node, mut pause) = (node.latest().await, PAUSE);
    while remove(session, lock, &node, true).await.is_err() {
        pause = (pause * 2).min(LAST_PAUSE);
        tokio::time::sleep(pause).await;
    }
}

/// Deletes a node that nobody else knows of, however often that takes. With `retried`, an earlier deletion of it may have
/// been sent.
async fn delete(session: &Session, lock: &LockPath, node: &CreatedNode, retried: bool) -> Gone {
    let (mut sent, mut pause) = (retried, PAUSE);
    loop {
        match delete_unless_refused(session, lock, node, sent).await {
            Ok(gone) => return gone,
            Err(_) => (sent, pause) = (true, (pause * 2).min(LAST_PAUSE)),
        }
        tokio::time::sleep(pause).await;
    }
}

/// The same, until the server refuses it.
async fn delete_unless_refused(
    session: &Session,
    lock: &LockPath,
    node: &CreatedNode,
    retried: bool,
) -> Result<Gone, Fault> {
    let mut sent = retried;
    loop {
        match delete_once(session, lock, node, sent).await {
            Ok(gone) => return Ok(gone),
            Err(Fault::SessionEnded) => return Ok(Gone::WithSession),
            Err(Fault::Unknown(error)) => {
                tracing::debug!(%error, path = node.path, "a deletion is repeated");
                sent = true;
            }
            // One that was sent before may have been carried out.
            Err(_) if sent && matches!(is_there(session, &node.path, node.czxid).await, Ok(false)) => {
                return Ok(Gone::Now);
            }
            Err(fault) => {
                tracing::warn!(?fault, path = node.path, "our own node cannot be deleted; trying again");
                return Err(fault);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Deletes a node if the server answers. With `retried`, an earlier deletion of it may have been sent.
pub(crate) async fn delete_once(
    session: &Session,
    lock: &LockPath,
    node: &CreatedNode,
    retried: bool,
) -> Result<Gone, Fault> {
    // Where names come again, a late deletion could hit the node of somebody else.
    if retried && !lock.is_unique() && !is_there(session, &node.path, node.czxid).await? {
        return Ok(Gone::Now);
    }
    match session.delete(&node.path).await {
        Ok(()) => Ok(Gone::Now),
        Err(fault) if fault.is_no_node() => Ok(if retried { Gone::Now } else { Gone::Before }),
        Err(fault) => Err(fault),
    }
}

/// Whether a node is there and is the one that this transaction made, as the quorum knows it.
pub(crate) async fn is_there(session: &Session, path: &str, czxid: i64) -> Result<bool, Fault> {
    let (passed, stat) = join(session.pass_quorum(path), session.stat(path)).await;
    Ok(passed.and(stat)?.is_some_and(|stat| stat.czxid == czxid))
}

/// All nodes of this owner, the lowest first, as the quorum knows them.
///
/// Behind a reconnection of the same session, what the quorum commits is behind everything that was sent before it: what
/// arrives later over the old connection is refused, as the session has moved.
async fn find(session: &Session, lock: &LockPath, ours: NodeIdentity) -> Result<Vec<CreatedNode>, Fault> {
    let paths = candidates(session, lock, ours).await?;
    find_among(session, lock, ours, paths).await
}

/// The nodes that may be of this owner by their names.
async fn candidates(session: &Session, lock: &LockPath, ours: NodeIdentity) -> Result<Vec<String>, Fault> {
    match lock.recipe {
        ZkRecipe::Queue => {
            let listed = session.retry_until_definite(|| async {
                let children = session.children(&lock.dir);
                let (passed, children) = join(session.pass_quorum(&lock.dir), children).await;
                passed.and(children)
            });
            let names = match listed.await {
                Err(fault) if fault.is_no_node() => Vec::new(),
                children => children?,
            };
            let prefix = ours.prefix(lock);
            let named_so = names.iter().filter(|name| name.starts_with(&prefix));
            Ok(named_so.map(|name| lock.child(name)).collect())
        }
        ZkRecipe::Ephemeral(_) => {
            session.retry_until_definite(|| session.pass_quorum(&lock.dir)).await?;
            Ok(vec![lock.dir.clone()])
        }
    }
}

async fn find_among(
    session: &Session,
    lock: &LockPath,
    ours: NodeIdentity,
    paths: Vec<String>,
) -> Result<Vec<CreatedNode>, Fault> {
    let before_digits = match lock.recipe {
        ZkRecipe::Queue => lock.child(&ours.prefix(lock)),
        ZkRecipe::Ephemeral(_) => lock.dir.clone(),
    };
    let mut found = Vec::new();
    for path in paths {
        let (data, stat) = match session.retry_until_definite(|| session.data(&path)).await {
            Err(fault) if fault.is_no_node() => continue,
            answer => answer?,
        };
        // Never adopt the node of another session, even one that looks like ours: it is about to go.
        if stat.ephemeral_owner == session.id() && (lock.is_unique() || is_card_of(&data, ours.owner)) {
            found.extend(CreatedNode::at(path, before_digits.len(), stat.czxid));
        }
    }
    found.sort_unstable_by_key(|node| node.sequence);
    Ok(found)
}

pub(crate) fn is_card_of(data: &[u8], owner: OwnerId) -> bool {
    serde_json::from_slice::<NodeData>(data).is_ok_and(|card| card.owner == owner.to_string())
}

/// Deletes our node, or gives the refusal of the server. With `retried`, an earlier deletion of it may have been sent.
async fn remove(
    session: &Arc<Session>,
    lock: &Arc<LockPath>,
    node: &Arc<CreatedNode>,
    retried: bool,
) -> Result<Gone, Fault> {
    if lock.is_unique() {
        return remove_alone(session, lock, node, retried).await;
    }
    let deletion = {
        let mut deletion = node.deletion.0.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = deletion.take_if(|begun| matches!(begun.peek(), Some(Err(_)))).is_some();
        let begin = || {
            let (handle, lock, node) = (SessionHandle::new(session, 0), Arc::clone(lock), Arc::clone(node));
            let removal = async move { remove_alone(&handle, &lock, &node, retried || refused).await };
            // With the runtime goes the session.
            let task = session.runtime().spawn(removal);
            task.map(|ended| ended.unwrap_or(Ok(Gone::WithSession))).boxed().shared()
        };
        deletion.get_or_insert_with(begin).clone()
    };
    deletion.await
}

/// Deletes our node, which nobody else does meanwhile, and its directory with it when the numbers are running out and
/// nobody waits.
///
/// A deletion names a path and a version of the data, and neither tells our node from the next one of its name. So where
/// names come again, it is looked at first.
async fn remove_alone(
    session: &Session,
    lock: &LockPath,
    node: &CreatedNode,
    retried: bool,
) -> Result<Gone, Fault> {
    let delete = |retried| delete_unless_refused(session, lock, node, retried);
    if retried {
        return delete(true).await;
    }
    if !lock.is_unique() {
        match session.retry_until_definite(|| is_there(session, &node.path, node.czxid)).await {
            Ok(true) => {}
            Ok(false) => return Ok(Gone::Before),
            Err(_) => return delete(true).await,
        }
    }
    if node.sequence < lock.rotate_from {
        return delete(false).await;
    }
    match session.rotate(&node.path, &lock.dir).await {
        Ok(()) => Ok(Gone::Now),
        Err(Fault::SessionEnded) => Ok(Gone::WithSession),
        Err(Fault::Unknown(_)) => delete(true).await,
        // Somebody waits, or the node is gone.
        Err(_) => delete(false).await,
    }
}

async fn undo(
    session: SessionHandle,
    lock: Arc<LockPath>,
    ours: NodeIdentity,
    state: State,
    mut certain: bool,
) {
    match state {
        State::Nothing => {}
        State::Creating(creation) => match creation.end().await {
            // The answer may have been on its way for long.
            Ok((node, _)) => drop(delete(&session, &lock, &node, true).await),
            Err(fault) => certain &= !matches!(fault, Fault::Unknown(_)),
        },
        State::There(node) => {
            delete_ours(&session, &lock, &node).await;
        }
        State::Deleting(node, deletion) => {
            if deletion.end().await.is_err() {
                delete_ours(&session, &lock, &node).await;
            }
        }
    }
    if certain {
        return;
    }
    look_for_more(session, &lock, ours).await;
}

/// Deletes what creations have left whose answers were lost, once the servers let us look. The session is not kept open
/// for that for long: its end removes the nodes as well.
async fn look_for_more(session: SessionHandle, lock: &LockPath, ours: NodeIdentity) {
    let patience = Instant::now() + session.timeout();
    let (weak, mut handle) = (Arc::downgrade(&session), Some(session));
    let (mut looks, mut pause) = (0, PAUSE);
    while let Some(session) = weak.upgrade().filter(|session| !session.has_ended()) {
        match find(&session, lock, ours).await {
            Ok(found) => {
                for node in &found {
                    delete(&session, lock, node, false).await;
                }
                looks += 1;
                // A second look, should the first creation have overtaken the first look in some way that we do not
                // know of.
                if looks == 2 {
                    return;
                }
                pause = LAST_PAUSE / 5;
            }
            Err(Fault::SessionEnded) => return,
            Err(fault) => {
                tracing::warn!(
                    ?fault,
                    dir = lock.dir,
                    "cannot look for what a lost request left; trying again"
                );
                handle = handle.filter(|_| Instant::now() < patience);
                pause = (pause * 2).min(LAST_PAUSE);
            }
        }
        drop(session);
        tokio::time::sleep(pause).await;
    }
}

/// Between two attempts, when many have failed.
pub(crate) const LAST_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acquire::{Attempt, attempt};
    use crate::layout::ZkLayout;
    use crate::{BACKEND, ZkConfig};
    use lock_core::{AcquireRequest, Lease, LeasePolicy, LockName, Released, Wait};
    use lock_testkit::ZooKeeper;
    use tokio::runtime::Handle;

    async fn open(server: &ZooKeeper) -> Arc<Session> {
        let config = ZkConfig::new(server.connect_string()).session_timeout(Duration::from_secs(4));
        Session::open(&config, Handle::current()).await.unwrap()
    }

    fn lock_path(layout: ZkLayout) -> Arc<LockPath> {
        Arc::new(LockPath::new("/", &LockName::new("a").unwrap(), layout))
    }

    #[tokio::test]
    async fn nodes_of_lost_creations_are_found_and_only_ours() {
        let server = ZooKeeper::start().await.unwrap();
        let (ours, theirs) = (open(&server).await, open(&server).await);
        ours.create("/a", b"", CreateMode::Container).await.unwrap();
        let (info, deadline) = (OwnerInfo::this_process(), Deadline::of(Wait::Forever));
        for layout in [ZkLayout::Curator, ZkLayout::Plain, ZkLayout::Kazoo] {
            let lock = lock_path(layout);
            let mut node = OwnNode::new(&ours, &lock, Mode::Exclusive, false, &Background::default());
            assert_eq!(node.settle(&deadline).await.unwrap(), None);
            // The node of another session that looks like ours in all else, and is first.
            let mut foreign = OwnNode::new(&theirs, &lock, Mode::Exclusive, false, &Background::default());
            foreign.ours = node.ours;
            foreign.create(&info, &deadline).await.unwrap();
            assert_eq!(node.settle(&deadline).await.unwrap(), None, "{layout:?}");
            let first = node.create(&info, &deadline).await.unwrap().0;
            let second = node.create(&info, &deadline).await.unwrap().0;
            node.certain = false;
            assert_eq!(node.settle(&deadline).await.unwrap(), Some(Arc::clone(&first)), "{layout:?}");
            assert!(node.is_certain());
            assert_eq!(ours.stat(&second.path).await.unwrap(), None);
            assert_eq!(ours.stat(&first.path).await.unwrap().unwrap().czxid, first.czxid);
            assert_eq!(node.delete().await.unwrap(), Gone::Now);
            assert_eq!(node.delete().await.unwrap(), Gone::Before);
            assert_eq!(foreign.delete().await.unwrap(), Gone::Now);
            assert!(ours.children("/a").await.unwrap().is_empty());
        }
    }

    #[tokio::test]
    async fn a_late_deletion_does_not_hit_the_next_node_of_the_same_name() {
        let server = ZooKeeper::start().await.unwrap();
        let session = open(&server).await;
        let (lock, deadline) = (lock_path(ZkLayout::Plain), Deadline::of(Wait::Forever));
        let mut paths = Vec::new();
        for _ in 0..2 {
            session.create("/a", b"", CreateMode::Persistent).await.unwrap();
            let mut node = OwnNode::new(&session, &lock, Mode::Exclusive, false, &Background::default());
            paths.push(node.create(&OwnerInfo::this_process(), &deadline).await.unwrap().0);
            node.forget();
            if paths.len() == 1 {
                session.delete(&paths[0].path).await.unwrap();
                session.delete("/a").await.unwrap();
            }
        }
        assert_eq!(paths[0].path, paths[1].path);
        delete(&session, &lock, &paths[0], true).await;
        assert!(session.stat(&paths[1].path).await.unwrap().is_some());
        assert_eq!(delete(&session, &lock, &paths[1], true).await, Gone::Now);
    }

    /// Takes the lock where the directory starts afresh from the number 2 on, and gives it back; tells its number.
    async fn number_of_next(session: &Arc<Session>) -> i64 {
        let name = LockName::new("a").unwrap();
        let lock = Arc::new(LockPath { rotate_from: 2, ..LockPath::new("/", &name, ZkLayout::Curator) });
        let owner = Arc::new(OwnerInfo::this_process());
        let request = AcquireRequest::exclusive(name, Wait::Forever, LeasePolicy::default(), owner);
        let deadline = Deadline::of(Wait::Forever);
        let attempted =
            attempt(session, &session.base("/a"), &lock, "/", &request, &deadline, &Background::default())
                .await
                .unwrap();
        let Attempt::Held(mut lease) = attempted else { panic!("{BACKEND}: not held") };
        let number = lease.node().await.sequence;
        assert_eq!(lease.release().await.unwrap(), Released::Released);
        number
    }

    #[tokio::test]
    async fn a_directory_in_which_somebody_keeps_data_is_not_replaced() {
        let server = ZooKeeper::start().await.unwrap();
        let session = open(&server).await;
        session.create("/a", b"theirs", CreateMode::Container).await.unwrap();
        let before = session.stat("/a").await.unwrap().unwrap();
        for number in 0..5 {
            assert_eq!(number_of_next(&session).await, number);
        }
        let (data, stat) = session.data("/a").await.unwrap();
        assert_eq!((&data[..], stat.czxid), (&b"theirs"[..], before.czxid));
    }

    #[tokio::test]
    async fn a_directory_whose_numbers_run_out_is_replaced() {
        let server = ZooKeeper::start().await.unwrap();
        let session = open(&server).await;
        let name = LockName::new("a").unwrap();
        let lock = Arc::new(LockPath { rotate_from: 2, ..LockPath::new("/", &name, ZkLayout::Curator) });
        let request = |wait| {
            let owner = Arc::new(OwnerInfo::this_process());
            AcquireRequest::exclusive(name.clone(), wait, LeasePolicy::default(), owner)
        };
        let held = async |wait| match attempt(
            &session,
            &session.base("/a"),
            &lock,
            "/",
            &request(wait),
            &Deadline::of(wait),
            &Background::default(),
        )
        .await
        .unwrap()
        {
            Attempt::Held(lease) => lease,
            _ => panic!("{BACKEND}: not held"),
        };
        let numbers = async || {
            let mut children = session.children("/a").await.unwrap();
            children.sort_unstable_by_key(|child| child[child.len() - 10..].to_owned());
            children.iter().map(|child| child[child.len() - 10..].parse().unwrap()).collect::<Vec<i64>>()
        };
        let mut last = None;
        for number in [0, 1, 2, 0, 1] {
            let mut lease = held(Wait::Forever).await;
            assert_eq!(numbers().await, [number]);
            assert!(Some(lease.token()) > last, "tokens go on although the numbers do not");
            last = Some(lease.token());
            assert_eq!(lease.release().await.unwrap(), Released::Released);
        }
        // Not while somebody waits.
        let mut lease = held(Wait::Forever).await;
        let waiter = {
            let (session, lock, request) = (Arc::clone(&session), Arc::clone(&lock), request(Wait::Forever));
            tokio::spawn(async move {
                let (base, deadline) = (session.base("/a"), Deadline::of(request.wait));
                attempt(&session, &base, &lock, "/", &request, &deadline, &Background::default()).await
            })
        };
        while numbers().await != [2, 3] {
            tokio::time::sleep(PAUSE).await;
        }
        assert_eq!(lease.release().await.unwrap(), Released::Released);
        let Attempt::Held(mut lease) = waiter.await.unwrap().unwrap() else { panic!("not held") };
        assert_eq!(numbers().await, [3]);
        assert_eq!(lease.release().await.unwrap(), Released::Released);
        assert_eq!(numbers().await, [0; 0]);
        let mut lease = held(Wait::Forever).await;
        assert_eq!(numbers().await, [0]);
        assert_eq!(lease.release().await.unwrap(), Released::Released);
    }
}
