//! One run: clients on links to all masters, what goes wrong, and what is left when it is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use lock_core::{BootInstant, Clock, Locks};
use lock_redlock::redis::IntoConnectionInfo;
use lock_redlock::{MasterConfig, Redlock, RedlockConfig};
use lock_redlock::{StreamDial, WallClock};
use lock_testkit::fake::{Dice, FakeRedis, Faults, Link, Trace};
use lock_testkit::simulation::{Outcome, Stage, in_virtual_time, lock_name};
use tokio::time::sleep;

use super::scenario::{Data, Event, Scenario};

/// What the parts of a run share.
struct World {
    scenario: Scenario,
    clock: Clock,
    masters: Vec<FakeRedis>,
    /// Of each client to each master.
    links: Vec<Vec<Link>>,
    stage: Arc<Stage>,
}

/// What the runs so far have come across.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Locks that releases handed over.
    pub(crate) handed_over: AtomicU64,
    /// Of those, locks in runs in which a master hung or was down.
    pub(crate) with_a_master_away: AtomicU64,
    /// Votes that were split.
    pub(crate) split: AtomicU64,
}

pub(crate) static SEEN: Seen =
    Seen { handed_over: AtomicU64::new(0), with_a_master_away: AtomicU64::new(0), split: AtomicU64::new(0) };

/// Runs a scenario in virtual time.
pub(crate) fn run(scenario: &Scenario, with_log: bool) -> Outcome {
    in_virtual_time(scenario.seed, simulate(scenario, with_log))
}

async fn simulate(scenario: &Scenario, with_log: bool) -> Outcome {
    let masters: Vec<_> =
        (0..scenario.masters).map(|number| FakeRedis::new().numbered(number as u64)).collect();
    // They have run for long.
    sleep(UPTIME).await;
    let trace = with_log.then(Trace::new);
    if let Some(trace) = &trace {
        masters
            .iter()
            .enumerate()
            .for_each(|(master, redis)| redis.keep(trace, format!("master {master}: ")));
    }
    let (mut dice, clock) = (Dice::new(scenario.seed).fork(1), Clock::tokio());
    let mut link = |client: usize, redis: &FakeRedis| redis.link(format!("client {client}"), dice.number());
    let links: Vec<Vec<Link>> = (0..scenario.clients)
        .map(|client| masters.iter().map(|redis| link(client, redis)).collect())
        .collect();
    let mut backends = Vec::new();
    for (client, links) in links.iter().enumerate() {
        backends.push(Arc::new(connect(scenario, &clock, client, links).await));
    }
    let clients: Vec<_> =
        backends.iter().map(|backend| Locks::from_dyn(Arc::<Redlock>::clone(backend))).collect();
    links.iter().flatten().for_each(|link| link.set_faults(scenario.faults.clone()));

    let stage = Arc::new(Stage::new(scenario.habits(), clock.clone(), trace));
    let world = Arc::new(World { scenario: scenario.clone(), clock, masters, links, stage });
    let stage = &world.stage;
    let spoiler = tokio::spawn(spoil(Arc::clone(&world)));
    let mut faults = stage.play(&clients, 1, &mut dice).await;
    spoiler.await.unwrap();
    note_votes(scenario, backends);
    if faults.is_empty() {
        // Restarted masters do not vote for as long as a lease may last.
        let limit = longest_lease(scenario) * 2 + SLACK;
        faults = stage.look_for_locks_that_nobody_gets(&clients, limit).await;
        look_for_keys_that_are_left(&world, &mut faults).await;
        let left = |lock: &str| {
            let key = format!("lock:{lock}");
            world.masters.iter().filter(|redis| redis.keys().contains(&key)).count()
        };
        faults.extend(
            stage.look_for_what_a_cancelled_acquisition_leaves(&clients, &mut dice, MOMENT, left).await,
        );
        let left = || world.masters.iter().map(FakeRedis::connections).sum();
        faults.extend(stage.look_for_connections_that_are_left(clients, SLACK * 6, left).await);
    }
    stage.judge(faults)
}

