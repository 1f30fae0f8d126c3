//! A lock that is held on one server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::renewal::{Renew, Renewal, Renewed};
use lock_core::{
    BootInstant, Clock, Error, Lease, LossReason, OwnerId, Released, Result, Standing, Token, Validity,
    ValidityCell,
};

use crate::backend::check_ttl;
use crate::{Keys, Server};

#[derive(Debug)]
pub(crate) struct RedisLease {
    pub(crate) server: Arc<Server>,
    pub(crate) clock: Clock,
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: OwnerId,
    pub(crate) token: Token,
    pub(crate) cell: ValidityCell,
    pub(crate) validity: Validity,
    pub(crate) renewal: Renewal,
    pub(crate) releasing: Option<Releasing>,
}

/// A release that was sent and is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Releasing {
    was_valid: bool,
    /// From then on the key has ended by itself.
    over: BootInstant,
    /// Whether an earlier request may have removed the key.
    maybe_done: bool,
}

#[async_trait]
impl Lease for RedisLease {
    fn token(&self) -> Token {
        self.token
    }

    fn owner(&self) -> OwnerId {
        self.owner
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        check_ttl(ttl)?;
        match self.renewal.extend(ttl).await {
            Renewed::Until(until) => Ok(until),
            Renewed::NotOurs => Err(Error::lost(crate::backend::BACKEND)),
            Renewed::Unknown(error) => Err(error),
        }
    }

    async fn verify(&self) -> Result<Standing> {
        if self.server.look(&self.keys).await?.value != self.owner.to_string() {
            self.cell.lose(LossReason::Removed);
        }
        Ok(self.validity.standing())
    }

    async fn release(&mut self) -> Result<Released> {
        self.renewal.stop().await;
        let standing = self.validity.standing();
        if standing == Standing::Lost(LossReason::Removed) {
            return Ok(Released::AlreadyLost);
        }
        let now = self.clock.now();
        let over = now + self.renewal.longest_ttl() + self.server.command_timeout();
        let was_valid = !matches!(standing, Standing::Lost(_));
        let sent = *self.releasing.get_or_insert(Releasing { was_valid, over, maybe_done: false });
        let in_time = if sent.was_valid { Released::Released } else { Released::AlreadyLost };
        if now >= sent.over {
            return Ok(in_time);
        }
        self.releasing = Some(Releasing { maybe_done: true, ..sent });
        let ours = self.server.release(&self.keys, self.owner).await?;
        self.cell.lose(LossReason::Released);
        let known_lost = ours == Some(false) && !sent.maybe_done;
        Ok(if known_lost { Released::AlreadyLost } else { in_time })
    }
}

/// What the leases of one server are renewed by: all that are due go out in one pipeline.
#[derive(Debug)]
pub(crate) struct RenewOnServer {
    pub(crate) server: Arc<Server>,
    pub(crate) clock: Clock,
}

#[async_trait]
impl Renew for RenewOnServer {
    type Key = (Arc<Keys>, OwnerId);

    async fn renew(&self, batch: &[(Self::Key, Duration)]) -> Vec<Renewed> {
        let sent = self.clock.now();
        let leases: Vec<_> = batch.iter().map(|((keys, owner), ttl)| (&**keys, *owner, *ttl)).collect();
        match self.server.extend(&leases).await {
            Ok(ours) => {
                let answers = ours.into_iter().zip(&leases);
                let renewed = answers.map(|(ours, (_, _, ttl))| match ours {
                    Ok(true) => Renewed::Until(trusted_until(sent, *ttl)),
                    Ok(false) => Renewed::NotOurs,
                    Err(error) => Renewed::Unknown(error),
                });
                renewed.collect()
            }
            Err(error) => leases.iter().map(|_| Renewed::Unknown(error.clone())).collect(),
        }
    }
}

/// How long a lease that was asked for at `sent` can be believed in: the server's clock may run
/// faster than ours by 1 %, and it counts in milliseconds.
///
/// Source: the drift of the Redlock algorithm, Redis documentation, "Distributed Locks with Redis".
#[must_use]
pub fn trusted_until(sent: BootInstant, ttl: Duration) -> BootInstant {
    sent + ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
}
