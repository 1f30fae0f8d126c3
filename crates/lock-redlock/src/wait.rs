//! Waits for a busy lock.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lock_core::{AcquireRequest, Acquired, Error, Result, Token, Wait};
use rand::Rng;
use redis_link::drift::valid_until;
use redis_link::keys::Keys;
use redis_link::push::{Listener, Mailbox, Notification};
use redis_link::waiting::{ROUNDING, WaitState, longest_pause, pause_between, within};
use tokio::time::{Instant, sleep_until};

use crate::attempt::{AndThen, Attempt, Busy, Vote, Way};
use crate::ballot::TURN;
use crate::context::Context;
use crate::error::too_late;
use crate::lease::RedlockLease;
use crate::master::Readiness;
use crate::quorum::{OfEach, quorum};
use crate::wait_queue::QueueEntry;

/// The window of the random pause after a split vote, at least; it doubles with each split in a row.
const SPLIT_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_SPLIT_PAUSE: Duration = Duration::from_secs(1);

/// One acquisition, from the first request to the lock.
pub(crate) struct Waiting<'a> {
    context: &'a Arc<Context>,
    keys: Arc<Keys>,
    request: &'a AcquireRequest,
    info: Arc<str>,
    ttl: Duration,
    /// The entry in the wait queues, once the lock was busy.
    entry: Option<Arc<QueueEntry>>,
    /// The mailbox for the notifications of each master.
    mailboxes: Vec<Option<Mailbox>>,
    /// Notified when inboxes become live that are not yet.
    opening: Vec<Listener>,
    /// When each master notified this waiter, and which masters voted for its last attempt.
    notified: OfEach<Option<Instant>>,
    would_vote: OfEach<bool>,
    /// When to ask again without a notification.
    again_at: Instant,
    /// Split votes in a row.
    splits: u32,
    state: WaitState,
}

/// An event that ends a sleep.
enum Wakeup {
    /// A master gives this waiter precedence.
    Notified(usize),
    /// The push connection to a master was lost or replaced: a notification may have been missed.
    Missed(usize),
    /// An inbox became live, or was given up.
    Opened,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(context: &'a Arc<Context>, keys: &Arc<Keys>, request: &'a AcquireRequest) -> Self {
        let masters = context.masters.len();
        let mut waiting = Self {
            info: context.owners.of(&request.owner),
            ttl: context.ttl_of(&request.lease),
            context,
            keys: Arc::clone(keys),
            request,
            entry: None,
            mailboxes: Vec::new(),
            opening: Vec::new(),
            notified: OfEach::from_elem(None, masters),
            would_vote: OfEach::from_elem(false, masters),
            again_at: Instant::now(),
            splits: 0,
            state: WaitState::default(),
        };
        // With recent contention, the first request already joins the queue.
        if context.contention.is_likely() && !request.wait.is_expired() {
            waiting.join_queue();
        }
        waiting
    }

    /// Asks for the lock: `None` if it is busy, or during a tolerated outage.
    pub(crate) async fn ask(&mut self) -> Result<Option<Box<RedlockLease>>> {
        let deadline = self.state.deadline(self.request.wait);
        match within(deadline, self.attempts()).await {
            Some(Ok(lease)) => Ok(lease),
            Some(Err(error)) => self.failed(error).map(|()| None),
            None => Ok(None),
        }
    }

    /// Asks once, and once more if an immediate retry may succeed.
    async fn attempts(&mut self) -> Result<Option<Box<RedlockLease>>> {
        match self.attempt().await? {
            Tried::Again(_) => self.attempt().await?.ended(),
            tried => tried.ended(),
        }
    }

