//! Which token a holder gets: proposals, the counters of five masters, and the write-back.
//!
//! This is `campaign.rs`, step by step. Time is left out: [the other model](crate::exclusion) says that keys stay for as
//! long as their owner holds the lock. What else is left out, and why nothing is lost by that:
//!
//! * A request arrives when the search says so, or never. So a master that is down, cut off, or restarts with its data
//!   is one that nothing arrives at.
//! * An attempt that has ended takes its keys along at once: a key that stays longer only refuses, which is the same as
//!   a claim that does not arrive. What it wrote into the counters stays.
//! * Clocks are anything: every attempt proposes what it likes.
//! * Masters and clients are interchangeable: of all states that differ only in their order, one is searched.

use stateright::{Model, Property};

use crate::exclusion::{MASTERS, QUORUM, orders};
use crate::story::{Line, Tale, name};

const CLIENTS: usize = 2;
/// The largest token of a search: it ends there, as tokens have no end.
const LARGEST: u8 = 4;
/// The largest proposal.
const LATEST: u8 = 2;

/// The protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fencing {
    /// Whether the largest answer is written to a quorum before it counts.
    pub(crate) writes_back: bool,
}

/// What everybody knows, and what has been so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct State {
    clients: [Client; CLIENTS],
    masters: [Master; MASTERS],
    /// The token of the last holder.
    last: u8,
    /// Whether a holder got a token that was not larger than that of the one before.
    inverted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Client {
    Idle,
    Asking {
        proposal: u8,
    },
    /// It has a quorum that did not answer alike, and has sent the largest answer to those behind.
    Raising {
        floor: u8,
    },
    Holding {
        token: u8,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Master {
    /// The last token.
    counter: u8,
    key: Option<Key>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    owner: u8,
    /// The token that the master has told its owner, or confirmed.
    token: u8,
    /// Whether it is one of the quorum that its owner has counted.
    counted: bool,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A client sends a claim with its proposal to all masters.
    Ask { client: usize, proposal: u8 },
    /// A claim arrives, and is granted.
    Grant { master: usize, client: usize },
    /// A client counts the votes of these masters, by their bits: it stops at the first quorum.
    Count { client: usize, quorum: u8 },
    /// The largest answer arrives at a master that is behind.
    Raise { master: usize, client: usize },
    /// All of the quorum have confirmed it.
    Confirm { client: usize },
    /// An attempt fails, or the lock is released.
    End { client: usize },
}

/// The property that is checked.
pub(crate) const INCREASE: &str = "tokens increase from holder to holder";

impl Model for Fencing {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let (clients, masters) = ([Client::Idle; CLIENTS], [Master::default(); MASTERS]);
        vec![State { clients, masters, last: 0, inverted: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for client in 0..CLIENTS {
            state.steps_of(client, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        Some(self.step(last, action).representative())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(INCREASE, |_, state: &State| !state.inverted),
            Property::sometimes("a holder needed the write-back", |_, state: &State| {
                (0..CLIENTS).any(|client| {
                    matches!(state.clients[client], Client::Raising { .. }) && state.has_confirmed(client)
                })
            }),
            Property::sometimes("several held it, one after the other", |_, state: &State| {
                state.last == LARGEST
            }),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.masters.iter().all(|master| master.counter <= LARGEST)
    }
}

impl Tale for Fencing {
    fn step(&self, last: &State, action: Action) -> State {
        let mut state = *last;
        match action {
            Action::Ask { client, proposal } => state.clients[client] = Client::Asking { proposal },
            Action::Grant { master, client } => state.grant(master, client),
            Action::Count { client, quorum } => state.count(client, quorum, self.writes_back),
            Action::Raise { master, client } => state.raise(master, client),
            Action::Confirm { client } => {
                if let Client::Raising { floor } = state.clients[client] {
                    state.hold(client, floor);
                }
            }
            Action::End { client } => state.end(client),
        }
        state
    }

    fn representative(state: &State) -> State {
        state.representative()
    }

    fn tell(&self, last: &State, action: Action, next: &State) -> Line {
        match action {
            Action::Ask { client, proposal } => {
                Line::new(format!("{} asks all masters and proposes {proposal}", name(client)))
            }
            Action::Grant { master, client } => {
                let token = next.masters[master].counter;
                Line::at(master, format!("{}'s claim is granted with the token {token} by", name(client)))
            }
            Action::Count { client, .. } => match next.clients[client] {
                Client::Raising { floor } => {
                    Line::new(format!("{} has a quorum; the largest answer is {floor}", name(client)))
                }
                _ => next.told_holder(client),
            },
            Action::Raise { master, client } => {
                Line::at(master, format!("{}'s largest answer is written to", name(client)))
            }
            Action::Confirm { client } => next.told_holder(client),
            Action::End { client } => match last.clients[client] {
                Client::Holding { .. } => Line::new(format!("{} releases the lock", name(client))),
                _ => Line::new(format!("{} gives up, and takes its keys back", name(client))),
            },
        }
    }
}

impl State {
    fn steps_of(&self, client: usize, actions: &mut Vec<Action>) {
        match self.clients[client] {
            Client::Idle if self.clients[..client].contains(&Client::Idle) => return,
            Client::Idle => {
                return actions.extend((0..=LATEST).map(|proposal| Action::Ask { client, proposal }));
            }
            Client::Asking { .. } => {
                let free = (0..MASTERS).filter(|master| self.masters[*master].key.is_none());
                actions.extend(free.map(|master| Action::Grant { master, client }));
                actions.extend(self.quorums(client).map(|quorum| Action::Count { client, quorum }));
            }
            Client::Raising { floor } => {
                let behind = |key: Key| key.counted && key.token < floor;
                let behind = (0..MASTERS).filter(|master| self.key_of(*master, client).is_some_and(behind));
                actions.extend(behind.map(|master| Action::Raise { master, client }));
                actions.extend(self.has_confirmed(client).then_some(Action::Confirm { client }));
            }
            Client::Holding { .. } => {}
        }
        actions.push(Action::End { client });
    }

    /// All quorums that have voted for a client, by their bits.
    fn quorums(&self, client: usize) -> impl Iterator<Item = u8> {
        let votes = (0..MASTERS).filter(|master| self.key_of(*master, client).is_some());
        let votes = votes.fold(0, |votes, master| votes | 1_u8 << master);
        (0..1_u8 << MASTERS)
            .filter(move |masters| masters.count_ones() == u32::from(QUORUM) && masters & votes == *masters)
    }

    fn grant(&mut self, master: usize, client: usize) {
        let Client::Asking { proposal } = self.clients[client] else { return };
        let master = &mut self.masters[master];
        master.counter = proposal.max(master.counter + 1);
        master.key = Some(Key { owner: client as u8, token: master.counter, counted: false });
    }

    fn count(&mut self, client: usize, quorum: u8, writes_back: bool) {
        let counted = |master: &usize| quorum & 1 << master != 0;
        for master in (0..MASTERS).filter(counted) {
            self.masters[master].key = self.masters[master].key.map(|key| Key { counted: true, ..key });
        }
        let tokens = || (0..MASTERS).filter(counted).filter_map(|master| self.masters[master].key);
        let largest = tokens().map(|key| key.token).max().unwrap_or_default();
        if writes_back && tokens().any(|key| key.token < largest) {
            self.clients[client] = Client::Raising { floor: largest };
        } else {
            self.hold(client, largest);
        }
    }

    fn raise(&mut self, master: usize, client: usize) {
        let Client::Raising { floor } = self.clients[client] else { return };
        let master = &mut self.masters[master];
        master.counter = master.counter.max(floor);
        master.key = master.key.map(|key| Key { token: floor, ..key });
    }

    fn hold(&mut self, client: usize, token: u8) {
        self.inverted |= token <= self.last;
        self.last = token;
        self.clients[client] = Client::Holding { token };
    }

    fn end(&mut self, client: usize) {
        self.clients[client] = Client::Idle;
        for master in &mut self.masters {
            master.key = master.key.filter(|key| key.owner != client as u8);
        }
    }

    fn key_of(&self, master: usize, client: usize) -> Option<Key> {
        self.masters[master].key.filter(|key| key.owner == client as u8)
    }

    fn has_confirmed(&self, client: usize) -> bool {
        let Client::Raising { floor } = self.clients[client] else { return false };
        let counted = (0..MASTERS).filter_map(|master| self.key_of(master, client)).filter(|key| key.counted);
        counted.filter(|key| key.token == floor).count() == usize::from(QUORUM)
    }

    fn told_holder(&self, client: usize) -> Line {
        let Client::Holding { token } = self.clients[client] else { return Line::new(String::new()) };
        let so = if self.inverted { ", which is not larger than that of the holder before" } else { "" };
        Line::new(format!("{} has a quorum and holds the lock with the token {token}{so}", name(client)))
    }

    fn representative(&self) -> Self {
        orders::<CLIENTS>().map(|order| self.in_order(&order)).min().unwrap_or(*self)
    }

    fn in_order(&self, order: &[usize; CLIENTS]) -> Self {
        let mut state = *self;
        for (new, old) in order.iter().enumerate() {
            state.clients[new] = self.clients[*old];
        }
        for key in state.masters.iter_mut().filter_map(|master| master.key.as_mut()) {
            let new = order.iter().position(|old| *old == usize::from(key.owner));
            key.owner = new.unwrap_or_default() as u8;
        }
        state.masters.sort_unstable();
        state
    }
}
