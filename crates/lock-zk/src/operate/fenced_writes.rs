//! Room for the fenced writes under way in a session.
//!
//! They go over the connection that keeps the locks, where its heartbeats wait behind them. So few bytes are under way at a
//! time, whoever writes, and whether he waits for the answers or not.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bytes of fenced writes that may be under way in one session.
#[derive(Debug)]
pub(crate) struct FencedWrites(Arc<Semaphore>);

/// Room for one transaction, held until it is answered.
#[derive(Debug)]
pub(crate) struct WritesRoom(#[allow(dead_code, reason = "held")] Option<OwnedSemaphorePermit>);

impl FencedWrites {
    /// Waits for room for this many bytes, in the order of the calls. A larger transaction goes alone.
    pub(crate) async fn room(&self, bytes: usize) -> WritesRoom {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(MOST);
        // It is never closed.
        WritesRoom(Arc::clone(&self.0).acquire_many_owned(bytes).await.ok())
    }
}

impl Default for FencedWrites {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST as usize)))
    }
}

/// What a network of 10 Mbit/s carries in a second, the shortest silence of a server.
const MOST: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn few_bytes_are_under_way_and_a_large_transaction_goes_alone() {
        let writes = FencedWrites::default();
        let room = |bytes| writes.room(bytes).now_or_never();
        let half = MOST as usize / 2;
        let both = (room(half).unwrap(), room(half).unwrap());
        assert!(room(1).is_none());
        drop(both.0);
        assert!(room(half + 1).is_none() && room(half).is_some());
        drop(both.1);
        let large = room(10 * half).unwrap();
        assert!(room(1).is_none());
        drop(large);
        assert!(room(1).is_some());
    }
}
