//! Inspects locks: their holders and waiters, and which locks exist.

use futures_util::future::{try_join, try_join_all};
use lock_core::{Holder, HolderInfo, LockName, LockState, Mode, OwnerId, WaiterInfo};
use zookeeper_client::Stat;

use crate::error::Fault;
use crate::nodes::lock_path::{LockPath, name_of};
use crate::nodes::node_data::{NodeData, Origin};
use crate::nodes::token_base::TokenBase;
use crate::recipes::queue::{Contender, is_readers, list};
use crate::sessions::session::Session;

/// The state of the lock, and the nodes in its directory that are not in the queue.
pub(crate) async fn inspect(
    session: &Session,
    base: &TokenBase,
    lock: &LockPath,
) -> Result<(LockState, Vec<String>), Fault> {
    loop {
        let contenders = look(session, lock).await?;
        if contenders.holders.is_empty() {
            return Ok((LockState::free(), contenders.unnumbered));
        }
        let waiters = contenders.waiters.len();
        let shown = contenders.waiters.into_iter().take(LockState::MAX_QUEUE);
        let holders = read_all(contenders.holders, |node| read_holder(session, base, lock, node));
        let queue = read_all(shown.collect(), |node| read_waiter(session, node));
        let (holders, queue) = try_join(holders, queue).await?;
        // All of them have just released the lock.
        if holders.is_empty() {
            continue;
        }
        let mut state = LockState::held(holders);
        (state.waiters, state.queue) = (waiters, queue);
        return Ok((state, contenders.unnumbered));
    }
}

/// The contenders that one look shows.
#[derive(Debug, Default)]
pub(crate) struct Contenders {
    pub(crate) holders: Vec<ContenderNode>,
    waiters: Vec<ContenderNode>,
    /// The nodes in the directory that are not in the queue.
    unnumbered: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct ContenderNode {
    pub(crate) path: String,
    pub(crate) mode: Mode,
}

pub(crate) async fn look(session: &Session, lock: &LockPath) -> Result<Contenders, Fault> {
    let queue = list(session, lock).await?.unwrap_or_default();
    let (holders, waiters) = queue.holders_and_waiters();
    let nodes = |all: Vec<&Contender>| {
        let node = |one: &Contender| ContenderNode { path: lock.child(&one.name), mode: one.mode };
        all.into_iter().map(node).collect()
    };
    Ok(Contenders { holders: nodes(holders), waiters: nodes(waiters), unnumbered: queue.unnumbered })
}

/// The holders of the lock. A server that knows of none may lag, so it is asked once more when it has caught up with the quorum.
pub(crate) async fn look_for_holders(
    session: &Session,
    lock: &LockPath,
) -> Result<Vec<ContenderNode>, Fault> {
    let holders = look(session, lock).await?.holders;
    if !holders.is_empty() {
        return Ok(holders);
    }
    catch_up(session, lock).await?;
    Ok(look(session, lock).await?.holders)
}

/// Lets the server apply all that was committed so far.
pub(crate) async fn catch_up(session: &Session, lock: &LockPath) -> Result<(), Fault> {
    session.retry_until_definite(|| session.pass_quorum(&lock.dir)).await
}

/// The locks below this directory whose names have this prefix.
pub(crate) async fn list_locks(session: &Session, dir: &str, prefix: &str) -> Result<Vec<LockName>, Fault> {
    let children = match session.retry_until_definite(|| session.children(dir)).await {
        Err(fault) if fault.is_no_node() => return Ok(Vec::new()),
        children => children?,
    };
    let names = children.iter().filter_map(|child| name_of(dir, child));
    Ok(names.filter(|name| name.as_str().starts_with(prefix)).collect())
}

/// What these nodes say, without those that were just deleted.
async fn read_all<T, F: Future<Output = Result<Option<T>, Fault>>>(
    mut nodes: Vec<ContenderNode>,
    read: impl Fn(ContenderNode) -> F,
) -> Result<Vec<T>, Fault> {
    let mut all = Vec::new();
    while !nodes.is_empty() {
        let rest = nodes.split_off(nodes.len().min(AT_ONCE));
        all.extend(try_join_all(nodes.into_iter().map(&read)).await?.into_iter().flatten());
        nodes = rest;
    }
    Ok(all)
}

async fn read_holder(
    session: &Session,
    base: &TokenBase,
    lock: &LockPath,
    node: ContenderNode,
) -> Result<Option<HolderInfo>, Fault> {
    let Some(read) = ReadNode::at(session, node.path).await? else { return Ok(None) };
    let mut holder = HolderInfo::new(read.holder(), node.mode.into());
    holder.id = read.parsed().and_then(|data| OwnerId::decode(&data.owner));
    if let Some(origin) = read.origin(lock) {
        // In a queue, the node was created when its client began to wait.
        match lock.node_name(&read.path) {
            "" => holder.since = origin.time(),
            _ => holder.asked = origin.time(),
        }
        holder.token = base.token(session, origin.czxid).await.ok().flatten().map(|minted| minted.token);
    }
    Ok(Some(holder))
}

async fn read_waiter(session: &Session, node: ContenderNode) -> Result<Option<WaiterInfo>, Fault> {
    let Some(read) = ReadNode::at(session, node.path).await? else { return Ok(None) };
    let mut waiter = WaiterInfo::new(read.holder(), node.mode.into());
    waiter.since = read.creation().and_then(|creation| creation.time());
    Ok(Some(waiter))
}

/// A node that was read, or may not be read.
#[derive(Debug)]
pub(crate) struct ReadNode {
    pub(crate) path: String,
    /// None if the ACL forbids to read it.
    data: Option<Vec<u8>>,
    /// None if the server [hides](Fault::forbids_reading) it, too.
    pub(crate) stat: Option<Stat>,
}

impl ReadNode {
    pub(crate) async fn at(session: &Session, path: String) -> Result<Option<Self>, Fault> {
        match session.retry_until_definite(|| session.data(&path)).await {
            Err(fault) if fault.is_no_node() => Ok(None),
            Err(fault) if fault.forbids_reading() => Self::hidden_at(session, path).await,
            answer => answer.map(|(data, stat)| Some(Self { path, data: Some(data), stat: Some(stat) })),
        }
    }

