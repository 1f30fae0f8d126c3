//! One lock, its lease and its fence, with requests that are executed at one time and committed at another.
//!
//! What is left out, and why nothing is lost by that:
//!
//! * Waiters: a hand-over is a release and a grant in one transaction.
//! * Sharers: nothing that they write is fenced.
//! * Requests that find a row locked: they change nothing, and are made again.
//! * The way of an answer: a client counts its validity from before it has sent the request. It gets the answer with the
//!   commit, or never.
//! * Reading a token: a task that has read its token passes the lock on to no other, so it fences with what it holds or has lost.
//! * Paused clients: whether a lock is valid is looked at by no step of a fenced transaction.

use lock_testkit::stories::{Line, Tale, name};
use stateright::{Model, Property};

const CLIENTS: usize = 2;
/// For how long a grant and an extension last.
const TTL: u8 = 2;
/// How many tokens a grant reserves.
const BLOCK: u8 = 2;
/// The times of the clock by which tokens are made: it may be set in any way.
const CLOCKS: [u8; 2] = [0, 2 * BLOCK];

/// The rules, with at most one mistake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fences {
    pub(crate) mistake: Option<Mistake>,
    /// How often a client asks for the lock.
    pub(crate) attempts: u8,
    /// When the search ends.
    pub(crate) latest: u8,
}

/// What an implementation can get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// A fence compares, and locks no row.
    FenceOnlyReads,
    /// A fence compares with the fenced tokens, and not with the granted one.
    FenceByFencedTokensAlone,
    /// An acquisition passes over the locked row, and goes by what it can read.
    AskIgnoresLockedRow,
    /// An acquisition passes over the locked lease, and goes by what it can read.
    AskIgnoresRenewal,
    /// A lease that is extended counts from the beginning of the call, and not from when its row is locked.
    ExtensionsCountFromCall,
    /// A request that ends an expired lease takes the owner out of the row of the lock alone.
    ExpiredLeaseKeepsOwner,
    /// A crash of the server may undo the last grant.
    GrantsCommitAsynchronously,
    /// A crash of the server may undo the last extension.
    ExtensionsCommitAsynchronously,
    /// The removal of a name forgets its last token.
    RemovalForgetsTokens,
    /// A lock is passed on to another task of the process, though its token is known.
    KnownTokenIsPassedOn,
}

