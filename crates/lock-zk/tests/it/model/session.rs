//! How long a client treats its session as valid, and how long the servers keep it.
//!
//! The leader ends a session that it has not heard of for a session timeout. A client that is connected to a follower
//! is heard of there; the follower tells the leader of all sessions that it has heard, every half tick, which is a
//! quarter of the shortest session timeout. A request that is passed on to the leader does not count there. So a
//! follower that dies takes what it heard last with it.
//!
//! A leader may be cut off from all but the server of the client, or be that server. The others elect another one, which
//! gives the session its whole timeout and learns of it no more. The old one goes on answering what needs no majority.
//!
//! A client may move to another server. That goes through the leader, which from then on counts by the timeout that this server grants,
//! whether the client gets the answer or not.

use stateright::{Model, Property};

/// The session timeout.
const TIMEOUT: u8 = 8;
/// How often a follower reports to the leader which sessions are alive.
const HALF_TICK: u8 = 2;
/// How often a client that is not paused sends something.
const BEAT: u8 = 1;
const HORIZON: u8 = 3 * TIMEOUT - 1;

/// How a client computes the validity of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validity {
    /// For three quarters of the timeout from when a request was sent that was answered.
    ThreeQuarters,
    /// For the whole of the timeout.
    Whole,
    /// For three quarters from when the answer came.
    FromAnswer,
    /// For the whole timeout from when a request was sent of which the leader is known to have heard: it was answered
    /// a quarter of the timeout before another one was sent that was answered too.
    Proven,
    /// The same, by requests that a leader answers alone.
    ProvenBySync,
}

/// To which servers a client moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moves {
    None,
    /// To those that grant the timeout of the session.
    SameTimeout,
    /// Also to those that grant half of it, and it goes on with what was proven before.
    ShorterTimeout,
}

#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    pub(crate) valid_until: Validity,
    /// Whether the client or the network may pause, so that nothing is sent for a while.
    pub(crate) pauses: bool,
    /// Whether the leader may be cut off.
    pub(crate) cut_off: bool,
    pub(crate) moves: Moves,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    now: u8,
    /// The session timeout by which the servers count.
    timeout: u8,
    follower: Follower,
    /// Whether the leader that the follower knows has no other follower any more.
    cut_off: bool,
    /// When the leader ends the session.
    ends: u8,
    valid_until: u8,
    request: Option<Request>,
    /// When the last request was sent; there is one for a unit of time at most.
    last: u8,
    /// Requests that were answered less than half a tick ago: when they were sent, and answered.
    answered: Vec<(u8, u8)>,
    /// When the last one was sent that was answered before.
    proven: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Follower {
    Up { heard: bool },
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Request {
    sent: u8,
    /// What is known to have reached the leader when this one is answered.
    proven: u8,
    /// Whether the servers have answered.
    answered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Send,
    Arrive,
    Answer,
    Tick,
    Die,
    CutOff,
    /// To a server that grants this timeout.
    Move(u8),
}

impl Model for Sessions {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let whole = matches!(self.valid_until, Validity::Whole | Validity::Proven | Validity::ProvenBySync);
        vec![State {
            now: 0,
            timeout: TIMEOUT,
            follower: Follower::Up { heard: false },
            cut_off: false,
            ends: TIMEOUT,
            valid_until: if whole { TIMEOUT } else { TIMEOUT / 4 * 3 },
            request: None,
            last: 0,
            answered: Vec::new(),
            proven: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let up = state.follower != Follower::Dead;
        if up {
            actions.push(Action::Die);
        }
        if self.cut_off && !state.cut_off && state.now < state.ends {
            actions.push(Action::CutOff);
        }
        if !state.cut_off && state.now < state.ends && state.now < state.valid_until {
            match self.moves {
                Moves::None => {}
                Moves::SameTimeout => actions.push(Action::Move(TIMEOUT)),
                Moves::ShorterTimeout => actions.extend([TIMEOUT, TIMEOUT / 2].map(Action::Move)),
            }
        }
        // A client that is cut off does not know that the session expired.
        let answers = match self.valid_until {
            Validity::ProvenBySync => state.cut_off || state.now < state.ends,
            _ => !state.cut_off && state.now < state.ends,
        };
        match state.request {
            None if state.now < state.valid_until && state.last < state.now => actions.push(Action::Send),
            Some(Request { answered: false, .. }) if up && answers => actions.push(Action::Arrive),
            Some(Request { answered: true, .. }) => actions.push(Action::Answer),
            _ => {}
        }
        // Without pauses all that is due happens before the time goes on.
        let due = state.request.is_some() || state.last + BEAT <= state.now;
        if state.now < HORIZON && (self.pauses || !due || !up || !answers) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Send => {
                state.request = Some(Request { sent: state.now, proven: state.proven, answered: false });
                state.last = state.now;
            }
            Action::Arrive => {
                state.follower = Follower::Up { heard: true };
                state.request.as_mut()?.answered = true;
            }
            Action::Answer => {
                let request = state.request.take()?;
                let until = match self.valid_until {
                    Validity::ThreeQuarters => request.sent + TIMEOUT / 4 * 3,
                    Validity::Whole => request.sent + TIMEOUT,
                    Validity::FromAnswer => state.now + TIMEOUT / 4 * 3,
                    Validity::Proven | Validity::ProvenBySync => request.proven + TIMEOUT,
                };
                // An expired session stays expired.
                if state.now < state.valid_until {
                    state.valid_until = state.valid_until.max(until);
                }
                state.answered.push((request.sent, state.now));
            }
            Action::Tick => state.tick(),
            Action::Die => state.follower = Follower::Dead,
            Action::CutOff => (state.cut_off, state.ends) = (true, state.now + TIMEOUT),
            Action::Move(timeout) => {
                (state.timeout, state.ends) = (timeout, state.now + timeout);
                // The answer to a request under way is lost.
                (state.follower, state.request) = (Follower::Up { heard: false }, None);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no session is valid for longer than at the leader", |_, state: &State| {
                state.now >= state.valid_until || state.now < state.ends
            }),
            Property::sometimes("a session lasts", |_, state: &State| {
                state.now > TIMEOUT + TIMEOUT / 2 && state.now < state.valid_until
            }),
            Property::sometimes("a session ends", |_, state: &State| state.now >= state.ends),
        ]
    }
}

