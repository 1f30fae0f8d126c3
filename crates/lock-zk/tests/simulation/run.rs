//! One run: clients with sessions of their own on one ensemble, what goes wrong, and what is left when it is over.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::{BootInstant, Clock, Locks};
use lock_testkit::check::{Report, check};
use lock_testkit::fake::{Dice, Faults};
use lock_testkit::history::{EventKind, History, Mode as Share};
use lock_zk::ZkConfig;
use tokio::time::{sleep, timeout};

use crate::client::{Task, World, lock_name, nanos};
use crate::driver::Link;
use crate::ensemble::Ensemble;
use crate::scenario::{Event, Scenario};

/// What became of a run.
pub(crate) struct Outcome {
    /// The judgement on its history.
    pub(crate) report: Report,
    /// What is wrong besides: locks that nobody gets, things that are left over.
    pub(crate) faults: Vec<String>,
    /// What happened, if it was asked for.
    pub(crate) story: Vec<String>,
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
pub(crate) fn run(scenario: &Scenario, with_story: bool) -> Outcome {
    lock_core::random::seed(scenario.seed);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // Tokio chooses by chance in which order it wakes who waits for the same thing.
    #[cfg(tokio_unstable)]
    runtime.rng_seed(tokio::runtime::RngSeed::from_bytes(&scenario.seed.to_le_bytes()));
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(simulate(scenario, with_story))
}

async fn simulate(scenario: &Scenario, with_story: bool) -> Outcome {
    let mut dice = Dice::new(scenario.seed).fork(1);
    let clock = Clock::tokio();
    let ensemble = Ensemble::new(scenario.servers, scenario.timeout / 2, dice.number());
    if with_story {
        ensemble.keep_story();
    }
    let links: Vec<Link> = (0..scenario.clients).map(|_| Link::new(&ensemble, dice.number())).collect();
    let mut clients = Vec::new();
    for link in &links {
        clients.push(connect(scenario, &clock, link).await);
    }
    for link in &links {
        link.set_faults(scenario.faults.clone());
    }

    let (scenario, events) = (scenario.clone(), Mutex::default());
    let world = Arc::new(World { scenario, clock, ensemble, events });
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
        look_for_nodes_that_are_left(&world, &mut faults).await;
        look_for_what_a_cancelled_acquisition_leaves(&world, &clients, &mut dice, &mut faults).await;
        look_for_connections_that_are_left(&world, clients, &mut faults).await;
    }
    let events = world.events.lock().unwrap().clone();
    Outcome { report: check(&History::new(events)), faults, story: world.ensemble.story() }
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
    let ensemble = &world.ensemble;
    for (at, event) in &world.scenario.events {
        world.clock.sleep_until(BootInstant::from_boot(*at)).await;
        ensemble.note(|| format!("{event:?}"));
        match *event {
            Event::Stall { client, span } => links[client].stall(span),
            Event::Reset { client } => links[client].reset(),
            Event::Restart { server, down } => ensemble.restart(server, down).await,
            Event::Outage { client, before, between, after } => {
                let link = &links[client];
                link.stall(before);
                sleep(before + between).await;
                link.stall(after);
                ensemble.restart(link.server(), between).await;
            }
            Event::Remove { client } => {
                if links[client].session().is_some_and(|session| ensemble.remove_waiter(session)) {
                    // What it misses it is told in any order.
                    links[client].reset();
                    links[client].stall(world.scenario.timeout / 4);
                }
            }
            Event::Lag { server, span } => ensemble.lag(server, span),
            Event::Reap => ensemble.reap(),
            Event::Expire { client } => {
                links[client].session().into_iter().for_each(|id| ensemble.expire(id));
            }
        }
    }
    world.clock.sleep_until(BootInstant::from_boot(world.scenario.chaos)).await;
    ensemble.note(|| "all is well again".to_owned());
    ensemble.calm_down();
    for link in &links {
        link.set_faults(Faults { delay_ms: 0..=2, ..Faults::default() });
        link.resume();
    }
}

/// Every lock ends or goes to who waits for it, within a session timeout and some slack.
async fn look_for_locks_that_nobody_gets(world: &World, clients: &[Locks], faults: &mut Vec<String>) {
    let limit = world.scenario.timeout * 2 + SLACK;
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
            let valid_until_ns = Some(nanos(guard.valid_until()));
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

/// Nobody holds or waits, so that no session has a node.
async fn look_for_nodes_that_are_left(world: &World, faults: &mut Vec<String>) {
    // What was lost and may still be there is looked for in the background, and old sessions have to end.
    sleep(world.scenario.timeout * 2 + SLACK).await;
    faults
        .extend(world.ensemble.ephemerals().into_iter().map(|node| format!("the node {node} is left over")));
}

/// A cancelled acquisition is undone at once when all is well, not only with its session.
async fn look_for_what_a_cancelled_acquisition_leaves(
    world: &World,
    clients: &[Locks],
    dice: &mut Dice,
    faults: &mut Vec<String>,
) {
    for locks in clients {
        let (lock, patience) = (lock_name(0), dice.millis(0..=10));
        drop(timeout(patience, locks.mutex(&lock).acquire()).await);
        // A server takes a moment to learn what the leader has decided.
        sleep(Duration::from_millis(50) + world.scenario.timeout / 8).await;
        if !world.ensemble.ephemerals().is_empty() {
            faults.push(format!("an acquisition that was dropped after {patience:?} is still there"));
        }
    }
}

/// No connection and no watch stays when the clients are closed.
async fn look_for_connections_that_are_left(world: &World, clients: Vec<Locks>, faults: &mut Vec<String>) {
    for locks in clients {
        if let Err(error) = locks.close().await {
            faults.push(format!("the locks cannot be closed: {error}"));
        }
    }
    sleep(SLACK).await;
    let (connections, watches) = (world.ensemble.connections(), world.ensemble.watches());
    if connections + watches > 0 {
        faults.push(format!("{connections} connections and {watches} watches are left"));
    }
}

async fn connect(scenario: &Scenario, clock: &Clock, link: &Link) -> Locks {
    let config = ZkConfig::new("simulated")
        .ensemble(Arc::new(link.clone()))
        .clock(clock.clone())
        .layout(scenario.layout)
        .session_timeout(scenario.timeout);
    config.connect().await.unwrap()
}

const LONGEST_RUN: Duration = Duration::from_secs(120);
const SLACK: Duration = Duration::from_secs(5);
const LAST_TASK: usize = 99;
