//! Waits for a busy lock.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lock_core::drift::valid_until;
use lock_core::waiting::{ROUNDING, Tried, WaitState, longest_pause, pause_between, within};
use lock_core::{AcquireRequest, Acquired, BootInstant, Error, Result, Token, Wait};
use rand::Rng;
use redis_link::keys::Keys;
use redis_link::push::{Listener, Mailbox, Notification};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use crate::context::Context;
use crate::error::too_late;
use crate::leases::lease::RedlockLease;
use crate::leases::wait_queue::QueueEntry;
use crate::servers::master::Readiness;
use crate::voting::attempt::{AndThen, Attempt, Busy, Vote, Way};
use crate::voting::ballot::GRACE;
use crate::voting::quorum::{OfEach, quorum};

/// The window of the random pause after a split vote, at least; it doubles with each split in a row.
const SPLIT_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_SPLIT_PAUSE: Duration = Duration::from_secs(1);
/// How long after one master handed the lock over the others may take, before the waiter asks them.
const HAND_OVER_WAIT: Duration = Duration::from_millis(20);

/// One acquisition, from the first request to the lock.
pub(crate) struct Waiting<'a> {
    context: &'a Arc<Context>,
    keys: Arc<Keys>,
    request: &'a AcquireRequest,
    info: Arc<str>,
    ttl: Duration,
    /// The start of the wait, in microseconds since 1970, once the lock was busy.
    since: Option<u64>,
    /// The entry of the next attempt, or of the one in the wait queues.
    entry: Option<Arc<QueueEntry>>,
    /// The attempt that is in the wait queues.
    queued: Option<Queued>,
    /// The mailbox of that entry for the notifications of each master.
    mailboxes: Vec<Option<Mailbox>>,
    /// Notified when inboxes become live that are not yet.
    opening: Vec<Listener>,
    /// When to ask again without a notification.
    again_at: Instant,
    /// Split votes in a row.
    splits: u32,
    state: WaitState,
}

/// An attempt that every master has refused, and that is in their wait queues.
struct Queued {
    attempt: Attempt,
    /// Before its first request was sent. Nothing was granted to its owner earlier.
    since: BootInstant,
    /// For how long the lock is handed over.
    grace: Duration,
    /// The tokens of the masters that have handed the lock over.
    tokens: OfEach<Option<Token>>,
    /// A notification may have been missed: the next request needs another owner id.
    is_interrupted: bool,
}