    async fn attempt(&mut self) -> Result<Tried> {
        if self.entry.is_some() {
            self.join_queue();
        }
        // Notifications from here on are new: the answers may not reflect them.
        self.mailboxes.iter_mut().flatten().for_each(Mailbox::mark_seen);
        self.notified.fill(None);
        let sent = self.context.clock.now();
        let (masters, since) = (&self.context.masters, self.context.micros());
        let contention = &self.context.contention;
        let way = match &self.entry {
            Some(entry) => Way::Queued(entry),
            None if contention.is_likely() => Way::Polite,
            None => Way::Fast,
        };
        let mut attempt = Attempt::start(masters, &self.keys, self.ttl, &self.info, since, way, contention);
        match attempt.count().await {
            Vote::Won => {}
            Vote::Busy(busy) => {
                self.give_back(attempt).await;
                self.busy(busy);
                return Ok(Tried::Busy);
            }
            Vote::Again(error) => {
                self.context.counters.failed();
                // First, so that it does not block the next attempt.
                attempt.give_back(AndThen::AskAtOnce).await;
                return Ok(Tried::Again(error));
            }
            Vote::NoQuorum(error) => {
                self.context.counters.failed();
                self.give_back(attempt).await;
                return Err(error);
            }
        }
        let token = match attempt.token().await {
            Ok(token) => token,
            Err(error) => {
                self.context.counters.failed();
                self.give_back(attempt).await;
                return Err(error);
            }
        };
        let left = valid_until(sent, self.ttl).saturating_duration_since(self.context.clock.now());
        if left < self.ttl / 10 {
            self.context.counters.failed();
            self.give_back(attempt).await;
            return Err(too_late(self.ttl));
        }
        Ok(Tried::Held(Box::new(self.won(attempt, token, sent))))
    }

    /// Rolls an attempt back; in the background if there is no time for another one.
    async fn give_back(&self, attempt: Attempt) {
        if !self.request.wait.is_expired() {
            attempt.give_back(AndThen::Wait).await;
        }
    }

    fn won(&mut self, attempt: Attempt, token: Token, sent: lock_core::BootInstant) -> RedlockLease {
        self.context.counters.won(self.splits == 0);
        // It stays in the queues of the masters that refused, so that they do not notify the next waiter too early.
        self.entry = None;
        let (clock, until) = (self.context.clock.clone(), valid_until(sent, self.ttl));
        let claims = attempt.keep(token, move || clock.now() < until);
        RedlockLease::begin(self.context, claims, self.request, token, (sent, self.ttl))
    }

    /// Waits until it is worth asking again, and reports whether there is time left.
    pub(crate) async fn wait(&mut self) -> bool {
        if self.request.wait == Wait::Never {
            return false;
        }
        let end = self.request.wait.deadline();
        loop {
            let at = end.map_or(self.again_at, |end| end.min(self.again_at));
            match self.next_wakeup(at).await {
                None => break,
                Some(Wakeup::Notified(master)) => {
                    self.notified[master] = Some(Instant::now());
                    if self.may_win() {
                        break;
                    }
                    // If not, this waiter has left the queue of that master, and has to join it again.
                    self.again_at = self.again_at.min(Instant::now() + TURN);
                }
                Some(Wakeup::Missed(master)) => {
                    self.mailboxes[master] = None;
                    self.again_at = self.again_at.min(Instant::now() + random_part_of(SPLIT_PAUSE * 10));
                }
                Some(Wakeup::Opened) => {
                    if self.all_inboxes_are_live() {
                        self.again_at = Instant::now();
                    }
                }
            }
        }
        !self.request.wait.is_expired()
    }

    /// Whether the masters that notified this waiter, and those that voted for its last attempt, are a quorum.
    fn may_win(&self) -> bool {
        let now = Instant::now();
        let masters = self.notified.iter().zip(&self.would_vote);
        let ready = masters.filter(|(notified, would)| notified.is_some_and(|at| now < at + TURN) || **would);
        ready.count() >= quorum(self.notified.len())
    }

    fn busy(&mut self, mut busy: Busy) {
        self.state.busy(self.keys.lock(), busy.foreign_type.take());
        self.context.counters.lost(!busy.ours.is_empty());
        self.context.contention.note();
        self.splits = if busy.ours.is_empty() { 0 } else { self.splits + 1 };
        self.would_vote.fill(false);
        for master in &busy.ours {
            self.would_vote[*master] = true;
        }
        if self.request.wait.is_expired() {
            return;
        }
        let was_queued = self.is_queued_on_a_quorum();
        self.join_queue();
        let pause = match (was_queued, self.is_queued_on_a_quorum()) {
            // A random pause separates the clients that split the vote, even while masters are down.
            _ if self.splits > 0 => self.split_pause(),
            (true, _) => longest_pause().min(self.ends_in(&busy)),
            // The inboxes are live now: ask at once, to join the queue.
            (false, true) => Duration::ZERO,
            (false, false) => poll_pause().min(self.ends_in(&busy)),
        };
        self.again_at = Instant::now() + pause;
    }

