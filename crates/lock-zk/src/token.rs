//! Fencing tokens, from the `czxid` of the holder's node: the id of the transaction that created it.
//!
//! | base of the `dir` | tokens of a grant |
//! |---|---|
//! | none | a [block](TokenBlock) of 16, from 16 × `czxid` on: tasks of the process may hand the lock over among themselves |
//! | a number | one: that number + `czxid` |
//!
//! The base is one number for all locks of a `dir`, in a node beside their directories. It does not exist until somebody
//! [raises](lock_core::Guard::raise_token) a token, as when locks move here from a store with larger tokens. It only
//! grows. Only a holder writes it, by compare-and-set, in one transaction with a check of its own node. Above a base tokens are
//! not in blocks, as an election of a leader skips 2^32 transactions: 16 times that, and tokens would soon be days ahead of
//! the clock of a Redis that locks move from, which remembers them for a limited time.
//!
//! # Why tokens grow
//!
//! Let A hold a lock and B be its next holder. B's node was created after A's, so its czxid is larger. B's base must also
//! be no older than A's, nor than what A raised it to. All that A read or wrote was in the tree before A's node was
//! deleted, and B's base is at least as new as that deletion:
//!
//! * B's session watches the node of the base, or its absence, from before B's node is created (mostly for as long as a
//!   connection is open that has used it). A server applies transactions in order, and sends events in that order: a watch
//!   event comes before any other event, and before any answer, that shows the same or a later state ("Ordering
//!   guarantees" in the Programmer's Guide). How far the server is behind the leader does not matter, as B learns of the
//!   grant from that same server.
//! * B is granted the lock in one of two ways. Either an answer, to a listing or to the creation of B's node, shows that
//!   A's node is deleted. Or the event of that deletion arrives, on a connection that has not broken since A's node was
//!   seen. So if the base changed before that deletion, its event arrives no later than the grant, and B reads the base
//!   again before it computes a token. Without an event, the base that B knows is new enough, at no round trip.
//! * After a reconnection, the driver sets the watches again before it sends anything else, and the server sends the missed
//!   events in any order. So B lists the queue again then ([`ConnectionContinuity`]), and the answer comes after all of them.
//!   A server that is behind the answers that B has seen refuses the session; but an event does not tell its transaction.
//!   So when the base is read again, the read follows a write that the quorum committed meanwhile. A `sync` would not do: a
//!   leader that was cut off answers it, and may not know of the change.
//!
//! [`inspect`](lock_core::Locks::inspect) computes tokens with the current base, so the shown token is too high for a holder
//! whose token is older than the last raise. A downgraded reader's node names the transaction that counts. If that was
//! overwritten, as by a revocation request, no token of readers is shown.
//!
//! A base counts as no less than 16 times the transaction that wrote it last. So it is larger than all blocks of grants that do
//! not know of it, which come from earlier transactions.
//!
//! A session that ends takes its watches and its locks along, and the next session uses nothing of what it knew.
//!
//! [`ConnectionContinuity`]: crate::session::ConnectionContinuity

use lock_core::{Error, ErrorKind, Result, Token, TokenBlock};
use tokio::time::Instant;
use zookeeper_client::{self as zk, CreateMode, Stat};

use crate::ensemble::Change;
use crate::error::{BACKEND, Fault, Right, error};
use crate::session::{PAUSE, Session};
use crate::token_base::{TokenBase, beyond_blocks};

/// The token of a grant.
pub(crate) struct Minted {
    pub(crate) token: Token,
    /// Whether the rest of its block is the holder's, too.
    pub(crate) is_block: bool,
}

/// Why the base cannot be raised.
pub(crate) enum NotRaised {
    /// The own node does not exist any more.
    Lost,
    Failed(Error),
}

