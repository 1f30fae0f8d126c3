//! One attempt to win a quorum.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, Result, Token};
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::claims::Claims;
use crate::contention::Contention;
use crate::error::no_quorum;
use crate::fan_out::FanOut;
use crate::late_policy::LatePolicy;
use crate::master::{Master, Readiness};
use crate::masters::{Masters, deadlines, skipped};
use crate::quorum::{OfEach, quorum};
use crate::rollback::Because;
use crate::wait_queue::QueueEntry;

/// One attempt. Dropping it takes back what it may have left.
#[derive(Debug)]
pub(crate) struct Attempt {
    claims: Arc<Claims>,
    /// `None` once it is kept or given back.
    runtime: Option<Handle>,
    replies: FanOut<Result<LockAnswer>>,
    votes: OfEach<(usize, Token)>,
    busy: Busy,
    late: LatePolicy,
    /// Whether it is worth asking again if there is no quorum.
    again: bool,
}

/// What the masters that refused said, and which they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Busy {
    pub(crate) foreign_type: Option<String>,
    /// Of each master that refused: when it may grant the lock, if it says so.
    pub(crate) ends_in: Vec<(usize, Option<Duration>)>,
    /// The masters that voted for us: several asked at once, and perhaps nobody won.
    pub(crate) ours: Vec<usize>,
}

/// How a vote ended.
pub(crate) enum Vote {
    Won,
    Busy(Busy),
    /// No quorum, and it may be worth asking again at once: connections broke, perhaps only because they had been idle
    /// for too long, or a master was left out that may be well by now.
    Again(Error),
    NoQuorum(Error),
}

/// How the lock is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way<'a> {
    /// As one that is free, and that nobody waits for.
    FastClaim,
    /// By one who does not wait, and lets those go first who have been called.
    Politely,
    /// By one who waits.
    InLine(&'a Arc<QueueEntry>),
}

/// What comes after an attempt that got nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AndThen {
    AskAtOnce,
    Wait,
}

impl Attempt {
    /// Asks the masters that are well; and the sick ones too if those are no quorum.
    ///
    /// The token that is proposed is `since`, our clock in microseconds since 1970, as the tokens of a single server are.
    /// A clock that is behind costs a round trip, not the order.
    pub(crate) fn start(
        masters: &Masters,
        keys: &Arc<Keys>,
        ttl: Duration,
        info: &Arc<str>,
        since: u64,
        way: Way<'_>,
        contention: &Arc<Contention>,
    ) -> Self {
        let (entry, outright) = match way {
            Way::InLine(entry) => (Some(entry), false),
            Way::Politely => (None, false),
            Way::FastClaim => (None, true),
        };
        let claims = Claims::new(masters, keys, ttl, info, since, entry, contention);
        let skipped = skipped(masters);
        let is_sick = |master: &Arc<Master>| matches!(master.readiness(), Readiness::Sick(_));
        let again =
            skipped.iter().zip(&**masters).any(|(skipped, master)| skipped.is_some() && is_sick(master));
        let mut deadlines = deadlines(masters, ttl);
        if outright {
            // What it leaves to the script takes a second round trip.
            let latest = Instant::now() + ttl / 20;
            for (deadline, master) in deadlines.iter_mut().zip(&**masters) {
                *deadline = (*deadline + master.round_trip()).min(latest).max(*deadline);
            }
        }
        Self {
            replies: claims.claim_all(skipped, outright).until(deadlines),
            claims,
            runtime: Handle::try_current().ok(),
            votes: OfEach::new(),
            busy: Busy::default(),
            late: LatePolicy::new(masters),
            again,
        }
    }

