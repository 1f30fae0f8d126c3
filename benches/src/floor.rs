//! The floors: the bare commands that a lock cannot do without, as a careful client would send them by hand.

mod memory;
mod redis;
mod redlock;
mod zk;

use std::future::Future;

pub(crate) use self::memory::BareMutex;
pub(crate) use self::redis::BareRedis;
pub(crate) use self::redlock::BareRedlock;
pub(crate) use self::zk::{BareZk, connect as zk_session};
use crate::failure::Outcome;

/// The commands of one acquisition and one release, without anything around them.
pub(crate) trait Floor: Send {
    /// Takes the lock, which is free.
    fn acquire(&mut self) -> impl Future<Output = Outcome<()>> + Send;

    /// Gives it back.
    fn release(&mut self) -> impl Future<Output = Outcome<()>> + Send;

    /// Removes what it needed on the server.
    fn clean(self) -> impl Future<Output = Outcome<()>> + Send;
}

/// No floor, for a measurement without one.
impl Floor for () {
    async fn acquire(&mut self) -> Outcome<()> {
        Ok(())
    }

    async fn release(&mut self) -> Outcome<()> {
        Ok(())
    }

    async fn clean(self) -> Outcome<()> {
        Ok(())
    }
}
