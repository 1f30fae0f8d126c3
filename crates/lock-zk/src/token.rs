//! Fencing tokens: the number of the transaction that made the node of a holder (its `czxid`), and a base to which that
//! is added.
//!
//! The base is one number for all locks of a `dir`, in a node beside their directories. There is none until somebody
//! [raises](lock_core::Guard::raise_token) a token, as those do who bring their locks along from another store whose
//! tokens were larger. It only grows, and only who holds a lock writes it, by compare-and-set, in one transaction with a
//! check of its own node.
//!
//! # Why tokens grow
//!
//! Let A hold a lock and B be its next holder. B's node was made after A's, so its czxid is the larger. It remains that
//! B's base is not older than A's, nor than what A raised it to. All that A read or wrote was in the tree before A's node
//! was deleted; and B's base is at least as new as that deletion:
//!
//! * B's session watches the node of the base, or its absence, from before B's node is made on (mostly from far before: for
//!   as long as a connection is open that has used it). A server applies transactions in their order, and sends to a
//!   session what happened in that order: a watch event comes before any other event, and before any answer, that shows
//!   the same or a later state ("Ordering guarantees" in the Programmer's Guide). It does not matter how far the
//!   server is behind the leader, as B learns of the grant from that same server.
//! * B takes the lock by one of two things. Either an answer, to a listing or to the creation of B's node, which shows
//!   that A's node is gone. Or the event that A's node was deleted, over a connection that has not broken since A's node
//!   was seen. So if the base changed before that deletion, its event is there when the grant is, and B reads the base
//!   again before it believes that it has a token. If there is no event, what B knows is as new as it must be.
//!   No round trip is needed to find out.
//! * When a connection breaks, the driver tells the next server what is watched before it sends anything else, and that
//!   server sends what was missed in any order. So B lists the queue again then ([`ConnectionContinuity`]), and the answer comes
//!   behind all of that. A server that is behind what answers have shown B by then refuses the session; but an event
//!   does not tell as of when it is. So when the base is read again, it is behind something that the quorum has committed
//!   meanwhile. A `sync` would not do: a leader that was cut off answers it, and may not know of the change.
//!
//! What [`inspect`](lock_core::Locks::inspect) shows is computed with the base as it is, so that it is too high for a
//! holder whose token is older than the last raise. Of a reader that was a writer its node tells which transaction
//! counts; where somebody has written over that, as a wish for revocation may, no token of readers is shown.
//!
//! A session that ends takes its watches and its locks along, and nothing that it knew is used by the next one.
//!
//! [`ConnectionContinuity`]: crate::session::ConnectionContinuity

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join;
use lock_core::{Error, ErrorKind, Result, Token};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout};
use zookeeper_client as zk;
use zookeeper_client::{CreateMode, Stat};

use crate::BACKEND;
use crate::ensemble::Change;
use crate::error::{Fault, Right};
use crate::session::{PAUSE, Session, Watch};
use crate::watches::{Claim, Need};

/// The base of the tokens, as one session knows it.
pub(crate) struct Base {
    path: String,
    claim: Arc<Claim>,
    known: Mutex<Known>,
    /// One reads at a time, mostly.
    reading: AsyncMutex<()>,
}

#[derive(Default)]
struct Known {
    /// The largest that was seen.
    number: u64,
    /// Ready when the number may not be the newest any more.
    watch: Option<Watch>,
    /// Whether it was asked for before, so that something may have been told of it that another server does not know.
    asked: bool,
}

/// Why the base cannot be raised.
pub(crate) enum NotRaised {
    /// Our node is gone.
    Lost,
    Failed(Error),
}

impl Base {
    /// The base of the locks beside this directory, of which nothing is known yet.
    pub(crate) fn beside(parent: &str, claim: Arc<Claim>) -> Arc<Self> {
        let path = format!("{}/{NODE}", if parent == "/" { "" } else { parent });
        Arc::new(Self { path, claim, known: Mutex::default(), reading: AsyncMutex::default() })
    }

