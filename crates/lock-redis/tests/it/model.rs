//! Which token a holder gets, when a grant reserves a block of them for its process: a model, searched exhaustively.
//!
//! This is `SetNxPx::claim`, `lua/mint.lua`, `lua/raise_last.lua` and `TokenBlock`, step by step:
//!
//! * A claim takes the key if it is free, by one command. The next command makes its proposal the last token, if it is larger.
//!   Commands of others may run between them, and the second one also where the first was refused.
//! * A script does both at once, or mints a token for a key that a claim took without one.
//! * A holder hands the lock over within its process as long as its block has tokens, unless it has raised the last token.
//! * A lock ends by a release, by its ttl, or because somebody breaks it. Of the last, its holder does not know: it goes on
//!   handing over what it does not hold any more.
//!
//! Clocks are anything: every claim proposes, and every script reads, what it likes. Blocks have [`SIZE`] tokens here.

use stateright::{Checker, Model, Property};

const CLIENTS: usize = 2;
const SIZE: u8 = 3;
/// The largest time of a clock, and the largest floor.
const LATEST: u8 = 3 * SIZE;
/// The search ends there, as tokens have no end.
const LARGEST: u8 = 6 * SIZE;

const INCREASE: &str = "tokens increase from holder to holder";

/// What may be wrong with the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mistake {
    #[default]
    None,
    /// A claim proposes the time as it is.
    UnevenProposal,
    /// A script mints the last token plus one.
    NextNumber,
    /// A holder hands over beyond the end of its block.
    EndlessBlock,
    /// A holder that has raised the last token hands over all the same.
    HandsOverAfterRaise,
    /// The second command of a claim counts also where the last token is as large.
    IgnoresAnswer,
}

