//! Sends requests to all masters at once, and collects the answers.

use std::future::{Future, Ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use redis_link::dispatch::Dispatch;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::voting::quorum::OfEach;

/// Requests to all masters. The first answers may decide; the other requests run to their end in the background, even if
/// this is dropped.
pub(crate) struct FanOut<T: Send + 'static> {
    pending: FuturesUnordered<Numbered<T>>,
    /// The deadline for the answer of each master that is outstanding.
    awaited: OfEach<Option<Deadline>>,
    /// Whether the requests were written; empty if they count as written from the start.
    dispatches: OfEach<Arc<Dispatch>>,
    began: Instant,
    has_deadlines: bool,
    timer: Option<Pin<Box<Sleep>>>,
    runtime: Option<Handle>,
}

/// The deadline for an answer. A request that waits for its turn has as much time after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Deadline {
    at: Instant,
    span: Duration,
}

impl Deadline {
    fn at(at: Instant) -> Self {
        Self { at, span: at.saturating_duration_since(Instant::now()) }
    }
}

/// An event of one master.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply<T> {
    /// Its answer, perhaps after its deadline.
    Answer(T),
    /// Its deadline passed; it has had the request since then. The request continues.
    Late(Instant),
}

/// A request, with the number of its master.
type Numbered<T> = Pin<Box<dyn Future<Output = (usize, T)> + Send>>;

impl<T: Send + 'static> FanOut<T> {
    /// Starts these requests, one for each master, in order.
    pub(crate) fn new<F: Future<Output = T> + Send + 'static>(requests: impl IntoIterator<Item = F>) -> Self {
        let pending = FuturesUnordered::new();
        for (master, request) in requests.into_iter().enumerate() {
            let numbered: Numbered<T> = Box::pin(request.map(move |answer| (master, answer)));
            pending.push(numbered);
        }
        let began = Instant::now();
        let awaited = OfEach::from_elem(Some(Deadline::at(began)), pending.len());
        let (dispatches, runtime) = (OfEach::new(), Handle::try_current().ok());
        Self { pending, awaited, dispatches, began, has_deadlines: false, timer: None, runtime }
    }

    /// The dispatch of each request: deadlines count from when it is written.
    pub(crate) fn dispatched(mut self, dispatches: OfEach<Arc<Dispatch>>) -> Self {
        self.dispatches = dispatches;
        self
    }

    /// Sets a deadline for the answer of each master.
    pub(crate) fn until(mut self, deadlines: impl IntoIterator<Item = Instant>) -> Self {
        let deadlines = deadlines.into_iter().take(self.pending.len());
        self.awaited = deadlines.map(|at| Some(Deadline::at(at))).collect();
        self.has_deadlines = true;
        self
    }

    /// Sets another deadline for these masters, even after the first has passed.
    pub(crate) fn wait_on(&mut self, masters: impl IntoIterator<Item = usize>, until: Instant) {
        self.has_deadlines = true;
        masters.into_iter().for_each(|master| self.awaited[master] = Some(Deadline::at(until)));
    }

    /// The next event, with the number of its master.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub(crate) async fn next(&mut self) -> Option<(usize, Reply<T>)> {
        loop {
            let awaited = self.awaited.iter().enumerate();
            let first = awaited.filter_map(|(master, at)| Some(((*at)?, master))).min();
            let Some((deadline @ Deadline { at, .. }, late)) = first.filter(|_| self.has_deadlines) else {
                let (master, answer) = self.answer().await?;
                return Some((master, Reply::Answer(answer)));
            };
            // One timer for all, which is reset only after it has fired: most votes end before.
            let mut timer = self.timer.take().unwrap_or_else(|| Box::pin(sleep_until(at)));
            if timer.is_elapsed() || timer.deadline() > at {
                timer.as_mut().reset(at);
            }
            let timer = self.timer.insert(timer);
            tokio::select! {
                // An answer counts even if this is polled after the deadline.
                biased;
                answer = self.pending.next() => {
                    let (master, answer) = answer?;
                    self.awaited[master] = None;
                    return Some((master, Reply::Answer(answer)));
                }
                () = timer.as_mut() => {}
            }
            if Instant::now() >= at {
                self.awaited[late] = self.prolonged(late, deadline);
                if self.awaited[late].is_none() {
                    return Some((late, Reply::Late(self.sent(late).unwrap_or(self.began))));
                }
            }
        }
    }

    /// When a master was sent its request; `None` if that still waits for its turn.
    fn sent(&self, master: usize) -> Option<Instant> {
        match self.dispatches.get(master) {
            Some(dispatch) if dispatch.waits() => None,
            Some(dispatch) => Some(dispatch.written().map_or(self.began, |written| written.at)),
            None => Some(self.began),
        }
    }

    /// The deadline of a request that was written later than expected, if there is time left.
    fn prolonged(&self, master: usize, deadline: Deadline) -> Option<Deadline> {
        let (now, sent) = (Instant::now(), self.sent(master));
        // One that waits for long is looked at less often.
        let at = sent.map_or_else(|| now + deadline.span.max(now - self.began), |sent| sent + deadline.span);
        let is_later = at > now && (sent.is_none() || at > deadline.at);
        is_later.then_some(Deadline { at, ..deadline })
    }

    /// The number of answers that are still waited for.
    pub(crate) fn outstanding(&self) -> usize {
        self.awaited.iter().flatten().count()
    }

    /// Whether every request has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.pending.is_empty()
    }

    /// The next answer, without deadlines.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub(crate) async fn answer(&mut self) -> Option<(usize, T)> {
        let (master, answer) = self.pending.next().await?;
        self.awaited[master] = None;
        Some((master, answer))
    }
}

impl<T: Send + 'static> Default for FanOut<T> {
    fn default() -> Self {
        Self::new(std::iter::empty::<Ready<T>>())
    }
}

impl<T: Send + 'static> Drop for FanOut<T> {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take().filter(|_| !self.is_over()) {
            let mut rest = std::mem::take(&mut self.pending);
            drop(runtime.spawn(async move { while rest.next().await.is_some() {} }));
        }
    }
}

impl<T: Send + 'static> std::fmt::Debug for FanOut<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FanOut").field("outstanding", &self.outstanding()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Master n answers after n ms.
    fn replies(done: &Arc<AtomicUsize>) -> FanOut<()> {
        FanOut::new((0..5).map(|number| {
            let done = Arc::clone(done);
            async move {
                tokio::time::sleep(Duration::from_millis(number)).await;
                done.fetch_add(1, Ordering::SeqCst);
            }
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_requests_run_to_their_end() {
        let done = Arc::new(AtomicUsize::new(0));
        let mut replies = replies(&done);
        assert_eq!(replies.next().await, Some((0, Reply::Answer(()))));
        assert_eq!(replies.outstanding(), 4);
        drop(replies);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(done.load(Ordering::SeqCst), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_master_is_not_waited_for_but_its_answer_still_counts() {
        let (done, start) = (Arc::default(), Instant::now());
        let deadlines = [10, 10, 10, 1, 10].map(|millis| start + Duration::from_millis(millis));
        let mut replies = replies(&done).until(deadlines);
        let mut received = Vec::new();
        while let Some(next) = replies.next().await {
            received.push((next, replies.outstanding()));
        }
        let answer = |master, outstanding| ((master, Reply::Answer(())), outstanding);
        assert_eq!(received[..2], [answer(0, 4), answer(1, 3)]);
        assert_eq!(received[2..], [((3, Reply::Late(start)), 2), answer(2, 1), answer(3, 1), answer(4, 0)]);
    }
}
