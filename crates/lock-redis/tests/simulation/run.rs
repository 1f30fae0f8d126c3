//! One run: clients on links to one server, what goes wrong, and what is left when it is over.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{Clock, Locks};
use lock_redis::redis::aio::{MultiplexedConnection, PubSub};
use lock_redis::redis::{
    AsyncConnectionConfig, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, PushInfo, RedisResult,
};
use lock_redis::{Dial, RedisConfig};
use lock_testkit::check::{Report, check};
use lock_testkit::fake::{Dice, FakeRedis, Faults, Link};
use lock_testkit::history::{EventKind, History, Mode as Share};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{sleep, timeout};

use crate::client::{Task, World, lock_name};
use crate::scenario::{Event, Scenario};

/// What became of a run.
pub(crate) struct Outcome {
    /// The judgement on its history.
    pub(crate) report: Report,
    /// What is wrong besides: locks that nobody gets, things that are left over.
    pub(crate) faults: Vec<String>,
    /// What happened, if it was asked for.
    pub(crate) log: Vec<String>,
}

impl Outcome {
    /// Whether the run kept every promise.
    pub(crate) fn holds(&self) -> bool {
        let verdict = self.report.verdict();
        verdict.l2 && verdict.l3 && verdict.token_order && self.faults.is_empty()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in &self.faults {
            writeln!(f, "{fault}")?;
        }
        self.report.fmt(f)
    }
}

/// Runs a scenario in virtual time.
pub(crate) fn run(scenario: &Scenario, with_log: bool) -> Outcome {
    lock_core::random::seed(scenario.seed);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // Tokio chooses by chance in which order it wakes who waits for the same thing.
    #[cfg(tokio_unstable)]
    runtime.rng_seed(tokio::runtime::RngSeed::from_bytes(&scenario.seed.to_le_bytes()));
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(simulate(scenario, with_log))
}

async fn simulate(scenario: &Scenario, with_log: bool) -> Outcome {
    let redis = FakeRedis::new();
    if with_log {
        redis.keep_log();
    }
    let mut dice = Dice::new(scenario.seed).fork(1);
    let clock = Clock::tokio();
    let links: Vec<Link> =
        (0..scenario.clients).map(|client| redis.link(format!("client {client}"), dice.number())).collect();
    let mut clients = Vec::new();
    for link in &links {
        clients.push(connect(scenario, &clock, link).await);
    }
    for link in &links {
        link.set_faults(scenario.faults.clone());
    }

    let (scenario, events) = (scenario.clone(), Mutex::default());
    let world = Arc::new(World { scenario, clock, redis, events });
    let mut faults = Vec::new();
    let spoiler = tokio::spawn(spoil(Arc::clone(&world), links));
    let tasks: Vec<_> = work(&world, &clients, &mut dice);
    for task in tasks {
        match timeout(LONGEST_RUN, task).await {
            Ok(ended) => ended.unwrap(),
            Err(_) => faults.push("a task hangs".to_owned()),
        }
    }
    spoiler.await.unwrap();
    if faults.is_empty() {
        look_for_locks_that_nobody_gets(&world, &clients, &mut faults).await;
        look_for_keys_that_are_left(&world, &mut faults).await;
        look_for_what_a_cancelled_acquisition_leaves(&world, &clients, &mut dice, &mut faults).await;
        look_for_connections_that_are_left(&world, clients, &mut faults).await;
    }
    let events = world.events.lock().unwrap().clone();
    Outcome { report: check(&History::new(events)), faults, log: world.redis.log() }
}

fn work(world: &Arc<World>, clients: &[Locks], dice: &mut Dice) -> Vec<tokio::task::JoinHandle<()>> {
    let mut tasks = Vec::new();
    for (client, locks) in clients.iter().enumerate() {
        for task in 0..world.scenario.tasks {
            let (world, locks, dice) = (Arc::clone(world), locks.clone(), dice.fork(task as u64));
            tasks.push(tokio::spawn(Task { world, locks, client, task, dice }.run()));
        }
    }
    tasks
}

/// Lets things go wrong, and makes them right in the end.
async fn spoil(world: Arc<World>, links: Vec<Link>) {
    let redis = &world.redis;
    for (at, event) in &world.scenario.events {
        world.clock.sleep_until(lock_core::BootInstant::from_boot(*at)).await;
        match *event {
            Event::Stall { client, span } => links[client].stall(span),
            Event::Reset { client } => links[client].reset(),
            Event::Restart { down, keep_data } => {
                redis.crash();
                sleep(down).await;
                redis.start_again(keep_data);
            }
            Event::Step { millis } => redis.step_clock(millis),
            Event::ForgetScripts => drop(redis.command(&["SCRIPT", "FLUSH"])),
            Event::Expire { lock } => drop(redis.expire(&format!("lock:{}", lock_name(lock)))),
        }
    }
    world.clock.sleep_until(lock_core::BootInstant::from_boot(world.scenario.chaos)).await;
    redis.note(|| "all is well again".to_owned());
    for link in &links {
        link.set_faults(Faults { delay_ms: 0..=2, ..Faults::default() });
        link.resume();
    }
}