    async fn hidden_at(session: &Session, path: String) -> Result<Option<Self>, Fault> {
        match session.retry_until_definite(|| session.stat(&path)).await {
            Err(fault) if fault.forbids_reading() => Ok(Some(Self { path, data: None, stat: None })),
            answer => Ok(answer?.map(|stat| Self { path, data: None, stat: Some(stat) })),
        }
    }

    fn creation(&self) -> Option<Origin> {
        self.stat.as_ref().map(|stat| Origin { czxid: stat.czxid, ctime: stat.ctime })
    }

    fn parsed(&self) -> Option<NodeData> {
        self.data.as_deref().and_then(NodeData::parse)
    }

    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// The origin of a holder's lock, if known. A downgraded reader's is in its data; if that was overwritten, as by a
    /// revocation request, or may not be read, it is unknown whether the reader was a writer.
    pub(crate) fn origin(&self, lock: &LockPath) -> Option<Origin> {
        match self.parsed() {
            Some(data) => data.writer.or_else(|| self.creation()),
            None => self.creation().filter(|_| !is_readers(lock.node_name(&self.path))),
        }
    }

    fn holder(&self) -> Holder {
        match &self.data {
            Some(data) => holder(self.name(), data),
            None => Holder::Unknown(format!("node {}, which this client may not read", self.name())),
        }
    }
}

fn holder(name: &str, data: &[u8]) -> Holder {
    if let Some(data) = NodeData::parse(data) {
        return Holder::Known(data.info);
    }
    let text: String = String::from_utf8_lossy(data).chars().take(LONGEST_TEXT).collect();
    Holder::Foreign(if text.is_empty() {
        format!("node {name}")
    } else {
        format!("node {name} with data {text:?}")
    })
}

/// How many nodes are read at once.
const AT_ONCE: usize = 64;
const LONGEST_TEXT: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::OwnerInfo;

    #[test]
    fn other_clients_are_shown_as_readable_text() {
        let text = |data: &[u8]| holder("lock-0000000001", data).to_string();
        assert_eq!(text(b"10.0.0.7"), "node lock-0000000001 with data \"10.0.0.7\"");
        assert_eq!(text(b""), "node lock-0000000001");
        assert_eq!(text(b"\x00\xff\n"), "node lock-0000000001 with data \"\\0\u{fffd}\\n\"");
        assert!(text(&[b'x'; 5000]).len() < 300);
        let data = NodeData::new(OwnerInfo::this_process().with_label("job"), "7".into());
        let known = holder("n", &data.to_bytes());
        assert_eq!(known, Holder::Known(data.info));
    }
}
