//! One run: clients on links to one server, what goes wrong, and what is left when it is over.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Clock, Locks};
use lock_redis::redis::IntoConnectionInfo;
use lock_redis::{RedisConfig, StreamDial};
use lock_testkit::fake::{Dice, FakeRedis, Faults, Link, Trace};
use lock_testkit::simulation::{Outcome, Stage, in_virtual_time, lock_name};
use tokio::time::sleep;

use super::scenario::{Event, Scenario};

/// What all tasks share.
struct World {
    scenario: Scenario,
    clock: Clock,
    redis: FakeRedis,
    stage: Arc<Stage>,
}

/// Runs a scenario in virtual time.
pub(crate) fn run(scenario: &Scenario, with_log: bool) -> Outcome {
    in_virtual_time(scenario.seed, simulate(scenario, with_log))
}

async fn simulate(scenario: &Scenario, with_log: bool) -> Outcome {
    let redis = FakeRedis::new();
    let trace = with_log.then(Trace::new);
    if let Some(trace) = &trace {
        redis.keep(trace, "");
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

    let stage = Arc::new(Stage::new(scenario.habits(), clock.clone(), trace));
    let world = Arc::new(World { scenario: scenario.clone(), clock, redis, stage });
    let stage = &world.stage;
    let spoiler = tokio::spawn(spoil(Arc::clone(&world), links));
    let mut faults = stage.play(&clients, scenario.tasks, &mut dice).await;
    spoiler.await.unwrap();
    if faults.is_empty() {
        let limit = longest_lease(scenario) + SLACK;
        faults = stage.look_for_locks_that_nobody_gets(&clients, limit).await;
        look_for_keys_that_are_left(&world, &mut faults).await;
        let left = |lock: &str| usize::from(world.redis.keys().contains(&format!("lock:{lock}")));
        faults.extend(
            stage.look_for_what_a_cancelled_acquisition_leaves(&clients, &mut dice, MOMENT, left).await,
        );
        let left = || world.redis.connections();
        faults.extend(stage.look_for_connections_that_are_left(clients, SLACK * 6, left).await);
    }
    stage.judge(faults)
}

/// Lets things go wrong, and makes them right in the end.
async fn spoil(world: Arc<World>, links: Vec<Link>) {
    let redis = &world.redis;
    for (at, event) in &world.scenario.events {
        world.clock.sleep_until(lock_core::BootInstant::from_boot(*at)).await;
        match *event {
            Event::Stall { client, span } => links[client].stall(span),
            Event::Pause { client, span } => {
                links[client].stall(span);
                world.stage.pause(client, span);
            }
            Event::Reset { client } => links[client].reset(),
            Event::Restart { down, keep_data } => {
                redis.crash();
                sleep(down).await;
                redis.start_again(keep_data);
            }
            Event::Step { millis } => redis.step_clock(millis),
            Event::FullMemory { span } => {
                let limit = |bytes: &str| drop(redis.command(&["CONFIG", "SET", "maxmemory", bytes]));
                limit("1");
                sleep(span).await;
                limit("0");
            }
            Event::ForgetScripts => drop(redis.command(&["SCRIPT", "FLUSH"])),
            Event::Expire { lock } => drop(redis.expire(&format!("lock:{}", lock_name(lock)))),
        }
    }
    world.clock.sleep_until(lock_core::BootInstant::from_boot(world.scenario.chaos)).await;
    world.stage.note(|| "all is well again".to_owned());
    for link in &links {
        link.set_faults(Faults { delay_ms: 0..=2, ..Faults::default() });
        link.resume();
    }
}

/// Nothing stays but the last tokens.
async fn look_for_keys_that_are_left(world: &World, faults: &mut Vec<String>) {
    // Requests that were held up may still arrive, and are looked for as long as a lease may last; after that they have
    // somebody queue up for as long as an entry of a queue lasts.
    sleep(longest_lease(&world.scenario) + LONGEST_STALL + SLACK).await;
    let left = world.redis.keys().into_iter().filter(|key| !key.starts_with("polylock:tokens:"));
    faults.extend(left.map(|key| format!("the key {key} is left over")));
}

/// How long a key may live, asked for as late as can be.
fn longest_lease(scenario: &Scenario) -> Duration {
    scenario.ttl * 2 + scenario.timeout + scenario.steps_back()
}

async fn connect(scenario: &Scenario, clock: &Clock, link: &Link) -> Locks {
    let link = link.clone();
    let config = RedisConfig::new("redis://simulated".into_connection_info().unwrap())
        .dial(Arc::new(StreamDial::new(scenario.timeout, move || link.connect())))
        .clock(clock.clone())
        .ttl(scenario.ttl)
        .wait(scenario.wait)
        .connect_timeout(scenario.timeout)
        .command_timeout(scenario.timeout);
    config.connect().await.unwrap()
}

/// For what is done in the background.
const MOMENT: Duration = Duration::from_millis(50);
/// See [`Faults::some`].
const LONGEST_STALL: Duration = Duration::from_secs(3);
const SLACK: Duration = Duration::from_secs(5);
