//! What a seed decides: who takes part, and what goes wrong when.

use std::time::Duration;

use lock_testkit::fake::{Dice, Faults};
use lock_testkit::history::Mode as Share;
use lock_testkit::simulation::{self, Habits, Leases, Outcome};

use super::run::run;

/// What the run is to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing goes wrong that Redlock does not promise to withstand, on five masters.
    #[default]
    Sound,
    /// The same, on three or on seven.
    OtherSizes,
    /// Masters restart without their data.
    EmptyRestart,
    /// All masters restart one after the other, at short distances: with their data, without it, or with that of earlier.
    RollingRestart,
    /// Masters restart without their data, and say that they did not restart.
    UnseenEmptyRestart,
    /// Masters let locks end before their time, as those whose clocks jump do.
    EarlyExpiry,
    /// As [`Sound`](Self::Sound), with leases that are not renewed.
    FromRequest,
    /// The same, but a client counts its lease from when the answers came, not from when the requests were sent.
    FromReply,
}

/// One run, as its seed determines it.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) mode: Mode,
    pub(crate) masters: usize,
    pub(crate) clients: usize,
    pub(crate) ttl: Duration,
    pub(crate) timeout: Duration,
    /// How far the wall clock of each client is ahead of the masters', in milliseconds.
    pub(crate) ahead: Vec<i64>,
    /// Whether some are held for a limited time, which makes their last leases as short as can be.
    limited: bool,
    pub(crate) faults: Faults,
    /// For how long things go wrong.
    pub(crate) chaos: Duration,
    /// What goes wrong besides the faults of the links, in the order of time.
    pub(crate) events: Vec<(Duration, Event)>,
}

/// Something that goes wrong once.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Nothing passes between this client and any master.
    Pause { client: usize, span: Duration },
    /// Nothing passes between any client and this master.
    Hang { master: usize, span: Duration },
    /// Nothing passes between the two.
    Stall { client: usize, master: usize, span: Duration },
    /// All connections between the two are reset.
    Reset { client: usize, master: usize },
    /// The master's data is saved.
    Snapshot { master: usize },
    /// The master is down for so long.
    Restart { master: usize, down: Duration, data: Data },
    /// The master restarts without its data, at once, and says that it did not.
    RestartUnseen { master: usize },
    /// The master's clock steps by so many milliseconds.
    Step { master: usize, millis: i64 },
    /// The key of the lock ends on this master.
    Expire { master: usize },
}

/// The data of a master after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Kept,
    Lost,
    /// That of the last [`Event::Snapshot`].
    Earlier,
}

impl simulation::Scenario for Scenario {
    type Mode = Mode;

    fn new(seed: u64, mode: Mode) -> Self {
        let mut dice = Dice::new(seed);
        let clients = if dice.chance(0.7) { 2 } else { 3 };
        let masters = match (mode, dice.chance(0.6)) {
            (Mode::Sound, _) => 5,
            (Mode::OtherSizes, true) => 3,
            (Mode::OtherSizes, false) => 7,
            (_, true) => 5,
            (_, false) => 3,
        };
        let mut scenario = Self {
            seed,
            mode,
            masters,
            clients,
            ttl: Duration::from_millis(*dice.pick(&[300, 500, 900])),
            timeout: Duration::from_millis(*dice.pick(&[50, 100, 250])),
            ahead: (0..clients).map(|_| *dice.pick(&[0, 0, 1, -1, 3_000, -3_000])).collect(),
            limited: dice.chance(0.5),
            faults: Faults::some(&mut dice),
            chaos: if mode == Mode::RollingRestart {
                dice.millis(1_000..=4_000)
            } else {
                dice.millis(300..=1_200)
            },
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
        let Self { ttl, limited, chaos, .. } = *self;
        Habits { ttl, locks: 1, shares: &[Share::Exclusive], limited, leases, until: chaos }
    }

    /// By how much a master's clock steps back at most: so much longer do its keys live.
    pub(crate) fn steps_back(&self) -> Duration {
        let steps = self.events.iter().map(|(_, event)| match event {
            Event::Step { millis, .. } if *millis < 0 => millis.unsigned_abs(),
            _ => 0,
        });
        Duration::from_millis(steps.sum())
    }

    fn events(&self, dice: &mut Dice) -> Vec<(Duration, Event)> {
        // A lease allows a master's clock to run ahead by a hundredth of itself and 2 ms. The shortest is half the ttl.
        let ahead = if self.limited { 2 } else { self.ttl.as_millis() as i64 / 200 + 2 };
        let mut ahead = vec![ahead; self.masters];
        let chaos = self.chaos.as_millis() as u64;
        let mut events: Vec<_> = (0..dice.below(6))
            .map(|_| {
                let (client, master) =
                    (dice.below(self.clients as u64) as usize, dice.below(self.masters as u64) as usize);
                let event = match dice.below(12) {
                    0 | 1 => Event::Pause { client, span: dice.millis(10..=1_500) },
                    2 | 3 => Event::Hang { master, span: dice.millis(10..=1_500) },
                    4 | 5 => Event::Stall { client, master, span: dice.millis(10..=1_500) },
                    6 | 7 => Event::Reset { client, master },
                    8 | 9 => Event::Restart { master, down: dice.millis(0..=500), data: Data::Kept },
                    10 => Event::Step { master, millis: -(dice.within(1..=500) as i64) },
                    _ => Event::Step { master, millis: std::mem::take(&mut ahead[master]) },
                };
                (dice.millis(0..=chaos), event)
            })
            .collect();
        for _ in 0..3 {
            let (at, master) = (dice.millis(0..=chaos), dice.below(self.masters as u64) as usize);
            match self.mode {
                Mode::Sound
                | Mode::OtherSizes
                | Mode::RollingRestart
                | Mode::FromRequest
                | Mode::FromReply => {}
                Mode::EmptyRestart => {
                    events.push((at, Event::Restart { master, down: Duration::ZERO, data: Data::Lost }));
                }
                Mode::UnseenEmptyRestart => events.push((at, Event::RestartUnseen { master })),
                Mode::EarlyExpiry => events.push((at, Event::Expire { master })),
            }
        }
        if self.mode == Mode::RollingRestart {
            events.extend(self.rolling_restart(dice));
        }
        events.sort_by_key(|(at, _)| *at);
        events
    }

    /// Restarts of one master after the other, over and over.
    fn rolling_restart(&self, dice: &mut Dice) -> Vec<(Duration, Event)> {
        let (step, datas) = (dice.millis(20..=400), [Data::Kept, Data::Lost, Data::Earlier]);
        let data = if dice.chance(0.5) { Some(*dice.pick(&datas)) } else { None };
        let mut events = Vec::new();
        let (mut at, mut master) = (step, 0);
        while at < self.chaos {
            let data = data.unwrap_or_else(|| *dice.pick(&datas));
            let since = dice.millis(0..=self.ttl.as_millis() as u64).min(at);
            events.push((at - since, Event::Snapshot { master }));
            events.push((at, Event::Restart { master, down: dice.millis(0..=30), data }));
            (at, master) = (at + step, (master + 1) % self.masters);
        }
        events
    }
}
