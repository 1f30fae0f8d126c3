//! A client between us and real servers that loses requests and answers, and gives others in their place.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use lock_core::Locks;
use lock_testkit::ZooKeeper;
use lock_zk::zookeeper_client::{
    Acls, Connector, CreateMode, Error, MultiWriteError, MultiWriteResult, Stat,
};
use lock_zk::{Answer, Change, DriverSession, Ensemble, SessionClient, States, Watching, ZkConfig};
use tokio_util::sync::CancellationToken;

use crate::common::opened;

/// What becomes of a request.
pub(crate) enum Fate {
    Passes,
    /// The same, and it is noted.
    IsNoted,
    LosesAnswer,
    /// It is not sent, and this is the answer.
    Fails(Error),
    /// It is not sent before this ends.
    Waits(CancellationToken),
    /// The node that it creates gets this number.
    Numbered(&'static str),
}

/// A kind of request, as its method is called; the creation of a container is one of its own, and so is a mere check.
pub(crate) type Kind = &'static str;
/// Decides on each request, by its kind and the node that it is about first.
type Script = Box<dyn FnMut(Kind, &str) -> Fate + Send>;

/// Opens sessions whose requests end as the script says. Clones are the same.
#[derive(Clone)]
pub(crate) struct Meddler {
    hosts: String,
    script: Arc<Mutex<Script>>,
    met: Arc<Mutex<Vec<Kind>>>,
}

impl Meddler {
    pub(crate) fn new(server: &ZooKeeper) -> Self {
        let script: Script = Box::new(|_, _| Fate::Passes);
        Self { hosts: server.connect_string(), script: Arc::new(Mutex::new(script)), met: Arc::default() }
    }

    /// From now on requests end as this says.
    pub(crate) fn set(&self, script: impl FnMut(Kind, &str) -> Fate + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
        self.met.lock().unwrap().clear();
    }

    /// From now on all requests pass.
    pub(crate) fn heal(&self) {
        *self.script.lock().unwrap() = Box::new(|_, _| Fate::Passes);
    }

    /// The requests that did not just pass, since the script was set.
    pub(crate) fn met(&self) -> Vec<Kind> {
        self.met.lock().unwrap().clone()
    }

    /// A client of this library whose requests end as the script says.
    pub(crate) async fn locks(&self, config: ZkConfig) -> Locks {
        opened(&config.ensemble(Arc::new(self.clone()))).await
    }

    fn fate(&self, kind: Kind, path: &str) -> Fate {
        let fate = (self.script.lock().unwrap())(kind, path);
        if !matches!(fate, Fate::Passes) {
            self.met.lock().unwrap().push(kind);
        }
        fate
    }
}

impl fmt::Debug for Meddler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meddler").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

#[async_trait]
impl Ensemble for Meddler {
    async fn open(&self, session_timeout: Duration) -> Result<Arc<dyn SessionClient>, Error> {
        let connect = |connector: Connector, host: String| async move { connector.connect(&host).await };
        let inner = Arc::new(DriverSession::open(&self.hosts, session_timeout, connect).await?);
        Ok(Arc::new(Meddled { inner, meddler: self.clone() }))
    }
}

struct Meddled {
    inner: Arc<dyn SessionClient>,
    meddler: Meddler,
}

impl Fate {
    fn of<'a, T: Send + 'a>(self, ask: impl FnOnce() -> Answer<'a, T> + Send + 'a) -> Answer<'a, T> {
        match self {
            Self::Passes | Self::IsNoted => ask(),
            Self::Waits(over) => async move { over.cancelled().then(|()| ask()).await }.boxed(),
            Self::LosesAnswer => ask().map(|_| Err(Error::ConnectionLoss)).boxed(),
            Self::Fails(error) => ready(Err(error)).boxed(),
            Self::Numbered(_) => panic!("only creations get numbers"),
        }
    }
}

fn makes_container(change: &Change<'_>) -> bool {
    matches!(change, Change::Create { mode: CreateMode::Container, .. })
}

/// The same, with a node of this number.
fn numbered<'a>(change: Change<'a>, path: &'a str) -> Change<'a> {
    match change {
        Change::Create { data, acl, .. } => Change::Create { path, data, mode: CreateMode::Ephemeral, acl },
        change => change,
    }
}

impl SessionClient for Meddled {
    fn id(&self) -> i64 {
        self.inner.id()
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn states(&self) -> Box<dyn States> {
        self.inner.states()
    }

    fn create<'a>(
        &'a self,
        path: &'a str,
        data: &'a [u8],
        mode: CreateMode,
        acl: Acls<'a>,
    ) -> Answer<'a, (String, Stat)> {
        let kind = if mode == CreateMode::Container { "container" } else { "create" };
        match self.meddler.fate(kind, path) {
            Fate::Numbered(number) => async move {
                self.inner.create(&format!("{path}{number}"), data, CreateMode::Ephemeral, acl).await
            }
            .boxed(),
            fate => fate.of(move || self.inner.create(path, data, mode, acl)),
        }
    }

    fn delete<'a>(&'a self, path: &'a str, version: Option<i32>) -> Answer<'a, ()> {
        self.meddler.fate("delete", path).of(move || self.inner.delete(path, version))
    }

    fn stat<'a>(&'a self, path: &'a str) -> Answer<'a, Option<Stat>> {
        self.meddler.fate("stat", path).of(|| self.inner.stat(path))
    }

    fn watch_stat<'a>(&'a self, path: &'a str) -> Answer<'a, (Option<Stat>, Watching)> {
        self.meddler.fate("watch_stat", path).of(|| self.inner.watch_stat(path))
    }

    fn data<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<u8>, Stat)> {
        self.meddler.fate("data", path).of(|| self.inner.data(path))
    }

    fn watch_data<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<u8>, Stat, Watching)> {
        self.meddler.fate("watch_data", path).of(|| self.inner.watch_data(path))
    }

    fn set_data<'a>(&'a self, path: &'a str, data: &'a [u8], version: Option<i32>) -> Answer<'a, Stat> {
        self.meddler.fate("set_data", path).of(move || self.inner.set_data(path, data, version))
    }

    fn children<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<String>, Stat)> {
        self.meddler.fate("children", path).of(|| self.inner.children(path))
    }

    fn multi<'a>(
        &'a self,
        changes: &'a [Change<'a>],
    ) -> BoxFuture<'a, Result<Vec<MultiWriteResult>, MultiWriteError>> {
        let path = changes.first().map_or("", Change::path);
        let kind = match changes {
            [Change::Check { .. }] => "check",
            changes if changes.iter().any(makes_container) => "container",
            _ => "multi",
        };
        match self.meddler.fate(kind, path) {
            Fate::Passes | Fate::IsNoted => self.inner.multi(changes),
            Fate::Waits(over) => over.cancelled_owned().then(|()| self.inner.multi(changes)).boxed(),
            Fate::LosesAnswer => {
                let lost = |_| Err(MultiWriteError::RequestFailed { source: Error::ConnectionLoss });
                self.inner.multi(changes).map(lost).boxed()
            }
            Fate::Fails(source) => ready(Err(MultiWriteError::RequestFailed { source })).boxed(),
            Fate::Numbered(number) => async move {
                let path = format!("{path}{number}");
                let changes: Vec<_> = changes.iter().map(|change| numbered(*change, &path)).collect();
                self.inner.multi(&changes).await
            }
            .boxed(),
        }
    }
}