#[derive(Clone, Debug)]
struct Blocks {
    mistake: Mistake,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    clients: [Client; CLIENTS],
    /// Who has the key.
    key: Option<usize>,
    /// The last token, as the server keeps it.
    last: u8,
    /// The largest token of a holder.
    used: u8,
    has_handed_over: bool,
    is_inverted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Client {
    Idle,
    /// Its claim has taken the key; the second command is on its way.
    Claiming {
        proposal: u8,
    },
    /// It has the key and no token.
    Untokened,
    Holding {
        token: u8,
        first: u8,
        has_raised: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Take {
        client: usize,
        time: u8,
    },
    Register {
        client: usize,
    },
    /// The second command of a claim that was refused the key.
    Stray {
        time: u8,
    },
    Script {
        client: usize,
        time: u8,
    },
    HandOver {
        client: usize,
    },
    Raise {
        client: usize,
        floor: u8,
    },
    /// By a release, or by the ttl, beyond which no holder relies on its lock.
    End {
        client: usize,
    },
    Break,
}

const fn block_of(number: u8) -> u8 {
    number - number % SIZE
}

impl Blocks {
    fn proposal(&self, time: u8) -> u8 {
        if self.mistake == Mistake::UnevenProposal { time } else { block_of(time) }
    }

    fn mint(&self, last: u8, time: u8) -> u8 {
        let proposal = self.proposal(time);
        match self.mistake {
            _ if proposal > last => proposal,
            Mistake::NextNumber => last + 1,
            _ => block_of(last) + SIZE,
        }
    }

    fn may_hand_over(&self, client: Client) -> bool {
        let Client::Holding { token, first, has_raised } = client else { return false };
        let has_more = token + 1 < first + SIZE || self.mistake == Mistake::EndlessBlock;
        has_more && (!has_raised || self.mistake == Mistake::HandsOverAfterRaise)
    }
}

impl State {
    fn grant(&mut self, client: usize, token: u8) {
        self.hold(client, token);
        self.clients[client] = Client::Holding { token, first: token, has_raised: false };
    }

    /// Notes that this token is used by a client, which may have lost the lock without knowing.
    fn hold(&mut self, client: usize, token: u8) {
        if self.key == Some(client) {
            self.is_inverted |= token <= self.used;
            self.used = self.used.max(token);
        }
    }
}

impl Model for Blocks {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clients = [Client::Idle; CLIENTS];
        vec![State { clients, key: None, last: 0, used: 0, has_handed_over: false, is_inverted: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let times = 1..=LATEST;
        actions.extend(times.clone().filter(|time| *time > state.last).map(|time| Action::Stray { time }));
        if state.key.is_some() {
            actions.push(Action::Break);
        }
        for (client, what) in state.clients.into_iter().enumerate() {
            let is_free = state.key.is_none() && what == Client::Idle;
            if is_free {
                actions.extend(times.clone().map(|time| Action::Take { client, time }));
            }
            if is_free || what == Client::Untokened && state.key == Some(client) {
                actions.extend(times.clone().map(|time| Action::Script { client, time }));
            }
            match what {
                Client::Idle => continue,
                Client::Claiming { .. } => actions.push(Action::Register { client }),
                Client::Untokened => {}
                Client::Holding { .. } => {
                    if self.may_hand_over(what) {
                        actions.push(Action::HandOver { client });
                    }
                    if state.key == Some(client) {
                        actions.extend(times.clone().map(|floor| Action::Raise { client, floor }));
                    }
                }
            }
            actions.push(Action::End { client });
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Take { client, time } => {
                state.key = Some(client);
                state.clients[client] = Client::Claiming { proposal: self.proposal(time) };
            }
            Action::Register { client } => {
                let Client::Claiming { proposal } = state.clients[client] else { return None };
                state.clients[client] = Client::Untokened;
                if proposal > state.last || self.mistake == Mistake::IgnoresAnswer {
                    state.last = state.last.max(proposal);
                    state.grant(client, proposal);
                }
            }
            Action::Stray { time } => state.last = state.last.max(self.proposal(time)),
            Action::Script { client, time } => {
                state.key = Some(client);
                state.last = self.mint(state.last, time);
                state.grant(client, state.last);
            }
            Action::HandOver { client } => {
                let Client::Holding { token, first, has_raised } = state.clients[client] else { return None };
                let token = token + 1;
                state.clients[client] = Client::Holding { token, first, has_raised };
                state.hold(client, token);
                state.has_handed_over = true;
            }
            Action::Raise { client, floor } => {
                let Client::Holding { token, first, .. } = state.clients[client] else { return None };
                state.last = state.last.max(floor);
                // Every later token is to be larger than the floor.
                state.used = state.used.max(floor);
                state.clients[client] = Client::Holding { token, first, has_raised: true };
            }
            Action::End { client } => {
                state.clients[client] = Client::Idle;
                state.key.take_if(|owner| *owner == client);
            }
            Action::Break => state.key = None,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(INCREASE, |_, state: &State| !state.is_inverted),
            Property::sometimes("a lock is handed over", |_, state: &State| state.has_handed_over),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.last <= LARGEST && state.used <= LARGEST
    }
}

#[test]
fn tokens_increase_from_holder_to_holder() {
    let checked = Blocks { mistake: Mistake::None }.checker().threads(2).spawn_bfs().join();
    checked.assert_properties();
    assert!(checked.unique_state_count() > 1_000, "{}", checked.unique_state_count());
}

#[test]
fn each_mistake_lets_a_later_holder_have_a_smaller_token() {
    for mistake in [
        Mistake::UnevenProposal,
        Mistake::NextNumber,
        Mistake::EndlessBlock,
        Mistake::HandsOverAfterRaise,
        Mistake::IgnoresAnswer,
    ] {
        let checked = Blocks { mistake }.checker().threads(2).spawn_bfs().join();
        let story = checked.discovery(INCREASE).unwrap_or_else(|| panic!("{mistake:?} breaks nothing"));
        println!("{mistake:?}: {:?}", story.into_actions());
    }
}
