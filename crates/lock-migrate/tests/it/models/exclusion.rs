//! Who holds one name while its lock moves: rungs in every mixture, crashes, pauses, the gate to `new` and the way back.
//!
//! The lock of a name on Redis is `R`, the one on ZooKeeper is `Z`. A process chooses a rung for each acquisition, and a
//! straggler knows only R. What is left out, and why nothing is lost by that:
//!
//! * A lease or a session ends at any time once its guard has ended, and never before: what a guard counts is shorter than
//!   what the server counts. So only the life of a tombstone has ticks.
//! * A process that crashes loses its lease and its session, each at some time. What it had read is lost only when that
//!   makes a difference, so that a pause and a crash are one.
//! * A request that does not arrive is one that is not made. Only two arrive late: the swap of the lease for a tombstone,
//!   which needs the mover's own value, and the removal of a tombstone.
//! * `shadow` acquires what `old` does.
//! * A lock that is lost by Redis itself (failover, FLUSHALL): the page says what it breaks.
//! * Processes are interchangeable: of all states that differ only in their order, one is searched.

use lock_testkit::stories::{Line, Tale, name, orders};
use stateright::{Model, Property};

/// How long a tombstone lives, or counts.
type Ticks = u8;

const LIFE: Ticks = 3;

/// Whether a process that has Z is on `move`, and not on `dual`.
type Moves = bool;

/// The protocol, with at most one mistake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ladder<const PROCESSES: usize> {
    pub(crate) mistake: Option<Mistake>,
}

/// What an implementation can get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// A mover hands its guard out before the tombstone is written.
    GuardBeforeTombstone,
    /// What was read of a tombstone counts in every generation of the record.
    ReadingOfEarlierGeneration,
    /// What was read is judged before Z is granted.
    JudgedBeforeGrant,
    /// A tombstone is taken to live its whole life from when it was read.
    WholeLifeFromReading,
    /// A removal is carried out whenever it arrives.
    RemovalWithoutDeadline,
    /// Tombstones are removed though not every session has seen that the way back began.
    RemovalBeforeAllHaveSeen,
    /// The record is watched in one session of a process, and the lock is in another one.
    WatchedInAnotherSession,
    /// The namespace is sealed while leases last on Redis.
    SealBeforeLeasesEnd,
    /// A process is on `new` though there is no seal.
    NewWithoutSeal,
    /// A guard of both is valid while either is.
    EitherHalf,
}

/// What the record, the two servers and the processes know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct State<const PROCESSES: usize> {
    processes: [Process; PROCESSES],
    /// Whether the straggler's guard is valid.
    straggler_holds: bool,
    redis: Redis,
    zookeeper: ZooKeeper,
    record: Phase,
    /// Whether Redis refuses everybody.
    closed: bool,
    removal: Option<Removal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Process {
    step: Step,
    /// What its session has seen of the record.
    session: Option<Session>,
    reading: Option<Reading>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Step {
    Idle,
    /// It has decided to rely on a tombstone, and waits for Z. Only by mistake.
    Judged(Ticks),
    HasZ(Moves),
    /// It is a mover that has Z and R.
    HasBoth,
    /// It has sent the swap of R for a tombstone, and no longer renews R.
    Moving,
    Holding(Guard),
}

/// What a valid guard relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Guard {
    Redis,
    Both,
    /// Z, and for so long the tombstone.
    Tombstone(Ticks),
    ZooKeeper,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Session {
    seen: Phase,
    /// Whether the operator sees it.
    registered: bool,
}

/// What a process knows of the tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Reading {
    generation: u8,
    left: Ticks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Redis {
    Free,
    Held {
        owner: Owner,
        /// A swap for a tombstone of this generation is in the network.
        swap: Option<u8>,
    },
    Tombstone {
        generation: u8,
        life: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Owner {
    Process(u8),
    Straggler,
    /// Its guard has ended; the lease has not yet.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum ZooKeeper {
    Free,
    Held(u8),
    Operator,
    /// Its guard has ended; the session has not yet.
    Ended,
}

/// The states of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Phase {
    Forward,
    /// The operator removes the tombstones: a new generation.
    Returning,
    Returned,
    Sealed,
}

impl Phase {
    const fn generation(self) -> u8 {
        match self {
            Self::Forward => 0,
            Self::Returning | Self::Returned | Self::Sealed => 1,
        }
    }
}

/// A removal of a tombstone that is in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Removal {
    generation: u8,
    in_time: bool,
}

/// One step of a process, of the straggler, of a server or of the operator; [`told`](State::told) says what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    Open(usize),
    See(usize),
    TakeOld(usize),
    Judge(usize),
    TakeZ(usize, Moves),
    TakeNew(usize),
    Rely(usize),
    Read(usize),
    TakeR(usize),
    SendSwap(usize),
    KeepBoth(usize),
    Moved(usize),
    NotMoved(usize),
    Refresh(usize),
    Release(usize),
    LoseR(usize),
    LoseZ(usize),
    LoseWatch(usize),
    StragglerTakes,
    StragglerReleases,
    StragglerLoses,
    Swap,
    ExpireR,
    ExpireZ,
    Return,
    OperatorTakesZ,
    SendRemoval,
    Remove,
    OperatorReleases,
    OperatorLosesZ,
    EndReturn,
    Close,
    Seal,
}

