//! For how long an extension counts: requests of one lease with two ttls, which masters execute late and in any order.
//!
//! One client has the lock. While its guard is valid, a quorum of masters must have its key: then nobody else can get one.
//! What is left out, and why nothing is lost by that:
//!
//! * A request arrives when the search says so, or never; an answer too. A master may execute requests in any order, though those
//!   over one connection have one.
//! * Other clients: a master whose key has ended may have voted for any of them.
//! * Drift margins: clocks run alike.
//!
//! The client sends an extension when it no longer counts the answers to the one before, as its renewal task does.

use lock_testkit::stories::{Line, Tale};
use stateright::{Model, Property};

const MASTERS: usize = 3;
const QUORUM: usize = 2;
/// How many extensions are sent.
const ROUNDS: usize = 2;
/// The two ttls, in ticks.
const SHORT: u8 = 1;
const LONG: u8 = 3;

/// For how long the confirmation of a master counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extensions {
    /// For the shortest ttl of all extensions that it overlapped with.
    Sound,
    /// The mistake: for the ttl that it asked for.
    AsAsked,
    /// The mistake: for the shortest ttl of those without an answer when its own arrives.
    StillAwaited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// For how much longer the guard is valid.
    lease: u8,
    /// For how much longer each master has the key.
    keys: [u8; MASTERS],
    /// The shortest ttl of the extensions whose answer each master will never give.
    lost: [u8; MASTERS],
    rounds: [Option<Round>; ROUNDS],
}

