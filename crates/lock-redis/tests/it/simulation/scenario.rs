//! What a seed decides: who takes part, and what goes wrong when.

use std::time::Duration;

use lock_redis::RedisWait;
use lock_testkit::fake::{Dice, Faults};
use lock_testkit::history::Mode as Share;
use lock_testkit::simulation::{self, Habits, Leases, Outcome};

use super::run::run;

/// What the run is to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing goes wrong that a lock on one server does not promise to withstand.
    #[default]
    Sound,
    /// The server lets locks end before their time, as one whose clock jumps does.
    EarlyExpiry,
    /// The server restarts without its data.
    EmptyRestart,
    /// The server restarts without its data, and its clock is behind.
    EmptyRestartInThePast,
    /// As [`Sound`](Self::Sound), with leases that are not renewed.
    FromRequest,
    /// The same, but a client counts its lease from when the answer came, not from when the request was sent.
    FromReply,
}

/// One run, as its seed determines it.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) mode: Mode,
    pub(crate) wait: RedisWait,
    pub(crate) ttl: Duration,
    pub(crate) timeout: Duration,
    pub(crate) clients: usize,
    /// The tasks of each client.
    pub(crate) tasks: usize,
    pub(crate) locks: usize,
    /// Whether some are held for a limited time, which makes their last leases as short as can be.
    pub(crate) limited: bool,
    pub(crate) faults: Faults,
    /// For how long things go wrong.
    pub(crate) chaos: Duration,
    /// What goes wrong besides the faults of the links, in the order of time.
    pub(crate) events: Vec<(Duration, Event)>,
}

/// Something that goes wrong once.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Nothing passes between this client and the server.
    Stall { client: usize, span: Duration },
    /// This client does nothing, and nothing passes between it and the server.
    Pause { client: usize, span: Duration },
    /// All connections of this client are reset.
    Reset { client: usize },
    /// The server is down for so long, and comes back with its data or empty.
    Restart { down: Duration, keep_data: bool },
    /// The server's clock steps by so many milliseconds.
    Step { millis: i64 },
    /// The memory of the server is full.
    FullMemory { span: Duration },
    /// The server forgets the scripts.
    ForgetScripts,
    /// The key of this lock ends.
    Expire { lock: usize },
}

impl simulation::Scenario for Scenario {
    type Mode = Mode;

    fn new(seed: u64, mode: Mode) -> Self {
        let mut dice = Dice::new(seed);
        let ttl = Duration::from_millis(*dice.pick(&[300, 500, 900, 1500, 2500]));
        let chaos = Duration::from_millis(dice.within(2_000..=6_000));
        let clients = dice.within(2..=5) as usize;
        let locks = dice.within(1..=2) as usize;
        let mut scenario = Self {
            seed,
            mode,
            wait: *dice.pick(&[RedisWait::Queue, RedisWait::Notify, RedisWait::Poll]),
            ttl,
            timeout: Duration::from_millis(*dice.pick(&[100, 250, 600])),
            clients,
            tasks: dice.within(1..=2) as usize,
            locks,
            limited: dice.chance(0.5),
            faults: Faults::some(&mut dice),
            chaos,
            events: Vec::new(),
        };
        scenario.events = scenario.events(&mut dice);
        scenario
    }

    fn run(&self, with_log: bool) -> Outcome {
        run(self, with_log)
    }
}

impl Scenario {
    /// What clients do.
    pub(crate) fn habits(&self) -> Habits {
        let leases = match self.mode {
            Mode::FromRequest => Leases::Fixed,
            Mode::FromReply => Leases::FixedFromReply,
            _ => Leases::Any,
        };
        let Self { ttl, locks, limited, chaos, .. } = *self;
        // Every third run has readers, and writers who become readers.
        let shares: &[Share] = if self.mode == Mode::Sound && self.seed.is_multiple_of(3) {
            &[Share::Exclusive, Share::Shared]
        } else {
            &[Share::Exclusive]
        };
        Habits { ttl, locks, shares, limited, leases, until: chaos }
    }

    /// By how much the server's clock steps back in all: so much longer do keys live.
    pub(crate) fn steps_back(&self) -> Duration {
        let steps = self.events.iter().map(|(_, event)| match event {
            Event::Step { millis } if *millis < 0 => millis.unsigned_abs(),
            _ => 0,
        });
        Duration::from_millis(steps.sum())
    }

    fn events(&self, dice: &mut Dice) -> Vec<(Duration, Event)> {
        // A lease allows the server's clock to run ahead by a hundredth of itself and 2 ms. The shortest is half the ttl.
        let mut ahead = if self.limited { 2 } else { self.ttl.as_millis() as i64 / 200 + 2 };
        let chaos = self.chaos.as_millis() as u64;
        let mut events: Vec<_> = (0..dice.below(7))
            .map(|_| {
                let event = match dice.below(12) {
                    0..3 => Event::Stall { client: self.client(dice), span: dice.millis(10..=4_000) },
                    3 => Event::Pause { client: self.client(dice), span: dice.millis(10..=4_000) },
                    4..6 => Event::Reset { client: self.client(dice) },
                    6..8 => Event::Restart { down: dice.millis(0..=1_500), keep_data: true },
                    // With the data lost as well, tokens could go back.
                    8 if self.mode != Mode::EmptyRestart => {
                        Event::Step { millis: -(dice.within(1..=1_000) as i64) }
                    }
                    9 => Event::Step { millis: std::mem::take(&mut ahead) },
                    10 => Event::FullMemory { span: dice.millis(10..=4_000) },
                    _ => Event::ForgetScripts,
                };
                (dice.millis(0..=chaos), event)
            })
            .collect();
        for _ in 0..3 {
            let at = dice.millis(0..=chaos);
            let restart = Event::Restart { down: Duration::ZERO, keep_data: false };
            match self.mode {
                Mode::Sound | Mode::FromRequest | Mode::FromReply => {}
                Mode::EarlyExpiry => {
                    events.push((at, Event::Expire { lock: dice.below(self.locks as u64) as usize }));
                }
                Mode::EmptyRestart => events.push((at, restart)),
                Mode::EmptyRestartInThePast => {
                    events.extend([(at, Event::Step { millis: -10_000 }), (at, restart)]);
                }
            }
        }
        events.sort_by_key(|(at, _)| *at);
        events
    }

    fn client(&self, dice: &mut Dice) -> usize {
        dice.below(self.clients as u64) as usize
    }
}
