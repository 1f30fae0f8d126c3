//! Which token a holder gets, while the lock of a name is on Redis, on both and on ZooKeeper in turn.
//!
//! Tokens of Redis are the larger of its clock and the last token plus one. Those of ZooKeeper are a base plus the number of
//! the transaction that created the holder's node, of which an election skips as many as the base reserves. What is left out,
//! and why nothing is lost by that:
//!
//! * Locks exclude each other: [the other model](super::exclusion) says so. A client that crashes loses what it has at
//!   once.
//! * Each step is carried out when it is made. A step that is not carried out is one that is not made.
//! * The clock goes in large ticks. Between two of them fewer locks are granted than an hour has microseconds: so the
//!   numbers below keep the order of the real ones, and not their sizes.
//! * Clients are interchangeable: of all states that differ only in their order, one is searched.

use lock_testkit::stories::{Line, Tale, name, orders};
use stateright::{Model, Property};

const CLIENTS: usize = 2;
/// By how much a raise is ahead of the clock.
const HOUR: u16 = 10;
/// How far the tokens of ZooKeeper may be behind those of Redis.
const HALF_HOUR: u16 = HOUR / 2;
/// By how much an election raises the transaction number: by more than an hour.
const ELECTION: u16 = 20;
/// By how much it raises the tokens: by what the base reserves.
const REACH: u16 = 1;
/// By how much a sharer raises Redis above its own token.
const FOR_SHARERS: u16 = 1;
/// The last transaction before a search: there were elections.
const FIRST: u16 = 40;
/// How far tokens of ZooKeeper may be ahead of the clock of Redis.
const DAY: u16 = 30;
/// A tick of the clock.
const TICK: u16 = 30;
/// For how many ticks Redis remembers the last token of a name.
const MEMORY: u8 = 2;
/// The first and the last time of a search.
const TIMES: (u16, u16) = (100, 190);

/// The rules, with at most one mistake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens {
    pub(crate) mistake: Option<Mistake>,
    /// How often a client or the operator tries to get the lock, which is less than an hour has microseconds.
    pub(crate) attempts: u8,
    pub(crate) elections: u8,
}

/// What an implementation can get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// A guard of both leaves the last token of Redis behind its own.
    NoRaiseOnRedis,
    /// The base is raised after the tombstone was written.
    TombstoneBeforeRaise,
    /// The base is raised to an hour more than the last token.
    RaiseAboveLast,
    /// A sharer raises the base by its whole last token.
    SharersRaiseByWhole,
    /// An election skips as many tokens as transactions.
    ElectionsCount,
    /// A tombstone is removed without the token of ZooKeeper.
    RemovalWithoutRaise,
    /// The same, and tokens of ZooKeeper that are far ahead of the clock are not refused.
    AnyLead,
    /// A sharer goes by a tombstone that is newer than its node.
    OlderSharer,
    /// A process stays on `dual` after the seal.
    DualAfterSeal,
    /// A process that sees the seal goes by a grant from before it.
    GrantedBeforeSeal,
}

/// What the two servers and the clients know, and what has been so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct State {
    clients: [Client; CLIENTS],
    redis: Redis,
    /// The time of Redis.
    clock: u16,
    last: Option<Last>,
    /// The last transaction of ZooKeeper.
    zxid: u16,
    base: u16,
    /// The transaction that raised the base.
    raised_at: u16,
    /// The largest token of both stores before the seal, and an hour more; none before it is written.
    floor: Option<u16>,
    attempts: u8,
    elections: u8,
    /// The largest token that an exclusive holder got, and the largest of all.
    largest_exclusive: u16,
    largest: u16,
    inverted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Client {
    step: Step,
    shares: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Step {
    Idle,
    HasZ {
        czxid: u16,
        z: u16,
        moves: bool,
    },
    HasBoth {
        czxid: u16,
        z: u16,
        r: u16,
        moves: bool,
    },
    /// Its tombstone is written, and its guard is not handed out yet.
    HasMoved {
        czxid: u16,
        token: u16,
    },
    Holding {
        has_z: bool,
    },
}

const HOLDS_BY_Z: Step = Step::Holding { has_z: true };

/// The last token of Redis, and how long ago it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Last {
    token: u16,
    age: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Redis {
    Free,
    Exclusive(u8),
    /// The sharers, by their bits.
    Shared(u8),
    Tombstone {
        newest: u16,
    },
}

/// One step; [`told`](State::told) says what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    Elect,
    TakeOld {
        client: usize,
        shares: bool,
    },
    TakeZ {
        client: usize,
        shares: bool,
        moves: bool,
    },
    TakeNew {
        client: usize,
        shares: bool,
    },
    TakeR(usize),
    /// A client that has Z goes by the tombstone.
    Rely(usize),
    HoldBoth(usize),
    RaiseRedis(usize),
    RaiseBase(usize),
    WriteTombstone(usize),
    HoldMoved(usize),
    /// A client releases what it has, or crashes.
    End(usize),
    RemoveTombstone,
    Seal,
    HoldSealed(usize),
}

