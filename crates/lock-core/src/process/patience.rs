//! How long an acquisition takes at most, whatever the servers do.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use crate::{Error, ErrorKind, Outcome, Wait};

/// How much longer than its patience an acquisition takes at most: a free lock can be acquired however short that is.
const GRACE: Duration = Duration::from_millis(100);
/// The grace period is counted in steps, so that a runtime that stood still for longer has a few turns to read answers.
const STEPS: u32 = 5;

/// The output of an acquisition, or `None` if it is given up, which rolls it back. `answer_timeout` is the patience of one
/// that does not wait.
///
/// An output that is ready counts, even if it is polled too late.
///
/// The acquisition stays where it is: moved in here, it would take its place twice.
pub(crate) async fn within<F: Future>(
    wait: Wait,
    answer_timeout: Duration,
    mut acquisition: Pin<&mut F>,
) -> Option<F::Output> {
    let deadline = match wait {
        Wait::Never => Instant::now().checked_add(answer_timeout),
        Wait::Until(deadline) => Some(deadline),
        Wait::Forever => None,
    };
    let Some(deadline) = deadline else { return Some(acquisition.await) };
    if let Ok(done) = timeout_at(deadline, acquisition.as_mut()).await {
        return Some(done);
    }
    for _ in 0..STEPS {
        if let Ok(done) = timeout(GRACE / STEPS, acquisition.as_mut()).await {
            return Some(done);
        }
    }
    None
}

/// The error of an acquisition that was given up. A backend that knows that the lock is busy has said so by then.
pub(crate) fn no_answer(backend: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, backend)
        .with_message("the lock was not acquired in time, as the server did not answer")
        .with_hint("try again, with more patience if the server is only slow; a lock that it may have granted is removed")
        .with_code("timeout")
        .with_outcome(Outcome::Unknown)
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::pin;

    use tokio::time::sleep;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn an_acquisition_is_given_up_soon_after_its_deadline() {
        let until = |patience| Wait::Until(Instant::now() + patience);
        for (wait, patience) in
            [(Wait::Never, 2 * SECOND), (until(SECOND), SECOND), (until(Duration::ZERO), Duration::ZERO)]
        {
            for (takes, is_done) in [(patience + GRACE / 2, true), (patience + GRACE + SECOND, false)] {
                let wait = if wait == Wait::Never { wait } else { until(patience) };
                let began = Instant::now();
                assert_eq!(within(wait, 2 * SECOND, pin!(sleep(takes))).await.is_some(), is_done, "{wait:?}");
                let took = began.elapsed();
                assert!(took <= patience + GRACE + STEPS * Duration::from_millis(1), "{wait:?}: {took:?}");
            }
        }
        assert!(within(Wait::Forever, SECOND, pin!(sleep(100 * SECOND))).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_ready_counts_after_the_deadline_too() {
        let passed = Wait::Until(Instant::now());
        sleep(SECOND).await;
        assert_eq!(within(passed, SECOND, pin!(ready(7))).await, Some(7));
        assert_eq!(within(passed, SECOND, pin!(pending::<()>())).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_stood_still_has_turns_to_read_the_answer() {
        let answered = async {
            tokio::time::advance(SECOND).await;
            // The connection is read by other tasks.
            for _ in 0..3 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(within(Wait::Until(Instant::now() + SECOND / 2), SECOND, pin!(answered)).await.is_some());
    }
}
