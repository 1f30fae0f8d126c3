//! Holders whose thread does not run what keeps the lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::task::block_in_place;

use crate::conformance::Harness;
use crate::conformance::helpers::{
    LOOK, PATIENCE, client, eventually, fresh, give_back, nothing_left, take, take_within, try_take,
    wait_for_waiters, within,
};

/// Longer than any store waits for the confirmation of a hand-over, and shorter than the leases of [`client`].
const COMPUTES: Duration = Duration::from_secs(4);

/// What was handed over lasts as long as what was free, also when the new holder computes before its runtime does anything else. Its guard may
/// say that it is lost, as the runtime has not heard the answer to the confirmation; nobody else has the lock.
pub(crate) async fn a_holder_that_computes_keeps_a_lock_that_was_handed_over(harness: &dyn Harness) {
    let (other, name) = (client(harness).await, &fresh());
    let guard = take(&other, name).await;
    let (has_acquired, has_computed) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let holder = async || {
        let locks = client(harness).await;
        let guard = take_within(PATIENCE, &locks, name).await;
        has_acquired.store(true, Ordering::SeqCst);
        thread::sleep(COMPUTES);
        has_computed.store(true, Ordering::SeqCst);
        within(PATIENCE, "the release", guard.release()).await.expect("the server answers");
        within(PATIENCE, "close", locks.close()).await.unwrap();
    };
    let others = async {
        wait_for_waiters(&other, name, 1).await;
        give_back(guard).await;
        eventually(PATIENCE, "the hand-over", async || has_acquired.load(Ordering::SeqCst).then_some(()))
            .await;
        let next = loop {
            match try_take(&other, name).await {
                Some(next) => break next,
                None => tokio::time::sleep(LOOK).await,
            }
        };
        assert!(has_computed.load(Ordering::SeqCst), "two hold the lock");
        give_back(next).await;
    };
    let here = Handle::current();
    block_in_place(|| {
        thread::scope(|scope| {
            let one_thread = Builder::new_current_thread().enable_all().build().unwrap();
            let holder = scope.spawn(move || one_thread.block_on(holder()));
            here.block_on(others);
            holder.join().expect("the lock is kept");
        });
    });
    nothing_left(harness, name).await;
}
