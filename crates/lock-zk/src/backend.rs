//! The ZooKeeper backend.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
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
use crate::lease::REVOKE;
use crate::node::Card;
use crate::queue::Contender;
use crate::recipe::{Attempt, attempt, list};
use crate::session::Session;
use crate::sessions::Sessions;
use crate::{BACKEND, ZkConfig};

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
    /// The directories of which it was told that they hold nodes of others.
    strangers: Mutex<HashSet<String>>,
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
        (capabilities.shared, capabilities.permits) = (Support::Yes, Support::Yes);
        capabilities.revocation = Support::Yes;
        Ok(Self { capabilities, sessions, strangers: Mutex::default() })
    }

    fn spot(&self, name: &LockName) -> Arc<Spot> {
        let config = self.sessions.config();
        Arc::new(Spot::new(config.base(), name, config.node_layout()))
    }

    /// Tells once for each directory what is in it that has no place in the queue.
    fn report(&self, spot: &Spot, strangers: &[String]) {
        let mut reported = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        if let [first, others @ ..] = strangers
            && reported.insert(spot.dir.clone())
        {
            let (dir, others) = (&spot.dir, others.len());
            tracing::warn!(
                dir,
                first,
                others,
                "nodes without a sequence number are not looked at; move them elsewhere"
            );
        }
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
                Ok(answer) => {
                    let (state, strangers) = answer.map_err(|fault| fault.on(&spot.dir))?;
                    self.report(&spot, &strangers);
                    return Ok(state);
                }
            }
        }
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        let spot = self.spot(name);
        let mut broken = None;
        loop {
            let (session, silent) = self.session(&spot).await?;
            match timeout(session.patience(), break_lock(&session, &spot, &mut broken)).await {
                Err(_) => return Err(silent),
                Ok(Err(Fault::Over)) => {}
                Ok(answer) => return answer.map_err(|fault| fault.on(&spot.dir)),
            }
        }
    }

    async fn request_revocation(&self, name: &LockName) -> Result<bool> {
        let spot = self.spot(name);
        loop {
            let (session, silent) = self.session(&spot).await?;
            match timeout(session.patience(), request_revocation(&session, &spot)).await {
                Err(_) => return Err(silent),
                Ok(Err(Fault::Over)) => {}
                Ok(answer) => return answer.map_err(|fault| fault.on(&spot.dir)),
            }
        }
    }

    async fn close(&self) -> Result<()> {
        match self.sessions.close() {
            Some(session) => session.close().await,
            None => Ok(()),
        }
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

/// What the queue says, and what else is in the directory.
async fn inspect(session: &Session, spot: &Spot) -> Result<(LockState, Vec<String>), Fault> {
    loop {
        let queue = list(session, spot).await?.unwrap_or_default();
        let Some(holder) = queue.contenders.first() else { return Ok((LockState::free(), queue.strangers)) };
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
        state.waiters = queue.contenders.len() - queue.holders().len();
        return Ok((state, queue.strangers));
    }
}

/// What is taken from its holders.
#[derive(Debug)]
struct Broken {
    /// Those whose end is not known.
    left: Vec<String>,
    /// Whether a deletion of the last of them may have reached a server.
    sent: bool,
    /// Whether somebody held the lock until then.
    held: bool,
}

/// Deletes the nodes of those who hold the lock at one look, and of nobody else.
async fn break_lock(session: &Session, spot: &Spot, broken: &mut Option<Broken>) -> Result<bool, Fault> {
    loop {
        let now = match broken {
            Some(broken) => broken,
            None => {
                let queue = list(session, spot).await?.unwrap_or_default();
                let left: Vec<_> = queue.holders().iter().map(|holder| holder.name.clone()).collect();
                if left.is_empty() {
                    return Ok(false);
                }
                broken.insert(Broken { left, sent: false, held: false })
            }
        };
        now.end(session, spot).await?;
        if now.held {
            return Ok(true);
        }
        // All of them had released it just now, and the next ones hold it.
        *broken = None;
    }
}

impl Broken {
    async fn end(&mut self, session: &Session, spot: &Spot) -> Result<(), Fault> {
        while let Some(holder) = self.left.last() {
            let retried = std::mem::replace(&mut self.sent, true);
            match session.delete(&spot.child(holder)).await {
                Ok(()) => self.held = true,
                Err(fault) if fault.is_no_node() => self.held |= retried,
                Err(Fault::Unknown(_)) => {
                    sleep(RECONNECT_PAUSE).await;
                    continue;
                }
                Err(fault) => return Err(fault),
            }
            self.left.pop();
            self.sent = false;
        }
        Ok(())
    }
}

/// Asks all holders to give up the lock.
async fn request_revocation(session: &Session, spot: &Spot) -> Result<bool, Fault> {
    let queue = list(session, spot).await?.unwrap_or_default();
    let ask = |holder: &Contender| {
        let path = spot.child(&holder.name);
        async move { session.insist(|| session.set_data(&path, REVOKE, None)).await }
    };
    let mut held = false;
    for asked in join_all(queue.holders().iter().map(ask)).await {
        match asked {
            Ok(_) => held = true,
            // It has just released the lock.
            Err(fault) if fault.is_no_node() => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(held)
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