/// Counts what the clients came across; their connections are left to the locks.
fn note_votes(scenario: &Scenario, backends: Vec<Arc<Redlock>>) {
    let is_away = |event: &Event| matches!(event, Event::Hang { .. } | Event::Restart { .. });
    let has_one_away = scenario.events.iter().any(|(_, event)| is_away(event));
    for votes in backends.iter().map(|backend| backend.votes()) {
        SEEN.handed_over.fetch_add(votes.handed_over, Ordering::Relaxed);
        SEEN.with_a_master_away.fetch_add(votes.handed_over * u64::from(has_one_away), Ordering::Relaxed);
        SEEN.split.fetch_add(votes.split, Ordering::Relaxed);
    }
}

/// Lets things go wrong, and makes them right in the end.
async fn spoil(world: Arc<World>) {
    let World { masters, links, .. } = &*world;
    let mut earlier: Vec<_> = masters.iter().map(FakeRedis::snapshot).collect();
    for (at, event) in &world.scenario.events {
        world.clock.sleep_until(BootInstant::from_boot(*at)).await;
        match *event {
            Event::Pause { client, span } => {
                world.stage.pause(client, span);
                links[client].iter().for_each(|link| link.stall(span));
            }
            Event::Hang { master, span } => links.iter().for_each(|links| links[master].stall(span)),
            Event::Stall { client, master, span } => links[client][master].stall(span),
            Event::Reset { client, master } => links[client][master].reset(),
            Event::Snapshot { master } => earlier[master] = masters[master].snapshot(),
            Event::Restart { master, down, data } => {
                masters[master].crash();
                sleep(down).await;
                if data == Data::Earlier {
                    masters[master].roll_back(earlier[master].clone());
                }
                masters[master].start_again(data != Data::Lost);
            }
            Event::RestartUnseen { master } => masters[master].restart_unseen(),
            Event::Step { master, millis } => masters[master].step_clock(millis),
            Event::Expire { master } => drop(masters[master].expire(&format!("lock:{}", lock_name(0)))),
        }
    }
    world.clock.sleep_until(BootInstant::from_boot(world.scenario.chaos)).await;
    world.stage.note(|| "all is well again".to_owned());
    for link in links.iter().flatten() {
        link.set_faults(Faults { delay_ms: 0..=2, ..Faults::default() });
        link.resume();
    }
}

/// Nothing stays but the last tokens.
async fn look_for_keys_that_are_left(world: &World, faults: &mut Vec<String>) {
    // Requests that were held up may still arrive, and are looked for as long as a lease may last. A place in the line
    // that one of them takes is forgotten five seconds later.
    sleep(longest_lease(&world.scenario) + SLACK * 2).await;
    for (master, redis) in world.masters.iter().enumerate() {
        let left = redis.keys().into_iter().filter(|key| !key.starts_with("polylock:tokens:"));
        faults.extend(left.map(|key| format!("the key {key} is left over on master {master}")));
    }
}

/// How long a key may live, asked for as late as can be.
fn longest_lease(scenario: &Scenario) -> Duration {
    scenario.ttl * 2 + scenario.timeout + scenario.steps_back()
}

async fn connect(scenario: &Scenario, clock: &Clock, client: usize, links: &[Link]) -> Redlock {
    let masters = links.iter().enumerate().map(|(master, link)| {
        let (info, link) = (format!("redis://master-{master}").into_connection_info().unwrap(), link.clone());
        let dial = StreamDial::new(scenario.timeout, move || link.connect());
        MasterConfig::new(info).dial(Arc::new(dial))
    });
    let config = RedlockConfig::new(masters)
        .clock(clock.clone())
        .wall_clock(wall_clock(clock.clone(), scenario.ahead[client]))
        .ttl(scenario.ttl)
        .longest_ttl(scenario.ttl * 2)
        .connect_timeout(scenario.timeout)
        .master_timeout(scenario.timeout);
    Redlock::connect(config).await.unwrap()
}

fn wall_clock(clock: Clock, ahead: i64) -> WallClock {
    let origin = UNIX_EPOCH + Duration::from_secs(1_700_000_000) + UPTIME;
    WallClock::new(move || {
        let now = origin + clock.now().since_boot();
        let off = Duration::from_millis(ahead.unsigned_abs());
        if ahead < 0 { now - off } else { now + off }
    })
}

const UPTIME: Duration = Duration::from_secs(60);
/// For what is done in the background.
const MOMENT: Duration = Duration::from_millis(50);
const SLACK: Duration = Duration::from_secs(5);
