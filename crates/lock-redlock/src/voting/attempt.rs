//! One attempt to acquire a lock on a quorum.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, Result, Token};
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::error::no_quorum;
use crate::leases::wait_queue::QueueEntry;
use crate::servers::fan_out::FanOut;
use crate::servers::late_policy::LatePolicy;
use crate::servers::master::{Master, Readiness};
use crate::servers::masters::{Masters, deadlines, skipped};
use crate::voting::claims::Claims;
use crate::voting::contention::Contention;
use crate::voting::quorum::{OfEach, quorum};

/// Before each request for a missing vote: none at first, then what a rival takes to give its claim back, and what it takes on a busy host.
const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(10), Duration::from_millis(100)];

/// One attempt. Dropping it rolls it back.
#[derive(Debug)]
pub(crate) struct Attempt {
    claims: Arc<Claims>,
    /// `None` once it is kept or rolled back.
    runtime: Option<Handle>,
    replies: FanOut<Result<LockAnswer>>,
    votes: OfEach<(usize, Token)>,
    busy: Busy,
    late: LatePolicy,
    /// Whether to retry at once if there is no quorum.
    again: bool,
}

/// The answers of the masters that refused a claim.
#[derive(Clone, Debug, Default)]
pub(crate) struct Busy {
    pub(crate) foreign_type: Option<String>,
    /// The masters that refused, each with the time until its key expires, if it does.
    pub(crate) ends_in: Vec<(usize, Option<Duration>)>,
    /// The masters that voted for this attempt: the vote was split.
    pub(crate) ours: Vec<usize>,
}

/// The outcome of a vote.
pub(crate) enum Vote {
    Won,
    Busy,
    /// No quorum, but an immediate retry may succeed: connections broke or are silent, perhaps only because they were idle, or a
    /// sick master was left out that may be healthy by now.
    Again(Error),
    NoQuorum(Error),
}

/// How to ask for the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way<'a> {
    /// The fast path, for an apparently uncontended lock.
    Fast,
    /// By script, for a lock that is probably busy.
    Script,
    /// The same, with a queue entry.
    Queued(&'a Arc<QueueEntry>),
}

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AndThen {
    AskAtOnce,
    Wait,
}

impl Attempt {
    /// Sends a claim to all healthy masters, and to sick ones too if the healthy ones are no quorum.
    ///
    /// The proposed token is `since`, the client's clock in microseconds since 1970. A clock that is behind costs a round
    /// trip; tokens still grow.
    pub(crate) fn start(
        masters: &Masters,
        keys: &Arc<Keys>,
        ttl: Duration,
        info: &Arc<str>,
        since: u64,
        way: Way<'_>,
        contention: &Arc<Contention>,
    ) -> Self {
        let (entry, fast) = match way {
            Way::Queued(entry) => (Some(entry), false),
            Way::Script => (None, false),
            Way::Fast => (None, true),
        };
        let claims = Claims::new(masters, keys, ttl, info, since, entry, contention);
        let skipped = skipped(masters);
        let again = leaves_out_sick(&skipped, masters);
        let mut deadlines = deadlines(masters, ttl);
        if fast {
            // The script may have to follow: allow for a second round trip.
            let latest = Instant::now() + ttl / 20;
            for (deadline, master) in deadlines.iter_mut().zip(&**masters) {
                *deadline = (*deadline + master.round_trip()).min(latest).max(*deadline);
            }
        }
        Self {
            replies: claims.claim_all(skipped, fast).until(deadlines),
            claims,
            runtime: Handle::try_current().ok(),
            votes: OfEach::new(),
            busy: Busy::default(),
            late: LatePolicy::new(masters),
            again,
        }
    }

    /// Asks once more, by the same owner: after every master has refused, or handed the lock over.
    pub(crate) fn ask_again(&mut self) {
        let masters = Arc::clone(&self.claims.masters);
        let skipped = skipped(&masters);
        self.again = leaves_out_sick(&skipped, &masters);
        self.votes.clear();
        self.busy = Busy::default();
        self.late = LatePolicy::new(&masters);
        self.replies = self.claims.claim_again(skipped).until(deadlines(&masters, self.claims.ttl));
    }

    /// Waits for late masters even if their last request failed: it was over another connection.
    pub(crate) fn over_new_connections(&mut self) {
        self.late = LatePolicy::new(&self.claims.masters).over_new_connections();
    }

