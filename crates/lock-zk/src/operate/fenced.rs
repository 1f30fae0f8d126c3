//! Writes that the ensemble carries out only while a lock is held.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lock_core::{Error, ErrorKind, Guard, LossReason, Outcome, Result, ValidityCell};
use zookeeper_client::{self as zk, CreateMode, MultiWriteResult};

use crate::error::{BACKEND, Fault, error};
use crate::nodes::acl::NodeAcl;
use crate::nodes::node::CreatedNode;
use crate::operate::fenced_writes::WritesRoom;
use crate::sessions::ensemble::Change;
use crate::sessions::session::Session;

/// Writes to ZooKeeper that are fenced by a ZooKeeper lock.
///
/// # Examples
///
/// ```no_run
/// # async fn pay(guard: &lock_core::Guard) -> lock_core::Result<()> {
/// use lock_zk::{Committed, FencedExt};
///
/// match guard.fenced()?.set("/orders/42", b"paid", None).commit().await? {
///     Committed::Applied(_) => println!("paid, while the lock was held"),
///     Committed::Refused { error, .. } => println!("nothing was written: {error}"),
/// }
/// # Ok(())
/// # }
/// ```
pub trait FencedExt {
    /// Collects writes that are applied all or not at all, and only while the lock is held.
    ///
    /// The check of the holder's node and the writes are one transaction of the ensemble, so this holds however late the
    /// writes arrive. A [token](lock_core::Token) does the same for other resources.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for a lock of another backend, and in [`ZkLayout::Plain`](crate::ZkLayout::Plain) and
    /// [`ZkRecipe::Ephemeral`](crate::ZkRecipe::Ephemeral), which reuse node names; [`ErrorKind::Lost`] when the lock is
    /// known to be lost.
    fn fenced(&self) -> Result<FencedWriter<'_>>;
}

impl FencedExt for Guard {
    fn fenced(&self) -> Result<FencedWriter<'_>> {
        let unsupported = |message, hint| error(ErrorKind::Unsupported, message, hint).on(self.name());
        let Some(lock) = self.backend_specific::<Fencing>() else {
            let hint = "send its token with every write, and have the resource check it";
            return Err(unsupported("this is not a ZooKeeper lock, or it is below a migration", hint));
        };
        if !lock.has_unique_names {
            let message =
                "this layout or recipe reuses node names, so a check of the holder's node proves nothing";
            return Err(unsupported(message, "use recipe=queue with layout=curator or kazoo"));
        }
        if !self.is_valid() {
            return Err(Error::lost(BACKEND).on(self.name()));
        }
        Ok(FencedWriter { lock, guard: self, writes: Vec::new() })
    }
}

/// Writes that are applied all or not at all, and only while a lock is held; see [`FencedExt`].
///
/// Paths start at the chroot.
///
/// # Examples
///
/// ```no_run
/// # async fn pay(guard: &lock_core::Guard) -> lock_core::Result<()> {
/// use lock_zk::FencedExt;
///
/// let writes = guard.fenced()?.check("/orders/42", Some(3)).set("/stock/7", b"41", None);
/// let committed = writes.create("/invoices/42", b"paid").commit().await?;
/// # drop(committed);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is written before `commit`"]
pub struct FencedWriter<'a> {
    guard: &'a Guard,
    lock: Arc<Fencing>,
    writes: Vec<Write>,
}

/// The outcome of fenced writes.
///
/// # Examples
///
/// ```
/// # use lock_zk::Committed;
/// fn report(committed: &Committed) {
///     if let Committed::Refused { index, error } = committed {
///         eprintln!("nothing was written: write {index} failed: {error}");
///     }
/// }
/// ```
#[derive(Debug)]
pub enum Committed {
    /// All were applied, while the lock was held.
    Applied(Vec<MultiWriteResult>),
    /// None was applied, as one could not be. Whether the lock is still held is unknown.
    Refused {
        /// The index of that write.
        index: usize,
        /// Why: no such node, another version, or a node that exists already.
        error: zk::Error,
    },
}

/// What fenced writes need of a held lock.
#[derive(Debug)]
pub(crate) struct Fencing {
    pub(crate) session: Arc<Session>,
    pub(crate) node: Arc<CreatedNode>,
    pub(crate) cell: ValidityCell,
    pub(crate) has_unique_names: bool,
}

#[derive(Debug)]
enum Write {
    Check { path: String, version: Option<i32> },
    Create { path: String, data: Vec<u8>, mode: CreateMode, acl: NodeAcl },
    Set { path: String, data: Vec<u8>, version: Option<i32> },
    Delete { path: String, version: Option<i32> },
}