/// The property that is checked.
pub(crate) const EXCLUSION: &str = "no two guards are valid at the same time";

impl<const PROCESSES: usize> Tale for Ladder<PROCESSES> {
    fn step(&self, last: &State<PROCESSES>, action: Action) -> State<PROCESSES> {
        let mut state = *last;
        match action {
            Action::Tick => state.tick(),
            Action::Open(process) | Action::See(process) => state.see(process, self.mistake),
            Action::TakeOld(process) => {
                state.redis = Redis::held_by(process);
                state.processes[process].step = Step::Holding(Guard::Redis);
            }
            Action::Judge(process) => state.processes[process].step = Step::Judged(state.left(process)),
            Action::TakeZ(process, moves) => state.take_z(process, moves),
            Action::TakeNew(process) => {
                state.zookeeper = ZooKeeper::Held(process as u8);
                state.processes[process].step = Step::Holding(Guard::ZooKeeper);
            }
            Action::Rely(process) => {
                state.processes[process].step = Step::Holding(Guard::Tombstone(state.left(process)));
            }
            Action::Read(process) | Action::Moved(process) => state.read(process, self.mistake),
            Action::TakeR(process) => state.take_r(process),
            Action::SendSwap(process) => state.send_swap(process, self.mistake),
            Action::KeepBoth(process) => state.processes[process].step = Step::Holding(Guard::Both),
            Action::Refresh(process) => state.refresh(process),
            Action::NotMoved(process) | Action::Release(process) => state.release(process),
            Action::LoseR(process) => state.lose_r(process, self.mistake),
            Action::LoseZ(process) => state.lose_z(process, self.mistake),
            Action::LoseWatch(process) => {
                if let Some(session) = &mut state.processes[process].session {
                    session.registered = false;
                }
            }
            Action::StragglerTakes => {
                state.redis = Redis::Held { owner: Owner::Straggler, swap: None };
                state.straggler_holds = true;
            }
            Action::StragglerReleases => (state.redis, state.straggler_holds) = (Redis::Free, false),
            Action::StragglerLoses => {
                state.straggler_holds = false;
                state.redis.end(Owner::Straggler);
            }
            Action::Swap => {
                if let Redis::Held { swap: Some(generation), .. } = state.redis {
                    state.redis = Redis::Tombstone { generation, life: LIFE };
                }
            }
            Action::ExpireR => state.redis = Redis::Free,
            Action::ExpireZ | Action::OperatorReleases => state.zookeeper = ZooKeeper::Free,
            Action::Return => state.record = Phase::Returning,
            Action::OperatorTakesZ => state.zookeeper = ZooKeeper::Operator,
            Action::SendRemoval => {
                if let Redis::Tombstone { generation, .. } = state.redis {
                    state.removal = Some(Removal { generation, in_time: true });
                }
            }
            Action::Remove => state.remove(self.mistake),
            Action::OperatorLosesZ => {
                state.zookeeper = ZooKeeper::Ended;
                state.removal = state.removal.map(|removal| Removal { in_time: false, ..removal });
            }
            Action::EndReturn => state.record = Phase::Returned,
            Action::Close => state.closed = true,
            Action::Seal => state.record = Phase::Sealed,
        }
        state
    }

