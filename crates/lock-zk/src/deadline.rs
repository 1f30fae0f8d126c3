//! The deadline of an acquisition.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::Duration;

use lock_core::Wait;
use tokio::time::{Instant, timeout_at};

/// Until when an acquisition goes on: its first answer is awaited however long that takes, and from then on its deadline is
/// kept. A try has none, as it ends with its answer.
///
/// Waiting for others ends with the deadline. What else there is to ask is given [up](GRACE) no sooner than a moment after
/// the first answer: a lock that nobody has is to be had however short the deadline is, also where its directory has to be
/// made first.
#[derive(Debug)]
pub(crate) struct Deadline {
    at: Option<Instant>,
    /// When the first answer came.
    answered: OnceLock<Instant>,
}

impl Deadline {
    /// That of an acquisition which begins now.
    pub(crate) fn of(wait: Wait) -> Self {
        let at = match wait {
            Wait::Until(at) if !wait.is_expired() => Some(at),
            _ => None,
        };
        Self { at, answered: OnceLock::new() }
    }

    /// Notes that a server has answered.
    pub(crate) fn note_answer(&self) {
        self.answered.get_or_init(Instant::now);
    }

    /// Whether it has to be kept, and has passed.
    pub(crate) fn has_passed(&self) -> bool {
        self.answered.get().is_some() && self.at.is_some_and(|at| Instant::now() >= at)
    }

    /// What comes of waiting for others; nothing when the deadline passes before.
    pub(crate) async fn limit<T>(&self, waiting: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match self.at {
            Some(at) => timeout_at(at, waiting).await.ok(),
            None => Some(waiting.await),
        }
    }

    /// What comes of the requests of an acquisition; nothing when the deadline and the moment pass before.
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

/// Several round trips, and far less than what the first answer may take.
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
    async fn the_first_answer_is_awaited_and_what_follows_for_a_moment() {
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
    async fn a_deadline_is_kept_once_there_was_an_answer() {
        let (deadline, began) = (in_a_second(), Instant::now());
        deadline.note_answer();
        assert!(!deadline.has_passed());
        assert_eq!(deadline.keep(pin!(pending::<()>())).await, None);
        assert_eq!(began.elapsed(), SECOND);
        assert!(deadline.has_passed());
        // The moment counts from the first answer, and from no other.
        deadline.note_answer();
        assert_eq!(deadline.keep(pin!(pending::<()>())).await, None);
        assert_eq!(began.elapsed(), SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn tries_and_those_who_wait_for_ever_have_none() {
        for wait in [Wait::Never, Wait::Forever, Wait::Until(Instant::now())] {
            let deadline = Deadline::of(wait);
            deadline.note_answer();
            assert_eq!(deadline.keep(pin!(sleep(SECOND * 3))).await, Some(()));
            assert_eq!(deadline.limit(pin!(sleep(SECOND * 3))).await, Some(()));
            assert!(!deadline.has_passed(), "{wait:?}");
        }
    }
}
