//! Passwords that change while a lock is held and waited for: what holds on every backend.
//!
//! A backend's tests implement [`Secured`], and call these functions.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use lock_core::{ErrorKind, Guard, Locks, Outcome, Password, Result};
use tokio::task::JoinHandle;

use crate::SecretFile;
use crate::helpers::steps::{give_back, hand_over, is_renewed, queue_up, take, until};

/// A store that asks a user for a password.
///
/// The leases of the clients are short, so that a test soon sees one extended, and long enough for a busy machine: six seconds.
#[async_trait]
pub trait Secured: Send + Sync {
    /// Gives the user this password, and no other, and ends the connections of all clients.
    async fn rotate(&self, password: &str);

    /// A new client with this password.
    async fn connect(&self, password: Password) -> Result<Locks>;

    /// A client with this password, which is not connected yet.
    fn connect_lazy(&self, password: Password) -> Result<Locks>;
}

/// A lock that is held, and a waiter for it.
#[derive(Debug)]
pub struct HeldAndAwaited {
    guard: Guard,
    waiter: JoinHandle<Guard>,
}

impl HeldAndAwaited {
    /// Acquires the lock, and waits for it.
    pub async fn new(locks: &Locks) -> Self {
        Self { guard: take(locks, "a").await, waiter: queue_up(locks, "a").await }
    }

    /// Demands that the lease is extended, the waiter gets the lock, and others can be acquired.
    pub async fn goes_on(self, locks: &Locks) {
        is_renewed(&self.guard).await;
        give_back(hand_over(self.guard, self.waiter).await).await;
        give_back(take(locks, "b").await).await;
    }
}

/// A file with the password is read at each connect.
pub async fn a_file_is_read_at_each_connect(store: &impl Secured) {
    let secret = SecretFile::new("one");
    store.rotate("one").await;
    let locks = store.connect(Password::file(secret.path())).await.unwrap_or_else(|error| panic!("{error}"));
    let pair = HeldAndAwaited::new(&locks).await;
    secret.change("two");
    store.rotate("two").await;
    pair.goes_on(&locks).await;
}

/// A function is asked for the password at each connect.
pub async fn a_function_is_asked_at_each_connect(store: &impl Secured) {
    let current = Arc::new(Mutex::new("one"));
    let password = {
        let current = Arc::clone(&current);
        Password::callback(move || {
            let password = *current.lock().unwrap_or_else(PoisonError::into_inner);
            async move { Ok(password.to_owned()) }
        })
    };
    store.rotate("one").await;
    let locks = store.connect(password).await.unwrap_or_else(|error| panic!("{error}"));
    let pair = HeldAndAwaited::new(&locks).await;
    *current.lock().unwrap_or_else(PoisonError::into_inner) = "two";
    store.rotate("two").await;
    pair.goes_on(&locks).await;
}

/// An error names the file that cannot be read, and not what was in it; the file is read again.
pub async fn a_file_that_cannot_be_read_is_named_and_read_again(store: &impl Secured) {
    let secret = SecretFile::new("s3cret");
    store.rotate("s3cret").await;
    let password = || Password::file(secret.path());
    let is_named = |error: &lock_core::Error| {
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
        error.to_string().contains(&secret.to_string())
    };
    let is_missing = |error: lock_core::Error| {
        assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidConfig, "no_credentials"), "{error}");
        assert!(is_named(&error), "{error}");
    };

    secret.remove();
    is_missing(store.connect(password()).await.expect_err("there is no file"));
    let lazy = store.connect_lazy(password()).unwrap_or_else(|error| panic!("{error}"));
    is_missing(lazy.mutex("a").acquire().await.expect_err("there is no file"));
    secret.change("s3cret");

    let locks = store.connect(password()).await.unwrap_or_else(|error| panic!("{error}"));
    let pair = HeldAndAwaited::new(&locks).await;
    // As while it is written anew.
    secret.change("");
    store.rotate("s3cret").await;
    // What was sent before the connections ended is in doubt: it may fail for another reason.
    until("an error names the file", async || match locks.mutex("b").acquire().await {
        Err(error) => {
            assert_ne!(error.outcome(), Outcome::Applied, "{error}");
            error.kind() == ErrorKind::Unavailable && is_named(&error)
        }
        Ok(guard) => {
            drop(guard);
            false
        }
    })
    .await;
    secret.change("s3cret");
    pair.goes_on(&locks).await;
    give_back(take(&lazy, "c").await).await;
}
