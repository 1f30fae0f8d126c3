//! The recipe as a state machine: what every client and every server may do next.
//!
//! Modelled as it is in `acquire.rs`, `wait.rs`, `own_node.rs` and `requests.rs`: a creation that reports whether the node is alone, the answer lost at
//! any step and found again by what the quorum commits and our own name, the watches of our node, its predecessor and the one before,
//! the grant without a listing over an unbroken connection, the session that is given up before the servers end it.
//! There are two servers, the leader and a follower that lags; which one a client talks to is open. Who holds the lock
//! may have come to write, and go on as a reader: another node takes the place of its own.
//!
//! Not modelled: time (a client gives its session up *before* a server ends it, which the model of the session
//! is about), numbers that run out, what is between two requests that are sent in one go, and the lost answer to a
//! downgrade. All clients want the lock alone.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use stateright::{Model, Property};

pub(crate) const CLIENTS: usize = 3;
/// In how many sessions a client tries.
const SESSIONS: u8 = 2;

/// What is modelled wrongly, to show that the model detects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// As the code does it.
    Sound,
    /// After a lost answer, any node of our name is ours, whatever its session.
    AdoptAnyNode,
    /// "The predecessor is deleted, and was the only one ahead" counts after a reconnection too.
    TrustOldListing,
    /// "The predecessor is deleted" is enough, even with another contender ahead of it.
    SkipListing,
    /// "The predecessor is deleted, and was the only one ahead" is enough, even if it was a writer.
    TrustEndOfWriter,
}

