//! The tree of nodes, as one server knows it.

use std::collections::BTreeMap;

use lock_zk::zookeeper_client::{CreateMode, Error, MultiWriteError, MultiWriteResult, Stat};

/// What is asked of a server.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create { path: String, data: Vec<u8>, mode: CreateMode },
    Delete { path: String, version: Option<i32> },
    Set { path: String, data: Vec<u8>, version: Option<i32> },
    Check { path: String, version: Option<i32> },
    Multi(Vec<Self>),
    Stat { path: String, watch: bool },
    Data { path: String, watch: bool },
    Children { path: String },
    Sync,
}

impl Op {
    /// Whether the leader decides what becomes of it.
    pub(crate) const fn is_write(&self) -> bool {
        !matches!(self, Self::Stat { .. } | Self::Data { .. } | Self::Children { .. } | Self::Sync)
    }
}

/// What a server answers.
#[derive(Debug)]
pub(crate) enum Response {
    Done,
    Created(String, Stat),
    Stat(Option<Stat>),
    Data(Vec<u8>, Stat),
    Children(Vec<String>, Stat),
    Multi(Result<Vec<MultiWriteResult>, MultiWriteError>),
}

/// A change that the leader has decided on.
#[derive(Clone, Debug)]
pub(crate) enum Txn {
    Create { path: String, data: Vec<u8>, owner: i64, container: bool },
    Delete { path: String },
    Set { path: String, data: Vec<u8> },
}

/// The event for the watches of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Created,
    Deleted,
    Changed,
}

#[derive(Clone, Debug)]
struct Node {
    data: Vec<u8>,
    stat: Stat,
    /// How many nodes were ever made below it, which is the next sequence number.
    made: i32,
    children: i32,
    container: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Tree {
    nodes: BTreeMap<String, Node>,
    /// Whether containers may not be written.
    guarded: bool,
}

impl Tree {
    pub(crate) fn new() -> Self {
        let root =
            Node { data: Vec::new(), stat: new_stat(0, 0, 0, 0), made: 0, children: 0, container: false };
        Self { nodes: BTreeMap::from([("/".to_owned(), root)]), guarded: false }
    }

    /// From now on containers may not be written.
    pub(crate) const fn guard(&mut self) {
        self.guarded = true;
    }

    /// Decides about a write, and applies it. Returns what the other servers have to do.
    pub(crate) fn decide(
        &mut self,
        op: &Op,
        session: i64,
        zxid: i64,
        now: i64,
    ) -> (Vec<Txn>, Result<Response, Error>) {
        let mut draft = Vec::new();
        let Op::Multi(parts) = op else {
            let answer = self.decide_one(op, session, zxid, now, &mut draft);
            return (draft, answer);
        };
        let before = self.clone();
        let mut results = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let result = match self.decide_one(part, session, zxid, now, &mut draft) {
                Ok(Response::Created(path, stat)) => MultiWriteResult::Create { path, stat },
                Ok(Response::Stat(Some(stat))) => MultiWriteResult::SetData { stat },
                Ok(_) if matches!(part, Op::Check { .. }) => MultiWriteResult::Check,
                Ok(_) => MultiWriteResult::Delete,
                Err(source) => {
                    *self = before;
                    let failed = MultiWriteError::OperationFailed { index, source };
                    return (Vec::new(), Ok(Response::Multi(Err(failed))));
                }
            };
            results.push(result);
        }
        (draft, Ok(Response::Multi(Ok(results))))
    }

    fn decide_one(
        &mut self,
        op: &Op,
        session: i64,
        zxid: i64,
        now: i64,
        draft: &mut Vec<Txn>,
    ) -> Result<Response, Error> {
        let txn = match op {
            Op::Create { path, data, mode } => {
                let above = self.nodes.get(parent(path)).ok_or(Error::NoNode)?;
                let sequential =
                    matches!(mode, CreateMode::EphemeralSequential | CreateMode::PersistentSequential);
                let ephemeral = matches!(mode, CreateMode::Ephemeral | CreateMode::EphemeralSequential);
                let path = if sequential { format!("{path}{:010}", above.made) } else { path.clone() };
                if self.nodes.contains_key(&path) {
                    return Err(Error::NodeExists);
                }
                if above.stat.ephemeral_owner != 0 {
                    return Err(Error::NoChildrenForEphemerals);
                }
                let container = matches!(mode, CreateMode::Container);
                Txn::Create {
                    path,
                    data: data.clone(),
                    owner: if ephemeral { session } else { 0 },
                    container,
                }
            }
            Op::Delete { path, version } => {
                let node = self.check(path, *version)?;
                if node.children > 0 {
                    return Err(Error::NotEmpty);
                }
                Txn::Delete { path: path.clone() }
            }
            Op::Set { path, data, version } => {
                if self.check(path, *version)?.container && self.guarded {
                    return Err(Error::NoAuth);
                }
                Txn::Set { path: path.clone(), data: data.clone() }
            }
            Op::Check { path, version } => {
                self.check(path, *version)?;
                return Ok(Response::Done);
            }
            other => panic!("{other:?} is no write"),
        };
        self.apply(&txn, zxid, now);
        let answer = match &txn {
            Txn::Create { path, .. } => Response::Created(path.clone(), self.nodes[path].stat()),
            Txn::Set { path, .. } => Response::Stat(Some(self.nodes[path].stat())),
            Txn::Delete { .. } => Response::Done,
        };
        draft.push(txn);
        Ok(answer)
    }

