//! The backend: acquire, wait, inspect.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use lock_core::backend::{MAX_LISTED, Support};
use lock_core::renewal::{Renewer, Terms};
use lock_core::{
    AcquireRequest, Acquired, Backend, BootInstant, Capabilities, Clock, DoctorReport, Error, ErrorKind,
    LeaseKind, LeasePolicy, LockName, LockState, Outcome, OwnerId, Result, ServerLockState, ServerView,
    Token, ValidityCell, runtime,
};
use lock_redis::server::{Request, ServerOptions, Sight};
use lock_redis::unwanted::Acquisitions;
use lock_redis::{Identity, Infos, Keys, Server, WallClock, state, trusted_until};
use tokio::time::{Instant, sleep};

use crate::RedlockConfig;
use crate::doctor::{self, compare_clocks};
use crate::footprint::Footprint;
use crate::lease::RedlockLease;
use crate::line::{Contention, TURN};
use crate::master::{Master, Roll, same_server};
use crate::quarantine::at_first_sight;
use crate::quorum::{Heard, Wave, quorum};
use crate::renew::{Held, RenewOnQuorum};
use crate::votes::{Tally, Votes};
use crate::waiting::Waiting;

pub(crate) const BACKEND: &str = "redlock";
/// The shortest time to live: below it the drift margin and the round trips eat the lease up.
const MIN_TTL: Duration = Duration::from_millis(100);
/// How much the clocks of clients may differ before a token is taken for one that was raised, in microseconds.
const AHEAD: u64 = 60_000_000;
/// How often the way to the masters is measured before they are found to be too far away.
const MEASUREMENTS: u32 = 5;
const NO_READERS: &str =
    "the masters have no queue in common, so that readers who follow each other would keep every writer out";
/// With two permits and five masters, three clients can have three votes each.
const NO_PERMITS: &str = "every master would let in its own choice of holders, and more of them than there are permits can have a quorum";

/// The backend for a quorum of independent Redis servers.
///
/// It goes on while a minority of the masters is down, and a master that does not answer slows it once. Two may hold a
/// lock when masters lose data in ways that cannot be seen (FLUSHALL, eviction), or when clocks jump: let the
/// resource check the fencing token. It grows as long as masters restart with their data
/// only; where one restarts without it, as far as the clients' clocks agree.
///
/// An extension that no quorum answers unlocks nothing, and `Guard::extend` tries it again for as long as the lease lasts:
/// give it a time limit if there is something else to do.
///
/// # Masters that restart
///
/// A master that has restarted may have forgotten what it granted. It does not vote, and does not count for a
/// renewal, until `longest_ttl` has passed since its start: set it alike for all clients, to the longest time to live
/// that any of them uses. So a lock is held on, and can be taken, while a minority restarts; when a majority
/// restarts at once, nobody gets a lock for as long. A client that connects for the first time tells restarted
/// masters by their uptime, unless it sees that most masters are as young: then it takes the fleet for a new one, in
/// which only a master without any key waits if another one has keys. So it does not see that a whole fleet was
/// restarted and came back empty.
#[derive(Debug)]
pub struct Redlock {
    capabilities: Capabilities,
    pub(crate) masters: Arc<[Arc<Master>]>,
    renewer: Renewer<RenewOnQuorum>,
    prefix: String,
    pub(crate) ttl: Duration,
    longest_ttl: Duration,
    pub(crate) clock: Clock,
    wall_clock: WallClock,
    pub(crate) tally: Tally,
    pub(crate) infos: Infos,
    pub(crate) contention: Arc<Contention>,
    /// The waits whose calls are wanted, on all masters.
    pub(crate) acquisitions: Arc<Acquisitions>,
}

