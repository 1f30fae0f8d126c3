//! Locks in registers in virtual time: clients whose reads are stale, whose swaps are late, lost or not answered, and whose clocks are fast.
//!
//! A seed determines who takes part, what they do and what goes wrong. `SEED=n cargo xtask test kv::simulation::no_seed` replays one and
//! tells its story; `SEEDS=n` runs so many, and `SEED_SECONDS=n` new ones for so long.

pub(crate) mod table;

use std::sync::Arc;
use std::time::Duration;

use lock_core::{BootInstant, Clock, Locks};
use lock_kv::KvConfig;
use lock_testkit::by_tier;
use lock_testkit::fake::{Dice, Faults, Trace};
use lock_testkit::history::Mode as Share;
use lock_testkit::simulation::{
    self, Habits, Leases, Outcome, Seeds, Stage, find, in_virtual_time, lock_name,
};
use tokio::time::sleep;

use self::table::{Ignored, Link, Table, Versions};

const SEED_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation.seeds");
/// For what is done in the background.
const MOMENT: Duration = Duration::from_millis(100);
const SLACK: Duration = Duration::from_secs(20);

#[test]
fn no_seed_breaks_a_promise() {
    simulation::no_seed_breaks_a_promise::<Scenario>(&Seeds::new(SEED_FILE, by_tier(40, 100, 20_000)));
}

#[test]
fn a_store_that_ignores_conditions_is_found() {
    find::<Scenario>(Mode::IgnoresConditions, |outcome| outcome.report.l2.count > 0);
}

#[test]
fn an_observer_whose_clock_is_fast_is_found() {
    find::<Scenario>(Mode::FastObservers, |outcome| outcome.report.l2.count > 0);
}

#[test]
fn clocks_that_differ_within_a_boot_are_found() {
    find::<Scenario>(Mode::OffsetClocks, |outcome| outcome.report.l2.count > 0);
}

/// What the run is to show.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Mode {
    /// The store keeps its contract, and the clocks their margin.
    #[default]
    Sound,
    /// The store writes whatever the version is.
    IgnoresConditions,
    /// Clients observe others by clocks that are far too fast.
    FastObservers,
    /// Clients say that they share a clock, and do not.
    OffsetClocks,
}

/// One run, as its seed determines it.
#[derive(Clone, Debug)]
struct Scenario {
    seed: u64,
    mode: Mode,
    ttl: Duration,
    timeout: Duration,
    versions: Versions,
    /// How often a read is stale.
    stale: f64,
    clients: usize,
    tasks: usize,
    locks: usize,
    limited: bool,
    faults: Faults,
    /// How often a client is on the host whose clock several share.
    local: f64,
    /// Whether waiters are notified.
    notifies: bool,
    /// Whether clients send a swap again that got no answer, and settle what became of it by the value.
    settles: bool,
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
            versions: *dice.pick(&[Versions::Numbers, Versions::Hashes]),
            stale: *dice.pick(&[0.0, 0.1, 0.4]),
            clients: dice.within(2..=5) as usize,
            tasks: dice.within(1..=2) as usize,
            locks: dice.within(1..=2) as usize,
            limited: dice.chance(0.5),
            faults: Faults::some(&mut dice),
            chaos: dice.millis(2_000..=6_000),
            local: *dice.pick(&[0.0, 0.7, 1.0]),
            settles: dice.chance(0.4),
            notifies: dice.chance(0.5),
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

    async fn connect(&self, table: &Arc<Table>, link: &Arc<Link>, clock: &Clock, dice: &mut Dice) -> Locks {
        let rate = match self.mode {
            Mode::FastObservers => 1.5,
            // A holder counts on its lease for 1 % less, and observers wait for 1 % more.
            _ => 1.0 + dice.below(20) as f64 / 1_000.0,
        };
        let (config, machine) = (KvConfig::new().ttl(self.ttl).command_timeout(self.timeout), Clock::tokio());
        let config = match self.mode {
            Mode::OffsetClocks => {
                let (clock, offset) = (clock.clone(), dice.millis(0..=60_000));
                config.clock(Clock::from_fn(move || clock.now() + offset)).boot_id("one")
            }
            Mode::Sound if dice.chance(self.local) => config.clock(clock.clone()).boot_id("one"),
            _ => {
                let observer = move || BootInstant::from_boot(machine.now().since_boot().mul_f64(rate));
                config.clock(clock.clone()).observer_clock(Clock::from_fn(observer))
            }
        };
        config
            .connect(table::Client::new(table, link).notifying(self.notifies))
            .await
            .expect("nothing goes wrong yet")
    }

    async fn simulate(&self, with_log: bool) -> Outcome {
        let mut dice = Dice::new(self.seed).fork(1);
        let clock = Clock::tokio();
        let table = Arc::new(Table::new(self.versions));
        let (mut links, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..self.clients {
            let link = Link::new(dice.number());
            clients.push(self.connect(&table, &link, &clock, &mut dice).await);
            link.set(self.faults.clone(), self.stale, self.ttl * 2);
            link.settle_swaps(self.settles.then_some(self.timeout / 4));
            links.push(link);
        }
        if self.mode == Mode::IgnoresConditions {
            table.ignore(Ignored::All);
        }
        let stage = Arc::new(Stage::new(self.habits(), clock, with_log.then(Trace::new)));
        let calm = tokio::spawn(calm(links, self.chaos, Arc::clone(&stage)));
        let mut faults = stage.play(&clients, self.tasks, &mut dice).await;
        calm.await.expect("it does not panic");
        if faults.is_empty() {
            let longest = self.ttl * 2 + self.timeout;
            faults = stage.look_for_locks_that_nobody_gets(&clients, longest + SLACK).await;
            // What was held up may still arrive.
            sleep(longest + SLACK).await;
            let locks = (0..self.locks).map(lock_name);
            let left = locks.filter(|lock| table.left(lock) > 0);
            faults.extend(left.map(|lock| format!("{lock} is left over")));
            let notices = table.notices();
            faults.extend((notices > 0).then(|| format!("{notices} notices are left over")));
            let left = |lock: &str| table.left(lock);
            faults.extend(
                stage.look_for_what_a_cancelled_acquisition_leaves(&clients, &mut dice, MOMENT, left).await,
            );
            let left = || Arc::strong_count(&table) - 1;
            faults.extend(stage.look_for_connections_that_are_left(clients, SLACK, left).await);
        }
        stage.judge(faults)
    }
}

/// Makes all links right in the end.
async fn calm(links: Vec<Arc<Link>>, at: Duration, stage: Arc<Stage>) {
    sleep(at).await;
    stage.note(|| "all is well again".to_owned());
    let well = Faults { delay_ms: 0..=2, ..Faults::default() };
    links.iter().for_each(|link| link.set(well.clone(), 0.0, Duration::ZERO));
}