/// One extension, sent to all masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Round {
    ttl: u8,
    /// How long ago it was sent.
    age: u8,
    requests: [Request; MASTERS],
    /// For how long the confirmation of each master counts.
    votes: [u8; MASTERS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Request {
    is_executed: bool,
    /// For how long it counts if the answer comes; `None` once it has come, or never will.
    awaited: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    /// The client asks all masters for an extension.
    Send {
        round: usize,
        ttl: u8,
    },
    /// A master executes an extension.
    Execute {
        round: usize,
        master: usize,
    },
    /// The answer arrives.
    Answer {
        round: usize,
        master: usize,
    },
    /// The connection that an extension was sent over is lost.
    Lose {
        round: usize,
        master: usize,
    },
}

/// The property that is checked.
pub(crate) const KEPT: &str = "a quorum has the key while the guard is valid";

impl Model for Extensions {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { lease: LONG, keys: [LONG; MASTERS], lost: [LONG; MASTERS], rounds: [None; ROUNDS] }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.lease == 0 {
            return;
        }
        actions.push(Action::Tick);
        if let Some(round) = state.rounds.iter().position(Option::is_none) {
            actions.extend([SHORT, LONG].map(|ttl| Action::Send { round, ttl }));
        }
        for (round, sent) in state.rounds.iter().enumerate() {
            let requests = sent.iter().flat_map(|round| round.requests.iter().enumerate());
            for (master, request) in requests {
                if !request.is_executed {
                    actions.push(Action::Execute { round, master });
                }
                if request.awaited.is_some() {
                    actions.push(Action::Lose { round, master });
                    actions.extend(request.is_executed.then_some(Action::Answer { round, master }));
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        Some(Self::representative(&self.step(last, action)))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(KEPT, |_, state: &State| {
                let with_key = state.keys.iter().filter(|left| **left > 0).count();
                state.lease == 0 || with_key >= QUORUM
            }),
            Property::sometimes("a lost extension limits a later one", |_, state: &State| {
                state.rounds.iter().flatten().any(|round| round.ttl == LONG && round.votes.contains(&SHORT))
            }),
            Property::sometimes("a guard is valid by the last extension", |_, state: &State| {
                state.rounds[ROUNDS - 1].is_some_and(|round| round.age > 1) && state.lease > 0
            }),
        ]
    }
}

impl Tale for Extensions {
    fn step(&self, last: &State, action: Action) -> State {
        let mut state = *last;
        match action {
            Action::Tick => state.tick(),
            Action::Send { round, ttl } => state.send(*self, round, ttl),
            Action::Execute { round, master } => state.execute(round, master),
            Action::Answer { round, master } => state.answer(*self, round, master),
            Action::Lose { round, master } => state.lose(round, master),
        }
        state
    }

    fn representative(state: &State) -> State {
        let mut masters: Vec<_> = (0..MASTERS).collect();
        masters.sort_by_key(|master| state.at(*master));
        let mut sorted = *state;
        for (new, old) in masters.into_iter().enumerate() {
            (sorted.keys[new], sorted.lost[new]) = (state.keys[old], state.lost[old]);
            for (round, from) in
                sorted.rounds.iter_mut().zip(state.rounds).filter_map(|(to, from)| to.as_mut().zip(from))
            {
                (round.requests[new], round.votes[new]) = (from.requests[old], from.votes[old]);
            }
        }
        sorted
    }

    fn tell(&self, last: &State, action: Action, next: &State) -> Line {
        let which = |round: usize| {
            if last.rounds[round].is_some_and(|round| round.ttl == SHORT) { "short" } else { "long" }
        };
        match action {
            Action::Tick => {
                let ended = (0..MASTERS).filter(|at| last.keys[*at] > 0 && next.keys[*at] == 0);
                let ended: Vec<_> = ended.map(|master| (master + 1).to_string()).collect();
                let ended = if ended.is_empty() {
                    String::new()
                } else {
                    format!("; the key ends on {}", ended.join(" and "))
                };
                Line::new(format!("time passes{ended}"))
            }
            Action::Send { ttl, .. } => Line::new(format!(
                "A asks all masters for a {} extension",
                if ttl == SHORT { "short" } else { "long" }
            )),
            Action::Execute { round, master } => {
                Line::at(master, format!("the {} extension is executed by", which(round)))
            }
            Action::Answer { round, master } => {
                Line::at(master, format!("A counts the {} extension of", which(round)))
            }
            Action::Lose { round, master } => {
                Line::at(master, format!("the connection of the {} extension is lost to", which(round)))
            }
        }
    }
}

impl State {
    fn tick(&mut self) {
        self.lease -= 1;
        for key in &mut self.keys {
            *key = key.saturating_sub(1);
        }
        for round in self.rounds.iter_mut().flatten() {
            round.age = (round.age + 1).min(LONG);
        }
    }

    /// The guard is valid for no longer than the new ttl from now on.
    fn send(&mut self, rule: Extensions, round: usize, ttl: u8) {
        self.lease = self.lease.min(ttl);
        let mut requests = [Request { is_executed: false, awaited: Some(ttl) }; MASTERS];
        for (master, request) in requests.iter_mut().enumerate().filter(|_| rule == Extensions::Sound) {
            let mut limit = ttl.min(self.lost[master]);
            for other in self.rounds.iter_mut().flatten() {
                let other_ttl = other.ttl;
                if let Some(awaited) = &mut other.requests[master].awaited {
                    (*awaited, limit) = ((*awaited).min(ttl), limit.min(other_ttl));
                }
            }
            request.awaited = Some(limit);
        }
        self.rounds[round] = Some(Round { ttl, age: 0, requests, votes: [0; MASTERS] });
    }

    fn execute(&mut self, round: usize, master: usize) {
        let Some(round) = &mut self.rounds[round] else { return };
        round.requests[master].is_executed = true;
        if self.keys[master] > 0 {
            self.keys[master] = round.ttl;
        } else {
            // The master answers that it does not have the key.
            round.requests[master].awaited = None;
        }
    }

    fn answer(&mut self, rule: Extensions, round: usize, master: usize) {
        let is_last = self.rounds.get(round + 1).is_none_or(Option::is_none);
        let others = self.rounds.iter().enumerate().filter(|(at, _)| *at != round);
        let others =
            others.filter_map(|(_, other)| *other).filter(|other| other.requests[master].awaited.is_some());
        let shortest = others.map(|other| other.ttl).min().unwrap_or(LONG).min(self.lost[master]);
        let Some(round) = &mut self.rounds[round] else { return };
        let Some(mut vote) = round.requests[master].awaited.take() else { return };
        if rule == Extensions::StillAwaited {
            vote = vote.min(shortest);
        }
        if is_last {
            round.votes[master] = vote;
            let mut votes = round.votes;
            votes.sort_unstable();
            self.lease = self.lease.max(votes[MASTERS - QUORUM].saturating_sub(round.age));
        }
    }

    fn lose(&mut self, round: usize, master: usize) {
        let Some(round) = &mut self.rounds[round] else { return };
        round.requests[master].awaited = None;
        self.lost[master] = self.lost[master].min(round.ttl);
    }

    /// All that the state says of one master.
    fn at(&self, master: usize) -> impl Ord + use<> {
        let rounds = self.rounds.map(|round| {
            round.map(|round| {
                let Request { is_executed, awaited } = round.requests[master];
                (is_executed, awaited, round.votes[master])
            })
        });
        (self.keys[master], self.lost[master], rounds)
    }
}
