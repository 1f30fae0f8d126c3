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

/// How long a tombstone lives, in ticks.
const LIFE: u8 = 3;

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
    Judged {
        left: u8,
    },
    HasZ {
        moves: bool,
    },
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
    /// Z, and for so many ticks more the tombstone.
    Tombstone {
        left: u8,
    },
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
    left: u8,
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

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    /// A process opens a session, and reads and watches the record in it.
    Open(usize),
    /// A session sees that the record has changed.
    See(usize),
    /// A process on `old` acquires R.
    TakeOld(usize),
    /// A process decides to rely on what it read, and waits for Z.
    Judge(usize),
    /// A process acquires Z.
    TakeZ {
        process: usize,
        moves: bool,
    },
    /// A process acquires Z, as nothing else is needed.
    TakeNew(usize),
    /// A mover relies on what it read before.
    Rely(usize),
    /// A process that has Z reads the tombstone.
    Read(usize),
    /// A process that has Z acquires R.
    TakeR(usize),
    /// A mover sends the swap.
    SendSwap(usize),
    /// A mover keeps both, as the way back began.
    KeepBoth(usize),
    /// A mover finds the tombstone written.
    Moved(usize),
    /// A mover finds that its lease ended instead.
    NotMoved(usize),
    /// A guard refreshes the tombstone.
    Refresh(usize),
    Release(usize),
    /// The lease of a process is no longer valid for it.
    LoseR(usize),
    /// The session of a process is no longer valid for it.
    LoseZ(usize),
    /// The session with the watch ends, and the one with the lock does not.
    LoseWatch(usize),
    StragglerTakes,
    StragglerReleases,
    StragglerLoses,
    /// The swap arrives.
    Swap,
    /// A lease ends on Redis.
    ExpireR,
    /// A session ends on ZooKeeper.
    ExpireZ,
    /// The operator begins the way back.
    Return,
    OperatorTakesZ,
    SendRemoval,
    Remove,
    OperatorReleases,
    OperatorLosesZ,
    /// The way back has ended: a pass found no tombstone.
    EndReturn,
    /// The operator closes Redis to all users.
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
            Action::Open(process) => state.open(process, self.mistake),
            Action::See(process) => state.see(process, self.mistake),
            Action::TakeOld(process) => {
                state.redis = Redis::held_by(process);
                state.processes[process].step = Step::Holding(Guard::Redis);
            }
            Action::Judge(process) => {
                let left = state.processes[process].reading.map_or(0, |reading| reading.left);
                state.processes[process].step = Step::Judged { left };
            }
            Action::TakeZ { process, moves } => state.take_z(process, moves),
            Action::TakeNew(process) => {
                state.zookeeper = ZooKeeper::Held(process as u8);
                state.processes[process].step = Step::Holding(Guard::ZooKeeper);
            }
            Action::Rely(process) => {
                let left = state.processes[process].reading.map_or(0, |reading| reading.left);
                state.processes[process].step = Step::Holding(Guard::Tombstone { left });
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
                state.has_guard(|guard| matches!(guard, Guard::Tombstone { .. }))
            }),
            Property::sometimes("both are held", |_, state: &Self::State| {
                state.has_guard(|guard| guard == Guard::Both)
            }),
            Property::sometimes(
                "the way back has ended, and a process that knew the tombstone uses R",
                |_, state: &Self::State| {
                    state.record == Phase::Returned && state.has_guard(|guard| guard == Guard::Redis)
                },
            ),
            Property::sometimes("the seal was seen", |_, state: &Self::State| {
                state.record == Phase::Sealed && state.has_guard(|guard| guard == Guard::ZooKeeper)
            }),
            Property::sometimes(
                "a removal came too late",
                |_, state: &Self::State| matches!((state.removal, state.redis), (Some(removal), Redis::Tombstone { .. }) if !removal.in_time),
            ),
        ]
    }
}

