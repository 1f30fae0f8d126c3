//! The ZooKeeper backend.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::future::join_all;
use lock_core::{
    AcquireRequest, Acquired, Backend, Capabilities, Error, ErrorKind, Holder, LeaseKind, LockName,
    LockState, Result, Support, Token, Wait,
};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::fault::{Fault, unavailable};
use crate::layout::Spot;
use crate::node::Card;
use crate::recipe::{Attempt, attempt, list};
use crate::session::Session;
use crate::sessions::Sessions;
use crate::{BACKEND, ZkConfig};

const NOT_BUILT: &str = "they are not built for ZooKeeper yet";

/// The ZooKeeper backend.
///
/// Processes get a lock in the order in which they asked, and a release wakes only the next ones. A lock lasts as
/// long as the session of its holder; a guard stops believing in it a quarter of the session timeout before a server
/// may end the session. The token is the number of the transaction that made the holder's node (its `czxid`), which
/// grows for as long as the ensemble keeps its data.
#[derive(Debug)]
pub struct Zk {
    capabilities: Capabilities,
    sessions: Arc<Sessions>,
}

impl Zk {
    /// Opens a session; see [`ZkConfig::connect`], which gives [`Locks`](lock_core::Locks) at once.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a bad option or a missing chroot, [`ErrorKind::Unavailable`] when no server
    /// answers, [`ErrorKind::Denied`] when they refuse the credentials.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, a session that was just opened is closed again.
    pub async fn connect(config: ZkConfig) -> Result<Self> {
        config.check()?;
        let sessions = Sessions::open(config).await?;
        let timeout = sessions.get().await?.timeout();
        let mut capabilities = Capabilities::new(BACKEND, LeaseKind::Session { timeout });
        (capabilities.fifo, capabilities.counts_waiters) = (true, true);
        (capabilities.shared, capabilities.permits) = (Support::No(NOT_BUILT), Support::No(NOT_BUILT));
        Ok(Self { capabilities, sessions })
    }

    fn spot(&self, name: &LockName) -> Arc<Spot> {
        let config = self.sessions.config();
        Arc::new(Spot::new(config.base(), name, config.node_layout()))
    }

    /// A session, and the error for one that does not answer about this lock.
    async fn session(&self, spot: &Spot) -> Result<(Arc<Session>, Error)> {
        let session = self.sessions.get().await?;
        let silent = unavailable(&format!("no answer about {} within {:?}", spot.dir, session.patience()));
        Ok((session, silent))
    }
}

#[async_trait]
impl Backend for Zk {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        let spot = self.spot(&request.name);
        let chroot = self.sessions.config().chroot_path();
        let mut outage = Outage::default();
        loop {
            let session = match outage.end(&self.sessions, request.wait).await {
                Ok(Some(session)) => session,
                Ok(None) => return Ok(Acquired::Busy),
                Err(error) => return Err(error),
            };
            match attempt(&session, &spot, chroot, &request).await? {
                Attempt::Held(lease) => return Ok(Acquired::Held(lease)),
                Attempt::Busy => return Ok(Acquired::Busy),
                Attempt::Again { answered } => outage.begin(&session, answered),
            }
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let spot = self.spot(name);
        loop {
            let (session, silent) = self.session(&spot).await?;
            match timeout(session.patience(), inspect(&session, &spot)).await {
                Err(_) => return Err(silent),
                Ok(Err(Fault::Over)) => {}
                Ok(answer) => return answer.map_err(|fault| fault.on(&spot.dir)),
            }
        }
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        let spot = self.spot(name);
        let mut sent = None;
        loop {
            let (session, silent) = self.session(&spot).await?;
            match timeout(session.patience(), break_lock(&session, &spot, &mut sent)).await {
                Err(_) => return Err(silent),
                Ok(Err(Fault::Over)) => {}
                Ok(answer) => return answer.map_err(|fault| fault.on(&spot.dir)),
            }
        }
    }

    async fn close(&self) -> Result<()> {
        let farewells = self.sessions.close().into_iter().map(|session| async move { session.close().await });
        join_all(farewells).await.into_iter().collect()
    }
}

/// The loss of the session while a lock is waited for.
#[derive(Debug, Default)]
struct Outage {
    /// Until when a new session is tried for.
    until: Option<Instant>,
    /// Whether a server has shown us the queue.
    answered: bool,
    count: u32,
}