impl Redlock {
    /// Connects to the masters; a minority of them may be down.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`], also when two masters are one server or the time to live is too short for how
    /// far away they are, [`ErrorKind::Unavailable`], or [`ErrorKind::Denied`].
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connections are closed, after `connect_timeout` at the latest.
    pub async fn connect(config: RedlockConfig) -> Result<Self> {
        config.check()?;
        runtime::current(BACKEND)?;
        let (roll, longest_ttl) = (Arc::new(Roll::default()), config.longest_ttl_of_all());
        let (master_timeout, acquisitions) = (config.timeout_of_a_master(), Arc::default());
        let masters = config.masters.into_iter().map(|master| {
            let mut options = ServerOptions::new(BACKEND, master.info);
            (options.pool, options.dial) = (master.pool, master.dial);
            options.connect_timeout = config.connect_timeout;
            options.command_timeout = master_timeout;
            (options.clock, options.asks_identity) = (config.clock.clone(), true);
            let server = Server::new(options)?;
            Ok(Master::new(server, config.connect_timeout, longest_ttl, &roll, &acquisitions))
        });
        let masters: Arc<[_]> = masters.collect::<Result<Vec<_>>>()?.into();
        connect_quorum(&masters, longest_ttl).await?;
        meet(&masters, config.ttl, &config.wall_clock).await?;
        let renew = RenewOnQuorum { masters: Arc::clone(&masters), clock: config.clock.clone() };
        Ok(Self {
            capabilities: capabilities(config.ttl),
            masters,
            renewer: Renewer::new(renew, config.clock.clone()),
            prefix: config.prefix,
            ttl: config.ttl,
            longest_ttl,
            clock: config.clock,
            wall_clock: config.wall_clock,
            tally: Tally::default(),
            infos: Infos::default(),
            contention: Arc::default(),
            acquisitions,
        })
    }

    /// How the votes on all locks went so far: counters that only grow.
    #[must_use]
    pub fn votes(&self) -> Votes {
        self.tally.votes()
    }
}

#[async_trait]
impl Backend for Redlock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        self.capabilities.check_mode(request.mode)?;
        check_ttl(self.ttl_of(&request.lease), self.longest_ttl)?;
        let keys = self.keys(&request.name)?;
        Waiting::new(self, &keys, &request).acquire().await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let looks = self.look_by_voters(&self.keys(name)?).await?;
        let masters = looks.iter().zip(&*self.masters);
        let servers = masters.map(|(sight, master)| view(master.server.address(), sight)).collect();
        let sights = looks.into_iter().flatten().collect();
        let seen = agreed(sights, self.masters.len());
        let mut state = state(&seen);
        if let Some(holder) = state.holders.first_mut().filter(|holder| holder.owner().is_some()) {
            holder.token = token_of(&seen, self.micros());
        }
        state.servers = servers;
        Ok(state)
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        let keys = self.keys(name)?;
        let is_lock = |kind: &str| matches!(kind, "string" | "none");
        // Before anything is removed anywhere.
        let sights = self.look(&keys).await?;
        if let Some(sight) = sights.iter().flatten().find(|sight| !is_lock(&sight.kind)) {
            return Err(lock_redis::not_a_lock(BACKEND, &sight.kind));
        }
        let kinds = self.ask_all(|master| {
            let keys = Arc::clone(&keys);
            async move {
                let kind = master.server.break_lock(&keys).await?;
                // For those who wait; they find out by themselves when it fails.
                let call_next = Request::vacate(&keys, OwnerId::random(), None, Some(TURN));
                drop(master.server.vacate(&call_next).await);
                Ok(kind)
            }
        });
        let kinds = kinds.await?.into_iter().zip(&*self.masters);
        // A master that has restarted may have forgotten the lock.
        let seen = kinds.filter(|(kind, master)| {
            !matches!(kind, Ok(kind) if kind == "none") || master.may_vote().is_ok()
        });
        let kinds: Vec<_> = seen.filter_map(|(kind, _)| kind.ok()).collect();
        let unseen = self.masters.len() - kinds.len();
        if let Some(kind) = kinds.iter().find(|kind| !is_lock(kind)) {
            return Err(lock_redis::not_a_lock(BACKEND, kind));
        }
        let broken = kinds.iter().filter(|kind| *kind == "string").count();
        // With masters that do not answer it may have been held.
        Ok(broken > 0 && broken + unseen >= quorum(self.masters.len()))
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        let keys = self.keys(name)?;
        let looks = self.look_by_voters(&keys).await?;
        if let Some(sight) = looks.iter().flatten().find(|sight| !matches!(&*sight.kind, "string" | "none")) {
            return Err(lock_redis::not_a_lock(BACKEND, &sight.kind));
        }
        let seen = agreed(looks.into_iter().flatten().collect(), self.masters.len());
        // Whoever gets the lock after the largest token was seen has a larger one, and so has a quorum then. And two holders
        // have the same proposal only if the clock of the second says, to the microsecond, what the token of the first was.
        let is_its = seen.token == Some(token) || seen.since == Some(token.get());
        let Some(owner) = OwnerId::decode(&seen.owner).filter(|_| is_its) else { return Ok(false) };
        // Each master compares the owner, which no two acquisitions have in common.
        let removed = self.ask_all(|master| {
            let keys = Arc::clone(&keys);
            async move {
                let vacated = master.server.vacate(&Request::vacate(&keys, owner, None, Some(TURN))).await?;
                // A master that has restarted may have forgotten the lock.
                Ok(vacated.was_ours.filter(|ours| *ours || master.may_vote().is_ok()))
            }
        });
        let removed: Vec<_> = removed.await?.into_iter().map(|removed| removed.ok().flatten()).collect();
        let count = |what: Option<bool>| removed.iter().filter(|removed| **removed == what).count();
        let (broken, unseen) = (count(Some(true)), count(None));
        // With masters that do not answer it may have been held.
        Ok(broken > 0 && broken + unseen >= quorum(self.masters.len()))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let beginning = format!("{}{prefix}", self.prefix);
        let scan = |master: &Arc<Master>| {
            let (master, beginning) = (Arc::clone(master), beginning.clone());
            async move {
                let keys = master.server.keys_that_begin(&beginning, MAX_LISTED).await?;
                // One that has restarted may have forgotten locks.
                master.may_vote().map(|()| keys)
            }
        };
        let answers = self.of_a_quorum(join_all(self.masters.iter().map(scan)).await)?;
        // What a master shows of too many is another part of them than what the next one shows.
        let longest = answers.iter().flatten().map(Vec::len).max().unwrap_or(0);
        self.capabilities.check_listed(longest)?;
        let unseen = answers.iter().filter(|answer| answer.is_err()).count();
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for key in answers.into_iter().flatten().flatten() {
            *seen.entry(key).or_default() += 1;
        }
        seen.retain(|_, masters| *masters + unseen >= quorum(self.masters.len()));
        Ok(Keys::names(&self.prefix, seen.into_keys().collect()))
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        Ok(doctor::examine(&self.masters, self.ttl, &self.wall_clock).await)
    }

    async fn settle(&self) {
        // A key on a master that does not answer keeps nobody out: the others are a quorum, or no lock is granted anyway.
        let settled = self.masters.iter().map(|master| async {
            tokio::select! {
                () = master.server.cleanup().settled() => {}
                () = until(|| master.is_sick()) => {}
            }
        });
        join_all(settled).await;
    }

    async fn close(&self) -> Result<()> {
        self.renewer.stop_all();
        self.masters.iter().for_each(|master| master.close());
        Ok(())
    }
}

