//! The node of one acquisition, and the requests that create and delete it.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::future::join;
use lock_core::background::Background;
use lock_core::{Mode, OwnerId, OwnerInfo};
use zookeeper_client::{self as zk, CreateMode};

use crate::error::{Fault, Right};
use crate::nodes::lock_path::LockPath;
use crate::nodes::node::{CreatedNode, Deletion, Downgraded, NodeIdentity};
use crate::recipes::created::{Creation, Rollback, State};
use crate::recipes::downgrade::downgrade;
use crate::recipes::lost_answer::find;
use crate::recipes::release::{delete, release};
use crate::sessions::session::{Session, SessionHandle};
use crate::wire::requests::Entry;

/// The node of one acquisition, or the attempt to create it. Dropping it [rolls back](crate::recipes::rollback) in the background.
///
/// A request that was sent takes effect even if its future is dropped, and one without an answer may have. So the
/// requests that change something live in the [`Rollback`], and not in the future of the caller.
pub(crate) struct OwnNode {
    pub(crate) session: SessionHandle,
    pub(crate) lock: Arc<LockPath>,
    pub(crate) identity: NodeIdentity,
    pub(crate) rollback: Arc<Rollback>,
}

impl OwnNode {
    /// An acquisition that has no node yet, in the session of this handle.
    pub(crate) fn new(
        session: SessionHandle,
        lock: &Arc<LockPath>,
        mode: Mode,
        writes: bool,
        cleanup: &Background,
    ) -> Self {
        let lock = Arc::clone(lock);
        let identity = NodeIdentity { owner: OwnerId::random(), mode, writes };
        let rollback = Rollback::new(&session.claim, &lock, identity, cleanup);
        Self { session, lock, identity, rollback }
    }

    /// Creates the node, and returns the names in its directory too if an answer has them.
    pub(crate) async fn create(
        &self,
        info: &OwnerInfo,
    ) -> Result<(Arc<CreatedNode>, Option<Vec<String>>), Fault> {
        let (session, lock) = (Arc::clone(&self.session), Arc::clone(&self.lock));
        let (prefix, data) = (lock.child(&self.identity.prefix(&lock)), self.identity.data(info));
        let owner = self.identity.owner;
        // A write that waits for a connection could overwrite data of a directory that was empty before.
        let empty = session.empty_directories.version(&lock.dir).filter(|_| session.is_connected());
        if let Some(version) = empty {
            let (session, lock) = (Arc::clone(&session), Arc::clone(&lock));
            let (prefix, data) = (prefix.clone(), data.clone());
            self.begin(async move {
                let created = session.create_and_count(&lock.dir, version, &prefix, &data).await;
                if created.as_ref().is_err_and(must_not_write) {
                    session.empty_directories.spare(&lock.dir);
                }
                let Entry { path, czxid, alone } = created?;
                let node =
                    CreatedNode::below(&prefix, path, czxid)?.owned_by(owner, &session.owners, &lock)?;
                Ok((Arc::new(node), alone))
            });
            match self.created().await {
                Err(fault) if must_not_write(&fault) => {}
                created => {
                    let (node, alone) = created?;
                    let names = alone.then(|| vec![node.name().to_owned()]);
                    return Ok((node, names));
                }
            }
        }
        self.begin(self.plain_creation(prefix, data, CreateMode::EphemeralSequential));
        let (created, children) = join(self.created(), session.children(&lock.dir)).await;
        created.map(|(node, _)| (node, children.ok()))
    }

    /// Creates the node at the path of the lock itself.
    pub(crate) async fn create_fixed(&self, info: &OwnerInfo) -> Result<Arc<CreatedNode>, Fault> {
        let (path, data) = (self.lock.dir.clone(), self.identity.data(info));
        self.begin(self.plain_creation(path, data, CreateMode::Ephemeral));
        self.created().await.map(|(node, _)| node)
    }

    fn plain_creation(
        &self,
        prefix: String,
        data: Vec<u8>,
        mode: CreateMode,
    ) -> impl Future<Output = Creation> + Send + use<> {
        let (session, lock, owner) = (Arc::clone(&self.session), Arc::clone(&self.lock), self.identity.owner);
        async move {
            let node =
                create(&session, &prefix, &data, mode).await?.owned_by(owner, &session.owners, &lock)?;
            Ok((Arc::new(node), false))
        }
    }

    fn begin(&self, creation: impl Future<Output = Creation> + Send + 'static) {
        self.rollback.created().state = State::Creating(creation.boxed());
    }

    /// Waits for the answer, and records it in the same poll, so that it is not lost if this future is dropped.
    async fn created(&self) -> Creation {
        poll_fn(|context| {
            let mut created = self.rollback.created();
            let State::Creating(creation) = &mut created.state else {
                return Poll::Ready(Err(Fault::SessionEnded));
            };
            let answer = std::task::ready!(creation.poll_unpin(context));
            created.state = match &answer {
                Ok((node, _)) => State::Exists(Arc::clone(node)),
                Err(_) => State::Nothing,
            };
            created.certain &= !answer.as_ref().is_err_and(Fault::is_in_doubt);
            Poll::Ready(answer)
        })
        .await
    }