    pub(crate) fn is_at(&self, parent: &str) -> bool {
        let above = self.path.strip_suffix(NODE).and_then(|path| path.strip_suffix('/'));
        above == Some(if parent == "/" { "" } else { parent })
    }

    /// Reads the base and watches it, unless what is known is the newest.
    pub(crate) async fn watch(&self, session: &Session) -> Result<u64> {
        if let Some(number) = self.newest() {
            return Ok(number);
        }
        // Whoever has the turn may not be polled, so nobody depends on it.
        let _turn = timeout(TURN, self.reading.lock()).await;
        if let Some(number) = self.newest() {
            return Ok(number);
        }
        let read = session.retry_until_definite(|| self.read_newest(session)).await;
        let (watch, data) = read.map_err(|fault| fault.on(&self.path))?;
        let number = data.map_or(Ok(0), |data| self.parse(&data))?;
        let mut known = self.known();
        // If somebody removes the node, tokens go on all the same as far as we know them.
        (known.number, known.watch) = (number.max(known.number), watch);
        Ok(known.number)
    }

    /// The token of a lock that was granted by now, whose node was made by this transaction.
    pub(crate) async fn token(&self, session: &Session, czxid: i64) -> Result<Token> {
        let number = self.watch(session).await?;
        let czxid = u64::try_from(czxid).map_err(|_| {
            let text = format!("the server says that transaction {czxid} made a node");
            Error::new(ErrorKind::Unexpected, BACKEND).with_message(text)
        })?;
        match number.checked_add(czxid).filter(|&token| i64::try_from(token).is_ok()) {
            Some(token) => Ok(Token::new(token)),
            None => Err(Error::new(ErrorKind::Exhausted, BACKEND)
                .with_message(format!("there are no tokens above {number} (in {})", self.path))
                .with_hint(
                    "begin again in another dir, and let the resources forget the tokens of this one",
                )),
        }
    }

    /// Lets the tokens of nodes that are made after the transaction `czxid` be larger than `floor`, for as long as the
    /// node `own` is there.
    pub(crate) async fn raise(
        &self,
        session: &Session,
        own: &str,
        czxid: u64,
        floor: Token,
    ) -> Result<(), NotRaised> {
        let needed = floor.get().saturating_sub(czxid);
        let until = Instant::now() + session.timeout();
        loop {
            let (number, version) = self.read(session).await.map_err(NotRaised::Failed)?;
            if number >= needed {
                return Ok(());
            }
            let fault = match self.write(session, own, needed, version).await {
                Ok(()) => {
                    let mut known = self.known();
                    known.number = known.number.max(needed);
                    return Ok(());
                }
                Err((Some(0), fault)) if fault.is_no_node() => return Err(NotRaised::Lost),
                Err((_, Fault::SessionEnded)) => return Err(NotRaised::Lost),
                Err((_, fault)) => fault,
            };
            // Somebody else raised it, or the answer was lost: what it is now tells.
            let again = matches!(
                fault,
                Fault::Unknown(_)
                    | Fault::Refused(zk::Error::BadVersion | zk::Error::NodeExists | zk::Error::NoNode)
            );
            if !again || Instant::now() >= until {
                return Err(NotRaised::Failed(fault.on(&self.path)));
            }
            tokio::time::sleep(PAUSE).await;
            let passed = session.retry_until_definite(|| session.pass_quorum(&self.path)).await;
            passed.map_err(|fault| NotRaised::Failed(fault.on(&self.path)))?;
        }
    }

    /// The number, if it is known that no newer one was seen.
    fn newest(&self) -> Option<u64> {
        let mut known = self.known();
        if known.watch.as_mut()?.now_or_never().is_some() {
            known.watch = None;
            return None;
        }
        Some(known.number)
    }