    fn representative(state: &State<PROCESSES>) -> State<PROCESSES> {
        orders::<PROCESSES>().map(|order| state.in_order(&order)).min().unwrap_or(*state)
    }

    fn tell(&self, last: &State<PROCESSES>, action: Action, next: &State<PROCESSES>) -> Line {
        Line::new(last.told(action, next))
    }
}

impl<const PROCESSES: usize> Model for Ladder<PROCESSES> {
    type State = State<PROCESSES>;
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        let process = Process { step: Step::Idle, session: None, reading: None };
        vec![State {
            processes: [process; PROCESSES],
            straggler_holds: false,
            redis: Redis::Free,
            zookeeper: ZooKeeper::Free,
            record: Phase::Forward,
            closed: false,
            removal: None,
        }]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Action>) {
        actions.extend(state.has_ticks().then_some(Action::Tick));
        for process in 0..PROCESSES {
            // Of processes that are alike, the first moves.
            if !state.processes[..process].contains(&state.processes[process]) || !state.is_idle(process) {
                state.steps_of(process, self.mistake, actions);
            }
        }
        state.steps_of_straggler(actions);
        state.steps_of_servers(actions);
        state.steps_of_operator(self.mistake, actions);
    }

    fn next_state(&self, last: &Self::State, action: Action) -> Option<Self::State> {
        Some(Self::representative(&self.step(last, action)))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &Self::State| state.valid_guards() <= 1),
            Property::sometimes("a name has moved", |_, state: &Self::State| {
                state.has_guard(|guard| matches!(guard, Guard::Tombstone(_)))
            }),
            Property::sometimes("both are held", |_, state: &Self::State| state.has(Guard::Both)),
            Property::sometimes("the way back has ended, and R is used again", |_, state: &Self::State| {
                state.record == Phase::Returned && state.has(Guard::Redis)
            }),
            Property::sometimes("the seal was seen", |_, state: &Self::State| {
                state.record == Phase::Sealed && state.has(Guard::ZooKeeper)
            }),
            Property::sometimes("a removal came too late", |_, state: &Self::State| {
                state.is_moved() && state.removal.is_some_and(|removal| !removal.in_time)
            }),
        ]
    }
}

