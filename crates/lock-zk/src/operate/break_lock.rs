//! Breaks a lock: deletes the nodes of its holders.

use std::mem;
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result, Token};
use tokio::time::sleep;
use zookeeper_client::Stat;

use crate::error::{Fault, error};
use crate::nodes::lock_path::LockPath;
use crate::nodes::node::{CreatedNode, Deletion};
use crate::nodes::token_base::TokenBase;
use crate::operate::inspect::{ReadNode, catch_up, look, look_for_holders};
use crate::recipes::queue::downgraded_name;
use crate::recipes::release::delete_once;
use crate::sessions::session::Session;

/// Deletes the nodes of the holders that one look shows, or `only` that with this token. Returns whether the lock was
/// held.
pub(crate) async fn break_lock(
    session: &Session,
    lock: &LockPath,
    only: Option<(&TokenBase, Token)>,
    progress: &mut Option<Breaking>,
) -> Result<Result<bool>, Fault> {
    loop {
        let breaking = match (&mut *progress, only) {
            (Some(breaking), _) => breaking,
            (None, None) => progress.insert(Breaking::look(session, lock).await?),
            (None, Some((base, token))) => match Breaking::find(session, base, lock, token).await? {
                Ok(found) => progress.insert(found),
                Err(error) => return Ok(Err(error)),
            },
        };
        let free = breaking.free;
        breaking.delete_all(session, lock).await?;
        if free || breaking.held {
            return Ok(Ok(breaking.held));
        }
        // All of them have just released it or become readers, and there are other holders.
        *progress = None;
    }
}

#[derive(Debug)]
pub(crate) struct Breaking {
    /// Whether there was no holder.
    free: bool,
    /// The holders whose nodes may still exist.
    left: Vec<HolderNode>,
    /// Whether a deletion of the last of them may have reached a server.
    sent: bool,
    /// Whether one of the deletions took the lock from its holder.
    held: bool,
    /// Whether a deletion had an effect, or may have.
    in_doubt: bool,
}

#[derive(Debug)]
struct HolderNode {
    node: CreatedNode,
    session: i64,
}

impl Breaking {
    fn of(free: bool, left: Vec<HolderNode>) -> Self {
        Self { free, left, sent: false, held: false, in_doubt: false }
    }

    async fn look(session: &Session, lock: &LockPath) -> Result<Self, Fault> {
        let mut left = Vec::new();
        let holders = look_for_holders(session, lock).await?;
        let free = holders.is_empty();
        for holder in holders {
            left.extend(HolderNode::at(session, holder.path).await?);
        }
        Ok(Self::of(free, left))
    }

    /// The holder with this token. A server that knows of none may lag, so it is asked once more when it has caught up.
    async fn find(
        session: &Session,
        base: &TokenBase,
        lock: &LockPath,
        token: Token,
    ) -> Result<Result<Self, Error>, Fault> {
        match Self::find_here(session, base, lock, token).await? {
            Ok(found) if !found.free => return Ok(Ok(found)),
            _ => catch_up(session, lock).await?,
        }
        Self::find_here(session, base, lock, token).await
    }

    /// The same, as the server of the session knows it.
    async fn find_here(
        session: &Session,
        base: &TokenBase,
        lock: &LockPath,
        token: Token,
    ) -> Result<Result<Self, Error>, Fault> {
        let (mut left, mut unknown) = (Vec::new(), false);
        for holder in look(session, lock).await?.holders {
            let Some(read) = ReadNode::at(session, holder.path).await? else { continue };
            let Some(origin) = read.origin(lock) else {
                unknown = true;
                continue;
            };
            match base.token(session, origin.czxid).await {
                Ok(Some(its)) if its.token == token => {
                    left.extend(read.stat.and_then(|stat| HolderNode::of(read.path, &stat)));
                }
                Ok(_) => {}
                Err(_) if session.has_ended() => return Err(Fault::SessionEnded),
                Err(error) => return Ok(Err(error)),
            }
        }
        if left.is_empty() && unknown {
            return Ok(Err(token_unknown(lock, token)));
        }
        Ok(Ok(Self::of(left.is_empty(), left)))
    }

    async fn delete_all(&mut self, session: &Session, lock: &LockPath) -> Result<(), Fault> {
        while let Some(holder) = self.left.last() {
            let retried = mem::replace(&mut self.sent, true);
            let deletion = match delete_once(session, lock, &holder.node, retried).await {
                Ok(deletion) => deletion,
                Err(Fault::Unknown(_)) => {
                    self.in_doubt = true;
                    sleep(PAUSE).await;
                    continue;
                }
                Err(fault) => {
                    self.in_doubt |= fault.is_in_doubt();
                    return Err(fault.doubted_if(self.in_doubt));
                }
            };
            self.in_doubt = true;
            // The first deletion may have been lost, and a downgrade may have replaced the node.
            let reader = if retried { holder.as_reader(session, lock).await? } else { None };
            self.held |= deletion == Deletion::Done && reader.is_none();
            self.left.pop();
            self.left.extend(reader);
            self.sent = false;
        }
        Ok(())
    }
}

impl HolderNode {
    async fn at(session: &Session, path: String) -> Result<Option<Self>, Fault> {
        match session.retry_until_definite(|| session.stat(&path)).await {
            // The deletion needs the path only.
            Err(fault) if fault.forbids_reading() => Ok(Self::new(path, UNKNOWN, UNKNOWN)),
            stat => Ok(stat?.and_then(|stat| Self::of(path, &stat))),
        }
    }

    fn of(path: String, stat: &Stat) -> Option<Self> {
        Self::new(path, stat.czxid, stat.ephemeral_owner)
    }

    fn new(path: String, czxid: i64, session: i64) -> Option<Self> {
        let digits = path.len();
        Some(Self { node: CreatedNode::at(path, digits, czxid)?, session })
    }

    /// The reader's node of the same holder that replaced this writer's node.
    async fn as_reader(&self, session: &Session, lock: &LockPath) -> Result<Option<Self>, Fault> {
        let reader = downgraded_name(lock.node_name(&self.node.path));
        let Some(reader) = reader else { return Ok(None) };
        let found = Self::at(session, lock.child(&reader)).await?;
        Ok(found.filter(|found| found.session == self.session))
    }
}

fn token_unknown(lock: &LockPath, token: Token) -> Error {
    let message = format!(
        "the data of a holder's node in {} was overwritten, as by a revocation request, or may not be read, so it is unknown \
         whether its token is {token}",
        lock.dir
    );
    let hint = "break the lock for all of its holders, or delete the node of that one";
    error(ErrorKind::Unsupported, message, hint)
}

/// The transaction, or the session, of a node that may not be read.
const UNKNOWN: i64 = 0;
/// The pause before a deletion that got no answer is repeated.
const PAUSE: Duration = Duration::from_millis(50);
