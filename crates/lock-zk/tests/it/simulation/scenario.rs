//! What a seed decides: the clients, the faults and their times.

use std::time::Duration;

use lock_testkit::fake::{Dice, Faults};
use lock_testkit::history::Mode as Share;
use lock_testkit::simulation::{self, Habits, Leases, Outcome};
use lock_zk::ZkLayout;

use super::run::run;

/// What the run is to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing goes wrong that a lock on an ensemble does not promise to withstand.
    #[default]
    Sound,
    /// The leader ends sessions of which it has heard just now.
    EarlyExpiry,
    /// A client treats its session as valid for half as long again as it may.
    TooLong,
    /// A client takes the answer to a `sync` for a proof that its session is alive.
    TrustsSync,
    /// A session moves to servers that grant less than its client counts on.
    AcceptsLess,
}

/// One run, as its seed determines it.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) mode: Mode,
    pub(crate) layout: ZkLayout,
    pub(crate) servers: usize,
    pub(crate) timeout: Duration,
    pub(crate) clients: usize,
    /// The tasks of each client.
    pub(crate) tasks: usize,
    pub(crate) locks: usize,
    /// How they are taken.
    pub(crate) shares: &'static [Share],
    pub(crate) faults: Faults,
    /// How likely the event of a watch is to get lost.
    pub(crate) lost_events: f64,
    /// Whether some are held for a limited time.
    pub(crate) limited: bool,
    /// For how long things go wrong.
    pub(crate) chaos: Duration,
    /// What goes wrong besides the faults of the links, in the order of time.
    pub(crate) events: Vec<(Duration, Event)>,
}

/// Something that goes wrong once.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Nothing passes between this client and the servers.
    Stall { client: usize, span: Duration },
    /// The connection of this client is reset.
    Reset { client: usize },
    /// A server is down for so long.
    Restart { server: usize, down: Duration },
    /// A server is down for so long, and grants half of the session timeout from then on.
    Lower { server: usize, down: Duration },
    /// The leader is cut off from the others for so long, and does not know it.
    CutOff { span: Duration },
    /// A follower applies nothing for so long.
    Lag { server: usize, span: Duration },
    /// Nothing passes between this client and the servers; then something does for a moment; then its server dies and
    /// nothing passes again. What the server heard in between, the leader does not hear.
    Outage { client: usize, before: Duration, between: Duration, after: Duration },
    /// A node of this client that waits is removed, and its connection is reset.
    Remove { client: usize },
    /// Containers that are empty are removed.
    Reap,
    /// The session of this client ends early.
    Expire { client: usize },
}

impl simulation::Scenario for Scenario {
    type Mode = Mode;

    fn new(seed: u64, mode: Mode) -> Self {
        let mut dice = Dice::new(seed);
        let chaos = Duration::from_millis(dice.within(2_000..=6_000));
        let mut scenario = Self {
            seed,
            mode,
            layout: *dice.pick(&[ZkLayout::Curator, ZkLayout::Curator, ZkLayout::Plain, ZkLayout::Kazoo]),
            servers: *dice.pick(&[1, 3, 3]),
            timeout: Duration::from_millis(*dice.pick(&[400, 800, 1_500, 3_000])),
            clients: dice.within(2..=4) as usize,
            tasks: dice.within(1..=2) as usize,
            locks: dice.within(1..=2) as usize,
            shares: SHARES[dice.below(SHARES.len() as u64) as usize],
            faults: faults(&mut dice),
            lost_events: 0.0,
            limited: dice.chance(0.5),
            chaos,
            events: Vec::new(),
        };
        scenario.events = scenario.events(&mut dice);
        if mode == Mode::AcceptsLess || seed.is_multiple_of(4) {
            scenario.lower_limits(&mut dice);
        }
        // A client whose node is removed is notified of that before it is notified of its predecessor.
        let removes = scenario.events.iter().any(|(_, event)| matches!(event, Event::Remove { .. }));
        if dice.chance(0.3) && !removes {
            scenario.lost_events = 0.3;
        }
        scenario
    }

    fn run(&self, with_log: bool) -> Outcome {
        run(self, with_log)
    }
}

