//! Waits for a busy lock.

use std::mem;
use std::time::Duration;

use lock_core::migration::Tombstone;
use lock_core::{Acquired, Error, Outcome, Result, Token, Wait};
use redis_link::drift::valid_until;
use redis_link::lock_answer::LockAnswer;
use redis_link::push::{Listener, Notification};
use redis_link::waiting::{ROUNDING, Tried, WaitState, is_silence, longest_pause, poll_pause, within};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};

use crate::attempt::{Acquisition, Attempt, QueueEntry};
use crate::config::RedisWait;
use crate::lease::RedisLease;
use crate::request::Moment;
use crate::tombstone::moved;

/// The first waiter watches the key after this time without a grant. The time doubles after every change that did not
/// free the lock: holders of a shared lock change its key with each renewal.
const WATCH_AFTER: Duration = Duration::from_millis(10);
const LONGEST_WATCH_AFTER: Duration = Duration::from_millis(500);

/// One acquisition of a lock that is busy.
pub(crate) struct Waiting<'a> {
    what: Acquisition<'a>,
    attempt: Option<Attempt>,
    listener: Option<Listener>,
    /// Notified when the inbox is live.
    opening: Option<Listener>,
    /// When to ask again without a notification.
    again_at: Instant,
    /// The lock is busy, and this waiter is the first in the queue.
    is_first: bool,
    watch_after: Duration,
    /// The key did not exist when it was to be watched, and yet the lock is busy.
    watched_in_vain: bool,
    /// The lock was granted by a notification, and not asked for since.
    was_granted: bool,
    /// The token of a hand-over.
    handed_over: Option<Token>,
    state: WaitState,
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
            handed_over: None,
            state: WaitState::default(),
        }
    }

    /// Continues after the first answer. An outage is tolerated only once the server has answered that the lock is busy.
    pub(crate) async fn go_on(
        mut self,
        attempt: Attempt,
        sent: Moment,
        first: Result<LockAnswer>,
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

    /// Asks for the lock: `None` if it is busy, or during a tolerated outage.
    ///
    /// # Errors
    ///
    /// An error that ends the wait.
    async fn ask(&mut self) -> Result<Option<RedisLease>> {
        if let Some((mut lease, attempt)) = self.take_over() {
            // The caller may block this thread from now on. Yield first, so that the confirmation is sent: once for the
            // renewal task and once for the connection.
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

    /// Waits until it is worth asking again, and reports whether there is time left.
    async fn wait(&mut self) -> bool {
        if self.what.request.wait == Wait::Never {
            return false;
        }
        let end = self.what.request.wait.deadline();
        loop {
            let at = end.map_or(self.again_at, |end| end.min(self.again_at));
            let Some(notification) = self.next_notification(at).await else { break };
            match notification {
                Notification::Ask => break,
                Notification::Granted => {
                    self.was_granted = true;
                    break;
                }
                Notification::HandedOver(token) => {
                    (self.was_granted, self.handed_over) = (true, Some(token));
                    break;
                }
                Notification::AskIn(span) => {
                    self.is_first = true;
                    self.again_at = self.again_at.min(Instant::now() + span.min(longest_pause()) + ROUNDING);
                }
            }
        }
        !self.what.request.wait.is_expired()
    }

    fn give_up(self) -> Result<Acquired> {
        self.state.into_outage().map_or(Ok(Acquired::Busy), Err)
    }

    /// Takes over the lock after a hand-over, if enough of the grace period is surely left. The first renewal confirms it in
    /// the background. The attempt that is returned rolls it back until it has a holder.
    ///
    /// The notification may have been delayed for any time. But the grant is not older than the attempt's first request,
    /// and lasts for the grace period.
    fn take_over(&mut self) -> Option<(RedisLease, Attempt)> {
        let token = self.handed_over.take()?;
        let Attempt { since, queue_entry, .. } = self.attempt.as_ref()?;
        let (since, grace) = ((*since)?, queue_entry.as_ref()?.grace);
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

    /// Asks once more, over a new connection, after one that broke or is silent: the server may just have closed it as idle, or
    /// a router on the way may have forgotten it.
    async fn once_more(&mut self, asked: Tried<RedisLease>) -> Result<Option<RedisLease>> {
        match asked {
            Tried::Again(_) => self.ask_once().await?.ended(),
            asked => asked.ended(),
        }
    }

    async fn ask_once(&mut self) -> Result<Tried<RedisLease>> {
        let mut attempt = self.attempt.take().unwrap_or_else(|| self.what.attempt());
        // Notifications from here on are new: the answer may not reflect them.
        if let Some(listener) = &mut self.listener {
            listener.mark_seen();
        }
        let was_granted = mem::take(&mut self.was_granted);
        let (sent, answer) = attempt.ask(&self.what, was_granted).await;
        self.answered(attempt, sent, answer, was_granted).await
    }

    async fn answered(
        &mut self,
        mut attempt: Attempt,
        sent: Moment,
        answer: Result<LockAnswer>,
        was_granted: bool,
    ) -> Result<Tried<RedisLease>> {
        match answer {
            Ok(LockAnswer::Granted(token)) => {
                let attempt = attempt.replicated(&self.what).await?;
                let lease = attempt.granted(&self.what, sent, token)?;
                Ok(Tried::Granted(lease.contended(self.state.is_contended())))
            }
            Ok(LockAnswer::Busy { ends_in, foreign_type, position }) => {
                attempt.rollback.answered();
                if let Some(tombstone) = foreign_type.as_deref().filter(|kind| Tombstone::is_one(kind)) {
                    return Err(moved(tombstone));
                }
                self.what.context.note_round_trip(sent.at);
                self.busy(ends_in, foreign_type, position);
                if was_granted {
                    // The confirmation came too late. The next attempt's grace period allows for slow answers.
                    self.again_at = Instant::now();
                } else {
                    self.attempt = Some(attempt);
                }
                Ok(Tried::Busy)
            }
            Ok(LockAnswer::Broken) => self.unanswered(attempt, None).await,
            Err(error) if is_silence(&error) => self.unanswered(attempt, Some(error)).await,
            Err(error) => {
                if attempt.failed(&error) {
                    (self.attempt, self.was_granted) = (Some(attempt), was_granted);
                }
                Err(error)
            }
        }
    }

    /// Rolls back a request that got no answer, because of this error if it was not a broken connection. Over a new
    /// connection, and at once, so that it does not block the next attempt.
    async fn unanswered(&self, attempt: Attempt, silence: Option<Error>) -> Result<Tried<RedisLease>> {
        let server = &self.what.context.server;
        if let Err(unreached) = server.client.reach(&self.what.keys).await {
            return Err(silence.unwrap_or_else(|| unreached.with_outcome(Outcome::Unknown)));
        }
        // If this fails, the next attempt fails too, and reports why.
        attempt.rollback.now().await;
        Ok(Tried::Again(silence.unwrap_or_else(|| server.client.broken())))
    }

    fn busy(&mut self, ends_in: Option<Duration>, foreign_type: Option<String>, position: Option<usize>) {
        self.state.busy(self.what.keys.lock(), foreign_type);
        self.is_first = position == Some(0);
        if let Some(position) = position {
            // The holder is not in the queue.
            self.what.request.report_position(position + 1);
        }
        let listens = self.listens(position.is_some());
        let longest = match position {
            _ if !listens => poll_pause(),
            // Notified when the waiter before it confirms; but that one may have died.
            Some(1..) => longest_pause() / 2,
            _ => longest_pause(),
        };
        let pause = ends_in.map_or(longest, |left| longest.min(left + ROUNDING));
        self.again_at = Instant::now() + pause;
    }

    /// Whether this waiter is notified; opens the push connection and subscribes if necessary.
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
                    // Again, as the runtime of the connection may have ended.
                    self.listener = Some(push.listen(&self.what.keys.channel()));
                }
                is_live
            }
            RedisWait::Queue => {
                let inbox = push.inbox(&self.what.keys);
                let is_live = push.is_live(&inbox);
                if !is_live {
                    self.opening = Some(push.open_inbox(&inbox));
                }
                is_live && in_queue
            }
        }
    }

    fn failed(&mut self, error: Error) -> Result<()> {
        self.state.failed(error, self.what.context.ttl, false)?;
        (self.again_at, self.is_first) = (Instant::now() + poll_pause(), false);
        Ok(())
    }

    /// The next notification until `at`.
    async fn next_notification(&mut self, at: Instant) -> Option<Notification> {
        if let Some(listener) = &mut self.listener {
            return tokio::select! {
                () = listener.changed() => Some(Notification::Ask),
                () = sleep_until(at) => None,
            };
        }
        let queue_entry = self.attempt.as_mut().and_then(|attempt| attempt.queue_entry.as_mut());
        let Some(QueueEntry { mailbox, .. }) = queue_entry else {
            return until_open(self.opening.as_mut(), at).await;
        };
        let watches = mem::take(&mut self.is_first);
        tokio::select! {
            biased;
            notification = mailbox.next() => return Some(notification),
            () = sleep_until(at) => return None,
            () = sleep(self.watch_after), if watches => {}
        }
        let watching = mailbox.watch(self.what.keys.lock());
        let exists = tokio::select! {
            biased;
            notification = mailbox.next() => return Some(notification),
            exists = watching => exists,
            () = sleep_until(at) => return None,
        };
        match exists {
            // It was deleted before it could be watched.
            Some(false) if !mem::replace(&mut self.watched_in_vain, true) => return Some(Notification::Ask),
            Some(true) => self.watched_in_vain = false,
            _ => {}
        }
        let notification = tokio::select! {
            biased;
            notification = mailbox.next() => notification,
            () = sleep_until(at) => return None,
        };
        if notification == Notification::Ask {
            self.watch_after = (2 * self.watch_after).min(LONGEST_WATCH_AFTER);
        }
        Some(notification)
    }
}

/// Waits until the inbox is live, if it is being opened.
async fn until_open(opening: Option<&mut Listener>, at: Instant) -> Option<Notification> {
    let opened = async {
        match opening {
            Some(listener) => listener.changed().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = opened => Some(Notification::Ask),
        () = sleep_until(at) => None,
    }
}