/// What the server and the clients know, and what has been so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct State {
    now: u8,
    tables: Tables,
    /// The tables as the disk has them, if they differ.
    on_disk: Option<Tables>,
    clients: [Client; CLIENTS],
    attempts: u8,
    has_crashed: bool,
    /// The largest token that a holder got, also without the server, and the largest that a committed transaction was fenced with.
    granted: u8,
    committed: u8,
    has_committed_late: bool,
    has_inverted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Tables {
    /// The acquisition that has the lock, and the one in the row of the lease.
    owner: Option<u8>,
    leased: Option<u8>,
    token: u8,
    last: u8,
    fenced: u8,
    /// When the lease of the owner expires.
    ends: u8,
    /// The largest last token of the names that were removed.
    floor: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Client {
    held: Option<Held>,
    /// A token that it had, with which a paused task may go on.
    past: Option<u8>,
    request: Option<Request>,
    /// An extension that it has given up, while the server has read the row of the lock for it.
    given_up: Option<GivenUp>,
    /// The token of its fenced transaction.
    fenced: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct GivenUp {
    acquisition: u8,
    read: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Held {
    acquisition: u8,
    token: u8,
    /// Whether its task has fenced with the token.
    has_fenced: bool,
    deadline: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    kind: Kind,
    acquisition: u8,
    sent: u8,
    /// When an extension has read the clock and the row of the lock, where it found its owner. It reads the row of the lease once it
    /// has locked that.
    read: Option<u8>,
    /// What its transaction has made of the tables, until it is committed. Their rows are locked meanwhile.
    made: Option<Tables>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Ask,
    Extend,
    Release,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    Send(usize, Kind),
    /// The server begins to execute an extension.
    Read(usize),
    /// The server executes a request, with this time for tokens.
    Execute(usize, u8),
    Commit(usize),
    /// The same, and the client never gets the answer.
    CommitUnanswered(usize),
    /// The connection is lost before the commit.
    Abort(usize),
    /// A client gives up an extension that the server goes on with.
    GiveUp(usize),
    /// The server executes and commits that.
    ExecuteGivenUp(usize),
    /// A task of a client hands the lock over to the next without the server.
    PassOn(usize),
    Fence(usize, u8),
    CommitFenced(usize),
    AbortFenced(usize),
    /// A request that grants nothing to one of the clients ends the expired lease, such as that of a reader.
    Expire,
    Remove,
    Crash,
}

pub(crate) const EXCLUSION: &str = "no two clients have a valid lock";
pub(crate) const NO_STALE_COMMIT: &str = "no earlier holder commits after a later grant";
pub(crate) const INCREASE: &str = "tokens increase";

const fn block_of(token: u8) -> u8 {
    token - token % BLOCK
}

impl Tale for Fences {
    fn step(&self, last: &State, action: Action) -> State {
        let mut state = *last;
        match action {
            Action::Tick => state.now += 1,
            Action::Send(client, kind) => state.send(client, kind),
            Action::Read(client) => {
                if let Some(request) = &mut state.clients[client].request {
                    request.read = Some(last.now);
                }
            }
            Action::Execute(client, clock) => self.execute(&mut state, client, clock),
            Action::Commit(client) => self.commit(&mut state, client, true),
            Action::CommitUnanswered(client) => self.commit(&mut state, client, false),
            Action::Abort(client) => state.clients[client].request = None,
            Action::GiveUp(client) => {
                let client = &mut state.clients[client];
                client.given_up = client.request.take().and_then(|request| {
                    Some(GivenUp { acquisition: request.acquisition, read: request.read? })
                });
            }
            Action::ExecuteGivenUp(client) => {
                let given_up = state.clients[client].given_up.take();
                let is_leased = |call: &GivenUp| {
                    last.tables.leased == Some(call.acquisition) && call.read < last.tables.ends
                };
                if let Some(call) = given_up.filter(is_leased) {
                    state.tables.ends = self.extended(call.read, last.now);
                    state.on_disk = None;
                }
            }
            Action::PassOn(client) => {
                let Client { held, past, .. } = &mut state.clients[client];
                if let Some(held) = held {
                    if self.passes_known_tokens_on() {
                        *past = Some(held.token);
                    }
                    (held.token, held.has_fenced) = (held.token + 1, false);
                    state.granted = state.granted.max(held.token);
                }
            }
            Action::Fence(client, token) => {
                let Client { held, fenced, .. } = &mut state.clients[client];
                *fenced = Some(token);
                if let Some(held) = held {
                    held.has_fenced |= held.token == token;
                }
            }
            Action::CommitFenced(client) => {
                if let Some(token) = state.clients[client].fenced.take() {
                    state.has_committed_late |= token < state.granted;
                    state.committed = state.committed.max(token);
                    state.tables.fenced = state.tables.fenced.max(token);
                    state.on_disk = None;
                }
            }
            Action::AbortFenced(client) => state.clients[client].fenced = None,
            Action::Expire => {
                state.tables.owner = None;
                if self.mistake != Some(Mistake::ExpiredLeaseKeepsOwner) {
                    state.tables.leased = None;
                }
                state.on_disk = None;
            }
            Action::Remove => {
                let Tables { last, floor, .. } = state.tables;
                let keeps = self.mistake != Some(Mistake::RemovalForgetsTokens);
                let floor = if keeps { floor.max(last) } else { floor };
                state.tables = Tables { last: floor, floor, ..NO_NAME };
                state.on_disk = None;
            }
            Action::Crash => {
                state.has_crashed = true;
                state.tables = state.on_disk.take().unwrap_or(state.tables);
                for client in &mut state.clients {
                    (client.request, client.given_up, client.fenced) = (None, None, None);
                }
            }
        }
        state
    }

    fn representative(state: &State) -> State {
        let [one, other] = state.clients;
        (*state).min(State { clients: [other, one], ..*state })
    }

    fn tell(&self, last: &State, action: Action, next: &State) -> Line {
        Line::new(self.told(last, action, next))
    }
}

const NO_NAME: Tables = Tables { owner: None, leased: None, token: 0, last: 0, fenced: 0, ends: 0, floor: 0 };

impl Model for Fences {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            tables: NO_NAME,
            on_disk: None,
            clients: [Client { held: None, past: None, request: None, given_up: None, fenced: None };
                CLIENTS],
            attempts: 0,
            has_crashed: false,
            granted: 0,
            committed: 0,
            has_committed_late: false,
            has_inverted: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.has_committed_late || state.has_inverted {
            return;
        }
        actions.extend((state.now < self.latest).then_some(Action::Tick));
        for client in 0..CLIENTS {
            self.requests_of(client, state, actions);
            self.fences_of(client, state, actions);
        }
        let is_unused = state.tables.owner.is_none() || state.tables.ends <= state.now;
        let is_removable = is_unused && !state.is_row_locked() && !state.is_lease_locked();
        let is_expired = state.tables.owner.is_some() && is_removable;
        actions.extend(is_expired.then_some(Action::Expire));
        actions.extend((is_removable && state.tables.last > state.tables.floor).then_some(Action::Remove));
        actions.extend((!state.has_crashed && state.on_disk.is_some()).then_some(Action::Crash));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        Some(Self::representative(&self.step(last, action)))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| {
                let is_valid = |client: &&Client| client.held.is_some_and(|held| state.now < held.deadline);
                state.clients.iter().filter(is_valid).count() < 2
            }),
            Property::always(NO_STALE_COMMIT, |_, state: &State| !state.has_committed_late),
            Property::always(INCREASE, |_, state: &State| !state.has_inverted),
            Property::sometimes("a holder whose lease has expired commits", |_, state: &State| {
                state.committed > 0 && state.tables.owner.is_some() && state.tables.ends <= state.now
            }),
            Property::sometimes("the second task of a block commits", |_, state: &State| {
                state.committed % BLOCK == 1
            }),
            Property::sometimes("a crash undoes a release", |_, state: &State| {
                let is_idle = |client: &Client| client.held.is_none() && client.past.is_some();
                state.has_crashed && state.tables.owner == Some(1) && state.clients.iter().any(is_idle)
            }),
            Property::sometimes("a renewal is committed beside a fenced transaction", |_, state: &State| {
                state.clients.iter().any(|client| {
                    client.fenced.is_some() && client.held.is_some_and(|held| held.deadline > TTL)
                })
            }),
        ]
    }
}

