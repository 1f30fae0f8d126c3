//! Waits for a busy lock.

use std::future::pending;
use std::mem;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};

use super::attempt::{Acquisition, Attempt};
use super::blocked::{IS_LONG, Pauses};
use super::lease::EngineLease;
use super::{Answer, LeaseStore, Mailbox, Message};
use crate::process::time::drift::valid_until;
use crate::process::waiting::{
    Tried, WaitState, is_silence, longest_pause, pause_between, poll_pause, within,
};
use crate::{Acquired, BootInstant, Error, Outcome, Result, Token, Wait};

/// How long another request usually has the record of a lock, at most.
const MOMENT: Duration = Duration::from_millis(100);
/// How long a caller is kept whose time is over: the library grants 100 ms.
const AT_THE_END: Duration = Duration::from_millis(50);
/// A confirmation is sent and answered within this time, if the store answers as usual.
const SOON: Duration = Duration::from_millis(500);
/// Stores round the remaining time of a lease.
const ROUNDING: Duration = Duration::from_millis(2);

/// One acquisition of a lock that is busy.
pub(super) struct Waiting<'a, S: LeaseStore> {
    what: Acquisition<'a, S>,
    attempt: Option<Attempt<S>>,
    began: Instant,
    /// When to ask again without a message.
    again_at: Instant,
    pauses: Pauses,
    /// Whether the last answer was that something else has the record.
    is_blocked: bool,
    /// Until when a call that does not wait goes on then.
    blocked_until: Instant,
    /// What that was when it was last looked at.
    blocker: Option<String>,
    /// Whether there was another answer: the lock is busy.
    was_busy: bool,
    /// Whether it was notified of a grant, and has not asked since.
    was_granted: bool,
    /// The token of that grant, if it can be taken over.
    granted: Option<Token>,
    /// Whether an earlier request may still be executed.
    in_doubt: bool,
    state: WaitState,
}

impl<'a, S: LeaseStore> Waiting<'a, S> {
    pub(super) fn new(what: Acquisition<'a, S>) -> Self {
        let now = Instant::now();
        Self {
            what,
            attempt: None,
            began: now,
            again_at: now,
            pauses: Pauses::default(),
            is_blocked: false,
            blocked_until: now + MOMENT,
            blocker: None,
            was_busy: false,
            was_granted: false,
            granted: None,
            in_doubt: false,
            state: WaitState::default(),
        }
    }

    /// Continues after the first answer. An outage is tolerated only once the store has answered that the lock is busy.
    pub(super) async fn go_on(
        mut self,
        attempt: Attempt<S>,
        sent: BootInstant,
        first: Result<Answer>,
    ) -> Result<Acquired> {
        let asked = self.answered(attempt, sent, first, false).await?;
        let mut lease = self.once_more(asked).await?;
        loop {
            if let Some(lease) = lease {
                return Ok(Acquired::Held(Box::new(lease)));
            }
            if !self.wait().await {
                return self.give_up().await;
            }
            lease = self.ask().await?;
        }
    }

    /// Leaves the queue before it answers: else the lock might be kept for this waiter for a moment.
    async fn give_up(self) -> Result<Acquired> {
        if let Some(attempt) = self.attempt {
            // In the background, if the store is slow.
            let _ = timeout(AT_THE_END, attempt.rollback.now()).await;
        }
        self.state.into_outage().map_or(Ok(Acquired::Busy), Err)
    }

    /// Asks for the lock: `None` if it is busy, or during a tolerated outage.
    ///
    /// # Errors
    ///
    /// An error that ends the wait.
    async fn ask(&mut self) -> Result<Option<EngineLease<S>>> {
        if let Some((lease, attempt)) = self.take_over() {
            // The caller may block this thread from now on. Yield first, so that the confirmation is sent: once for the
            // renewal task and once for the connection.
            yield_now().await;
            yield_now().await;
            // It may not have been polled for long.
            if lease.is_held() {
                return Ok(Some(lease.keeping(attempt.rollback.disarm())));
            }
        }
        let deadline = self.state.deadline(self.what.request.wait).map(|end| self.end(end));
        match within(deadline, self.ask_twice()).await {
            Some(Ok(lease)) => Ok(lease),
            Some(Err(error)) => self.failed(error).map(|()| None),
            None => Ok(None),
        }
    }