impl<const PROCESSES: usize> State<PROCESSES> {
    fn steps_of(&self, process: usize, mistake: Option<Mistake>, actions: &mut Vec<Action>) {
        let Process { step, session, reading } = self.processes[process];
        let (is_free, is_readable) =
            (self.redis == Redis::Free && !self.closed, self.is_moved() && !self.closed);
        let z_is_free = self.zookeeper == ZooKeeper::Free;
        let mut when = |may: bool, action| actions.extend(may.then_some(action));
        when(session.is_none(), Action::Open(process));
        if let Some(Session { seen, registered }) = session {
            when(true, Action::LoseZ(process));
            when(seen != self.record && registered, Action::See(process));
            let watched_elsewhere = mistake == Some(Mistake::WatchedInAnotherSession);
            when(watched_elsewhere && registered, Action::LoseWatch(process));
        }
        let seen = session.map(|session| session.seen);
        match step {
            Step::Idle => {
                when(is_free && seen != Some(Phase::Sealed), Action::TakeOld(process));
                let Some(seen) = seen else { return };
                let judges = mistake == Some(Mistake::JudgedBeforeGrant);
                when(judges && self.may_rely(process, mistake), Action::Judge(process));
                let is_new = seen == Phase::Sealed || mistake == Some(Mistake::NewWithoutSeal);
                when(z_is_free && is_new, Action::TakeNew(process));
                for moves in [false, true] {
                    when(z_is_free && seen != Phase::Sealed, Action::TakeZ(process, moves));
                }
            }
            Step::Judged(_) => when(z_is_free, Action::TakeZ(process, true)),
            Step::HasZ(moves) => {
                when(true, Action::Release(process));
                when(moves && reading.is_some() && self.may_rely(process, mistake), Action::Rely(process));
                when(is_readable, Action::Read(process));
                when(is_free, Action::TakeR(process));
            }
            Step::HasBoth => {
                when(true, Action::LoseR(process));
                let returns = seen == Some(Phase::Returning);
                when(true, if returns { Action::KeepBoth(process) } else { Action::SendSwap(process) });
            }
            Step::Moving => {
                when(self.is_moved(), Action::Moved(process));
                when(!self.is_moved() && !self.redis.is_of(process), Action::NotMoved(process));
            }
            Step::Holding(guard) => {
                when(true, Action::Release(process));
                let has_lease = matches!(guard, Guard::Redis | Guard::Both);
                when(has_lease && self.redis.is_of(process), Action::LoseR(process));
                when(is_readable && matches!(guard, Guard::Tombstone(_)), Action::Refresh(process));
            }
        }
    }

    fn steps_of_straggler(&self, actions: &mut Vec<Action>) {
        if self.straggler_holds {
            actions.push(Action::StragglerLoses);
            actions.extend((!self.closed).then_some(Action::StragglerReleases));
        } else if self.redis == Redis::Free && !self.closed {
            actions.push(Action::StragglerTakes);
        }
    }

    fn steps_of_servers(&self, actions: &mut Vec<Action>) {
        let mut when = |may: bool, action| actions.extend(may.then_some(action));
        if let Redis::Held { owner, swap } = self.redis {
            when(swap.is_some() && !self.closed, Action::Swap);
            let renewed = match owner {
                Owner::Process(process) => self.processes[usize::from(process)].step != Step::Moving,
                Owner::Straggler => true,
                Owner::Ended => false,
            };
            // By mistake a guard is out while the swap is in the network: its lease is not renewed either.
            when(!renewed || swap.is_some(), Action::ExpireR);
        }
        when(self.zookeeper == ZooKeeper::Ended, Action::ExpireZ);
        when(self.removal.is_some(), Action::Remove);
    }

    fn steps_of_operator(&self, mistake: Option<Mistake>, actions: &mut Vec<Action>) {
        let (is_moved, has_z) = (self.is_moved(), self.zookeeper == ZooKeeper::Operator);
        let mut when = |may: bool, action| actions.extend(may.then_some(action));
        match self.record {
            Phase::Forward if !self.closed => {
                when(true, Action::Return);
                when(true, Action::Close);
            }
            Phase::Returned if !self.closed => when(true, Action::Close),
            Phase::Returning => {
                let all_have_seen =
                    self.all_have_seen() || mistake == Some(Mistake::RemovalBeforeAllHaveSeen);
                let z_is_free = self.zookeeper == ZooKeeper::Free;
                when(all_have_seen && z_is_free && is_moved, Action::OperatorTakesZ);
                let swapped_later = matches!(self.redis, Redis::Held { swap: Some(_), .. });
                when(all_have_seen && !has_z && !is_moved && !swapped_later, Action::EndReturn);
            }
            Phase::Forward | Phase::Returned => {
                let leases_last = matches!(self.redis, Redis::Held { .. });
                when(!leases_last || mistake == Some(Mistake::SealBeforeLeasesEnd), Action::Seal);
            }
            Phase::Sealed => {}
        }
        when(has_z, Action::OperatorLosesZ);
        // Z is kept until the removal is answered.
        when(has_z && self.removal.is_none() && is_moved, Action::SendRemoval);
        when(has_z && self.removal.is_none() && !is_moved, Action::OperatorReleases);
    }

