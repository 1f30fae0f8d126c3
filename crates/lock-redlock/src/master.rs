//! One master of the quorum: how it does, and whether it votes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Outcome, Result};
use lock_redis::push::Pushes;
use lock_redis::server::{Claim, Extension, Verdict, Waiter};
use lock_redis::{Identity, Server};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::backend::BACKEND;
use crate::quarantine::after_restart;
use crate::round_trip::RoundTrip;

/// How long after it failed a master is first asked whether it is back.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// One master. While it does not answer it is left alone, so that it costs nothing; a task asks it now and then
/// whether it is back.
#[derive(Debug)]
pub(crate) struct Master {
    pub(crate) server: Arc<Server>,
    pub(crate) pushes: Pushes,
    longest_ttl: Duration,
    roll: Arc<Roll>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    trip: RoundTrip,
    /// When it last answered.
    heard: Option<Instant>,
    /// Why it is left alone.
    sick: Option<Error>,
    /// Whether a task asks it now and then.
    probed: bool,
    /// Who it was when its right to vote was last judged.
    known: Option<Arc<Identity>>,
    votes_from: Option<Instant>,
    /// Another address of the same server.
    twin: Option<String>,
}

/// Which server is behind which address, by the `run_id`: one that is reached by two addresses must not vote twice.
#[derive(Debug, Default)]
pub(crate) struct Roll {
    addresses: Mutex<HashMap<String, String>>,
}

/// Whether a master is to be asked.
#[derive(Debug)]
pub(crate) enum Readiness {
    Well,
    /// It did not answer the last time. It may be asked all the same when there is no quorum without it.
    Sick(Error),
    /// It does not vote.
    Barred(Error),
}

impl Master {
    pub(crate) fn new(
        server: Server,
        timeout: Duration,
        longest_ttl: Duration,
        roll: &Arc<Roll>,
    ) -> Arc<Self> {
        let server = Arc::new(server);
        let pushes = Pushes::new(Arc::clone(&server), timeout);
        Arc::new(Self { server, pushes, longest_ttl, roll: Arc::clone(roll), state: Mutex::default() })
    }

    /// The time since 1970 by its clock.
    pub(crate) async fn time(self: &Arc<Self>) -> Result<Duration> {
        let sent = Instant::now();
        self.noted(sent, self.server.time().await)
    }

