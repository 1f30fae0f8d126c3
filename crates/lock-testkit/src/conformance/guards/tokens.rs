//! Fencing tokens.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use lock_core::{ErrorKind, Token, Validity};
use tokio::task::JoinSet;

use crate::conformance::Harness;
use crate::conformance::held::Held;
use crate::conformance::helpers::{LOOK, PATIENCE, client, fresh, give_back, nothing_left, take, within};

pub(crate) async fn tokens_grow_from_holder_to_holder(harness: &dyn Harness) {
    let (clients, name) = ([client(harness).await, client(harness).await], fresh());
    let mut tokens = Vec::new();
    for round in 0..20 {
        // Now and then a client that has never seen the lock.
        let newcomer = if round % 5 == 4 { Some(client(harness).await) } else { None };
        let locks = newcomer.as_ref().unwrap_or(&clients[round % 2]);
        let guard = take(locks, &name).await;
        let seen = clients[0].inspect(&name).await.unwrap();
        let of_holder = seen.holders.first().and_then(|holder| holder.token);
        let shown = of_holder.or(seen.token);
        if harness.shows_own_tokens() {
            // One of several masters may be ahead, but the holder's token is shown.
            assert!(seen.token >= Some(guard.token()), "{seen:?}: inspect is behind {}", guard.token());
            assert_eq!(shown, Some(guard.token()), "inspect and guard differ: {seen:?}");
        } else {
            assert!(shown.is_some(), "no token is shown: {seen:?}");
        }
        tokens.push(guard.token());
        give_back(guard).await;
    }
    must_grow(&tokens);
    nothing_left(harness, &name).await;
}

pub(crate) async fn tokens_of_waiters_grow(harness: &dyn Harness) {
    let (name, tokens) = (fresh(), Arc::new(Mutex::new(Vec::new())));
    let mut running = JoinSet::new();
    for _ in 0..3 {
        let locks = client(harness).await;
        for _ in 0..2 {
            let (mutex, tokens) = (locks.mutex(&name), Arc::clone(&tokens));
            running.spawn(async move {
                for _ in 0..4 {
                    let guard = within(PATIENCE, "a turn", mutex.acquire()).await.unwrap();
                    tokens.lock().unwrap().push(guard.token());
                    give_back(guard).await;
                }
            });
        }
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("no task fails");
    }
    let tokens = tokens.lock().unwrap().clone();
    assert_eq!(tokens.len(), 24);
    must_grow(&tokens);
}

/// A hand-over within the process may leave the store as it is: only the tokens and validities tell the holders apart.
pub(crate) async fn tasks_hand_over_among_themselves(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let last = Arc::new(Mutex::new(None::<(Token, Validity)>));
    let mut running = JoinSet::new();
    for (task, locks) in [&one, &one, &one, &one, &two].into_iter().enumerate() {
        let (mutex, last) = (locks.mutex(&name), Arc::clone(&last));
        running.spawn(async move {
            for round in 0..10 {
                let guard = within(PATIENCE, "a turn", mutex.acquire()).await.unwrap();
                must_follow(&mut last.lock().unwrap(), &guard);
                if (task + round) % 3 == 0 {
                    tokio::task::yield_now().await;
                }
                match (task + round) % 2 {
                    0 => drop(guard),
                    _ => give_back(guard).await,
                }
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("no task fails");
    }
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
}

/// The first waiter leaves: before and after the lock was handed to it, and at any of its polls.
pub(crate) async fn a_waiter_that_leaves_hands_over_to_the_next(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let mut last = None;
    for (before, after) in [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (1, 9), (2, 0), (3, 1)] {
        let first = take(&one, &name).await;
        must_follow(&mut last, &first);
        let leaving = one.mutex(&name);
        let mut leaves = Box::pin(leaving.acquire());
        let mut left = poll_times(before, leaves.as_mut()).await;
        assert!(left.is_none(), "two hold the lock");
        let staying = one.mutex(&name);
        let stays = tokio::spawn(async move { staying.acquire().await.unwrap() });
        tokio::task::yield_now().await;
        match before % 2 {
            0 => drop(first),
            _ => give_back(first).await,
        }
        left = poll_times(after, leaves.as_mut()).await;
        if let Some(guard) = &left {
            must_follow(&mut last, guard.as_ref().unwrap());
        }
        drop((leaves, left));
        let next = within(PATIENCE, "the lock of the one that left", stays).await.unwrap();
        must_follow(&mut last, &next);
        give_back(next).await;
    }
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
}

/// The output of the future, if it is ready after so many polls.
async fn poll_times<F: Future>(times: usize, mut future: Pin<&mut F>) -> Option<F::Output> {
    for _ in 0..times {
        let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        tokio::time::sleep(LOOK).await;
    }
    None
}

/// Notes the next holder: the one before is not valid any more, and had a smaller token.
fn must_follow(last: &mut Option<(Token, Validity)>, guard: &Held) {
    let (token, validity) = (guard.token(), guard.validity());
    assert!(validity.is_valid(), "a holder is not valid: {validity:?}");
    if let Some((before, earlier)) = last.replace((token, validity)) {
        assert!(!earlier.is_valid(), "two are valid: {before} and {token}");
        must_grow(&[before, token]);
    }
}

pub(crate) async fn raised_tokens_are_not_granted_again(harness: &dyn Harness) {
    // A private store: raising may affect all its locks, and then inspect shows larger tokens for held ones.
    let private = harness.private().await;
    let harness = &*private;
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    // As from another store, whose tokens were larger: by a quarter of an hour, and by eleven days.
    for ahead in [1_000_000_000, 1_000_000_000_000] {
        let guard = take(&one, &name).await;
        let floor = Token::new(guard.token().get() + ahead);
        match within(PATIENCE, "the answer", guard.raise_token(floor)).await {
            Ok(()) => {
                give_back(guard).await;
                let next = take(&two, &name).await;
                assert!(next.token() > floor, "token {} came after {floor}", next.token());
                // Never back.
                within(PATIENCE, "the answer", next.raise_token(Token::new(1))).await.unwrap();
                let last = next.token();
                give_back(next).await;
                let next = take(&one, &name).await;
                assert!(next.token() > last, "token {} came after {last}", next.token());
                give_back(next).await;
            }
            Err(error) => {
                // A backend of several stores may limit how far they are apart.
                let limited = error.kind() == ErrorKind::Exhausted && !harness.parts().is_empty();
                assert!(
                    error.kind() == ErrorKind::Unsupported || limited && ahead > 1_000_000_000,
                    "{error}"
                );
                // And nothing has happened.
                let token = guard.token();
                give_back(guard).await;
                let next = take(&two, &name).await;
                assert!(next.token() > token, "token {} came after {token}", next.token());
                give_back(next).await;
            }
        }
    }
    nothing_left(harness, &name).await;
}

pub(crate) fn must_grow(tokens: &[Token]) {
    for pair in tokens.windows(2) {
        assert!(pair[0] < pair[1], "token {} came after {}", pair[1], pair[0]);
    }
    // The type guarantees it, but a backend may compute tokens elsewhere.
    assert!(tokens.iter().all(|token| i64::try_from(token.get()).is_ok()), "{tokens:?} must fit an i64");
}
