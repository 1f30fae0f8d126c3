//! The deadline of an acquisition.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::Duration;

use lock_core::Wait;
use tokio::time::{Instant, timeout_at};

/// The deadline of an acquisition. It holds from the first answer on, which is awaited however long that takes. A try has
/// none, as it ends with its answer.
///
/// The wait in the queue ends with the deadline. Other requests have at least [a moment](GRACE) after the first answer: so a
/// free lock is acquired however short the deadline is, even if its directory must be created first.
#[derive(Debug)]
pub(crate) struct Deadline {
    at: Option<Instant>,
    /// When the first answer came.
    answered: OnceLock<Instant>,
}

impl Deadline {
    /// The deadline of an acquisition that begins now.
    pub(crate) fn of(wait: Wait) -> Self {
        let at = match wait {
            Wait::Until(at) if !wait.is_expired() => Some(at),
            _ => None,
        };
        Self { at, answered: OnceLock::new() }
    }

    /// Records that a server has answered.
    pub(crate) fn note_answer(&self) {
        self.answered.get_or_init(Instant::now);
    }

    /// Whether it holds, and has passed.
    pub(crate) fn has_passed(&self) -> bool {
        self.answered.get().is_some() && self.at.is_some_and(|at| Instant::now() >= at)
    }

    /// The result of waiting in the queue; nothing if the deadline passes before.
    pub(crate) async fn limit<T>(&self, waiting: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match self.at {
            Some(at) => timeout_at(at, waiting).await.ok(),
            None => Some(waiting.await),
        }
    }

    /// The result of requests; nothing if the deadline, and the moment after the first answer, pass before.
    pub(crate) async fn keep<T>(&self, mut requests: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let Some(at) = self.at else { return Some(requests.await) };
        if let Ok(done) = timeout_at(at, &mut requests).await {
            return Some(done);
        }
        let answered = poll_fn(|context| match (requests.as_mut().poll(context), self.answered.get()) {
            (Poll::Ready(done), _) => Poll::Ready(Err(done)),
            (Poll::Pending, Some(answered)) => Poll::Ready(Ok(*answered)),
            (Poll::Pending, None) => Poll::Pending,
        });
        match answered.await {
            Ok(answered) => timeout_at(answered + GRACE, requests).await.ok(),
            Err(done) => Some(done),
        }
    }
}

/// Several round trips, and far less than the first answer may take.
const GRACE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;

    use tokio::time::sleep;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn in_a_second() -> Deadline {
        Deadline::of(Wait::Until(Instant::now() + SECOND))
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_answer_is_awaited_and_later_ones_for_a_moment() {
        for (more, done) in [(GRACE / 2, true), (GRACE * 2, false)] {
            let (deadline, began) = (in_a_second(), Instant::now());
            let requests = async {
                sleep(SECOND * 3).await;
                assert!(!deadline.has_passed());
                deadline.note_answer();
                sleep(more).await;
            };
            assert_eq!(deadline.keep(pin!(requests)).await.is_some(), done);
            assert_eq!(began.elapsed(), SECOND * 3 + more.min(GRACE));
            assert!(deadline.has_passed());
            assert_eq!(deadline.limit(pin!(pending::<()>())).await, None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_holds_after_an_answer() {
        let (deadline, began) = (in_a_second(), Instant::now());
        deadline.note_answer();
        assert!(!deadline.has_passed());
        assert_eq!(deadline.keep(pin!(pending::<()>())).await, None);
        assert_eq!(began.elapsed(), SECOND);
        assert!(deadline.has_passed());
        // The moment counts from the first answer.
        deadline.note_answer();
        assert_eq!(deadline.keep(pin!(pending::<()>())).await, None);
        assert_eq!(began.elapsed(), SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn tries_and_unlimited_waits_have_none() {
        for wait in [Wait::Never, Wait::Forever, Wait::Until(Instant::now())] {
            let deadline = Deadline::of(wait);
            deadline.note_answer();
            assert_eq!(deadline.keep(pin!(sleep(SECOND * 3))).await, Some(()));
            assert_eq!(deadline.limit(pin!(sleep(SECOND * 3))).await, Some(()));
            assert!(!deadline.has_passed(), "{wait:?}");
        }
    }
}
