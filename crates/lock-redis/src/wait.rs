//! The wait of one acquisition.

use std::mem;
use std::time::Duration;

use lock_core::{Acquired, Error, Result, Token, Wait};
use redis_link::drift::valid_until;
use redis_link::lock_answer::LockAnswer;
use redis_link::push::{Listener, Notification};
use redis_link::waiting::{ROUNDED, WaitState, longest_pause, pause_between, within};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};

use crate::attempt::{Acquisition, Attempt, Queued};
use crate::config::RedisWait;
use crate::lease::RedisLease;
use crate::request::Moment;

/// The first in the queue has the key watched when the lock does not come within this time; within twice that time after
/// each change that was of no use, up to the longest: those who share a lock change its key whenever they renew it.
const WATCH_AFTER: Duration = Duration::from_millis(10);
const LONGEST_WATCH_AFTER: Duration = Duration::from_millis(500);

/// One acquisition of a lock that is not to be had at once.
pub(crate) struct Waiting<'a> {
    what: Acquisition<'a>,
    attempt: Option<Attempt>,
    listener: Option<Listener>,
    /// Tells when the inbox is heard.
    opening: Option<Listener>,
    /// When to ask again, unless there is news before.
    again_at: Instant,
    /// The lock is busy, and who asks is the first in the queue.
    is_first: bool,
    watch_after: Duration,
    /// The key was not there when it was to be watched, and yet the lock is busy.
    watched_in_vain: bool,
    /// We were told that the lock is ours, and have not asked since.
    was_granted: bool,
    /// The token that we were told.
    passed: Option<Token>,
    state: WaitState,
}

/// What became of one request.
enum Asked {
    Granted(RedisLease),
    Busy,
    /// The connection broke under it; nothing is left of it.
    Broken,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(what: Acquisition<'a>, listener: Option<Listener>) -> Self {
        Self {
            what,
            attempt: None,
            listener,
            opening: None,
            again_at: Instant::now(),
            is_first: false,
            watch_after: WATCH_AFTER,
            watched_in_vain: false,
            was_granted: false,
            passed: None,
            state: WaitState::default(),
        }
    }

    /// Goes on after the first answer.
    pub(crate) async fn go_on(
        mut self,
        attempt: Attempt,
        sent: Moment,
        first: LockAnswer,
    ) -> Result<Acquired> {
        let asked = self.answered(attempt, sent, first, false).await?;
        if let Some(lease) = self.once_more(asked).await? {
            return Ok(Acquired::Held(Box::new(lease)));
        }
        while !self.what.request.wait.is_expired() && self.wait().await {
            if let Some(lease) = self.ask().await? {
                return Ok(Acquired::Held(Box::new(lease)));
            }
        }
        self.give_up()
    }

    /// Asks for the lock: `None` when it is busy, or an outage is to be sat out.
    ///
    /// # Errors
    ///
    /// When there is no sense in waiting.
    async fn ask(&mut self) -> Result<Option<RedisLease>> {
        if let Some((mut lease, attempt)) = self.take_over() {
            // The holder may keep this thread busy from now on: the confirmation leaves before, as the renewal and the
            // connection get their turn, one after the other: now and then who yields goes on before all are through.
            yield_now().await;
            yield_now().await;
            lease = lease.registered(attempt.rollback.disarm());
            return Ok(Some(lease));
        }
        let deadline = self.state.deadline(self.what.request.wait);
        match within(deadline, self.ask_twice()).await {
            Some(Ok(lease)) => Ok(lease),
            Some(Err(error)) => self.failed(error).map(|()| None),
            None => Ok(None),
        }
    }