    fn is_idle(&self, process: usize) -> bool {
        self.processes[process].step == Step::Idle
    }

    /// How long what it read of the tombstone counts.
    fn left(&self, process: usize) -> Ticks {
        self.processes[process].reading.map_or(0, |reading| reading.left)
    }

    fn all_have_seen(&self) -> bool {
        let mut sessions = self.processes.iter().filter_map(|process| process.session);
        sessions.all(|session| !session.registered || session.seen == self.record)
    }

    fn has_ticks(&self) -> bool {
        self.is_moved()
            || self.processes.iter().any(|process| {
                process.reading.is_some()
                    || matches!(process.step, Step::Judged(_) | Step::Holding(Guard::Tombstone(_)))
            })
    }

    fn valid_guards(&self) -> usize {
        let valid = |process: &&Process| matches!(process.step, Step::Holding(_));
        self.processes.iter().filter(valid).count() + usize::from(self.straggler_holds)
    }

    fn has_guard(&self, which: impl Fn(Guard) -> bool) -> bool {
        self.processes.iter().any(|process| matches!(process.step, Step::Holding(guard) if which(guard)))
    }

    fn has(&self, guard: Guard) -> bool {
        self.has_guard(|other| other == guard)
    }

    fn is_moved(&self) -> bool {
        matches!(self.redis, Redis::Tombstone { .. })
    }

    /// Whether a mover may rely on what it read, without asking Redis.
    fn may_rely(&self, process: usize, mistake: Option<Mistake>) -> bool {
        let Process { session: Some(session), reading: Some(reading), .. } = self.processes[process] else {
            return false;
        };
        let is_current = reading.generation == session.seen.generation() && session.seen != Phase::Returning;
        2 * reading.left > LIFE && (is_current || mistake == Some(Mistake::ReadingOfEarlierGeneration))
    }

    fn tick(&mut self) {
        if let Redis::Tombstone { generation, life } = self.redis {
            self.redis = match life - 1 {
                0 => Redis::Free,
                life => Redis::Tombstone { generation, life },
            };
        }
        for process in 0..PROCESSES {
            let own = &mut self.processes[process];
            own.reading = own
                .reading
                .map(|reading| Reading { left: reading.left - 1, ..reading })
                .filter(|reading| 2 * reading.left > LIFE);
            match &mut own.step {
                Step::Judged(left) => {
                    *left -= 1;
                    if *left == 0 {
                        own.step = Step::Idle;
                    }
                }
                Step::Holding(Guard::Tombstone(left)) => {
                    *left -= 1;
                    if *left == 0 {
                        self.release(process);
                    }
                }
                _ => {}
            }
        }
    }

    /// What was read in an earlier generation of the record does not count any more.
    fn see(&mut self, process: usize, mistake: Option<Mistake>) {
        let (own, generation) = (&mut self.processes[process], self.record.generation());
        own.session = Some(Session { seen: self.record, registered: true });
        let is_kept = mistake == Some(Mistake::ReadingOfEarlierGeneration);
        own.reading = own.reading.filter(|reading| is_kept || reading.generation == generation);
    }

    fn take_z(&mut self, process: usize, moves: bool) {
        self.zookeeper = ZooKeeper::Held(process as u8);
        self.processes[process].step = match self.processes[process].step {
            Step::Judged(left) => Step::Holding(Guard::Tombstone(left)),
            _ => Step::HasZ(moves),
        };
    }

    fn read(&mut self, process: usize, mistake: Option<Mistake>) {
        let Redis::Tombstone { life, .. } = self.redis else { return };
        let left = if mistake == Some(Mistake::WholeLifeFromReading) { LIFE } else { life };
        let own = &mut self.processes[process];
        let moves = matches!(own.step, Step::HasZ(true) | Step::Moving);
        if let Some(session) = own.session.filter(|session| moves && session.seen != Phase::Returning) {
            let reading = Reading { generation: session.seen.generation(), left };
            own.reading = Some(reading).filter(|reading| 2 * reading.left > LIFE);
        }
        own.step = Step::Holding(Guard::Tombstone(left));
    }