    /// Counts the masters that have handed the lock over, each with its token, as its votes, and no others.
    pub(crate) fn count_handed_over(&mut self, tokens: impl IntoIterator<Item = (usize, Token)>) {
        self.votes = tokens.into_iter().collect();
        self.busy = Busy::default();
        if let Some(largest) = self.votes.iter().map(|(_, token)| *token).max() {
            self.claims.holds_since(largest);
        }
    }

    /// Counts the votes until the attempt is decided.
    pub(crate) async fn count(&mut self) -> Vote {
        let masters = self.claims.masters.len();
        while self.replies.outstanding() > 0 {
            let Some((master, reply)) = self.replies.next().await else { break };
            if let Some(answer) = self.late.note(master, reply) {
                self.note(master, answer);
            }
            if self.votes.len() >= quorum(masters) {
                return Vote::Won;
            }
            if !self.may_win() && self.is_known_why() {
                break;
            }
            self.late.wait_on(&mut self.replies);
        }
        if !self.busy.ends_in.is_empty() && self.late.failed() <= masters - quorum(masters) {
            return Vote::Busy;
        }
        let error = no_quorum(masters, self.votes.len(), self.late.errors());
        if self.again || self.late.fell_silent() { Vote::Again(error) } else { Vote::NoQuorum(error) }
    }

    /// Whether a lost attempt stays in the wait queues, where the masters may hand the lock over to it: if it has an entry, and
    /// every master has refused. Waits for the answers that are missing, until each master's deadline.
    pub(crate) async fn stays_queued(&mut self) -> bool {
        if self.claims.entry.is_none() || !self.votes.is_empty() {
            return false;
        }
        while self.replies.outstanding() > 0 {
            let Some((master, reply)) = self.replies.next().await else { break };
            if let Some(answer) = self.late.note(master, reply) {
                self.note(master, answer);
            }
        }
        self.votes.is_empty() && self.claims.are_refused()
    }

    pub(crate) fn claims(&self) -> Arc<Claims> {
        Arc::clone(&self.claims)
    }

    /// When its first request may have been sent, at the earliest.
    pub(crate) fn began(&self) -> Instant {
        self.claims.began()
    }

    /// The number of masters.
    pub(crate) fn masters(&self) -> usize {
        self.claims.masters.len()
    }

    /// The answers of the masters that refused.
    pub(crate) fn busy(&self) -> Busy {
        let ours = self.votes.iter().map(|(master, _)| *master).collect();
        Busy { ours, ..self.busy.clone() }
    }

    /// The fencing token of a vote that was won.
    ///
    /// Every master answers the larger of the proposal and its own last token plus one. If a quorum answers alike, every
    /// later quorum has a master that knows the token. If not, the largest is written to a quorum before it counts.
    ///
    /// # Errors
    ///
    /// When no quorum confirms the token.
    pub(crate) async fn token(&mut self) -> Result<Token> {
        let claims = &self.claims;
        let masters = claims.masters.len();
        let Some(largest) = self.votes.iter().map(|(_, token)| *token).max() else {
            return Err(no_quorum(masters, 0, []));
        };
        let knows = |number: usize| self.votes.contains(&(number, largest));
        let mut confirmed = self.votes.iter().filter(|(_, token)| *token == largest).count();
        if confirmed >= quorum(masters) {
            return Ok(largest);
        }
        let voted: Vec<usize> = self.votes.iter().map(|(master, _)| *master).collect();
        let raises = (0..masters).map(|number| {
            let (claims, asked) = (Arc::clone(claims), voted.contains(&number) && !knows(number));
            async move {
                let ttl = claims.ttl;
                if asked { claims.raise(number, largest, ttl).await } else { Ok(false) }
            }
        });
        let mut replies = FanOut::new(raises).until(deadlines(&claims.masters, claims.ttl));
        self.late = LatePolicy::new(&claims.masters);
        while replies.outstanding() > 0 {
            let Some((master, reply)) = replies.next().await else { break };
            confirmed += usize::from(self.late.note(master, reply) == Some(true));
            if confirmed >= quorum(masters) {
                return Ok(largest);
            }
            self.late.wait_for_the_late(&mut replies);
        }
        Err(no_quorum(masters, confirmed, self.late.errors()))
    }

