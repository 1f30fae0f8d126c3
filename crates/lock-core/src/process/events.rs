//! Tells observers what happens to locks: each event once, in order, and where they may use the same locks.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::api::lock_spec::LockSpec;
use crate::process::poison::lock;
use crate::seam::observe::{Acquisition, LockEvent, LockObserver, Observation};
use crate::{
    BootInstant, Error, ErrorKind, Guard, GuardState, LockName, LossReason, Released, Result, Validity, Wait,
};

/// The observers of one `Locks`. Most have none, which costs nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observers(Vec<Arc<dyn LockObserver>>);

/// Where the events of one acquisition go, and those of the lock that it gets: nowhere without observers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events(Option<Arc<Told>>);

#[derive(Debug)]
struct Told {
    observations: SmallVec<[Box<dyn Observation>; 2]>,
    state: Mutex<TellingState>,
}

/// What is told by an observer, or while another thread tells, waits for that one: so events come in order, and no observer is
/// called while this is locked.
#[derive(Debug)]
struct TellingState {
    /// When the acquisition began, or got the lock.
    since: Instant,
    untold: VecDeque<(LockEvent, Duration)>,
    is_telling: bool,
    has_ended: bool,
}

/// An acquisition under way. One that is dropped was cancelled.
#[derive(Debug, Default)]
pub(crate) struct Attempt(Events);

/// A wait behind other tasks of this process, until it is dropped.
#[derive(Debug)]
pub(crate) struct LocalWait<'a>(&'a Events, Option<Instant>);

/// A lock that is held: nothing without observers. One that is dropped before its end is known is left to its time to live.
#[derive(Debug, Default)]
pub(crate) struct Holding(Option<Box<Watched>>);

#[derive(Debug)]
struct Watched {
    events: Events,
    validity: Validity,
    watch: AbortOnDropHandle<()>,
}

impl Observers {
    pub(crate) fn and(&self, observer: impl LockObserver) -> Self {
        let another = Arc::new(observer) as Arc<dyn LockObserver>;
        Self(self.0.iter().cloned().chain([another]).collect())
    }

    /// Begins an acquisition.
    pub(crate) fn begin(&self, backend: &'static str, spec: &LockSpec, wait: Wait) -> Attempt {
        if self.0.is_empty() {
            return Attempt::default();
        }
        let acquisition = Acquisition { backend, name: &spec.name, mode: spec.mode, wait };
        let begin = |observer: &Arc<dyn LockObserver>| unless_panicking(|| observer.begin(&acquisition));
        let observations = self.0.iter().filter_map(begin).collect();
        let (since, untold) = (Instant::now(), VecDeque::new());
        let state = TellingState { since, untold, is_telling: false, has_ended: false };
        Attempt(Events(Some(Arc::new(Told { observations, state: Mutex::new(state) }))))
    }

    /// A request failed that belongs to no acquisition.
    pub(crate) fn failed(
        &self,
        backend: &'static str,
        operation: &'static str,
        lock: Option<&LockName>,
        error: &Error,
    ) {
        for observer in &self.0 {
            unless_panicking(|| observer.failed(backend, operation, lock, error));
        }
    }
}

impl Events {
    pub(crate) fn tell(&self, event: impl FnOnce() -> LockEvent) {
        if let Some(told) = &self.0 {
            told.tell(event());
        }
    }

    /// The output of a future that is polled as observers want it.
    pub(crate) async fn around<F: Future>(self, mut future: Pin<&mut F>) -> F::Output {
        poll_fn(|context| {
            let mut poll = || future.as_mut().poll(context);
            match &self.0 {
                Some(told) => told.run(poll),
                None => poll(),
            }
        })
        .await
    }

    pub(crate) fn wait_locally(&self) -> LocalWait<'_> {
        self.tell(|| LockEvent::Queued);
        LocalWait(self, self.0.as_ref().map(|_| Instant::now()))
    }
}

