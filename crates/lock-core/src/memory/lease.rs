//! One lock that the memory backend granted.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::config::{BACKEND, MemoryConfig};
use super::store::Store;
use crate::renewal::Renewal;
use crate::{
    BootInstant, Capabilities, Error, ErrorKind, GuardState, Lease, LeaseKind, LockName, LossReason, OwnerId,
    Released, Result, Revocation, Token, Validity, ValidityCell,
};

#[derive(Debug)]
pub(super) struct MemoryLease {
    pub(super) store: Arc<Store>,
    pub(super) name: LockName,
    pub(super) owner: OwnerId,
    pub(super) token: Token,
    pub(super) cell: ValidityCell,
    pub(super) validity: Validity,
    pub(super) renewal: Renewal,
    pub(super) revocation: Revocation,
}

#[async_trait]
impl Lease for MemoryLease {
    fn token(&self) -> Token {
        self.token
    }

    fn owner(&self) -> OwnerId {
        self.owner
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    fn revocation(&self) -> Option<&Revocation> {
        Some(&self.revocation)
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        let leases = Capabilities::new(BACKEND, LeaseKind::Ttl { default: ttl, min: MemoryConfig::MIN_TTL });
        leases.check_ttl(ttl, MemoryConfig::MIN_TTL)?;
        self.renewal.extend(ttl).await.deadline(BACKEND)
    }

    async fn verify(&self) -> Result<GuardState> {
        Ok(self.validity.state())
    }

    async fn downgrade(&mut self) -> Result<()> {
        let (mut table, owner) = (self.store.table(), self.owner);
        let downgraded = table.change(&self.name, &self.store.clock, LossReason::Removed, |record, now| {
            record.downgrade(now, owner, Duration::ZERO)
        });
        if downgraded == Some(true) { Ok(()) } else { Err(Error::lost(BACKEND)) }
    }

    async fn release(&mut self) -> Result<Released> {
        self.renewal.stop().await;
        let valid = self.validity.is_valid();
        let (mut table, owner) = (self.store.table(), self.owner);
        let released = table.change(&self.name, &self.store.clock, LossReason::Released, |record, now| {
            record.release(now, owner)
        });
        self.cell.lose(LossReason::Released);
        Ok(if valid && released == Some(true) { Released::Released } else { Released::AlreadyLost })
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        if floor.get() >= i64::MAX as u64 {
            return Err(Error::new(ErrorKind::Exhausted, BACKEND)
                .with_message(format!("no token is larger than {floor}"))
                .with_hint("raise the tokens to a smaller number")
                .with_can_pass(false));
        }
        let (mut table, owner) = (self.store.table(), self.owner);
        let raised = table.change(&self.name, &self.store.clock, LossReason::Removed, |record, now| {
            let changes = record.settle(now);
            (record.raise(now, owner, floor), changes)
        });
        if raised != Some(true) {
            return Err(Error::lost(BACKEND));
        }
        table.tokens.use_up(floor.get());
        Ok(())
    }
}