    /// Keeps the lock. Masters that refused, even later, are [asked again](ask_for_votes) in the background while the lease
    /// `is_valid`. Those that grant a smaller token later get this one.
    pub(crate) fn keep(
        mut self,
        token: Token,
        is_valid: impl Fn() -> bool + Clone + Send + Sync + 'static,
    ) -> Arc<Claims> {
        let claims = Arc::clone(&self.claims);
        let Some(runtime) = self.runtime.take() else { return claims };
        let refused: Vec<usize> = self.busy.ends_in.iter().map(|(master, _)| *master).collect();
        if !refused.is_empty() {
            drop(runtime.spawn(ask_for_votes(Arc::clone(&claims), refused, token, is_valid.clone())));
        }
        if !self.replies.is_over() {
            let (mut rest, claims) = (std::mem::take(&mut self.replies), Arc::clone(&claims));
            drop(runtime.spawn(async move {
                while let Some((master, answer)) = rest.answer().await {
                    match answer {
                        Ok(LockAnswer::Busy { .. }) if is_valid() => {
                            let asking =
                                ask_for_votes(Arc::clone(&claims), vec![master], token, is_valid.clone());
                            drop(tokio::spawn(asking));
                        }
                        // A quorum knows the token. One of it may forget it.
                        Ok(LockAnswer::Granted(other)) if other < token => {
                            drop(FanOut::new([Arc::clone(&claims).raise(master, token, claims.ttl)]));
                        }
                        _ => {}
                    }
                }
            }));
        }
        claims
    }

    /// Rolls the attempt back, and waits for that until each master's deadline. The rest continues in the background.
    pub(crate) async fn give_back(mut self, and_then: AndThen) {
        // The claims continue in the background; each removal waits for the claim at its master.
        drop(std::mem::take(&mut self.replies));
        let replies = self.claims.remove_all(self.claims.ttl);
        self.runtime = None;
        let mut deadlines = deadlines(&self.claims.masters, self.claims.ttl);
        for (master, deadline) in self.claims.masters.iter().zip(&mut deadlines) {
            if and_then == AndThen::Wait && master.is_sick() {
                // The vote has waited for it already.
                *deadline = Instant::now();
            }
        }
        let mut replies = replies.until(deadlines);
        while replies.outstanding() > 0 && replies.next().await.is_some() {}
    }

    fn may_win(&self) -> bool {
        let missing = quorum(self.claims.masters.len()).saturating_sub(self.votes.len());
        self.replies.outstanding() + self.late.expected_late() >= missing
    }

    /// Whether the reason for a lost vote is known: a quorum has answered, or no longer can.
    fn is_known_why(&self) -> bool {
        let masters = self.claims.masters.len();
        let answered = self.votes.len() + self.busy.ends_in.len();
        answered >= quorum(masters) || self.late.failed() > masters - quorum(masters)
    }

    fn note(&mut self, master: usize, answer: LockAnswer) {
        match answer {
            LockAnswer::Granted(token) => self.votes.push((master, token)),
            LockAnswer::Busy { foreign_type, ends_in, .. } => {
                self.busy.ends_in.push((master, ends_in));
                self.busy.foreign_type = self.busy.foreign_type.take().or(foreign_type);
            }
            LockAnswer::Broken => {
                self.again = true;
                self.late.note_failure(master, self.claims.masters[master].client.broken());
            }
        }
    }
}

/// Asks masters that refused for the votes of a lock that is held, at once and after each pause, while they refuse: the previous
/// holder's release, or the roll-back of a rival who lost the vote, has not reached them yet. Else the next renewal would be the first to
/// ask. Until then, each missing vote is one master fewer that may forget the lock.
async fn ask_for_votes(claims: Arc<Claims>, masters: Vec<usize>, token: Token, is_valid: impl Fn() -> bool) {
    for pause in PAUSES {
        sleep(pause).await;
        let refused: Vec<usize> =
            masters.iter().copied().filter(|master| claims.may_ask_again(*master)).collect();
        if refused.is_empty() || !is_valid() {
            return;
        }
        claims.heal(refused, claims.ttl, token);
    }
}

/// Whether a sick master is among those that are left out.
fn leaves_out_sick(skipped: &[Option<Error>], masters: &Masters) -> bool {
    let is_sick = |master: &Arc<Master>| matches!(master.readiness(), Readiness::Sick(_));
    skipped.iter().zip(&**masters).any(|(skipped, master)| skipped.is_some() && is_sick(master))
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        let _runtime = runtime.enter();
        drop(self.claims.remove_all(self.claims.ttl));
    }
}