/// The first property that is checked.
pub(crate) const INCREASE: &str = "tokens increase";
/// The second one.
pub(crate) const LEAD: &str = "tokens of ZooKeeper stay within a day of the clock of Redis, until the seal";

impl Tale for Tokens {
    fn step(&self, last: &State, action: Action) -> State {
        let mut state = *last;
        match action {
            Action::Tick => state.tick(),
            Action::Elect => {
                state.zxid += self.skipped();
                state.elections += 1;
            }
            Action::TakeOld { client, shares } => {
                state.attempts += 1;
                state.clients[client].shares = shares;
                let token = state.take_r(client, shares);
                state.hold(client, token, false);
            }
            Action::TakeZ { client, shares, moves } => {
                let (czxid, z) = state.create_node();
                state.clients[client] = Client { step: Step::HasZ { czxid, z, moves }, shares };
            }
            Action::TakeNew { client, shares } => {
                let (_, z) = state.create_node();
                state.clients[client].shares = shares;
                state.hold(client, z, true);
            }
            Action::TakeR(client) => {
                let Client { step: Step::HasZ { czxid, z, moves }, shares } = state.clients[client] else {
                    return state;
                };
                // A mover of a share tries for all of it.
                let moves = moves && state.redis == Redis::Free;
                let r = state.take_r(client, shares && !moves);
                state.clients[client].step = Step::HasBoth { czxid, z, r, moves };
            }
            Action::Rely(client) | Action::HoldMoved(client) | Action::HoldSealed(client) => {
                state.hold(client, last.token_of(client), true);
            }
            Action::HoldBoth(client) => {
                if let Step::HasBoth { z, .. } = last.clients[client].step
                    && self.mistake != Some(Mistake::NoRaiseOnRedis)
                {
                    state.remember(z);
                }
                state.hold(client, last.token_of(client), true);
            }
            Action::RaiseRedis(client) => {
                if let Step::HasBoth { czxid, z, .. } = state.clients[client].step {
                    state.remember(z + FOR_SHARERS);
                    state.release_r(client);
                    state.clients[client].step = Step::HasZ { czxid, z, moves: false };
                }
            }
            Action::RaiseBase(client) => match state.clients[client].step {
                Step::HasBoth { czxid, r, moves: false, .. } => {
                    state.raise_base(client, czxid, r, self.mistake);
                }
                Step::HasBoth { czxid, r: token, .. } | Step::HasMoved { czxid, token } => {
                    let floor = match self.mistake {
                        Some(Mistake::RaiseAboveLast) => token + HOUR,
                        _ => token.max(state.clock + HOUR),
                    };
                    state.raise_base(client, czxid, floor, self.mistake);
                }
                _ => {}
            },
            Action::WriteTombstone(client) => {
                if let Step::HasBoth { czxid, .. } = state.clients[client].step {
                    state.redis = Redis::Tombstone { newest: czxid.max(state.raised_at) };
                    state.clients[client].step = Step::HasMoved { czxid, token: last.token_of(client) };
                }
            }
            Action::End(client) => state.end(client),
            Action::RemoveTombstone => {
                let (_, z) = state.create_node();
                state.redis = Redis::Free;
                if self.mistake != Some(Mistake::RemovalWithoutRaise) {
                    state.remember(z);
                }
            }
            Action::Seal => {
                // By a lock of another name, so this one may be held or waited for.
                let (_, z) = state.create_node();
                let floor = state.clock.max(z) + HOUR;
                state.zxid += 1;
                state.raised_at = state.zxid;
                (state.base, state.floor) = (state.base.max(floor - state.zxid), Some(floor));
            }
        }
        state
    }