    /// The time until enough keys expire that a quorum may vote for this client.
    fn ends_in(&self, busy: &Busy) -> Duration {
        let masters = self.context.masters.len();
        // Masters that have not answered count as free.
        let mut ends = vec![Duration::ZERO; masters - busy.ends_in.len()];
        ends.extend(busy.ends_in.iter().map(|(_, left)| left.map_or(Duration::MAX, |left| left + ROUNDING)));
        ends.sort_unstable();
        ends[quorum(masters) - 1].max(ROUNDING)
    }

    fn split_pause(&self) -> Duration {
        let trips = self.context.masters.iter().map(|master| master.round_trip());
        let least = SPLIT_PAUSE.max(trips.max().unwrap_or_default() * 4);
        let window = least.saturating_mul(1 << self.splits.min(16)).min(LONGEST_SPLIT_PAUSE);
        random_part_of(window)
    }

    /// Joins the wait queue of each master whose inbox is live, with the next request; opens the other inboxes.
    fn join_queue(&mut self) {
        let masters = &self.context.masters;
        let (since, acquisitions) = (self.context.micros(), &self.context.acquisitions);
        let entry = self.entry.get_or_insert_with(|| QueueEntry::new(masters.len(), since, acquisitions));
        self.mailboxes.resize_with(masters.len(), || None);
        self.opening.clear();
        for (number, master) in masters.iter().enumerate() {
            if self.mailboxes[number].is_some() {
                continue;
            }
            let Some(push) = master.pushes.of(&self.keys) else { continue };
            let inbox = push.inbox(&self.keys);
            self.mailboxes[number] = push.mailbox(&inbox, entry.id());
            let is_live = self.mailboxes[number].is_some();
            entry.set_live(number, &inbox, is_live);
            if !is_live && matches!(master.readiness(), Readiness::Healthy) {
                self.opening.push(push.open_inbox(&inbox));
            }
        }
    }

    fn is_queued_on_a_quorum(&self) -> bool {
        self.mailboxes.iter().flatten().count() >= quorum(self.context.masters.len())
    }

    /// Whether no inbox is still being opened.
    fn all_inboxes_are_live(&self) -> bool {
        self.opening.iter().all(Listener::is_live)
    }

    /// Notes a failed attempt. A quarantine that prevents a quorum does not end the wait.
    fn failed(&mut self, error: Error) -> Result<()> {
        let votes_from = self.context.votes_from();
        let waits = !self.request.wait.is_expired() && votes_from.is_some();
        self.state.failed(error, self.context.ttl, waits)?;
        let pause = votes_from.map(|from| from.saturating_duration_since(Instant::now()) + ROUNDING);
        self.again_at = Instant::now() + pause.map_or_else(poll_pause, |pause| pause.min(longest_pause()));
        Ok(())
    }

    /// Ends the wait without the lock.
    pub(crate) fn give_up(&mut self) -> Result<Acquired> {
        mem::take(&mut self.state).into_outage().map_or(Ok(Acquired::Busy), Err)
    }

    /// The next event until `at`.
    async fn next_wakeup(&mut self, at: Instant) -> Option<Wakeup> {
        let mut notifications: FuturesUnordered<_> = self
            .mailboxes
            .iter_mut()
            .enumerate()
            .filter_map(|(master, mailbox)| mailbox.as_mut().map(|mailbox| (master, mailbox)))
            .map(|(master, mailbox)| async move { (master, mailbox.next().await) })
            .collect();
        let mut opened: FuturesUnordered<_> = self.opening.iter_mut().map(Listener::changed).collect();
        tokio::select! {
            biased;
            Some((master, notification)) = notifications.next() => Some(match notification {
                Notification::Ask => Wakeup::Missed(master),
                Notification::Granted | Notification::HandedOver(_) | Notification::AskIn(_) => Wakeup::Notified(master),
            }),
            Some(()) = opened.next() => Some(Wakeup::Opened),
            () = sleep_until(at) => None,
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(entry) = &self.entry {
            entry.leave(&self.context.masters, &self.keys);
        }
    }
}

/// The outcome of one attempt.
enum Tried {
    Held(Box<RedlockLease>),
    Busy,
    /// No quorum, but an immediate retry may succeed.
    Again(Error),
}

impl Tried {
    fn ended(self) -> Result<Option<Box<RedlockLease>>> {
        match self {
            Self::Held(lease) => Ok(Some(lease)),
            Self::Busy => Ok(None),
            Self::Again(error) => Err(error),
        }
    }
}

fn poll_pause() -> Duration {
    pause_between(20, 120)
}

fn random_part_of(span: Duration) -> Duration {
    span.mul_f64(lock_core::random::rng().random_range(0.1..=1.0))
}