impl Scenario {
    /// What its clients do.
    pub(crate) fn habits(&self) -> Habits {
        let leases = match self.mode {
            Mode::TooLong => Leases::SessionAndBeyond(self.timeout / 4 * 3),
            _ => Leases::Session,
        };
        let Self { timeout: ttl, locks, shares, limited, chaos, .. } = *self;
        Habits { ttl, locks, shares, limited, leases, until: chaos }
    }

    fn events(&self, dice: &mut Dice) -> Vec<(Duration, Event)> {
        let chaos = self.chaos.as_millis() as u64;
        let client = |dice: &mut Dice| dice.below(self.clients as u64) as usize;
        let server = |dice: &mut Dice| dice.below(self.servers as u64) as usize;
        let mut events: Vec<_> = (0..dice.below(9))
            .map(|_| {
                let event = match dice.below(18) {
                    0..4 => Event::Stall { client: client(dice), span: dice.millis(10..=4_000) },
                    4..6 => Event::Reset { client: client(dice) },
                    6..8 => Event::Restart { server: server(dice), down: dice.millis(10..=1_500) },
                    10..13 => {
                        let part = |dice: &mut Dice, most: u32| {
                            self.timeout * dice.below(u64::from(most)) as u32 / 100
                        };
                        let (before, between, after) = (part(dice, 90), part(dice, 30), self.timeout * 2);
                        Event::Outage { client: client(dice), before, between, after }
                    }
                    // Where at most one holds at a time, only the first holds it.
                    13..15 if self.shares == [Share::Exclusive] => Event::Remove { client: client(dice) },
                    15..17 => self.cut_off(dice),
                    8..10 => Event::Lag { server: server(dice), span: dice.millis(10..=1_500) },
                    _ => Event::Reap,
                };
                (dice.millis(0..=chaos), event)
            })
            .collect();
        for _ in 0..3 {
            let at = dice.millis(0..=chaos);
            match self.mode {
                Mode::EarlyExpiry => events.push((at, Event::Expire { client: client(dice) })),
                Mode::TrustsSync => events.push((at, self.cut_off(dice))),
                Mode::Sound | Mode::TooLong | Mode::AcceptsLess => {}
            }
        }
        events.sort_by_key(|(at, _)| *at);
        events
    }

    /// One server after the other is restarted with a lower limit of the session timeout; perhaps not all are.
    fn lower_limits(&mut self, dice: &mut Dice) {
        let chaos = self.chaos.as_millis() as u64;
        for server in 0..self.servers {
            if dice.chance(0.8) {
                self.events
                    .push((dice.millis(0..=chaos), Event::Lower { server, down: dice.millis(10..=500) }));
            }
        }
        self.events.sort_by_key(|(at, _)| *at);
    }

    /// Ticks of which a session lasts two at least, and after its limit was lowered too.
    pub(crate) fn tick(&self) -> Duration {
        let lowers = self.events.iter().any(|(_, event)| matches!(event, Event::Lower { .. }));
        self.timeout / if lowers { 4 } else { 2 }
    }

    /// Mostly for longer than the next leader keeps the sessions that it does not hear of.
    fn cut_off(&self, dice: &mut Dice) -> Event {
        Event::CutOff { span: self.timeout * dice.within(50..=500) as u32 / 100 }
    }
}

/// Of each fault there are runs without it: what many faults hide, a single one may show.
fn faults(dice: &mut Dice) -> Faults {
    let mut chance = |most: f64| if dice.chance(0.5) { 0.0 } else { most };
    let (stall, lose_request, lose_reply) = (chance(0.03), chance(0.01), chance(0.01));
    let (reset_before, reset_after, refuse) = (chance(0.01), chance(0.02), chance(0.1));
    let slowest = *dice.pick(&[0, 2, 20, 80]);
    let stall_ms = 50..=*dice.pick(&[200, 1_000, 3_000]);
    Faults {
        delay_ms: 0..=slowest,
        stall,
        stall_ms,
        lose_request,
        lose_reply,
        reset_before,
        reset_after,
        refuse,
    }
}

/// Half of the runs are about mutexes only.
const SHARES: [&[Share]; 6] = [
    &[Share::Exclusive],
    &[Share::Exclusive],
    &[Share::Exclusive],
    &[Share::Exclusive, Share::Shared],
    &[Share::Permit(2)],
    &[Share::Exclusive, Share::Shared, Share::Permit(2)],
];