impl<const PROCESSES: usize> State<PROCESSES> {
    fn steps_of(&self, process: usize, mistake: Option<Mistake>, actions: &mut Vec<Action>) {
        let Process { step, session, reading } = self.processes[process];
        let is_free = self.redis == Redis::Free && !self.closed;
        let z_is_free = self.zookeeper == ZooKeeper::Free;
        let seen = session.map(|session| session.seen);
        match seen {
            None => actions.push(Action::Open(process)),
            Some(seen) => {
                actions.push(Action::LoseZ(process));
                let registered = session.is_some_and(|session| session.registered);
                actions.extend((seen != self.record && registered).then_some(Action::See(process)));
                let watched_elsewhere = mistake == Some(Mistake::WatchedInAnotherSession) && registered;
                actions.extend(watched_elsewhere.then_some(Action::LoseWatch(process)));
            }
        }
        match step {
            Step::Idle => {
                actions.extend((is_free && seen != Some(Phase::Sealed)).then_some(Action::TakeOld(process)));
                let Some(seen) = seen else { return };
                let judges = mistake == Some(Mistake::JudgedBeforeGrant);
                actions.extend((judges && self.may_rely(process, mistake)).then_some(Action::Judge(process)));
                if z_is_free {
                    let is_new = seen == Phase::Sealed || mistake == Some(Mistake::NewWithoutSeal);
                    actions.extend(is_new.then_some(Action::TakeNew(process)));
                    if seen != Phase::Sealed {
                        actions.extend([false, true].map(|moves| Action::TakeZ { process, moves }));
                    }
                }
            }
            Step::Judged { .. } => {
                actions.extend(z_is_free.then_some(Action::TakeZ { process, moves: true }));
            }
            Step::HasZ { moves } => {
                actions.push(Action::Release(process));
                let relies = moves && reading.is_some() && self.may_rely(process, mistake);
                actions.extend(relies.then_some(Action::Rely(process)));
                let is_moved = matches!(self.redis, Redis::Tombstone { .. });
                actions.extend((is_moved && !self.closed).then_some(Action::Read(process)));
                actions.extend(is_free.then_some(Action::TakeR(process)));
            }
            Step::HasBoth => {
                actions.push(Action::LoseR(process));
                let returns = seen == Some(Phase::Returning);
                actions.push(if returns { Action::KeepBoth(process) } else { Action::SendSwap(process) });
            }
            Step::Moving => match self.redis {
                Redis::Tombstone { .. } => actions.push(Action::Moved(process)),
                redis if !redis.is_of(process) => actions.push(Action::NotMoved(process)),
                _ => {}
            },
            Step::Holding(guard) => {
                actions.push(Action::Release(process));
                let has_lease = matches!(guard, Guard::Redis | Guard::Both);
                actions.extend((has_lease && self.redis.is_of(process)).then_some(Action::LoseR(process)));
                let (relies, is_moved) =
                    (matches!(guard, Guard::Tombstone { .. }), matches!(self.redis, Redis::Tombstone { .. }));
                actions.extend((relies && is_moved && !self.closed).then_some(Action::Refresh(process)));
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
        if let Redis::Held { owner, swap } = self.redis {
            actions.extend((swap.is_some() && !self.closed).then_some(Action::Swap));
            let renewed = match owner {
                Owner::Process(process) => !matches!(self.processes[usize::from(process)].step, Step::Moving),
                Owner::Straggler => true,
                Owner::Ended => false,
            };
            // By mistake a guard is out while the swap is in the network: its lease is not renewed either.
            actions.extend((!renewed || swap.is_some()).then_some(Action::ExpireR));
        }
        actions.extend((self.zookeeper == ZooKeeper::Ended).then_some(Action::ExpireZ));
        actions.extend(self.removal.is_some().then_some(Action::Remove));
    }

    fn steps_of_operator(&self, mistake: Option<Mistake>, actions: &mut Vec<Action>) {
        let is_moved = matches!(self.redis, Redis::Tombstone { .. });
        match self.record {
            Phase::Forward if !self.closed => actions.extend([Action::Return, Action::Close]),
            Phase::Returned if !self.closed => actions.push(Action::Close),
            Phase::Returning => {
                let all_have_seen =
                    self.all_have_seen() || mistake == Some(Mistake::RemovalBeforeAllHaveSeen);
                let may_take = all_have_seen && self.zookeeper == ZooKeeper::Free && is_moved;
                actions.extend(may_take.then_some(Action::OperatorTakesZ));
                let swapped_later = matches!(self.redis, Redis::Held { swap: Some(_), .. });
                let has_ended = self.zookeeper != ZooKeeper::Operator && !is_moved && !swapped_later;
                actions.extend((all_have_seen && has_ended).then_some(Action::EndReturn));
            }
            Phase::Forward | Phase::Returned => {
                let leases_have_ended = !matches!(self.redis, Redis::Held { .. })
                    || mistake == Some(Mistake::SealBeforeLeasesEnd);
                actions.extend(leases_have_ended.then_some(Action::Seal));
            }
            Phase::Sealed => {}
        }
        if self.zookeeper == ZooKeeper::Operator {
            actions.push(Action::OperatorLosesZ);
            actions.push(match self.removal {
                None if is_moved => Action::SendRemoval,
                None => Action::OperatorReleases,
                // Z is kept until the removal is answered.
                Some(_) => return,
            });
        }
    }

    fn is_idle(&self, process: usize) -> bool {
        self.processes[process].step == Step::Idle
    }

    fn all_have_seen(&self) -> bool {
        let mut sessions = self.processes.iter().filter_map(|process| process.session);
        sessions.all(|session| !session.registered || session.seen == self.record)
    }

    fn has_ticks(&self) -> bool {
        matches!(self.redis, Redis::Tombstone { .. })
            || self.processes.iter().any(|process| {
                process.reading.is_some()
                    || matches!(process.step, Step::Judged { .. } | Step::Holding(Guard::Tombstone { .. }))
            })
    }

    fn valid_guards(&self) -> usize {
        let valid = |process: &&Process| matches!(process.step, Step::Holding(_));
        self.processes.iter().filter(valid).count() + usize::from(self.straggler_holds)
    }

    fn has_guard(&self, which: impl Fn(Guard) -> bool) -> bool {
        self.processes.iter().any(|process| matches!(process.step, Step::Holding(guard) if which(guard)))
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
                Step::Judged { left } => {
                    *left -= 1;
                    if *left == 0 {
                        own.step = Step::Idle;
                    }
                }
                Step::Holding(Guard::Tombstone { left }) => {
                    *left -= 1;
                    if *left == 0 {
                        self.release(process);
                    }
                }
                _ => {}
            }
        }
    }