impl Outage {
    /// It began with the end of this session, unless that goes on.
    fn begin(&mut self, session: &Session, answered: bool) {
        self.answered |= answered;
        if session.is_over() {
            self.count += 1;
            self.until = Some(Instant::now() + session.timeout() / 2);
        }
    }

    /// A session, or nothing when the time for waiting is over.
    async fn end(&self, sessions: &Arc<Sessions>, wait: Wait) -> Result<Option<Arc<Session>>> {
        let Some(until) = self.until else { return sessions.get().await.map(Some) };
        if wait.is_over() && (self.answered || self.count > 1) {
            return if self.answered {
                Ok(None)
            } else {
                Err(unavailable("the session ended again and again"))
            };
        }
        match wait {
            Wait::Until(deadline) if self.answered => {
                timeout_at(deadline, Self::try_until(until, sessions)).await.unwrap_or(Ok(None))
            }
            _ => Self::try_until(until, sessions).await,
        }
    }

    async fn try_until(until: Instant, sessions: &Arc<Sessions>) -> Result<Option<Arc<Session>>> {
        loop {
            let session = timeout_at(until, sessions.get()).await;
            match session.unwrap_or_else(|_| Err(unavailable("no new session could be opened in time"))) {
                Err(error) if error.kind() == ErrorKind::Unavailable && Instant::now() < until => {
                    tracing::debug!(%error, "no new session yet");
                    sleep(RECONNECT_PAUSE).await;
                }
                session => return session.map(Some),
            }
        }
    }
}

async fn inspect(session: &Session, spot: &Spot) -> Result<LockState, Fault> {
    loop {
        let queue = list(session, spot).await?.unwrap_or_default();
        let Some(holder) = queue.contenders.first() else { return Ok(LockState::free()) };
        let path = spot.child(&holder.name);
        let (data, stat) = match session.insist(|| session.data(&path)).await {
            // It has just released the lock.
            Err(fault) if fault.is_no_node() => continue,
            answer => answer?,
        };
        let mut state = LockState::held(read_holder(&holder.name, &data));
        state.since =
            u64::try_from(stat.ctime).ok().map(|ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
        state.token = u64::try_from(stat.czxid).ok().map(Token::new);
        state.waiters = queue.contenders.len() - 1;
        return Ok(state);
    }
}

/// Deletes the node of the holder, and of nobody else. `sent` is the one whose deletion may have reached a server.
async fn break_lock(session: &Session, spot: &Spot, sent: &mut Option<String>) -> Result<bool, Fault> {
    loop {
        let queue = list(session, spot).await?.unwrap_or_default();
        let holder = queue.contenders.into_iter().next().map(|holder| holder.name);
        if sent.is_some() && *sent != holder {
            return Ok(true);
        }
        let Some(holder) = holder else { return Ok(false) };
        let earlier = sent.replace(holder.clone());
        match session.delete(&spot.child(&holder)).await {
            Ok(()) => return Ok(true),
            Err(fault) if fault.is_no_node() && earlier.is_some() => return Ok(true),
            // It was released just now, and the next one holds it.
            Err(fault) if fault.is_no_node() => *sent = None,
            Err(Fault::Unknown(_)) => sleep(RECONNECT_PAUSE).await,
            Err(fault) => return Err(fault),
        }
    }
}

fn read_holder(name: &str, data: &[u8]) -> Holder {
    if let Ok(card) = serde_json::from_slice::<Card>(data) {
        return Holder::Known(card.info);
    }
    let text: String = String::from_utf8_lossy(data).chars().take(LONGEST_TEXT).collect();
    Holder::Foreign(if text.is_empty() {
        format!("node {name}")
    } else {
        format!("node {name} with data {text:?}")
    })
}

const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_TEXT: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::OwnerInfo;

    #[test]
    fn foreign_holders_are_told_in_readable_text() {
        let text = |data: &[u8]| read_holder("lock-0000000001", data).to_string();
        assert_eq!(text(b"10.0.0.7"), "node lock-0000000001 with data \"10.0.0.7\"");
        assert_eq!(text(b""), "node lock-0000000001");
        assert_eq!(text(b"\x00\xff\n"), "node lock-0000000001 with data \"\\0\u{fffd}\\n\"");
        assert!(text(&[b'x'; 5000]).len() < 300);
        let card = Card { info: OwnerInfo::this_process().with_label("job"), owner: "7".into() };
        let holder = read_holder("n", &serde_json::to_vec(&card).unwrap());
        assert_eq!(holder, Holder::Known(card.info));
    }
}
