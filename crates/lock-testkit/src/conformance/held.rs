//! What the cases hold: the guard of a lock, or of what stands in for one.

use std::ops::Deref;
use std::time::Duration;

use lock_core::{
    BootInstant, Guard, GuardState, LossReason, MultiGuard, ReentrantGuard, Released, Result, RunError,
    Token, Validity,
};

/// The guard of an exclusive lock.
///
/// It dereferences to the guard of the lock that the case named; what a stand-in answers in its own way shadows that.
#[derive(Debug)]
pub(super) enum Held {
    Guard(Guard),
    Reentrant { inner: ReentrantGuard, outer: ReentrantGuard },
    Multi(MultiGuard),
}

/// What several locks answer as one, and others as the guard of their lock.
macro_rules! as_one {
    ($($ask:ident -> $answer:ty,)+) => {
        $(pub(super) fn $ask(&self) -> $answer {
            match self {
                Self::Multi(guard) => guard.$ask(),
                _ => (**self).$ask(),
            }
        })+
    };
}

impl Held {
    as_one! {
        valid_until -> BootInstant,
        remaining -> Duration,
        is_valid -> bool,
        state -> GuardState,
        validity -> Validity,
    }

    pub(super) async fn lost(&self) -> LossReason {
        match self {
            Self::Multi(guard) => guard.lost().await,
            _ => (**self).lost().await,
        }
    }

    pub(super) async fn run<F: Future>(&self, body: F) -> Result<F::Output, RunError<F::Output>> {
        match self {
            Self::Multi(guard) => guard.run(body).await,
            _ => (**self).run(body).await,
        }
    }

    pub(super) async fn verify(&self) -> Result<GuardState> {
        let mut state = GuardState::Valid;
        for guard in self.guards() {
            let verified = guard.verify().await?;
            if verified != GuardState::Valid {
                state = verified;
            }
        }
        Ok(state)
    }

    /// Extends every lock; the result is the first of their deadlines.
    pub(super) async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        let mut until = BootInstant::NEVER;
        for guard in self.guards() {
            until = until.min(guard.extend(ttl).await?);
        }
        Ok(until)
    }

    pub(super) async fn raise_token(&self, floor: Token) -> Result<()> {
        for guard in self.guards() {
            guard.raise_token(floor).await?;
        }
        Ok(())
    }

    pub(super) async fn release(self) -> Result<Released> {
        match self {
            Self::Guard(guard) => guard.release().await,
            Self::Reentrant { inner, outer } => {
                assert_eq!(inner.depth(), 2, "the owner has two guards");
                assert_eq!(outer.release().await?, None, "the inner guard holds the lock");
                let released = inner.release().await?;
                Ok(released.expect("the last guard releases"))
            }
            Self::Multi(guard) => guard.release().await,
        }
    }

    fn guards(&self) -> &[Guard] {
        match self {
            Self::Multi(guard) => guard.guards(),
            _ => std::slice::from_ref(&**self),
        }
    }
}

impl From<Guard> for Held {
    fn from(guard: Guard) -> Self {
        Self::Guard(guard)
    }
}

impl Deref for Held {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        match self {
            Self::Guard(guard) => guard,
            Self::Reentrant { inner, .. } => inner,
            // In the order of the names: see `Handle::names`.
            Self::Multi(guard) => &guard.guards()[0],
        }
    }
}
