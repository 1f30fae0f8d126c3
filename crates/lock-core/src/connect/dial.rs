//! Connects to the first of several addresses that answers: "happy eyeballs" (RFC 8305), where the handshake counts.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::stream::{FuturesOrdered, FuturesUnordered};
use futures_util::{Stream, StreamExt as _};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::connect::lookup::addresses;

/// How long the attempts after one wait for it, at most.
const HEAD_START: Duration = Duration::from_millis(250);

/// Connects to a host, at the first of its addresses where `attempt` succeeds, within `limit`.
///
/// The addresses are tried in the order of the lookup: one when the one before it has failed, or has used up its head start.
///
/// # Errors
///
/// The failure that tells most by `weight`, the first among equals; an error of the lookup, also when that takes longer than
/// nine tenths of `limit`; [`TimedOut`](io::ErrorKind::TimedOut) for an attempt that has not ended by then.
///
/// # Cancel safety
///
/// This function is as cancel safe as `attempt`: all attempts are dropped with its future, and those that are still under way after
/// the first success.
pub async fn connect<T, E, F>(
    (host, port): (&str, u16),
    limit: Duration,
    weight: fn(&E) -> u8,
    attempt: impl Fn(SocketAddr) -> F + Send + Sync,
) -> Result<T, E>
where
    T: Send,
    E: From<io::Error> + Send,
    F: Future<Output = Result<T, E>> + Send,
{
    let end = Instant::now() + limit;
    // Shorter than the limit of the caller, who would not know why it passed.
    let limit_of_lookup = limit * 9 / 10;
    let Ok(found) = timeout(limit_of_lookup, addresses(host, port)).await else {
        let what = format!("the name servers did not answer for {host} within {limit_of_lookup:?}");
        return Err(io::Error::new(io::ErrorKind::TimedOut, what).into());
    };
    // Each for itself: the failure of one counts also when another one is silent.
    let attempts = found?.into_iter().map(|address| {
        let attempt = timeout_at(end, attempt(address));
        async { attempt.await.unwrap_or_else(|late| Err(io::Error::from(late).into())) }
    });
    match first_success(attempts, limit, weight).await {
        Ok(connected) => Ok(connected),
        Err(failed) => Err(failed.unwrap_or_else(|| io::Error::other("no address").into())),
    }
}

/// The first success of these attempts, which begin as those of [`Staggered`] do.
///
/// # Errors
///
/// The failure that tells most by `weight`, the first among equals; none if there were no attempts.
///
/// # Cancel safety
///
/// As for [`connect`].
pub async fn first_success<T, E, F>(
    attempts: impl IntoIterator<Item = F>,
    limit: Duration,
    weight: fn(&E) -> u8,
) -> Result<T, Option<E>>
where
    F: Future<Output = Result<T, E>>,
{
    success(Staggered::new(attempts, limit), weight).await
}

/// The success of the first of these attempts that has one. They begin as for [`first_success`], and a later one counts only when all
/// before it have failed: whichever is quicker, callers with the same order agree. Each attempt has a limit of its own.
///
/// # Errors
///
/// As for [`first_success`].
///
/// # Cancel safety
///
/// As for [`connect`].
pub async fn first_in_order<T, E, F>(
    attempts: impl IntoIterator<Item = F>,
    limit: Duration,
    weight: fn(&E) -> u8,
) -> Result<T, Option<E>>
where
    F: Future<Output = Result<T, E>>,
{
    success(Staggered::in_order(attempts, limit), weight).await
}

async fn success<T, E, F, R>(mut attempts: Staggered<F, R>, weight: fn(&E) -> u8) -> Result<T, Option<E>>
where
    F: Future<Output = Result<T, E>>,
    R: Stream<Item = F::Output> + Extend<F> + Unpin,
{
    let mut failed = None::<E>;
    while let Some(outcome) = attempts.next().await {
        match outcome {
            Ok(success) => return Ok(success),
            Err(error) if failed.as_ref().is_none_or(|failed| weight(&error) > weight(failed)) => {
                failed = Some(error);
            }
            Err(_) => {}
        }
    }
    Err(failed)
}

/// Attempts that begin one after the other: each when the one before it has ended, or has used up its head start.
#[derive(Debug)]
pub struct Staggered<F, R = FuturesUnordered<F>> {
    waiting: std::vec::IntoIter<F>,
    running: R,
    head_start: Duration,
}

impl<F: Future> Staggered<F> {
    /// Attempts that have this time in all: all of them begin within its first half.
    pub fn new(attempts: impl IntoIterator<Item = F>, limit: Duration) -> Self {
        Self::running(FuturesUnordered::new(), attempts, limit)
    }
}

impl<F: Future> Staggered<F, FuturesOrdered<F>> {
    /// As [`new`](Staggered::new), but their outcomes come in the order of the attempts.
    fn in_order(attempts: impl IntoIterator<Item = F>, limit: Duration) -> Self {
        Self::running(FuturesOrdered::new(), attempts, limit)
    }
}

impl<F: Future, R: Stream<Item = F::Output> + Extend<F> + Unpin> Staggered<F, R> {
    fn running(running: R, attempts: impl IntoIterator<Item = F>, limit: Duration) -> Self {
        let waiting = attempts.into_iter().collect::<Vec<_>>().into_iter();
        let count = u32::try_from(waiting.len().max(1)).unwrap_or(u32::MAX);
        let head_start = HEAD_START.min(limit / 2 / count);
        Self { waiting, running, head_start }
    }