    fn take_r(&mut self, process: usize) {
        self.redis = Redis::held_by(process);
        let own = &mut self.processes[process];
        own.step = match own.step {
            Step::HasZ(true) => Step::HasBoth,
            _ => Step::Holding(Guard::Both),
        };
    }

    fn send_swap(&mut self, process: usize, mistake: Option<Mistake>) {
        let generation = self.processes[process].session.map(|session| session.seen.generation());
        if let Redis::Held { swap, .. } = &mut self.redis {
            *swap = generation;
        }
        self.processes[process].step = match mistake {
            Some(Mistake::GuardBeforeTombstone) => Step::Holding(Guard::ZooKeeper),
            _ => Step::Moving,
        };
    }

    fn refresh(&mut self, process: usize) {
        if let Redis::Tombstone { life, .. } = &mut self.redis {
            *life = LIFE;
        }
        self.processes[process].step = Step::Holding(Guard::Tombstone(LIFE));
    }

    fn release(&mut self, process: usize) {
        if self.redis.is_of(process) && !self.closed {
            self.redis = Redis::Free;
        }
        self.redis.end(Owner::Process(process as u8));
        if self.zookeeper == ZooKeeper::Held(process as u8) {
            self.zookeeper = ZooKeeper::Free;
        }
        self.processes[process].step = Step::Idle;
    }

    fn lose_r(&mut self, process: usize, mistake: Option<Mistake>) {
        self.redis.end(Owner::Process(process as u8));
        if mistake == Some(Mistake::EitherHalf) && self.processes[process].step == Step::Holding(Guard::Both)
        {
            self.processes[process].step = Step::Holding(Guard::ZooKeeper);
        } else {
            self.release(process);
        }
    }

    fn lose_z(&mut self, process: usize, mistake: Option<Mistake>) {
        if self.zookeeper == ZooKeeper::Held(process as u8) {
            self.zookeeper = ZooKeeper::Ended;
        }
        let own = &mut self.processes[process];
        own.session = None;
        match own.step {
            Step::Holding(Guard::Redis) => {}
            Step::Holding(Guard::Both) if mistake == Some(Mistake::EitherHalf) => {
                own.step = Step::Holding(Guard::Redis);
            }
            _ => {
                own.step = Step::Idle;
                self.redis.end(Owner::Process(process as u8));
            }
        }
    }

    fn remove(&mut self, mistake: Option<Mistake>) {
        let Some(removal) = self.removal.take() else { return };
        let is_same =
            matches!(self.redis, Redis::Tombstone { generation, .. } if generation == removal.generation);
        if is_same && (removal.in_time || mistake == Some(Mistake::RemovalWithoutDeadline)) {
            self.redis = Redis::Free;
        }
    }

    fn in_order(&self, order: &[usize; PROCESSES]) -> Self {
        let mut state = *self;
        let renamed = |old: u8| order.iter().position(|at| *at == usize::from(old)).unwrap_or_default() as u8;
        for (new, old) in order.iter().enumerate() {
            state.processes[new] = self.processes[*old];
        }
        if let Redis::Held { owner: Owner::Process(process), .. } = &mut state.redis {
            *process = renamed(*process);
        }
        if let ZooKeeper::Held(process) = &mut state.zookeeper {
            *process = renamed(*process);
        }
        state
    }