    /// Finds the nodes of creations that got no answer: keeps the lowest one, and deletes the others.
    pub(crate) async fn recover(&self) -> Result<Option<Arc<CreatedNode>>, Fault> {
        let mut found = find(&self.session, &self.lock, self.identity).await?;
        if found.is_empty() {
            self.forget();
            return Ok(None);
        }
        let kept = Arc::new(found.remove(0));
        self.rollback.created().state = State::Exists(Arc::clone(&kept));
        for extra in &found {
            delete(&self.session, &self.lock, extra, false).await;
        }
        self.rollback.created().certain = true;
        Ok(Some(kept))
    }

    /// Whether there is certainly no second node, from a creation that got no answer.
    pub(crate) fn is_certain(&self) -> bool {
        self.rollback.created().certain
    }

    /// Records that the node is known to be deleted.
    pub(crate) fn forget(&self) {
        self.rollback.created().state = State::Nothing;
    }

    /// Replaces the writer's node by a reader's, however often that takes.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: the downgrade goes on, and the next call returns its outcome.
    pub(crate) async fn downgrade(&self) -> Downgraded {
        let Some(node) = self.rollback.created().node() else { return Downgraded::Deleted };
        downgrade(&node, &self.session, &self.lock, self.identity.owner).await
    }

    /// Deletes the node, however often answers are lost; fails if the server refuses, and can be called again then.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: the deletion goes on, and the next call returns its outcome.
    pub(crate) async fn delete(&self) -> Result<Deletion, Fault> {
        let Some(node) = self.rollback.created().node() else { return Ok(Deletion::Earlier) };
        let deleted = release(&self.session, &self.lock, &node.latest().await).await;
        if deleted.is_ok() {
            self.forget();
        }
        deleted
    }
}

impl Drop for OwnNode {
    fn drop(&mut self) {
        drop(self.rollback.begin(&self.session));
    }
}

impl fmt::Debug for OwnNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnNode")
            .field("identity", &self.identity)
            .field("created", &*self.rollback.created())
            .finish_non_exhaustive()
    }
}

/// Whether a directory was not empty any more, or its ACL forbids writing it.
const fn must_not_write(fault: &Fault) -> bool {
    matches!(fault, Fault::Denied { right: Right::Write, .. } | Fault::Refused(zk::Error::BadVersion))
}

async fn create(
    session: &Session,
    prefix: &str,
    data: &[u8],
    mode: CreateMode,
) -> Result<CreatedNode, Fault> {
    let (path, stat) = session.create(prefix, data, mode).await?;
    let mut czxid = stat.czxid;
    if stat.is_invalid() {
        // Servers before 3.5 do not send it.
        czxid = session.stat(&path).await?.ok_or(Fault::Unknown(zk::Error::NoNode))?.czxid;
    }
    CreatedNode::below(prefix, path, czxid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::node_name::ZkLayout;
    use crate::recipes::release::tests::open;
    use lock_core::LockName;
    use lock_testkit::ZooKeeper;

    #[tokio::test]
    async fn only_the_nodes_of_this_acquisition_are_recovered() {
        let server = ZooKeeper::start().await.unwrap();
        let (ours, theirs) = (open(&server).await, open(&server).await);
        ours.create("/a", b"", CreateMode::Container).await.unwrap();
        let info = OwnerInfo::this_process();
        let handle = |session| SessionHandle::new(session, 0);
        for layout in [ZkLayout::Curator, ZkLayout::Plain, ZkLayout::Kazoo] {
            let lock = Arc::new(LockPath::new("/", &LockName::new("a").unwrap(), layout));
            let own = OwnNode::new(handle(&ours), &lock, Mode::Exclusive, false, &Background::default());
            assert_eq!(own.recover().await.unwrap(), None);
            // The first node is of another session, and equal in all else.
            let mut other =
                OwnNode::new(handle(&theirs), &lock, Mode::Exclusive, false, &Background::default());
            other.identity = own.identity;
            other.create(&info).await.unwrap();
            assert_eq!(own.recover().await.unwrap(), None, "{layout:?}");
            let first = own.create(&info).await.unwrap().0;
            let second = own.create(&info).await.unwrap().0;
            own.rollback.created().certain = false;
            assert_eq!(own.recover().await.unwrap(), Some(Arc::clone(&first)), "{layout:?}");
            assert!(own.is_certain());
            assert_eq!(ours.stat(&second.path).await.unwrap(), None);
            assert_eq!(ours.stat(&first.path).await.unwrap().unwrap().czxid, first.czxid);
            assert_eq!(own.delete().await.unwrap(), Deletion::Done);
            assert_eq!(own.delete().await.unwrap(), Deletion::Earlier);
            assert_eq!(other.delete().await.unwrap(), Deletion::Done);
            assert!(ours.children("/a").await.unwrap().is_empty());
        }
    }
}