impl FencedWriter<'_> {
    /// Refuses all writes unless this node exists, and has this version if one is given.
    pub fn check(mut self, path: impl Into<String>, version: Option<i32>) -> Self {
        self.writes.push(Write::Check { path: path.into(), version });
        self
    }

    /// Creates a persistent node, with the ACL of the nodes of locks.
    pub fn create(self, path: impl Into<String>, data: impl Into<Vec<u8>>) -> Self {
        let acl = self.lock.session.acl.clone();
        self.create_with(path, data, CreateMode::Persistent, acl)
    }

    /// Creates a node of this kind, with this ACL.
    pub fn create_with(
        mut self,
        path: impl Into<String>,
        data: impl Into<Vec<u8>>,
        mode: CreateMode,
        acl: NodeAcl,
    ) -> Self {
        self.writes.push(Write::Create { path: path.into(), data: data.into(), mode, acl });
        self
    }

    /// Replaces the data of a node, if it has this version.
    pub fn set(mut self, path: impl Into<String>, data: impl Into<Vec<u8>>, version: Option<i32>) -> Self {
        self.writes.push(Write::Set { path: path.into(), data: data.into(), version });
        self
    }

    /// Deletes a node, if it has this version.
    pub fn delete(mut self, path: impl Into<String>, version: Option<i32>) -> Self {
        self.writes.push(Write::Delete { path: path.into(), version });
        self
    }

    /// Writes, in one round trip.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Lost`] when the lock was lost, and nothing was written.
    /// * [`ErrorKind::Denied`] when an ACL forbids a write.
    /// * [`ErrorKind::Unsupported`] for writes that no server reads, as they are [too large](crate::ZkConfig::jute_maxbuffer).
    /// * [`ErrorKind::Unavailable`] without an answer. The outcome is [unknown](Outcome::Unknown); writes that arrive after
    ///   the lock was lost are not applied.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the writes may or may not be applied, as without an answer. Another task of the process gets the
    /// lock after them.
    pub async fn commit(self) -> Result<Committed> {
        let failed = |error: Error| error.during("fenced write").on(self.guard.name());
        let (session, path) = (&self.lock.session, &*self.lock.node.path);
        let not_sent = |error: Error| failed(error.with_outcome(Outcome::NotApplied));
        let node = session.answer_about(path, self.lock.node.latest()).await.map_err(not_sent)?;
        let transaction =
            Transaction { lock: Arc::clone(&self.lock), node: Arc::clone(&node), writes: self.writes };
        let paths: Vec<_> = transaction.changes().iter().map(|change| change.path().to_owned()).collect();
        let bytes = transaction.bytes().map_err(|fault| failed(fault.on(&node.path)))?;
        let room = session.answer_about(path, session.fenced_writes.room(bytes)).await.map_err(not_sent)?;
        let answer = session.answer_about(path, transaction.send(room)).await.map_err(failed)?;
        match answer {
            Ok(mut results) => {
                results.remove(0);
                Ok(Committed::Applied(results))
            }
            Err((Some(0), fault)) if fault.is_no_node() => {
                self.lock.cell.lose(LossReason::Removed);
                Err(failed(Error::lost(BACKEND)))
            }
            // A request in flight at the end of the session may have been in time.
            Err((_, Fault::SessionEnded)) => Err(failed(Error::lost(BACKEND).with_outcome(Outcome::Unknown))),
            Err((Some(index), Fault::Refused(error))) if index > 0 && is_conflict(&error) => {
                Ok(Committed::Refused { index: index - 1, error })
            }
            Err((index, fault)) => {
                let path = index.and_then(|index| paths.get(index)).map_or(&*node.path, String::as_str);
                Err(failed(fault.on(path)))
            }
        }
    }
}

/// Writes with the check of the holder's node.
struct Transaction {
    lock: Arc<Fencing>,
    node: Arc<CreatedNode>,
    writes: Vec<Write>,
}

type Answer = Result<Vec<MultiWriteResult>, (Option<usize>, Fault)>;

impl Transaction {
    fn changes(&self) -> Vec<Change<'_>> {
        let check = Change::Check { path: &self.node.path, version: None };
        iter::once(check).chain(self.writes.iter().map(Write::as_change)).collect()
    }

    /// How many bytes it takes; refused if no server reads as many.
    fn bytes(&self) -> Result<usize, Fault> {
        let changes = self.changes();
        self.lock.session.fits(&changes)?;
        Ok(changes.iter().map(Change::bytes).sum())
    }

    /// Sends it, by a task that waits for the answer whether the caller does or not.
    async fn send(self, room: WritesRoom) -> Answer {
        let (session, unanswered) = (Arc::clone(&self.lock.session), Arc::clone(&self.lock.node));
        // It may arrive at any time from here on: the node is passed on to no other task until it is answered.
        unanswered.unanswered_writes.fetch_add(1, Ordering::Relaxed);
        let sending = session.runtime.clone().spawn(async move {
            let answer = session.multi(&self.changes()).await;
            if matches!(answer, Ok(_) | Err((Some(_), _))) {
                unanswered.unanswered_writes.fetch_sub(1, Ordering::Relaxed);
            }
            drop(room);
            answer
        });
        // The runtime of the session has shut down, and the session ends.
        sending.await.unwrap_or(Err((None, Fault::SessionEnded)))
    }
}

impl Write {
    fn as_change(&self) -> Change<'_> {
        match self {
            Self::Check { path, version } => Change::Check { path, version: *version },
            Self::Create { path, data, mode, acl } => {
                Change::Create { path, data, mode: *mode, acl: acl.acls() }
            }
            Self::Set { path, data, version } => Change::Set { path, data, version: *version },
            Self::Delete { path, version } => Change::Delete { path, version: *version },
        }
    }
}

/// Whether the tree is not in the state that the writer expected.
const fn is_conflict(error: &zk::Error) -> bool {
    use zk::Error as E;
    matches!(error, E::NoNode | E::BadVersion | E::NodeExists | E::NotEmpty | E::NoChildrenForEphemerals)
}