impl Fences {
    fn requests_of(&self, client: usize, state: &State, actions: &mut Vec<Action>) {
        let Client { held, request, given_up, .. } = state.clients[client];
        let is_late = given_up.is_some() && !state.is_lease_locked();
        actions.extend(is_late.then_some(Action::ExecuteGivenUp(client)));
        let Some(request) = request else {
            match held {
                Some(held) => {
                    actions.push(Action::Send(client, Kind::Extend));
                    actions.push(Action::Send(client, Kind::Release));
                    let may_pass_on = !held.has_fenced || self.passes_known_tokens_on();
                    let is_last = held.token % BLOCK + 1 == BLOCK;
                    actions.extend((may_pass_on && !is_last).then_some(Action::PassOn(client)));
                }
                None if state.attempts < self.attempts => actions.push(Action::Send(client, Kind::Ask)),
                None => {}
            }
            return;
        };

        if request.made.is_some() {
            actions.push(Action::Commit(client));
            actions.extend((request.kind != Kind::Release).then_some(Action::CommitUnanswered(client)));
            actions.push(Action::Abort(client));
        } else if self.is_unblocked(client, state, request.kind) {
            let has = state.tables.owner == Some(request.acquisition) && state.now < state.tables.ends;
            let reads = has && request.kind == Kind::Extend && request.read.is_none();
            actions.extend(reads.then_some(Action::Read(client)));
            let may_give_up = request.read.is_some() && given_up.is_none();
            actions.extend(may_give_up.then_some(Action::GiveUp(client)));
            let clocks = if request.kind == Kind::Ask { &CLOCKS[..] } else { &CLOCKS[..1] };
            actions.extend(clocks.iter().map(|clock| Action::Execute(client, *clock)));
        }
    }

