//! A lock that is held on a quorum.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::renewal::Renewal;
use lock_core::{
    BootInstant, Error, ErrorKind, GuardState, Lease, LossReason, Outcome, OwnerId, Released, Result, Token,
    Validity, ValidityCell,
};
use tokio::time::{Instant, sleep};

use crate::backend::{BACKEND, check_ttl, no_quorum};
use crate::campaign::deadlines;
use crate::footprint::{Because, Footprint};
use crate::master::Master;
use crate::patience::Patience;
use crate::quorum::{Heard, Wave, quorum};

/// How long after it failed an extension is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_millis(320);

#[derive(Debug)]
pub(crate) struct RedlockLease {
    pub(crate) footprint: Arc<Footprint>,
    pub(crate) longest_ttl: Duration,
    pub(crate) token: Token,
    pub(crate) cell: ValidityCell,
    pub(crate) validity: Validity,
    pub(crate) renewal: Renewal,
    /// Only ever reached through `&mut`: the mutex makes the lease `Sync`.
    pub(crate) releasing: Mutex<Option<Releasing>>,
}

/// A release that was sent to all masters.
#[derive(Debug)]
pub(crate) struct Releasing {
    was_valid: bool,
    /// Until it is decided; from then on the rest of it runs in the background.
    wave: Option<Wave<Option<bool>>>,
    /// The masters that have answered, one bit for each.
    answered: u64,
    ours: usize,
    not_ours: usize,
}

#[async_trait]
impl Lease for RedlockLease {
    fn token(&self) -> Token {
        self.token
    }

    fn owner(&self) -> OwnerId {
        self.footprint.owner
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        if !self.validity.is_valid() {
            return Err(Error::lost(BACKEND));
        }
        check_ttl(ttl, self.longest_ttl)?;
        let (mut pause, mut failed) = (FIRST_PAUSE, Error::lost(BACKEND));
        while self.validity.is_valid() {
            match self.renewal.extend(ttl).await.deadline(BACKEND) {
                // It unlocks nothing, and is tried again while the lease lasts.
                Err(error) if error.is_retryable() => failed = error,
                answered => return answered,
            }
            tokio::select! {
                _ = self.validity.lost() => return Err(failed),
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(LAST_PAUSE);
        }
        Err(failed)
    }

    async fn verify(&self) -> Result<GuardState> {
        let masters = &self.footprint.masters;
        let looks = masters.iter().map(|master| {
            let (master, keys) = (Arc::clone(master), Arc::clone(&self.footprint.keys));
            async move {
                let asked = Instant::now();
                master.vote(asked, master.server.look_at_vote(&keys).await)
            }
        });
        let mut wave = Wave::new(looks).until(deadlines(masters, self.renewal.longest_ttl()));
        let owner = self.footprint.owner.to_string();
        let mut patience = Patience::new(masters);
        let (mut ours, mut not_ours) = (0, 0);
        while wave.outstanding() > 0 {
            let Some((master, heard)) = wave.next().await else { break };
            match patience.note(master, heard) {
                Some(sight) if sight.value == owner => ours += 1,
                Some(_) => not_ours += 1,
                None => {}
            }
            if ours >= quorum(masters.len()) {
                return Ok(self.validity.state());
            }
            if not_ours > masters.len() - quorum(masters.len()) {
                self.cell.lose(LossReason::Removed);
                return Ok(self.validity.state());
            }
            patience.wait_on(&mut wave);
        }
        Err(no_quorum(masters.len(), ours, patience.errors()))
    }

    async fn release(&mut self) -> Result<Released> {
        self.renewal.stop().await;
        if self.footprint.masters.iter().all(|master| master.server.is_closed()) {
            return Err(Error::closed(BACKEND));
        }
        let (masters, ttl) = (&self.footprint.masters, self.renewal.longest_ttl());
        let releasing = self.releasing.get_mut().unwrap_or_else(PoisonError::into_inner);
        let releasing = releasing.get_or_insert_with(|| Releasing {
            was_valid: self.validity.is_valid(),
            wave: Some(self.footprint.erase(ttl, Because::Released)),
            answered: 0,
            ours: 0,
            not_ours: 0,
        });
        let ours = releasing.decide(masters, ttl).await?;
        let released = if ours && releasing.was_valid { Released::Released } else { Released::AlreadyLost };
        self.cell.lose(LossReason::Released);
        Ok(released)
    }
}

impl Releasing {
    /// Whether the lock was ours on a quorum until now.
    async fn decide(&mut self, masters: &Arc<[Arc<Master>]>, ttl: Duration) -> Result<bool> {
        let quorum = quorum(masters.len());
        let mut patience = Patience::new(masters);
        if let Some(wave) = &mut self.wave {
            let is_open = |number: &usize| self.answered & (1 << number) == 0;
            for number in (0..masters.len()).filter(is_open) {
                wave.wait_on([number], Instant::now() + masters[number].deadline(ttl));
            }
        }
        while let Some(wave) = self.wave.as_mut().filter(|wave| wave.outstanding() > 0) {
            match wave.next().await {
                Some((number, Heard::Answer(removed))) => {
                    patience.hears(number);
                    self.answered |= 1 << number;
                    // In doubt it was one of our own requests that removed it.
                    let was_ours = removed != Some(false);
                    self.ours += usize::from(was_ours);
                    self.not_ours += usize::from(!was_ours);
                }
                Some((number, Heard::Late)) => patience.is_late(number),
                None => break,
            }
            if self.ours >= quorum || self.not_ours > masters.len() - quorum {
                // The rest of it goes on in the background.
                self.wave = None;
            } else {
                patience.wait_on(wave);
            }
        }
        let (ours, confirmed) = (self.ours, self.ours + self.not_ours);
        if self.wave.is_none() {
            Ok(ours >= quorum)
        } else if confirmed >= quorum {
            // The rest does not answer, but a quorum has nothing of ours any more.
            Ok(true)
        } else {
            Err(unconfirmed(confirmed, masters.len()))
        }
    }
}

fn unconfirmed(confirmed: usize, masters: usize) -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .with_message(format!("only {confirmed} of {masters} masters confirmed the release in time"))
        .with_hint("the release goes on in the background")
        .with_outcome(Outcome::Unknown)
}