#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) variant: Variant,
    /// How many things go wrong in one run.
    pub(crate) faults: u8,
    /// How many transactions the follower may be behind; with none, there is only the leader.
    pub(crate) lag: u8,
    /// Whether some come to write, and may become readers.
    pub(crate) downgrades: bool,
    /// What was reached.
    pub(crate) reached: Arc<Mutex<BTreeSet<Seen>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// All nodes that ever were.
    nodes: Vec<Node>,
    /// How many transactions the follower does not know yet. All numbers of transactions count from its last.
    lag: u8,
    clients: [Client; CLIENTS],
    faults: u8,
    /// The highest token so far.
    token: Option<u8>,
    /// Whether a token was granted that is not higher than all before.
    inverted: bool,
    /// What the last step showed; taken out again before it is a state.
    seen: Option<Seen>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    /// Its sequence number.
    place: u8,
    /// Whether it is a writer's.
    writes: bool,
    client: usize,
    session: u8,
    /// When it was made and when it went, in transactions behind the follower's last.
    made: u8,
    gone: Option<u8>,
    /// Whether an operator removed it while it was the lowest: its owner held the lock, and learns of it later.
    revoked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    at: Option<Server>,
    /// The last transaction that it saw, behind which no server may be that it connects to.
    ahead: u8,
    session: u8,
    /// Whether the connection broke, and the quorum has committed nothing of it since.
    suspect: bool,
    /// Whether the lock is still wanted.
    wanted: bool,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Server {
    Leader,
    Follower,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// The leader made the node, and the client does not know yet.
    Made {
        node: u8,
        /// Whether the queue had no other contender then.
        alone: bool,
    },
    /// The answer to a creation was lost.
    Unsure,
    List {
        node: u8,
    },
    /// A listing showed these ahead.
    Place {
        node: u8,
        near: u8,
        far: Option<u8>,
    },
    Wait {
        node: u8,
        watch: Watches,
    },
    /// It is the client's turn, and the session must be confirmed.
    Confirm {
        node: u8,
    },
    Hold {
        node: u8,
    },
    Delete {
        node: u8,
    },
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watches {
    near: u8,
    far: Option<u8>,
    /// Whether the connection was up since before the listing.
    steady: bool,
    own_event: EventState,
    near_event: EventState,
    far_event: EventState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum EventState {
    No,
    /// A server is about to send it, after a reconnection and in any order.
    Soon,
    Yes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Which {
    Own,
    Near,
    Far,
}

/// A path of the recipe that the model must be able to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Seen {
    GrantWithoutListing,
    LostCreationFound,
    ListedAgain,
    StaleListing,
    RemovedWhileWaiting,
    BecameReader,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// Perhaps to write.
    Create(usize, Server, bool),
    Downgrade(usize),
    Answer(usize),
    Settle(usize),
    List(usize),
    Watch(usize),
    Tell(usize, Which),
    Wake(usize),
    Confirm(usize),
    Release(usize),
    Delete(usize),
    Apply,
    Reconnect(usize, Server),
    EndSession(usize, u8),
    // What goes wrong.
    Disconnect(usize),
    GiveUpSession(usize),
    GiveUp(usize),
    Remove(u8),
}

impl Seen {
    pub(crate) const ALL: [Self; 6] = [
        Self::GrantWithoutListing,
        Self::LostCreationFound,
        Self::ListedAgain,
        Self::StaleListing,
        Self::RemovedWhileWaiting,
        Self::BecameReader,
    ];
}

impl Action {
    const fn is_fault(self) -> bool {
        matches!(self, Self::Disconnect(_) | Self::GiveUpSession(_) | Self::GiveUp(_) | Self::Remove(_))
    }
}

impl Model for Recipe {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client =
            Client { at: None, ahead: 0, session: 0, suspect: false, wanted: true, phase: Phase::Idle };
        vec![State {
            nodes: Vec::new(),
            lag: 0,
            clients: std::array::from_fn(|_| client.clone()),
            faults: self.faults,
            token: None,
            inverted: false,
            seen: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for client in 0..CLIENTS {
            state.steps(client, self.servers(), actions);
        }
        if self.downgrades {
            state.writers(actions);
        }
        if state.lag > 0 {
            actions.push(Action::Apply);
        }
        if state.faults > 0 {
            state.faults(actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        if action.is_fault() {
            state.faults -= 1;
        }
        state.act(self.variant, action);
        if self.lag == 0 {
            state.catch_up(Server::Follower);
        }
        if let Some(seen) = state.seen.take() {
            self.reached.lock().unwrap().insert(seen);
        }
        // What would let the follower fall too far behind has to wait.
        (state.lag <= self.lag).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("exclusion", |_, state: &State| state.is_exclusive()),
            Property::always("tokens and grants in the order of the queue", |_, state: &State| {
                !state.inverted
            }),
            Property::always("nobody waits for ever, nothing is left", Self::is_live),
            Property::sometimes("everybody got the lock", |_, state: &State| {
                state.token == Some(2) && state.clients.iter().all(|client| client.phase == Phase::Done)
            }),
            Property::sometimes("a waiter has two before it", |_, state: &State| {
                state
                    .clients
                    .iter()
                    .any(|client| matches!(client.phase, Phase::Wait { watch, .. } if watch.far.is_some()))
            }),
            Property::sometimes("a lock is held in a second session", |_, state: &State| {
                state
                    .clients
                    .iter()
                    .any(|client| client.session > 0 && matches!(client.phase, Phase::Hold { .. }))
            }),
        ]
    }
}

impl Recipe {
    pub(crate) fn new(variant: Variant, faults: u8, lag: u8) -> Self {
        Self { variant, faults, lag, downgrades: false, reached: Arc::default() }
    }

    pub(crate) fn with_downgrades(self) -> Self {
        Self { downgrades: true, ..self }
    }

    const fn servers(&self) -> &'static [Server] {
        if self.lag == 0 { &[Server::Leader] } else { &[Server::Leader, Server::Follower] }
    }

    /// A state in which nothing can happen unless something else goes wrong is one in which all is done.
    fn is_live(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        (0..CLIENTS).for_each(|client| state.steps(client, self.servers(), &mut actions));
        !actions.is_empty()
            || state.lag > 0
            || (state.clients.iter().all(|client| client.phase == Phase::Done)
                && state.nodes.iter().all(|node| node.gone.is_some()))
    }
}

impl State {
    pub(crate) fn is_exclusive(&self) -> bool {
        self.holders().count() <= 1
    }

    /// The clients that take the lock for theirs, but for those whose lock an operator broke.
    fn holders(&self) -> impl Iterator<Item = usize> {
        self.clients.iter().enumerate().filter_map(|(number, client)| match client.phase {
            Phase::Hold { node } if !self.nodes[node as usize].revoked => Some(number),
            _ => None,
        })
    }

    /// What a client and its servers can do.
    fn steps(&self, number: usize, servers: &[Server], actions: &mut Vec<Action>) {
        let client = &self.clients[number];
        let given_up = |session| session < client.session || client.phase == Phase::Done;
        let left =
            (0..SESSIONS).filter(|&session| given_up(session) && !self.nodes_of(number, session).is_empty());
        actions.extend(left.map(|session| Action::EndSession(number, session)));
        // They are alike: the first nodes are made in their order.
        if client.phase == Phase::Idle && (number == 0 || self.clients[number - 1].phase != Phase::Idle) {
            let servers = servers.iter().copied().filter(|&server| client.at.is_none_or(|at| at == server));
            actions.extend(servers.map(|server| Action::Create(number, server, false)));
        }
        let Some(at) = client.at else {
            if !matches!(client.phase, Phase::Idle | Phase::Done) {
                let open = servers.iter().copied().filter(|&server| self.zxid_of(server) >= client.ahead);
                actions.extend(open.map(|server| Action::Reconnect(number, server)));
            }
            // An event that had come before is seen now too.
            if matches!(client.phase, Phase::Wait { watch, .. } if watch.has_event()) {
                actions.push(Action::Wake(number));
            }
            return;
        };
        match client.phase {
            Phase::Made { node, .. } if self.nodes[node as usize].made <= self.zxid_of(at) => {
                actions.push(Action::Answer(number));
            }
            Phase::Unsure => actions.push(Action::Settle(number)),
            Phase::List { .. } => actions.push(Action::List(number)),
            Phase::Place { .. } => actions.push(Action::Watch(number)),
            Phase::Wait { watch, .. } => {
                for (which, notified) in [
                    (Which::Own, watch.own_event),
                    (Which::Near, watch.near_event),
                    (Which::Far, watch.far_event),
                ] {
                    if notified == EventState::Soon {
                        actions.push(Action::Tell(number, which));
                    }
                }
                if watch.has_event() {
                    actions.push(Action::Wake(number));
                }
            }
            Phase::Confirm { .. } => actions.push(Action::Confirm(number)),
            Phase::Hold { .. } => actions.push(Action::Release(number)),
            Phase::Delete { .. } => actions.push(Action::Delete(number)),
            Phase::Idle | Phase::Made { .. } | Phase::Done => {}
        }
    }

    /// What writers can do.
    fn writers(&self, actions: &mut Vec<Action>) {
        let creations: Vec<_> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Create(number, server, false) => Some(Action::Create(*number, *server, true)),
                _ => None,
            })
            .collect();
        actions.extend(creations);
        for (number, client) in self.clients.iter().enumerate() {
            if let Client { at: Some(_), phase: Phase::Hold { node }, .. } = client
                && self.nodes[*node as usize].writes
                && self.nodes[*node as usize].gone.is_none()
            {
                actions.push(Action::Downgrade(number));
            }
        }
    }

    /// What can go wrong.
    fn faults(&self, actions: &mut Vec<Action>) {
        for (number, client) in self.clients.iter().enumerate() {
            if matches!(client.phase, Phase::Idle | Phase::Done) {
                continue;
            }
            if client.at.is_some() {
                actions.push(Action::Disconnect(number));
            }
            actions.push(Action::GiveUpSession(number));
            if client.wanted && !matches!(client.phase, Phase::Hold { .. } | Phase::Delete { .. }) {
                actions.push(Action::GiveUp(number));
            }
        }
        actions.extend(self.lists(Server::Leader).into_iter().map(Action::Remove));
    }

    fn act(&mut self, variant: Variant, action: Action) {
        match action {
            Action::Create(number, server, writes) => self.create(number, server, writes),
            Action::Downgrade(number) => self.downgrade(number),
            Action::Answer(number) => self.answer(number),
            Action::Settle(number) => self.settle(variant, number),
            Action::List(number) => self.list(number),
            Action::Watch(number) => self.watch(number),
            Action::Tell(number, which) => self.tell(number, which),
            Action::Wake(number) => self.wake(variant, number),
            Action::Confirm(number) => self.confirm(number),
            Action::Release(number) | Action::Delete(number) => self.delete(number),
            Action::Apply => self.apply(),
            Action::Reconnect(number, server) => self.reconnect(number, server),
            Action::EndSession(number, session) => self.remove(&self.nodes_of(number, session)),
            Action::Disconnect(number) => self.disconnect(number),
            Action::GiveUpSession(number) => self.give_up_session(number),
            Action::GiveUp(number) => self.give_up(number),
            Action::Remove(node) => self.remove_by_hand(node),
        }
    }
}

/// What the servers do.
impl State {
    /// The leader makes a node.
    fn create(&mut self, number: usize, server: Server, writes: bool) {
        let (node, alone) = (self.nodes.len() as u8, self.lists(Server::Leader).is_empty());
        self.lag += 1;
        let (session, made) = (self.clients[number].session, self.lag);
        let (place, gone, revoked) = (node, None, false);
        self.nodes.push(Node { place, writes, client: number, session, made, gone, revoked });
        (self.clients[number].at, self.clients[number].phase) = (Some(server), Phase::Made { node, alone });
    }

    /// The leader puts the node of a reader in the place of a writer's.
    fn downgrade(&mut self, number: usize) {
        let Phase::Hold { node } = self.clients[number].phase else { return };
        let reader = self.nodes.len() as u8;
        let mut made = self.nodes[node as usize].clone();
        (made.made, made.writes) = (self.lag + 1, false);
        self.nodes.push(made);
        self.remove(&[node]);
        self.clients[number].phase = Phase::Hold { node: reader };
        self.seen = Some(Seen::BecameReader);
    }

    /// The leader deletes nodes. The clients connected to it learn of it at once.
    fn remove(&mut self, gone: &[u8]) {
        self.lag += 1;
        for &node in gone {
            self.nodes[node as usize].gone = Some(self.lag);
        }
        self.notify(Server::Leader, gone);
    }

    /// The follower learns of the next transaction.
    fn apply(&mut self) {
        self.lag -= 1;
        let mut gone = Vec::new();
        for (number, node) in (0..).zip(&mut self.nodes) {
            node.made = node.made.saturating_sub(1);
            if node.gone == Some(1) {
                gone.push(number);
            }
            node.gone = node.gone.map(|at| at.saturating_sub(1));
        }
        for client in &mut self.clients {
            client.ahead = client.ahead.saturating_sub(1);
        }
        self.notify(Server::Follower, &gone);
    }

    fn catch_up(&mut self, server: Server) {
        while server == Server::Follower && self.lag > 0 {
            self.apply();
        }
    }

    fn notify(&mut self, server: Server, gone: &[u8]) {
        let zxid = self.zxid_of(server);
        for client in self.clients.iter_mut().filter(|client| client.at == Some(server)) {
            let Phase::Wait { node, watch } = &mut client.phase else { continue };
            // Nothing overtakes the events of a reconnection.
            let news = if watch.each(*node).any(|(_, event)| *event == EventState::Soon) {
                EventState::Soon
            } else {
                EventState::Yes
            };
            let mut notified = false;
            for (node, event) in watch.each(*node) {
                if *event == EventState::No && gone.contains(&node) {
                    *event = news;
                    notified |= news == EventState::Yes;
                }
            }
            if notified {
                client.ahead = client.ahead.max(zxid);
            }
        }
    }

    /// The last transaction that a server knows, from the follower's on.
    const fn zxid_of(&self, server: Server) -> u8 {
        match server {
            Server::Leader => self.lag,
            Server::Follower => 0,
        }
    }

    /// Whether a server shows this node.
    fn shows(&self, server: Server, node: u8) -> bool {
        let (node, zxid) = (&self.nodes[node as usize], self.zxid_of(server));
        node.made <= zxid && node.gone.is_none_or(|gone| gone > zxid)
    }

    fn lists(&self, server: Server) -> Vec<u8> {
        let mut listed: Vec<_> =
            (0..self.nodes.len() as u8).filter(|&node| self.shows(server, node)).collect();
        listed.sort_by_key(|node| self.place_of(*node));
        listed
    }

    fn place_of(&self, node: u8) -> u8 {
        self.nodes[node as usize].place
    }

    fn nodes_of(&self, number: usize, session: u8) -> Vec<u8> {
        let of = |node: &Node| node.client == number && node.session == session && node.gone.is_none();
        (0..).zip(&self.nodes).filter(|(_, node)| of(node)).map(|(at, _)| at).collect()
    }

    fn remove_by_hand(&mut self, node: u8) {
        self.nodes[node as usize].revoked = self.lists(Server::Leader).first() == Some(&node);
        self.remove(&[node]);
    }
}

/// What the clients do.
impl State {
    /// The answer to the creation.
    fn answer(&mut self, number: usize) {
        let Client { at: Some(server), phase: Phase::Made { node, alone }, .. } = self.clients[number] else {
            return;
        };
        self.see(number, server);
        match self.clients[number].wanted {
            _ if alone => self.granted(number, node),
            true => self.clients[number].phase = Phase::List { node },
            false => self.clients[number].phase = Phase::Delete { node },
        }
    }

    /// Finds out what became of a creation.
    fn settle(&mut self, variant: Variant, number: usize) {
        let Some(server) = self.clients[number].at else { return };
        self.catch_up(server);
        self.see(number, server);
        let session = self.clients[number].session;
        let ours = |node: &Node| {
            node.client == number && (node.session == session || variant == Variant::AdoptAnyNode)
        };
        let found = self.lists(server).into_iter().find(|&node| ours(&self.nodes[node as usize]));
        let client = &mut self.clients[number];
        client.suspect = false;
        client.phase = match found {
            Some(node) if client.wanted => Phase::List { node },
            Some(node) => Phase::Delete { node },
            None if client.wanted => Phase::Idle,
            None => Phase::Done,
        };
        if client.phase == Phase::Done {
            client.end();
        }
        if found.is_some() {
            self.seen = Some(Seen::LostCreationFound);
        }
    }

    fn list(&mut self, number: usize) {
        let Client { at: Some(server), phase: Phase::List { node }, .. } = self.clients[number] else {
            return;
        };
        self.look(number, server, node);
    }

    /// Reads a listing.
    fn look(&mut self, number: usize, server: Server, node: u8) {
        if server == Server::Follower && self.lag > 0 {
            self.seen = Some(Seen::StaleListing);
        }
        self.see(number, server);
        let listed = self.lists(server);
        let place = self.place_of(node);
        let mut before = listed.iter().copied().filter(|&other| self.place_of(other) < place).rev();
        let (near, far) = (before.next(), before.next());
        if !listed.contains(&node) {
            return self.start_again(number);
        }
        match near {
            Some(_) if !self.clients[number].wanted => self.clients[number].phase = Phase::Delete { node },
            None => self.granted(number, node),
            Some(near) => self.clients[number].phase = Phase::Place { node, near, far },
        }
    }

    /// Watches the own node and those ahead.
    fn watch(&mut self, number: usize) {
        let Client { at: Some(server), phase: Phase::Place { node, near, far }, .. } = self.clients[number]
        else {
            return;
        };
        self.see(number, server);
        if !self.shows(server, node) {
            return self.start_again(number);
        }
        self.clients[number].phase = if [Some(near), far]
            .into_iter()
            .flatten()
            .all(|other| self.shows(server, other))
        {
            let (own_event, near_event, far_event) = (EventState::No, EventState::No, EventState::No);
            Phase::Wait { node, watch: Watches { near, far, steady: true, own_event, near_event, far_event } }
        } else {
            Phase::List { node }
        };
    }

    fn tell(&mut self, number: usize, which: Which) {
        let Client { at: Some(server), phase: Phase::Wait { watch, .. }, .. } = &mut self.clients[number]
        else {
            return;
        };
        let server = *server;
        *watch.event(which) = EventState::Yes;
        self.see(number, server);
    }

    /// Looks at the events that came.
    fn wake(&mut self, variant: Variant, number: usize) {
        let Phase::Wait { node, watch } = self.clients[number].phase else { return };
        if watch.own_event == EventState::Yes {
            self.seen = Some(Seen::RemovedWhileWaiting);
            return self.start_again(number);
        }
        if watch.near_event == EventState::Yes {
            let writer = self.nodes[watch.near as usize].writes && variant != Variant::TrustEndOfWriter;
            let last = (watch.far.is_none() && !writer) || variant == Variant::SkipListing;
            let steady = watch.steady || variant == Variant::TrustOldListing;
            if last && steady {
                self.seen = Some(Seen::GrantWithoutListing);
                return self.granted(number, node);
            }
            self.seen = Some(Seen::ListedAgain);
        }
        self.clients[number].phase = Phase::List { node };
    }

    /// It is the client's turn by the tree.
    fn granted(&mut self, number: usize, node: u8) {
        let token = self.place_of(node);
        let client = &mut self.clients[number];
        client.phase = match client {
            Client { wanted: false, .. } => Phase::Delete { node },
            Client { suspect: true, .. } => Phase::Confirm { node },
            _ => {
                self.inverted |=
                    self.token.is_some_and(|last| last >= token) && !self.nodes[node as usize].revoked;
                self.token = self.token.max(Some(token));
                Phase::Hold { node }
            }
        };
    }

    /// A round trip to the quorum, after which the session is valid again.
    fn confirm(&mut self, number: usize) {
        let Client { at: Some(server), phase: Phase::Confirm { node }, .. } = self.clients[number] else {
            return;
        };
        self.catch_up(server);
        self.see(number, server);
        self.clients[number].suspect = false;
        self.granted(number, node);
    }

    fn delete(&mut self, number: usize) {
        let (Phase::Hold { node } | Phase::Delete { node }) = self.clients[number].phase else { return };
        self.clients[number].end();
        if self.nodes[node as usize].gone.is_none() {
            self.remove(&[node]);
        }
    }

    /// The own node is deleted, and so the position is lost.
    fn start_again(&mut self, number: usize) {
        let client = &mut self.clients[number];
        if client.wanted {
            client.phase = Phase::Idle;
        } else {
            client.end();
        }
    }

    fn give_up(&mut self, number: usize) {
        let client = &mut self.clients[number];
        client.wanted = false;
        client.phase = match client.phase {
            Phase::List { node }
            | Phase::Place { node, .. }
            | Phase::Wait { node, .. }
            | Phase::Confirm { node } => Phase::Delete { node },
            phase => phase,
        };
    }

    fn disconnect(&mut self, number: usize) {
        let client = &mut self.clients[number];
        (client.at, client.suspect) = (None, true);
        match &mut client.phase {
            phase @ Phase::Made { .. } => *phase = Phase::Unsure,
            Phase::Wait { watch, .. } => {
                watch.steady = false;
                for which in [Which::Own, Which::Near, Which::Far] {
                    let event = watch.event(which);
                    if *event == EventState::Soon {
                        *event = EventState::No;
                    }
                }
            }
            _ => {}
        }
    }

    /// The same session continues on another server, which sends the missed events.
    fn reconnect(&mut self, number: usize, server: Server) {
        let mut client = self.clients[number].clone();
        client.at = Some(server);
        if let Phase::Wait { node, watch } = &mut client.phase {
            for (node, event) in watch.each(*node) {
                if *event == EventState::No && !self.shows(server, node) {
                    *event = EventState::Soon;
                }
            }
        }
        self.clients[number] = client;
        self.see(number, server);
    }

    /// The deadline of a session has passed, or a server reported that it expired.
    fn give_up_session(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let held = matches!(client.phase, Phase::Hold { .. } | Phase::Delete { .. });
        if held || !client.wanted || client.session + 1 == SESSIONS {
            client.end();
            return;
        }
        client.session += 1;
        (client.at, client.ahead, client.suspect) = (None, 0, false);
        client.phase = Phase::Idle;
    }

    fn see(&mut self, number: usize, server: Server) {
        let zxid = self.zxid_of(server);
        let client = &mut self.clients[number];
        client.ahead = client.ahead.max(zxid);
    }
}

impl Client {
    /// Nothing matters any more.
    const fn end(&mut self) {
        (self.at, self.ahead, self.suspect, self.wanted) = (None, 0, false, true);
        self.phase = Phase::Done;
    }
}

impl Watches {
    /// The watched nodes, and their events.
    fn each(&mut self, own: u8) -> impl Iterator<Item = (u8, &mut EventState)> {
        let far = self.far.map(|far| (far, &mut self.far_event));
        [(own, &mut self.own_event), (self.near, &mut self.near_event)].into_iter().chain(far)
    }

    const fn event(&mut self, which: Which) -> &mut EventState {
        match which {
            Which::Own => &mut self.own_event,
            Which::Near => &mut self.near_event,
            Which::Far => &mut self.far_event,
        }
    }

    fn has_event(&self) -> bool {
        [self.own_event, self.near_event, self.far_event].contains(&EventState::Yes)
    }
}

/// The text of a step.
impl Action {
    /// The text of this step, which led from one state to the other.
    pub(crate) fn tell(self, before: &State, after: &State) -> String {
        let deed = match self {
            Self::Create(number, _, writes) => {
                let again = if before.clients[number].session > 0 { " in a new session" } else { "" };
                let why = if writes { ", to write" } else { "" };
                format!("{} creates node {}{again}{why}.", name(number), before.nodes.len())
            }
            Self::Downgrade(number) => {
                let Phase::Hold { node } = before.clients[number].phase else { unreachable!("it holds it") };
                let reader = before.nodes.len();
                format!(
                    "{} continues as a reader: node {reader} takes the place of node {node}.",
                    name(number)
                )
            }
            Self::Answer(number) => match before.clients[number].phase {
                Phase::Made { alone: true, .. } => {
                    format!("{} gets the answer: the queue is empty but for it.", name(number))
                }
                _ => format!("{} gets the answer.", name(number)),
            },
            Self::Settle(number) => match after.clients[number].phase {
                Phase::List { node } => {
                    format!("{} looks for its node and takes node {node} for it.", name(number))
                }
                _ => format!("{} looks for its node and finds none.", name(number)),
            },
            Self::List(number) => format!("{} lists the queue.", name(number)),
            Self::Watch(number) => {
                let Phase::Wait { watch, .. } = after.clients[number].phase else {
                    return format!("{} finds the queue changed.", name(number));
                };
                let far = watch.far.map(|far| format!(" and node {far}")).unwrap_or_default();
                format!("{} watches its own node, node {}{far}.", name(number), watch.near)
            }
            Self::Tell(number, which) => {
                format!(
                    "{} is notified of what it missed: {} was deleted.",
                    name(number),
                    which.tell(before, number)
                )
            }
            Self::Wake(number) => format!("{} acts on its notification.", name(number)),
            Self::Confirm(number) => format!("{} has its session confirmed.", name(number)),
            Self::Release(number) | Self::Delete(number) => format!("{} deletes its node.", name(number)),
            Self::Apply => "The follower catches up with one transaction.".to_owned(),
            Self::Reconnect(number, _) => {
                format!("{} is connected again, in the same session.", name(number))
            }
            Self::EndSession(number, _) => {
                format!("The servers end the old session of {}, and its node goes.", name(number))
            }
            Self::Disconnect(number) => match before.clients[number].phase {
                Phase::Made { .. } => {
                    format!("{} loses its connection, and the answer to its creation with it.", name(number))
                }
                _ => format!("{} loses its connection.", name(number)),
            },
            Self::GiveUpSession(number) => {
                format!(
                    "{} has not heard from the servers for long and gives up its session, which they still keep.",
                    name(number)
                )
            }
            Self::GiveUp(number) => format!("{} does not want the lock any more.", name(number)),
            Self::Remove(node) => {
                format!("Node {node} is removed: its owner gave up, or an operator did it.")
            }
        };
        let new = after.holders().find(|&holder| !before.holders().any(|other| other == holder));
        match new {
            Some(holder) => format!("{deed} **{} holds the lock.**", name(holder)),
            None => deed,
        }
    }
}

impl Which {
    fn tell(self, state: &State, number: usize) -> String {
        match (self, state.clients[number].phase) {
            (Self::Near, Phase::Wait { watch, .. }) => format!("node {}", watch.near),
            (Self::Far, Phase::Wait { watch: Watches { far: Some(far), .. }, .. }) => format!("node {far}"),
            _ => "its own node".to_owned(),
        }
    }
}

fn name(number: usize) -> &'static str {
    ["A", "B", "C"][number]
}
