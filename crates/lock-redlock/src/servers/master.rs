//! One master of the quorum: its health, and its right to vote.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Outcome, Result};
use redis_link::acquisitions::Acquisitions;
use redis_link::client::RedisClient;
use redis_link::dispatch::Dispatch;
use redis_link::greeting::Identity;
use redis_link::lock_answer::LockAnswer;
use redis_link::push::Pushes;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::error::{BACKEND, same_server};
use crate::servers::master_registry::MasterRegistry;
use crate::servers::quarantine::{GRAIN, after_restart, at_first_answer};
use crate::servers::round_trip::RoundTrip;
use crate::voting::ballot::{FastClaim, Request, Voter};

/// The pause before the first probe of a sick master.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// One master. While it is sick it is left out of votes, and a task probes it until it answers.
#[derive(Debug)]
pub(crate) struct Master {
    pub(crate) client: Arc<RedisClient>,
    pub(crate) voter: Arc<Voter>,
    pub(crate) pushes: Pushes,
    longest_ttl: Duration,
    registry: Arc<MasterRegistry>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    trip: RoundTrip,
    /// When the latest request was sent that it has answered.
    answered_to: Option<Instant>,
    /// Why it is sick, if it is.
    sick: Option<Error>,
    /// Whether a request failed; if not, its answer is only late.
    has_failed: bool,
    /// The task that probes it, if there is one.
    probe: Option<Probe>,
    /// How many there were.
    probes: u64,
    /// Its identity when the right to vote was last determined.
    known: Option<Arc<Identity>>,
    votes_from: Option<Instant>,
}

/// A task that probes a master.
#[derive(Debug)]
struct Probe {
    number: u64,
    /// When it last ran.
    seen: Instant,
}

/// Whether to send claims to a master.
#[derive(Debug)]
pub(crate) enum Readiness {
    Healthy,
    /// Its last answer failed or is late. It is asked only if there is no quorum without it.
    Sick(Error),
    /// It does not vote: it has restarted, or it is reached by two addresses.
    NotVoting(Error),
}

impl Master {
    pub(crate) fn new(
        voter: Voter,
        timeout: Duration,
        longest_ttl: Duration,
        registry: &Arc<MasterRegistry>,
        acquisitions: &Arc<Acquisitions>,
    ) -> Arc<Self> {
        let voter = Arc::new(voter);
        let returns = Arc::clone(&voter);
        let client = Arc::clone(&voter.client);
        let pushes = Pushes::new(Arc::clone(&client), timeout, acquisitions, returns);
        let registry = Arc::clone(registry);
        Arc::new(Self { client, voter, pushes, longest_ttl, registry, state: Mutex::default() })
    }

    /// Reads its clock: the time since 1970.
    pub(crate) async fn time(self: &Arc<Self>) -> Result<Duration> {
        let sent = Instant::now();
        self.noted(sent, self.client.time().await)
    }

    /// Claims the lock on this master. A grant counts only if the master may vote; if not, this is an error with the outcome
    /// [`Outcome::Applied`].
    pub(crate) async fn claim(
        self: &Arc<Self>,
        claim: &Request,
        dispatch: &Arc<Dispatch>,
    ) -> Result<LockAnswer> {
        let begun = Instant::now();
        let answer = self.voter.claim(claim, dispatch).await;
        let sent = sent(begun, dispatch);
        match answer {
            // The server may just have closed an idle connection.
            Ok(LockAnswer::Broken) => Ok(LockAnswer::Broken),
            granted @ Ok(LockAnswer::Granted(_)) => self.vote(sent, granted),
            answer => self.noted(sent, answer),
        }
    }

    /// Claims the lock by the fast path; `None` if the script has to follow.
    pub(crate) async fn claim_fast(
        self: &Arc<Self>,
        claim: &FastClaim,
        dispatch: &Arc<Dispatch>,
    ) -> Result<Option<LockAnswer>> {
        let begun = Instant::now();
        let answer = self.voter.claim_fast(claim, dispatch).await;
        let sent = sent(begun, dispatch);
        match answer {
            broken @ Ok(Some(LockAnswer::Broken)) => broken,
            granted @ Ok(Some(_)) => self.vote(sent, granted),
            answer => self.noted(sent, answer),
        }
    }