    /// Whether a request finds no row locked that it needs.
    fn is_unblocked(&self, client: usize, state: &State, kind: Kind) -> bool {
        let sees_row = !state.is_row_locked() || self.mistake == Some(Mistake::AskIgnoresLockedRow);
        match kind {
            Kind::Ask => {
                let is_held = state.tables.owner.is_some() && state.now < state.tables.ends;
                let ignores = self.mistake == Some(Mistake::AskIgnoresRenewal);
                sees_row && (is_held || ignores || !state.is_lease_locked())
            }
            Kind::Extend => !state.is_lease_locked(),
            Kind::Release => {
                let is_own = |other: &Client| other.fenced.is_some();
                !state.is_row_locked() && !is_own(&state.clients[client])
            }
        }
    }

    fn fences_of(&self, client: usize, state: &State, actions: &mut Vec<Action>) {
        let Client { held, past, fenced, .. } = state.clients[client];
        if fenced.is_some() {
            actions.push(Action::CommitFenced(client));
            actions.push(Action::AbortFenced(client));
            return;
        }
        if self.mistake != Some(Mistake::FenceOnlyReads) && state.is_row_locked() {
            return;
        }
        let Tables { token: granted, fenced, .. } = state.tables;
        for token in held.map(|held| held.token).into_iter().chain(past) {
            let is_of_last_grant = block_of(token) == block_of(granted)
                || self.mistake == Some(Mistake::FenceByFencedTokensAlone);
            actions.extend((is_of_last_grant && fenced <= token).then_some(Action::Fence(client, token)));
        }
    }

    fn passes_known_tokens_on(&self) -> bool {
        self.mistake == Some(Mistake::KnownTokenIsPassedOn)
    }

    fn execute(&self, state: &mut State, client: usize, clock: u8) {
        let Some(request) = state.clients[client].request else { return };
        let (now, old) = (state.now, state.tables);
        let has = old.owner == Some(request.acquisition) && old.last > 0;
        let is_leased = (has || request.read.is_some()) && old.leased == Some(request.acquisition);
        let made = match request.kind {
            Kind::Ask if old.owner.is_none() || old.ends <= now => {
                let token = block_of(old.last + BLOCK).max(block_of(clock));
                let owner = Some(request.acquisition);
                Some(Tables { owner, leased: owner, token, last: token, ends: now + TTL, ..old })
            }
            Kind::Extend if is_leased && request.read.unwrap_or(now) < old.ends => {
                Some(Tables { ends: self.extended(request.read.unwrap_or(now), now), ..old })
            }
            Kind::Release if has => Some(Tables { owner: None, ..old }),
            _ => None,
        };
        let client = &mut state.clients[client];
        match made {
            Some(_) => client.request = Some(Request { made, ..request }),
            None => {
                client.request = None;
                if request.kind == Kind::Extend {
                    client.lose();
                }
            }
        }
    }

    /// When a lease ends that a call extends.
    fn extended(&self, read: u8, now: u8) -> u8 {
        TTL + if self.mistake == Some(Mistake::ExtensionsCountFromCall) { read } else { now }
    }

    fn commit(&self, state: &mut State, client: usize, is_answered: bool) {
        let Some(Request { kind, acquisition, sent, made: Some(made), .. }) =
            state.clients[client].request.take()
        else {
            return;
        };
        let before = state.tables;
        let deadline = sent + TTL;
        let is_asynchronous = match kind {
            Kind::Ask => {
                // Another transaction may have been committed meanwhile only where a row was ignored.
                state.tables = Tables { fenced: before.fenced, ..made };
                state.has_inverted |= made.token <= state.granted;
                state.granted = state.granted.max(made.token);
                if is_answered {
                    let held = Held { acquisition, token: made.token, has_fenced: false, deadline };
                    state.clients[client].held = Some(held);
                }
                self.mistake == Some(Mistake::GrantsCommitAsynchronously)
            }
            Kind::Extend => {
                if state.tables.leased == Some(acquisition) {
                    state.tables.ends = made.ends;
                }
                match &mut state.clients[client].held {
                    Some(held) if held.acquisition == acquisition && is_answered => held.deadline = deadline,
                    _ => {}
                }
                self.mistake == Some(Mistake::ExtensionsCommitAsynchronously)
            }
            Kind::Release => {
                state.tables.owner = None;
                true
            }
        };
        state.on_disk = is_asynchronous.then(|| state.on_disk.unwrap_or(before));
    }