    /// As the quorum knows it, unless nothing was heard of it yet.
    async fn read_newest(&self, session: &Session) -> Result<(Option<Watch>, Option<Vec<u8>>), Fault> {
        if !mem::replace(&mut self.known().asked, true) {
            return self.read_and_watch(session).await;
        }
        let (passed, read) = join(session.pass_quorum(&self.path), self.read_and_watch(session)).await;
        passed.and(read)
    }

    /// There is no watch if the session has no room for it. Then the next one reads the number anew.
    async fn read_and_watch(&self, session: &Session) -> Result<(Option<Watch>, Option<Vec<u8>>), Fault> {
        let room = || self.claim.room(&self.path, Need::Must);
        loop {
            let read = match room() {
                Some(room) => {
                    session.watch_in(room, &self.path).await.map(|(watch, data, _)| (Some(watch), data))
                }
                None => session.data(&self.path).await.map(|(data, _)| (None, data)),
            };
            match read {
                Ok((watch, data)) => return Ok((watch, Some(data))),
                Err(fault) if fault.is_no_node() => {}
                Err(fault) => return Err(fault),
            }
            let (stat, watch) = match room() {
                Some(room) => {
                    let (stat, watch) = session.watch_absence_in(room, &self.path).await?;
                    (stat, Some(watch))
                }
                None => (session.stat(&self.path).await?, None),
            };
            if stat.is_none() {
                return Ok((watch, None));
            }
        }
    }

    /// What this server knows, which may be older than the newest.
    async fn read(&self, session: &Session) -> Result<(u64, Option<Stat>)> {
        match session.retry_until_definite(|| session.data(&self.path)).await {
            Ok((data, stat)) => Ok((self.parse(&data)?, Some(stat))),
            Err(fault) if fault.is_no_node() => Ok((0, None)),
            Err(fault) => Err(fault.on(&self.path)),
        }
    }

    async fn write(
        &self,
        session: &Session,
        own: &str,
        number: u64,
        before: Option<Stat>,
    ) -> Result<(), (Option<usize>, Fault)> {
        let (path, data, check) =
            (&self.path, number.to_string(), Change::Check { path: own, version: None });
        let (data, acl, mode) = (data.as_bytes(), session.acl().acls(), CreateMode::Persistent);
        let (write, right) = match before {
            Some(stat) => (Change::Set { path, data, version: Some(stat.version) }, Right::Write),
            None => (Change::Create { path, data, mode, acl }, Right::Create),
        };
        let written = session.multi(&[check, write]).await;
        written.map(drop).map_err(|(at, fault)| (at, fault.needing(right, path)))
    }

    fn parse(&self, data: &[u8]) -> Result<u64> {
        let number = std::str::from_utf8(data).ok().and_then(|text| text.parse().ok());
        number.filter(|&number| i64::try_from(number).is_ok()).ok_or_else(|| {
            Error::new(ErrorKind::InvalidConfig, BACKEND)
                .with_message(format!("the base of the tokens, {}, holds no number", self.path))
                .with_hint(
                    "write a number to it that is not smaller than the largest token that was ever granted",
                )
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Base").field("path", &self.path).finish_non_exhaustive()
    }
}

/// No directory of a lock has this name: they have no exclamation mark.
const NODE: &str = "!token-base";
/// How long one waits for what another one reads.
const TURN: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watches::Watches;

    #[test]
    fn the_base_is_beside_the_directories() {
        for (parent, path) in [("/", "/!token-base"), ("/locks", "/locks/!token-base")] {
            let base = Base::beside(parent, Watches::new("").claim(0));
            assert_eq!(base.path, path);
            assert!(base.is_at(parent) && !base.is_at("/lock") && !base.is_at("/lock/s"));
        }
        let base = Base::beside("/locks", Watches::new("").claim(0));
        assert_eq!(base.parse(b"17").unwrap(), 17);
        for bad in [&b""[..], b"-1", b"x", b"\xff", b"9223372036854775808"] {
            assert_eq!(base.parse(bad).unwrap_err().kind(), ErrorKind::InvalidConfig, "{bad:?}");
        }
    }
}