impl TokenBase {
    /// The token of a lock that has been granted, whose node was created by this transaction.
    pub(crate) async fn token(&self, session: &Session, czxid: i64) -> Result<Minted> {
        let (number, _) = self.number(session).await?;
        let created = u64::try_from(czxid).map_err(|_| {
            Error::new(ErrorKind::Unexpected, BACKEND)
                .with_message(format!("the server reports transaction {czxid} for a created node"))
        })?;
        let is_block = number == 0;
        let token = match is_block {
            true => created.checked_mul(TokenBlock::SIZE),
            false => number.checked_add(created),
        };
        match token.filter(|&token| i64::try_from(TokenBlock::end(token)).is_ok()) {
            Some(token) => Ok(Minted { token: Token::new(token), is_block }),
            None => Err(error(
                ErrorKind::Exhausted,
                format!("there are no tokens above {number} (in {})", self.path()),
                "use another dir, and have the resources forget the tokens of this one",
            )),
        }
    }

    /// Raises the base while the node `own` exists, so that the tokens of nodes created after the transaction `after` are larger
    /// than `floor`.
    pub(crate) async fn raise(
        &self,
        session: &Session,
        own: &str,
        after: u64,
        floor: Token,
    ) -> Result<(), NotRaised> {
        let until = Instant::now() + session.timeout;
        loop {
            let (number, version) = self.read(session).await.map_err(NotRaised::Failed)?;
            let Some(needed) = self.needed(number, after, floor.get()) else { return Ok(()) };
            let fault = match self.write(session, own, needed, version).await {
                Ok(()) => {
                    self.saw(needed);
                    return Ok(());
                }
                Err((Some(0), fault)) if fault.is_no_node() => return Err(NotRaised::Lost),
                Err((_, Fault::SessionEnded)) => return Err(NotRaised::Lost),
                Err((_, fault)) => fault,
            };
            // Another holder raised it, or the answer was lost: the next read shows which.
            let again = matches!(
                fault,
                Fault::Unknown(_)
                    | Fault::Refused(zk::Error::BadVersion | zk::Error::NodeExists | zk::Error::NoNode)
            );
            if !again || Instant::now() >= until {
                return Err(NotRaised::Failed(fault.on(self.path())));
            }
            tokio::time::sleep(PAUSE).await;
            let passed = session.retry_until_definite(|| session.pass_quorum(self.path())).await;
            passed.map_err(|fault| NotRaised::Failed(fault.on(self.path())))?;
        }
    }

    /// The base for tokens beyond `floor`, unless they are beyond it with the present one.
    fn needed(&self, number: u64, after: u64, floor: u64) -> Option<u64> {
        let needed = floor.saturating_sub(after);
        match self.saw(number) {
            0 if (after + 1).saturating_mul(TokenBlock::SIZE) > floor => None,
            number => (number < needed).then_some(needed.max(1)),
        }
    }

    /// Reads the base as this server knows it, which may be outdated.
    async fn read(&self, session: &Session) -> Result<(u64, Option<Stat>)> {
        match session.retry_until_definite(|| session.data(self.path())).await {
            Ok((data, stat)) => Ok((beyond_blocks(self.parse(&data)?, &stat), Some(stat))),
            Err(fault) if fault.is_no_node() => Ok((0, None)),
            Err(fault) => Err(fault.on(self.path())),
        }
    }

    async fn write(
        &self,
        session: &Session,
        own: &str,
        number: u64,
        before: Option<Stat>,
    ) -> Result<(), (Option<usize>, Fault)> {
        let (path, data) = (self.path(), number.to_string());
        let (data, acl, mode) = (data.as_bytes(), session.acl.acls(), CreateMode::Persistent);
        let (write, right) = match before {
            Some(stat) => (Change::Set { path, data, version: Some(stat.version) }, Right::Write),
            None => (Change::Create { path, data, mode, acl }, Right::Create),
        };
        let written = session.multi(&[Change::Check { path: own, version: None }, write]).await;
        written.map(drop).map_err(|(at, fault)| (at, fault.needing(right, path)))
    }
}