    /// Notes the answer to extensions. `has_vote` tells of each lease whether this master may [confirm](Self::confirm) it.
    pub(crate) fn confirm_each(
        self: &Arc<Self>,
        sent: Instant,
        answer: Result<Vec<Result<bool>>>,
        has_vote: impl Fn(usize) -> bool,
    ) -> Result<Vec<Result<bool>>> {
        let mut answers = self.noted(sent, answer)?;
        let Err(no_vote) = self.right_to_vote(sent, false) else { return Ok(answers) };
        let confirmed: Vec<bool> = (0..answers.len()).map(has_vote).collect();
        if !confirmed.contains(&true) {
            return Err(no_vote);
        }
        self.right_to_vote(sent, true)?;
        let others = answers.iter_mut().zip(confirmed).filter(|(_, confirmed)| !confirmed);
        others.for_each(|(answer, _)| *answer = Err(no_vote.clone()));
        Ok(answers)
    }

    /// The health of this master.
    pub(crate) fn readiness(self: &Arc<Self>) -> Readiness {
        self.readiness_to_confirm(false)
    }

    /// Its health for a request about held locks, of which it may [confirm](Self::confirm) one if it `has_vote`.
    pub(crate) fn readiness_to_confirm(self: &Arc<Self>, has_vote: bool) -> Readiness {
        let (error, probing) = {
            let mut state = self.state();
            self.check_identity(&mut state);
            if let Some(error) = self.no_vote_reason(&state, Instant::now(), has_vote) {
                return Readiness::NotVoting(error);
            }
            let Some(error) = state.sick.clone() else { return Readiness::Healthy };
            // The probing task may have ended with its runtime, or be paused with it.
            (error, self.probing(&mut state))
        };
        Probing::start(probing);
        Readiness::Sick(error.with_outcome(Outcome::NotApplied))
    }

    /// Notes the outcome of a request whose answer counts only if the master may vote.
    ///
    /// The right to vote is checked after the answer, as the request may have gone to a restarted server over a new
    /// connection. A server that does not report its identity does not vote.
    pub(crate) fn vote<T>(self: &Arc<Self>, sent: Instant, answer: Result<T>) -> Result<T> {
        self.confirm(sent, answer, || false)
    }

    /// The same for a held lock. If the master `has_vote`, one for this lock that has not expired when the answer has come, it
    /// counts in quarantine as well: until then, no other lock could count a vote of it.
    pub(crate) fn confirm<T>(
        self: &Arc<Self>,
        sent: Instant,
        answer: Result<T>,
        has_vote: impl FnOnce() -> bool,
    ) -> Result<T> {
        let answer = self.noted(sent, answer)?;
        self.right_to_vote(sent, has_vote()).map_err(|error| error.with_outcome(Outcome::Applied))?;
        Ok(answer)
    }

    /// Whether its answers count.
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub(crate) fn may_vote(&self) -> Result<()> {
        self.right_to_vote(Instant::now(), false)
    }

    /// Whether the answer to a request counts that was sent at this time.
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub(crate) fn right_to_vote(&self, sent: Instant, has_vote: bool) -> Result<()> {
        let mut state = self.state();
        if !self.check_identity(&mut state) {
            return Err(Error::new(ErrorKind::Denied, BACKEND)
                .with_message(format!(
                    "the server user may not read whether the master has restarted, so it does not vote ({})",
                    self.client.address()
                ))
                .with_hint("give the user the rights +info and +dbsize"));
        }
        self.no_vote_reason(&state, sent, has_vote).map_or(Ok(()), Err)
    }

