//! Who holds a lock on five masters: claims, votes, leases, extensions, and the faults that may come between.
//!
//! Time goes in ticks, and whatever ends is a number of ticks that are left, so that there is no last moment at which
//! the search would stop. What is left out, and why nothing is lost by that:
//!
//! * A request is in the network from when it is sent, arrives when the search says so, never, or several times. So
//!   loss, delay and duplication are not actions of their own; nor is a client that pauses, as nobody has to act.
//! * An answer is in the network from when it is given, and counts when a quorum of them does.
//! * A refusal does nothing: it is the same as a request that does not arrive.
//! * The wait queue is a hint: a master may hand the lock over to any client that asks, whenever the lock is free or its release
//!   arrives. The notification is in the network from then on.
//! * Masters and clients are interchangeable: of all states that differ only in their order, one is searched.

use lock_testkit::stories::{Line, Tale, name, orders};
use stateright::{Model, Property};

/// How many masters there are.
pub(crate) const MASTERS: usize = 5;
/// How many of them have one in common with any other so many.
pub(crate) const QUORUM: u8 = 3;
/// The time to live of a key, in ticks.
const TTL: u8 = 3;
/// The drift margin: a key may expire this much early, and a client counts its lease as this much shorter.
const MARGIN: u8 = 1;
/// The time to live of a key that is handed over.
const GRACE: u8 = 2;

/// The protocol, with the faults that are allowed to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Redlock<const CLIENTS: usize> {
    /// Whether the clocks of the masters may be as fast as the margin allows.
    pub(crate) drift: bool,
    /// How much longer a key lives than its client treats the lease as valid.
    pub(crate) margin: u8,
    /// How often a master may restart without its data. Without a quarantine, a key that ends before its time is the same.
    pub(crate) restarts: u8,
    /// For how many ticks a restarted master does not vote.
    pub(crate) quarantine: u8,
    /// Whether a restart may bring back any earlier state of the master, or loses all data.
    pub(crate) rolls_back: bool,
    /// Whether clients extend their leases.
    pub(crate) extends: bool,
    /// Whether masters hand the lock over.
    pub(crate) hands_over: bool,
    pub(crate) mistake: Option<Mistake>,
}

/// A mistake of a client, in confirming leases during a quarantine, or in taking over what was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// A lease counts from the last answer.
    CountsFromAnswer,
    /// A master in quarantine confirms any lease.
    ConfirmsAny,
    /// It confirms a lease for which its vote has expired.
    ConfirmsExpired,
    /// It confirms a lease for which its vote has not expired since the answer, rather than since the request.
    ConfirmsFromAnswer,
    /// It confirms a lease whose claim it has granted in the quarantine.
    ConfirmsNewClaims,
    /// A vote that was given in quarantine counts when its answer arrives after that.
    CountsLateAnswers,
    /// A minority of masters is enough.
    CountsMinority,
    /// A master that does not vote counts.
    CountsQuarantined,
    /// The grace period counts from the notification.
    CountsFromNotification,
    /// A client that was handed the lock, and asks again, gets answers and no longer keys.
    AsksWithoutExtending,
    /// A client that gave up asks again with the same owner id.
    ReusesOwner,
}

/// The quarantine that is right: as long as the longest time to live.
pub(crate) const LONGEST_TTL: u8 = TTL;

/// The shared state, and what has gone wrong so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct State<const CLIENTS: usize> {
    clients: [Client; CLIENTS],
    masters: [Master; MASTERS],
    restarts: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Client {
    Idle,
    /// It has sent its claims; if it wins, its guard is valid for this much longer.
    Asking {
        left: u8,
        /// The same for a lock that it was handed over: from its first claim on.
        handed_over: u8,
    },
    /// Its guard is valid, for this much longer.
    Holding {
        left: u8,
        extending: Option<Extending>,
    },
}

