//! The requests of a session, and what their answers say about it.
//!
//! A request is sent when its future is first polled, in this order, and takes effect even if the future is dropped then.
//! Requests wait while there is no connection, until the session ends; one whose future is dropped meanwhile is not sent, but for
//! a watch: a background task then waits in the caller's place, as it may have been sent. All of them
//! [belong to the session](crate::sessions::owned_requests), and end with it.

use std::future::pending;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join};
use lock_core::{GuardState, LossReason};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use zookeeper_client::{self as zk, Acl, CreateMode, MultiWriteError, MultiWriteResult, Stat};

use crate::error::{Fault, Right, Stop, no_chroot};
use crate::nodes::node::CreatedNode;
use crate::nodes::watches::{Event, Room, Subject, Watch};
use crate::sessions::ensemble::{Change, SessionClient, Watching};
use crate::sessions::owned_change::OwnedChange;
use crate::sessions::owned_requests::OwnedRequest;
use crate::sessions::proof::{is_committed, pass_quorum};
use crate::sessions::session::{PAUSE, Session, parent};

pub(crate) struct Entry {
    pub(crate) path: String,
    /// The id of the transaction.
    pub(crate) czxid: i64,
    /// Whether the directory had no other node then.
    pub(crate) alone: bool,
}

impl Session {
    /// Creates a node, and returns its path and stat.
    pub(crate) async fn create(
        &self,
        path: &str,
        data: &[u8],
        mode: CreateMode,
    ) -> Result<(String, Stat), Fault> {
        self.fits(&[Change::Create { path, data, mode, acl: self.acl.acls() }])?;
        let (own_path, data, acl) = (path.to_owned(), data.to_owned(), self.acl.clone());
        let created =
            self.write(|client| async move { client.create(&own_path, &data, mode, acl.acls()).await });
        created.await.map_err(|fault| fault.needing(Right::Create, parent(path)))
    }

    /// Creates an ephemeral sequential node in a directory, and reports whether it is alone there.
    ///
    /// Of all writes, only that of a node's data is answered with the number of its children. So the same transaction writes
    /// the directory. A listing after the creation mostly takes another round trip, even if both are sent together: the
    /// driver leaves TCP_NODELAY off, so the second request leaves when the first is answered.
    ///
    /// Nobody's data is overwritten: the directory must still have the version at which it was seen to be empty.
    pub(crate) async fn create_and_count(
        &self,
        dir: &str,
        version: i32,
        path: &str,
        data: &[u8],
    ) -> Result<Entry, Fault> {
        let (mode, acl) = (CreateMode::EphemeralSequential, self.acl.acls());
        let empty = Change::Set { path: dir, data: &[], version: Some(version) };
        let answer = self.multi(&[Change::Create { path, data, mode, acl }, empty]).await;
        let mut results = answer.map_err(|(at, fault)| match at {
            Some(1) => fault.needing(Right::Write, dir),
            _ => fault.needing(Right::Create, dir),
        })?;
        match (results.pop(), results.pop()) {
            // Servers before 3.7.2 do not send the stat of the node, but both changes have one transaction id.
            (Some(MultiWriteResult::SetData { stat }), Some(MultiWriteResult::Create { path, .. })) => {
                self.empty_directories.note(dir, &stat);
                Ok(Entry { path, czxid: stat.mzxid, alone: stat.num_children == 1 })
            }
            _ => Err(Fault::Unknown(zk::Error::UnexpectedError(format!(
                "no answer to the creation of {path}"
            )))),
        }
    }

