//! One record that two clients change by compare and swap.
//!
//! Time goes in ticks, and whatever ends is a number of ticks that are left. What is left out, and why nothing is lost by that:
//!
//! * A swap that is never executed is one that is late for ever. A paused client is one that nothing happens at.
//! * The way of a read: it may return anything that the record ever was.
//! * Sharers: a swap that adds one is as one that takes the lock.
//! * Owner ids: a client asks again only when its last attempt is rolled back; the library does so before, with another id.

use lock_testkit::stories::{Line, Tale, name};
use stateright::{Model, Property};

const CLIENTS: usize = 2;
/// How long a guard is valid, from before its swap was sent.
const TTL: u8 = 2;
/// By how much longer an observer waits, and by how much its clock may be faster in this time.
const MARGIN: u8 = 1;
/// How long a read may take, where that counts.
const SLOW: u8 = 2;
/// The clocks by which tokens are made where that is a mistake.
const CLOCKS: [u8; CLIENTS] = [2, 1];

/// The rules, with at most one mistake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Swaps {
    pub(crate) mistake: Option<Mistake>,
    /// How many values the record has at most.
    pub(crate) writes: u8,
    /// Whether clients wait in the record.
    pub(crate) queues: bool,
    /// How many swaps are given up at most.
    pub(crate) given_up: u8,
}

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// Values are written whatever the version is.
    WritesUnconditionally,
    /// A renewal writes the same bytes again, in a store whose versions are hashes of them.
    RepeatsValues,
    /// A guard is valid from the answer on.
    CountsFromAnswer,
    /// An entry is dead a ttl after the read was sent that showed it first.
    CountsFromSent,
    /// An entry is dead a ttl after it was seen, without a margin for clocks that are faster.
    NoMargin,
    /// A swap of unknown outcome is rolled back by a read that does not show it.
    SettlesByReading,
    /// Tokens are made by the clock alone.
    TokensByClock,
    /// A record that nobody uses is removed by a client whose clock is ahead of its last token.
    RemovesByClock,
    /// A waiter that finds itself granted is valid from the last read on that did not show the grant.
    GrantCountsFromRead,
}

/// What the store and the clients know, and what has been so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct State {
    /// All that the record has been; the last is what it is.
    history: Vec<Value>,
    clients: [Client; CLIENTS],
    given_up: u8,
    /// The largest token of a guard that was valid.
    granted: u8,
    has_inverted: bool,
}