/// An extension in flight, and how much longer it would make the guard valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Extending {
    left: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Master {
    key: Option<Key>,
    /// The clients, by their bits, for which a yes to what they ask now is in the network.
    said_yes: u8,
    /// The same, of notifications that the lock was handed over.
    handed_over: u8,
    /// For how much longer it does not vote.
    quarantine: u8,
    /// For how much longer its vote for each client counts, by the client's clock. Meanwhile it confirms that client's lease, also
    /// in quarantine. Zero where it makes no difference.
    counts: [u8; 3],
    /// For how long its yes to each client, from the quarantine, does not count: a mistake, if it ever does.
    late: [u8; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    /// `None` when it is of an attempt that is over.
    owner: Option<u8>,
    left: u8,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A tick passes.
    Tick,
    /// A client sends a claim of a new attempt to all masters.
    Ask { client: usize },
    /// A claim arrives, and is granted.
    Grant { master: usize, client: usize, drifts: bool },
    /// A claim of an attempt that is over arrives.
    GrantLate { master: usize },
    /// A client counts a quorum of votes.
    Win { client: usize },
    /// A master that is free, or at which a release arrives, hands the lock over.
    HandOver { master: usize, client: usize, drifts: bool },
    /// A client counts a quorum that has handed the lock over.
    TakeOver { client: usize },
    /// A client sends another claim to all masters, with the same owner id.
    AskAgain { client: usize },
    /// A client gives an attempt up.
    GiveUp { client: usize },
    /// A client sends an extension to all masters.
    Extend { client: usize },
    /// An extension arrives.
    Prolong { master: usize, client: usize, drifts: bool },
    /// A client counts a quorum of answers to its extension.
    Confirm { client: usize },
    /// A client gives an extension up.
    Forget { client: usize },
    /// A guard becomes invalid, and its client sends a release to all masters.
    Release { client: usize },
    /// A release arrives.
    Erase { master: usize },
    /// A master restarts, without its data or with that of earlier.
    Restart { master: usize, key: Option<Key> },
}

/// The property that is checked.
pub(crate) const EXCLUSION: &str = "no two guards are valid at the same time";

impl<const CLIENTS: usize> Redlock<CLIENTS> {
    /// Nothing goes wrong that Redlock promises to withstand.
    pub(crate) const SOUND: Self = Self {
        drift: true,
        margin: MARGIN,
        restarts: 0,
        quarantine: 0,
        rolls_back: false,
        extends: true,
        hands_over: false,
        mistake: None,
    };

    /// The same with masters that hand the lock over. A lease that was taken over is extended as any other, which is left out.
    pub(crate) const HANDS_OVER: Self =
        Self { drift: false, extends: false, hands_over: true, ..Self::SOUND };

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// How long a client treats a lease as valid.
    fn belief(&self) -> u8 {
        TTL - self.margin
    }

    /// Whether a master confirms the lease of a client.
    fn confirms(&self, master: &Master, client: usize) -> bool {
        master.quarantine == 0 || self.makes(Mistake::ConfirmsAny) || master.counts[client] > 0
    }

    /// Whether it makes a difference for how long a vote of this master counts: it confirms extensions in quarantine.
    fn needs_counts(&self, master: &Master, restarts: u8) -> bool {
        self.extends && self.quarantine > 0 && (restarts > 0 || master.quarantine > 0)
    }

    /// For how long votes count that did for so long before a tick.
    fn counts_after_tick(&self, counts: u8) -> u8 {
        let never_ends = counts > 0 && self.makes(Mistake::ConfirmsExpired);
        counts.saturating_sub(1).max(u8::from(never_ends))
    }

    /// How many masters have to hand the lock over.
    fn handed_over_quorum(&self) -> u8 {
        if self.makes(Mistake::CountsMinority) { QUORUM - 1 } else { QUORUM }
    }
}

impl<const CLIENTS: usize> Tale for Redlock<CLIENTS> {
    fn step(&self, last: &State<CLIENTS>, action: Action) -> State<CLIENTS> {
        let mut state = *last;
        match action {
            Action::Tick => {
                for counts in state.masters.iter_mut().flat_map(|master| &mut master.counts) {
                    *counts = self.counts_after_tick(*counts);
                }
                state.masters.iter_mut().for_each(Master::late_answers);
                state.tick();
            }
            Action::Ask { client } => {
                state.clients[client] = Client::Asking { left: self.belief(), handed_over: GRACE - MARGIN };
            }
            Action::AskAgain { client } => {
                let Client::Asking { handed_over, .. } = state.clients[client] else { unreachable!() };
                state.clients[client] = Client::Asking { left: self.belief(), handed_over };
                state.clear_votes(client);
            }
            Action::Grant { master, client, drifts } => {
                if state.masters[master].quarantine == 0 || self.makes(Mistake::ConfirmsNewClaims) {
                    // Of a holder, it puts back the key that the master lacks.
                    let left = state.asking_left(client).unwrap_or_else(|| self.belief());
                    state.count(master, client, left);
                }
                if self.makes(Mistake::CountsLateAnswers) && state.is_asking(client) {
                    state.masters[master].late[client] = state.masters[master].quarantine;
                }
                state.grant(master, client, drifts, !self.makes(Mistake::AsksWithoutExtending));
            }
            Action::HandOver { master, client, drifts } => {
                let counts = self.makes(Mistake::CountsQuarantined) || state.masters[master].quarantine == 0;
                state.hand_over(master, client, drifts, counts);
            }
            Action::TakeOver { client } => {
                let Client::Asking { handed_over, .. } = state.clients[client] else { unreachable!() };
                let from_now = self.makes(Mistake::CountsFromNotification);
                let left = if from_now { GRACE - MARGIN } else { handed_over };
                state.clients[client] = Client::Holding { left, extending: None };
                state.clear_answers(client);
            }
            Action::GrantLate { master } => state.masters[master].key = Some(Key { owner: None, left: TTL }),
            Action::Win { client } => {
                let Client::Asking { left, .. } = state.clients[client] else { unreachable!() };
                let left = if self.makes(Mistake::CountsFromAnswer) { self.belief() } else { left };
                state.clients[client] = Client::Holding { left, extending: None };
                state.clear_answers(client);
            }
            Action::GiveUp { client } if self.makes(Mistake::ReusesOwner) => {
                let notified = state.masters.map(|master| master.handed_over);
                state.end(client);
                for (master, notified) in state.masters.iter_mut().zip(notified) {
                    master.handed_over = notified;
                }
            }
            Action::GiveUp { client } | Action::Release { client } => state.end(client),
            Action::Extend { client } => state.extend(client, Some(Extending { left: self.belief() })),
            Action::Prolong { master, client, drifts } => {
                let counts = self.confirms(&state.masters[master], client);
                if counts && let Some(Extending { left }) = state.extending(client) {
                    state.count(master, client, left);
                }
                state.prolong(master, client, drifts, counts);
            }
            Action::Confirm { client } => {
                let Client::Holding { extending: Some(Extending { left }), .. } = state.clients[client]
                else {
                    unreachable!()
                };
                if self.makes(Mistake::ConfirmsFromAnswer) {
                    state.count_from_answer(client, self.belief());
                }
                state.clients[client] = Client::Holding { left, extending: None };
                state.clear_answers(client);
            }
            Action::Forget { client } => state.extend(client, None),
            Action::Erase { master } => state.masters[master].key = None,
            Action::Restart { master, key } => {
                state.restarts -= 1;
                state.masters[master].key = key;
                state.masters[master].quarantine = self.quarantine;
            }
        }
        for master in &mut state.masters {
            if !self.needs_counts(master, state.restarts) {
                master.counts = Default::default();
            }
        }
        state
    }

    fn representative(state: &State<CLIENTS>) -> State<CLIENTS> {
        state.representative()
    }

    fn tell(&self, last: &State<CLIENTS>, action: Action, next: &State<CLIENTS>) -> Line {
        let fast = |drifts: bool| if drifts { ", by a fast clock" } else { "" };
        match action {
            Action::Tick => next.told_tick(last),
            Action::Ask { client } => Line::new(format!("{} asks all masters", name(client))),
            Action::Grant { master, client, drifts } => {
                let how = if last.is_asking(client) { "is" } else { "comes late or again, and is" };
                Line::at(master, format!("{}'s claim {how} granted by", name(client))).with(fast(drifts))
            }
            Action::GrantLate { master } => {
                Line::at(master, "a claim of an attempt that is over is granted by".into())
            }
            Action::HandOver { master, client, drifts } => {
                Line::at(master, format!("{} is handed the lock, for the grace period, by", name(client)))
                    .with(fast(drifts))
            }
            Action::TakeOver { client } => {
                let so = if next.holders() > 1 { ": now both are" } else { "" };
                Line::new(format!(
                    "{} is notified that it was handed the lock, and its guard is valid{so}",
                    name(client)
                ))
            }
            Action::AskAgain { client } => Line::new(format!("{} asks all masters once more", name(client))),
            Action::Win { client } => {
                let so = if next.holders() > 1 { ": now both are" } else { "" };
                Line::new(format!("{} counts a quorum of votes, and its guard is valid{so}", name(client)))
            }
            Action::GiveUp { client } => Line::new(format!("{} gives up", name(client))),
            Action::Extend { client } => {
                Line::new(format!("{} asks all masters for an extension", name(client)))
            }
            Action::Prolong { master, client, drifts } => {
                Line::at(master, format!("{}'s key is extended by", name(client))).with(fast(drifts))
            }
            Action::Confirm { client } => Line::new(format!(
                "{} counts a quorum that has extended its key, and its guard stays valid",
                name(client)
            )),
            Action::Forget { client } => Line::new(format!("{} gives its extension up", name(client))),
            Action::Release { client } => Line::new(format!("{} releases the lock", name(client))),
            Action::Erase { master } => Line::at(master, "a release arrives at".into()),
            Action::Restart { master, key: None } => {
                Line::at(master, "all data is lost in a restart of".into())
            }
            Action::Restart { master, key: Some(Key { owner, .. }) } => {
                let owner = owner.map(|owner| name(usize::from(owner)).to_string());
                let owner = owner.unwrap_or_else(|| "an attempt that is over".into());
                Line::at(master, format!("an earlier key of {owner} comes back in a restart of"))
            }
        }
    }
}

impl<const CLIENTS: usize> Model for Redlock<CLIENTS> {
    type State = State<CLIENTS>;
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        vec![State {
            clients: [Client::Idle; CLIENTS],
            masters: [Master::default(); MASTERS],
            restarts: self.restarts,
        }]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Action>) {
        // Of masters that are alike, one is enough.
        let masters = || (0..MASTERS).filter(|at| !state.masters[..*at].contains(&state.masters[*at]));
        // In the order that makes the better stories: of the shortest ones, the first is found.
        (0..CLIENTS).for_each(|client| state.decisions(client, actions));
        let masters_reached = || masters().filter(|master| self.is_reached(&state.masters[*master]));
        masters_reached().for_each(|master| state.arrivals(master, self.drift, self.extends, actions));
        if self.hands_over {
            (0..CLIENTS).for_each(|client| self.take_overs(state, client, actions));
            masters_reached().for_each(|master| state.hand_overs(master, self.drift, actions));
        }
        (0..CLIENTS).for_each(|client| state.requests(client, self.extends, actions));
        masters().for_each(|master| self.faults(state, master, actions));
        actions.push(Action::Tick);
    }

    /// Where the lock is handed over, a search ends with the quarantine. Without the restart the key would have expired by then,
    /// as no key lives for longer: what follows is searched without a restart.
    fn within_boundary(&self, state: &Self::State) -> bool {
        let is_over = self.restarts > 0 && state.restarts == 0;
        let is_quarantined = state.masters.iter().any(|master| master.quarantine > 0);
        !self.hands_over || !is_over || is_quarantined
    }

    fn next_state(&self, last: &Self::State, action: Action) -> Option<Self::State> {
        Some(self.step(last, action).representative())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(EXCLUSION, |_, state: &Self::State| state.holders() <= 1),
            Property::sometimes(
                "one vote is missing while another guard is valid",
                |_, state: &Self::State| state.holders() == 1 && state.someone_has_all_votes_but_one(),
            ),
        ];
        if self.extends {
            properties.push(Property::sometimes(
                "an extension outlives a key that was not extended",
                |_, state: &Self::State| state.outlives_a_key(),
            ));
        }
        if self.hands_over {
            properties.push(Property::sometimes("a hand-over is split", |_, state: &Self::State| {
                (0..CLIENTS).all(|client| state.handed_over(client) > 0)
            }));
            properties.push(Property::sometimes("a quorum hands the lock over", |_, state: &Self::State| {
                (0..CLIENTS).any(|client| state.handed_over(client) >= QUORUM)
            }));
        }
        properties
    }
}