    fn representative(state: &State) -> State {
        orders::<CLIENTS>().map(|order| state.in_order(&order)).min().unwrap_or(*state)
    }

    fn tell(&self, last: &State, action: Action, next: &State) -> Line {
        Line::new(last.told(action, next))
    }
}

impl Model for Tokens {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            clients: [Client { step: Step::Idle, shares: false }; CLIENTS],
            redis: Redis::Free,
            clock: TIMES.0,
            last: None,
            zxid: FIRST,
            base: 0,
            raised_at: 0,
            floor: None,
            attempts: 0,
            elections: 0,
            largest_exclusive: 0,
            largest: 0,
            inverted: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.inverted {
            return;
        }
        actions.extend((state.clock < TIMES.1).then_some(Action::Tick));
        actions.extend((state.elections < self.elections).then_some(Action::Elect));
        for client in 0..CLIENTS {
            if !state.clients[..client].contains(&state.clients[client]) || !state.is_idle(client) {
                self.steps_of(client, state, actions);
            }
        }
        let z_is_free = !(0..CLIENTS).any(|client| state.has_z(client));
        if matches!(state.redis, Redis::Tombstone { .. }) && z_is_free && state.attempts < self.attempts {
            let lead_is_small = self.allows(state, state.base + state.zxid + 1);
            actions.extend(lead_is_small.then_some(Action::RemoveTombstone));
        }
        let leases_have_ended = matches!(state.redis, Redis::Free | Redis::Tombstone { .. });
        let not_yet = !state.is_sealed() && state.attempts < self.attempts;
        actions.extend((not_yet && leases_have_ended).then_some(Action::Seal));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        Some(Self::representative(&self.step(last, action)))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(INCREASE, |_, state: &State| !state.inverted),
            Property::always(LEAD, |_, state: &State| {
                state.is_sealed() || state.base + state.zxid <= state.clock + DAY
            }),
            Property::sometimes(
                "the base was raised for a name that had moved before",
                |_, state: &State| state.base + FIRST > TIMES.0 + TICK,
            ),
            Property::sometimes("Redis forgot the last token", |_, state: &State| {
                state.largest > 0 && state.last.is_none()
            }),
            Property::sometimes("two share the lock, and the name has moved", |_, state: &State| {
                let shares = |client: &Client| client.shares && client.step == HOLDS_BY_Z;
                state.clients.iter().all(shares) && matches!(state.redis, Redis::Tombstone { .. })
            }),
            Property::sometimes("the lock is held after the seal", |_, state: &State| {
                state.is_sealed() && state.clients.iter().any(|client| client.step == HOLDS_BY_Z)
            }),
            Property::sometimes("the seal is written while a client has Z", |_, state: &State| {
                let waits = |client: &Client| matches!(client.step, Step::HasZ { .. });
                state.is_sealed() && state.clients.iter().any(waits)
            }),
        ]
    }
}

impl Tokens {
    fn steps_of(&self, client: usize, state: &State, actions: &mut Vec<Action>) {
        let Client { step, shares } = state.clients[client];
        let mut when = |may: bool, action| actions.extend(may.then_some(action));
        match step {
            Step::Idle if state.attempts < self.attempts => {
                for shares in [false, true] {
                    let (is_sealed, z_is_free) = (state.is_sealed(), state.z_is_free(shares));
                    when(!is_sealed && state.r_is_free(shares), Action::TakeOld { client, shares });
                    when(z_is_free && !is_sealed, Action::TakeZ { client, shares, moves: false });
                    when(z_is_free && !is_sealed, Action::TakeZ { client, shares, moves: true });
                    when(z_is_free && is_sealed, Action::TakeNew { client, shares });
                    let stays = is_sealed && self.mistake == Some(Mistake::DualAfterSeal);
                    when(z_is_free && stays, Action::TakeZ { client, shares, moves: false });
                }
                return;
            }
            Step::Idle => return,
            Step::HasZ { czxid, z, .. } => {
                let is_open = !state.is_sealed() || self.mistake == Some(Mistake::DualAfterSeal);
                when(is_open && state.r_is_free(shares), Action::TakeR(client));
                let goes_by = |floor| z > floor || self.mistake == Some(Mistake::GrantedBeforeSeal);
                when(state.floor.is_some_and(goes_by), Action::HoldSealed(client));
                if let Redis::Tombstone { newest } = state.redis {
                    let is_newer = czxid >= newest || self.mistake == Some(Mistake::OlderSharer);
                    when(is_newer, Action::Rely(client));
                }
            }
            Step::HasBoth { z, .. } if !self.allows(state, z) => {}
            Step::HasBoth { z, r, moves: false, .. } if shares && z > r => {
                when(true, Action::RaiseRedis(client));
            }
            Step::HasBoth { czxid, r, moves: false, .. } => {
                let is_behind = state.base + czxid + HALF_HOUR < r;
                when(true, if is_behind { Action::RaiseBase(client) } else { Action::HoldBoth(client) });
            }
            Step::HasBoth { czxid, r, .. } => {
                let writes = state.base + czxid >= r || self.mistake == Some(Mistake::TombstoneBeforeRaise);
                when(true, if writes { Action::WriteTombstone(client) } else { Action::RaiseBase(client) });
            }
            Step::HasMoved { czxid, token } => {
                let is_raised = state.base + czxid >= token;
                when(true, if is_raised { Action::HoldMoved(client) } else { Action::RaiseBase(client) });
            }
            Step::Holding { .. } => {}
        }
        when(true, Action::End(client));
    }

