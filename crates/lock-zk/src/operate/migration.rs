//! The store as the target of a migration.

use std::any::Any;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use lock_core::migration::{LockAge, Member, MemberState, MigrationTarget, StoredRecord};
use lock_core::{Error, ErrorKind, Finding, FindingLevel, Lease, LockName, Result};
use tokio::time::sleep;
use zookeeper_client::{self as zk, CreateMode};

use crate::backend::Zk;
use crate::error::{BACKEND, Fault, Stop, doubted_if, error};
use crate::nodes::watched_node::Content;
use crate::operate::membership::{Membership, members_path, record_path, stored};
use crate::operate::moved_names;
use crate::poison::lock;
use crate::recipes::lease::ZkLease;
use crate::sessions::pool_share::PoolShare;
use crate::sessions::session::Session;

#[async_trait]
impl MigrationTarget for Zk {
    fn identity(&self) -> String {
        let config = &self.share().config;
        let mut hosts: Vec<&str> = config.hosts.split(',').collect();
        hosts.sort_unstable();
        let chroot = config.chroot_path().trim_end_matches('/');
        format!("zk://{}{chroot}?dir={}", hosts.join(","), config.dir)
    }

    async fn join(&self, member: Arc<dyn Member>) -> Result<()> {
        let taken = || {
            let message = "this connection takes part in a migration already";
            error(ErrorKind::InvalidConfig, message, "use a connection of its own for each migration")
        };
        if self.share().membership.get().is_some() {
            return Err(taken());
        }
        let membership = Membership::new(member);
        let first = self.register(&membership).await;
        if let Err(refused) = &first
            && refused.kind() != ErrorKind::Unavailable
        {
            return first;
        }
        self.share().membership.set(membership).map_err(|_| taken())?;
        self.share().pool.runtime.spawn(keep_registered(Arc::downgrade(self.share())));
        first
    }

    async fn record_at(&self, lease: &dyn Lease) -> Result<Option<StoredRecord>> {
        let lease = own(lease)?;
        let (session, dir) = (&lease.own.session, &self.share().config.dir);
        let Some(membership) = self.share().membership.get() else { return Ok(None) };
        let seen = session.answer_about(dir, membership.record(session, dir)).await?;
        seen.map_err(|stop| match stop {
            Stop::StartOver => Error::lost(BACKEND),
            Stop::Failed(error) => error,
        })
    }

    async fn age(&self, lease: &dyn Lease) -> Result<LockAge> {
        let lease = own(lease)?;
        let (session, dir) = (&lease.own.session, &lease.own.lock.dir);
        let base = self.share().base(session, dir);
        let (_, raised) = session.answer_about(dir, base.ranges(session)).await??;
        let [created, raised] = [lease.czxid(), raised].map(|zxid| u64::try_from(zxid).unwrap_or_default());
        Ok(LockAge::new(created, created.max(raised)))
    }

    async fn read_record(&self) -> Result<Option<StoredRecord>> {
        let path = &*record_path(&self.share().config.dir);
        self.share().ask(path, |session| async move { read_record(&session, path).await }).await
    }

    async fn write_record(&self, data: &[u8], version: Option<i32>) -> Result<bool> {
        let dir = &*self.share().config.dir;
        let path = &*record_path(dir);
        let record = &RecordWrite { path, data, version, doubtful: Mutex::default() };
        let write = |session: Arc<Session>| async move {
            if version.is_none() {
                match session.make_directories(dir, CreateMode::Persistent).await {
                    Ok(()) => {}
                    Err(Stop::StartOver) => return Err(Fault::SessionEnded),
                    Err(Stop::Failed(error)) => return Ok(Err(error)),
                }
            }
            record.write(&session).await.map(Ok)
        };
        self.share().ask(path, write).await?
    }

    async fn note_moved(&self, names: &[LockName]) -> Result<()> {
        let dir = &*self.share().config.dir;
        let note = |session: Arc<Session>| async move {
            match moved_names::note(&session, dir, names).await {
                Err(Stop::StartOver) => Err(Fault::SessionEnded),
                Err(Stop::Failed(error)) => Ok(Err(doubted_if(names.len() > 1, error))),
                Ok(()) => Ok(Ok(())),
            }
        };
        self.share().ask(dir, note).await?
    }

    async fn moved(&self) -> Result<Vec<LockName>> {
        let dir = &*self.share().config.dir;
        self.share().ask(dir, |session| async move { moved_names::list(&session, dir).await }).await
    }

    async fn forget_moved(&self, names: &[LockName]) -> Result<()> {
        let dir = &*self.share().config.dir;
        let forget = |session: Arc<Session>| async move {
            let forgotten = moved_names::forget(&session, dir, names).await;
            forgotten.map_err(|fault| fault.doubted_if(names.len() > 1))
        };
        self.share().ask(dir, forget).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        let dir = self.share().config.dir.as_str();
        let mut findings = Vec::new();
        for above in Path::new(dir).ancestors().skip(1).filter_map(Path::to_str) {
            let path = &*record_path(above);
            let record = self.share().ask(path, |session| async move { read_record(&session, path).await });
            if record.await?.is_some() {
                let what = format!("the locks in {above} take part in a migration, and {dir} is below it");
                let advice = "use another dir in the URL of the new store";
                findings.push(Finding::new(FindingLevel::Warning, "", what, advice));
            }
        }
        Ok(findings)
    }