impl<const CLIENTS: usize> Redlock<CLIENTS> {
    /// Whether anything arrives at a master. Where the lock is handed over, nothing does at one in quarantine: its answers do not
    /// count, and its key only refuses others, which is the same as claims that do not arrive.
    fn is_reached(&self, master: &Master) -> bool {
        let counts_all = self.makes(Mistake::CountsQuarantined);
        !self.hands_over || counts_all || master.quarantine == 0
    }

    fn faults(&self, state: &State<CLIENTS>, master: usize, actions: &mut Vec<Action>) {
        let key = state.masters[master].key;
        // A restart without a key, or with one of an attempt that is over, only keeps the master from voting.
        let matters = !self.hands_over || matches!(key, Some(Key { owner: Some(_), .. }));
        if state.restarts > 0 && matters {
            actions.push(Action::Restart { master, key: None });
            let earlier = self.rolls_back.then(|| state.earlier_keys());
            actions
                .extend(earlier.into_iter().flatten().map(|key| Action::Restart { master, key: Some(key) }));
        }
    }

    fn take_overs(&self, state: &State<CLIENTS>, client: usize, actions: &mut Vec<Action>) {
        let Client::Asking { handed_over, .. } = state.clients[client] else { return };
        actions.push(Action::AskAgain { client });
        let is_in_time = handed_over > 0 || self.makes(Mistake::CountsFromNotification);
        if is_in_time && state.handed_over(client) >= self.handed_over_quorum() {
            actions.push(Action::TakeOver { client });
        }
    }
}