    /// Asks for its vote. What it grants counts only if it may vote; if not, that is an error of which the outcome is
    /// that it was applied.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        claim: &Claim<'_>,
        waiter: Option<&Waiter<'_>>,
    ) -> Result<Verdict> {
        let sent = Instant::now();
        match self.server.claim_in_line(claim, waiter).await {
            // The connection may just have been idle for too long.
            Ok(Verdict::Broken) => Ok(Verdict::Broken),
            Ok(Verdict::Granted(token)) => {
                self.noted(sent, Ok(()))?;
                self.vouched(Verdict::Granted(token))
            }
            answer => self.noted(sent, answer),
        }
    }

    pub(crate) async fn extend(self: &Arc<Self>, leases: &[Extension<'_>]) -> Result<Vec<Result<bool>>> {
        let sent = Instant::now();
        let answers = self.noted(sent, self.server.extend(leases).await)?;
        self.vouched(answers)
    }

    /// How it does.
    pub(crate) fn readiness(self: &Arc<Self>) -> Readiness {
        let mut state = self.state();
        self.judge(&mut state);
        if let Some(error) = self.bar(&state) {
            return Readiness::Barred(error);
        }
        let Some(error) = state.sick.clone() else { return Readiness::Well };
        // Its task may have ended with a runtime.
        self.probe(&mut state);
        Readiness::Sick(error.with_outcome(Outcome::NotApplied))
    }

    /// An answer that counts only if the master may vote.
    ///
    /// It is judged after the answer: the request may have gone out on a new connection, to a server that has restarted.
    pub(crate) fn vouched<T>(&self, answer: T) -> Result<T> {
        let mut state = self.state();
        self.judge(&mut state);
        if state.known.is_none() {
            return Err(Error::new(ErrorKind::Denied, BACKEND)
                .message(format!(
                    "it is not told whether the master has restarted, and so it does not vote ({})",
                    self.server.address()
                ))
                .hint("give the user the rights +info and +dbsize")
                .with_outcome(Outcome::Applied));
        }
        match self.bar(&state) {
            Some(error) => Err(error.with_outcome(Outcome::Applied)),
            None => Ok(answer),
        }
    }

    /// Notes what became of a request.
    pub(crate) fn noted<T>(self: &Arc<Self>, sent: Instant, answer: Result<T>) -> Result<T> {
        let mut state = self.state();
        match &answer {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                state.sick = Some(error.clone());
                self.probe(&mut state);
            }
            Err(_) => {}
            Ok(_) => {
                self.judge(&mut state);
                let now = Instant::now();
                state.trip.note(now.saturating_duration_since(sent));
                (state.sick, state.heard) = (None, Some(now));
            }
        }
        drop(state);
        answer
    }

    /// Notes that its answer is late.
    pub(crate) fn is_late(self: &Arc<Self>) -> Error {
        let error = Error::new(ErrorKind::Unavailable, BACKEND)
            .message(format!("the answer of a master is late ({})", self.server.address()))
            .with_outcome(Outcome::Unknown);
        let mut state = self.state();
        state.trip.miss();
        if state.sick.is_none() {
            state.sick = Some(error.clone());
        }
        self.probe(&mut state);
        error
    }

    /// How long its next answer is waited for when a lock of this time to live is decided on.
    pub(crate) fn deadline(&self, ttl: Duration) -> Duration {
        self.state().trip.deadline(ttl, self.server.command_timeout())
    }

    /// About how long an answer takes.
    pub(crate) fn round_trip(&self) -> Duration {
        self.state().trip.smoothed()
    }

    /// How long an answer is waited for that nobody is in a hurry for.
    pub(crate) fn patience(&self) -> Duration {
        let (state, longest) = (self.state(), self.server.command_timeout());
        match state.sick {
            None => longest,
            Some(_) => state.trip.deadline(Duration::ZERO, longest),
        }
    }

    /// From when on it votes, if not by now.
    pub(crate) fn is_barred_until(&self) -> Option<Instant> {
        self.state().votes_from.filter(|from| Instant::now() < *from)
    }

    /// Notes who it is, and from when on it votes if not at once: the judgement at first sight.
    pub(crate) fn first_seen(&self, identity: Arc<Identity>, from: Option<Instant>) {
        if from.is_some() {
            self.warn(&identity, from);
        }
        let mut state = self.state();
        state.twin = self.roll.enter(&identity, self.server.address());
        (state.known, state.votes_from) = (Some(identity), from);
    }

    /// The other address of this server, if it has one.
    pub(crate) fn twin(&self) -> Option<String> {
        self.state().twin.clone()
    }

    /// Closes its connections for good.
    pub(crate) fn close(&self) {
        self.pushes.close();
        self.server.close();
    }

    /// Looks whether it is another server than before.
    fn judge(&self, state: &mut State) {
        let Some(identity) = self.server.identity() else { return };
        if state.known.as_ref().is_some_and(|known| known.run_id == identity.run_id) {
            return;
        }
        state.votes_from = after_restart(&identity, state.heard, self.longest_ttl);
        state.twin = self.roll.enter(&identity, self.server.address());
        self.warn(&identity, state.votes_from);
        state.known = Some(identity);
    }

    fn warn(&self, identity: &Identity, from: Option<Instant>) {
        if let Some(from) = from {
            let left = from.saturating_duration_since(Instant::now());
            tracing::warn!(
                master = self.server.address(),
                uptime = ?identity.uptime,
                "a master has restarted, and may have lost locks: it does not vote for {left:?}"
            );
        }
    }

    /// Why it does not vote.
    fn bar(&self, state: &State) -> Option<Error> {
        let address = self.server.address();
        if let Some(twin) = &state.twin {
            return Some(same_server(address, twin));
        }
        let left = state.votes_from?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then(|| {
            Error::new(ErrorKind::Unavailable, BACKEND)
                .message(format!(
                    "the master has restarted and may have lost locks: it votes again in {left:.1?} ({address})"
                ))
                .hint("wait; longest_ttl says for how long locks may have been granted")
        })
    }

    /// Sees to it that a task asks now and then whether it is back.
    fn probe(self: &Arc<Self>, state: &mut State) {
        let Ok(runtime) = Handle::try_current() else { return };
        if !std::mem::replace(&mut state.probed, true) {
            // Made here, so that it is dropped also when the runtime never polls the task.
            let probing = Probing(Arc::downgrade(self));
            drop(runtime.spawn(probing.run()));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that asks a sick master now and then.
struct Probing(Weak<Master>);

impl Probing {
    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
            let Some(master) = self.0.upgrade() else { return };
            if master.state().sick.is_none() {
                return;
            }
            match master.time().await {
                Err(error) if error.kind() != ErrorKind::Closed => {}
                _ => return,
            }
        }
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        if let Some(master) = self.0.upgrade() {
            master.state().probed = false;
        }
    }
}

impl Roll {
    /// Notes who is behind an address, and gives the other one of the same server if there is one.
    fn enter(&self, identity: &Identity, address: &str) -> Option<String> {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let first = addresses.entry(identity.run_id.clone()).or_insert_with(|| address.to_owned());
        (first != address).then(|| first.clone())
    }
}

/// The error of two addresses that lead to one server.
pub(crate) fn same_server(one: &str, other: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, BACKEND)
        .message(format!("the masters {other} and {one} are one server, which would vote twice"))
        .hint("name independent masters")
}