    async fn members(&self) -> Result<Vec<MemberState>> {
        let path = &*members_path(&self.share().config.dir);
        self.share().ask(path, |session| async move { members(&session, path).await }).await
    }
}

impl Zk {
    /// Registers the process in a session.
    async fn register(&self, membership: &Membership) -> Result<()> {
        let dir = &self.share().config.dir;
        let session = self.share().get().await?;
        match session.answer_about(dir, membership.record(&session, dir)).await? {
            Err(Stop::Failed(error)) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Registers the process in a session at all times, also while it has no lock of this store.
async fn keep_registered(share: Weak<PoolShare>) {
    loop {
        {
            let Some(share) = share.upgrade() else { return };
            let Some(membership) = share.membership.get().filter(|membership| !membership.has_left()) else {
                return;
            };
            match share.get().await {
                Ok(session) => {
                    let dir = &share.config.dir;
                    // The next look tries again.
                    let _ = session.answer_about(dir, membership.record(&session, dir)).await;
                }
                Err(error) => tracing::debug!(%error, "no session to follow the migration in; trying again"),
            }
        }
        sleep(INTERVAL).await;
    }
}

async fn read_record(session: &Session, path: &str) -> Result<Option<StoredRecord>, Fault> {
    session.retry_until_definite(|| session.pass_quorum("/")).await?;
    match session.retry_until_definite(|| session.data(path)).await {
        Ok((data, stat)) => Ok(stored(Some(Content { data: data.into(), stat }))),
        Err(fault) if fault.is_no_node() => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// A write of the record, which may be sent more than once.
struct RecordWrite<'a> {
    path: &'a str,
    data: &'a [u8],
    version: Option<i32>,
    /// The version that the record has if a write was applied that got no answer.
    doubtful: Mutex<Option<i32>>,
}

impl RecordWrite<'_> {
    /// Returns whether it was written. While answers are lost, it is sent again: it is applied once at most, as it names a version.
    async fn write(&self, session: &Session) -> Result<bool, Fault> {
        let mut written = session.retry_until_definite(|| self.send(session)).await;
        let doubtful = *lock(&self.doubtful);
        if let (Ok(false), Some(version)) = (&written, doubtful) {
            written = self.is_applied(session, version).await;
        }
        written.map_err(|fault| fault.doubted_if(doubtful.is_some()))
    }

    async fn send(&self, session: &Session) -> Result<bool, Fault> {
        let expected = match self.version {
            Some(version) => Some(version),
            None => match session.data(self.path).await {
                // The node without a record, which the first session of a process made.
                Ok((data, stat)) if data.is_empty() => Some(stat.version),
                Ok(_) => return Ok(false),
                Err(fault) if fault.is_no_node() => None,
                Err(fault) => return Err(fault),
            },
        };
        let written = match expected {
            Some(_) => session.set_data(self.path, self.data, expected).await.map(drop),
            None => session.create(self.path, self.data, CreateMode::Persistent).await.map(drop),
        };
        match written {
            Ok(()) => Ok(true),
            Err(Fault::Refused(zk::Error::BadVersion | zk::Error::NodeExists)) => Ok(false),
            Err(fault) if fault.is_no_node() && expected.is_some() => Ok(false),
            Err(fault) => {
                if fault.is_in_doubt() {
                    *lock(&self.doubtful) = Some(expected.map_or(0, |version| version + 1));
                }
                Err(fault)
            }
        }
    }

    /// Whether a write was applied after which the record has this version. Unknown if there was another one since.
    async fn is_applied(&self, session: &Session, version: i32) -> Result<bool, Fault> {
        let stored = read_record(session, self.path).await?;
        match stored.filter(|stored| stored.version == version) {
            Some(stored) => Ok(*stored.data == *self.data),
            None => Err(Fault::Unknown(zk::Error::BadVersion)),
        }
    }
}

async fn members(session: &Session, dir: &str) -> Result<Vec<MemberState>, Fault> {
    session.retry_until_definite(|| session.pass_quorum("/")).await?;
    let names = match session.retry_until_definite(|| session.children(dir)).await {
        Err(fault) if fault.is_no_node() => return Ok(Vec::new()),
        names => names?,
    };
    let members = try_join_all(names.iter().map(|name| member(session, dir, name))).await?;
    Ok(members.into_iter().flatten().collect())
}

/// What one session has registered; nothing if it has just ended.
async fn member(session: &Session, dir: &str, name: &str) -> Result<Option<MemberState>, Fault> {
    let path = format!("{dir}/{name}");
    match session.retry_until_definite(|| session.data(&path)).await {
        Ok((data, _)) => Ok(Some(MemberState::new(name.to_owned(), data))),
        Err(fault) if fault.is_no_node() => Ok(None),
        Err(fault) => Err(fault),
    }
}

fn own(lease: &dyn Lease) -> Result<&ZkLease> {
    let lease: &dyn Any = lease;
    lease.downcast_ref().ok_or_else(|| {
        Error::new(ErrorKind::Unexpected, BACKEND).with_message("the lease is not one of this backend")
    })
}

/// How often a process looks whether its session is registered, which takes no request.
const INTERVAL: Duration = Duration::from_secs(1);
