//! The engine for stores of leases in virtual time: clients whose requests are late, lost, or not answered, and whose messages may not come,
//! on a store that runs the specification of a lock.
//!
//! A seed determines who takes part, what they do and what goes wrong. `SEED=n cargo xtask test simulation::no_seed` replays one and
//! tells its story; `SEEDS=n` runs so many, and `SEED_SECONDS=n` new ones for so long.

mod store;

use std::sync::Arc;
use std::time::Duration;

use lock_testkit::by_tier;
use lock_testkit::fake::{Dice, Faults, Trace};
use lock_testkit::history::Mode as Share;
use lock_testkit::simulation::{
    self, Habits, Leases, Outcome, Seeds, Stage, find, in_virtual_time, lock_name,
};
use polylock::Clock;
use polylock::backend::{Locks, TokenBlock};
use tokio::time::sleep;

use self::store::{Link, Table};

const SEED_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation.seeds");
/// For what is done in the background.
const MOMENT: Duration = Duration::from_millis(50);
const SLACK: Duration = Duration::from_secs(5);

#[test]
fn no_seed_breaks_a_promise() {
    simulation::no_seed_breaks_a_promise::<Scenario>(&Seeds::new(SEED_FILE, by_tier(100, 300, 20_000)));
}

#[test]
fn a_seed_is_always_the_same_story() {
    simulation::a_seed_is_always_the_same_story::<Scenario>();
}

#[test]
fn a_store_whose_clock_is_fast_is_found() {
    find::<Scenario>(Mode::FastClock, |outcome| outcome.report.l2.count > 0);
}

/// What the run is to show.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Mode {
    /// The store keeps its contract.
    #[default]
    Sound,
    /// Its clock is faster than those of the clients.
    FastClock,
}

/// One run, as its seed determines it.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    seed: u64,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) timeout: Duration,
    /// Whether the store notifies its waiters.
    pub(crate) notifies: bool,
    /// Whether its messages prove nothing: a grant has to be confirmed.
    pub(crate) confirms: bool,
    /// Whether it tells the first waiter when to ask again, instead of each that asks.
    pub(crate) says_when: bool,
    /// Whether an acquisition begins with a request that does not queue up.
    pub(crate) claims: bool,
    pub(crate) local_handovers: u32,
    clients: usize,
    tasks: usize,
    locks: usize,
    limited: bool,
    faults: Faults,
    /// For how long things go wrong.
    chaos: Duration,
}

impl simulation::Scenario for Scenario {
    type Mode = Mode;

    fn new(seed: u64, mode: Mode) -> Self {
        let mut dice = Dice::new(seed);
        Self {
            seed,
            mode,
            ttl: Duration::from_millis(*dice.pick(&[300, 500, 900, 1_500, 2_500])),
            timeout: Duration::from_millis(*dice.pick(&[100, 250, 600])),
            notifies: dice.chance(0.5),
            local_handovers: *dice.pick(&[1, TokenBlock::USUAL_SERIES]),
            clients: dice.within(2..=5) as usize,
            tasks: dice.within(1..=2) as usize,
            locks: dice.within(1..=2) as usize,
            limited: dice.chance(0.5),
            faults: Faults::some(&mut dice),
            chaos: dice.millis(2_000..=6_000),
            confirms: dice.chance(0.3),
            says_when: dice.chance(0.3),
            claims: dice.chance(0.3),
        }
    }

    fn run(&self, with_log: bool) -> Outcome {
        in_virtual_time(self.seed, self.simulate(with_log))
    }
}

impl Scenario {
    fn habits(&self) -> Habits {
        // Every third run has readers, and writers who become readers.
        let shares: &[Share] = match self.seed.is_multiple_of(3) {
            true => &[Share::Exclusive, Share::Shared],
            false => &[Share::Exclusive],
        };
        let Self { ttl, locks, limited, chaos, .. } = *self;
        Habits { ttl, locks, shares, limited, leases: Leases::Any, until: chaos }
    }

    async fn simulate(&self, with_log: bool) -> Outcome {
        let mut dice = Dice::new(self.seed).fork(1);
        let clock = Clock::tokio();
        let table = Arc::new(Table::new(&clock, self.mode));
        let links: Vec<_> = (0..self.clients).map(|_| Link::new(dice.number(), &self.faults)).collect();
        let connect = |link: &Arc<Link>| store::connect(self, &table, link, &clock);
        let clients: Vec<Locks> = links.iter().map(connect).collect();
        let stage = Arc::new(Stage::new(self.habits(), clock.clone(), with_log.then(Trace::new)));
        let calm = tokio::spawn(calm(links.clone(), self.chaos, Arc::clone(&stage)));
        let mut faults = stage.play(&clients, self.tasks, &mut dice).await;
        calm.await.unwrap();
        if faults.is_empty() {
            let longest = self.ttl * 2 + self.timeout;
            faults = stage.look_for_locks_that_nobody_gets(&clients, longest + SLACK).await;
            // What was held up may still arrive, and lasts for a lease then.
            sleep(longest + SLACK).await;
            let locks = (0..self.locks).map(lock_name);
            let left = locks.filter(|lock| table.left(lock) > 0);
            faults.extend(left.map(|lock| format!("{lock} is left over")));
            let left = |lock: &str| table.left(lock);
            faults.extend(
                stage.look_for_what_a_cancelled_acquisition_leaves(&clients, &mut dice, MOMENT, left).await,
            );
            let left = || Arc::strong_count(&table) - 1;
            faults.extend(stage.look_for_connections_that_are_left(clients, SLACK * 6, left).await);
        }
        stage.judge(faults)
    }
}

/// Makes all links right in the end.
async fn calm(links: Vec<Arc<Link>>, at: Duration, stage: Arc<Stage>) {
    sleep(at).await;
    stage.note(|| "all is well again".to_owned());
    links.iter().for_each(|link| link.set_faults(Faults { delay_ms: 0..=2, ..Faults::default() }));
}