impl Redlock {
    /// The time to live that a lease begins with.
    pub(crate) fn ttl_of(&self, policy: &LeasePolicy) -> Duration {
        let ttl = policy.ttl.unwrap_or(self.ttl);
        policy.max_hold.map_or(ttl, |hold| ttl.min(hold).max(MIN_TTL))
    }

    /// The time since 1970 in microseconds.
    pub(crate) fn micros(&self) -> u64 {
        u64::try_from(self.wall_clock.now().as_micros()).unwrap_or(0)
    }

    /// From when on a quorum may vote, if masters that restarted are why there is none now.
    pub(crate) fn votes_from(&self) -> Option<Instant> {
        let mut barred: Vec<_> = self.masters.iter().filter_map(|master| master.is_barred_until()).collect();
        barred.sort_unstable();
        let others = self.masters.len() - barred.len();
        barred.get(quorum(self.masters.len()).checked_sub(others + 1)?).copied()
    }

    pub(crate) fn lease(
        &self,
        footprint: Arc<Footprint>,
        request: &AcquireRequest,
        token: Token,
        (sent, ttl): (BootInstant, Duration),
    ) -> RedlockLease {
        let hold_until = request.lease.max_hold.map_or(BootInstant::NEVER, |hold| sent + hold);
        let cell = ValidityCell::new(self.clock.clone(), trusted_until(sent, ttl).min(hold_until));
        let mut terms = Terms::new(ttl);
        (terms.auto, terms.hold_until) = (request.lease.renewed, hold_until);
        let held = Held { footprint: Arc::clone(&footprint), token, validity: cell.validity() };
        RedlockLease {
            renewal: self.renewer.add(Arc::new(held), terms, cell.clone()),
            longest_ttl: self.longest_ttl,
            footprint,
            token,
            validity: cell.validity(),
            cell,
            releasing: Mutex::default(),
        }
    }

