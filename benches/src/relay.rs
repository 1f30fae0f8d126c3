//! The bare hand-over: processes pass a turn on in a circle, by as few requests as a lock can do with.
//!
//! Redis: one script that names the next owner and publishes to it, the `SET` by which that one makes sure of it, and one
//! by which it said before that it waits. ZooKeeper: the deletion of a node, the watch of the next one for it, and the
//! creation before. Neither has a queue, tokens or leases to
//! speak of: what a lock takes beyond this is its own.

use std::time::Duration;

use futures_util::StreamExt as _;
use lock_redis::{connection_info, with_nodelay};
use lock_testkit::history::ReleaseOutcome;
use polylock::backend::LockUrl;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{Client, Cmd};
use tokio::sync::Mutex;
use tokio::time::sleep;
use zookeeper_client::{Acls, Client as ZkClient, CreateMode, Error as ZkError, OneshotWatcher};

use crate::address;
use crate::contender::Contender;
use crate::failure::{Failure, Outcome};
use crate::floor::zk_session;

/// The place of one process in the circle.
pub(crate) enum Relay {
    /// Over one Redis server.
    Redis(Mutex<OnRedis>),
    /// Over a ZooKeeper session.
    Zk(Mutex<OnZk>),
}

impl Relay {
    /// The place with this number, of so many.
    ///
    /// # Errors
    ///
    /// When the servers do not let us in.
    pub(crate) async fn connect(url: &str, name: &str, number: u32, of: u32) -> Outcome<Self> {
        Ok(match LockUrl::parse(url)?.scheme.as_str() {
            "zk" => Self::Zk(Mutex::new(OnZk::connect(url, name, number, of).await?)),
            _ => Self::Redis(Mutex::new(OnRedis::connect(url, name, number, of).await?)),
        })
    }
}

impl Contender for Relay {
    type Held = ();

    async fn acquire(&self) -> Outcome<()> {
        match self {
            Self::Redis(place) => place.lock().await.acquire().await,
            Self::Zk(place) => place.lock().await.acquire().await,
        }
    }

    async fn release(&self, (): ()) -> Outcome<ReleaseOutcome> {
        match self {
            Self::Redis(place) => place.lock().await.release().await?,
            Self::Zk(place) => place.lock().await.release().await?,
        }
        Ok(ReleaseOutcome::Released)
    }
}

/// A connection for commands, and one for messages.
pub(crate) struct OnRedis {
    commands: MultiplexedConnection,
    messages: PubSub,
    wait: Cmd,
    confirm: Cmd,
    pass_on: Cmd,
    begins: bool,
}

impl OnRedis {
    async fn connect(url: &str, name: &str, number: u32, of: u32) -> Outcome<Self> {
        let host = address::hosts(url).first().copied().unwrap_or_default();
        let client = Client::open(with_nodelay(connection_info("redis", &LockUrl::parse(url)?, host)?))?;
        let mut commands = client.get_multiplexed_async_connection().await?;
        let mut messages = client.get_async_pubsub().await?;
        let channel = |number| format!("{name}:{number}");
        let (own, next) = (channel(number), channel((number + 1) % of));
        messages.subscribe(&own).await?;
        let hash: String =
            redis::cmd("SCRIPT").arg("LOAD").arg(NAME_AND_PUBLISH).query_async(&mut commands).await?;
        let set = |key: &str, value: &str| {
            let mut set = redis::cmd("SET");
            set.arg(key).arg(value).arg("PX").arg(TTL_MS);
            set
        };
        let (wait, confirm) = (set(&own, ""), set(name, &own));
        let mut pass_on = redis::cmd("EVALSHA");
        pass_on.arg(hash).arg(1).arg(name).arg(next);
        Ok(Self { commands, messages, wait, confirm, pass_on, begins: number == 0 })
    }

    async fn acquire(&mut self) -> Outcome<()> {
        if !std::mem::take(&mut self.begins) {
            self.wait.exec_async(&mut self.commands).await?;
            if self.messages.on_message().next().await.is_none() {
                return Err(Failure::new("the connection for messages has ended"));
            }
        }
        Ok(self.confirm.exec_async(&mut self.commands).await?)
    }

    async fn release(&mut self) -> Outcome<()> {
        Ok(self.pass_on.exec_async(&mut self.commands).await?)
    }
}

/// A session, with a node of our own and one to watch.
pub(crate) struct OnZk {
    client: ZkClient,
    own: String,
    before: String,
    begins: bool,
    passed_on: bool,
}

impl OnZk {
    async fn connect(url: &str, name: &str, number: u32, of: u32) -> Outcome<Self> {
        let client = zk_session(url, SESSION).await?;
        let node = |number| format!("/{name}-{number}");
        let place = Self {
            client,
            own: node(number),
            before: node((number + of - 1) % of),
            begins: number == 0,
            passed_on: false,
        };
        place.create().await?;
        Ok(place)
    }

    async fn create(&self) -> Outcome<()> {
        let mode = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        self.client.create(&self.own, b"", &mode).await?;
        Ok(())
    }

    /// The others are connected by now, and whoever passed the turn on makes the next node at once.
    async fn watch(&self) -> Outcome<OneshotWatcher> {
        loop {
            match self.client.get_and_watch_data(&self.before).await {
                Ok((_, _, watch)) => return Ok(watch),
                Err(ZkError::NoNode) => sleep(Duration::from_micros(100)).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn acquire(&mut self) -> Outcome<()> {
        // The first round has its nodes already; later on there is time for them while the others have the turn.
        if std::mem::take(&mut self.passed_on) {
            self.create().await?;
        }
        if !std::mem::take(&mut self.begins) {
            self.watch().await?.changed().await;
        }
        Ok(())
    }

    async fn release(&mut self) -> Outcome<()> {
        self.passed_on = true;
        Ok(self.client.delete(&self.own, None).await?)
    }
}

const NAME_AND_PUBLISH: &str =
    "redis.call('SET', KEYS[1], ARGV[1], 'PX', 200) return redis.call('PUBLISH', ARGV[1], '')";
const TTL_MS: u64 = 10_000;
const SESSION: Duration = Duration::from_secs(10);