impl Master {
    /// What it said in quarantine counts from when the client takes the quarantine to be over.
    fn late_answers(&mut self) {
        for (client, late) in self.late.iter_mut().enumerate() {
            if *late == 1 {
                self.said_yes |= bit(client);
            }
            *late = late.saturating_sub(1);
        }
    }
}

impl<const CLIENTS: usize> State<CLIENTS> {
    fn decisions(&self, client: usize, actions: &mut Vec<Action>) {
        if self.yeses(client) < QUORUM {
            return;
        }
        match self.clients[client] {
            Client::Idle => {}
            Client::Asking { .. } => actions.push(Action::Win { client }),
            Client::Holding { .. } => actions.push(Action::Confirm { client }),
        }
    }

    fn requests(&self, client: usize, extends: bool, actions: &mut Vec<Action>) {
        match self.clients[client] {
            // Of idle clients, one is enough.
            Client::Idle if self.clients[..client].contains(&Client::Idle) => {}
            Client::Idle => actions.push(Action::Ask { client }),
            Client::Asking { .. } => actions.push(Action::GiveUp { client }),
            Client::Holding { extending: None, .. } => {
                actions.extend(extends.then_some(Action::Extend { client }));
                actions.push(Action::Release { client });
            }
            Client::Holding { extending: Some(_), .. } => {
                actions.extend([Action::Forget { client }, Action::Release { client }]);
            }
        }
    }

