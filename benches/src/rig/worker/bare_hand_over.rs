//! The bare hand-over: processes take turns in a ring, by the fewest requests that a lock needs.
//!
//! * Redis: a `SET` that announces the wait, a script that names the next owner and publishes to it, and the `SET` that
//!   confirms.
//! * PostgreSQL: a row that announces the wait, an update that names the next owner and notifies it, and the update that
//!   confirms.
//! * etcd: a watch, a swap that writes the key which the next owner watches, and the swap that confirms.
//! * ZooKeeper: the creation of a node, a watch on the node before it, and that node's deletion.
//!
//! There are no queue, tokens and leases: what a lock takes beyond this is its own cost.

use std::time::Duration;

use futures_util::StreamExt as _;
use lock_testkit::history::ReleaseOutcome;
use redis::Cmd;
use redis::aio::{MultiplexedConnection, PubSub};
use tokio::sync::{Mutex, mpsc};
use tokio_postgres::types::Type;
use tokio_postgres::{Client as Session, Statement};
use zookeeper_client::{Acls, Client as ZkClient, CreateMode, Error as ZkError};

use crate::data::{Failure, Outcome};
use crate::rig::backends::etcd::{Etcd, KeyWatch};
use crate::rig::backends::{postgres, redis as redis_servers, zk as zk_servers};
use crate::rig::floor::{Floor, make_table};
use crate::rig::measured_lock::MeasuredLock;
use crate::rig::url;

/// A process in a ring of processes. It has the lock from its turn on until it hands over.
pub(crate) trait InRing: Floor {
    /// The process with this number in a ring of `of` processes.
    fn connect(url: &str, name: &str, number: u32, of: u32) -> impl Future<Output = Outcome<Self>>;
}

/// The turns of a process as a lock.
pub(crate) struct Turns<P>(Mutex<P>);

impl<P: InRing> Turns<P> {
    pub(crate) async fn connect(url: &str, name: &str, number: u32, of: u32) -> Outcome<Self> {
        Ok(Self(Mutex::new(P::connect(url, name, number, of).await?)))
    }
}

impl<P: InRing> MeasuredLock for Turns<P> {
    type Held = ();

    async fn acquire(&self) -> Outcome<()> {
        self.0.lock().await.acquire().await
    }

    async fn release(&self, (): ()) -> Outcome<ReleaseOutcome> {
        self.0.lock().await.release().await?;
        Ok(ReleaseOutcome::Released)
    }
}

pub(crate) struct OnRedis {
    commands: MultiplexedConnection,
    messages: PubSub,
    wait: Cmd,
    confirm: Cmd,
    pass_on: Cmd,
    begins: bool,
}

impl InRing for OnRedis {
    async fn connect(url: &str, name: &str, number: u32, of: u32) -> Outcome<Self> {
        let client = redis_servers::client(url, url::first_host(url))?;
        let mut commands = client.get_multiplexed_async_connection().await?;
        let mut messages = client.get_async_pubsub().await?;
        let channel = |number| format!("{name}:{number}");
        let (own, next) = (channel(number), channel((number + 1) % of));
        messages.subscribe(&own).await?;
        let hash: String =
            redis::cmd("SCRIPT").arg("LOAD").arg(NAME_NEXT_AND_PUBLISH).query_async(&mut commands).await?;
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
}

impl Floor for OnRedis {
    async fn acquire(&mut self) -> Outcome<()> {
        if !std::mem::take(&mut self.begins) {
            self.wait.exec_async(&mut self.commands).await?;
            if self.messages.on_message().next().await.is_none() {
                return Err(Failure::new("the pub/sub connection was closed"));
            }
        }
        Ok(self.confirm.exec_async(&mut self.commands).await?)
    }

    async fn release(&mut self) -> Outcome<()> {
        Ok(self.pass_on.exec_async(&mut self.commands).await?)
    }
}

/// A session with a node for each round.
///
/// The node of the next round is created before that of this round is deleted. So when the next process does not find the
/// node of this round, it was deleted already: however late it looks, no turn is lost.
pub(crate) struct OnZk {
    client: ZkClient,
    name: String,
    number: u32,
    of: u32,
    round: u64,
}

impl InRing for OnZk {
    async fn connect(url: &str, name: &str, number: u32, of: u32) -> Outcome<Self> {
        let client = zk_servers::connect(url, SESSION).await?;
        let place = Self { client, name: name.to_owned(), number, of, round: 0 };
        place.create(0).await?;
        Ok(place)
    }
}

impl OnZk {
    fn node(&self, number: u32, round: u64) -> String {
        format!("/{}-{number}-{round}", self.name)
    }

    async fn create(&self, round: u64) -> Outcome<()> {
        let mode = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        self.client.create(&self.node(self.number, round), b"", &mode).await?;
        Ok(())
    }