    /// Notes the outcome of a request.
    pub(crate) fn noted<T>(self: &Arc<Self>, sent: Instant, answer: Result<T>) -> Result<T> {
        let probing = {
            let mut state = self.state();
            match &answer {
                // A connection that failed says nothing about a master that has answered over the next one.
                Err(_) if state.answered_to >= Some(sent) => None,
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    (state.sick, state.has_failed) = (Some(error.clone()), true);
                    self.probing(&mut state)
                }
                Err(_) => None,
                Ok(_) => {
                    self.check_identity(&mut state);
                    state.answered(sent, self.client.command_timeout());
                    None
                }
            }
        };
        Probing::start(probing);
        answer
    }

    /// Notes that its answer is late.
    pub(crate) fn note_late(self: &Arc<Self>) -> Error {
        let error = Error::new(ErrorKind::Unavailable, BACKEND)
            .with_message(format!("a master did not answer by its deadline ({})", self.client.address()))
            .with_hint("check that it runs and answers within master_timeout, and try again")
            .with_outcome(Outcome::Unknown);
        let probing = {
            let mut state = self.state();
            state.trip.miss();
            state.sick.get_or_insert_with(|| error.clone());
            self.probing(&mut state)
        };
        Probing::start(probing);
        error
    }

    /// How long a vote on a lock with this ttl waits for its next answer.
    pub(crate) fn deadline(&self, ttl: Duration) -> Duration {
        self.state().trip.deadline(ttl, self.client.command_timeout())
    }

    /// The approximate round trip.
    pub(crate) fn round_trip(&self) -> Duration {
        self.state().trip.smoothed()
    }

    /// How long to wait for an answer without a deadline: `master_timeout`, or less after a failed request.
    pub(crate) fn answer_timeout(&self) -> Duration {
        let (state, longest) = (self.state(), self.client.command_timeout());
        if state.has_failed { state.trip.deadline(Duration::ZERO, longest) } else { longest }
    }

    /// Whether the last request failed. An answer that is only late does not count.
    pub(crate) fn has_failed(&self) -> bool {
        self.state().has_failed
    }

    /// Whether its last answer is late, or its last request failed.
    pub(crate) fn is_sick(&self) -> bool {
        self.state().sick.is_some()
    }

    /// The longest time for which it does not vote after a restart.
    pub(crate) fn longest_quarantine(&self) -> Duration {
        self.longest_ttl + GRAIN
    }

    /// The end of its quarantine, if it is in one.
    pub(crate) fn quarantined_until(&self) -> Option<Instant> {
        self.state().votes_from.filter(|from| Instant::now() < *from)
    }

    /// Notes its identity at the first connection, and the end of its quarantine if it starts with one.
    pub(crate) fn first_seen(&self, identity: Arc<Identity>, from: Option<Instant>) {
        if from.is_some() {
            self.warn(&identity, from);
        }
        self.registry.enter(&identity, self.client.address());
        let mut state = self.state();
        (state.known, state.votes_from) = (Some(identity), from);
    }

    /// The other address of this server, if it has one.
    pub(crate) fn twin(&self) -> Option<String> {
        self.registry.twin(self.client.address())
    }

    /// Closes its connections for good.
    pub(crate) fn close(&self) {
        // First, as waiters that are no longer notified ask again.
        self.client.close();
        self.pushes.close();
    }

    /// Checks whether it is another server than before, or was a replica meanwhile, and puts it into quarantine then; `false` if
    /// its identity is unknown.
    fn check_identity(&self, state: &mut State) -> bool {
        let Some(identity) = self.client.identity() else { return false };
        state.votes_from = match &state.known {
            Some(known) if Arc::ptr_eq(known, &identity) || identity.continues(known) => return true,
            Some(_) => Some(after_restart(&identity, self.longest_ttl)),
            None => at_first_answer(&identity, self.longest_ttl),
        };
        self.registry.enter(&identity, self.client.address());
        self.warn(&identity, state.votes_from);
        state.known = Some(identity);
        true
    }

    fn warn(&self, identity: &Identity, from: Option<Instant>) {
        if let Some(from) = from {
            let left = from.saturating_duration_since(Instant::now());
            tracing::warn!(
                master = self.client.address(),
                uptime = ?identity.uptime,
                "a master has restarted or was a replica, and may have lost locks: it does not vote for {left:?}"
            );
        }
    }

    /// The reason why the answer to a request that was sent at this time does not count, if there is one.
    ///
    /// What was sent in quarantine does not count after it either: the lease of before the restart may have been confirmed since,
    /// if the master has lost this vote in another restart.
    fn no_vote_reason(&self, state: &State, sent: Instant, has_vote: bool) -> Option<Error> {
        let address = self.client.address();
        if let Some(twin) = self.twin() {
            return Some(same_server(address, &twin));
        }
        let from = state.votes_from.filter(|from| sent < *from && !has_vote)?;
        let left = from.saturating_duration_since(Instant::now());
        let error = Error::new(ErrorKind::Unavailable, BACKEND)
            .with_message(format!(
                "the master has restarted or was a replica, and may have lost locks: it votes again in {left:.1?} ({address})"
            ))
            .with_hint("wait: by then all locks that it may have lost have expired (see longest_ttl)");
        Some(error)
    }

    /// The task that probes it until it answers, unless one is running: on a runtime that the caller does not drive, it may be paused.
    fn probing(self: &Arc<Self>, state: &mut State) -> Option<Probing> {
        let longest = 2 * LAST_PAUSE + self.client.command_timeout();
        if state.probe.as_ref().is_some_and(|probe| probe.seen.elapsed() < longest) {
            return None;
        }
        state.probes += 1;
        state.probe = Some(Probe { number: state.probes, seen: Instant::now() });
        Some(Probing { master: Arc::downgrade(self), number: state.probes })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When a request was sent that began to wait for its turn at this time.
pub(crate) fn sent(begun: Instant, dispatch: &Dispatch) -> Instant {
    dispatch.written().map_or(begun, |written| written.at)
}

impl State {
    /// Whether this task probes the master, which it needs: another one may have taken its place. Notes that it runs.
    fn is_probed_by(&mut self, number: u64) -> bool {
        let Some(probe) = self.probe.as_mut().filter(|probe| probe.number == number) else { return false };
        probe.seen = Instant::now();
        self.sick.is_some()
    }

    /// Notes the answer to a request that was sent at this time.
    fn answered(&mut self, sent: Instant, longest: Duration) {
        let now = Instant::now();
        self.trip.note(now.saturating_duration_since(sent), longest);
        (self.sick, self.has_failed) = (None, false);
        self.answered_to = self.answered_to.max(Some(sent));
    }
}

/// The task that probes a sick master.
struct Probing {
    master: Weak<Master>,
    number: u64,
}

impl Probing {
    /// Call it outside the mutex: a runtime that shuts down drops the task at once, and its destructor locks the mutex.
    fn start(probing: Option<Self>) {
        if let (Some(probing), Ok(runtime)) = (probing, Handle::try_current()) {
            drop(runtime.spawn(probing.run()));
        }
    }

    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
            let Some(master) = self.master.upgrade() else { return };
            if !master.state().is_probed_by(self.number) {
                return;
            }
            match master.time().await {
                Err(error) if error.kind() != ErrorKind::Closed => {}
                _ => return,
            }
            if !master.state().is_probed_by(self.number) {
                return;
            }
        }
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        if let Some(master) = self.master.upgrade() {
            master.state().probe.take_if(|probe| probe.number == self.number);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc;
    use std::thread;

    use redis_link::client::RedisClient;
    use redis_link::redis::IntoConnectionInfo as _;

    use super::*;
    use crate::servers::masters::Masters;

    const PAUSE: Duration = Duration::from_secs(1);

    /// Masters without a server.
    pub(crate) fn dead(count: u16) -> Masters {
        let registry = Arc::default();
        let master = |port: u16| {
            let info = format!("redis://127.0.0.1:{port}").into_connection_info().unwrap();
            let voter = Voter::new(Arc::new(RedisClient::new(Voter::options(info)).unwrap()));
            Master::new(voter, Duration::from_secs(1), Duration::from_secs(30), &registry, &Arc::default())
        };
        (1..=count).map(master).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_sent_in_quarantine_does_not_count_after_it_either() {
        let master = &dead(1)[0];
        let from = Instant::now() + PAUSE;
        let counts = |sent, has_vote| {
            let state = State { votes_from: Some(from), ..State::default() };
            master.no_vote_reason(&state, sent, has_vote).is_none()
        };
        let sent = Instant::now();
        tokio::time::advance(PAUSE * 2).await;
        assert_eq!((counts(sent, false), counts(sent, true)), (false, true));
        assert!(counts(Instant::now(), false));
    }

    #[test]
    fn a_runtime_that_was_shut_down_does_not_deadlock() {
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let handle = runtime.handle().clone();
            drop(runtime);
            let _runtime = handle.enter();
            let master = Arc::clone(&dead(1)[0]);
            drop(master.note_late());
            let sick = matches!(master.readiness(), Readiness::Sick(_));
            done.send(sick && master.state().probe.is_none()).unwrap();
        });
        assert_eq!(is_done.recv_timeout(Duration::from_secs(20)), Ok(true));
    }

    /// One of a single thread runs only while somebody drives it.
    #[test]
    fn a_probe_on_a_runtime_that_is_paused_is_replaced() {
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let (paused, other) = (runtime(), runtime());
        let master = paused.block_on(async {
            let master = Arc::clone(&dead(1)[0]);
            drop(master.note_late());
            master
        });
        let probe = || master.state().probe.as_ref().map(|probe| probe.number);
        other.block_on(async {
            drop(master.readiness());
            assert_eq!(probe(), Some(1), "it may run");
            sleep(2 * LAST_PAUSE + master.client.command_timeout()).await;
            drop(master.readiness());
            assert_eq!(probe(), Some(2));
        });
        // The first one ends, and the second one goes on.
        paused.block_on(async { sleep(FIRST_PAUSE * 2).await });
        assert_eq!(probe(), Some(2));
        other.block_on(async {
            sleep(10 * LAST_PAUSE).await;
            drop(master.readiness());
        });
        assert_eq!(probe(), Some(2), "it shows that it runs");
    }
}