    fn keys(&self, name: &LockName) -> Result<Arc<Keys>> {
        let keys = Keys::new(&self.prefix, name);
        keys.check(BACKEND).map(|()| Arc::new(keys))
    }

    async fn look(&self, keys: &Arc<Keys>) -> Result<Vec<Result<Sight>>> {
        self.ask_all(|master| {
            let keys = Arc::clone(keys);
            async move { master.server.look_at_vote(&keys).await }
        })
        .await
    }

    /// As [`look`](Self::look), without the masters that may not vote: one that has restarted may have forgotten the lock.
    async fn look_by_voters(&self, keys: &Arc<Keys>) -> Result<Vec<Result<Sight>>> {
        let votes = self.look(keys).await?.into_iter().zip(&*self.masters);
        let votes = votes.map(|(sight, master)| sight.and_then(|sight| master.may_vote().map(|()| sight)));
        self.of_a_quorum(votes.collect())
    }

    /// What each master answers, if a quorum does.
    async fn ask_all<T, F>(&self, ask: impl Fn(Arc<Master>) -> F) -> Result<Vec<Result<T>>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.of_a_quorum(ask_all(&self.masters, ask).await)
    }

    fn of_a_quorum<T>(&self, answers: Vec<Result<T>>) -> Result<Vec<Result<T>>> {
        let good = answers.iter().filter(|answer| answer.is_ok()).count();
        if good < quorum(self.masters.len()) {
            let failed = answers.into_iter().filter_map(Result::err);
            return Err(no_quorum(self.masters.len(), good, failed));
        }
        Ok(answers)
    }
}

/// What each master answers. One that is sick is not waited for longer than its deadline.
pub(crate) async fn ask_all<T, F>(
    masters: &Arc<[Arc<Master>]>,
    ask: impl Fn(Arc<Master>) -> F,
) -> Vec<Result<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let requests = masters.iter().map(|master| {
        let (master, answer) = (Arc::clone(master), ask(Arc::clone(master)));
        async move {
            let sent = Instant::now();
            master.noted(sent, answer.await)
        }
    });
    let now = Instant::now();
    let patience = masters.iter().map(|master| now + master.patience());
    let mut wave = Wave::new(requests).until(patience.collect::<Vec<_>>());
    let mut answers: Vec<Option<Result<T>>> = masters.iter().map(|_| None).collect();
    while wave.outstanding() > 0 {
        match wave.next().await {
            Some((master, Heard::Answer(answer))) => answers[master] = Some(answer),
            Some((master, Heard::Late)) => answers[master] = Some(Err(masters[master].is_late())),
            None => break,
        }
    }
    let unasked = || Err(no_quorum(masters.len(), 0, []));
    answers.into_iter().map(|answer| answer.unwrap_or_else(unasked)).collect()
}

pub(crate) fn capabilities(ttl: Duration) -> Capabilities {
    let mut capabilities = Capabilities::new(BACKEND, LeaseKind::ttl(ttl, MIN_TTL));
    (capabilities.shared, capabilities.permits) = (Support::No(NO_READERS), Support::No(NO_PERMITS));
    (capabilities.breaks_one, capabilities.listing) = (Support::Yes, Support::Yes);
    capabilities
}

/// Refuses a time to live that is too short, or longer than masters that restart are kept from voting.
pub(crate) fn check_ttl(ttl: Duration, longest_ttl: Duration) -> Result<()> {
    capabilities(ttl).check_ttl(ttl, MIN_TTL)?;
    if ttl <= longest_ttl {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidConfig, BACKEND)
        .with_message(format!(
            "a ttl of {ttl:?} is longer than longest_ttl ({longest_ttl:?}): a master that restarts would vote again before the lock has ended"
        ))
        .with_hint("raise longest_ttl in the URL of all clients (?longest_ttl=...)"))
}