    /// Waits until it makes sense to ask again, and says whether there is time to.
    async fn wait(&mut self) -> bool {
        if self.what.request.wait == Wait::Never {
            return false;
        }
        let end = self.what.request.wait.deadline();
        loop {
            let at = end.map_or(self.again_at, |end| end.min(self.again_at));
            let Some(news) = self.next_news(at).await else { break };
            match news {
                Notification::Ask => break,
                Notification::Granted => {
                    self.was_granted = true;
                    break;
                }
                Notification::HandedOver(token) => {
                    (self.was_granted, self.passed) = (true, Some(token));
                    break;
                }
                Notification::AskIn(span) => {
                    self.is_first = true;
                    self.again_at = self.again_at.min(Instant::now() + span.min(longest_pause()) + ROUNDED);
                }
            }
        }
        !self.what.request.wait.is_expired()
    }

    fn give_up(self) -> Result<Acquired> {
        self.state.into_outage().map_or(Ok(Acquired::Busy), Err)
    }

    /// The lock that was passed on to us, if it is ours for a while surely: then it is confirmed by its first renewal, in
    /// the background. With it comes what takes it back until it has a holder.
    ///
    /// A message may be on its way for any time. But nothing was granted to this attempt before its first request was
    /// sent, and what was granted to it was for so long.
    fn take_over(&mut self) -> Option<(RedisLease, Attempt)> {
        let token = self.passed.take()?;
        let Attempt { since, queued, .. } = self.attempt.as_ref()?;
        let (since, grace) = ((*since)?, queued.as_ref()?.grace);
        let (until, now) = (valid_until(since, grace), self.what.context.clock.now());
        let is_enough = now + (grace / 2).max(self.what.context.round_trip() * 8) <= until;
        if !is_enough || !self.what.request.lease.renewed || self.what.context.server.waits_for_replicas() {
            return None;
        }
        let attempt = self.attempt.take()?;
        self.was_granted = false;
        let lease = RedisLease::begin(
            self.what.context,
            &self.what.keys,
            self.what.request,
            (attempt.rollback.owner, token),
            (now, until),
        );
        lease.confirm();
        Some((lease.contended(self.state.is_contended()), attempt))
    }

    async fn ask_twice(&mut self) -> Result<Option<RedisLease>> {
        let asked = self.ask_once().await?;
        self.once_more(asked).await
    }

    /// Asks once more if the connection was broken: it may have been idle for too long.
    async fn once_more(&mut self, mut asked: Asked) -> Result<Option<RedisLease>> {
        if matches!(asked, Asked::Broken) {
            asked = self.ask_once().await?;
        }
        match asked {
            Asked::Granted(lease) => Ok(Some(lease)),
            Asked::Busy => Ok(None),
            Asked::Broken => Err(self.what.context.server.broken()),
        }
    }

    async fn ask_once(&mut self) -> Result<Asked> {
        let mut attempt = self.attempt.take().unwrap_or_else(|| self.what.attempt());
        // What is told from here on is news: the answer may not know of it yet.
        if let Some(listener) = &mut self.listener {
            listener.mark_seen();
        }
        let was_granted = mem::take(&mut self.was_granted);
        let (sent, answer) = attempt.ask(&self.what, was_granted).await;
        match answer {
            Ok(verdict) => self.answered(attempt, sent, verdict, was_granted).await,
            Err(error) => {
                if attempt.failed(&error) {
                    (self.attempt, self.was_granted) = (Some(attempt), was_granted);
                }
                Err(error)
            }
        }
    }

    async fn answered(
        &mut self,
        mut attempt: Attempt,
        sent: Moment,
        verdict: LockAnswer,
        was_granted: bool,
    ) -> Result<Asked> {
        match verdict {
            LockAnswer::Granted(token) => {
                let attempt = attempt.replicated(&self.what).await?;
                let lease = attempt.granted(&self.what, sent, token)?;
                Ok(Asked::Granted(lease.contended(self.state.is_contended())))
            }
            LockAnswer::Busy { ends_in, foreign_type, position } => {
                attempt.rollback.answered();
                self.what.context.note_round_trip(sent.at);
                self.busy(ends_in, foreign_type, position);
                if was_granted {
                    // We came too late to confirm. The next entry asks for more time, if answers are slow.
                    self.again_at = Instant::now();
                } else {
                    self.attempt = Some(attempt);
                }
                Ok(Asked::Busy)
            }
            LockAnswer::Broken => {
                // At once, so that the next one does not meet this one. If it fails, the next fails as well, and
                // tells why.
                attempt.rollback.now().await;
                Ok(Asked::Broken)
            }
        }
    }

