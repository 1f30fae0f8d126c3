//! Watches the node of a held lock: its deletion by an operator, revocation requests, and its expiry.

use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lock_core::{LossReason, OwnerInfo, Revocation, RevocationCell, Validity, ValidityCell};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::error::Fault;
use crate::nodes::lock_path::LockPath;
use crate::nodes::node::CreatedNode;
use crate::nodes::node_data::{NodeData, asks_to_release};
use crate::nodes::own_node::OwnNode;
use crate::nodes::watches::{Claim, Event, Need, Watch};
use crate::recipes::release::{LONGEST_PAUSE, delete_latest};
use crate::sessions::session::{PAUSE, Session};

/// The watch of the own node that a waiter takes along into its lease.
#[derive(Default)]
pub(crate) struct OwnWatch {
    pub(crate) watch: Option<Watch>,
    /// The data of the node when it was watched, and the version of that.
    pub(crate) data: Vec<u8>,
    pub(crate) version: i32,
}

/// Watches the node of a lock that was just granted, and deletes it when the lock `expires`. Dropping the sender cancels
/// that if there is no watch yet.
pub(crate) fn watch(
    own: &OwnNode,
    node: &Arc<CreatedNode>,
    own_watch: OwnWatch,
    cell: &ValidityCell,
    expires: bool,
    info: &OwnerInfo,
) -> (Revocation, oneshot::Sender<()>) {
    let (sender, cancelled) = oneshot::channel();
    let is_reused = !own.lock.has_unique_names();
    let watch = HeldNodeWatch {
        session: Arc::downgrade(&own.session),
        claim: Arc::clone(&own.session.claim),
        lock: Arc::clone(&own.lock),
        node: Arc::clone(node),
        cell: cell.clone(),
        revocation: RevocationCell::new(),
        original: is_reused.then(|| Box::new(own.identity.node_data(info))),
        expires,
    };
    watch.read(&own_watch.data);
    let revocation = watch.revocation.revocation();
    drop(own.session.runtime.spawn(watch.run(own_watch, cancelled)));
    (revocation, sender)
}

struct HeldNodeWatch {
    session: Weak<Session>,
    claim: Arc<Claim>,
    lock: Arc<LockPath>,
    node: Arc<CreatedNode>,
    cell: ValidityCell,
    revocation: RevocationCell,
    /// What the holder wrote into its node, where names are reused.
    original: Option<Box<NodeData>>,
    expires: bool,
}

impl HeldNodeWatch {
    /// A lock that is released at once is never watched. A watch that was set stays until the node is deleted: it ends
    /// with the node by itself, and dropping it earlier would cost a request.
    ///
    /// Every held lock has this future, so its short-lived parts are boxed. A block captures each of these once; an
    /// `async fn` would keep its arguments beside the variables that they become.
    fn run(
        mut self,
        own_watch: OwnWatch,
        cancelled: oneshot::Receiver<()>,
    ) -> impl Future<Output = ()> + Send {
        let OwnWatch { mut watch, data, version } = own_watch;
        let overwritten = self.is_overwritten(&data).then_some(version);
        async move {
            if let Some(version) = overwritten {
                self.restore(version).boxed().await;
            }
            if watch.is_none() && timeout(BEFORE_WATCH, cancelled).boxed().await.is_ok() {
                return;
            }
            let mut expiry = expiry(self.cell.validity(), self.expires);
            loop {
                if watch.is_none() {
                    watch = self.watch_again(&mut expiry).boxed().await;
                }
                let Some(watched) = &mut watch else { return };
                tokio::select! {
                    event = watched => match event {
                        Event::Deleted if self.is_lost().boxed().await => return,
                        Event::SessionEnded => return,
                        Event::Deleted | Event::Changed => watch = None,
                    },
                    () = &mut expiry => return self.delete().boxed().await,
                }
            }
        }
    }

    /// Watches the node, or the one that replaced it; `None` once the lock has ended.
    async fn watch_again(&mut self, expiry: &mut BoxFuture<'static, ()>) -> Option<Watch> {
        let mut pause = PAUSE;
        loop {
            let session = self.session.upgrade()?;
            let room = self.claim.room(&self.node.path, Need::Must);
            match session.watch(&self.node.path, room).await {
                Ok((watch, data, stat)) if stat.czxid == self.node.czxid => {
                    self.read(&data);
                    if self.is_overwritten(&data) {
                        self.restore(stat.version).await;
                    }
                    return Some(watch);
                }
                Err(Fault::SessionEnded) => return None,
                Err(fault) if !fault.is_no_node() => {
                    drop(session);
                    tracing::debug!(?fault, path = self.node.path, "cannot watch the node of a held lock");
                    if timeout(pause, &mut *expiry).await.is_ok() {
                        self.delete().await;
                        return None;
                    }
                    let repeats = matches!(fault, Fault::Unknown(_));
                    pause = if repeats { PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
                }
                // The node is deleted, or its name belongs to a later node.
                _ if self.is_lost().await => return None,
                _ => {}
            }
        }
    }

    async fn delete(&self) {
        if let Some(session) = self.session.upgrade() {
            delete_latest(&session, &self.lock, &self.node).await;
        }
    }

    /// Turns to the reader's node that replaced the deleted one. If there is none, the lock is lost.
    async fn is_lost(&mut self) -> bool {
        let latest = self.node.latest().await;
        let lost = Arc::ptr_eq(&latest, &self.node);
        if lost {
            self.cell.lose(LossReason::Removed);
        }
        if !lost {
            // The node of the reader says what that of the writer was.
            self.original = None;
        }
        self.node = latest;
        lost
    }

    fn read(&self, data: &[u8]) {
        if asks_to_release(data, self.node.czxid, self.original.as_deref()) {
            self.revocation.request();
        }
    }

    /// Whether the node names another holder, as after a revocation request that was meant for an earlier one.
    fn is_overwritten(&self, data: &[u8]) -> bool {
        let others =
            |original: &NodeData| NodeData::parse(data).is_some_and(|data| data.owner != original.owner);
        self.original.as_deref().is_some_and(others)
    }

    /// Writes into the node whose it is. Any change fires the watch, so this is done once.
    async fn restore(&self, version: i32) {
        let (Some(session), Some(original)) = (self.session.upgrade(), &self.original) else { return };
        let requested = self.revocation.revocation().is_requested();
        let data = original.restored(self.node.czxid, requested).to_bytes();
        if let Err(fault) = session.set_data(&self.node.path, &data, Some(version)).await {
            tracing::debug!(
                ?fault,
                path = self.node.path,
                "cannot restore the data of the node of a held lock"
            );
        }
    }
}

/// Waits for the expiry of the lock. Most locks have none, for which nothing is stored.
fn expiry(validity: Validity, expires: bool) -> BoxFuture<'static, ()> {
    if !expires {
        return pending().boxed();
    }
    async move {
        if !matches!(validity.lost().await, LossReason::MaxHold | LossReason::DeadlinePassed) {
            pending::<()>().await;
        }
    }
    .boxed()
}

/// Most locks are released sooner, and spare the request for a watch.
const BEFORE_WATCH: Duration = Duration::from_millis(10);
