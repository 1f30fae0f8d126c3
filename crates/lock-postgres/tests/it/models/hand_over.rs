//! How long a lock lasts that a release hands over: as the server writes it, and as the waiter counts it.
//!
//! A holds the lock and releases it, B waits. Once B has queued up, a repeated request only reads.

use lock_testkit::stories::{Line, Tale};
use stateright::{Model, Property};

/// For how long a hand-over lasts until it is confirmed.
const GRACE: u8 = 2;
const LATEST: u8 = 3;

/// The rules, with at most one mistake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandOver {
    pub(crate) mistake: Option<Mistake>,
}

/// What an implementation can get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// The release reads the clock when it begins.
    EarlyClock,
    /// The waiter counts from its last request that was answered, and not from its first one.
    CountsFromLast,
}

/// What the server and the waiter know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    now: u8,
    /// When the waiter has sent its first request, the one that is on its way, and the last that was answered: busy.
    first: Option<u8>,
    sent: Option<u8>,
    answered: Option<u8>,
    is_queued: bool,
    release: Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Release {
    None,
    Begun {
        clock: u8,
    },
    /// It has the row, and has written when the hand-over ends.
    Executed {
        ends: u8,
    },
    Committed {
        ends: u8,
    },
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    Ask,
    Answer,
    Begin,
    Execute,
    Commit,
}

pub(crate) const LASTS: &str = "a waiter counts on a lock for no longer than the server keeps it";

impl Tale for HandOver {
    fn step(&self, last: &State, action: Action) -> State {
        let mut state = *last;
        match action {
            Action::Tick => state.now += 1,
            Action::Ask => {
                state.sent = Some(state.now);
                state.first = state.first.or(state.sent);
            }
            Action::Answer => {
                let sent = state.sent.take();
                // Without a queue entry it finds the row locked, and nothing is known.
                let is_locked = matches!(state.release, Release::Executed { .. });
                if state.is_queued || !is_locked {
                    state.is_queued = true;
                    state.answered = sent;
                }
            }
            Action::Begin => state.release = Release::Begun { clock: state.now },
            Action::Execute => {
                if let Release::Begun { clock } = state.release {
                    let is_early = self.mistake == Some(Mistake::EarlyClock);
                    let ends = if is_early { clock } else { state.now } + GRACE;
                    state.release = Release::Executed { ends };
                }
            }
            Action::Commit => {
                if let Release::Executed { ends } = state.release {
                    state.release = Release::Committed { ends };
                }
            }
        }
        state
    }

    fn representative(state: &State) -> State {
        *state
    }

    fn tell(&self, _: &State, action: Action, next: &State) -> Line {
        let text = match action {
            Action::Tick => "time passes".to_owned(),
            Action::Ask => format!("B asks, at {}", next.now),
            Action::Answer if next.answered.is_none() => "B is answered that the row is locked".to_owned(),
            Action::Answer => "B is answered that the lock is busy".to_owned(),
            Action::Begin => format!("the release of A begins, at {}", next.now),
            Action::Execute => format!("it locks the row, at {}", next.now),
            Action::Commit => {
                let ends = if let Release::Committed { ends } = next.release { ends } else { 0 };
                let counted = self.counted(next).unwrap_or_default();
                format!("it is committed: B has the lock until {ends}, and counts on it until {counted}")
            }
        };
        Line::new(text)
    }
}

impl Model for HandOver {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let release = Release::None;
        vec![State { now: 0, first: None, sent: None, answered: None, is_queued: false, release }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend((state.now < LATEST).then_some(Action::Tick));
        match state.release {
            Release::None => actions.push(Action::Begin),
            Release::Begun { .. } => actions.extend(state.is_queued.then_some(Action::Execute)),
            Release::Executed { .. } => actions.push(Action::Commit),
            Release::Committed { .. } => return,
        }
        actions.push(if state.sent.is_some() { Action::Answer } else { Action::Ask });
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        Some(self.step(last, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LASTS, |model: &Self, state: &State| match state.release {
                Release::Committed { ends } => model.counted(state).is_none_or(|counted| counted <= ends),
                _ => true,
            }),
            Property::sometimes(
                "the waiter counts on all of it",
                |model: &Self, state: &State| matches!(state.release, Release::Committed { ends } if model.counted(state) == Some(ends)),
            ),
        ]
    }
}

impl HandOver {
    /// Until when the waiter counts on a lock that it is notified of.
    fn counted(&self, state: &State) -> Option<u8> {
        let from = if self.mistake == Some(Mistake::CountsFromLast) { state.answered } else { state.first };
        from.map(|from| from + GRACE)
    }
}