    fn told(&self, action: Action, next: &Self) -> String {
        let step = |process: usize| next.processes[process].step;
        let (process, text) = match action {
            Action::Open(process) => (
                process,
                match self.record {
                    Phase::Forward => " opens a session",
                    Phase::Returning => " opens a session, and sees that the way back has begun",
                    Phase::Returned => " opens a session, and sees that the way back has ended",
                    Phase::Sealed => " opens a session, and sees the seal",
                },
            ),
            Action::See(process) => (
                process,
                match self.record {
                    Phase::Forward | Phase::Returning => " sees that the way back has begun",
                    Phase::Returned => " sees that the way back has ended",
                    Phase::Sealed => " sees the seal",
                },
            ),
            Action::TakeOld(process) => (process, ", on old, acquires R and holds the lock"),
            Action::Judge(process) => {
                (process, ", on move, decides to rely on the tombstone that it read, and waits for Z")
            }
            Action::TakeZ(process, _) if matches!(step(process), Step::Holding(_)) => {
                (process, " acquires Z, and holds the lock by what it had decided")
            }
            Action::TakeZ(process, true) => (process, ", on move, acquires Z"),
            Action::TakeZ(process, false) => (process, ", on dual, acquires Z"),
            Action::TakeNew(process) => (process, ", on new, acquires Z and holds the lock"),
            Action::Rely(process) => {
                (process, " relies on the tombstone that it read before, and holds the lock")
            }
            Action::Read(process) => (process, " reads the tombstone, and holds the lock"),
            Action::TakeR(process) if step(process) == Step::HasBoth => (process, " acquires R"),
            Action::TakeR(process) => (process, " acquires R and holds the lock"),
            Action::SendSwap(process) if step(process) == Step::Moving => {
                (process, " no longer renews R, and sends the tombstone")
            }
            Action::SendSwap(process) => {
                (process, " no longer renews R, sends the tombstone, and holds the lock")
            }
            Action::KeepBoth(process) => (process, " keeps both, and holds the lock"),
            Action::Moved(process) => (process, " finds its tombstone written, and holds the lock"),
            Action::NotMoved(process) => (process, " finds its lease ended, and gives Z back"),
            Action::Refresh(process) => (process, " refreshes the tombstone"),
            Action::Release(process) => (process, " releases what it has"),
            Action::LoseR(process) => (process, "'s lease on R is no longer valid"),
            Action::LoseZ(process) => (process, "'s session is no longer valid"),
            Action::LoseWatch(process) => (process, "'s other session, which watched the record, ends"),
            _ => return self.told_of_others(action, next).to_owned(),
        };
        format!("{}{text}", name(process))
    }

    fn told_of_others(&self, action: Action, next: &Self) -> &'static str {
        match action {
            Action::StragglerTakes => "the straggler acquires R and holds the lock",
            Action::StragglerReleases => "the straggler releases R",
            Action::StragglerLoses => "the straggler's lease on R is no longer valid",
            Action::Swap => "the tombstone is written in the place of R",
            Action::ExpireR => "the lease on R ends on Redis",
            Action::ExpireZ => "the session ends on ZooKeeper, and Z is free",
            Action::Return => "the operator begins the way back",
            Action::OperatorTakesZ => "the operator acquires Z",
            Action::SendRemoval => "the operator sends the removal of the tombstone",
            Action::Remove if self.redis == next.redis => "the removal arrives, and is refused",
            Action::Remove => "the removal arrives: the tombstone is gone",
            Action::OperatorReleases => "the operator releases Z",
            Action::OperatorLosesZ => "the operator is paused, and its session is no longer valid",
            Action::EndReturn => "the operator ends the way back",
            Action::Close => "the operator closes Redis to all users",
            Action::Seal => "the operator writes the seal",
            _ => "time passes",
        }
    }
}

impl Redis {
    const fn held_by(process: usize) -> Self {
        Self::Held { owner: Owner::Process(process as u8), swap: None }
    }

    fn is_of(self, process: usize) -> bool {
        matches!(self, Self::Held { owner: Owner::Process(owner), .. } if usize::from(owner) == process)
    }

    /// The guard of this owner has ended: nobody renews the lease.
    fn end(&mut self, ended: Owner) {
        if let Self::Held { owner, .. } = self
            && *owner == ended
        {
            *owner = Owner::Ended;
        }
    }
}
