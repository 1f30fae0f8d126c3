//! The wait of one acquisition.

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

/// Who lost a split vote waits for a random part of at least this, and of twice as much after each further one.
const SPLIT_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_SPLIT_PAUSE: Duration = Duration::from_secs(1);

/// One acquisition, from the first request to the lock.
pub(crate) struct Waiting<'a> {
    context: &'a Arc<Context>,
    keys: Arc<Keys>,
    request: &'a AcquireRequest,
    info: Arc<str>,
    ttl: Duration,
    /// Our waiter in the lines, once the lock was busy.
    entry: Option<Arc<QueueEntry>>,
    /// For each master what is told to us there.
    mailboxes: Vec<Option<Mailbox>>,
    /// Tell when the inboxes are heard that are not yet.
    opening: Vec<Listener>,
    /// When each master called us, and which ones would have voted for us the last time.
    called: OfEach<Option<Instant>>,
    would_vote: OfEach<bool>,
    /// When to ask again, unless we are called before.
    again_at: Instant,
    /// Split votes in a row.
    splits: u32,
    state: WaitState,
}

/// What ends a sleep.
enum News {
    /// A master says that it is our turn there.
    Called(usize),
    /// The connection over which a master calls has come or gone: something may have been missed.
    Missed(usize),
    /// An inbox is heard, or given up.
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
            called: OfEach::from_elem(None, masters),
            would_vote: OfEach::from_elem(false, masters),
            again_at: Instant::now(),
            splits: 0,
            state: WaitState::default(),
        };
        // Where a lock was busy a moment ago this one may be as well: then the first request lines up already.
        if context.contention.is_likely() && !request.wait.is_expired() {
            waiting.sit_down();
        }
        waiting
    }

    /// Asks for the lock: `None` when it is busy, or an outage is to be sat out.
    pub(crate) async fn ask(&mut self) -> Result<Option<Box<RedlockLease>>> {
        let deadline = self.state.deadline(self.request.wait);
        match within(deadline, self.attempts()).await {
            Some(Ok(lease)) => Ok(lease),
            Some(Err(error)) => self.failed(error).map(|()| None),
            None => Ok(None),
        }
    }

    /// Asks once, and once more if there was no quorum for a reason that may be gone.
    async fn attempts(&mut self) -> Result<Option<Box<RedlockLease>>> {
        match self.attempt().await? {
            Tried::Again(_) => self.attempt().await?.ended(),
            tried => tried.ended(),
        }
    }

    async fn attempt(&mut self) -> Result<Tried> {
        if self.entry.is_some() {
            self.sit_down();
        }
        // What is told from here on is news: the answers may not know of it yet.
        self.mailboxes.iter_mut().flatten().for_each(Mailbox::mark_seen);
        self.called.fill(None);
        let sent = self.context.clock.now();
        let (masters, since) = (&self.context.masters, self.context.micros());
        let contention = &self.context.contention;
        let way = match &self.entry {
            Some(entry) => Way::InLine(entry),
            None if contention.is_likely() => Way::Politely,
            None => Way::FastClaim,
        };
        let mut campaign = Attempt::start(masters, &self.keys, self.ttl, &self.info, since, way, contention);
        match campaign.count().await {
            Vote::Won => {}
            Vote::Busy(busy) => {
                self.give_back(campaign).await;
                self.busy(busy);
                return Ok(Tried::Busy);
            }
            Vote::Again(error) => {
                self.context.tally.failed();
                // The next attempt is not to meet this one anywhere.
                campaign.give_back(AndThen::AskAtOnce).await;
                return Ok(Tried::Again(error));
            }
            Vote::NoQuorum(error) => {
                self.context.tally.failed();
                self.give_back(campaign).await;
                return Err(error);
            }
        }
        let token = match campaign.token().await {
            Ok(token) => token,
            Err(error) => {
                self.context.tally.failed();
                self.give_back(campaign).await;
                return Err(error);
            }
        };
        let left = valid_until(sent, self.ttl).saturating_duration_since(self.context.clock.now());
        if left < self.ttl / 10 {
            self.context.tally.failed();
            self.give_back(campaign).await;
            return Err(too_late(self.ttl));
        }
        Ok(Tried::Held(Box::new(self.won(campaign, token, sent))))
    }

    /// Takes back what an attempt got: in the background when there is no time for another one.
    async fn give_back(&self, campaign: Attempt) {
        if !self.request.wait.is_expired() {
            campaign.give_back(AndThen::Wait).await;
        }
    }

    fn won(&mut self, campaign: Attempt, token: Token, sent: lock_core::BootInstant) -> RedlockLease {
        self.context.tally.won(self.splits == 0);
        // It stays in the lines of the masters that refused, so that their calls do not go to the next too early.
        self.entry = None;
        let (clock, until) = (self.context.clock.clone(), valid_until(sent, self.ttl));
        let claims = campaign.keep(token, move || clock.now() < until);
        RedlockLease::begin(self.context, claims, self.request, token, (sent, self.ttl))
    }

    /// Waits until it makes sense to ask again, and says whether there is time to.
    pub(crate) async fn wait(&mut self) -> bool {
        if self.request.wait == Wait::Never {
            return false;
        }
        let end = self.request.wait.deadline();
        loop {
            let at = end.map_or(self.again_at, |end| end.min(self.again_at));
            match self.next_news(at).await {
                None => break,
                Some(News::Called(master)) => {
                    self.called[master] = Some(Instant::now());
                    if self.may_win() {
                        break;
                    }
                    // Else we are no longer in that line, and have to stand in it again.
                    self.again_at = self.again_at.min(Instant::now() + TURN);
                }
                Some(News::Missed(master)) => {
                    self.mailboxes[master] = None;
                    self.again_at = self.again_at.min(Instant::now() + random_part_of(SPLIT_PAUSE * 10));
                }
                Some(News::Opened) => {
                    if self.hears_all_it_can() {
                        self.again_at = Instant::now();
                    }
                }
            }
        }
        !self.request.wait.is_expired()
    }

    /// Whether those who called us, with those who would have voted for us anyway, are a quorum.
    fn may_win(&self) -> bool {
        let now = Instant::now();
        let masters = self.called.iter().zip(&self.would_vote);
        let ready = masters.filter(|(called, would)| called.is_some_and(|at| now < at + TURN) || **would);
        ready.count() >= quorum(self.called.len())
    }

    fn busy(&mut self, mut busy: Busy) {
        self.state.busy(self.keys.lock(), busy.foreign_type.take());
        self.context.tally.lost(!busy.ours.is_empty());
        self.context.contention.note();
        self.splits = if busy.ours.is_empty() { 0 } else { self.splits + 1 };
        self.would_vote.fill(false);
        for master in &busy.ours {
            self.would_vote[*master] = true;
        }
        if self.request.wait.is_expired() {
            return;
        }
        let stood = self.stands_on_a_quorum();
        self.sit_down();
        let pause = match (stood, self.stands_on_a_quorum()) {
            // Those who split the vote are to come one after the other, also where masters are down.
            _ if self.splits > 0 => self.split_pause(),
            (true, _) => longest_pause().min(self.ends_in(&busy)),
            // We hear by now, and have not lined up yet.
            (false, true) => Duration::ZERO,
            (false, false) => poll_pause().min(self.ends_in(&busy)),
        };
        self.again_at = Instant::now() + pause;
    }

    /// When so many masters may have a lock that ends by itself that a quorum may vote for us.
    fn ends_in(&self, busy: &Busy) -> Duration {
        let masters = self.context.masters.len();
        // Of those that have said nothing yet the best is assumed.
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

    /// Listens where we are called; stands in line, from the next request on, where we hear.
    fn sit_down(&mut self) {
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
            let hears = self.mailboxes[number].is_some();
            entry.hears(number, &inbox, hears);
            if !hears && matches!(master.readiness(), Readiness::Well) {
                self.opening.push(push.open_inbox(&inbox));
            }
        }
    }

    fn stands_on_a_quorum(&self) -> bool {
        self.mailboxes.iter().flatten().count() >= quorum(self.context.masters.len())
    }

    /// Whether no inbox is about to be heard any more.
    fn hears_all_it_can(&self) -> bool {
        self.opening.iter().all(Listener::is_live)
    }

    /// Masters that have restarted are waited for until they vote.
    fn failed(&mut self, error: Error) -> Result<()> {
        let votes_from = self.context.votes_from();
        let waits = !self.request.wait.is_expired() && votes_from.is_some();
        self.state.failed(error, self.context.ttl, waits)?;
        let pause = votes_from.map(|from| from.saturating_duration_since(Instant::now()) + ROUNDING);
        self.again_at = Instant::now() + pause.map_or_else(poll_pause, |pause| pause.min(longest_pause()));
        Ok(())
    }

    /// The end of a wait without the lock.
    pub(crate) fn give_up(&mut self) -> Result<Acquired> {
        mem::take(&mut self.state).into_outage().map_or(Ok(Acquired::Busy), Err)
    }

    /// What is heard until then.
    async fn next_news(&mut self, at: Instant) -> Option<News> {
        let mut told: FuturesUnordered<_> = self
            .mailboxes
            .iter_mut()
            .enumerate()
            .filter_map(|(master, mailbox)| mailbox.as_mut().map(|mailbox| (master, mailbox)))
            .map(|(master, mailbox)| async move { (master, mailbox.next().await) })
            .collect();
        let mut opened: FuturesUnordered<_> = self.opening.iter_mut().map(Listener::changed).collect();
        tokio::select! {
            biased;
            Some((master, told)) = told.next() => Some(match told {
                Notification::Ask => News::Missed(master),
                Notification::Granted | Notification::HandedOver(_) | Notification::AskIn(_) => News::Called(master),
            }),
            Some(()) = opened.next() => Some(News::Opened),
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

/// What came of one attempt.
enum Tried {
    Held(Box<RedlockLease>),
    Busy,
    /// There was no quorum, and may be one now.
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
