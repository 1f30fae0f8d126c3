//! Fencing tokens, from the `czxid` of the holder's node: the id of the transaction that created it.
//!
//! | base of the `dir` | tokens of a grant |
//! |---|---|
//! | none | a [block](TokenBlock) of 16, from 16 × `czxid` on: tasks of the process may hand the lock over among themselves |
//! | numbers | one: a number of the base for each transaction |
//!
//! The base is that of all locks of a `dir`, in a node beside their directories. It does not exist until somebody
//! [raises](lock_core::Guard::raise_token) a token, as when locks move here from a store with larger tokens. Its numbers only
//! grow. Only a holder writes it, by compare-and-set, in one transaction with a check of its own node.
//!
//! Tokens above a base must not run ahead of the clock of a Redis that locks move from. So they are not in blocks, and an
//! election of a leader, which skips 2^32 transactions, does not skip as many of them: the base has [`TokenRanges`], and the
//! first holder that is granted a lock after an election extends it.
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
//! * After a reconnection, all watches have fired, or are set again before anything else is sent, and the server sends the missed
//!   events in any order. So B lists the queue again then ([`ConnectionContinuity`]), and the answer comes after all of them.
//!   What a session reads is not older than what it has read before; but an event does not tell its transaction.
//!   So when the base is read again, the read follows a write that the quorum committed meanwhile. A `sync` would not do: a
//!   leader that was cut off answers it, and may not know of the change.
//!
//! [`inspect`](lock_core::Locks::inspect) computes tokens with the current base, so the shown token is too high for a holder
//! whose token is older than the last raise. A downgraded reader's node names the transaction that counts. If that was
//! overwritten, as by a revocation request, no token of readers is shown.
//!
//! A new base counts as no less than 16 times the transaction that wrote it. So it is larger than all blocks of grants that do
//! not know of it, which come from earlier transactions. Whoever writes it later makes no number of it smaller: a later grant
//! has a larger one, whichever of both knew more.
//!
//! Sharers are granted a lock in any order. So a raise counts for nodes that are created after that of the raiser: another
//! sharer whose grant is older may still compute a smaller token than the floor.
//!
//! A session that ends takes its watches and its locks along, and the next session uses nothing of what it knew.
//!
//! [`ConnectionContinuity`]: crate::sessions::session::ConnectionContinuity

use lock_core::{Error, ErrorKind, Result, Token, TokenBlock};
use tokio::time::Instant;
use zookeeper_client::{self as zk, CreateMode, Stat};

use crate::error::{BACKEND, Fault, Right, Stop, doubted_if, error};
use crate::nodes::token_base::TokenBase;
use crate::nodes::token_ranges::TokenRanges;
use crate::sessions::ensemble::Change;
use crate::sessions::session::{PAUSE, Session};

/// The token of a grant.
pub(crate) struct Minted {
    pub(crate) token: Token,
    /// Whether the rest of its block is the holder's, too.
    pub(crate) is_block: bool,
}

/// Why the base is not written.
pub(crate) enum NotWritten {
    /// The own node does not exist any more.
    Lost,
    Failed(Error),
}

impl TokenBase {
    /// The base, and the transaction that wrote it. It is read and watched first unless what is known is the newest.
    pub(crate) async fn ranges(&self, session: &Session) -> Result<(TokenRanges, i64)> {
        let content = self.node.content(session).await.map_err(|fault| fault.on(self.path()))?;
        match content {
            Some(content) => {
                let ranges = self.parse(&content.data, &content.stat)?;
                Ok((self.saw(&ranges), content.stat.mzxid))
            }
            None => Ok((self.saw(&TokenRanges::default()), 0)),
        }
    }

    /// The token of a lock that has been granted, whose node `own` was created by this transaction. A base that does not reach
    /// it is extended first.
    pub(crate) async fn mint(&self, session: &Session, own: &str, czxid: i64) -> Result<Minted, Stop> {
        let stop = |error| if session.has_ended() { Stop::StartOver } else { Stop::Failed(error) };
        if let Some(minted) = self.token(session, czxid).await.map_err(stop)? {
            return Ok(minted);
        }
        let created = transaction(czxid).map_err(stop)?;
        // Boxed, to keep the future of an acquisition small.
        match Box::pin(self.change(session, own, |ranges| _ = ranges.reach(created))).await {
            Ok(()) => {}
            Err(NotWritten::Lost) => return Err(Stop::StartOver),
            Err(NotWritten::Failed(error)) => return Err(stop(error)),
        }
        // One that is older than what the base still knows queues up again.
        self.token(session, czxid).await.map_err(stop)?.ok_or(Stop::StartOver)
    }

