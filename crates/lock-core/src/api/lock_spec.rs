//! What all acquisitions of one handle have in common.

use std::sync::Arc;
use std::time::Duration;

use crate::process::persistence::OnRefused;
use crate::{
    AcquireRequest, Capabilities, Error, ErrorKind, LeasePolicy, LockName, LockOptions, Mode, OnQueued,
    OwnerInfo, Persistence, Result, Wait,
};

/// A lock with the mode and the options of its acquisitions.
#[derive(Clone, Debug)]
pub(crate) struct LockSpec {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    pub(crate) lease: LeasePolicy,
    pub(crate) hold_at_least: Option<Duration>,
    owner: Arc<OwnerInfo>,
    /// Whether it is the write side of a read/write lock.
    pub(crate) writes: bool,
    /// Whether the store has to know of each holder.
    pub(crate) is_observed: bool,
    on_queued: Option<OnQueued>,
    pub(crate) persistence: Persistence,
    pub(crate) on_refused: Option<OnRefused>,
}

impl LockSpec {
    /// Refuses a mode and options that the backend cannot honour.
    pub(crate) fn new(
        capabilities: &Capabilities,
        owner: &Arc<OwnerInfo>,
        name: &str,
        mode: Mode,
        options: &LockOptions,
    ) -> Result<Self> {
        let name = LockName::new(name)?;
        let fits = || {
            capabilities.check_mode(mode)?;
            check_label(options.label.as_deref(), capabilities.backend)?;
            let lease = match options.hold_at_least {
                Some(hold) => capabilities.at_least(hold, options.lease)?,
                None => options.lease,
            };
            capabilities.check(lease).map(|()| lease)
        };
        let lease = fits().map_err(|error| error.on(&name))?;
        let owner = match &options.label {
            Some(label) => Arc::new(OwnerInfo::clone(owner).with_label(label)),
            None => Arc::clone(owner),
        };
        Ok(Self {
            name,
            mode,
            lease,
            hold_at_least: options.hold_at_least,
            owner,
            writes: false,
            is_observed: false,
            on_queued: options.on_queued.clone(),
            persistence: options.persistence.unwrap_or_default(),
            on_refused: options.on_refused.clone(),
        })
    }

    pub(crate) fn request(&self, wait: Wait) -> AcquireRequest {
        let owner = Arc::clone(&self.owner);
        let request = AcquireRequest::exclusive(self.name.clone(), wait, self.lease, owner);
        AcquireRequest {
            writes: self.writes,
            on_queued: self.on_queued.clone(),
            ..request.in_mode(self.mode)
        }
    }

    /// Whether a lock that was acquired so may go to an acquisition like `next` as it is: the store would not show a
    /// difference, and the new holder gets what it has asked for.
    pub(crate) fn may_pass_to(&self, next: &Self) -> bool {
        let is_exclusive = self.mode == Mode::Exclusive && next.mode == Mode::Exclusive;
        let is_endless = self.lease.renewed && self.lease.max_hold.is_none();
        is_exclusive
            && is_endless
            && !self.is_observed
            && !next.is_observed
            && (self.lease, self.writes) == (next.lease, next.writes)
            && (Arc::ptr_eq(&self.owner, &next.owner) || self.owner == next.owner)
    }
}

fn check_label(label: Option<&str>, backend: &'static str) -> Result<()> {
    match label.map_or(0, str::len) {
        0..=OwnerInfo::MAX_LABEL_BYTES => Ok(()),
        bytes => {
            let hint = format!("use at most {}, and keep the rest elsewhere", OwnerInfo::MAX_LABEL_BYTES);
            Err(Error::new(ErrorKind::InvalidConfig, backend)
                .with_message(format!("the label has {bytes} bytes"))
                .with_hint(hint))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::{Backend as _, Memory, MemoryConfig};

    /// The lock `a` in this mode.
    pub(crate) fn spec(mode: Mode) -> Arc<LockSpec> {
        Arc::new(with_options(mode, &LockOptions::new()))
    }

    /// The exclusive lock of this name.
    pub(crate) fn named(name: &str) -> Arc<LockSpec> {
        let lock = with_options(Mode::Exclusive, &LockOptions::new());
        Arc::new(LockSpec { name: LockName::new(name).unwrap(), ..lock })
    }

    fn with_options(mode: Mode, options: &LockOptions) -> LockSpec {
        let memory = Memory::open(MemoryConfig::new()).unwrap();
        let owner = Arc::new(OwnerInfo::this_process());
        LockSpec::new(memory.capabilities(), &owner, "a", mode, options).unwrap()
    }

    #[test]
    fn a_label_that_no_store_may_take_is_refused() {
        let memory = Memory::open(MemoryConfig::new()).unwrap();
        let owner = Arc::new(OwnerInfo::this_process());
        let labelled = |bytes| {
            let options = LockOptions::new().label("l".repeat(bytes));
            LockSpec::new(memory.capabilities(), &owner, "a", Mode::Exclusive, &options)
        };
        assert!(labelled(OwnerInfo::MAX_LABEL_BYTES).is_ok());
        let refused = labelled(OwnerInfo::MAX_LABEL_BYTES + 1).unwrap_err();
        assert_eq!((refused.kind(), refused.can_pass()), (ErrorKind::InvalidConfig, false));
        assert!(refused.to_string().contains("65537 bytes"), "{refused}");
    }

    #[test]
    fn a_lock_goes_as_it_is_only_to_an_acquisition_on_the_same_terms() {
        const TTL: Duration = Duration::from_secs(9);
        let plain = LockOptions::new();
        let (usual, label) = (with_options(Mode::Exclusive, &plain), plain.clone().label("me"));
        assert!(usual.may_pass_to(&usual.clone()));
        let labelled = with_options(Mode::Exclusive, &label);
        assert!(labelled.may_pass_to(&with_options(Mode::Exclusive, &label)));
        let others = [
            labelled,
            with_options(Mode::Shared, &plain),
            with_options(Mode::Permit { max: NonZeroU32::MIN }, &plain),
            with_options(Mode::Exclusive, &plain.clone().ttl(TTL)),
            with_options(Mode::Exclusive, &plain.clone().fixed_ttl(TTL)),
            with_options(Mode::Exclusive, &plain.clone().max_hold(TTL)),
            LockSpec { writes: true, ..usual.clone() },
            LockSpec { is_observed: true, ..usual.clone() },
        ];
        for other in &others {
            assert!(!usual.may_pass_to(other) && !other.may_pass_to(&usual), "{other:?}");
        }
        // What ends by itself goes to nobody.
        for ends in [plain.clone().fixed_ttl(TTL), plain.max_hold(TTL)] {
            let ends = with_options(Mode::Exclusive, &ends);
            assert!(!ends.may_pass_to(&ends.clone()));
        }
    }
}
