//! One attempt to win a quorum, and what it leaves on the masters.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, Outcome, OwnerId, Result, Token};
use lock_redis::Keys;
use lock_redis::server::{Claim, Sent, Verdict};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::backend::no_quorum;
use crate::master::Master;
use crate::quorum::{Wave, quorum};

/// What one attempt may have left on the masters.
#[derive(Debug)]
pub(crate) struct Footprint {
    pub(crate) masters: Arc<[Arc<Master>]>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: OwnerId,
    pub(crate) ttl: Duration,
    /// What is known of each claim: a release must not overtake one.
    claims: watch::Sender<Claims>,
    /// The connections that the claims went out on.
    sent_on: Vec<Option<u64>>,
}

/// What is known of the claims, one bit for each master.
#[derive(Clone, Copy, Debug, Default)]
struct Claims {
    /// It has come to its end.
    ended: u64,
    /// It was granted, and nothing of it is on its way.
    granted: u64,
    /// It was refused, or never sent: the master has nothing of ours.
    refused: u64,
}

/// One attempt. Dropping it takes back what it may have left.
#[derive(Debug)]
pub(crate) struct Campaign {
    footprint: Option<Arc<Footprint>>,
    runtime: Option<Handle>,
    wave: Wave<Result<Verdict>>,
    votes: Vec<(usize, Token)>,
    busy: Option<Busy>,
    failed: Vec<Error>,
    /// Connections broke, perhaps only because they had been idle for too long.
    broken: bool,
}

/// What the masters that refused said.
#[derive(Clone, Debug)]
pub(crate) struct Busy {
    pub(crate) foreign_type: Option<String>,
    /// Some masters voted for us: several asked at once, and perhaps nobody won.
    pub(crate) split: bool,
}

/// How a vote ended.
pub(crate) enum Vote {
    Won,
    Busy(Busy),
    /// No quorum, and connections broke: it may be worth asking again at once.
    Broken(Error),
    NoQuorum(Error),
}

impl Campaign {
    /// Asks all masters.
    pub(crate) fn start(
        masters: &Arc<[Arc<Master>]>,
        keys: &Arc<Keys>,
        ttl: Duration,
        info: &Arc<str>,
        proposal: Token,
    ) -> Self {
        let footprint = Arc::new(Footprint {
            masters: Arc::clone(masters),
            keys: Arc::clone(keys),
            owner: OwnerId::random(),
            ttl,
            claims: watch::Sender::default(),
            sent_on: masters.iter().map(|master| master.server.generation(keys)).collect(),
        });
        let wave = Wave::new((0..masters.len()).map(|number| {
            let (footprint, info) = (Arc::clone(&footprint), Arc::clone(info));
            async move { footprint.claim(number, &info, proposal).await }
        }));
        let runtime = Handle::try_current().ok();
        Self {
            footprint: Some(footprint),
            runtime,
            wave,
            votes: Vec::new(),
            busy: None,
            failed: Vec::new(),
            broken: false,
        }
    }

    /// Counts the votes until a quorum is there or out of reach.
    pub(crate) async fn count(&mut self) -> Vote {
        let masters = self.masters();
        while let Some((master, answer)) = self.wave.next().await {
            match answer {
                Ok(Verdict::Granted(token)) => self.votes.push((master, token)),
                Ok(Verdict::Busy { foreign_type, .. }) => self.note_busy(foreign_type),
                Ok(Verdict::Broken) => self.note_broken(master),
                Err(error) => self.failed.push(error),
            }
            if self.votes.len() >= quorum(masters) {
                return Vote::Won;
            }
            if self.votes.len() + self.wave.outstanding() < quorum(masters) {
                break;
            }
        }
        match (&self.busy, self.failed.len() > masters - quorum(masters)) {
            (Some(busy), false) => Vote::Busy(Busy { split: !self.votes.is_empty(), ..busy.clone() }),
            _ => {
                let error = no_quorum(masters, self.votes.len(), self.failed.pop());
                if self.broken { Vote::Broken(error) } else { Vote::NoQuorum(error) }
            }
        }
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
        let masters = self.masters();
        let Some(largest) = self.votes.iter().map(|(_, token)| *token).max() else {
            return Err(no_quorum(masters, 0, None));
        };
        let behind = self.votes.iter().filter(|(_, token)| *token < largest);
        let behind: Vec<_> = behind.map(|(master, _)| *master).collect();
        let mut confirmed = self.votes.len() - behind.len();
        if confirmed >= quorum(masters) {
            return Ok(largest);
        }
        let Some(footprint) = self.footprint.clone() else {
            unreachable!("a campaign has its footprint until it ends")
        };
        let mut wave = Wave::new(behind.into_iter().map(|number| {
            let footprint = Arc::clone(&footprint);
            async move {
                let (server, keys) = (&footprint.masters[number].server, &footprint.keys);
                server.raise(keys, footprint.owner, largest, footprint.ttl).await
            }
        }));
        while let Some((_, answer)) = wave.next().await {
            match answer {
                Ok(ours) => confirmed += usize::from(ours),
                Err(error) => self.failed.push(error),
            }
            if confirmed >= quorum(masters) {
                return Ok(largest);
            }
        }
        Err(no_quorum(masters, confirmed, self.failed.pop()))
    }

