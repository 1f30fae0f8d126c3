//! Which token a holder gets: proposals, the counters of five masters, and the write-back.
//!
//! This is `attempt.rs`, step by step. A master votes for a claim in one of two ways, whichever the search chooses:
//!
//! * By the script, all at once: it takes the key, unless it is the owner's already, and mints the proposal or what
//!   comes after the last token, whichever is larger.
//! * On the fast path, by two commands between which others may come. The first takes the key if it is free. The second makes
//!   the proposal the last token if it is larger. It is a vote only if both did so. A key that got no token, for
//!   whatever reason, is none; the script may still mint a token for it.
//!
//! A release hands the lock over to a client that asks: as the script, but with its own proposal. A client counts either what is
//! handed over or what is granted; here it counts both together.
//!
//! Time is left out: [the other model](super::exclusion) says that keys stay for as long as their owner holds the
//! lock, or may come to. What else is left out, and why nothing is lost by that:
//!
//! * A request arrives when the search says so, or never. So a master that is down, cut off, or restarts with its
//!   data is one that nothing arrives at.
//! * An attempt that has ended takes its keys along at once: a key that stays longer only refuses, which is the same
//!   as a claim that does not arrive. What it wrote into the counters stays.
//! * The second command of a claim on the fast path also arrives where the first was refused, or so late that its attempt is
//!   over and the key gone. Then it raises the last token, and that is all. It is not noted which of them are on
//!   their way: any proposal may arrive at any master, at any time.
//! * Of the keys of a holder, and of those whose votes were not counted, only that they are there is kept: what they
//!   said does not matter any more.
//! * Clocks are anything: every attempt proposes what it likes.
//! * Masters and clients are interchangeable: of all states that differ only in their order, one is searched; and
//!   what may arrive at several masters that are alike arrives at the first.

use lock_testkit::stories::{Line, Tale, name, orders};
use stateright::{Model, Property};

use super::exclusion::{MASTERS, QUORUM};

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
    /// Whether masters hand the lock over to clients that ask, with what the releases propose to them.
    pub(crate) hands_over: bool,
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
    vote: Vote,
}