    /// The token of a lock whose node was created by this transaction; none if the base does not reach it.
    pub(crate) async fn token(&self, session: &Session, czxid: i64) -> Result<Option<Minted>> {
        let (ranges, _) = self.ranges(session).await?;
        let (created, is_block) = (transaction(czxid)?, ranges.is_empty());
        let token = match is_block {
            true => created.saturating_mul(TokenBlock::SIZE),
            false => match ranges.token(created) {
                Some(token) => token,
                None => return Ok(None),
            },
        };
        match i64::try_from(TokenBlock::end(token)) {
            Ok(_) => Ok(Some(Minted { token: Token::new(token), is_block })),
            Err(_) => Err(self.exhausted()),
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
    ) -> Result<(), NotWritten> {
        self.change(session, own, |ranges| _ = ranges.raise(after, floor.get())).await
    }

    /// Changes the base while the node `own` exists, unless the node of the base has it all: also what this session has seen before,
    /// as somebody may have deleted it.
    async fn change(
        &self,
        session: &Session,
        own: &str,
        change: impl Fn(&mut TokenRanges) + Send,
    ) -> Result<(), NotWritten> {
        let until = Instant::now() + session.timeout;
        let mut in_doubt = false;
        loop {
            let failed = |error| NotWritten::Failed(doubted_if(in_doubt, error));
            let (written, version) = self.read(session).await.map_err(failed)?;
            let mut ranges = self.saw(&written);
            change(&mut ranges);
            if ranges == written {
                return Ok(());
            }
            if i64::try_from(ranges.end()).is_err() {
                return Err(failed(self.exhausted()));
            }
            let fault = match self.write(session, own, &ranges, version).await {
                Ok(()) => {
                    self.saw(&ranges);
                    return Ok(());
                }
                Err((Some(0), fault)) if fault.is_no_node() => return Err(NotWritten::Lost),
                Err((_, Fault::SessionEnded)) => return Err(NotWritten::Lost),
                Err((_, fault)) => fault,
            };
            // Another holder wrote it, or the answer was lost: the next read shows which.
            let again = matches!(
                fault,
                Fault::Unknown(_)
                    | Fault::Refused(zk::Error::BadVersion | zk::Error::NodeExists | zk::Error::NoNode)
            );
            if !again || Instant::now() >= until {
                return Err(failed(fault.on(self.path())));
            }
            in_doubt |= fault.is_in_doubt();
            tokio::time::sleep(PAUSE).await;
            let passed = session.retry_until_definite(|| session.pass_quorum(self.path())).await;
            passed.map_err(|fault| NotWritten::Failed(doubted_if(in_doubt, fault.on(self.path()))))?;
        }
    }

    /// Reads the base as this server knows it, which may be outdated.
    async fn read(&self, session: &Session) -> Result<(TokenRanges, Option<Stat>)> {
        match session.retry_until_definite(|| session.data(self.path())).await {
            Ok((data, stat)) => Ok((self.parse(&data, &stat)?, Some(stat))),
            Err(fault) if fault.is_no_node() => Ok((TokenRanges::default(), None)),
            Err(fault) => Err(fault.on(self.path())),
        }
    }

    async fn write(
        &self,
        session: &Session,
        own: &str,
        ranges: &TokenRanges,
        before: Option<Stat>,
    ) -> Result<(), (Option<usize>, Fault)> {
        let (path, data) = (self.path(), ranges.to_string());
        let (data, acl, mode) = (data.as_bytes(), session.acl.acls(), CreateMode::Persistent);
        let (write, right) = match before {
            Some(stat) => (Change::Set { path, data, version: Some(stat.version) }, Right::Write),
            None => (Change::Create { path, data, mode, acl }, Right::Create),
        };
        let written = session.multi(&[Change::Check { path: own, version: None }, write]).await;
        written.map(drop).map_err(|(at, fault)| (at, fault.needing(right, path)))
    }

    fn exhausted(&self) -> Error {
        error(
            ErrorKind::Exhausted,
            format!("there are no larger tokens (in {})", self.path()),
            "use another dir, and have the resources forget the tokens of this one",
        )
        .with_can_pass(false)
    }
}

fn transaction(zxid: i64) -> Result<u64> {
    u64::try_from(zxid).map_err(|_| {
        Error::new(ErrorKind::Unexpected, BACKEND)
            .with_message(format!("the server reports transaction {zxid} for a created node"))
    })
}
