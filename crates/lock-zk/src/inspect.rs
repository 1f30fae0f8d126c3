//! What the nodes of a lock say about its holders and its waiters.

use futures_util::future::join_all;
use lock_core::{Error, ErrorKind, Holder, HolderInfo, LockState, Token, WaiterInfo};
use zookeeper_client::Stat;

use crate::backend::{ContenderNode, look};
use crate::error::Fault;
use crate::layout::LockPath;
use crate::node::{NodeData, Origin};
use crate::queue::is_readers;
use crate::session::Session;
use crate::token::Base;
use crate::{BACKEND, ZkRecipe};

/// The state of the lock, and what else is in its directory.
pub(crate) async fn inspect(
    session: &Session,
    base: &Base,
    lock: &LockPath,
) -> Result<(LockState, Vec<String>), Fault> {
    loop {
        let contenders = look(session, lock).await?;
        if contenders.holders.is_empty() {
            return Ok((LockState::free(), contenders.strangers));
        }
        let waiters = contenders.waiters.len();
        let shown = contenders.waiters.into_iter().take(LockState::MAX_QUEUE);
        let (holders, queue) = (contenders.holders.into_iter().map(Asked::Holder), shown.map(Asked::Waiter));
        let mut asked: Vec<_> = holders.chain(queue).collect();
        let (mut holders, mut queue) = (Vec::new(), Vec::new());
        while !asked.is_empty() {
            let rest = asked.split_off(asked.len().min(AT_ONCE));
            for read in join_all(asked.into_iter().map(|one| one.read(session, base, lock))).await {
                match read? {
                    Some(Read::Holder(holder)) => holders.push(holder),
                    Some(Read::Waiter(waiter)) => queue.push(waiter),
                    None => {}
                }
            }
            asked = rest;
        }
        // All of them have just released the lock.
        if holders.is_empty() {
            continue;
        }
        let mut state = LockState::held(holders);
        (state.waiters, state.queue) = (waiters, queue);
        return Ok((state, contenders.strangers));
    }
}

/// A node that is asked about.
enum Asked {
    Holder(ContenderNode),
    Waiter(ContenderNode),
}

enum Read {
    Holder(HolderInfo),
    Waiter(WaiterInfo),
}

impl Asked {
    /// What the node says; nothing when it has just gone.
    async fn read(self, session: &Session, base: &Base, lock: &LockPath) -> Result<Option<Read>, Fault> {
        let (Self::Holder(one) | Self::Waiter(one)) = &self;
        let Some(seen) = Seen::at(session, one.path.clone()).await? else { return Ok(None) };
        let (who, mode) = (seen.holder(), one.mode.into());
        if let Self::Waiter(_) = self {
            let mut waiter = WaiterInfo::new(who, mode);
            waiter.since = Origin { czxid: seen.stat.czxid, ctime: seen.stat.ctime }.time();
            return Ok(Some(Read::Waiter(waiter)));
        }
        let mut holder = HolderInfo::new(who, mode);
        if let Some(origin) = seen.origin(lock) {
            // The node of a queue was made when its client began to wait.
            match lock.recipe {
                ZkRecipe::Queue => holder.asked = origin.time(),
                _ => holder.since = origin.time(),
            }
            holder.token = base.token(session, origin.czxid).await.ok();
        }
        Ok(Some(Read::Holder(holder)))
    }
}

/// A node that was read.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) data: Vec<u8>,
    pub(crate) stat: Stat,
}

impl Seen {
    /// What is at this path, if there is something.
    pub(crate) async fn at(session: &Session, path: String) -> Result<Option<Self>, Fault> {
        match session.retry_until_definite(|| session.data(&path)).await {
            Err(fault) if fault.is_no_node() => Ok(None),
            answer => answer.map(|(data, stat)| Some(Self { path, data, stat })),
        }
    }

    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// How the node was made by which a holder got the lock. Of a reader that was a writer only its new node tells; where
    /// somebody has written over that, such as a wish for revocation, nobody knows whether it was one.
    pub(crate) fn origin(&self, lock: &LockPath) -> Option<Origin> {
        let of_this_node = Origin { czxid: self.stat.czxid, ctime: self.stat.ctime };
        match serde_json::from_slice::<NodeData>(&self.data) {
            Ok(card) => Some(card.writer.unwrap_or(of_this_node)),
            Err(_) => {
                Some(of_this_node).filter(|_| lock.recipe != ZkRecipe::Queue || !is_readers(self.name()))
            }
        }
    }

    fn holder(&self) -> Holder {
        read_holder(self.name(), &self.data)
    }
}

fn read_holder(name: &str, data: &[u8]) -> Holder {
    if let Ok(card) = serde_json::from_slice::<NodeData>(data) {
        return Holder::Known(card.info);
    }
    let text: String = String::from_utf8_lossy(data).chars().take(LONGEST_TEXT).collect();
    Holder::Foreign(if text.is_empty() {
        format!("node {name}")
    } else {
        format!("node {name} with data {text:?}")
    })
}

/// The error for a reader of which no token is known.
pub(crate) fn token_unknown(lock: &LockPath, token: Token) -> Error {
    Error::new(ErrorKind::Unsupported, BACKEND)
        .with_message(format!(
            "something was written over the node of a reader in {}, such as a request to give up the lock: it does not \
             tell whether its token is {token}",
            lock.dir
        ))
        .with_hint("break the lock for all of its holders, or delete the node of the one")
}

/// How many nodes are read at once.
const AT_ONCE: usize = 64;
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
        let card = NodeData::new(OwnerInfo::this_process().with_label("job"), "7".into());
        let holder = read_holder("n", &serde_json::to_vec(&card).unwrap());
        assert_eq!(holder, Holder::Known(card.info));
    }
}
