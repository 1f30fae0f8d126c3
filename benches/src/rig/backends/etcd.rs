//! A client of etcd beside those of the locks: by the same crates, with the messages that it needs, by their numbers.
//!
//! <https://github.com/etcd-io/etcd/blob/main/api/etcdserverpb/rpc.proto>

use futures_util::stream::{StreamExt as _, iter, pending};
use polylock::backend::LockUrl;
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use crate::data::{Failure, Outcome};
use crate::rig::url;

/// A connection to one member, without a login.
#[derive(Clone, Debug)]
pub(crate) struct Etcd(Channel);

/// What happens to a key from now on.
pub(crate) struct KeyWatch(Streaming<Watched>);

impl Etcd {
    pub(crate) async fn connect(url: &str) -> Outcome<Self> {
        let member = url::resolve(url::first_host(url), "etcd").await?;
        Ok(Self(Endpoint::from_shared(format!("http://{member}"))?.connect().await?))
    }

    /// Writes if the key was written so many times, which is zero for one that does not exist.
    pub(crate) async fn swap(&self, key: &str, writes: u64, value: &[u8]) -> Outcome<bool> {
        let key = key.as_bytes().to_vec();
        let writes = i64::try_from(writes)?;
        let put = Step { put: Some(Pair { key: key.clone(), other: value.to_vec() }) };
        let swap =
            Transaction { compares: vec![Compare { key, writes: Some(writes) }], on_success: vec![put] };
        Ok(self.ask::<_, Executed>("/etcdserverpb.KV/Txn", swap).await?.succeeded)
    }

    /// Returns once the server watches.
    pub(crate) async fn watch(&self, key: &str) -> Outcome<KeyWatch> {
        let create = Watch { create: Some(Key { key: key.as_bytes().to_vec() }) };
        let stays_open = Request::new(iter([create]).chain(pending()));
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let codec = ProstCodec::<Watch, Watched>::default();
        let mut watched = self.ready().await?.streaming(stays_open, path, codec).await?.into_inner();
        match watched.message().await? {
            Some(Watched { created: true, .. }) => Ok(KeyWatch(watched)),
            other => Err(Failure::new(format!("there is no watch: {other:?}"))),
        }
    }

    /// Deletes the keys that begin so.
    async fn delete_all(&self, prefix: &str) -> Outcome<()> {
        let (key, mut end) = (prefix.as_bytes().to_vec(), prefix.as_bytes().to_vec());
        *end.last_mut().ok_or_else(|| Failure::new("nothing is left of all"))? += 1;
        self.ask::<_, Ignored>("/etcdserverpb.KV/DeleteRange", Pair { key, other: end }).await.map(drop)
    }

    pub(super) async fn version(&self) -> Outcome<String> {
        Ok(self.ask::<_, Status>("/etcdserverpb.Maintenance/Status", Ignored {}).await?.version)
    }

    /// The id of a new lease of so many seconds.
    pub(crate) async fn lease(&self, seconds: i64) -> Outcome<i64> {
        Ok(self.ask::<_, Leased>("/etcdserverpb.Lease/LeaseGrant", Lease { seconds }).await?.id)
    }

    /// etcd's own lock: the server answers with its key when it is granted.
    pub(crate) async fn lock(&self, name: &str, lease: i64) -> Outcome<Vec<u8>> {
        let lock = Lock { name: name.as_bytes().to_vec(), lease };
        Ok(self.ask::<_, Locked>("/v3lockpb.Lock/Lock", lock).await?.key)
    }

    pub(crate) async fn unlock(&self, key: Vec<u8>) -> Outcome<()> {
        self.ask::<_, Ignored>("/v3lockpb.Lock/Unlock", Key { key }).await.map(drop)
    }

    async fn ready(&self) -> Outcome<Grpc<Channel>> {
        let mut grpc = Grpc::new(self.0.clone());
        grpc.ready().await?;
        Ok(grpc)
    }

    async fn ask<Q, A>(&self, path: &'static str, question: Q) -> Outcome<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (path, codec) = (PathAndQuery::from_static(path), ProstCodec::<Q, A>::default());
        Ok(self.ready().await?.unary(Request::new(question), path, codec).await?.into_inner())
    }
}

/// Removes the records of this run, and the values of the floor.
pub(super) async fn clean(url: &str, run: &str) -> Outcome<()> {
    let (etcd, path) = (Etcd::connect(url).await?, LockUrl::parse(url)?.path);
    let prefix = path.strip_prefix('/').filter(|prefix| !prefix.is_empty()).unwrap_or("polylock");
    etcd.delete_all(&format!("{prefix}/lock/{run}")).await?;
    etcd.delete_all(run).await
}

impl KeyWatch {
    /// Returns at the next change.
    pub(crate) async fn changed(&mut self) -> Outcome<()> {
        while let Some(watched) = self.0.message().await? {
            if !watched.events.is_empty() {
                return Ok(());
            }
        }
        Err(Failure::new("the watch has ended"))
    }
}

#[derive(Clone, PartialEq, Message)]
struct Transaction {
    #[prost(message, repeated, tag = "1")]
    compares: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    on_success: Vec<Step>,
}

/// For equality, with the number of writes: both are zero in the protocol.
#[derive(Clone, PartialEq, Message)]
struct Compare {
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(int64, optional, tag = "4")]
    writes: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Step {
    #[prost(message, optional, tag = "2")]
    put: Option<Pair>,
}

/// A key and its value, or the keys from this one up to another one.
#[derive(Clone, PartialEq, Message)]
struct Pair {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    other: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Key {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Executed {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Watch {
    #[prost(message, optional, tag = "1")]
    create: Option<Key>,
}

#[derive(Clone, PartialEq, Message)]
struct Watched {
    #[prost(bool, tag = "3")]
    created: bool,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Ignored>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Lease {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Leased {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Lock {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Locked {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

/// Unknown fields are skipped.
#[derive(Clone, PartialEq, Message)]
struct Ignored {}