    fn told(&self, last: &State, action: Action, next: &State) -> String {
        let kind = |client: usize| last.clients[client].request.map(|request| request.kind);
        match action {
            Action::Tick if last.ends().any(|ends| ends == next.now) => "the lease ends".to_owned(),
            Action::Tick => "time passes".to_owned(),
            Action::Send(client, Kind::Ask) => format!("{} asks for the lock", name(client)),
            Action::Send(client, Kind::Extend) => format!("{} asks to extend the lease", name(client)),
            Action::Send(client, Kind::Release) => format!("{} asks to release the lock", name(client)),
            Action::Read(client) => format!("the server reads the lock for the request of {}", name(client)),
            Action::Execute(client, _) => match (kind(client), next.clients[client].request) {
                (Some(Kind::Ask), Some(_)) => {
                    format!("the server executes the request of {}: granted", name(client))
                }
                (_, Some(_)) => format!("the server executes the request of {}", name(client)),
                (_, None) => format!("the server refuses the request of {}", name(client)),
            },
            Action::Commit(client) => {
                match next.clients[client].held.filter(|_| kind(client) == Some(Kind::Ask)) {
                    Some(held) => format!(
                        "the request of {} is committed: {} holds the lock with token {}",
                        name(client),
                        name(client),
                        held.token
                    ),
                    None => format!("the request of {} is committed", name(client)),
                }
            }
            Action::CommitUnanswered(client) => {
                format!("the request of {} is committed, and its answer is lost", name(client))
            }
            Action::Abort(client) => format!("the connection of {} is lost", name(client)),
            Action::GiveUp(client) => {
                format!("{} gives its request up, and the server does not", name(client))
            }
            Action::ExecuteGivenUp(client) => {
                format!("the server executes and commits the request that {} has given up", name(client))
            }
            Action::PassOn(client) => format!(
                "a task of {}{} passes the lock on to the next, which has token {}",
                name(client),
                if self.passes_known_tokens_on() { ", which knows its token," } else { "" },
                next.clients[client].held.map_or(0, |held| held.token)
            ),
            Action::Fence(client, token) => {
                format!("{} fences a transaction with token {token}", last.task(client, token))
            }
            Action::CommitFenced(client) => {
                let token = last.clients[client].fenced.unwrap_or_default();
                format!("{} commits its transaction", last.task(client, token))
            }
            Action::AbortFenced(client) => format!("{} rolls back its transaction", name(client)),
            Action::Expire => "a reader asks, and the server ends the lease".to_owned(),
            Action::Remove => "the name is removed, as nobody uses it".to_owned(),
            Action::Crash => "the server crashes, and is started without its last transaction".to_owned(),
        }
    }
}

impl State {
    fn send(&mut self, client: usize, kind: Kind) {
        let acquisition = match (self.clients[client].held, kind) {
            (Some(held), Kind::Extend | Kind::Release) => held.acquisition,
            _ => {
                self.attempts += 1;
                self.attempts
            }
        };
        if kind == Kind::Release {
            self.clients[client].lose();
        }
        self.clients[client].request =
            Some(Request { kind, acquisition, sent: self.now, read: None, made: None });
    }

    /// When the leases end that were granted, committed or not.
    fn ends(&self) -> impl Iterator<Item = u8> {
        let made = self.clients.iter().filter_map(|client| client.request?.made);
        made.chain([self.tables]).filter(|tables| tables.owner.is_some()).map(|tables| tables.ends)
    }

    /// The task of a client that has this token.
    fn task(&self, client: usize, token: u8) -> String {
        let is_earlier = |held: Held| held.token > token && block_of(held.token) == block_of(token);
        match self.clients[client].held.is_some_and(is_earlier) {
            true => format!("the earlier task of {}", name(client)),
            false => name(client).to_string(),
        }
    }

    fn is_locked_by(&self, kinds: &[Kind]) -> bool {
        let has = |request: Request| request.made.is_some() && kinds.contains(&request.kind);
        self.clients.iter().any(|client| client.request.is_some_and(has))
    }

    /// Whether a transaction has the row of the lock.
    fn is_row_locked(&self) -> bool {
        self.is_locked_by(&[Kind::Ask, Kind::Release])
            || self.clients.iter().any(|client| client.fenced.is_some())
    }

    fn is_lease_locked(&self) -> bool {
        self.is_locked_by(&[Kind::Ask, Kind::Extend])
    }
}

impl Client {
    fn lose(&mut self) {
        self.past = self.held.take().map(|held| held.token).or(self.past);
    }
}