impl Told {
    fn tell(&self, event: LockEvent) {
        {
            let mut state = self.state();
            // A guard that lost its lock may still be used.
            if state.has_ended && !matches!(event, LockEvent::RequestFailed(..)) {
                return;
            }
            let after = state.since.elapsed();
            if let LockEvent::Acquired { .. } = event {
                state.since += after;
            }
            state.has_ended |= event.is_last();
            state.untold.push_back((event, after));
            if mem::replace(&mut state.is_telling, true) {
                return;
            }
        }
        while let Some((event, after)) = self.next() {
            for observation in &self.observations {
                unless_panicking(|| observation.on(&event, after));
            }
        }
    }

    fn next(&self) -> Option<(LockEvent, Duration)> {
        let mut state = self.state();
        let next = state.untold.pop_front();
        state.is_telling = next.is_some();
        next
    }

    /// Runs the step as the observations want it, once, whatever they do.
    fn run<T>(&self, step: impl FnOnce() -> T) -> T {
        let (mut step, mut done) = (Some(step), None);
        let mut run = || {
            if let Some(step) = step.take() {
                done = Some(catch_unwind(AssertUnwindSafe(step)));
            }
        };
        run_within(&self.observations, &mut run);
        run();
        match done {
            Some(done) => done.unwrap_or_else(|panic| resume_unwind(panic)),
            None => unreachable!("the step was run"),
        }
    }

    fn state(&self) -> MutexGuard<'_, TellingState> {
        lock(&self.state)
    }
}

fn run_within(observations: &[Box<dyn Observation>], step: &mut dyn FnMut()) {
    match observations.split_first() {
        Some((first, others)) => _ = unless_panicking(|| first.run(&mut || run_within(others, step))),
        None => step(),
    }
}

/// The result of an observer, unless it panics.
fn unless_panicking<T>(call: impl FnOnce() -> T) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(call));
    result.inspect_err(|_| tracing::error!("an observer of locks panicked")).ok()
}

impl Attempt {
    pub(crate) fn events(&self) -> Events {
        self.0.clone()
    }

    /// Tells how the acquisition has ended. From now on the guard tells what becomes of the lock.
    pub(crate) fn end(mut self, acquired: &mut Result<Option<Guard>>) {
        let Some(told) = self.0.0.take() else { return };
        match acquired {
            Ok(Some(guard)) => guard.observe(Events(Some(told))),
            Ok(None) => told.tell(LockEvent::Busy),
            Err(error) if error.kind() == ErrorKind::Closed => told.tell(LockEvent::Cancelled),
            Err(error) => told.tell(LockEvent::Failed(error.clone())),
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.0.tell(|| LockEvent::Cancelled);
    }
}

impl Drop for LocalWait<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.1 {
            self.0.tell(|| LockEvent::LeftQueue(since.elapsed()));
        }
    }
}

impl Holding {
    pub(crate) fn begin(events: Events, validity: &Validity, runtime: &Handle) -> Self {
        let seen = (GuardState::Valid, validity.until());
        let watch = AbortOnDropHandle::new(runtime.spawn(watch(events.clone(), validity.clone(), seen)));
        Self(Some(Box::new(Watched { events, validity: validity.clone(), watch })))
    }

    /// Runs a request of the guard: polled as observers want it, who learn of its failure.
    pub(crate) async fn request<T>(
        &self,
        operation: &'static str,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let Some(watched) = &self.0 else { return request.await };
        let answered = watched.events.clone().around(pin!(request)).await;
        answered.inspect_err(|error| watched.tell(LockEvent::RequestFailed(operation, error.clone())))
    }

    /// The release or hand-over begins. A loss that is known by now is one; if none is, the outcome says whether it was lost.
    pub(crate) fn ending(&self) {
        let Some(watched) = &self.0 else { return };
        watched.watch.abort();
        if let Some(reason) = watched.loss() {
            watched.tell(LockEvent::Lost(reason));
        }
    }