/// Every lock ends or goes to who waits for it, within a lease and some slack.
async fn look_for_locks_that_nobody_gets(world: &World, clients: &[Locks], faults: &mut Vec<String>) {
    let limit = longest_lease(&world.scenario) + SLACK;
    for (client, locks) in clients.iter().enumerate() {
        for lock in (0..world.scenario.locks).map(lock_name) {
            world.record(client, LAST_TASK, &lock, EventKind::AcquireCalled);
            let got = timeout(limit, async {
                loop {
                    // A connection that broke before may be noticed only now.
                    match locks.mutex(&lock).acquire().await {
                        Ok(guard) => return guard,
                        Err(_) => sleep(Duration::from_millis(50)).await,
                    }
                }
            });
            let Ok(guard) = got.await else {
                faults.push(format!("client {client} does not get {lock} within {limit:?}"));
                continue;
            };
            let valid_until_ns = u64::try_from(guard.valid_until().since_boot().as_nanos()).ok();
            let token = Some(guard.token().get());
            let kind = EventKind::Acquired { token, valid_until_ns, mode: Share::Exclusive };
            world.record(client, LAST_TASK, &lock, kind);
            world.record(client, LAST_TASK, &lock, EventKind::ReleaseCalled);
            if !matches!(timeout(limit, guard.release()).await, Ok(Ok(_))) {
                faults.push(format!("client {client} cannot give {lock} back"));
            }
        }
    }
}

/// Nothing stays but the last tokens.
async fn look_for_keys_that_are_left(world: &World, faults: &mut Vec<String>) {
    // Requests that were held up may still arrive, and are looked for as long as a lease may last.
    sleep(longest_lease(&world.scenario) + SLACK).await;
    let left = world.redis.keys().into_iter().filter(|key| !key.starts_with("polylock:fence:"));
    faults.extend(left.map(|key| format!("the key {key} is left over")));
}

/// A cancelled acquisition is undone at once when all is well, not only when its lease is over.
async fn look_for_what_a_cancelled_acquisition_leaves(
    world: &World,
    clients: &[Locks],
    dice: &mut Dice,
    faults: &mut Vec<String>,
) {
    for locks in clients {
        let (lock, patience) = (lock_name(0), dice.millis(0..=5));
        drop(timeout(patience, locks.mutex(&lock).acquire()).await);
        sleep(Duration::from_millis(50)).await;
        if world.redis.keys().contains(&format!("lock:{lock}")) {
            faults.push(format!("an acquisition that was dropped after {patience:?} is still there"));
        }
    }
}

/// No connection stays when the clients are closed.
async fn look_for_connections_that_are_left(world: &World, clients: Vec<Locks>, faults: &mut Vec<String>) {
    for locks in clients {
        locks.close().await.unwrap();
    }
    sleep(SLACK * 6).await;
    if world.redis.connections() > 0 {
        faults.push(format!("{} connections are left open", world.redis.connections()));
    }
}

/// How long a key may live, asked for as late as can be.
fn longest_lease(scenario: &Scenario) -> Duration {
    scenario.ttl * 2 + scenario.timeout + scenario.steps_back()
}

async fn connect(scenario: &Scenario, clock: &Clock, link: &Link) -> Locks {
    let dial = Arc::new(SimulatedDial { link: link.clone(), timeout: scenario.timeout });
    let config = RedisConfig::new("redis://simulated".into_connection_info().unwrap())
        .dial(dial)
        .clock(clock.clone())
        .ttl(scenario.ttl)
        .wait(scenario.wait)
        .connect_timeout(scenario.timeout)
        .command_timeout(scenario.timeout);
    config.connect().await.unwrap()
}

/// Connects over a link in memory.
#[derive(Debug)]
struct SimulatedDial {
    link: Link,
    timeout: Duration,
}

#[async_trait]
impl Dial for SimulatedDial {
    async fn commands(&self, to: &ConnectionInfo) -> RedisResult<MultiplexedConnection> {
        self.open(to, AsyncConnectionConfig::new(), to.redis_settings().protocol()).await
    }

    async fn pushes(
        &self,
        to: &ConnectionInfo,
        told: UnboundedSender<PushInfo>,
    ) -> RedisResult<MultiplexedConnection> {
        self.open(to, AsyncConnectionConfig::new().set_push_sender(told), ProtocolVersion::RESP3).await
    }

    async fn messages(&self, to: &ConnectionInfo) -> RedisResult<PubSub> {
        PubSub::new(to.redis_settings(), self.link.connect()?).await
    }
}

impl SimulatedDial {
    async fn open(
        &self,
        to: &ConnectionInfo,
        config: AsyncConnectionConfig,
        protocol: ProtocolVersion,
    ) -> RedisResult<MultiplexedConnection> {
        let settings = to.redis_settings().clone().set_protocol(protocol);
        let config = config.set_response_timeout(Some(self.timeout));
        let stream = self.link.connect()?;
        let (connection, driver) = MultiplexedConnection::new_with_config(&settings, stream, config).await?;
        drop(tokio::spawn(driver));
        Ok(connection)
    }
}

const LONGEST_RUN: Duration = Duration::from_secs(120);
const SLACK: Duration = Duration::from_secs(5);
const LAST_TASK: usize = 99;
