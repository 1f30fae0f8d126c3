//! What etcd is asked, and answers: the fields of its protocol that are used here, with their numbers.
//!
//! <https://github.com/etcd-io/etcd/blob/main/api/etcdserverpb/rpc.proto>. Unknown fields of answers are skipped.

use std::fmt::{self, Debug};
use std::iter;

use prost::Message;

/// Where requests go.
pub(crate) const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(crate) const TRANSACTION: &str = "/etcdserverpb.KV/Txn";
pub(crate) const WATCH: &str = "/etcdserverpb.Watch/Watch";
pub(crate) const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// `Compare.target`: the revision of the last change, zero for a key that does not exist. `Compare.result` is "equal", which is zero.
const BY_REVISION: i32 = 2;
/// `WatchCreateRequest.FilterType`: no events of deletions.
const NO_DELETIONS: i32 = 1;

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct Login {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct LoggedIn {
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}

/// A read. It is linearizable, as it does not ask for another one.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Range {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    /// Up to this key; empty for one key.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(bool, tag = "8")]
    pub(crate) keys_only: bool,
    #[prost(bool, tag = "9")]
    pub(crate) count_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Found {
    #[prost(message, repeated, tag = "2")]
    pub(crate) values: Vec<Value>,
    #[prost(int64, tag = "4")]
    pub(crate) count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Value {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    /// The revision of the last change.
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Transaction {
    #[prost(message, repeated, tag = "1")]
    compares: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    on_success: Vec<Step>,
    #[prost(message, repeated, tag = "3")]
    on_failure: Vec<Step>,
}

#[derive(Clone, PartialEq, Message)]
struct Compare {
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    /// One of several: it is sent also if it is zero.
    #[prost(int64, optional, tag = "6")]
    revision: Option<i64>,
}

/// One of these.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Step {
    #[prost(message, optional, tag = "1")]
    range: Option<Range>,
    #[prost(message, optional, tag = "2")]
    put: Option<Put>,
    #[prost(message, optional, tag = "3")]
    delete: Option<Delete>,
}

#[derive(Clone, PartialEq, Message)]
struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Executed {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    steps: Vec<StepDone>,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct StepDone {
    #[prost(message, optional, tag = "1")]
    range: Option<Found>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Watch {
    #[prost(message, optional, tag = "1")]
    create: Option<WatchCreate>,
}

#[derive(Clone, PartialEq, Message)]
struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(int32, repeated, tag = "5")]
    filters: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Watched {
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    #[prost(message, optional, tag = "2")]
    pub(crate) notice: Option<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AskStatus {}

/// What a member says of itself.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberStatus {
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    /// Of its database, in bytes.
    #[prost(int64, tag = "3")]
    pub(crate) size: i64,
    /// Zero before 3.6.
    #[prost(int64, tag = "12")]
    pub(crate) quota: i64,
}

/// Without the password.
impl Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Without the token.
impl Debug for LoggedIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoggedIn").finish_non_exhaustive()
    }
}

impl Range {
    pub(crate) fn one(key: &[u8]) -> Self {
        Self { key: key.to_vec(), ..Self::default() }
    }

    /// How many keys begin so.
    pub(crate) fn count(prefix: &[u8]) -> Self {
        Self { count_only: true, ..Self::keys(prefix, None, 0) }
    }

    /// The first keys that begin so and come after another one. None is the last of all: keys are text, which has no byte of 0xff.
    pub(crate) fn keys(prefix: &[u8], after: Option<Vec<u8>>, limit: i64) -> Self {
        let mut end = prefix.to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        // The next key there could be.
        let next = after.map(|after| [after, vec![0]].concat());
        let key = next.unwrap_or_else(|| prefix.to_vec());
        Self { key, end, limit, keys_only: true, ..Self::default() }
    }
}

impl Step {
    pub(crate) fn put(key: &[u8], value: &[u8]) -> Self {
        Self { put: Some(Put { key: key.to_vec(), value: value.to_vec() }), ..Self::default() }
    }

    pub(crate) fn delete(key: &[u8]) -> Self {
        Self { delete: Some(Delete { key: key.to_vec() }), ..Self::default() }
    }
}

impl Transaction {
    /// Writes a value, and takes more steps, if the last change of the key is of this revision, and else reads the key.
    pub(crate) fn swap(key: &[u8], revision: i64, value: &[u8], more: impl Iterator<Item = Step>) -> Self {
        let compare = Compare { target: BY_REVISION, key: key.to_vec(), revision: Some(revision) };
        let on_success = iter::once(Step::put(key, value)).chain(more).collect();
        let read = Step { range: Some(Range::one(key)), ..Step::default() };
        Self { compares: vec![compare], on_success, on_failure: vec![read] }
    }
}

impl Executed {
    /// The revision of what was written.
    pub(crate) fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }

    /// What was read instead.
    pub(crate) fn found(self) -> Option<Value> {
        self.steps.into_iter().next()?.range?.values.into_iter().next()
    }
}

impl Watch {
    /// What is written from now on.
    pub(crate) fn new(key: &[u8]) -> Self {
        Self { create: Some(WatchCreate { key: key.to_vec(), filters: vec![NO_DELETIONS] }) }
    }
}
