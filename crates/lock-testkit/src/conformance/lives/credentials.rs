//! Passwords and certificates that change while locks are held and waited for.

use std::time::Duration;

use lock_core::{Error, ErrorKind, GuardState, Token};
use tokio::task::JoinHandle;

use crate::SecretFile;
use crate::conformance::client::Client;
use crate::conformance::held::Held;
use crate::conformance::helpers::{
    LONG, PATIENCE, client_with, eventually, fresh, give_back, must_be_of, take, wait_until_shown, within,
};
use crate::conformance::lives::logs::keep_secret;
use crate::conformance::{Credential, Harness};

const FIRST: &str = "the-first-secret";
const SECOND: &str = "the-second-secret";

pub(crate) async fn a_new_password_is_read_from_its_file(harness: &dyn Harness) {
    let (store, file) = store_with_password(harness).await;
    let (locks, other) = (connect(&*store).await, connect(&*store).await);
    let held = HeldAndAwaited::new(&*store, &locks, &other).await;
    file.change(SECOND);
    store.rotate(SECOND).await;
    held.goes_on().await;
    for locks in [&locks, &connect(&*store).await] {
        give_back(take(locks, &fresh()).await).await;
    }
    file.change(FIRST);
    let refused = within(PATIENCE, "the refusal", store.connect(lease(&*store))).await;
    must_be_denied(&refused.expect_err("the password has changed"), &file, harness);
}

pub(crate) async fn a_wrong_password_is_named_by_its_file(harness: &dyn Harness) {
    let (store, file) = store_with_password(harness).await;
    let (locks, other) = (connect(&*store).await, connect(&*store).await);
    let held = HeldAndAwaited::new(&*store, &locks, &other).await;
    store.rotate(SECOND).await;
    let refused = within(PATIENCE, "the refusal", store.connect(lease(&*store))).await;
    must_be_denied(&refused.expect_err("the password has changed"), &file, harness);
    if !store.capabilities().lease.is_session() {
        // What was sent before the connections ended fails by that.
        let error = fails_with(&locks, &file, ErrorKind::Denied).await;
        must_be_denied(&error, &file, harness);
    }
    file.change(SECOND);
    held.goes_on().await;
    give_back(take(&locks, &fresh()).await).await;
}

pub(crate) async fn a_password_file_that_cannot_be_read_is_named_and_read_again(harness: &dyn Harness) {
    let (store, file) = store_with_password(harness).await;
    let (locks, other) = (connect(&*store).await, connect(&*store).await);
    let held = HeldAndAwaited::new(&*store, &locks, &other).await;
    file.remove();
    let refused = within(PATIENCE, "the refusal", store.connect(lease(&*store))).await;
    let error = refused.expect_err("there is no file");
    must_name(&error, &file, harness);
    assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidConfig, "no_credentials"), "{error:?}");
    // As while it is written anew.
    file.change("");
    store.rotate(FIRST).await;
    if !store.capabilities().lease.is_session() {
        let error = fails_with(&locks, &file, ErrorKind::Unavailable).await;
        must_name(&error, &file, harness);
    }
    file.change(FIRST);
    held.goes_on().await;
    give_back(take(&locks, &fresh()).await).await;
}

pub(crate) async fn new_certificates_are_read_from_their_files(harness: &dyn Harness) {
    let store = harness.secured(Credential::Certificates).await;
    let (locks, other) = (connect(&*store).await, connect(&*store).await);
    let held = HeldAndAwaited::new(&*store, &locks, &other).await;
    store.rotate("").await;
    held.goes_on().await;
    for locks in [&locks, &connect(&*store).await] {
        give_back(take(locks, &fresh()).await).await;
    }
}

/// A store of its own, whose clients read their password from this file.
async fn store_with_password(harness: &dyn Harness) -> (Box<dyn Harness>, SecretFile) {
    [FIRST, SECOND].into_iter().for_each(keep_secret);
    let file = SecretFile::new(FIRST);
    let store = harness.secured(Credential::Password(file.path())).await;
    (store, file)
}

async fn connect(store: &dyn Harness) -> Client {
    client_with(store, lease(store)).await
}

/// Soon extended, and longer than servers take to start again.
fn lease(store: &dyn Harness) -> Duration {
    if store.capabilities().lease.is_session() { 6 * LONG } else { 2 * LONG }
}

/// A lock that is held, and a waiter for it.
struct HeldAndAwaited {
    guard: Held,
    waiter: JoinHandle<Held>,
    token: Token,
}

impl HeldAndAwaited {
    async fn new(store: &dyn Harness, locks: &Client, other: &Client) -> Self {
        let name = fresh();
        let guard = take(locks, &name).await;
        let (mutex, token) = (other.mutex(&name), guard.token());
        let waiter = tokio::spawn(async move { mutex.acquire().await.expect("it can wait") });
        wait_until_shown(store, other, &name).await;
        Self { guard, waiter, token }
    }

    /// The lock is confirmed over another connection, and handed over.
    async fn goes_on(self) {
        let Self { guard, waiter, token } = self;
        let before = guard.valid_until();
        let is_renewed = || async {
            assert!(guard.is_valid(), "lost: {:?}", guard.state());
            let confirmed = guard.verify().await;
            (matches!(confirmed, Ok(GuardState::Valid)) && guard.valid_until() > before).then_some(())
        };
        eventually(PATIENCE, "a renewal", is_renewed).await;
        give_back(guard).await;
        let next = within(PATIENCE, "the next holder", waiter).await.unwrap();
        assert!(next.token() > token, "token {} came after {token}", next.token());
        give_back(next).await;
    }
}

/// The error of this kind that names the file, of an acquisition.
async fn fails_with(locks: &Client, file: &SecretFile, kind: ErrorKind) -> Error {
    let names = |error: &Error| error.kind() == kind && error.to_string().contains(&file.to_string());
    let fails = || async {
        let acquired = locks.mutex(fresh()).acquire().await;
        acquired.err().filter(names)
    };
    eventually(PATIENCE, "an error that names the file", fails).await
}

fn must_be_denied(error: &Error, file: &SecretFile, harness: &dyn Harness) {
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    must_name(error, file, harness);
}

/// The error names the backend and the file, and not what was in it.
fn must_name(error: &Error, file: &SecretFile, harness: &dyn Harness) {
    must_be_of(error, harness);
    let text = format!("{error} {error:?}");
    assert!(error.to_string().contains(&file.to_string()), "{text}");
    assert!(![FIRST, SECOND].iter().any(|secret| text.contains(secret)), "{text}");
}