impl State {
    fn tick(&mut self) {
        self.now += 1;
        if self.now < self.ends
            && !self.cut_off
            && self.now.is_multiple_of(HALF_TICK)
            && let Follower::Up { heard: heard @ true } = &mut self.follower
        {
            *heard = false;
            self.ends = self.now + self.timeout;
        }
        let now = self.now;
        let ripe = |&(_, at): &(u8, u8)| at + HALF_TICK <= now;
        self.proven =
            self.answered.iter().filter(|one| ripe(one)).map(|one| one.0).fold(self.proven, u8::max);
        self.answered.retain(|one| !ripe(one));
    }
}

impl Action {
    pub(crate) fn tell(self, before: &State, after: &State) -> String {
        match self {
            Self::Send => format!("At {} the client sends a request.", before.now),
            Self::Arrive if before.cut_off => {
                "The server receives it, and its leader answers alone.".to_owned()
            }
            Self::Arrive => "The follower receives it, forwards it and answers.".to_owned(),
            Self::Answer => format!(
                "The client has the answer at {}, and treats its session as valid until {}.",
                after.now, after.valid_until
            ),
            Self::Tick if after.ends != before.ends => {
                format!(
                    "At {} the follower reports to the leader, which keeps the session until {}.",
                    after.now, after.ends
                )
            }
            Self::Tick => String::new(),
            Self::Move(timeout) => format!(
                "At {} the client moves to a server that grants {timeout}; the leader keeps the session until {}.",
                before.now, after.ends
            ),
            Self::Die => format!("At {} the follower dies.", before.now),
            Self::CutOff => format!(
                "At {} the leader is cut off. The others have another one, which keeps the session until {}.",
                before.now, after.ends
            ),
        }
    }

    /// What the last state of a counterexample shows.
    pub(crate) fn moral(last: &State) -> String {
        format!(
            "At {} the leader ends the session, and the client treats it as valid until {}.",
            last.ends, last.valid_until
        )
    }
}
