//! Asking all masters at once.

use std::future::{Future, Ready};
use std::pin::Pin;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep_until};

/// One for each master. There are seven at most, as a rule.
pub(crate) type OfEach<T> = SmallVec<[T; 7]>;

/// The smallest number of masters that any other such number has one in common with.
pub(crate) const fn quorum(masters: usize) -> usize {
    masters / 2 + 1
}

/// Requests to all masters. The first answers decide; the requests behind them are carried to their
/// end in the background, also when the wave is dropped.
pub(crate) struct Wave<T: Send + 'static> {
    pending: FuturesUnordered<Numbered<T>>,
    /// Of each master: until when its answer is waited for, while it is.
    awaited: OfEach<Option<Instant>>,
    has_deadlines: bool,
    timer: Option<Pin<Box<Sleep>>>,
    runtime: Option<Handle>,
}

/// What is heard of one master.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard<T> {
    /// Its answer, perhaps after it was late.
    Answer(T),
    /// Its deadline passed. The request goes on.
    Late,
}

/// A request, with the number of its master.
type Numbered<T> = Pin<Box<dyn Future<Output = (usize, T)> + Send>>;

impl<T: Send + 'static> Wave<T> {
    /// The wave of these requests, one for each master, in their order.
    pub(crate) fn new<F: Future<Output = T> + Send + 'static>(requests: impl IntoIterator<Item = F>) -> Self {
        let pending = FuturesUnordered::new();
        for (master, request) in requests.into_iter().enumerate() {
            let numbered: Numbered<T> = Box::pin(request.map(move |answer| (master, answer)));
            pending.push(numbered);
        }
        let awaited = OfEach::from_elem(Some(Instant::now()), pending.len());
        Self { pending, awaited, has_deadlines: false, timer: None, runtime: Handle::try_current().ok() }
    }

    /// With a deadline for the answer of each master.
    pub(crate) fn until(mut self, deadlines: impl IntoIterator<Item = Instant>) -> Self {
        self.awaited = deadlines.into_iter().take(self.pending.len()).map(Some).collect();
        self.has_deadlines = true;
        self
    }

    /// Waits for the answers of these masters, perhaps again, until then.
    pub(crate) fn wait_on(&mut self, masters: impl IntoIterator<Item = usize>, until: Instant) {
        self.has_deadlines = true;
        masters.into_iter().for_each(|master| self.awaited[master] = Some(until));
    }

    /// What is heard next, and of which master.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Option<(usize, Heard<T>)> {
        loop {
            let awaited = self.awaited.iter().enumerate();
            let first = awaited.filter_map(|(master, at)| Some(((*at)?, master))).min();
            let Some((at, late)) = first.filter(|_| self.has_deadlines) else {
                let (master, answer) = self.answer().await?;
                return Some((master, Heard::Answer(answer)));
            };
            // One timer for all, which is set again only when it has run out: most waves end before.
            let mut timer = self.timer.take().unwrap_or_else(|| Box::pin(sleep_until(at)));
            if timer.is_elapsed() || timer.deadline() > at {
                timer.as_mut().reset(at);
            }
            let timer = self.timer.insert(timer);
            tokio::select! {
                // An answer that is there counts, however late we look.
                biased;
                answer = self.pending.next() => {
                    let (master, answer) = answer?;
                    self.awaited[master] = None;
                    return Some((master, Heard::Answer(answer)));
                }
                () = timer.as_mut() => {}
            }
            if Instant::now() >= at {
                self.awaited[late] = None;
                return Some((late, Heard::Late));
            }
        }
    }

    /// How many answers are still waited for.
    pub(crate) fn outstanding(&self) -> usize {
        self.awaited.iter().flatten().count()
    }

    /// Whether every answer has come.
    pub(crate) fn is_over(&self) -> bool {
        self.pending.is_empty()
    }

    /// The next answer, however late it comes.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn answer(&mut self) -> Option<(usize, T)> {
        let (master, answer) = self.pending.next().await?;
        self.awaited[master] = None;
        Some((master, answer))
    }
}

impl<T: Send + 'static> Default for Wave<T> {
    fn default() -> Self {
        Self::new(std::iter::empty::<Ready<T>>())
    }
}

impl<T: Send + 'static> Drop for Wave<T> {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take().filter(|_| !self.is_over()) {
            let mut rest = std::mem::take(&mut self.pending);
            drop(runtime.spawn(async move { while rest.next().await.is_some() {} }));
        }
    }
}

impl<T: Send + 'static> std::fmt::Debug for Wave<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wave").field("outstanding", &self.outstanding()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    /// Master n answers after n ms.
    fn wave(done: &Arc<AtomicUsize>) -> Wave<()> {
        Wave::new((0..5).map(|number| {
            let done = Arc::clone(done);
            async move {
                tokio::time::sleep(Duration::from_millis(number)).await;
                done.fetch_add(1, Ordering::SeqCst);
            }
        }))
    }

    #[test]
    fn quorums() {
        assert_eq!([3, 5, 7].map(quorum), [2, 3, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_wave_runs_to_its_end() {
        let done = Arc::new(AtomicUsize::new(0));
        let mut wave = wave(&done);
        assert_eq!(wave.next().await, Some((0, Heard::Answer(()))));
        assert_eq!(wave.outstanding(), 4);
        drop(wave);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(done.load(Ordering::SeqCst), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_master_that_is_late_is_no_longer_waited_for_and_is_heard_all_the_same() {
        let (done, start) = (Arc::default(), Instant::now());
        let deadlines = [10, 10, 10, 1, 10].map(|millis| start + Duration::from_millis(millis));
        let mut wave = wave(&done).until(deadlines);
        let mut heard = Vec::new();
        while let Some(next) = wave.next().await {
            heard.push((next, wave.outstanding()));
        }
        let answer = |master, outstanding| ((master, Heard::Answer(())), outstanding);
        assert_eq!(heard[..2], [answer(0, 4), answer(1, 3)]);
        assert_eq!(heard[2..], [((3, Heard::Late), 2), answer(2, 1), answer(3, 1), answer(4, 0)]);
    }
}