    /// Counts the votes until a quorum is there or out of reach.
    pub(crate) async fn count(&mut self) -> Vote {
        let masters = self.claims.masters.len();
        while self.replies.outstanding() > 0 {
            let Some((master, heard)) = self.replies.next().await else { break };
            if let Some(verdict) = self.late.note(master, heard) {
                self.note(master, verdict);
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
            self.busy.ours = self.votes.iter().map(|(master, _)| *master).collect();
            return Vote::Busy(std::mem::take(&mut self.busy));
        }
        let error = no_quorum(masters, self.votes.len(), self.late.errors());
        if self.again { Vote::Again(error) } else { Vote::NoQuorum(error) }
    }

    /// The fencing token of a vote that was won.
    ///
    /// Every master answers the larger of our proposal and its own last token plus one. When a quorum
    /// answers alike, a later quorum has a master that knows the token. If not, the largest is written
    /// to a quorum before it counts.
    ///
    /// # Errors
    ///
    /// When no quorum confirms it.
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
                if !asked {
                    return Ok(false);
                }
                let master = &claims.masters[number];
                let sent = Instant::now();
                let raised = master.voter.raise(&claims.keys, claims.owner, largest, claims.ttl);
                master.vote(sent, raised.await)
            }
        });
        let mut replies = FanOut::new(raises).until(deadlines(&claims.masters, claims.ttl));
        self.late = LatePolicy::new(&claims.masters);
        while replies.outstanding() > 0 {
            let Some((master, heard)) = replies.next().await else { break };
            confirmed += usize::from(self.late.note(master, heard) == Some(true));
            if confirmed >= quorum(masters) {
                return Ok(largest);
            }
            self.late.wait_for_the_late(&mut replies);
        }
        Err(no_quorum(masters, confirmed, self.late.errors()))
    }

    /// Keeps what was won. Masters that refused are asked once more, in the background, and also those that do so only
    /// now, while the lease `is_valid`: the release of the holder before may just not have reached them.
    pub(crate) fn keep(mut self, token: Token, is_valid: impl Fn() -> bool + Send + 'static) -> Arc<Claims> {
        let claims = Arc::clone(&self.claims);
        let refused: Vec<usize> = self.busy.ends_in.iter().map(|(master, _)| *master).collect();
        claims.heal(refused, claims.ttl, token);
        if let Some(runtime) = self.runtime.take().filter(|_| !self.replies.is_over()) {
            let (mut rest, claims) = (std::mem::take(&mut self.replies), Arc::clone(&claims));
            drop(runtime.spawn(async move {
                while let Some((master, answer)) = rest.answer().await {
                    if matches!(answer, Ok(LockAnswer::Busy { .. })) && is_valid() {
                        claims.heal([master], claims.ttl, token);
                    }
                }
            }));
        }
        claims
    }

    /// Takes back what it got, and waits for that as long as the masters may take to answer; the rest goes on in the
    /// background.
    pub(crate) async fn give_back(mut self, and_then: AndThen) {
        // Nothing is erased before the claim there has come to its end.
        drop(std::mem::take(&mut self.replies));
        let replies = self.claims.remove_all(self.claims.ttl, Because::Lost);
        self.runtime = None;
        let mut deadlines = deadlines(&self.claims.masters, self.claims.ttl);
        for (master, deadline) in self.claims.masters.iter().zip(&mut deadlines) {
            if and_then == AndThen::Wait && master.is_sick() {
                // It has been waited for by the vote.
                *deadline = Instant::now();
            }
        }
        let mut replies = replies.until(deadlines);
        while replies.outstanding() > 0 && replies.next().await.is_some() {}
    }

    fn may_win(&self) -> bool {
        let missing = quorum(self.claims.masters.len()).saturating_sub(self.votes.len());
        self.replies.outstanding() + self.late.hopes_for() >= missing
    }

    /// Whether it is known why it is not won: a quorum has answered, or can answer no more.
    fn is_known_why(&self) -> bool {
        let masters = self.claims.masters.len();
        let answered = self.votes.len() + self.busy.ends_in.len();
        answered >= quorum(masters) || self.late.failed() > masters - quorum(masters)
    }

    fn note(&mut self, master: usize, verdict: LockAnswer) {
        match verdict {
            LockAnswer::Granted(token) => self.votes.push((master, token)),
            LockAnswer::Busy { foreign_type, ends_in, .. } => {
                self.busy.ends_in.push((master, ends_in));
                self.busy.foreign_type = self.busy.foreign_type.take().or(foreign_type);
            }
            LockAnswer::Broken => {
                self.again = true;
                self.late.fails(master, self.claims.masters[master].voter.broken());
            }
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        let _runtime = runtime.enter();
        drop(self.claims.remove_all(self.claims.ttl, Because::Lost));
    }
}