    fn arrivals(&self, master: usize, drift: bool, extends: bool, actions: &mut Vec<Action>) {
        let Master { key, said_yes, .. } = self.masters[master];
        for client in (0..CLIENTS).filter(|client| self.clients[*client] != Client::Idle) {
            let ours = key.is_some_and(|key| key.owner == Some(client as u8));
            for drifts in [false, true].into_iter().filter(|drifts| drift || !drifts) {
                if key.is_none() {
                    actions.push(Action::Grant { master, client, drifts });
                } else if ours && extends && !self.is_asking(client) {
                    actions.push(Action::Prolong { master, client, drifts });
                }
            }
            // The claim came before; its answer may come again.
            if ours && self.is_asking(client) && said_yes & bit(client) == 0 {
                actions.push(Action::Grant { master, client, drifts: false });
            }
        }
        match key {
            // A late grant only refuses others, as a key that is yet to be released does.
            None if !extends => {}
            None => actions.push(Action::GrantLate { master }),
            Some(Key { owner: None, .. }) => actions.push(Action::Erase { master }),
            Some(_) => {}
        }
    }

    /// What any master may have had earlier: a key of any owner, with any time that was left to it.
    fn earlier_keys(&self) -> impl Iterator<Item = Key> + use<CLIENTS> {
        let clients = self.clients;
        let owners = (0..CLIENTS).filter(move |client| clients[*client] != Client::Idle);
        let owners = owners.map(|client| Some(client as u8)).chain([None]);
        owners.flat_map(|owner| (1..=TTL).map(move |left| Key { owner, left }))
    }

