//! Waits for a busy lock.

use std::time::Duration;

use lock_core::waiting::{Tried, WaitState, is_silence, longest_pause, pause_between, poll_pause, within};
use lock_core::{Acquired, BootInstant, Error, Result, Token, Wait};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};

use crate::attempt::{Acquisition, Attempt};
use crate::context::Context;
use crate::inbox::Listening;
use crate::lease::PostgresLease;
use crate::locked_row::{IS_LONG, LockedRow};
use crate::server::Asked;

/// How long another request usually has the row of a lock, at most.
pub(crate) const MOMENT: Duration = Duration::from_millis(100);
/// How long a caller is kept whose time is over: the library grants 100 ms.
const AT_THE_END: Duration = Duration::from_millis(50);
/// The server rounds the remaining time of a lease.
const ROUNDING: Duration = Duration::from_millis(2);

/// One acquisition of a lock that is busy.
pub(crate) struct Waiting<'a> {
    what: Acquisition<'a>,
    attempt: Option<Attempt>,
    /// Reports when the inbox opens or closes.
    listening: Option<watch::Receiver<Listening>>,
    began: Instant,
    /// When to ask again without a notification.
    again_at: Instant,
    locked: LockedRow,
    /// Whether the last answer was that another transaction has the row.
    is_locked: bool,
    /// Until when a call that does not wait goes on then.
    locked_until: Instant,
    /// Whose session that was when it was last looked at.
    blocker: Option<i32>,
    /// Whether there was another answer: the lock is busy.
    was_busy: bool,
    /// The token of a grant that was notified.
    granted: Option<Token>,
    state: WaitState,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(what: Acquisition<'a>) -> Self {
        let now = Instant::now();
        Self {
            what,
            attempt: None,
            listening: None,
            began: now,
            again_at: now,
            locked: LockedRow::default(),
            is_locked: false,
            locked_until: now + MOMENT,
            blocker: None,
            was_busy: false,
            granted: None,
            state: WaitState::default(),
        }
    }

    /// Continues after the first answer. An outage is tolerated only once the server has answered that the lock is busy.
    pub(crate) async fn go_on(
        mut self,
        attempt: Attempt,
        sent: BootInstant,
        first: Result<Asked>,
    ) -> Result<Acquired> {
        let asked = self.answered(attempt, sent, first).await?;
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
            // In the background, if the server is slow.
            let _ = timeout(AT_THE_END, attempt.rollback.now()).await;
        }
        self.state.into_outage().map_or(Ok(Acquired::Busy), Err)
    }

    /// Asks for the lock: `None` if it is busy, or during a tolerated outage.
    ///
    /// # Errors
    ///
    /// An error that ends the wait.
    async fn ask(&mut self) -> Result<Option<PostgresLease>> {
        if let Some((lease, attempt)) = self.take_over() {
            // The caller may block this thread from now on. Yield first, so that the confirmation is sent: once for the
            // renewal task and once for the connection.
            yield_now().await;
            yield_now().await;
            attempt.rollback.disarm();
            return Ok(Some(lease));
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
        let at = end.map_or(self.again_at, |end| end.min(self.again_at));
        let mailbox = self.attempt.as_mut().and_then(|attempt| attempt.mailbox.as_mut());
        let granted = async {
            match mailbox {
                Some(mailbox) => mailbox.granted().await,
                None => std::future::pending().await,
            }
        };
        let reported = async {
            let Some(listening) = &mut self.listening else { return std::future::pending().await };
            if listening.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            token = granted => self.granted = Some(token),
            () = reported => {}
            () = sleep_until(at) => {}
        }
        let is_left = self.granted.is_some() || end.is_none_or(|end| Instant::now() < end);
        is_left || self.asks_on().await
    }

    /// Whether to ask again though the time is over, as nothing is known but that another request has the row.
    async fn asks_on(&mut self) -> bool {
        let (context, name) = (self.what.context, &self.what.name);
        if !self.is_locked || self.was_busy || self.began.elapsed() >= context.server.command_timeout() {
            return false;
        }
        // Who has a deadline does not wait until it is clear whose that is.
        let longest = if self.what.request.wait == Wait::Never { IS_LONG } else { MOMENT };
        let is_long = match context.server.blocker(name).await {
            Ok(Some(blocker)) => {
                let is_same = self.blocker.replace(blocker.pid) == Some(blocker.pid);
                blocker.open.map_or(is_same, |open| open >= longest)
            }
            Ok(None) => false,
            Err(_) => true,
        };
        self.locked_until = Instant::now() + MOMENT;
        !is_long
    }

    /// The end of the wait: later, if nothing is known but that another transaction has the row.
    fn end(&self, end: Instant) -> Instant {
        if self.is_locked && !self.was_busy { end.max(self.locked_until) } else { end }
    }

    /// Takes over the lock after a grant, if enough of its time is surely left. The first renewal confirms it in the background.
    /// The attempt that is returned rolls it back until it has a holder.
    ///
    /// The notification may have been delayed for any time. But the grant is not older than the attempt's first request, and lasts for
    /// the grace period. After a longer wait the lock is asked for once more, which confirms the grant.
    fn take_over(&mut self) -> Option<(PostgresLease, Attempt)> {
        let token = self.granted.take()?;
        let (context, grace) = (self.what.context, self.what.grace());
        let since = self.attempt.as_ref()?.since?;
        let (until, now) = (Context::valid_until(since, grace), context.clock.now());
        if !self.what.request.lease.renewed || now + grace / 4 > until {
            return None;
        }
        let attempt = self.attempt.take()?;
        let lease = PostgresLease::begin(
            context,
            &self.what.name,
            self.what.request,
            (attempt.rollback.owner, token),
            (now, until),
        );
        lease.confirm();
        Some((lease, attempt))
    }

    async fn ask_twice(&mut self) -> Result<Option<PostgresLease>> {
        let asked = self.ask_once().await?;
        self.once_more(asked).await
    }

    /// Asks once more, over a new connection, after one that broke or is silent: the server may just have closed it as idle, or
    /// a router on the way may have forgotten it.
    async fn once_more(&mut self, asked: Tried<PostgresLease>) -> Result<Option<PostgresLease>> {
        match asked {
            Tried::Again(_) => self.ask_once().await?.ended(),
            asked => asked.ended(),
        }
    }

    async fn ask_once(&mut self) -> Result<Tried<PostgresLease>> {
        let mut attempt = self.attempt.take().unwrap_or_else(|| self.what.attempt());
        let (sent, answer) = attempt.ask(&self.what).await;
        self.answered(attempt, sent, answer).await
    }

    async fn answered(
        &mut self,
        mut attempt: Attempt,
        sent: BootInstant,
        answer: Result<Asked>,
    ) -> Result<Tried<PostgresLease>> {
        self.is_locked = matches!(answer, Ok(Asked::Locked));
        match answer {
            Ok(Asked::Granted(token)) => attempt.granted(&self.what, sent, token).map(Tried::Granted),
            Ok(Asked::Busy { ahead, ends_in }) => {
                self.attempt = Some(attempt);
                self.busy(ahead, ends_in);
                Ok(Tried::Busy)
            }
            Ok(Asked::Locked) => {
                self.attempt = Some(attempt);
                self.state.busy(&self.what.name, None);
                self.again_at = Instant::now() + self.locked.next_pause();
                Ok(Tried::Busy)
            }
            Err(error) if is_silence(&error) => {
                // At once, so that it does not block the next attempt. If this fails, that one fails too, and reports why.
                attempt.rollback.now().await;
                Ok(Tried::Again(error))
            }
            Err(error) => {
                if attempt.failed(&error) {
                    self.attempt = Some(attempt);
                }
                Err(error)
            }
        }
    }

    fn busy(&mut self, ahead: Option<usize>, ends_in: Option<Duration>) {
        self.state.busy(&self.what.name, None);
        self.was_busy = true;
        self.locked.end();
        if let Some(ahead) = ahead {
            // The holder is not in the queue.
            self.what.request.report_position(ahead + 1);
        }
        let longest = match (self.listens(), ahead) {
            (true, _) => longest_pause(),
            (false, Some(1..)) => pause_between(250, 1_000),
            (false, _) => poll_pause(),
        };
        // Not all at once: the first of those that ask then passes an expired lock on.
        let spread = ahead.map_or(Duration::ZERO, |ahead| Duration::from_millis(10) * ahead.min(50) as u32);
        let pause = ends_in.map_or(longest, |left| longest.min(left + ROUNDING + spread));
        self.again_at = Instant::now() + pause;
    }

    /// Whether this waiter is notified; opens the inbox if necessary, which reports when that is done.
    fn listens(&mut self) -> bool {
        if !self.what.context.listens || matches!(self.what.request.wait, Wait::Never) {
            return false;
        }
        let mut listening = self.what.context.inbox.open();
        let is_open = matches!(*listening.borrow_and_update(), Listening::By(_));
        self.listening = Some(listening);
        is_open && self.attempt.as_ref().is_some_and(|attempt| attempt.mailbox.is_some())
    }

    fn failed(&mut self, error: Error) -> Result<()> {
        self.state.failed(error, self.what.context.ttl, false)?;
        self.again_at = Instant::now() + poll_pause();
        Ok(())
    }
}