    fn busy(&mut self, ends_in: Option<Duration>, foreign_type: Option<String>, position: Option<usize>) {
        self.state.busy(self.what.keys.lock(), foreign_type);
        self.is_first = position == Some(0);
        if let Some(position) = position {
            // The holder is none of those in the line.
            self.what.request.report_position(position + 1);
        }
        let listens = self.listens(position.is_some());
        let longest = match position {
            _ if !listens => poll_pause(),
            // It hears that it is the first when the one before it confirms, and that one may have died.
            Some(1..) => longest_pause() / 2,
            _ => longest_pause(),
        };
        let pause = ends_in.map_or(longest, |left| longest.min(left + ROUNDED));
        self.again_at = Instant::now() + pause;
    }

    /// Whether we hear of what becomes of the lock; sees to it that we do.
    fn listens(&mut self, in_queue: bool) -> bool {
        if self.what.request.wait.is_expired() {
            return false;
        }
        let Some(push) = self.what.context.push.of(&self.what.keys) else { return false };
        match self.what.context.wait {
            RedisWait::Poll => false,
            RedisWait::Notify => {
                let is_live = self.listener.as_ref().is_some_and(Listener::is_live);
                if !is_live {
                    // Anew, as the runtime that the connection was on may have ended.
                    self.listener = Some(push.listen(self.what.keys.channel()));
                }
                is_live
            }
            RedisWait::Queue => {
                let inbox = push.inbox(&self.what.keys);
                let hears = push.hears(&inbox);
                if !hears {
                    self.opening = Some(push.open(&inbox));
                }
                hears && in_queue
            }
        }
    }

    fn failed(&mut self, error: Error) -> Result<()> {
        self.state.failed(error, self.what.context.ttl, false)?;
        (self.again_at, self.is_first) = (Instant::now() + poll_pause(), false);
        Ok(())
    }

    /// What is told until then.
    async fn next_news(&mut self, at: Instant) -> Option<Notification> {
        if let Some(listener) = &mut self.listener {
            return tokio::select! {
                () = listener.news() => Some(Notification::Ask),
                () = sleep_until(at) => None,
            };
        }
        let queued = self.attempt.as_mut().and_then(|attempt| attempt.queued.as_mut());
        let Some(Queued { mailbox, .. }) = queued else {
            return until_heard(self.opening.as_mut(), at).await;
        };
        let watches = mem::take(&mut self.is_first);
        tokio::select! {
            biased;
            told = mailbox.next() => return Some(told),
            () = sleep_until(at) => return None,
            () = sleep(self.watch_after), if watches => {}
        }
        let watching = mailbox.watch(self.what.keys.lock());
        let is_there = tokio::select! {
            biased;
            told = mailbox.next() => return Some(told),
            is_there = watching => is_there,
            () = sleep_until(at) => return None,
        };
        match is_there {
            // It went before the server could tell.
            Some(false) if !mem::replace(&mut self.watched_in_vain, true) => return Some(Notification::Ask),
            Some(true) => self.watched_in_vain = false,
            _ => {}
        }
        let told = tokio::select! {
            biased;
            told = mailbox.next() => told,
            () = sleep_until(at) => return None,
        };
        if told == Notification::Ask {
            self.watch_after = (2 * self.watch_after).min(LONGEST_WATCH_AFTER);
        }
        Some(told)
    }
}

/// Waits for the push connection, if one is being made.
async fn until_heard(opening: Option<&mut Listener>, at: Instant) -> Option<Notification> {
    let opened = async {
        match opening {
            Some(listener) => listener.news().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = opened => Some(Notification::Ask),
        () = sleep_until(at) => None,
    }
}

fn poll_pause() -> Duration {
    pause_between(50, 250)
}