/// The error of a vote without a quorum, with what each master answered that did not agree.
pub(crate) fn no_quorum(masters: usize, votes: usize, failed: impl IntoIterator<Item = Error>) -> Error {
    let failed: Vec<_> = failed.into_iter().collect();
    let (gone, refused): (Vec<_>, Vec<_>) =
        failed.iter().partition(|error| error.kind() == ErrorKind::Unavailable);
    // A minority that will never vote is no reason to give up: there is a quorum once the others are back.
    let rules_it_out = refused.len() > masters - quorum(masters);
    let kind = refused.last().filter(|_| rules_it_out).map_or(ErrorKind::Unavailable, |error| error.kind());
    let reasons: String = failed.iter().map(|error| format!("; {}", error.message())).collect();
    let error = Error::new(kind, BACKEND)
        .with_message(format!(
            "only {votes} of {masters} masters agreed, {} are needed{reasons}",
            quorum(masters)
        ))
        .with_code("no_quorum")
        .with_outcome(Outcome::Unknown);
    // A wrong password needs advice more than a host that is down.
    match refused.last().or_else(|| gone.last()) {
        Some(last) => error.with_hint(last.hint().unwrap_or(CHECK_MASTERS)).caused_by((*last).clone()),
        None => error.with_hint(CHECK_MASTERS),
    }
}

const CHECK_MASTERS: &str = "check that the masters run";

pub(crate) fn too_late(ttl: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .with_message(format!(
            "the masters granted the lock, but after their answers less than a tenth of the ttl of {ttl:?} was left"
        ))
        .with_hint("use a longer ttl; the lock is given back")
        .with_outcome(Outcome::Applied)
}

async fn connect_quorum(masters: &Arc<[Arc<Master>]>, longest_ttl: Duration) -> Result<()> {
    let mut wave = Wave::new(masters.iter().map(|master| {
        let master = Arc::clone(master);
        async move { master.server.connect().await }
    }));
    let (mut connected, mut failed) = (0, Vec::new());
    while let Some((master, answer)) = wave.answer().await {
        match answer {
            Ok(()) => connected += 1,
            Err(error) => {
                tracing::warn!(master = masters[master].server.address(), %error, "a master is not there");
                failed.push(error.clone());
                drop(masters[master].noted::<()>(Instant::now(), Err(error)));
            }
        }
    }
    if connected < quorum(masters.len()) {
        return Err(no_quorum(masters.len(), connected, failed));
    }
    let fleet: Vec<Option<Arc<Identity>>> = masters.iter().map(|master| master.server.identity()).collect();
    let known: Vec<_> = fleet.iter().map(Option::as_deref).collect();
    let votes_from = at_first_sight(&known, longest_ttl);
    for ((master, identity), from) in masters.iter().zip(fleet).zip(votes_from) {
        if let Some(identity) = identity {
            master.first_seen(identity, from);
        }
    }
    let twin = masters.iter().find_map(|master| Some((master.server.address(), master.twin()?)));
    match twin {
        Some((one, other)) => Err(same_server(one, &other)),
        None => Ok(()),
    }
}

/// Measures how far away the masters are and what their clocks say, and refuses what cannot work.
async fn meet(masters: &Arc<[Arc<Master>]>, ttl: Duration, wall_clock: &WallClock) -> Result<()> {
    let clocks = doctor::clocks(masters, wall_clock).await;
    if let Some(finding) = compare_clocks(&clocks, ttl) {
        tracing::warn!("{finding}");
    }
    let count = u32::try_from(masters.len()).unwrap_or(u32::MAX);
    let fits = |trip: &Duration| ttl >= *trip * count;
    let Some(mut trip) = doctor::round_trip(masters.len(), &clocks) else { return Ok(()) };
    // A busy host makes any trip long, and none shorter than the way is.
    for _ in 1..MEASUREMENTS {
        if fits(&trip) {
            break;
        }
        let again = doctor::clocks(masters, wall_clock).await;
        trip = doctor::round_trip(masters.len(), &again).map_or(trip, |again| trip.min(again));
    }
    if fits(&trip) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidConfig, BACKEND)
        .with_message(format!(
            "a ttl of {ttl:?} is too short for masters of which a quorum answers in {trip:?} at best: {count} round trips do not fit"
        ))
        .with_hint(format!("use at least {:?}, or masters that are nearer", trip * count)))
}

/// What one master sees of a lock.
fn view(address: &str, sight: &Result<Sight>) -> ServerView {
    let view = match sight {
        Ok(sight) => state(sight)
            .holders
            .pop()
            .map_or(ServerLockState::Free, |first| ServerLockState::Held(first.holder)),
        Err(error) => ServerLockState::Unknown(error.to_string()),
    };
    ServerView::new(address, view)
}