    /// Waits until it is worth asking again, and reports whether there is time left.
    async fn wait(&mut self) -> bool {
        let end = self.what.request.wait.deadline().map(|end| self.end(end));
        loop {
            let at = end.map_or(self.again_at, |end| end.min(self.again_at));
            let Some(message) = self.message(at).await else { break };
            match message {
                Message::Granted(token) => (self.was_granted, self.granted) = (true, Some(token)),
                Message::Confirm => self.was_granted = true,
                Message::Ask => {}
                Message::AskIn(span) => {
                    self.again_at = self.again_at.min(Instant::now() + span.min(longest_pause()) + ROUNDING);
                    continue;
                }
            }
            break;
        }
        let is_left = self.granted.is_some() || end.is_none_or(|end| Instant::now() < end);
        is_left || self.asks_on().await
    }

    /// The next message until then.
    async fn message(&mut self, at: Instant) -> Option<Message> {
        let mailbox = self.attempt.as_mut().and_then(|attempt| attempt.rollback.mailbox.as_mut());
        let message = async {
            match mailbox {
                Some(mailbox) => mailbox.next().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            message = message => Some(message),
            () = sleep_until(at) => None,
        }
    }

    /// Whether to ask again though the time is over, as nothing is known but that something else has the record.
    async fn asks_on(&mut self) -> bool {
        let Acquisition { core, place, request, .. } = &self.what;
        if !self.is_blocked || self.was_busy || self.began.elapsed() >= core.options.command_timeout {
            return false;
        }
        // Who has a deadline does not wait until it is clear what that is.
        let longest = if request.wait == Wait::Never { IS_LONG } else { MOMENT };
        let is_long = match core.store.blocker(place).await {
            Ok(Some(blocker)) => {
                let is_same = self.blocker.replace(blocker.what.clone()) == Some(blocker.what);
                blocker.open.map_or(is_same, |open| open >= longest)
            }
            Ok(None) => false,
            Err(_) => true,
        };
        self.blocked_until = Instant::now() + MOMENT;
        !is_long
    }

    /// The end of the wait: later, if nothing is known but that something else has the record.
    fn end(&self, end: Instant) -> Instant {
        if self.is_blocked && !self.was_busy { end.max(self.blocked_until) } else { end }
    }

    /// Takes over the lock after a grant, if enough of its time is surely left. The first renewal confirms it in the background; there
    /// is no second one until it has a holder, and the attempt that is returned rolls it back until then.
    ///
    /// The message may have been delayed for any time. But the grant is not older than the attempt's first request, and lasts for the
    /// grace period. After a longer wait the lock is asked for once more, which confirms the grant.
    fn take_over(&mut self) -> Option<(EngineLease<S>, Attempt<S>)> {
        let token = self.granted.take()?;
        let core = self.what.core;
        let Attempt { since, grace, .. } = *self.attempt.as_ref()?;
        let (until, now) = (valid_until(since?, grace), core.options.clock.now());
        let enough = (grace / 4).max(SOON.min(grace / 2)).max(core.round_trip.get() * 8);
        if !self.what.request.lease.renewed || now + enough > until {
            return None;
        }
        self.was_granted = false;
        let attempt = self.attempt.take()?;
        let grant = (attempt.rollback.owner, token);
        let lease = EngineLease::begin_early(core, &self.what.place, self.what.request, grant, (now, until));
        lease.confirm();
        Some((lease.contended(true), attempt))
    }

    async fn ask_twice(&mut self) -> Result<Option<EngineLease<S>>> {
        let asked = self.ask_once().await?;
        self.once_more(asked).await
    }

    /// Asks once more, over a new connection, after one that broke or is silent: the server may just have closed it as idle, or
    /// a router on the way may have forgotten it.
    async fn once_more(&mut self, asked: Tried<EngineLease<S>>) -> Result<Option<EngineLease<S>>> {
        match asked {
            Tried::Again(_) => self.ask_once().await?.ended(),
            asked => asked.ended(),
        }
    }

    async fn ask_once(&mut self) -> Result<Tried<EngineLease<S>>> {
        let mut attempt = self.attempt.take().unwrap_or_else(|| self.what.attempt());
        let was_granted = mem::take(&mut self.was_granted);
        let (sent, answer) = attempt.ask(&self.what, was_granted).await;
        self.answered(attempt, sent, answer, was_granted).await
    }

    async fn answered(
        &mut self,
        mut attempt: Attempt<S>,
        sent: BootInstant,
        answer: Result<Answer>,
        was_granted: bool,
    ) -> Result<Tried<EngineLease<S>>> {
        self.is_blocked = matches!(answer, Ok(Answer::Blocked));
        match answer {
            Ok(Answer::Granted(token)) => {
                attempt.granted(&self.what, sent, token, self.state.is_contended()).map(Tried::Granted)
            }
            Ok(Answer::Busy { ahead, ends_in }) => {
                let core = self.what.core;
                let took = core.options.clock.now().saturating_duration_since(sent);
                // What is longer was a pause of this process.
                core.round_trip.note(took.min(core.options.command_timeout));
                self.busy(&mut attempt, ahead, ends_in);
                // In the queue, it keeps its place: the message was late. But a queue entry keeps its grace period as well, and one
                // that is too short for slow answers would be over each time.
                if was_granted && (ahead.is_none() || attempt.grace < self.what.grace()) {
                    self.again_at = Instant::now();
                } else {
                    self.attempt = Some(attempt);
                }
                Ok(Tried::Busy)
            }
            Ok(Answer::Blocked) => {
                (self.attempt, self.was_granted) = (Some(attempt), was_granted);
                self.state.busy("", None);
                self.again_at = Instant::now() + self.pauses.next();
                Ok(Tried::Busy)
            }
            Err(error) if is_silence(&error) => {
                // At once, so that it does not block the next attempt.
                let rolled_back = attempt.rollback.now().await;
                self.in_doubt |= !matches!(rolled_back, Ok(true));
                match rolled_back {
                    // It says more than that the connection broke.
                    Err(unreached) if error.code() == "broken" => Err(self.doubted(unreached)),
                    Err(_) => Err(error),
                    Ok(_) => Ok(Tried::Again(error)),
                }
            }
            Err(error) if error.outcome() == Outcome::Applied => {
                // At once, so that it does not block a retry.
                attempt.rollback.refused();
                Err(match attempt.rollback.now().await {
                    Ok(true) => self.doubted(error.with_outcome(Outcome::NotApplied)),
                    _ => error,
                })
            }
            Err(error) => {
                if attempt.failed(&error) {
                    (self.attempt, self.was_granted) = (Some(attempt), was_granted);
                }
                Err(self.doubted(error))
            }
        }
    }

    /// The error of an acquisition of which an earlier request may still be executed.
    fn doubted(&self, error: Error) -> Error {
        if self.in_doubt { error.with_outcome(Outcome::Unknown) } else { error }
    }

    fn busy(&mut self, attempt: &mut Attempt<S>, ahead: Option<usize>, ends_in: Option<Duration>) {
        self.state.busy("", None);
        self.was_busy = true;
        self.pauses.end();
        if let Some(ahead) = ahead {
            // The holder is not in the queue.
            self.what.request.report_position(ahead + 1);
        }
        let relies = attempt.rollback.mailbox.as_mut().and_then(|mailbox| mailbox.listens(ahead));
        let poll = u64::try_from(self.what.core.options.poll.as_millis()).unwrap_or(u64::MAX).max(1);
        let longest = match (relies, ahead) {
            (Some(pause), _) => pause,
            (None, Some(1..)) => pause_between(poll, poll.saturating_mul(4)),
            (None, _) => pause_between(poll / 5, poll),
        };
        // Not all at once: the first of those that ask then passes an expired lock on.
        let spread = ahead.map_or(Duration::ZERO, |ahead| Duration::from_millis(10) * ahead.min(50) as u32);
        let pause = ends_in.map_or(longest, |left| longest.min(left.saturating_add(ROUNDING + spread)));
        self.again_at = Instant::now() + pause;
    }

    fn failed(&mut self, error: Error) -> Result<()> {
        let ttl = self.what.core.capabilities.lease.default_ttl();
        self.state.failed(error, ttl, false)?;
        self.again_at = Instant::now() + poll_pause();
        Ok(())
    }
}
