//! Locks inside one process: the default backend, and the reference for the others.
//!
//! | file | content |
//! |---|---|
//! | `config` | the options |
//! | `backend` | `Backend`: acquire, inspect, break, list, close |
//! | `lease` | `Lease`: extend, verify, downgrade, release |
//! | `store` | the store itself: holders, waiters and tokens by lock name |

mod backend;
mod config;
mod lease;
mod store;

pub use backend::Memory;
pub use config::MemoryConfig;

use crate::{Locks, Result};

impl MemoryConfig {
    /// Opens the store.
    ///
    /// # Errors
    ///
    /// As [`Memory::open`].
    pub fn connect(self) -> Result<Locks> {
        Ok(Locks::new(Memory::open(self)?))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::poll;

    use super::*;
    use crate::{Clock, ErrorKind, LockOptions, LockState, LossReason, Released, Token};

    fn locks() -> Locks {
        MemoryConfig::new().clock(Clock::tokio()).connect().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_forgotten_guard_expires_and_the_next_gets_a_larger_token() {
        let locks = locks();
        let fixed = locks.mutex_with("a", LockOptions::new().fixed_ttl(Duration::from_secs(1))).unwrap();
        let first = fixed.acquire().await.unwrap();
        let token = first.token();
        // Another client of the same store: the local queue of this one would wait for the guard.
        let other = Locks::from_dyn(Arc::clone(locks.backend()));
        std::mem::forget(first);
        assert!(other.mutex("a").try_acquire().await.unwrap().is_none());
        let second = other.mutex("a").acquire().await.unwrap();
        assert!(second.token() > token);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_waiter_leaves_nothing() {
        let locks = locks();
        let other = Locks::from_dyn(Arc::clone(locks.backend()));
        let guard = locks.mutex("a").acquire().await.unwrap();
        assert!(other.mutex("a").try_acquire_for(Duration::from_secs(1)).await.unwrap().is_none());
        assert_eq!(locks.inspect("a").await.unwrap().waiters, 0);
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        assert_eq!(locks.inspect("a").await.unwrap(), LockState::free());
    }

    #[tokio::test(start_paused = true)]
    async fn breaking_notifies_the_holder_at_once() {
        let locks = locks();
        let guard = locks.mutex("a").acquire().await.unwrap();
        assert!(locks.break_lock("a").await.unwrap());
        assert_eq!(guard.lost().await, LossReason::Removed);
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        assert!(!locks.break_lock("a").await.unwrap());
    }

    #[tokio::test]
    async fn stores_of_one_name_are_shared() {
        let url = "memory://shared-store?ttl=5s";
        let one = MemoryConfig::from_url(url).unwrap().connect().unwrap();
        let two = MemoryConfig::from_url(url).unwrap().connect().unwrap();
        let _guard = one.mutex("a").acquire().await.unwrap();
        assert!(two.mutex("a").try_acquire().await.unwrap().is_none());
        let own = MemoryConfig::new().connect().unwrap();
        assert!(own.mutex("a").try_acquire().await.unwrap().is_some());
    }

    #[tokio::test]
    async fn tokens_of_a_named_store_continue_when_it_is_opened_again() {
        let open = || MemoryConfig::from_url("memory://opened-again").unwrap().connect().unwrap();
        let mut last = Token::new(0);
        for round in 0..3 {
            let locks = open();
            // Without a renewal nothing keeps the store beyond this round.
            let mutex = locks.mutex_with("a", LockOptions::new().fixed_ttl(Duration::from_secs(30))).unwrap();
            let guard = mutex.acquire().await.unwrap();
            assert!(guard.token() > last, "{round}: {} came after {last}", guard.token());
            last = Token::new(guard.token().get() + 10);
            guard.raise_token(last).await.unwrap();
            guard.release().await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_ends_with_its_own_lease() {
        let locks = locks();
        let ttl = |seconds| LockOptions::new().fixed_ttl(Duration::from_secs(seconds));
        let (short, long) = (locks.rw_with("a", ttl(1)).unwrap(), locks.rw_with("a", ttl(60)).unwrap());
        let (dead, alive) = (short.read().await.unwrap(), long.read().await.unwrap());
        std::mem::forget(dead);
        let writer = locks.rw("a");
        assert!(writer.try_write_for(Duration::from_secs(5)).await.unwrap().is_none());
        assert_eq!(locks.inspect("a").await.unwrap().token, Some(alive.token()));
        assert_eq!(alive.release().await.unwrap(), Released::Released);
        assert!(writer.try_write().await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_grant_that_ended_before_its_waiter_was_polled_is_waited_for_again() {
        let locks = locks();
        let other = Locks::from_dyn(Arc::clone(locks.backend()));
        let held = locks.mutex("a").acquire().await.unwrap();
        let short = other.mutex_with("a", LockOptions::new().fixed_ttl(Duration::from_secs(1))).unwrap();
        let mut waiting = pin!(short.acquire());
        assert!(poll!(waiting.as_mut()).is_pending());
        held.release().await.unwrap();
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(waiting.await.unwrap().is_valid());
    }

    #[tokio::test(start_paused = true)]
    async fn readers_behind_a_writer_that_gives_up_are_admitted() {
        let locks = locks();
        let other = Locks::from_dyn(Arc::clone(locks.backend()));
        let first = locks.rw("a").read().await.unwrap();
        let writer = locks.rw("a");
        let writer = tokio::spawn(async move { writer.try_write_for(Duration::from_secs(5)).await });
        tokio::task::yield_now().await;
        assert!(other.rw("a").try_read().await.unwrap().is_none(), "it would overtake the writer");
        let second = other.rw("a").read().await.unwrap();
        assert!(writer.await.unwrap().unwrap().is_none());
        assert!(first.is_valid() && second.token() > first.token());
    }

    #[tokio::test(start_paused = true)]
    async fn raised_tokens_are_not_granted_again() {
        let locks = locks();
        let guard = locks.mutex("a").acquire().await.unwrap();
        let floor = Token::new(guard.token().get() + 1_000);
        guard.raise_token(floor).await.unwrap();
        guard.raise_token(guard.token()).await.unwrap();
        let most = guard.raise_token(Token::new(i64::MAX as u64)).await.unwrap_err();
        assert_eq!(most.kind(), ErrorKind::Exhausted);
        assert!(locks.break_lock("a").await.unwrap());
        assert_eq!(guard.raise_token(floor).await.unwrap_err().kind(), ErrorKind::Lost);
        assert!(locks.mutex("a").acquire().await.unwrap().token() > floor);
    }

    #[tokio::test(start_paused = true)]
    async fn all_sharers_are_asked_to_release_the_lock() {
        let locks = locks();
        assert!(!locks.request_revocation("a").await.unwrap(), "there is no holder");
        let (one, two) = (locks.rw("a").read().await.unwrap(), locks.rw("a").read().await.unwrap());
        assert!(!one.is_revoke_requested());
        assert!(locks.request_revocation("a").await.unwrap());
        one.revoke_requested().await;
        assert!(one.is_valid() && two.is_revoke_requested());
        drop((one, two));
        assert!(!locks.rw("a").write().await.unwrap().is_revoke_requested(), "other holders were asked");
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_learn_how_many_are_ahead_of_them() {
        let locks = locks();
        let _held = locks.mutex("a").acquire().await.unwrap();
        let (sender, mut positions) = tokio::sync::mpsc::unbounded_channel();
        let mut waiters = Vec::new();
        for _ in 0..2 {
            let (other, sender) = (Locks::from_dyn(Arc::clone(locks.backend())), sender.clone());
            let options = LockOptions::new().on_queued(move |ahead| sender.send(ahead).unwrap());
            let mutex = other.mutex_with("a", options).unwrap();
            waiters.push(tokio::spawn(async move { mutex.acquire().await }));
            tokio::task::yield_now().await;
        }
        assert_eq!((positions.recv().await, positions.recv().await), (Some(1), Some(2)));
        waiters.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