    /// The queue is a hint: whoever asks, or has asked, may be in it.
    fn hand_overs(&self, master: usize, drift: bool, actions: &mut Vec<Action>) {
        if matches!(self.masters[master].key, Some(Key { owner: Some(_), .. })) {
            return;
        }
        for client in (0..CLIENTS).filter(|client| self.is_asking(*client)) {
            let drifts = [false, true].into_iter().filter(|drifts| drift || !drifts);
            actions.extend(drifts.map(|drifts| Action::HandOver { master, client, drifts }));
        }
    }

    fn hand_over(&mut self, master: usize, client: usize, drifts: bool, counts: bool) {
        let asking = self.is_asking(client);
        let master = &mut self.masters[master];
        master.key =
            Some(Key { owner: Some(client as u8), left: if drifts { GRACE - MARGIN } else { GRACE } });
        if asking && counts {
            master.handed_over |= bit(client);
        }
    }

    fn tick(&mut self) {
        for master in &mut self.masters {
            master.quarantine = master.quarantine.saturating_sub(1);
            master.key = master.key.filter(|key| key.left > 1).map(|key| Key { left: key.left - 1, ..key });
        }
        for client in 0..CLIENTS {
            match &mut self.clients[client] {
                Client::Idle => {}
                Client::Asking { left, .. } | Client::Holding { left, .. } if *left == 1 => self.end(client),
                Client::Asking { left, handed_over } => {
                    (*left, *handed_over) = (*left - 1, handed_over.saturating_sub(1));
                }
                Client::Holding { left, extending } => {
                    *left -= 1;
                    match extending {
                        Some(Extending { left: 1 }) => self.extend(client, None),
                        Some(Extending { left }) => *left -= 1,
                        None => {}
                    }
                }
            }
        }
    }

    /// A claim arrives at a master whose key is free, or the client's own already: then it is extended.
    fn grant(&mut self, master: usize, client: usize, drifts: bool, extends: bool) {
        let asking = self.is_asking(client);
        let master = &mut self.masters[master];
        let new = Key { owner: Some(client as u8), left: life(drifts) };
        let key = master.key.get_or_insert(new);
        if extends {
            key.left = key.left.max(new.left);
        }
        if asking && master.quarantine == 0 {
            master.said_yes |= bit(client);
            // A client that gets this answer counts its votes from now on, or asks with another owner id.
            master.handed_over &= !bit(client);
        }
    }

    fn asking_left(&self, client: usize) -> Option<u8> {
        if let Client::Asking { left, .. } = self.clients[client] { Some(left) } else { None }
    }

    fn extending(&self, client: usize) -> Option<Extending> {
        if let Client::Holding { extending, .. } = self.clients[client] { extending } else { None }
    }

    /// A vote of a master counts for so long.
    fn count(&mut self, master: usize, client: usize, left: u8) {
        let counts = &mut self.masters[master].counts[client];
        *counts = left.max(*counts);
    }

    fn count_from_answer(&mut self, client: usize, left: u8) {
        for master in self.masters.iter_mut().filter(|master| master.said_yes & bit(client) != 0) {
            master.counts[client] = left;
        }
    }

    fn prolong(&mut self, master: usize, client: usize, drifts: bool, counts: bool) {
        let extending = self.extending(client).is_some();
        let master = &mut self.masters[master];
        master.key = master.key.map(|key| Key { left: life(drifts), ..key });
        if extending && counts {
            master.said_yes |= bit(client);
        }
    }

    fn extend(&mut self, client: usize, new: Option<Extending>) {
        if let Client::Holding { extending, .. } = &mut self.clients[client] {
            *extending = new;
        }
        self.clear_answers(client);
    }