/// What a key says to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Vote {
    /// It has no token, or none that matters any more.
    None,
    /// It has this token, and got it `outright` or from the script.
    For { token: u8, outright: bool },
    /// It is one of the quorum that its owner has counted, and this is the token that the master has answered or confirmed.
    Counted { token: u8 },
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A client sends a claim with its proposal to all masters.
    Ask { client: usize, proposal: u8 },
    /// A claim arrives, and is granted by the script.
    Grant { master: usize, client: usize },
    /// The first command of a claim on the fast path arrives, and takes the key.
    Take { master: usize, client: usize },
    /// The second one arrives.
    Register { master: usize, client: usize },
    /// A release arrives with a proposal, and the master hands the lock over.
    HandOver { master: usize, client: usize, proposal: u8 },
    /// A second one arrives whose client does not have the key, or not any more.
    Stray { master: usize, proposal: u8 },
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
        for master in state.unlike_masters() {
            let larger = state.masters[master].counter + 1..=LATEST;
            actions.extend(larger.map(|proposal| Action::Stray { master, proposal }));
        }
        for client in 0..CLIENTS {
            state.steps_of(client, actions);
            if self.hands_over && matches!(state.clients[client], Client::Asking { .. }) {
                let free = state.unlike_masters().filter(|master| state.masters[*master].key.is_none());
                let proposals =
                    |master| (0..=LATEST).map(move |proposal| Action::HandOver { master, client, proposal });
                actions.extend(free.flat_map(proposals));
            }
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
            Property::sometimes("a holder got its token outright", |_, state: &State| {
                (0..CLIENTS).any(|client| state.has_outright_quorum(client))
            }),
            Property::sometimes(
                "an outright claim got the key, and came too late for its token",
                |_, state: &State| {
                    (0..CLIENTS).any(|client| (0..MASTERS).any(|master| state.is_overtaken(master, client)))
                },
            ),
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
            Action::Grant { master, client } => {
                if let Client::Asking { proposal } = state.clients[client] {
                    state.grant(master, client, proposal);
                }
            }
            Action::HandOver { master, client, proposal } => state.grant(master, client, proposal),
            Action::Take { master, client } => state.take(master, client),
            Action::Register { master, client } => state.register(master, client),
            Action::Stray { master, proposal } => state.masters[master].counter = proposal,
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
            Action::HandOver { master, client, .. } => {
                let token = next.masters[master].counter;
                Line::at(master, format!("{} is handed the lock with the token {token} by", name(client)))
            }
            Action::Take { master, client } => {
                Line::at(master, format!("{} takes the key, which has no token yet, at", name(client)))
            }
            Action::Register { master, client } => next.told_registration(master, client),
            Action::Stray { master, proposal } => {
                Line::at(master, format!("the proposal {proposal} of an attempt that has failed arrives at"))
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
                for master in self.unlike_masters() {
                    self.claims_of(client, master, actions);
                }
                actions.extend(self.quorums(client).map(|quorum| Action::Count { client, quorum }));
            }
            Client::Raising { floor } => {
                let behind =
                    |master: &usize| self.counted(*master, client).is_some_and(|token| token < floor);
                let behind = self.unlike_masters().filter(behind);
                actions.extend(behind.map(|master| Action::Raise { master, client }));
                actions.extend(self.has_confirmed(client).then_some(Action::Confirm { client }));
            }
            Client::Holding { .. } => {}
        }
        actions.push(Action::End { client });
    }

    /// Of all masters that are alike, the first.
    fn unlike_masters(&self) -> impl Iterator<Item = usize> {
        (0..MASTERS).filter(|master| !self.masters[..*master].contains(&self.masters[*master]))
    }

    /// What may arrive at a master from a client that asks.
    fn claims_of(&self, client: usize, master: usize, actions: &mut Vec<Action>) {
        let is_free = self.masters[master].key.is_none();
        let is_taken = self.vote(master, client) == Some(Vote::None);
        actions.extend((is_free || is_taken).then_some(Action::Grant { master, client }));
        actions.extend(is_free.then_some(Action::Take { master, client }));
        actions.extend(is_taken.then_some(Action::Register { master, client }));
    }

    /// All quorums that have voted for a client, by their bits.
    fn quorums(&self, client: usize) -> impl Iterator<Item = u8> {
        let has_voted = |master: &usize| matches!(self.vote(*master, client), Some(Vote::For { .. }));
        let votes = (0..MASTERS).filter(has_voted).fold(0, |votes, master| votes | 1_u8 << master);
        (0..1_u8 << MASTERS)
            .filter(move |masters| masters.count_ones() == u32::from(QUORUM) && masters & votes == *masters)
    }

    fn grant(&mut self, master: usize, client: usize, proposal: u8) {
        let master = &mut self.masters[master];
        master.counter = proposal.max(master.counter + 1);
        let vote = Vote::For { token: master.counter, outright: false };
        master.key = Some(Key { owner: client as u8, vote });
    }

    fn take(&mut self, master: usize, client: usize) {
        self.masters[master].key = Some(Key { owner: client as u8, vote: Vote::None });
    }

    fn register(&mut self, master: usize, client: usize) {
        let Client::Asking { proposal } = self.clients[client] else { return };
        let master = &mut self.masters[master];
        if proposal > master.counter {
            master.counter = proposal;
            master.key =
                Some(Key { owner: client as u8, vote: Vote::For { token: proposal, outright: true } });
        }
    }

    fn count(&mut self, client: usize, quorum: u8, writes_back: bool) {
        self.set_votes(client, |master, vote| match vote {
            Vote::For { token, .. } if quorum & 1 << master != 0 => Vote::Counted { token },
            _ => Vote::None,
        });
        let tokens = || (0..MASTERS).filter_map(|master| self.counted(master, client));
        let largest = tokens().max().unwrap_or_default();
        if writes_back && tokens().any(|token| token < largest) {
            self.clients[client] = Client::Raising { floor: largest };
        } else {
            self.hold(client, largest);
        }
    }

    fn raise(&mut self, master: usize, client: usize) {
        let Client::Raising { floor } = self.clients[client] else { return };
        let master = &mut self.masters[master];
        master.counter = master.counter.max(floor);
        master.key = master.key.map(|key| Key { vote: Vote::Counted { token: floor }, ..key });
    }

    fn hold(&mut self, client: usize, token: u8) {
        self.inverted |= token <= self.last;
        self.last = token;
        self.clients[client] = Client::Holding { token };
        self.set_votes(client, |_, _| Vote::None);
    }

    fn end(&mut self, client: usize) {
        self.clients[client] = Client::Idle;
        for master in &mut self.masters {
            master.key = master.key.filter(|key| key.owner != client as u8);
        }
    }

    fn set_votes(&mut self, client: usize, vote: impl Fn(usize, Vote) -> Vote) {
        for (number, master) in self.masters.iter_mut().enumerate() {
            if let Some(key) = master.key.as_mut().filter(|key| key.owner == client as u8) {
                key.vote = vote(number, key.vote);
            }
        }
    }

    /// What the key of a client says, if it has it.
    fn vote(&self, master: usize, client: usize) -> Option<Vote> {
        self.masters[master].key.filter(|key| key.owner == client as u8).map(|key| key.vote)
    }

    /// The token of a vote that a client has counted.
    fn counted(&self, master: usize, client: usize) -> Option<u8> {
        match self.vote(master, client) {
            Some(Vote::Counted { token }) => Some(token),
            _ => None,
        }
    }

    fn has_confirmed(&self, client: usize) -> bool {
        let Client::Raising { floor } = self.clients[client] else { return false };
        let confirmed = (0..MASTERS).filter(|master| self.counted(*master, client) == Some(floor));
        confirmed.count() == usize::from(QUORUM)
    }

    /// Whether a quorum has voted without the script. Its votes are alike: they only have to be counted.
    fn has_outright_quorum(&self, client: usize) -> bool {
        let outright =
            |master: &usize| matches!(self.vote(*master, client), Some(Vote::For { outright: true, .. }));
        (0..MASTERS).filter(outright).count() >= usize::from(QUORUM)
    }

    /// Whether a client has the key, but its proposal will be refused: the last token is larger by now.
    fn is_overtaken(&self, master: usize, client: usize) -> bool {
        let Client::Asking { proposal } = self.clients[client] else { return false };
        self.vote(master, client) == Some(Vote::None) && proposal < self.masters[master].counter
    }

    fn told_registration(&self, master: usize, client: usize) -> Line {
        let answer = match self.vote(master, client) {
            Some(Vote::For { token, .. }) => format!("'s proposal {token} becomes the token of its key at"),
            _ => "'s proposal is not larger than the last token at".to_owned(),
        };
        Line::at(master, format!("{}{answer}", name(client)))
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