/// An event that ends a sleep.
enum Wakeup {
    /// A master has handed the lock over, with this token.
    HandedOver(usize, Token),
    /// A master asks this waiter to ask, as earlier versions of the scripts do.
    Notified,
    /// The push connection to a master was lost or replaced: a notification may have been missed.
    Missed(usize),
    /// An inbox became live, or was given up.
    Opened,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(context: &'a Arc<Context>, keys: &Arc<Keys>, request: &'a AcquireRequest) -> Self {
        let mut waiting = Self {
            info: context.owners.of(&request.owner),
            ttl: context.ttl_of(&request.lease),
            context,
            keys: Arc::clone(keys),
            request,
            since: None,
            entry: None,
            queued: None,
            mailboxes: Vec::new(),
            opening: Vec::new(),
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
        let votes_from = self.context.votes_from();
        match within(deadline, self.attempts()).await {
            Some(Ok(lease)) => Ok(lease),
            Some(Err(error)) => self.failed(error, votes_from).map(|()| None),
            None => Ok(None),
        }
    }

    /// Asks once, and once more if an immediate retry may succeed; not at all if the lock was handed over.
    async fn attempts(&mut self) -> Result<Option<Box<RedlockLease>>> {
        if let Some(lease) = self.take_over().await {
            return Ok(Some(lease));
        }
        match self.attempt(false).await? {
            Tried::Again(_) => self.attempt(true).await?.ended(),
            tried => tried.ended(),
        }
    }

    /// Takes the lock over if a quorum has handed it over, and enough of the grace period is surely left. The first renewal
    /// confirms it in the background; there is no second one until it has a holder.
    ///
    /// The notifications may have been delayed for any time. But no master granted the lock to this owner before its first
    /// request was sent, and each keeps it for the grace period.
    async fn take_over(&mut self) -> Option<Box<RedlockLease>> {
        let is_enough = |queued: &Queued, least: Duration, now: BootInstant| {
            now + least <= valid_until(queued.since, queued.grace)
        };
        let now = self.context.clock.now();
        let queued = self.queued.as_ref().filter(|queued| queued.has_quorum())?;
        let least = (queued.grace / 2).max(self.longest_round_trip() * 8);
        if !self.request.lease.renewed || !is_enough(queued, least, now) {
            return None;
        }
        let mut queued = self.queued.take()?;
        queued.attempt.count_handed_over(queued.tokens());
        let token = queued.attempt.token().await.ok();
        let Some(token) = token.filter(|_| is_enough(&queued, least / 2, self.context.clock.now())) else {
            self.queued = Some(queued);
            return None;
        };
        self.context.counters.handed_over(self.splits == 0);
        let Queued { attempt, since, grace, .. } = queued;
        let until = valid_until(since, grace);
        let lease =
            RedlockLease::begin_early(self.context, attempt.claims(), self.request, token, (now, until));
        lease.confirm();
        // The caller may block this thread from now on. Yield first, so that the confirmation is sent: once for the renewal
        // task and once for the connections. Until then, dropping the attempt rolls it back.
        yield_now().await;
        yield_now().await;
        // It may not have been polled for long.
        if !lease.is_held() {
            self.leave_queue();
            self.give_back(attempt).await;
            return None;
        }
        drop(attempt.keep(token, || false));
        Some(Box::new(lease))
    }

    async fn attempt(&mut self, is_second: bool) -> Result<Tried<Box<RedlockLease>>> {
        if let Some(queued) = self.queued.take_if(|queued| queued.is_interrupted) {
            self.leave_queue();
            self.give_back(queued.attempt).await;
        }
        if self.since.is_some() {
            self.join_queue();
        }
        let sent = self.context.clock.now();
        let (mut attempt, since) = match self.queued.take() {
            Some(Queued { mut attempt, since, .. }) => {
                attempt.ask_again();
                (attempt, since)
            }
            None => (self.first_claim(), sent),
        };
        if is_second {
            attempt.over_new_connections();
        }
        match attempt.count().await {
            Vote::Won => {}
            Vote::Busy => {
                let stays = attempt.stays_queued().await;
                let busy = attempt.busy();
                if stays {
                    self.queued = self.entry.as_ref().map(|entry| Queued::new(attempt, since, entry.grace()));
                } else {
                    self.leave_queue();
                    self.give_back(attempt).await;
                }
                self.busy(busy);
                return Ok(Tried::Busy);
            }
            Vote::Again(error) => {
                self.context.counters.failed();
                self.leave_queue();
                // First, so that it does not block the next attempt.
                attempt.give_back(AndThen::AskAtOnce).await;
                return Ok(Tried::Again(error));
            }
            Vote::NoQuorum(error) => {
                self.context.counters.failed();
                self.leave_queue();
                self.give_back(attempt).await;
                return Err(error);
            }
        }
        let sent = attempt.claims().written_since(sent);
        let token = match attempt.token().await {
            Ok(token) => token,
            Err(error) => {
                self.context.counters.failed();
                self.leave_queue();
                self.give_back(attempt).await;
                return Err(error);
            }
        };
        let left = valid_until(sent, self.ttl).saturating_duration_since(self.context.clock.now());
        if left < self.ttl / 10 {
            self.context.counters.failed();
            self.leave_queue();
            self.give_back(attempt).await;
            return Err(too_late(self.ttl));
        }
        Ok(Tried::Granted(Box::new(self.won(attempt, token, sent))))
    }

    /// Sends the claims of a new attempt.
    fn first_claim(&self) -> Attempt {
        let (masters, since) = (&self.context.masters, self.context.micros());
        let contention = &self.context.contention;
        let way = match &self.entry {
            Some(entry) => Way::Queued(entry),
            None if contention.is_likely() => Way::Script,
            None => Way::Fast,
        };
        Attempt::start(masters, &self.keys, self.ttl, &self.info, since, way, contention)
    }

    /// Rolls an attempt back; in the background if there is no time for another one.
    #[allow(
        clippy::needless_pass_by_ref_mut,
        reason = "a future with a shared reference to this is not Send"
    )]
    async fn give_back(&mut self, attempt: Attempt) {
        if !self.request.wait.is_expired() {
            attempt.give_back(AndThen::Wait).await;
        }
    }

    fn won(&self, attempt: Attempt, token: Token, sent: BootInstant) -> RedlockLease {
        self.context.counters.won(self.splits == 0);
        let (clock, until) = (self.context.clock.clone(), valid_until(sent, self.ttl));
        // It stays in the queues of the masters that refused: those hand the lock over to it, and not to the next waiter.
        let claims = attempt.keep(token, move || clock.now() < until);
        RedlockLease::begin(self.context, claims, self.request, token, (sent, until))
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
                Some(Wakeup::HandedOver(master, token)) => {
                    if self.is_handed_over(master, token) {
                        break;
                    }
                    self.again_at = self.again_at.min(Instant::now() + self.hand_over_wait());
                }
                Some(Wakeup::Notified) => {
                    self.again_at = self.again_at.min(Instant::now() + self.hand_over_wait());
                }
                Some(Wakeup::Missed(master)) => self.missed(master),
                Some(Wakeup::Opened) => {
                    if self.all_inboxes_are_live() {
                        self.again_at = Instant::now();
                    }
                }
            }
        }
        !self.request.wait.is_expired()
    }

    /// Notes that a master has handed the lock over, and reports whether a quorum has.
    ///
    /// That counts as a vote of the master that was asked, so it must be the same server, and may vote.
    fn is_handed_over(&mut self, master: usize, token: Token) -> bool {
        let is_same = self.mailboxes[master].as_ref().is_some_and(Mailbox::is_uninterrupted);
        if !is_same {
            self.missed(master);
        } else if let Some(queued) = &mut self.queued
            && self.context.masters[master].right_to_vote(queued.attempt.began(), false).is_ok()
        {
            queued.tokens[master] = Some(token);
        }
        self.queued.as_ref().is_some_and(Queued::has_quorum)
    }

    /// Notes that a notification of a master may have been missed.
    fn missed(&mut self, master: usize) {
        self.mailboxes[master] = None;
        if let Some(queued) = &mut self.queued {
            queued.is_interrupted = true;
        }
        self.again_at = self.again_at.min(Instant::now() + random_part_of(SPLIT_PAUSE * 10));
    }

    fn hand_over_wait(&self) -> Duration {
        HAND_OVER_WAIT.max(self.longest_round_trip() * 4)
    }

    fn longest_round_trip(&self) -> Duration {
        self.context.masters.iter().map(|master| master.round_trip()).max().unwrap_or_default()
    }

    fn busy(&mut self, mut busy: Busy) {
        self.state.busy(self.keys.lock(), busy.foreign_type.take());
        self.context.counters.lost(!busy.ours.is_empty());
        self.context.contention.note();
        self.splits = if busy.ours.is_empty() { 0 } else { self.splits + 1 };
        if self.request.wait.is_expired() {
            return;
        }
        let (had_joined, is_queued) = (self.since.is_some(), self.queued.is_some());
        self.join_queue();
        let pause = match (is_queued && self.is_queued_on_a_quorum(), self.listens_to_a_quorum()) {
            // A random pause separates the clients that split the vote, even while masters are down.
            _ if self.splits > 0 => self.split_pause(),
            (true, _) => longest_pause().min(self.ends_in(&busy)),
            // The inboxes are live now: ask at once, to join the queue.
            (false, true) if !had_joined || self.may_join_more() => Duration::ZERO,
            // It has left the queue, as a master did not answer.
            (false, true) if !is_queued => random_part_of(SPLIT_PAUSE * 10),
            (false, _) => poll_pause().min(self.ends_in(&busy)),
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
        let least = SPLIT_PAUSE.max(self.longest_round_trip() * 4);
        let window = least.saturating_mul(1 << self.splits.min(16)).min(LONGEST_SPLIT_PAUSE);
        random_part_of(window)
    }

    /// Joins the wait queue of each master whose inbox is live, with the next request; opens the other inboxes.
    ///
    /// An entry listens to a master from before it can be queued there, and over one connection. So what a master hands over is
    /// by the server that was asked.
    fn join_queue(&mut self) {
        let masters = &self.context.masters;
        let since = *self.since.get_or_insert_with(|| self.context.micros());
        let entry = self.entry.get_or_insert_with(|| {
            let trips = masters.iter().map(|master| master.round_trip());
            let grace = GRACE.max(trips.max().unwrap_or_default() * 4).min(self.ttl);
            QueueEntry::new(masters.len(), since, grace, &self.context.acquisitions)
        });
        self.mailboxes.resize_with(masters.len(), || None);
        self.opening.clear();
        for (number, master) in masters.iter().enumerate() {
            if self.mailboxes[number].is_some() || entry.may_be_queued(number) {
                continue;
            }
            let Some(push) = master.pushes.of(&self.keys) else { continue };
            let inbox = push.inbox(&self.keys);
            self.mailboxes[number] = push.mailbox(&inbox, entry.owner());
            if self.mailboxes[number].is_some() {
                entry.join(number, &push, &inbox, self.ttl, &self.info);
            } else if matches!(master.readiness(), Readiness::Healthy) {
                self.opening.push(push.open_inbox(&inbox));
            }
        }
    }

    /// The next attempt has another entry: the owner id of this one is used up.
    fn leave_queue(&mut self) {
        self.entry = None;
        self.mailboxes.clear();
    }

    fn listens_to_a_quorum(&self) -> bool {
        self.mailboxes.iter().flatten().count() >= quorum(self.context.masters.len())
    }

    fn is_queued_on_a_quorum(&self) -> bool {
        let is_queued =
            |number: &usize| self.entry.as_ref().is_some_and(|entry| entry.may_be_queued(*number));
        let listening = (0..self.mailboxes.len()).filter(|number| self.mailboxes[*number].is_some());
        listening.filter(is_queued).count() >= quorum(self.context.masters.len())
    }

    /// Whether the next request of the attempt in the queues joins that of another master.
    fn may_join_more(&self) -> bool {
        let Some(entry) = self.entry.as_ref().filter(|_| self.queued.is_some()) else { return false };
        let mut masters = self.context.masters.iter().zip(&self.mailboxes).enumerate();
        masters.any(|(number, (master, mailbox))| {
            let is_asked = matches!(master.readiness(), Readiness::Healthy);
            mailbox.is_some() && is_asked && !entry.may_be_queued(number)
        })
    }

    /// Whether no inbox is still being opened.
    fn all_inboxes_are_live(&self) -> bool {
        self.opening.iter().all(Listener::is_live)
    }

    /// Notes a failed attempt. A quarantine that prevents a quorum, or did when the attempt began, does not end the wait.
    fn failed(&mut self, error: Error, at_first: Option<Instant>) -> Result<()> {
        let votes_from = self.context.votes_from().or(at_first);
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
                Notification::HandedOver(token) => Wakeup::HandedOver(master, token),
                Notification::Granted | Notification::AskIn(_) => Wakeup::Notified,
            }),
            Some(()) = opened.next() => Some(Wakeup::Opened),
            () = sleep_until(at) => None,
        }
    }
}

impl Queued {
    fn new(attempt: Attempt, since: BootInstant, grace: Duration) -> Self {
        let tokens = OfEach::from_elem(None, attempt.masters());
        Self { attempt, since, grace, tokens, is_interrupted: false }
    }

    /// The masters that have handed the lock over, each with its token.
    fn tokens(&self) -> OfEach<(usize, Token)> {
        self.tokens.iter().enumerate().filter_map(|(number, token)| Some((number, (*token)?))).collect()
    }

    fn has_quorum(&self) -> bool {
        self.tokens.iter().flatten().count() >= quorum(self.tokens.len())
    }
}

fn poll_pause() -> Duration {
    pause_between(20, 120)
}

fn random_part_of(span: Duration) -> Duration {
    span.mul_f64(lock_core::random::rng().random_range(0.1..=1.0))
}
