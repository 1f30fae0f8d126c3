//! One run: clients with sessions of their own on one ensemble, faults, and what is left at the end.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{BootInstant, Clock, Locks};
use lock_testkit::fake::{Dice, Faults, Trace};
use lock_testkit::simulation::{Outcome, Stage, in_virtual_time};
use lock_zk::ZkConfig;
use tokio::time::sleep;

use super::driver::Link;
use super::ensemble::Ensemble;
use super::scenario::{Event, Mode, Scenario};

/// What the parts of a run share.
struct World {
    scenario: Scenario,
    clock: Clock,
    ensemble: Ensemble,
    links: Vec<Link>,
    stage: Arc<Stage>,
}

/// Runs a scenario in virtual time.
pub(crate) fn run(scenario: &Scenario, with_log: bool) -> Outcome {
    in_virtual_time(scenario.seed, simulate(scenario, with_log))
}

async fn simulate(scenario: &Scenario, with_log: bool) -> Outcome {
    let (mut dice, clock) = (Dice::new(scenario.seed).fork(1), Clock::tokio());
    let ensemble = Ensemble::new(scenario.servers, scenario.tick(), dice.number());
    let trace = with_log.then(Trace::new);
    if let Some(trace) = &trace {
        ensemble.keep(trace);
    }
    if dice.chance(0.25) {
        ensemble.guard_containers();
    }
    let links: Vec<Link> = (0..scenario.clients).map(|_| Link::new(&ensemble, dice.number())).collect();
    let mut clients = Vec::new();
    for link in &links {
        if scenario.mode == Mode::TrustsSync {
            link.trust_sync();
        }
        if scenario.mode == Mode::AcceptsLess {
            link.accept_less();
        }
        clients.push(connect(scenario, &clock, link).await);
    }
    for link in &links {
        link.set_faults(scenario.faults.clone());
        link.lose_events(scenario.lost_events);
    }

    let stage = Arc::new(Stage::new(scenario.habits(), clock.clone(), trace));
    let world = Arc::new(World { scenario: scenario.clone(), clock, ensemble, links, stage });
    let stage = &world.stage;
    let spoiler = tokio::spawn(spoil(Arc::clone(&world)));
    let mut faults = stage.play(&clients, scenario.tasks, &mut dice).await;
    spoiler.await.unwrap();
    if faults.is_empty() {
        // Every lock ends with its session, or goes to a waiter.
        let limit = scenario.timeout * 2 + SLACK;
        faults = stage.look_for_locks_that_nobody_gets(&clients, limit).await;
        look_for_nodes_that_are_left(&world, &mut faults).await;
        // A server takes a moment to learn what the leader has decided.
        let pause = MOMENT + scenario.timeout / 8;
        let left = |_: &str| world.ensemble.ephemerals().len();
        faults.extend(
            stage.look_for_what_a_cancelled_acquisition_leaves(&clients, &mut dice, pause, left).await,
        );
        let left = || world.ensemble.connections() + world.ensemble.watches();
        faults.extend(stage.look_for_connections_that_are_left(clients, SLACK, left).await);
    }
    stage.judge(faults)
}

/// Lets things go wrong, and makes them right in the end.
async fn spoil(world: Arc<World>) {
    let World { ensemble, links, .. } = &*world;
    for (at, event) in &world.scenario.events {
        world.clock.sleep_until(BootInstant::from_boot(*at)).await;
        ensemble.note(|| format!("{event:?}"));
        match *event {
            Event::Stall { client, span } => links[client].stall(span),
            Event::Reset { client } => links[client].reset(),
            Event::Restart { server, down } => ensemble.restart(server, down).await,
            Event::Lower { server, down } => {
                ensemble.set_limit(server, world.scenario.timeout / 2);
                ensemble.restart(server, down).await;
            }
            Event::Outage { client, before, between, after } => {
                let link = &links[client];
                link.stall(before);
                sleep(before + between).await;
                link.stall(after);
                ensemble.restart(link.server(), between).await;
            }
            Event::Remove { client } => {
                if links[client].session().is_some_and(|session| ensemble.remove_waiter(session)) {
                    // It gets the missed events in any order.
                    links[client].reset();
                    links[client].stall(world.scenario.timeout / 4);
                }
            }
            Event::CutOff { span } => ensemble.cut_off(span).await,
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
    for link in links {
        link.set_faults(Faults { delay_ms: 0..=2, ..Faults::default() });
        link.lose_events(0.0);
        link.resume();
    }
}

/// There is no holder and no waiter, so no session has a node.
async fn look_for_nodes_that_are_left(world: &World, faults: &mut Vec<String>) {
    // Unanswered creations are looked for in the background, and old sessions have to end.
    sleep(world.scenario.timeout * 2 + SLACK).await;
    faults
        .extend(world.ensemble.ephemerals().into_iter().map(|node| format!("the node {node} is left over")));
}

async fn connect(scenario: &Scenario, clock: &Clock, link: &Link) -> Locks {
    let config = ZkConfig::new("simulated")
        .ensemble(Arc::new(link.clone()))
        .clock(clock.clone())
        .layout(scenario.layout)
        .session_timeout(scenario.timeout);
    config.connect().await.unwrap()
}

/// For what is done in the background.
const MOMENT: Duration = Duration::from_millis(50);
const SLACK: Duration = Duration::from_secs(5);