    pub(crate) fn released(&self, how: Released) -> Released {
        if let Some(watched) = &self.0 {
            watched.tell(match how {
                Released::Released => LockEvent::Released,
                Released::AlreadyLost => LockEvent::Lost(watched.loss().unwrap_or(LossReason::Removed)),
            });
        }
        how
    }

    pub(crate) fn tell(&self, event: LockEvent) {
        if let Some(watched) = &self.0 {
            watched.tell(event);
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.ending();
        self.tell(LockEvent::Left);
    }
}

impl Watched {
    fn tell(&self, event: LockEvent) {
        self.events.tell(|| event);
    }

    fn loss(&self) -> Option<LossReason> {
        match self.validity.state() {
            GuardState::Lost(reason) if reason != LossReason::Released => Some(reason),
            _ => None,
        }
    }
}

/// Tells what becomes of a lock that is held, until it is lost.
async fn watch(events: Events, validity: Validity, mut seen: (GuardState, BootInstant)) {
    loop {
        let now = validity.changed(seen).await;
        match now.0 {
            // The guard tells how that ended.
            GuardState::Lost(LossReason::Released) => return,
            GuardState::Lost(reason) => return events.tell(|| LockEvent::Lost(reason)),
            GuardState::Suspect if seen.0 == GuardState::Valid => {
                events.tell(|| LockEvent::Suspect(validity.remaining()));
            }
            GuardState::Valid if seen.0 == GuardState::Suspect => events.tell(|| LockEvent::Confirmed),
            _ => {}
        }
        if now.1 != seen.1 {
            events.tell(|| LockEvent::Renewed(validity.remaining()));
        }
        seen = now;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use futures_util::FutureExt;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::{Clock, LockOptions, Locks, MemoryConfig};

    /// Notes the names of all events, and does what a test wants at each, and at the begin of an acquisition.
    #[derive(Clone)]
    pub(crate) struct Notes {
        noted: Arc<Mutex<Vec<String>>>,
        also: Arc<dyn Fn(&str) + Send + Sync>,
    }

    impl Notes {
        pub(crate) fn new(also: impl Fn(&str) + Send + Sync + 'static) -> Self {
            Self { noted: Arc::default(), also: Arc::new(also) }
        }

        pub(crate) fn take(&self) -> String {
            mem::take(&mut *self.noted.lock().unwrap()).join(" ")
        }
    }

    impl LockObserver for Notes {
        fn begin(&self, _: &Acquisition<'_>) -> Box<dyn Observation> {
            (self.also)("begin");
            Box::new(self.clone())
        }
    }

    impl Observation for Notes {
        fn on(&self, event: &LockEvent, _: Duration) {
            let event = format!("{event:?}");
            let name = event.split([' ', '(']).next().unwrap_or_default();
            self.noted.lock().unwrap().push(name.to_owned());
            (self.also)(name);
        }

        fn run(&self, step: &mut dyn FnMut()) {
            (self.also)("run");
            step();
        }
    }

    impl std::fmt::Debug for Notes {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Notes")
        }
    }

    fn locks() -> Locks {
        MemoryConfig::new().clock(Clock::tokio()).connect().unwrap()
    }

    /// What an observer does where.
    const PLACES: [&str; 7] = ["begin", "run", "Queued", "LeftQueue", "Requested", "Acquired", "Released"];

    #[tokio::test(start_paused = true)]
    async fn an_observer_that_panics_breaks_no_lock_and_silences_no_other() {
        for place in PLACES {
            let notes = Notes::new(|_| {});
            let panics = Notes::new(move |at| assert_ne!(at, place, "wanted by the test"));
            let locks = locks().observe(panics).observe(notes.clone());
            let (mutex, first) = (locks.mutex("a"), locks.mutex("a").acquire().await.unwrap());
            let (second, released) = tokio::join!(mutex.acquire(), first.release());
            assert_eq!(released.unwrap(), Released::Released);
            assert_eq!(second.unwrap().release().await.unwrap(), Released::Released);
            let expected = "Requested Acquired Queued Released LeftQueue Requested Acquired Released";
            assert_eq!(notes.take(), expected, "{place}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_observer_may_use_the_locks_and_end_what_it_observes() {
        let (store, used) = (locks(), Arc::new(Mutex::new(Vec::new())));
        let (below, uses, observed) = (store.clone(), Arc::clone(&used), Arc::new(Mutex::new(None::<Guard>)));
        let ends = Arc::clone(&observed);
        let locks = store.clone().observe(Notes::new(move |at| {
            drop(below.mutex("a").acquire().now_or_never());
            drop(below.inspect("a").now_or_never());
            uses.lock().unwrap().push(at.to_owned());
            if at == "Lost" {
                drop(ends.lock().unwrap().take());
            }
        }));
        let uses = async {
            let (mutex, first) = (locks.mutex("a"), locks.mutex("a").acquire().await.unwrap());
            let second = tokio::join!(mutex.acquire(), first.release()).0.unwrap();
            *observed.lock().unwrap() = Some(second);
            assert!(store.break_lock("a").await.unwrap());
            while observed.lock().unwrap().is_some() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(5), uses).await.expect("nothing hangs");
        let is_used = |place: &&str| used.lock().unwrap().iter().any(|at| at == place);
        assert!(PLACES.iter().all(is_used), "{used:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_never_released_ends_once() {
        let (notes, ttl) = (Notes::new(|_| {}), Duration::from_secs(5));
        let locks = locks().observe(notes.clone());
        let mutex = |name, options| locks.mutex_with(name, options).unwrap();
        mem::forget(mutex("a", LockOptions::new().fixed_ttl(ttl)).acquire().await.unwrap());
        sleep(2 * ttl).await;
        assert_eq!(notes.take(), "Requested Acquired Lost");
        drop(mutex("b", LockOptions::new().hold_at_least(ttl)).acquire().await.unwrap());
        sleep(2 * ttl).await;
        assert_eq!(notes.take(), "Requested Acquired Left");
        let held = mutex("c", LockOptions::new()).acquire().await.unwrap();
        let waits = mutex("c", LockOptions::new());
        let (waited, closed) = tokio::join!(waits.acquire(), locks.close());
        assert_eq!((waited.unwrap_err().kind(), closed.is_ok()), (ErrorKind::Closed, true));
        drop(held);
        sleep(ttl).await;
        assert_eq!(notes.take(), "Requested Acquired Queued LeftQueue Cancelled Released");
    }

    #[tokio::test(start_paused = true)]
    async fn silence_and_answers_of_the_server_are_told_until_the_loss() {
        let (notes, clock) = (Notes::new(|_| {}), Clock::tokio());
        let until = |seconds| clock.now() + Duration::from_secs(seconds);
        let cell = crate::ValidityCell::new(clock.clone(), until(5));
        let observers = Observers::default().and(notes.clone());
        let spec = crate::api::lock_spec::tests::named("a");
        let events = observers.begin("test", &spec, Wait::Never);
        let _holding = Holding::begin(events.events(), &cell.validity(), &Handle::current());
        for (change, told) in [
            (&(|| cell.suspect()) as &dyn Fn(), "Suspect"),
            (&|| cell.suspect(), ""),
            (&|| _ = cell.extend_to(until(9)), "Confirmed Renewed"),
            (&|| _ = cell.extend_to(until(9)), "Renewed"),
        ] {
            sleep(Duration::from_secs(1)).await;
            change();
            sleep(Duration::from_millis(1)).await;
            assert_eq!(notes.take(), told);
        }
        sleep(Duration::from_secs(20)).await;
        drop(events);
        assert_eq!(notes.take(), "Lost", "and nothing after it");
    }
}