/// What the record is. The store tells two versions apart if this differs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Value {
    number: u8,
    owner: Option<u8>,
    /// The number of the value by which the owner last confirmed its entry.
    beat: u8,
    queued: Option<u8>,
    token: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Client {
    /// The time by which it makes tokens, where that is a mistake.
    clock: u8,
    known: Option<Value>,
    /// When the entry of the other one in it is dead.
    dead_in: u8,
    /// For how long a grant would be valid that the last read did not show.
    unseen: u8,
    valid: u8,
    swap: Option<Swap>,
    /// A swap that it has given up, and which may be executed.
    late: Option<Swap>,
    /// Whether its last attempt has ended, and is rolled back.
    is_settled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Swap {
    kind: Kind,
    expected: Value,
    value: Value,
    /// For how long a guard is valid by it.
    left: u8,
    /// Whether it was executed, and has changed the record.
    answer: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Take,
    Queue,
    /// Renews a lease, or confirms a grant.
    Renew,
    /// Releases the lock to the waiter, or rolls back.
    Leave,
    /// Removes a record that nobody uses: a mistake.
    Remove,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    /// A read that has taken so long returns what the record was at this point.
    Read {
        client: usize,
        at: usize,
        is_fast: bool,
        took: u8,
    },
    Send(usize, Kind),
    /// The store executes a swap.
    Execute(usize),
    Answer(usize),
    GiveUp(usize),
    /// The store executes a swap that was given up.
    ExecuteLate(usize),
}

pub(crate) const EXCLUSION: &str = "no two clients have a valid lock";
pub(crate) const INCREASE: &str = "tokens increase";
pub(crate) const NOTHING_LEFT: &str = "an attempt that was rolled back leaves nothing";

impl Model for Swaps {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let has_clock = self.is(Mistake::TokensByClock) || self.is(Mistake::RemovesByClock);
        let client = |clock| Client {
            clock: if has_clock { clock } else { 0 },
            known: None,
            dead_in: 0,
            unseen: 0,
            valid: 0,
            swap: None,
            late: None,
            is_settled: true,
        };
        let history = vec![Value::default()];
        vec![State { history, clients: CLOCKS.map(client), given_up: 0, granted: 0, has_inverted: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(state.clients.iter().any(Client::counts).then_some(Action::Tick));
        for (at, client) in state.clients.iter().enumerate() {
            actions.extend(client.late.map(|_| Action::ExecuteLate(at)));
            match client.swap {
                Some(swap) => {
                    let next = if swap.answer.is_some() { Action::Answer(at) } else { Action::Execute(at) };
                    actions.push(next);
                    let may_give_up = client.late.is_none() && state.given_up < self.given_up;
                    actions.extend(may_give_up.then_some(Action::GiveUp(at)));
                }
                None => {
                    self.reads_of(at, state, actions);
                    let kinds = [Kind::Take, Kind::Queue, Kind::Renew, Kind::Leave, Kind::Remove].into_iter();
                    actions.extend(
                        kinds
                            .filter(|kind| self.may_send(client, at as u8, *kind))
                            .map(|kind| Action::Send(at, kind)),
                    );
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        Some(Self::representative(&self.step(last, action)))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(EXCLUSION, |_, state: &State| {
                state.clients.iter().filter(|client| client.valid > 0).count() < 2
            }),
            Property::always(INCREASE, |_, state: &State| !state.has_inverted),
            Property::always(NOTHING_LEFT, |_, state: &State| {
                let left =
                    |(at, client): (usize, &Client)| client.is_settled && state.present().is_of(at as u8);
                !state.clients.iter().enumerate().any(left)
            }),
            Property::sometimes("a lock is taken over from a dead owner", |_, state: &State| {
                let owners = state.history.iter().map(|value| value.owner);
                let is_taken =
                    |(one, next): (Option<u8>, Option<u8>)| one.is_some() && next.is_some() && one != next;
                owners.clone().zip(owners.skip(1)).any(is_taken) && state.is_valid()
            }),
        ];
        properties.extend(self.queues.then(|| {
            Property::sometimes("a granted waiter confirms", |_, state: &State| {
                let is_granted = |values: &[Value]| {
                    values[0].queued.is_some()
                        && values[0].queued == values[1].owner
                        && values[2].owner == values[1].owner
                };
                state.history.windows(3).any(is_granted) && state.is_valid()
            })
        }));
        properties.extend((self.given_up > 0).then(|| {
            Property::sometimes("a late swap can be executed", |_, state: &State| {
                let is_current = |late: Swap| late.expected == *state.present();
                state.clients.iter().any(|client| client.late.is_some_and(is_current))
            })
        }));
        properties
    }
}

impl Tale for Swaps {
    fn step(&self, last: &State, action: Action) -> State {
        let mut state = last.clone();
        match action {
            Action::Tick => state.clients.iter_mut().for_each(Client::tick),
            Action::Read { client, at, is_fast, took } => {
                let value = state.history[at];
                self.read(&mut state.clients[client], client as u8, value, u8::from(is_fast) + took);
            }
            Action::Send(client, kind) => self.send(&mut state.clients[client], client as u8, kind),
            Action::Execute(client) => {
                let swap = last.clients[client].swap.expect("it was sent");
                let answer = Some(self.execute(&mut state, swap));
                state.clients[client].swap = Some(Swap { answer, ..swap });
                if answer == Some(false) {
                    // It has to read again, whenever it learns this.
                    self.answer(&mut state, client);
                }
            }
            Action::Answer(client) => self.answer(&mut state, client),
            Action::GiveUp(client) => {
                state.given_up += 1;
                let given_up = state.clients[client].swap.take();
                state.clients[client].late = given_up.filter(|swap| swap.answer.is_none());
            }
            Action::ExecuteLate(client) => {
                let late = state.clients[client].late.take().expect("it was given up");
                self.execute(&mut state, late);
            }
        }
        // One that can no longer change anything is the same as none.
        let present = *state.present();
        for client in &mut state.clients {
            client.late = client
                .late
                .filter(|late| late.expected == present || self.is(Mistake::WritesUnconditionally));
        }
        state
    }

    fn representative(state: &State) -> State {
        let [one, other] = state.clients.map(Client::renamed);
        let history = state.history.iter().copied().map(Value::renamed).collect();
        state.clone().min(State { clients: [other, one], history, ..*state })
    }

    fn tell(&self, last: &State, action: Action, next: &State) -> Line {
        Line::new(told(last, action, next))
    }
}

impl Swaps {
    fn is(self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn reads_of(self, client: usize, state: &State, actions: &mut Vec<Action>) {
        let Client { known, valid, .. } = state.clients[client];
        if valid > 0 && known.is_some() {
            // Nothing that a holder reads matters while it knows the version.
            return;
        }
        for (at, value) in state.history.iter().enumerate() {
            let is_news = known != Some(*value) || self.is(Mistake::GrantCountsFromRead);
            if !is_news {
                continue;
            }
            let read = |is_fast, took| Action::Read { client, at, is_fast, took };
            actions.push(read(false, 0));
            let is_of_other = value.owner.is_some_and(|owner| usize::from(owner) != client);
            actions.extend(is_of_other.then_some(read(true, 0)));
            actions.extend((is_of_other && self.is(Mistake::CountsFromSent)).then_some(read(false, SLOW)));
        }
    }

    fn read(self, client: &mut Client, me: u8, value: Value, early: u8) {
        let entry = |value: Value| (value.owner, value.beat);
        if client.known.map(entry) != Some(entry(value)) {
            let margin = if self.is(Mistake::NoMargin) { 0 } else { MARGIN };
            client.dead_in = (TTL + margin).saturating_sub(early);
        }
        if value.owner.is_none_or(|owner| owner == me) {
            client.dead_in = 0;
        }
        client.known = Some(value);
        if self.is(Mistake::SettlesByReading) && client.valid == 0 && !value.is_of(me) {
            client.is_settled = true;
        }
        if self.is(Mistake::GrantCountsFromRead) {
            match value.owner == Some(me) && !client.is_settled {
                true => client.valid = client.valid.max(client.unseen),
                false => client.unseen = TTL,
            }
        }
    }

    fn may_send(self, client: &Client, me: u8, kind: Kind) -> bool {
        let Some(known) = client.known else { return false };
        let is_of_other = known.owner.is_some_and(|owner| owner != me);
        let may = match kind {
            Kind::Take => {
                client.late.is_none() && known.owner != Some(me) && (!is_of_other || client.dead_in == 0)
            }
            Kind::Queue => {
                self.queues
                    && client.is_settled
                    && is_of_other
                    && client.dead_in > 0
                    && known.queued.is_none()
            }
            Kind::Renew => !client.is_settled && known.owner == Some(me),
            Kind::Leave => !client.is_settled,
            Kind::Remove => {
                let is_idle = client.is_settled && known.owner.is_none() && known.queued.is_none();
                self.is(Mistake::RemovesByClock) && is_idle && (1..=client.clock).contains(&known.token)
            }
        };
        may && known.number < self.writes
    }

    fn send(self, client: &mut Client, me: u8, kind: Kind) {
        let Some(expected) = client.known else { return };
        let mut value = expected;
        value.number += 1;
        let token = match self.mistake {
            Some(Mistake::TokensByClock) => client.clock,
            Some(Mistake::RemovesByClock) => client.clock.max(expected.token + 1),
            _ => expected.token + 1,
        };
        match kind {
            Kind::Take => {
                (value.owner, value.beat, value.token) = (Some(me), value.number, token);
                value.queued = value.queued.filter(|waiter| *waiter != me);
            }
            Kind::Queue => value.queued = Some(me),
            Kind::Renew => value.beat = value.number,
            Kind::Remove => value = Value { number: value.number, ..Value::default() },
            Kind::Leave => {
                client.valid = 0;
                value.queued = value.queued.filter(|waiter| *waiter != me);
                if value.owner == Some(me) {
                    value.owner = value.queued.take();
                    (value.beat, value.token) = (value.number, value.token + u8::from(value.owner.is_some()));
                }
            }
        }
        client.is_settled = kind == Kind::Remove;
        if self.is(Mistake::RepeatsValues) && kind == Kind::Renew {
            value = expected;
        }
        let left = if matches!(kind, Kind::Take | Kind::Renew) { TTL } else { 0 };
        client.swap = Some(Swap { kind, expected, value, left, answer: None });
    }

    fn execute(self, state: &mut State, swap: Swap) -> bool {
        let swaps = *state.present() == swap.expected || self.is(Mistake::WritesUnconditionally);
        if swaps && *state.present() != swap.value {
            state.history.push(swap.value);
        }
        swaps
    }

    fn answer(self, state: &mut State, at: usize) {
        let Some(swap) = state.clients[at].swap.take() else { return };
        let client = &mut state.clients[at];
        if swap.answer != Some(true) {
            client.known = None;
            return;
        }
        (client.known, client.dead_in) = (Some(swap.value), 0);
        match swap.kind {
            Kind::Take | Kind::Renew => {
                let left = if self.is(Mistake::CountsFromAnswer) { TTL } else { swap.left };
                client.valid = client.valid.max(left);
                if client.valid > 0 {
                    state.has_inverted |= swap.value.token < state.granted;
                    state.granted = state.granted.max(swap.value.token);
                }
            }
            Kind::Queue | Kind::Remove => {}
            Kind::Leave => client.is_settled = true,
        }
        if let Some(owner) = swap.value.owner
            && usize::from(owner) != at
        {
            client.dead_in = TTL + MARGIN;
        }
    }
}

impl State {
    fn is_valid(&self) -> bool {
        self.clients.iter().any(|client| client.valid > 0)
    }

    fn present(&self) -> &Value {
        self.history.last().expect("there is a first value")
    }
}

impl Value {
    /// The same with the clients the other way round.
    fn renamed(self) -> Self {
        let other = |client| 1 - client;
        Self { owner: self.owner.map(other), queued: self.queued.map(other), ..self }
    }

    fn is_of(&self, client: u8) -> bool {
        self.owner == Some(client) || self.queued == Some(client)
    }
}

impl Client {
    fn renamed(self) -> Self {
        let swap =
            |swap: Swap| Swap { expected: swap.expected.renamed(), value: swap.value.renamed(), ..swap };
        Self {
            known: self.known.map(Value::renamed),
            swap: self.swap.map(swap),
            late: self.late.map(swap),
            ..self
        }
    }

    fn counts(&self) -> bool {
        self.dead_in > 0 || self.unseen > 0 || self.valid > 0 || self.swap.is_some_and(|swap| swap.left > 0)
    }

    fn tick(&mut self) {
        for left in [&mut self.dead_in, &mut self.unseen, &mut self.valid] {
            *left = left.saturating_sub(1);
        }
        if let Some(swap) = &mut self.swap {
            swap.left = swap.left.saturating_sub(1);
        }
        if let Some(late) = &mut self.late {
            late.left = 0;
        }
    }
}

fn told(last: &State, action: Action, next: &State) -> String {
    let purpose = |kind| match kind {
        Kind::Take => "that takes the lock",
        Kind::Queue => "that queues up",
        Kind::Renew => "that confirms its lock",
        Kind::Leave => "that releases the lock, or rolls back",
        Kind::Remove => "that removes the record",
    };
    match action {
        Action::Tick => "a tick passes".to_owned(),
        Action::Read { client, at, is_fast, took } => {
            let shown = shown(&last.history[at]);
            let age = if at + 1 < last.history.len() { ", which is stale" } else { "" };
            let slow =
                if took > 0 { format!(", by a read that was sent {took} ticks ago") } else { String::new() };
            let fast = if is_fast { ", and its clock is fast from now on" } else { "" };
            let valid = next.clients[client].valid > last.clients[client].valid;
            let valid = if valid { "; it treats the lock as valid" } else { "" };
            format!("{} reads that {shown}{age}{slow}{fast}{valid}", name(client))
        }
        Action::Send(client, kind) => format!("{} sends a swap {}", name(client), purpose(kind)),
        Action::Execute(client) => {
            let is_executed = next.clients[client].swap.is_some_and(|swap| swap.answer == Some(true));
            let what = if is_executed { "executes" } else { "refuses" };
            format!("the store {what} the swap of {}: {}", name(client), shown(next.present()))
        }
        Action::Answer(client) => {
            let valid = next.clients[client].valid;
            let until =
                if valid > 0 { format!(": its guard is valid for {valid} ticks") } else { String::new() };
            format!("{} gets the answer{until}", name(client))
        }
        Action::GiveUp(client) => {
            format!("{} gives up its swap, whose outcome it does not know", name(client))
        }
        Action::ExecuteLate(client) => {
            format!("the store executes the late swap of {}: {}", name(client), shown(next.present()))
        }
    }
}

fn shown(value: &Value) -> String {
    let owner = value.owner.map_or_else(|| "nobody".to_owned(), |owner| name(owner.into()).to_string());
    let queued = value.queued.map_or(String::new(), |waiter| format!(", and {} waits", name(waiter.into())));
    let token = if value.token > 0 { format!(" with the token {}", value.token) } else { String::new() };
    match value.owner {
        Some(_) => format!("{owner} has the lock{token}{queued}"),
        None => format!("{owner} has the lock{queued}"),
    }
}
