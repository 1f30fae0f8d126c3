//! Deletes nodes of locks: for a release, a roll-back, the end of a fixed ttl, and `break_lock`.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Fault;
use crate::nodes::lock_path::LockPath;
use crate::nodes::node::{CreatedNode, Deletion};
use crate::sessions::session::{PAUSE, Session, SessionHandle};

/// Deletes a held node, or the reader's node that replaced it. Repeats that until it succeeds.
pub(crate) async fn delete_latest(
    session: &Arc<Session>,
    lock: &Arc<LockPath>,
    node: &Arc<CreatedNode>,
) -> Deletion {
    let (node, mut pause) = (node.latest().await, PAUSE);
    loop {
        if let Ok(deletion) = release(session, lock, &node).await {
            return deletion;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        tokio::time::sleep(pause).await;
    }
}

/// Deletes a node that no other task knows of. Repeats that until it succeeds. With `retried`, an earlier deletion may
/// have been sent.
pub(crate) async fn delete(
    session: &Session,
    lock: &LockPath,
    node: &CreatedNode,
    retried: bool,
) -> Deletion {
    let (mut sent, mut pause) = (retried, PAUSE);
    loop {
        match delete_until_refused(session, lock, node, sent).await {
            Ok(deletion) => return deletion,
            Err(_) => (sent, pause) = (true, (pause * 2).min(LONGEST_PAUSE)),
        }
        tokio::time::sleep(pause).await;
    }
}

/// Deletes a held node; fails only if the server refuses. What was begun goes on, on the runtime of the session, whatever becomes of
/// the caller and of its runtime.
pub(crate) async fn release(
    session: &Arc<Session>,
    lock: &Arc<LockPath>,
    node: &Arc<CreatedNode>,
) -> Result<Deletion, Fault> {
    let start = |refused| {
        let (handle, lock, node) = (SessionHandle::new(session, 0), Arc::clone(lock), Arc::clone(node));
        async move { release_alone(&handle, &lock, &node, refused).await }
    };
    let shut_down = Ok(Deletion::WithSession);
    node.deletion.run(&session.runtime, Result::is_err, shut_down, start).await
}

/// Deletes a held node while no other task does. Where names are reused, it looks at the node first: a deletion names a
/// path and a version of the data, and neither tells the node from the next one of its name. If the sequence numbers run
/// high and nobody waits, it replaces the directory too.
async fn release_alone(
    session: &Session,
    lock: &LockPath,
    node: &CreatedNode,
    retried: bool,
) -> Result<Deletion, Fault> {
    let delete = |retried| delete_until_refused(session, lock, node, retried);
    if retried {
        return delete(true).await;
    }
    if !lock.has_unique_names() {
        match session.retry_until_definite(|| session.has_node(node)).await {
            Ok(true) => {}
            Ok(false) => return Ok(Deletion::Earlier),
            Err(_) => return delete(true).await,
        }
    }
    if node.sequence < lock.rotate_from {
        return delete(false).await;
    }
    match session.rotate(&node.path, &lock.dir).await {
        Ok(()) => Ok(Deletion::Done),
        Err(Fault::SessionEnded) => Ok(Deletion::WithSession),
        Err(Fault::Unknown(_)) => delete(true).await,
        // There are waiters, or the node is deleted.
        Err(_) => delete(false).await,
    }
}

/// Deletes a node, and repeats that while answers are lost; fails if the server refuses.
async fn delete_until_refused(
    session: &Session,
    lock: &LockPath,
    node: &CreatedNode,
    retried: bool,
) -> Result<Deletion, Fault> {
    let mut sent = retried;
    loop {
        match delete_once(session, lock, node, sent).await {
            Ok(deletion) => return Ok(deletion),
            Err(Fault::SessionEnded) => return Ok(Deletion::WithSession),
            Err(Fault::Unknown(error)) => {
                tracing::debug!(%error, path = node.path, "no answer to the deletion of a node; repeating it");
                sent = true;
            }
            Err(fault) => {
                // The earlier deletion may have been applied.
                let exists = if sent { session.has_node(node).await } else { Ok(true) };
                if let Ok(false) = exists {
                    return Ok(Deletion::Done);
                }
                tracing::warn!(?fault, path = node.path, "ZooKeeper refused to delete the node of a lock");
                return Err(fault.doubted_if(exists.is_err()));
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Sends one deletion. With `retried`, an earlier one may have been sent.
pub(crate) async fn delete_once(
    session: &Session,
    lock: &LockPath,
    node: &CreatedNode,
    retried: bool,
) -> Result<Deletion, Fault> {
    // Where names are reused, a late deletion could delete somebody else's node.
    if retried && !lock.has_unique_names() && !session.has_node(node).await? {
        return Ok(Deletion::Done);
    }
    match session.delete(&node.path).await {
        Ok(()) => Ok(Deletion::Done),
        Err(fault) if fault.is_no_node() => Ok(if retried { Deletion::Done } else { Deletion::Earlier }),
        Err(fault) => Err(fault),
    }
}

/// The pause between two attempts, when many have failed.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ZkConfig;
    use crate::nodes::node_name::ZkLayout;
    use crate::nodes::own_node::OwnNode;
    use crate::recipes::acquire::{Progress, attempt};
    use crate::recipes::lease::ZkLease;
    use crate::sessions::session_open;
    use lock_core::background::Background;
    use lock_core::{AcquireRequest, Lease, LeasePolicy, LockName, Mode, OwnerInfo, Released, Wait};
    use lock_testkit::ZooKeeper;
    use tokio::runtime::Handle;
    use zookeeper_client::CreateMode;

    pub(crate) async fn open(server: &ZooKeeper) -> Arc<Session> {
        let config = ZkConfig::new(server.connect_string()).session_timeout(Duration::from_secs(4));
        session_open::open(&config, Handle::current()).await.unwrap()
    }

    /// Acquires a lock whose directory is replaced from the number 2 on.
    async fn acquire(session: &Arc<Session>) -> Box<ZkLease> {
        let name = LockName::new("a").unwrap();
        let lock = Arc::new(LockPath { rotate_from: 2, ..LockPath::new("/", &name, ZkLayout::Curator) });
        let owner = Arc::new(OwnerInfo::this_process());
        let request = AcquireRequest::exclusive(name, Wait::Forever, LeasePolicy::default(), owner);
        let (base, handle) = (session.base("/a"), SessionHandle::new(session, 0));
        let acquired =
            attempt(handle, &base, &lock, &request, &Progress::default(), &Background::default()).await;
        acquired.ok().flatten().expect("the lock is acquired")
    }

    #[tokio::test]
    async fn a_late_deletion_spares_the_next_node_of_the_same_name() {
        let server = ZooKeeper::start().await.unwrap();
        let session = open(&server).await;
        let lock = Arc::new(LockPath::new("/", &LockName::new("a").unwrap(), ZkLayout::Plain));
        let mut paths = Vec::new();
        for _ in 0..2 {
            session.create("/a", b"", CreateMode::Persistent).await.unwrap();
            let handle = SessionHandle::new(&session, 0);
            let own = OwnNode::new(handle, &lock, Mode::Exclusive, false, &Background::default());
            paths.push(own.create(&OwnerInfo::this_process()).await.unwrap().0);
            own.forget();
            if paths.len() == 1 {
                session.delete(&paths[0].path).await.unwrap();
                session.delete("/a").await.unwrap();
            }
        }
        assert_eq!(paths[0].path, paths[1].path);
        delete(&session, &lock, &paths[0], true).await;
        assert!(session.stat(&paths[1].path).await.unwrap().is_some());
        assert_eq!(delete(&session, &lock, &paths[1], true).await, Deletion::Done);
    }

    #[tokio::test]
    async fn a_directory_with_data_is_not_replaced() {
        let server = ZooKeeper::start().await.unwrap();
        let session = open(&server).await;
        session.create("/a", b"theirs", CreateMode::Container).await.unwrap();
        let before = session.stat("/a").await.unwrap().unwrap();
        for number in 0..5 {
            let mut lease = acquire(&session).await;
            assert_eq!(lease.latest_node().await.sequence, number);
            assert_eq!(lease.release().await.unwrap(), Released::Released);
        }
        let (data, stat) = session.data("/a").await.unwrap();
        assert_eq!((&data[..], stat.czxid), (&b"theirs"[..], before.czxid));
    }

    #[tokio::test]
    async fn a_directory_whose_numbers_run_out_is_replaced() {
        let server = ZooKeeper::start().await.unwrap();
        let session = open(&server).await;
        let numbers = async || {
            let mut children = session.children("/a").await.unwrap();
            children.sort_unstable_by_key(|child| child[child.len() - 10..].to_owned());
            children.iter().map(|child| child[child.len() - 10..].parse().unwrap()).collect::<Vec<i64>>()
        };
        let mut last = None;
        for number in [0, 1, 2, 0, 1] {
            let mut lease = acquire(&session).await;
            assert_eq!(numbers().await, [number]);
            assert!(Some(lease.token()) > last, "tokens grow although the numbers start again");
            last = Some(lease.token());
            assert_eq!(lease.release().await.unwrap(), Released::Released);
        }
        // Not while there are waiters.
        let mut lease = acquire(&session).await;
        let waiter = tokio::spawn({
            let session = Arc::clone(&session);
            async move { acquire(&session).await }
        });
        while numbers().await != [2, 3] {
            tokio::time::sleep(PAUSE).await;
        }
        assert_eq!(lease.release().await.unwrap(), Released::Released);
        let mut lease = waiter.await.unwrap();
        assert_eq!(numbers().await, [3]);
        assert_eq!(lease.release().await.unwrap(), Released::Released);
        assert_eq!(numbers().await, [0; 0]);
        let mut lease = acquire(&session).await;
        assert_eq!(numbers().await, [0]);
        assert_eq!(lease.release().await.unwrap(), Released::Released);
    }
}