    /// Whether the token of ZooKeeper is not too far ahead of the clock of Redis.
    fn allows(&self, state: &State, z: u16) -> bool {
        z <= state.clock + DAY || self.mistake == Some(Mistake::AnyLead)
    }

    /// How many tokens an election skips.
    fn skipped(&self) -> u16 {
        match self.mistake {
            Some(Mistake::AnyLead | Mistake::ElectionsCount) => ELECTION,
            _ => REACH,
        }
    }
}

impl State {
    fn is_sealed(&self) -> bool {
        self.floor.is_some()
    }

    fn is_idle(&self, client: usize) -> bool {
        self.clients[client].step == Step::Idle
    }

    /// The token that the client has if it holds the lock by what it has now.
    fn token_of(&self, client: usize) -> u16 {
        match self.clients[client].step {
            Step::HasZ { z, .. } => z,
            Step::HasBoth { z, r, .. } => z.max(r),
            Step::HasMoved { token, .. } => token,
            Step::Idle | Step::Holding { .. } => 0,
        }
    }

    fn has_z(&self, client: usize) -> bool {
        !matches!(self.clients[client].step, Step::Idle | Step::Holding { has_z: false })
    }

    fn z_is_free(&self, shares: bool) -> bool {
        (0..CLIENTS).all(|client| !self.has_z(client) || (shares && self.clients[client].shares))
    }

    fn r_is_free(&self, shares: bool) -> bool {
        self.redis == Redis::Free || (shares && matches!(self.redis, Redis::Shared(_)))
    }

    fn create_node(&mut self) -> (u16, u16) {
        self.attempts += 1;
        self.zxid += 1;
        (self.zxid, self.base + self.zxid)
    }

    fn take_r(&mut self, client: usize, shares: bool) -> u16 {
        self.redis = match self.redis {
            _ if !shares => Redis::Exclusive(client as u8),
            Redis::Shared(others) => Redis::Shared(others | 1 << client),
            _ => Redis::Shared(1 << client),
        };
        let token = self.last.map_or(0, |last| last.token + 1).max(self.clock);
        self.last = Some(Last { token, age: 0 });
        token
    }

    /// The last token of Redis is at least this one.
    fn remember(&mut self, token: u16) {
        if self.last.is_none_or(|last| last.token < token) {
            self.last = Some(Last { token, age: 0 });
        }
    }

    /// Raises the base so that nodes after this one get more than `floor`.
    fn raise_base(&mut self, client: usize, czxid: u16, floor: u16, mistake: Option<Mistake>) {
        let by_whole = mistake == Some(Mistake::SharersRaiseByWhole) && self.clients[client].shares;
        self.zxid += 1;
        self.raised_at = self.zxid;
        self.base = self.base.max(if by_whole { floor } else { floor.saturating_sub(czxid) });
    }

    fn tick(&mut self) {
        self.clock += TICK;
        let aged = self.last.map(|last| Last { age: last.age + 1, ..last });
        self.last = aged.filter(|last| last.age < MEMORY);
    }