    /// The node whose deletion gives this process its turn; none for the very first turn.
    fn before(&self) -> Option<String> {
        match self.number.checked_sub(1) {
            Some(number) => Some(self.node(number, self.round)),
            None => Some(self.node(self.of - 1, self.round.checked_sub(1)?)),
        }
    }
}

impl Floor for OnZk {
    async fn acquire(&mut self) -> Outcome<()> {
        // Now, while others have the turn, it costs no time.
        self.create(self.round + 1).await?;
        let Some(before) = self.before() else { return Ok(()) };
        if self.round == 0 {
            // All nodes exist by now, but the server of this session may not have learned of the one before.
            self.client.sync("/").await?;
        }
        match self.client.get_and_watch_data(&before).await {
            Ok((_, _, deleted)) => drop(deleted.changed().await),
            Err(ZkError::NoNode) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    async fn release(&mut self) -> Outcome<()> {
        self.client.delete(&self.node(self.number, self.round), None).await?;
        self.round += 1;
        Ok(())
    }
}

/// A session for statements, and one that listens.
pub(crate) struct OnPostgres {
    session: Session,
    wait: Statement,
    confirm: Statement,
    pass_on: Statement,
    notified: mpsc::UnboundedReceiver<()>,
    _listener: Session,
    name: String,
    own: String,
    next: String,
    begins: bool,
}

impl InRing for OnPostgres {
    async fn connect(url: &str, name: &str, number: u32, of: u32) -> Outcome<Self> {
        let channel = |number| format!("{name}:{number}");
        let (own, next) = (channel(number), channel((number + 1) % of));
        let (notify, notified) = mpsc::unbounded_channel();
        let listener = postgres::listen(url, notify).await?;
        listener.batch_execute(&format!("LISTEN \"{own}\"")).await?;
        let session = postgres::connect(url).await?;
        make_table(&session).await?;
        let statement = |text: String| {
            let session = &session;
            async move { session.prepare_typed(&text, &[Type::TEXT, Type::TEXT]).await }
        };
        let row = format!(
            "INSERT INTO {} VALUES ($1, $2, 'infinity') ON CONFLICT (name) DO UPDATE",
            postgres::FLOOR
        );
        let wait = statement(format!("{row} SET owner = excluded.owner")).await?;
        let confirm =
            statement(format!("{row} SET expires_at = 'infinity' WHERE {}.owner = $2", postgres::FLOOR))
                .await?;
        let pass_on = statement(format!(
            "WITH handed AS (UPDATE {} SET owner = $2, expires_at = now() WHERE name = $1 RETURNING owner) \
             SELECT pg_notify(owner, '') FROM handed",
            postgres::FLOOR
        ))
        .await?;
        let name = name.to_owned();
        let begins = number == 0;
        Ok(Self { session, wait, confirm, pass_on, notified, _listener: listener, name, own, next, begins })
    }
}

impl Floor for OnPostgres {
    async fn acquire(&mut self) -> Outcome<()> {
        if !std::mem::take(&mut self.begins) {
            self.session.execute(&self.wait, &[&self.own, &self.own]).await?;
            if self.notified.recv().await.is_none() {
                return Err(Failure::new("the connection that listens was closed"));
            }
        }
        self.session.execute(&self.confirm, &[&self.name, &self.own]).await?;
        Ok(())
    }

    async fn release(&mut self) -> Outcome<()> {
        self.session.execute(&self.pass_on, &[&self.name, &self.next]).await?;
        Ok(())
    }
}

/// A watched key for each process, and one that confirms. Each is written by one process alone, which knows how often it was.
pub(crate) struct OnEtcd {
    etcd: Etcd,
    turn: KeyWatch,
    confirmed: String,
    next: String,
    round: u64,
    begins: bool,
}

impl InRing for OnEtcd {
    async fn connect(url: &str, name: &str, number: u32, of: u32) -> Outcome<Self> {
        let (etcd, turn_of) = (Etcd::connect(url).await?, |number| format!("{name}/turn/{number}"));
        let turn = etcd.watch(&turn_of(number)).await?;
        let (confirmed, next) = (format!("{name}/confirmed/{number}"), turn_of((number + 1) % of));
        Ok(Self { etcd, turn, confirmed, next, round: 0, begins: number == 0 })
    }
}

impl Floor for OnEtcd {
    async fn acquire(&mut self) -> Outcome<()> {
        if !std::mem::take(&mut self.begins) {
            self.turn.changed().await?;
        }
        swapped(self.etcd.swap(&self.confirmed, self.round, self.confirmed.as_bytes()).await?)
    }

    async fn release(&mut self) -> Outcome<()> {
        let swap = self.etcd.swap(&self.next, self.round, self.next.as_bytes()).await?;
        self.round += 1;
        swapped(swap)
    }
}

fn swapped(is_written: bool) -> Outcome<()> {
    if is_written { Ok(()) } else { Err(Failure::new("a bare swap was refused")) }
}

const NAME_NEXT_AND_PUBLISH: &str =
    "redis.call('SET', KEYS[1], ARGV[1], 'PX', 200) return redis.call('PUBLISH', ARGV[1], '')";
const TTL_MS: u64 = 10_000;
const SESSION: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use lock_testkit::{EtcdServer, PostgresServer, RedisServer, ZkEnsemble, ZooKeeper};
    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test]
    async fn a_late_process_misses_no_turn() {
        goes_round::<OnRedis>(&RedisServer::start().await.unwrap().url()).await;
        goes_round::<OnPostgres>(&PostgresServer::start().await.unwrap().url()).await;
        goes_round::<OnZk>(&ZooKeeper::start().await.unwrap().url()).await;
        if !EtcdServer::is_missing() {
            goes_round::<OnEtcd>(&EtcdServer::start().await.unwrap().url()).await;
        }
    }

    #[tokio::test]
    async fn a_late_process_misses_no_turn_on_an_ensemble() {
        goes_round::<OnZk>(&ZkEnsemble::start().await.unwrap().url()).await;
    }

    /// The second of two processes begins long after the first had its turn and handed over.
    async fn goes_round<P: InRing>(url: &str) {
        let [mut first, mut second] =
            [P::connect(url, "circle", 0, 2).await.unwrap(), P::connect(url, "circle", 1, 2).await.unwrap()];
        let late = async {
            sleep(Duration::from_millis(20)).await;
            turns(&mut second).await;
        };
        let round = async { tokio::join!(turns(&mut first), late) };
        timeout(Duration::from_secs(10), round).await.expect("the turn is lost");
    }

    async fn turns(place: &mut impl Floor) {
        for _ in 0..3 {
            place.acquire().await.unwrap();
            place.release().await.unwrap();
        }
    }
}