    /// The outcome of the next attempt that ends; none when all have ended.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: no outcome is lost. Each call begins an attempt, if one waits.
    pub async fn next(&mut self) -> Option<F::Output> {
        loop {
            self.running.extend(self.waiting.next());
            tokio::select! {
                biased;
                outcome = self.running.next() => return outcome,
                () = sleep(self.head_start), if self.waiting.len() > 0 => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::net::Ipv4Addr;
    use std::sync::Mutex;

    use super::*;
    use crate::connect::lookup::TestName;

    const LIMIT: Duration = Duration::from_secs(10);

    /// An attempt that ends after this time; without one it is silent.
    async fn attempt(ends: Option<u64>, outcome: Result<u8, u8>) -> Result<u8, u8> {
        match ends {
            Some(millis) => sleep(Duration::from_millis(millis)).await,
            None => pending().await,
        }
        outcome
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_silent_has_a_head_start_and_keeps_nobody_from_the_next() {
        let began = Instant::now();
        let attempts = [attempt(None, Ok(1)), attempt(None, Ok(2)), attempt(Some(100), Ok(3))];
        assert_eq!(first_success(attempts, LIMIT, |_| 0).await, Ok(3));
        assert_eq!(began.elapsed(), 2 * HEAD_START + Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_fails_is_followed_at_once_and_one_that_answers_in_time_is_preferred() {
        let began = Instant::now();
        let attempts = [attempt(Some(0), Err(1)), attempt(Some(200), Ok(2)), attempt(Some(0), Ok(3))];
        assert_eq!(first_success(attempts, LIMIT, |_| 0).await, Ok(2));
        assert!(began.elapsed() < HEAD_START);
    }

    #[tokio::test(start_paused = true)]
    async fn in_order_a_later_success_counts_once_all_before_it_have_failed() {
        let began = Instant::now();
        let attempts = [attempt(Some(2_000), Ok(1)), attempt(Some(0), Ok(2))];
        assert_eq!(first_in_order(attempts, LIMIT, |_| 0).await, Ok(1));
        let attempts = [attempt(Some(2_000), Err(1)), attempt(Some(0), Ok(2)), attempt(Some(0), Ok(3))];
        assert_eq!(first_in_order(attempts, LIMIT, |_| 0).await, Ok(2));
        // They ran together.
        assert_eq!(began.elapsed(), Duration::from_secs(4));
        let attempts = [attempt(Some(300), Err(1)), attempt(Some(0), Err(2))];
        assert_eq!(first_in_order(attempts, LIMIT, |failure| *failure).await, Err(Some(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn all_of_many_begin_in_the_first_half_of_the_time() {
        let began = Mutex::new(Vec::new());
        let start = Instant::now();
        let attempts = (0..100).map(|_| async {
            began.lock().unwrap().push(start.elapsed());
            pending::<Result<u8, u8>>().await
        });
        let limit = Duration::from_secs(1);
        timeout(limit, first_success(attempts, limit, |_| 0)).await.unwrap_err();
        let began = began.into_inner().unwrap();
        assert!(began.len() == 100 && began.iter().all(|at| *at < limit * 6 / 10), "{began:?}");
    }

    #[tokio::test]
    async fn the_failure_that_tells_most_is_reported_and_the_first_among_equals() {
        let failures = |of: [u8; 4]| of.map(|failure| attempt(Some(0), Err(failure)));
        assert_eq!(
            first_success(failures([10, 21, 22, 11]), LIMIT, |failure| failure / 10).await,
            Err(Some(21))
        );
        assert_eq!(first_success(failures([9; 4]).into_iter().take(0), LIMIT, |_| 0).await, Err(None));
    }

    #[tokio::test]
    async fn a_host_is_tried_at_each_of_its_addresses() {
        let _name = TestName::new("dialled.test", [[127, 0, 0, 2], [127, 0, 0, 1]]);
        let to_the_last = |address: SocketAddr| async move {
            if address.ip() == Ipv4Addr::LOCALHOST { Ok(address.port()) } else { pending().await }
        };
        let connected = connect(("dialled.test", 7), LIMIT, |_: &io::Error| 0, to_the_last).await;
        assert_eq!(connected.unwrap(), 7);
    }

    #[tokio::test]
    async fn an_address_that_is_silent_does_not_hide_the_failure_of_another_one() {
        let _name = TestName::new("failing.test", [[127, 0, 0, 1], [127, 0, 0, 2]]);
        let attempt = |address: SocketAddr| async move {
            if address.ip() == Ipv4Addr::LOCALHOST {
                Err(io::Error::other("denied"))
            } else {
                pending().await
            }
        };
        let weight = |error: &io::Error| u8::from(error.kind() == io::ErrorKind::Other);
        let failed = connect(("failing.test", 7), Duration::from_millis(50), weight, attempt).await;
        assert_eq!(failed.map(|()| 0).unwrap_err().to_string(), "denied");
    }

    #[tokio::test]
    async fn a_name_that_is_not_answered_is_named() {
        let _name = TestName::unanswered("nobody.test");
        let limit = Duration::from_millis(50);
        let attempt = |_| async { Ok(()) };
        let error = connect(("nobody.test", 7), limit, |_: &io::Error| 0, attempt).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("nobody.test"), "{error}");
    }
}
