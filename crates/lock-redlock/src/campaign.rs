//! One attempt to win a quorum.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, Outcome, Result, Token};
use lock_redis::Keys;
use lock_redis::server::Verdict;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::backend::no_quorum;
use crate::footprint::{Because, Footprint};
use crate::line::{Contention, Seat};
use crate::master::{Master, Readiness};
use crate::patience::Patience;
use crate::quorum::{OfEach, Wave, quorum};

/// One attempt. Dropping it takes back what it may have left.
#[derive(Debug)]
pub(crate) struct Campaign {
    footprint: Arc<Footprint>,
    /// `None` once it is kept or given back.
    runtime: Option<Handle>,
    wave: Wave<Result<Verdict>>,
    votes: OfEach<(usize, Token)>,
    busy: Busy,
    patience: Patience,
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
    Outright,
    /// By one who does not wait, and lets those go first who have been called.
    Politely,
    /// By one who waits.
    InLine(&'a Arc<Seat>),
}

/// What comes after an attempt that got nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AndThen {
    AskAtOnce,
    Wait,
}

impl Campaign {
    /// Asks the masters that are well; and the sick ones too if those are no quorum.
    ///
    /// The token that is proposed is `since`, our clock in microseconds since 1970, as the tokens of a single server are.
    /// A clock that is behind costs a round trip, not the order.
    pub(crate) fn start(
        masters: &Arc<[Arc<Master>]>,
        keys: &Arc<Keys>,
        ttl: Duration,
        info: &Arc<str>,
        since: u64,
        way: Way<'_>,
        contention: &Arc<Contention>,
    ) -> Self {
        let (seat, outright) = match way {
            Way::InLine(seat) => (Some(seat), false),
            Way::Politely => (None, false),
            Way::Outright => (None, true),
        };
        let footprint = Footprint::new(masters, keys, ttl, info, since, seat, contention);
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
            wave: footprint.claim_all(skipped, outright).until(deadlines),
            footprint,
            runtime: Handle::try_current().ok(),
            votes: OfEach::new(),
            busy: Busy::default(),
            patience: Patience::new(masters),
            again,
        }
    }

    /// Counts the votes until a quorum is there or out of reach.
    pub(crate) async fn count(&mut self) -> Vote {
        let masters = self.footprint.masters.len();
        while self.wave.outstanding() > 0 {
            let Some((master, heard)) = self.wave.next().await else { break };
            if let Some(verdict) = self.patience.note(master, heard) {
                self.note(master, verdict);
            }
            if self.votes.len() >= quorum(masters) {
                return Vote::Won;
            }
            if !self.may_win() && self.is_known_why() {
                break;
            }
            self.patience.wait_on(&mut self.wave);
        }
        if !self.busy.ends_in.is_empty() && self.patience.failed() <= masters - quorum(masters) {
            self.busy.ours = self.votes.iter().map(|(master, _)| *master).collect();
            return Vote::Busy(std::mem::take(&mut self.busy));
        }
        let error = no_quorum(masters, self.votes.len(), self.patience.errors());
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
        let footprint = &self.footprint;
        let masters = footprint.masters.len();
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
            let (footprint, asked) = (Arc::clone(footprint), voted.contains(&number) && !knows(number));
            async move {
                if !asked {
                    return Ok(false);
                }
                let master = &footprint.masters[number];
                let sent = Instant::now();
                let raised =
                    master.server.raise_vote(&footprint.keys, footprint.owner, largest, footprint.ttl);
                master.vote(sent, raised.await)
            }
        });
        let mut wave = Wave::new(raises).until(deadlines(&footprint.masters, footprint.ttl));
        self.patience = Patience::new(&footprint.masters);
        while wave.outstanding() > 0 {
            let Some((master, heard)) = wave.next().await else { break };
            confirmed += usize::from(self.patience.note(master, heard) == Some(true));
            if confirmed >= quorum(masters) {
                return Ok(largest);
            }
            self.patience.wait_for_the_late(&mut wave);
        }
        Err(no_quorum(masters, confirmed, self.patience.errors()))
    }

    /// Keeps what was won. Masters that refused are asked once more, in the background, and also those that do so only
    /// now, while the lease `is_valid`: the release of the holder before may just not have reached them.
    pub(crate) fn keep(
        mut self,
        token: Token,
        is_valid: impl Fn() -> bool + Send + 'static,
    ) -> Arc<Footprint> {
        let footprint = Arc::clone(&self.footprint);
        let refused: Vec<usize> = self.busy.ends_in.iter().map(|(master, _)| *master).collect();
        footprint.heal(refused, footprint.ttl, token);
        if let Some(runtime) = self.runtime.take().filter(|_| !self.wave.is_over()) {
            let (mut rest, footprint) = (std::mem::take(&mut self.wave), Arc::clone(&footprint));
            drop(runtime.spawn(async move {
                while let Some((master, answer)) = rest.answer().await {
                    if matches!(answer, Ok(Verdict::Busy { .. })) && is_valid() {
                        footprint.heal([master], footprint.ttl, token);
                    }
                }
            }));
        }
        footprint
    }

    /// Takes back what it got, and waits for that as long as the masters may take to answer; the rest goes on in the
    /// background.
    pub(crate) async fn give_back(mut self, and_then: AndThen) {
        // Nothing is erased before the claim there has come to its end.
        drop(std::mem::take(&mut self.wave));
        let wave = self.footprint.erase(self.footprint.ttl, Because::Lost);
        self.runtime = None;
        let mut deadlines = deadlines(&self.footprint.masters, self.footprint.ttl);
        for (master, deadline) in self.footprint.masters.iter().zip(&mut deadlines) {
            if and_then == AndThen::Wait && master.is_sick() {
                // It has been waited for by the vote.
                *deadline = Instant::now();
            }
        }
        let mut wave = wave.until(deadlines);
        while wave.outstanding() > 0 && wave.next().await.is_some() {}
    }

    fn may_win(&self) -> bool {
        let missing = quorum(self.footprint.masters.len()).saturating_sub(self.votes.len());
        self.wave.outstanding() + self.patience.hopes_for() >= missing
    }

    /// Whether it is known why it is not won: a quorum has answered, or can answer no more.
    fn is_known_why(&self) -> bool {
        let masters = self.footprint.masters.len();
        let answered = self.votes.len() + self.busy.ends_in.len();
        answered >= quorum(masters) || self.patience.failed() > masters - quorum(masters)
    }

    fn note(&mut self, master: usize, verdict: Verdict) {
        match verdict {
            Verdict::Granted(token) => self.votes.push((master, token)),
            Verdict::Busy { foreign_type, ends_in, .. } => {
                self.busy.ends_in.push((master, ends_in));
                self.busy.foreign_type = self.busy.foreign_type.take().or(foreign_type);
            }
            Verdict::Broken => {
                self.again = true;
                self.patience.fails(master, self.footprint.masters[master].server.broken());
            }
        }
    }
}

impl Drop for Campaign {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        let _runtime = runtime.enter();
        drop(self.footprint.erase(self.footprint.ttl, Because::Lost));
    }
}

/// Until when each master's answer is waited for.
pub(crate) fn deadlines(masters: &[Arc<Master>], ttl: Duration) -> OfEach<Instant> {
    let now = Instant::now();
    masters.iter().map(|master| now + master.deadline(ttl)).collect()
}

/// Of each master: why it is not asked, if not.
pub(crate) fn skipped(masters: &[Arc<Master>]) -> OfEach<Option<Error>> {
    let readiness: OfEach<Readiness> = masters.iter().map(Master::readiness).collect();
    let well = readiness.iter().filter(|readiness| matches!(readiness, Readiness::Well)).count();
    let skip = |readiness| match readiness {
        Readiness::Well => None,
        Readiness::Sick(_) if well < quorum(masters.len()) => None,
        Readiness::Sick(error) | Readiness::Barred(error) => Some(error.with_outcome(Outcome::NotApplied)),
    };
    readiness.into_iter().map(skip).collect()
}