    fn open(&mut self, process: usize, mistake: Option<Mistake>) {
        self.processes[process].session = Some(Session { seen: self.record, registered: true });
        self.forget_earlier(process, mistake);
    }

    fn see(&mut self, process: usize, mistake: Option<Mistake>) {
        self.processes[process].session = Some(Session { seen: self.record, registered: true });
        self.forget_earlier(process, mistake);
    }

    fn forget_earlier(&mut self, process: usize, mistake: Option<Mistake>) {
        if mistake != Some(Mistake::ReadingOfEarlierGeneration) {
            let generation = self.record.generation();
            let own = &mut self.processes[process];
            own.reading = own.reading.filter(|reading| reading.generation == generation);
        }
    }

    fn take_z(&mut self, process: usize, moves: bool) {
        self.zookeeper = ZooKeeper::Held(process as u8);
        self.processes[process].step = match self.processes[process].step {
            Step::Judged { left } => Step::Holding(Guard::Tombstone { left }),
            _ => Step::HasZ { moves },
        };
    }

    fn read(&mut self, process: usize, mistake: Option<Mistake>) {
        let Redis::Tombstone { life, .. } = self.redis else { return };
        let left = if mistake == Some(Mistake::WholeLifeFromReading) { LIFE } else { life };
        let own = &mut self.processes[process];
        let moves = matches!(own.step, Step::HasZ { moves: true } | Step::Moving);
        if let Some(session) = own.session.filter(|session| moves && session.seen != Phase::Returning) {
            let reading = Reading { generation: session.seen.generation(), left };
            own.reading = Some(reading).filter(|reading| 2 * reading.left > LIFE);
        }
        own.step = Step::Holding(Guard::Tombstone { left });
    }

