//! The part that a process takes in a migration: what it registers in each session, and the record that it watches there.
//!
//! Both are below one node beside the directories of the locks. The record is its data. What a session has registered is an
//! ephemeral node below it, so it ends with the session, as its locks do.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lock_core::migration::{Member, StoredRecord};
use lock_core::{OwnerId, Result};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use zookeeper_client::{self as zk, CreateMode};

use crate::error::{Fault, Stop};
use crate::nodes::watched_node::{Content, WatchedNode};
use crate::poison::lock;
use crate::sessions::session::Session;
use crate::sessions::shared_task::SharedTask;

/// The part that a process takes in a migration.
pub(crate) struct Membership {
    member: Arc<dyn Member>,
    sessions: Mutex<Vec<Arc<SessionMembership>>>,
    left: CancellationToken,
}

/// The same in one session.
struct SessionMembership {
    session: Weak<Session>,
    record: WatchedNode,
    member: Arc<dyn Member>,
    /// Its own node.
    own: WatchedNode,
    /// Goes on when the callers that wait for it are dropped: else its node would be left, and nobody would follow.
    registration: SharedTask<Result<(), Stop>>,
    left: CancellationToken,
}

/// What a session has registered, and the record that it had seen then.
struct Registered {
    seen: Option<StoredRecord>,
    data: Vec<u8>,
}

impl Membership {
    pub(crate) fn new(member: Arc<dyn Member>) -> Self {
        Self { member, sessions: Mutex::default(), left: CancellationToken::new() }
    }

    /// Takes no part any more: deletes what is registered in the background, as shared sessions live on.
    pub(crate) fn leave(&self) {
        self.left.cancel();
        lock(&self.sessions).clear();
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left.is_cancelled()
    }

    /// The record as this session knows it now: registers the process first, if the session is new to it.
    ///
    /// Called before a lock is acquired, it makes sure that the session watches the record from before the grant on. Called
    /// after the grant, it returns a record that is not older than the grant.
    pub(crate) async fn record(
        &self,
        session: &Arc<Session>,
        dir: &str,
    ) -> Result<Option<StoredRecord>, Stop> {
        let here = self.in_session(session, dir);
        here.registered(session, dir).await?;
        here.record.content(session).await.map(stored).map_err(|fault| Stop::of(fault, dir))
    }

    fn in_session(&self, session: &Arc<Session>, dir: &str) -> Arc<SessionMembership> {
        let is_this = |known: &&Arc<SessionMembership>| known.session.as_ptr() == Arc::as_ptr(session);
        let mut sessions = lock(&self.sessions);
        if let Some(known) = sessions.iter().find(is_this) {
            return Arc::clone(known);
        }
        let new = Arc::new(SessionMembership::new(session, dir, self));
        sessions.retain(|other| other.session.upgrade().is_some_and(|session| !session.has_ended()));
        sessions.push(Arc::clone(&new));
        new
    }
}

/// The tasks that follow the record end.
impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
    }
}

impl SessionMembership {
    fn new(session: &Arc<Session>, dir: &str, whole: &Membership) -> Self {
        let record = WatchedNode::new(record_path(dir), session.watches.claim(0));
        let path = format!("{}/{:x}-{}", members_path(dir), session.id, OwnerId::random());
        let own = WatchedNode::new(path, session.watches.claim(0));
        let (member, left) = (Arc::clone(&whole.member), whole.left.clone());
        let (session, registration) = (Arc::downgrade(session), SharedTask::default());
        Self { session, record, member, own, registration, left }
    }

    /// Waits until this session has registered the process, and follows the record from then on.
    async fn registered(self: &Arc<Self>, session: &Arc<Session>, dir: &str) -> Result<(), Stop> {
        let start = |_| {
            let (this, session, members) = (Arc::clone(self), Arc::clone(session), members_path(dir));
            async move {
                let registered = this.register(&session, &members).await?;
                session.runtime.spawn(this.follow(registered));
                Ok(())
            }
        };
        let ended = Err(Stop::StartOver);
        self.registration.run(&session.runtime, Result::is_err, ended, start).await
    }

    async fn register(&self, session: &Session, members: &str) -> Result<Registered, Stop> {
        session.make_directories(members, CreateMode::Persistent).await?;
        let content = self.record.content(session).await.map_err(|fault| Stop::of(fault, members))?;
        let seen = stored(content);
        let data = self.member.registration(seen.as_ref());
        self.write(session, &data).await.map_err(|fault| Stop::of(fault, members))?;
        Ok(Registered { seen, data })
    }

    /// Registers again whenever the record has changed, or what the member has to say, or somebody has deleted the node, until
    /// the session ends.
    async fn follow(self: Arc<Self>, mut registered: Registered) {
        loop {
            tokio::select! {
                biased;
                () = self.left.cancelled() => break,
                () = sleep(INTERVAL) => {}
            }
            // Only for this look, so that a session without locks can be closed.
            let Some(session) = self.session.upgrade().filter(|session| !session.has_ended()) else { return };
            let Ok(content) = self.record.content(&session).await else { continue };
            let seen = stored(content);
            let data = self.member.registration(seen.as_ref());
            let is_gone = matches!(self.own.content(&session).await, Ok(None));
            if (is_gone || (&registered.seen, &registered.data) != (&seen, &data))
                && self.write(&session, &data).await.is_ok()
            {
                registered = Registered { seen, data };
            }
        }
        let Some(session) = self.session.upgrade() else { return };
        // A node that is left ends with the session.
        let _ = session.retry_until_definite(|| session.delete(&self.own.path)).await;
    }

    /// Writes the own node, and creates it if it does not exist.
    async fn write(&self, session: &Session, data: &[u8]) -> Result<(), Fault> {
        let written = session.retry_until_definite(|| session.set_data(&self.own.path, data, None)).await;
        match written {
            Err(fault) if fault.is_no_node() => {}
            written => return written.map(drop),
        }
        // The name is random: a node that exists is our own, created by a request whose answer was lost.
        match session
            .retry_until_definite(|| session.create(&self.own.path, data, CreateMode::Ephemeral))
            .await
        {
            Err(Fault::Refused(zk::Error::NodeExists)) => Ok(()),
            created => created.map(drop),
        }
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("member", &self.member).finish_non_exhaustive()
    }
}

/// The path of the record of the locks whose directories are in this one.
pub(crate) fn record_path(dir: &str) -> String {
    format!("{}/{NODE}", if dir == "/" { "" } else { dir })
}

/// The path of the directory of all registrations.
pub(crate) fn members_path(dir: &str) -> String {
    format!("{}/members", record_path(dir))
}

/// The record in the data of a node; an empty one is none.
pub(crate) fn stored(content: Option<Content>) -> Option<StoredRecord> {
    let content = content.filter(|content| !content.data.is_empty())?;
    Some(StoredRecord::new(content.data, content.stat.version))
}

/// No directory of a lock has this name: there, an exclamation mark is escaped.
const NODE: &str = "!migration";
/// How often a session looks whether its watch has fired, which takes no request.
const INTERVAL: Duration = Duration::from_millis(500);