    fn check(&self, path: &str, version: Option<i32>) -> Result<&Node, Error> {
        let node = self.nodes.get(path).ok_or(Error::NoNode)?;
        match version {
            Some(version) if version != -1 && version != node.stat.version => Err(Error::BadVersion),
            _ => Ok(node),
        }
    }

    /// Does what the leader has decided on.
    pub(crate) fn apply(&mut self, txn: &Txn, zxid: i64, now: i64) {
        match txn {
            Txn::Create { path, data, owner, container } => {
                let stat = new_stat(zxid, now, *owner, data.len());
                let node = Node { data: data.clone(), stat, made: 0, children: 0, container: *container };
                self.nodes.insert(path.clone(), node);
                self.above(path, zxid, 1);
            }
            Txn::Delete { path } => {
                self.nodes.remove(path);
                self.above(path, zxid, -1);
            }
            Txn::Set { path, data } => {
                let Some(node) = self.nodes.get_mut(path) else { return };
                node.data.clone_from(data);
                (node.stat.mzxid, node.stat.mtime) = (zxid, now);
                node.stat.version += 1;
                node.stat.data_length = data.len() as i32;
            }
        }
    }

    fn above(&mut self, path: &str, zxid: i64, by: i32) {
        if let Some(node) = self.nodes.get_mut(parent(path)) {
            node.children += by;
            node.made += by.max(0);
            node.stat.pzxid = zxid;
        }
    }

    pub(crate) fn read(&self, op: &Op) -> Result<Response, Error> {
        let node = |path: &String| self.nodes.get(path).ok_or(Error::NoNode);
        match op {
            Op::Stat { path, .. } => Ok(Response::Stat(self.stat(path))),
            Op::Data { path, .. } => node(path).map(|node| Response::Data(node.data.clone(), node.stat())),
            Op::Children { path } => {
                node(path).map(|node| Response::Children(self.children(path), node.stat()))
            }
            other => panic!("{other:?} does not read"),
        }
    }

    pub(crate) fn stat(&self, path: &str) -> Option<Stat> {
        self.nodes.get(path).map(Node::stat)
    }

    fn children(&self, path: &str) -> Vec<String> {
        let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        let below = self.nodes.range(prefix.clone()..).take_while(|(path, _)| path.starts_with(&prefix));
        let names = below.map(|(path, _)| &path[prefix.len()..]);
        names.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned).collect()
    }

    /// The ephemeral nodes of a session, or of all.
    pub(crate) fn ephemerals(&self, of: Option<i64>) -> Vec<String> {
        let nodes = self.nodes.iter().filter(|(_, node)| match of {
            Some(session) => node.stat.ephemeral_owner == session,
            None => node.stat.ephemeral_owner != 0,
        });
        nodes.map(|(path, _)| path.clone()).collect()
    }

    /// Containers that have been used and are empty.
    pub(crate) fn to_reap(&self) -> Vec<String> {
        let nodes =
            self.nodes.iter().filter(|(_, node)| node.container && node.made > 0 && node.children == 0);
        nodes.map(|(path, _)| path.clone()).collect()
    }
}

impl Node {
    fn stat(&self) -> Stat {
        let (made, children) = (self.made, self.children);
        Stat { cversion: made * 2 - children, num_children: children, ..self.stat }
    }
}

impl Txn {
    pub(crate) fn change(&self) -> (&str, Change) {
        match self {
            Self::Create { path, .. } => (path, Change::Created),
            Self::Delete { path } => (path, Change::Deleted),
            Self::Set { path, .. } => (path, Change::Changed),
        }
    }
}

pub(crate) fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(at) if at > 0 => &path[..at],
        _ => "/",
    }
}

fn new_stat(zxid: i64, now: i64, ephemeral_owner: i64, length: usize) -> Stat {
    Stat {
        czxid: zxid,
        mzxid: zxid,
        pzxid: zxid,
        ctime: now,
        mtime: now,
        version: 0,
        cversion: 0,
        aversion: 0,
        ephemeral_owner,
        data_length: length as i32,
        num_children: 0,
    }
}
