//! The requests that this crate sends to an ensemble, as traits: the seam between the locks and the driver.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use zookeeper_client::{
    Acl, Acls, CreateMode, Error, MultiWriteError, MultiWriteResult, SessionState, Stat, WatchedEvent,
};

/// Opens sessions with an ensemble: for tests, and for custom transports.
///
/// Without one in [`ZkConfig::ensemble`](crate::ZkConfig::ensemble), the driver opens them.
#[async_trait]
pub trait Ensemble: fmt::Debug + Send + Sync + 'static {
    /// Opens a session, and requests this session timeout. The caller limits the time that a call takes.
    async fn open(&self, session_timeout: Duration) -> Result<Arc<dyn SessionClient>, Error>;
}

/// One session with an ensemble, such as a [`DriverSession`](crate::DriverSession).
///
/// # Contract
///
/// * A request is sent when the method is *called*, not when its future is first polled. Once sent, it takes effect even
///   if the future is dropped. Requests reach the server, and are answered, in the order of the calls.
/// * A watch fires before any answer arrives that shows the change.
/// * The session is kept alive and moves from server to server by itself. Requests wait while there is no connection,
///   and fail when their connection breaks or the session ends. Watches survive a reconnection, or fire when the connection breaks.
/// * The session keeps one timeout. Every connection negotiates it anew, and the server counts by the shorter one at once. So the
///   session does not move to a server that grants less; if it has moved to one, it ends before it answers or is
///   [connected](SessionState::SyncConnected).
/// * What is read after a reconnection is not older than what was read before it.
/// * The session is closed, and its ephemeral nodes are deleted, once the last reference and the futures of all requests
///   have been dropped.
pub trait SessionClient: Send + Sync + 'static {
    /// The id of the session, which its ephemeral nodes carry.
    fn id(&self) -> i64;

    /// The session timeout that was negotiated at the opening, and holds for the whole session.
    fn timeout(&self) -> Duration;

    /// The chroot, which the servers see in front of every path; empty if there is none.
    ///
    /// Its length matters: the bytes of paths that one session may watch are limited.
    fn chroot(&self) -> &str {
        ""
    }

    /// The states of the session from now on.
    fn states(&self) -> Box<dyn States>;

    /// Creates a node and returns its path, to which the server appended ten digits if the mode is sequential. The stat
    /// is [invalid](Stat::is_invalid) if the server does not send it.
    fn create<'a>(
        &'a self,
        path: &'a str,
        data: &'a [u8],
        mode: CreateMode,
        acl: Acls<'a>,
    ) -> Answer<'a, (String, Stat)>;

    /// Deletes a node, if it has this version.
    fn delete<'a>(&'a self, path: &'a str, version: Option<i32>) -> Answer<'a, ()>;

    /// The stat of a node, if it exists.
    fn stat<'a>(&'a self, path: &'a str) -> Answer<'a, Option<Stat>>;

    /// The stat of a node, and a watch for its creation, deletion and change.
    fn watch_stat<'a>(&'a self, path: &'a str) -> Answer<'a, (Option<Stat>, Watching)>;

    /// The data of a node.
    fn data<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<u8>, Stat)>;

    /// The data of a node, and a watch for its deletion and change. A node that does not exist leaves no watch.
    fn watch_data<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<u8>, Stat, Watching)>;

    /// Replaces the data of a node, if it has this version.
    fn set_data<'a>(&'a self, path: &'a str, data: &'a [u8], version: Option<i32>) -> Answer<'a, Stat>;

    /// The names of the children of a node, and the stat of that node.
    fn children<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<String>, Stat)>;

    /// The ACL of a node. The default tells none.
    fn acl<'a>(&'a self, _path: &'a str) -> Answer<'a, Vec<Acl>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// The names of the children of a node, and a watch for the creation and deletion of children. A node that does not
    /// exist leaves no watch.
    ///
    /// The default has a watch that never fires: who waits for it looks again after a while.
    fn watch_children<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<String>, Watching)> {
        let children = self.children(path);
        Box::pin(async { Ok((children.await?.0, pending().boxed())) })
    }

    /// Applies all changes or none.
    ///
    /// An answer about the changes comes from the quorum, also when one [failed](MultiWriteError::OperationFailed): it
    /// renews the validity of the session.
    fn multi<'a>(
        &'a self,
        changes: &'a [Change<'a>],
    ) -> BoxFuture<'a, Result<Vec<MultiWriteResult>, MultiWriteError>>;
}

/// The answer to a request.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// A watch, which fires once; some time after the end of the session it fires as well. Dropping it before that costs a
/// request, which removes the watch from the server.
pub type Watching = BoxFuture<'static, WatchedEvent>;

/// The states of a session.
pub trait States: Send + Sync {
    /// Waits for the next state; states that pass while nothing waits are skipped. No state follows one that ends the
    /// session.
    fn changed(&mut self) -> BoxFuture<'_, SessionState>;

    /// The state now.
    fn now(&self) -> SessionState;
}

/// One operation of a [multi](SessionClient::multi).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Fails unless the node exists, and has this version if one is given.
    Check {
        /// The node.
        path: &'a str,
        /// Its version.
        version: Option<i32>,
    },
    /// Creates a node.
    Create {
        /// The node; the server appends ten digits if the mode is sequential.
        path: &'a str,
        /// Its data.
        data: &'a [u8],
        /// Its kind.
        mode: CreateMode,
        /// Its ACL.
        acl: Acls<'a>,
    },
    /// Replaces the data of a node.
    Set {
        /// The node.
        path: &'a str,
        /// Its new data.
        data: &'a [u8],
        /// The version that it must have.
        version: Option<i32>,
    },
    /// Deletes a node.
    Delete {
        /// The node.
        path: &'a str,
        /// The version that it must have.
        version: Option<i32>,
    },
}

impl<'a> Change<'a> {
    /// The node that it concerns.
    #[must_use]
    pub const fn path(&self) -> &'a str {
        match self {
            Self::Check { path, .. }
            | Self::Create { path, .. }
            | Self::Set { path, .. }
            | Self::Delete { path, .. } => path,
        }
    }

    /// The bytes that it takes in a request, and no fewer.
    pub(crate) fn bytes(&self) -> usize {
        let content = match self {
            Self::Check { .. } | Self::Delete { .. } => 0,
            Self::Create { data, acl, .. } => {
                let entries = acl.iter().map(|entry| entry.scheme().len() + entry.id().len() + 12);
                data.len() + entries.sum::<usize>()
            }
            Self::Set { data, .. } => data.len(),
        };
        OVERHEAD + self.path().len() + content
    }
}

/// Numbers and lengths of one operation, and more.
const OVERHEAD: usize = 64;