    fn end(&mut self, client: usize) {
        self.clients[client] = Client::Idle;
        self.clear_answers(client);
        self.masters.iter_mut().for_each(|master| master.counts[client] = 0);
        for key in self.masters.iter_mut().filter_map(|master| master.key.as_mut()) {
            key.owner = key.owner.filter(|owner| *owner != client as u8);
        }
    }

    fn clear_answers(&mut self, client: usize) {
        self.clear_votes(client);
        for master in &mut self.masters {
            master.handed_over &= !bit(client);
        }
    }

    fn clear_votes(&mut self, client: usize) {
        for master in &mut self.masters {
            master.late[client] = 0;
            master.said_yes &= !bit(client);
        }
    }

    fn holders(&self) -> usize {
        self.clients.iter().filter(|client| matches!(client, Client::Holding { .. })).count()
    }

    /// What a tick has ended.
    fn told_tick(&self, last: &Self) -> Line {
        let mut text = String::from("time passes");
        for client in 0..CLIENTS {
            let owned = |master: &Master| master.key.is_some_and(|key| key.owner == Some(client as u8));
            let ended =
                (0..MASTERS).filter(|at| owned(&last.masters[*at]) && self.masters[*at].key.is_none());
            let ended: Vec<_> = ended.map(|master| (master + 1).to_string()).collect();
            if !ended.is_empty() {
                text += &format!("; {}'s key ends on {}", name(client), ended.join(" and "));
            }
            match (last.clients[client], self.clients[client]) {
                (Client::Holding { .. }, Client::Idle) => text += &format!("; {}'s lease ends", name(client)),
                (Client::Asking { .. }, Client::Idle) => text += &format!("; {} gives up", name(client)),
                _ => {}
            }
        }
        Line::new(text)
    }

    fn outlives_a_key(&self) -> bool {
        self.masters.iter().filter_map(|master| master.key).any(|key| {
            let owner = key.owner.map(|owner| self.clients[usize::from(owner)]);
            matches!(owner, Some(Client::Holding { left, .. }) if left > key.left)
        })
    }

    fn someone_has_all_votes_but_one(&self) -> bool {
        (0..CLIENTS).any(|client| self.is_asking(client) && self.yeses(client) == QUORUM - 1)
    }

    fn is_asking(&self, client: usize) -> bool {
        matches!(self.clients[client], Client::Asking { .. })
    }

    /// How many notifications that it was handed the lock are on their way to a client.
    fn handed_over(&self, client: usize) -> u8 {
        self.masters.iter().map(|master| (master.handed_over & bit(client)).min(1)).sum()
    }

    fn yeses(&self, client: usize) -> u8 {
        self.masters.iter().map(|master| (master.said_yes & bit(client)).min(1)).sum()
    }

    /// The smallest of the states that differ from this one only in the order of masters and clients.
    fn representative(&self) -> Self {
        orders::<CLIENTS>().map(|order| self.in_order(&order)).min().unwrap_or(*self)
    }

    fn in_order(&self, order: &[usize; CLIENTS]) -> Self {
        let mut state = *self;
        for (new, old) in order.iter().enumerate() {
            state.clients[new] = self.clients[*old];
        }
        for master in &mut state.masters {
            let Master { key, said_yes, handed_over, counts, late, .. } = *master;
            (master.said_yes, master.handed_over) = (0, 0);
            for (new, old) in order.iter().enumerate() {
                (master.counts[new], master.late[new]) = (counts[*old], late[*old]);
                if said_yes & bit(*old) != 0 {
                    master.said_yes |= bit(new);
                }
                if handed_over & bit(*old) != 0 {
                    master.handed_over |= bit(new);
                }
                if let (Some(was), Some(is)) = (key, &mut master.key)
                    && was.owner == Some(*old as u8)
                {
                    is.owner = Some(new as u8);
                }
            }
        }
        state.masters.sort_unstable();
        state
    }
}

fn bit(client: usize) -> u8 {
    1 << client
}

fn life(drifts: bool) -> u8 {
    if drifts { TTL - MARGIN } else { TTL }
}