/// What a quorum of the masters sees alike, or might with those that were not seen, and the largest token of all. A lock
/// is free only if nobody can have it.
fn agreed(sights: Vec<Sight>, masters: usize) -> Sight {
    let unseen = masters - sights.len();
    let token = sights.iter().filter_map(|sight| sight.token).max();
    let mut votes: BTreeMap<(String, String), Vec<Sight>> = BTreeMap::new();
    for sight in sights.into_iter().filter(|sight| sight.kind != "none") {
        votes.entry((sight.kind.clone(), sight.value.clone())).or_default().push(sight);
    }
    let most = votes.into_values().max_by_key(Vec::len);
    let winner = most.filter(|sights| sights.len() + unseen >= quorum(masters));
    let free = Sight { kind: "none".into(), ..Sight::default() };
    let ends_in = winner.as_ref().and_then(|sights| ends_in(sights, masters));
    Sight { token, ends_in, ..winner.and_then(|mut sights| sights.pop()).unwrap_or(free) }
}

/// The token of the holder, which the masters do not keep: the one that it proposed, from which it differs only if the
/// tokens are ahead of the clocks. Others propose theirs meanwhile, and so the last one may be larger; but not if it is far
/// ahead.
fn token_of(seen: &Sight, now: u64) -> Option<Token> {
    let proposed = seen.since.filter(|since| *since > 0 && *since <= i64::MAX as u64).map(Token::new);
    proposed.filter(|_| seen.token.is_none_or(|last| last.get() <= now + AHEAD)).or(seen.token)
}

/// When there is no quorum any more of those masters that see a holder, if its keys end.
fn ends_in(sights: &[Sight], masters: usize) -> Option<Duration> {
    let mut ends: Vec<_> = sights.iter().map(|sight| sight.ends_in.unwrap_or(Duration::MAX)).collect();
    ends.sort_unstable_by(|one, other| other.cmp(one));
    ends.truncate(quorum(masters));
    ends.pop().filter(|end| *end < Duration::MAX)
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        sleep(Duration::from_millis(20)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_has_the_token_that_it_proposed_unless_tokens_were_raised() {
        let token = |since, last: Option<u64>| {
            let seen = Sight { since, token: last.map(Token::new), ..Sight::default() };
            token_of(&seen, 5_000).map(Token::get)
        };
        assert_eq!(token(Some(4_000), Some(4_000)), Some(4_000));
        assert_eq!(token(Some(4_000), Some(4_700)), Some(4_000), "another has proposed it meanwhile");
        assert_eq!(token(Some(4_000), Some(1 << 40)), Some(1 << 40));
        assert_eq!(
            (token(None, Some(7)), token(Some(0), Some(7)), token(None, None)),
            (Some(7), Some(7), None)
        );
        assert_eq!(token(Some(u64::MAX), None), None);
    }

    #[test]
    fn a_lock_ends_when_the_quorum_does() {
        let sights = |ends: &[Option<u64>]| {
            let sight =
                |end: &Option<u64>| Sight { ends_in: end.map(Duration::from_secs), ..Sight::default() };
            ends.iter().map(sight).collect::<Vec<_>>()
        };
        let ends_in = |ends: &[Option<u64>]| ends_in(&sights(ends), 5).map(|end| end.as_secs());
        assert_eq!(ends_in(&[Some(9), Some(1), Some(8), Some(7), Some(2)]), Some(7));
        assert_eq!(ends_in(&[Some(9), Some(8)]), Some(8), "others are not seen");
        assert_eq!(ends_in(&[None, Some(8), None, Some(1)]), Some(8));
        assert_eq!(ends_in(&[None, Some(8), None, None]), None);
        assert_eq!(ends_in(&[]), None);
    }

    #[test]
    fn an_outage_is_told_apart_from_masters_that_will_never_vote() {
        let said = |kind: &ErrorKind| Error::new(*kind, BACKEND).with_message(format!("{kind:?}"));
        let of = |kinds: &[ErrorKind]| no_quorum(5, 2, kinds.iter().map(said));
        let (denied, gone) = (ErrorKind::Denied, ErrorKind::Unavailable);
        assert_eq!(of(&[]).kind(), gone);
        assert_eq!(of(&[gone, gone, gone]).kind(), gone);
        assert_eq!(of(&[denied, gone, denied]).kind(), gone);
        assert_eq!(of(&[denied, gone, denied, denied]).kind(), denied);
        let text = of(&[denied, gone, gone]).to_string();
        assert!(text.contains("Denied"), "it is told all the same: {text}");
    }
}