    /// Creates a directory in this mode, and missing nodes above it as persistent ones. Returns without an error if an
    /// answer is lost; the caller notices if the directory does not exist. The directory of a lock is a container, which
    /// the server removes once it has been empty for a while.
    pub(crate) async fn make_directories(&self, dir: &str, mut mode: CreateMode) -> Result<(), Stop> {
        let mut missing = vec![dir];
        while let Some(&path) = missing.last() {
            let mode_here = if path == dir { mode } else { CreateMode::Persistent };
            match self.create(path, &[], mode_here).await {
                Ok(_) | Err(Fault::Refused(zk::Error::NodeExists)) => {
                    missing.pop();
                }
                Err(fault) if fault.is_no_node() => match path.rfind('/') {
                    Some(at) if at > 0 && missing.len() <= dir.len() => missing.push(&path[..at]),
                    _ => return Err(Stop::Failed(no_chroot(&self.chroot))),
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

    pub(crate) async fn delete(&self, path: &str) -> Result<(), Fault> {
        let _turn = self.turn_to_delete().await;
        let own_path = path.to_owned();
        let deleted = self.write(|client| async move { client.delete(&own_path, None).await }).await;
        deleted.map_err(|fault| fault.needing(Right::Delete, parent(path)))
    }

    /// Deletes this node, and replaces its directory by a new one, whose sequence numbers start at zero. Fails with
    /// `NotEmpty`, and changes nothing, if the directory has other nodes or data.
    pub(crate) async fn rotate(&self, path: &str, dir: &str) -> Result<(), Fault> {
        let stat = self.retry_until_definite(|| self.stat(dir)).await?;
        let stat = stat.ok_or(Fault::Refused(zk::Error::NoNode))?;
        if stat.data_length > 0 {
            return Err(Fault::Refused(zk::Error::NotEmpty));
        }
        let replace = async |mode| {
            let changes = [
                Change::Delete { path, version: None },
                Change::Delete { path: dir, version: Some(stat.version) },
                Change::Create { path: dir, data: &[], mode, acl: self.acl.acls() },
            ];
            self.multi(&changes).await.map(drop).map_err(|(_, fault)| fault)
        };
        match replace(CreateMode::Container).await {
            Err(Fault::Refused(zk::Error::Unimplemented | zk::Error::MarshallingError)) => {
                replace(CreateMode::Persistent).await
            }
            replaced => replaced,
        }
    }

    /// Applies all changes or none; a fault comes with the index of the change that it concerns, if it concerns one.
    pub(crate) async fn multi(
        &self,
        changes: &[Change<'_>],
    ) -> Result<Vec<MultiWriteResult>, (Option<usize>, Fault)> {
        self.fits(changes).map_err(|fault| (None, fault))?;
        let changes: Vec<_> = changes.iter().map(OwnedChange::of).collect();
        let failed = Arc::<OnceLock<usize>>::default();
        let at = Arc::clone(&failed);
        let answer = self.write(|client| async move {
            let changes: Vec<_> = changes.iter().map(OwnedChange::borrow).collect();
            client.multi(&changes).await.map_err(|error| {
                if let MultiWriteError::OperationFailed { index, .. } = &error {
                    at.get_or_init(|| *index);
                }
                zk::Error::from(error)
            })
        });
        answer.await.map_err(|fault| (failed.get().copied(), fault))
    }

    /// Has the quorum commit a transaction that changes nothing. Later reads see everything that was committed before it,
    /// and its answer proves that the session was alive. The node need neither exist nor be readable.
    pub(crate) async fn pass_quorum(&self, path: &str) -> Result<(), Fault> {
        let path = path.to_owned();
        self.write(|client| async move { pass_quorum(&*client, &path).await }).await
    }

    /// Waits until the session is certainly valid, about this path.
    pub(crate) async fn ensure_valid(&self, path: &str) -> Result<(), Fault> {
        loop {
            match self.validity.state() {
                GuardState::Valid => return Ok(()),
                GuardState::Lost(_) => return Err(Fault::SessionEnded),
                _ => self.retry_until_definite(|| self.pass_quorum(path)).await?,
            }
        }
    }

    pub(crate) async fn children(&self, dir: &str) -> Result<Vec<String>, Fault> {
        let path = dir.to_owned();
        let listed = self.read(|client| async move { client.children(&path).await }).await;
        let (names, stat) = listed.map_err(|fault| fault.needing(Right::Read, dir))?;
        self.empty_directories.note(dir, &stat);
        Ok(names)
    }

    pub(crate) async fn acl(&self, path: &str) -> Result<Vec<Acl>, Fault> {
        let path = path.to_owned();
        self.read(|client| async move { client.acl(&path).await }).await
    }

    pub(crate) async fn stat(&self, path: &str) -> Result<Option<Stat>, Fault> {
        let path = path.to_owned();
        self.read(|client| async move { client.stat(&path).await }).await
    }

    /// Whether a node exists, also one that may not be read.
    pub(crate) async fn exists(&self, path: &str) -> Result<bool, Fault> {
        match self.stat(path).await {
            Err(fault) if fault.forbids_reading() => Ok(true),
            stat => Ok(stat?.is_some()),
        }
    }

    /// Whether the node exists, and is this one and no later one of its name, as the quorum knows it.
    pub(crate) async fn has_node(&self, node: &CreatedNode) -> Result<bool, Fault> {
        let (passed, stat) = join(self.pass_quorum(&node.path), self.stat(&node.path)).await;
        Ok(passed.and(stat)?.is_some_and(|stat| stat.czxid == node.czxid))
    }

    pub(crate) async fn data(&self, path: &str) -> Result<(Vec<u8>, Stat), Fault> {
        let own_path = path.to_owned();
        let read = self.read(|client| async move { client.data(&own_path).await }).await;
        read.map_err(|fault| fault.needing(Right::Read, path))
    }

    /// Replaces the data of a node, if it has this version.
    pub(crate) async fn set_data(
        &self,
        path: &str,
        data: &[u8],
        version: Option<i32>,
    ) -> Result<Stat, Fault> {
        self.fits(&[Change::Set { path, data, version }])?;
        let (own_path, data) = (path.to_owned(), data.to_owned());
        let written =
            self.write(|client| async move { client.set_data(&own_path, &data, version).await }).await;
        written.map_err(|fault| fault.needing(Right::Write, path))
    }

    /// Watches a node that exists, and returns its data and stat; `NoNode` leaves no watch behind.
    ///
    /// Without room for a watch the node is only read. An [`Event::Changed`] after a while then makes the caller look again.
    pub(crate) async fn watch(
        &self,
        path: &str,
        room: Option<Arc<Room>>,
    ) -> Result<(Watch, Vec<u8>, Stat), Fault> {
        match room {
            Some(room) => self.watch_in(room, path).await,
            None => {
                let (data, stat) = self.data(path).await?;
                Ok((self.look_again(), data, stat))
            }
        }
    }

    /// Watches a node that exists, as [`watch`](Self::watch) does, but also one that may not be read. The stat is `None` if the
    /// server [hides](Fault::forbids_reading) it; then the caller looks again after a while.
    pub(crate) async fn watch_existing(
        &self,
        path: &str,
        room: Option<Arc<Room>>,
    ) -> Result<(Watch, Option<Stat>), Fault> {
        match self.watch(path, room.clone()).await {
            Err(fault) if fault.forbids_reading() => {}
            watched => return watched.map(|(watch, _, stat)| (watch, Some(stat))),
        }
        let watched = match room {
            Some(room) => self.watch_absence_in(room, path).await,
            None => self.stat(path).await.map(|stat| (stat, self.look_again())),
        };
        match watched {
            Ok((None, _)) => Err(Fault::Refused(zk::Error::NoNode)),
            Ok((stat, watch)) => Ok((watch, stat)),
            Err(fault) if fault.forbids_reading() => Ok((self.look_again(), None)),
            Err(fault) => Err(fault),
        }
    }

    /// In the place of a watch: fires after a while.
    fn look_again(&self) -> Watch {
        let interval = self.poll_interval();
        async move {
            sleep(interval).await;
            Event::Changed
        }
        .boxed()
    }

    /// Watches a node that exists in this room, and returns its data and stat.
    pub(crate) async fn watch_in(
        &self,
        room: Arc<Room>,
        path: &str,
    ) -> Result<(Watch, Vec<u8>, Stat), Fault> {
        debug_assert!(room.is_for(Subject::Node));
        let (own_path, this) = (path.to_owned(), Weak::clone(&self.this));
        let watched = self.read_outliving(|client| async move {
            let watched = client.watch_data(&own_path).await;
            watched.map(|(data, stat, watching)| (data, stat, in_room(watching, room, this)))
        });
        let (data, stat, watch) = watched.await.map_err(|fault| fault.needing(Right::Read, path))?;
        Ok((watch, data, stat))
    }

    /// Watches a node in this room, and returns its stat if it exists.
    pub(crate) async fn watch_absence_in(
        &self,
        room: Arc<Room>,
        path: &str,
    ) -> Result<(Option<Stat>, Watch), Fault> {
        debug_assert!(room.is_for(Subject::Node));
        let (path, this) = (path.to_owned(), Weak::clone(&self.this));
        let watched = self.read_outliving(|client| async move {
            let watched = client.watch_stat(&path).await;
            watched.map(|(stat, watching)| (stat, in_room(watching, room, this)))
        });
        watched.await
    }

    /// Watches the children of a node that exists, in this room; `NoNode` leaves no watch behind.
    pub(crate) async fn watch_children_in(&self, room: Arc<Room>, path: &str) -> Result<Watch, Fault> {
        debug_assert!(room.is_for(Subject::Children));
        let (own_path, this) = (path.to_owned(), Weak::clone(&self.this));
        let watched = self.read_outliving(|client| async move {
            let watched = client.watch_children(&own_path).await;
            watched.map(|(_, watching)| in_room(watching, room, this))
        });
        watched.await.map_err(|fault| fault.needing(Right::Read, path))
    }

    /// Repeats a request that changes nothing while its answers are lost, for up to a session timeout.
    pub(crate) async fn retry_until_definite<T, F>(&self, request: impl Fn() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let until = Instant::now() + self.timeout;
        loop {
            match request().await {
                Err(Fault::Unknown(error)) if Instant::now() < until => {
                    tracing::debug!(%error, "no answer from ZooKeeper; repeating the request");
                    self.pause(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// Refuses what no server reads. Sent, it would end the connection for all that use the session.
    pub(crate) fn fits(&self, changes: &[Change<'_>]) -> Result<(), Fault> {
        let chroot = self.chroot.len();
        let bytes = changes.iter().map(|change| chroot + change.bytes()).sum();
        if bytes > self.jute_maxbuffer {
            Err(Fault::TooLarge { bytes, most: self.jute_maxbuffer })
        } else {
            Ok(())
        }
    }

    /// Makes a request, which [belongs to the session](crate::sessions::owned_requests).
    pub(crate) fn request<T: 'static, F>(
        &self,
        request: impl FnOnce(Arc<dyn SessionClient>) -> F,
    ) -> Result<OwnedRequest<T>, Fault>
    where
        F: Future<Output = T> + Send + 'static,
    {
        Ok(self.requests.add(request(self.client()?)))
    }

    async fn write<T: 'static, F>(
        &self,
        request: impl FnOnce(Arc<dyn SessionClient>) -> F,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, zk::Error>> + Send + 'static,
    {
        let sent = self.clock.now();
        let answer = self.read(request).await;
        if is_committed(&answer) {
            self.confirm(sent)?;
        }
        answer
    }

    /// Makes a request for a watch, which a background task finishes if the caller drops it. The driver has the watch from the
    /// answer on, so the room must not be given to another watch before.
    async fn read_outliving<T, F>(
        &self,
        request: impl FnOnce(Arc<dyn SessionClient>) -> F,
    ) -> Result<T, Fault>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, zk::Error>> + Send + 'static,
    {
        let (end, runtime) = (self.ended.clone(), self.runtime.clone());
        self.read(|client| Outliving { request: request(client).boxed(), sent: false, end, runtime }).await
    }

    async fn read<T: 'static, F>(&self, request: impl FnOnce(Arc<dyn SessionClient>) -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, zk::Error>> + Send + 'static,
    {
        let request = self.request(request)?;
        let answer = tokio::select! {
            biased;
            answer = request => answer.map_or(Err(Fault::SessionEnded), |answer| answer.map_err(Fault::of)),
            () = self.ended() => Err(Fault::SessionEnded),
        };
        if matches!(answer, Err(Fault::SessionEnded)) {
            self.end(LossReason::SessionEnded);
        }
        answer
    }
}

/// A request that a background task finishes if this is dropped after it was sent.
struct Outliving<T: Send + 'static> {
    request: BoxFuture<'static, T>,
    /// Whether it was sent, and not answered yet.
    sent: bool,
    end: CancellationToken,
    runtime: Handle,
}

impl<T: Send + 'static> Future for Outliving<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let answer = self.request.poll_unpin(context);
        self.sent = answer.is_pending();
        answer
    }
}

impl<T: Send + 'static> Drop for Outliving<T> {
    fn drop(&mut self) {
        if !self.sent || self.end.is_cancelled() {
            return;
        }
        let request = mem::replace(&mut self.request, pending().boxed());
        // A request keeps the client open, so the end of the session drops it.
        let end = self.end.clone();
        drop(self.runtime.spawn(async move {
            tokio::select! {
                biased;
                () = end.cancelled() => {}
                answer = request => drop(answer),
            }
        }));
    }
}

/// A watch with its room. If it reports the end of the session, it ends the [`Session`] too.
fn in_room(watching: Watching, room: Arc<Room>, session: Weak<Session>) -> Watch {
    async move {
        let event = Event::of(watching.await.event_type);
        drop(room);
        if let (Event::SessionEnded, Some(session)) = (event, session.upgrade()) {
            session.end(LossReason::SessionEnded);
        }
        event
    }
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ZkConfig;
    use crate::nodes::watches::Need;
    use crate::sessions::session_open::open;
    use lock_testkit::ZooKeeper;
    use lock_testkit::proxy::{Direction, FaultProxy, Protocol};
    use std::pin::pin;
    use std::time::Duration;

    #[tokio::test]
    async fn a_dropped_watch_keeps_its_room_until_the_driver_has_removed_it() {
        let server = ZooKeeper::start().await.unwrap();
        let proxy = FaultProxy::start(server.addr(), Protocol::ZooKeeper).unwrap();
        let config = ZkConfig::new(proxy.addr().to_string()).session_timeout(Duration::from_secs(10));
        let session = open(&config, Handle::current()).await.unwrap();
        let room = |path| session.watches.claim(0).room(path, Need::Must);
        let watches = async || server.mntr().await.unwrap()["zk_watch_count"].clone();
        for path in ["/", "/zookeeper"] {
            // A request that was never sent leaves nothing.
            drop(session.watch(path, room(path)));
            assert_eq!(session.watches.claimed(), 0);

            proxy.hold(Direction::ToClient);
            assert!(pin!(session.watch(path, room(path))).now_or_never().is_none());
            let absence = session.watch_absence_in(room("/absent").unwrap(), "/absent");
            assert!(pin!(absence).now_or_never().is_none());
            while watches().await != "2" {
                sleep(PAUSE).await;
            }
            assert_eq!(session.watches.claimed(), path.len() + "/absent".len());
            proxy.deliver();
            while session.watches.claimed() > 0 || watches().await != "0" {
                sleep(PAUSE).await;
            }
        }
        proxy.hold(Direction::ToClient);
        assert!(pin!(session.watch("/", room("/"))).now_or_never().is_none());
        // It does not keep the client open.
        session.end(LossReason::SessionEnded);
        while session.watches.claimed() > 0 {
            sleep(PAUSE).await;
        }
    }
}