    fn take_r(&mut self, process: usize) {
        self.redis = Redis::held_by(process);
        let own = &mut self.processes[process];
        own.step = match own.step {
            Step::HasZ { moves: true } => Step::HasBoth,
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
        self.processes[process].step = Step::Holding(Guard::Tombstone { left: LIFE });
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
        let rung = |moves: bool| if moves { "move" } else { "dual" };
        match action {
            Action::Tick => "time passes".to_owned(),
            Action::Open(process) => {
                let saw = match self.record {
                    Phase::Forward => "",
                    Phase::Returning => ", and sees that the way back has begun",
                    Phase::Returned => ", and sees that the way back has ended",
                    Phase::Sealed => ", and sees the seal",
                };
                format!("{} opens a session{saw}", name(process))
            }
            Action::See(process) => match self.record {
                Phase::Forward | Phase::Returning => {
                    format!("{} sees that the way back has begun", name(process))
                }
                Phase::Returned => format!("{} sees that the way back has ended", name(process)),
                Phase::Sealed => format!("{} sees the seal", name(process)),
            },
            Action::TakeOld(process) => format!("{}, on old, acquires R and holds the lock", name(process)),
            Action::Judge(process) => {
                format!(
                    "{}, on move, decides to rely on the tombstone that it read, and waits for Z",
                    name(process)
                )
            }
            Action::TakeZ { process, moves } => match next.processes[process].step {
                Step::Holding(_) => {
                    format!("{} acquires Z, and holds the lock by what it had decided", name(process))
                }
                _ => format!("{}, on {}, acquires Z", name(process), rung(moves)),
            },
            Action::TakeNew(process) => format!("{}, on new, acquires Z and holds the lock", name(process)),
            Action::Rely(process) => {
                format!("{} relies on the tombstone that it read before, and holds the lock", name(process))
            }
            Action::Read(process) => format!("{} reads the tombstone, and holds the lock", name(process)),
            Action::TakeR(process) => match next.processes[process].step {
                Step::HasBoth => format!("{} acquires R", name(process)),
                _ => format!("{} acquires R and holds the lock", name(process)),
            },
            Action::SendSwap(process) => match next.processes[process].step {
                Step::Holding(_) => {
                    format!("{} no longer renews R, sends the tombstone, and holds the lock", name(process))
                }
                _ => format!("{} no longer renews R, and sends the tombstone", name(process)),
            },
            Action::KeepBoth(process) => format!("{} keeps both, and holds the lock", name(process)),
            Action::Moved(process) => {
                format!("{} finds its tombstone written, and holds the lock", name(process))
            }
            Action::NotMoved(process) => format!("{} finds its lease ended, and gives Z back", name(process)),
            Action::Refresh(process) => format!("{} refreshes the tombstone", name(process)),
            Action::Release(process) => format!("{} releases what it has", name(process)),
            Action::LoseR(process) => format!("{}'s lease on R is no longer valid", name(process)),
            Action::LoseZ(process) => format!("{}'s session is no longer valid", name(process)),
            Action::LoseWatch(process) => {
                format!("{}'s other session, which watched the record, ends", name(process))
            }
            Action::StragglerTakes => "the straggler acquires R and holds the lock".to_owned(),
            Action::StragglerReleases => "the straggler releases R".to_owned(),
            Action::StragglerLoses => "the straggler's lease on R is no longer valid".to_owned(),
            Action::Swap => "the tombstone is written in the place of R".to_owned(),
            Action::ExpireR => "the lease on R ends on Redis".to_owned(),
            Action::ExpireZ => "the session ends on ZooKeeper, and Z is free".to_owned(),
            Action::Return => "the operator begins the way back".to_owned(),
            Action::OperatorTakesZ => "the operator acquires Z".to_owned(),
            Action::SendRemoval => "the operator sends the removal of the tombstone".to_owned(),
            Action::Remove if self.redis == next.redis => "the removal arrives, and is refused".to_owned(),
            Action::Remove => "the removal arrives: the tombstone is gone".to_owned(),
            Action::OperatorReleases => "the operator releases Z".to_owned(),
            Action::OperatorLosesZ => "the operator is paused, and its session is no longer valid".to_owned(),
            Action::EndReturn => "the operator ends the way back".to_owned(),
            Action::Close => "the operator closes Redis to all users".to_owned(),
            Action::Seal => "the operator writes the seal".to_owned(),
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