    fn hold(&mut self, client: usize, token: u16, has_z: bool) {
        let shares = self.clients[client].shares;
        self.inverted |= token <= if shares { self.largest_exclusive } else { self.largest };
        self.largest = self.largest.max(token);
        if !shares {
            self.largest_exclusive = token;
        }
        self.clients[client].step = Step::Holding { has_z };
    }

    fn end(&mut self, client: usize) {
        self.clients[client] = Client { step: Step::Idle, shares: false };
        self.release_r(client);
    }

    fn release_r(&mut self, client: usize) {
        self.redis = match self.redis {
            Redis::Exclusive(owner) if usize::from(owner) == client => Redis::Free,
            Redis::Shared(sharers) => match sharers & !(1 << client) {
                0 => Redis::Free,
                others => Redis::Shared(others),
            },
            other => other,
        };
    }

    fn in_order(&self, order: &[usize; CLIENTS]) -> Self {
        let mut state = *self;
        let renamed = |old: usize| order.iter().position(|at| *at == old).unwrap_or_default();
        for (new, old) in order.iter().enumerate() {
            state.clients[new] = self.clients[*old];
        }
        state.redis = match self.redis {
            Redis::Exclusive(owner) => Redis::Exclusive(renamed(usize::from(owner)) as u8),
            Redis::Shared(sharers) => {
                let sharers = (0..CLIENTS).filter(|client| sharers & 1 << client != 0);
                Redis::Shared(sharers.fold(0, |bits, client| bits | 1 << renamed(client)))
            }
            other => other,
        };
        state
    }

    fn told(&self, action: Action, next: &Self) -> String {
        let shares = |shares: bool| if shares { " as a reader" } else { "" };
        let inverted = if next.inverted { ", though a larger one was handed out before" } else { "" };
        let holds = |client: usize, token: u16| {
            format!("{} holds the lock with the token {token}{inverted}", name(client))
        };
        match action {
            Action::Tick if self.last.is_some() && next.last.is_none() => {
                format!("time passes, and Redis forgets its last token; its clock is at {}", next.clock)
            }
            Action::Tick => format!("time passes; the clock of Redis is at {}", next.clock),
            Action::Elect => {
                "the ensemble elects a leader, and its transactions skip many numbers".to_owned()
            }
            Action::TakeOld { client, shares: share } => {
                let token = next.last.map_or(0, |last| last.token);
                format!("{}, on old{}, gets R; {}", name(client), shares(share), holds(client, token))
            }
            Action::TakeZ { client, shares: share, moves } => {
                let (rung, token) = (if moves { "move" } else { "dual" }, next.token_of(client));
                format!("{}, on {rung}, gets Z{} with the token {token}", name(client), shares(share))
            }
            Action::TakeNew { client, shares: share } => {
                let token = next.base + next.zxid;
                format!("{}, on new, gets Z{}; {}", name(client), shares(share), holds(client, token))
            }
            Action::TakeR(client) => {
                let r = next.last.map_or(0, |last| last.token);
                format!("{} gets R with the token {r}", name(client))
            }
            Action::Rely(client) => {
                format!("{} meets the tombstone; {}", name(client), holds(client, self.token_of(client)))
            }
            Action::HoldBoth(client) | Action::HoldMoved(client) => holds(client, self.token_of(client)),
            Action::RaiseRedis(client) => {
                let last = next.last.map_or(0, |last| last.token);
                format!("{} raises the last token of Redis to {last}, and releases R", name(client))
            }
            Action::RaiseBase(client) => format!(
                "{} raises the base: later tokens of ZooKeeper are larger than {}",
                name(client),
                next.base + next.zxid - 1
            ),
            Action::WriteTombstone(client) => format!("{} writes the tombstone", name(client)),
            Action::End(client) => match self.clients[client].step {
                Step::Holding { .. } => format!("{} releases the lock", name(client)),
                _ => format!("{} crashes, and what it has ends", name(client)),
            },
            Action::RemoveTombstone => "the operator acquires Z and removes the tombstone".to_owned(),
            Action::HoldSealed(client) => {
                format!("{} sees the seal; {}", name(client), holds(client, self.token_of(client)))
            }
            Action::Seal => "the operator closes Redis, raises the base, and writes the seal".to_owned(),
        }
    }
}