    /// Keeps what was won.
    pub(crate) fn keep(mut self) -> Arc<Footprint> {
        let Some(footprint) = self.footprint.take() else {
            unreachable!("a campaign has its footprint until it ends")
        };
        footprint
    }

    fn masters(&self) -> usize {
        self.footprint.as_ref().map_or(0, |footprint| footprint.masters.len())
    }

    fn note_broken(&mut self, master: usize) {
        self.broken = true;
        if let Some(footprint) = &self.footprint {
            self.failed.push(footprint.masters[master].server.broken());
        }
    }

    fn note_busy(&mut self, foreign_type: Option<String>) {
        let busy = self.busy.get_or_insert(Busy { foreign_type: None, split: false });
        busy.foreign_type = busy.foreign_type.take().or(foreign_type);
    }
}

impl Drop for Campaign {
    fn drop(&mut self) {
        let (Some(footprint), Some(runtime)) = (self.footprint.take(), &self.runtime) else { return };
        let _runtime = runtime.enter();
        let ttl = footprint.ttl;
        drop(footprint.erase(ttl));
    }
}

impl Footprint {
    async fn claim(&self, number: usize, info: &str, proposal: Token) -> Result<Verdict> {
        let mut ending = Ending { footprint: self, number, granted: false, refused: false };
        let claim =
            Claim { keys: &self.keys, owner: self.owner, ttl: self.ttl, info, proposal: Some(proposal) };
        let answer = self.masters[number].claim(&claim).await;
        ending.granted = matches!(answer, Ok(Verdict::Granted(_)));
        ending.refused = match &answer {
            Ok(Verdict::Granted(_) | Verdict::Broken) => false,
            Ok(Verdict::Busy { .. }) => true,
            Err(error) => error.outcome() == Outcome::NotApplied,
        };
        answer
    }

    /// Removes it from every master, after the claim there has come to its end, and tells for each
    /// whether the key was ours. `ttl` is the longest that the keys were given.
    pub(crate) fn erase(self: Arc<Self>, ttl: Duration) -> Wave<Option<bool>> {
        Wave::new((0..self.masters.len()).map(|number| {
            let footprint = Arc::clone(&self);
            async move {
                let Some(sent) = footprint.ended(number).await else { return Some(false) };
                let server = &footprint.masters[number].server;
                server.undo(&footprint.keys, footprint.owner, None, ttl, sent).await
            }
        }))
    }

    /// What became of a claim, once it has come to its end: `None` when it left nothing.
    async fn ended(&self, number: usize) -> Option<Sent> {
        let bit = 1 << number;
        let mut claims = self.claims.subscribe();
        // The sender lives in the footprint.
        let claims = *claims.wait_for(|claims| claims.ended & bit != 0).await.ok()?;
        match (claims.refused & bit != 0, claims.granted & bit != 0) {
            (true, _) => None,
            (false, true) => Some(Sent::Answered),
            (false, false) => Some(Sent::InDoubt { connection: self.sent_on[number] }),
        }
    }
}

/// Notes that a claim has come to its end, also when it was dropped with the runtime.
struct Ending<'a> {
    footprint: &'a Footprint,
    number: usize,
    granted: bool,
    refused: bool,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let bit = |set: bool| u64::from(set) << self.number;
        self.footprint.claims.send_modify(|claims| {
            claims.ended |= bit(true);
            claims.granted |= bit(self.granted);
            claims.refused |= bit(self.refused);
        });
    }
}
