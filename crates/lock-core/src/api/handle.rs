//! The handle of one lock in one mode: what mutexes, read/write locks and semaphores have in common.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::api::lock_spec::LockSpec;
use crate::process::connection::Connection;
use crate::process::events::Events;
use crate::process::local_queue::{QueueEvent, Turn};
use crate::process::patience::{no_answer, within};
use crate::process::persistence::Outage;
use crate::process::tasks::background::Counted;
use crate::process::tasks::unpolled::unless_unpolled;
use crate::seam::observe::LockEvent;
use crate::{
    Acquired, Error, ErrorKind, Guard, LockName, LockOptions, LockState, Mode, Outcome, OwnerId, Persistence,
    Result, Wait,
};

/// A lock within this process: its wait queues, which connections may share, and its name.
pub(crate) type LockKey = (usize, LockName);

/// One lock in one mode. It holds nothing itself.
#[derive(Clone, Debug)]
pub(crate) struct LockHandle {
    connection: Arc<Connection>,
    spec: Result<Arc<LockSpec>>,
}

impl LockHandle {
    pub(crate) fn new(connection: Arc<Connection>, name: &str, mode: Mode, options: &LockOptions) -> Self {
        let (capabilities, owner) = (connection.backend.capabilities(), &connection.owner);
        let spec = LockSpec::new(capabilities, owner, name, mode, options).map(Arc::new);
        Self { connection, spec }
    }

    /// The same lock as the write side of a read/write lock.
    pub(crate) fn into_writer(self) -> Self {
        self.with(|spec| spec.writes = true)
    }

    /// The same lock, each holder of which gets it from the store, where others can observe it.
    pub(crate) fn observed(self) -> Self {
        self.with(|spec| spec.is_observed = true)
    }

    fn with(self, change: impl FnOnce(&mut LockSpec)) -> Self {
        let spec = self.spec.map(|mut spec| {
            change(Arc::make_mut(&mut spec));
            spec
        });
        Self { spec, ..self }
    }

    /// A handle whose acquisitions all fail with this error.
    pub(crate) fn refused(connection: Arc<Connection>, why: Error) -> Self {
        Self { connection, spec: Err(why) }
    }

    /// The error of a handle whose acquisitions all fail.
    pub(crate) fn check(&self) -> Result<()> {
        self.spec.as_ref().map(drop).map_err(Clone::clone)
    }

    pub(crate) fn backend_name(&self) -> &'static str {
        self.connection.backend_name()
    }

    /// The error of an acquisition, once the locks are closed.
    pub(crate) async fn closed(&self) -> Error {
        self.connection.origin.closed.cancelled().await;
        let error = self.connection.closed().during("acquire");
        match &self.spec {
            Ok(spec) => error.on(&spec.name),
            Err(_) => error,
        }
    }

    /// Counts an acquisition as under way.
    pub(crate) fn under_way(&self) -> Counted {
        self.connection.under_way()
    }

    pub(crate) fn key(&self) -> Result<LockKey> {
        let spec = self.spec.as_ref().map_err(Clone::clone)?;
        Ok((Arc::as_ptr(&self.connection.queues).addr(), spec.name.clone()))
    }

    /// The state of the lock in the store.
    pub(crate) async fn inspect(&self) -> Result<LockState> {
        let name = &self.spec.as_ref().map_err(Clone::clone)?.name;
        self.connection.request("inspect", Some(name), |backend| backend.inspect(name)).await
    }

    pub(crate) async fn acquire(&self) -> Result<Guard> {
        match self.acquire_within(Wait::Forever).await? {
            Some(guard) => Ok(guard),
            None => unreachable!("a wait without a deadline ends with a guard or an error"),
        }
    }

    /// Acquires the lock as by the other methods, for a caller who [confirms](Guard::confirm_hold) later how long it is to be held.
    pub(crate) async fn acquire_unconfirmed(&self, wait: Wait) -> Result<Option<Guard>> {
        self.acquire_by(wait, acquire).await
    }

    pub(crate) async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.acquire_within(Wait::Never).await
    }

    pub(crate) async fn try_acquire_for(&self, patience: Duration) -> Result<Option<Guard>> {
        let wait = Instant::now().checked_add(patience).map_or(Wait::Forever, Wait::Until);
        self.acquire_within(wait).await
    }

    pub(crate) async fn try_acquire_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        self.acquire_within(Wait::Until(deadline)).await
    }

    async fn acquire_within(&self, wait: Wait) -> Result<Option<Guard>> {
        self.acquire_by(wait, acquire_held).await
    }

    async fn acquire_by<'a, F>(
        &'a self,
        wait: Wait,
        acquire: impl FnOnce(&'a Arc<Connection>, &'a Arc<LockSpec>, Wait, Handle, Events) -> F,
    ) -> Result<Option<Guard>>
    where
        F: Future<Output = Result<Option<Guard>>>,
    {
        let spec = self.spec.as_ref().map_err(Clone::clone)?;
        let _under_way = self.connection.under_way();
        let attempt = self.connection.observers.begin(self.backend_name(), spec, wait);
        let events = attempt.events();
        let mut acquired = {
            let acquired = pin!(async {
                let runtimes = &self.connection.origin.runtimes;
                let runtime = runtimes.enter()?;
                // Dropping the acquisition rolls it back.
                let acquired = pin!(acquire(&self.connection, spec, wait, runtime, events));
                let acquired = within(wait, self.answer_timeout(), acquired);
                acquired.await.unwrap_or_else(|| Err(runtimes.explain(no_answer(self.backend_name()))))
            });
            let acquired = pin!(attempt.events().around(acquired));
            let acquired = self.unless_closed(acquired);
            match self.own_reader(spec) {
                Some(reader) => Box::pin(self.warning_of(reader, spec, acquired)).await,
                None => acquired.await,
            }
        };
        if matches!(acquired, Ok(None)) && wait == Wait::Forever {
            acquired = Err(Error::new(ErrorKind::Unexpected, self.connection.backend_name())
                .with_message("the backend gave up a wait without a deadline")
                .during("acquire"));
        }
        attempt.end(&mut acquired);
        acquired
    }

    /// The result of an acquisition, or of a wait before it, or an error once the locks are closed.
    pub(crate) async fn unless_closed<T>(
        &self,
        acquired: Pin<&mut impl Future<Output = Result<T>>>,
    ) -> Result<T> {
        let name = &self.spec.as_ref().map_err(Clone::clone)?.name;
        let acquired = self.connection.unless_closed(acquired).await;
        acquired.map_err(|error| error.during("acquire").on(name))
    }

    /// The reader that an acquisition which cannot share the lock with it waits for, if its own task has one.
    fn own_reader(&self, spec: &LockSpec) -> Option<OwnerId> {
        (spec.mode != Mode::Shared).then(|| self.connection.origin.readers.of_this_task(&spec.name)).flatten()
    }

    async fn warning_of<T>(&self, reader: OwnerId, spec: &LockSpec, acquired: impl Future<Output = T>) -> T {
        let warned = self.connection.origin.readers.warn_of(reader, &spec.name);
        let mut acquired = pin!(acquired);
        tokio::select! {
            biased;
            acquired = &mut acquired => return acquired,
            () = warned => {}
        }
        acquired.await
    }

    /// The longest time of an acquisition that must not wait.
    pub(crate) fn answer_timeout(&self) -> Duration {
        self.connection.backend.capabilities().answer_timeout
    }
}

/// After a lock that was lost before it was held.
const PAUSE: Duration = Duration::from_millis(50);

/// Acquires a lock that is held as long as the options say. A grant that the server does not confirm is no end of a wait.
async fn acquire_held(
    connection: &Arc<Connection>,
    spec: &Arc<LockSpec>,
    wait: Wait,
    runtime: Handle,
    events: Events,
) -> Result<Option<Guard>> {
    if spec.hold_at_least.is_none() {
        return acquire(connection, spec, wait, runtime, events).await;
    }
    // Boxed, to keep the future of an acquisition small.
    Box::pin(unless_unpolled(|| {
        let (connection, spec) = (Arc::clone(connection), Arc::clone(spec));
        let (runtime, events) = (runtime.clone(), events.clone());
        async move {
            let (mut outage, mut last) = (Outage::default(), None);
            loop {
                let acquired = acquire(&connection, &spec, wait, runtime.clone(), events.clone()).await?;
                let Some(mut guard) = acquired else { return last.map_or(Ok(None), Err) };
                let refusal = match guard.confirm_hold().await {
                    Ok(until) => {
                        outage.end();
                        guard.keep_until(until);
                        return Ok(Some(guard));
                    }
                    Err(refusal) => refusal,
                };
                drop(guard);
                if refusal.kind() == ErrorKind::Lost {
                    if wait.is_expired() {
                        return Ok(None);
                    }
                    sleep(wait.left().map_or(PAUSE, |left| left.min(PAUSE))).await;
                    continue;
                }
                // A missing answer ends no wait, as the next request tells whether the server answers.
                let goes_on = spec.persistence.goes_on(&refusal, refusal.is_retryable());
                if !goes_on || !pause_after(&refusal, &mut outage, &spec, wait, &events).await {
                    return Err(refusal);
                }
                last = Some(refusal);
            }
        }
    }))
    .await
}

async fn acquire(
    connection: &Arc<Connection>,
    spec: &Arc<LockSpec>,
    wait: Wait,
    runtime: Handle,
    events: Events,
) -> Result<Option<Guard>> {
    let turn = loop {
        let event = match wait {
            _ if wait.is_expired() => connection.queues.try_turn(&spec.name, spec.mode).map(QueueEvent::Turn),
            _ => wait_for_turn(connection, spec, wait, &runtime, &events).await?,
        };
        match event {
            Some(QueueEvent::Turn(turn)) => break turn,
            // This task was not polled for a while.
            Some(QueueEvent::HandedOver(guard)) if !guard.is_valid() => {}
            Some(QueueEvent::HandedOver(guard)) => return Ok(Some(guard)),
            None => return connection.queues.refusal(&spec.name).map_or(Ok(None), Err),
        }
    };
    events.tell(|| LockEvent::Requested);
    let acquired = match connection.backend.acquire(spec.request(wait)).await {
        Ok(acquired) => acquired,
        Err(refusal) => {
            let refusal = connection.origin.runtimes.explain(refusal);
            // Boxed, to keep the future of an acquisition small.
            Box::pin(go_on(connection, spec, wait, &turn, refusal, &events)).await?
        }
    };
    match acquired {
        Acquired::Busy => {
            turn.note_refusal(None);
            Ok(None)
        }
        Acquired::Held(lease) => {
            if spec.mode != Mode::Exclusive {
                turn.note_refusal(None);
            }
            // A sharer gives up its turn, so that the next task of this process can ask to share the lock.
            let turn = Some(turn).filter(|_| spec.mode == Mode::Exclusive);
            Ok(Some(Guard::new(lease, turn, Arc::clone(spec), runtime, Arc::clone(&connection.origin))))
        }
    }
}

/// Asks again after a refusal, for as long as the [rule](crate::Persistence) says.
async fn go_on(
    connection: &Connection,
    spec: &LockSpec,
    wait: Wait,
    turn: &Turn<Guard>,
    mut refusal: Error,
    events: &Events,
) -> Result<Acquired> {
    let mut outage = Outage::default();
    // An earlier request may still be executed.
    let mut in_doubt = false;
    let doubted = |error: Error, in_doubt| match error.outcome() {
        Outcome::NotApplied if in_doubt => error.with_outcome(Outcome::Unknown),
        _ => error,
    };
    loop {
        in_doubt |= refusal.outcome() != Outcome::NotApplied;
        let has_queued = turn.has_queued(refusal.was_waiting());
        if wait.is_expired() || !spec.persistence.goes_on(&refusal, has_queued) {
            return Err(doubted(refusal, in_doubt));
        }
        refusal = refusal.during("acquire").on(&spec.name);
        turn.note_refusal(Some(&refusal));
        if !pause_after(&refusal, &mut outage, spec, wait, events).await {
            return Err(doubted(refusal, in_doubt));
        }
        events.tell(|| LockEvent::Requested);
        match connection.send(|backend| backend.acquire(spec.request(wait))).await {
            Ok(acquired) => {
                outage.end();
                turn.note_refusal(None);
                return Ok(acquired);
            }
            Err(next) => refusal = next,
        }
    }
}

/// Tells of a refusal, and pauses before the next request; `false` if the patience ends by then.
async fn pause_after(
    refusal: &Error,
    outage: &mut Outage,
    spec: &LockSpec,
    wait: Wait,
    events: &Events,
) -> bool {
    if wait.is_expired() {
        return false;
    }
    if outage.note(refusal)
        && let Some(on_refused) = &spec.on_refused
    {
        on_refused.call(refusal);
    }
    let (pause, left) = (outage.pause(), wait.left());
    if left.is_none_or(|left| left > pause) {
        events.tell(|| LockEvent::Refused(refusal.clone()));
    }
    sleep(left.map_or(pause, |left| left.min(pause))).await;
    !wait.is_expired()
}

/// The turn, or the lock of the task before; nothing if the patience ends first. Fails for one that ends with a refusal, as the task
/// that has the turn may go on.
async fn wait_for_turn(
    connection: &Connection,
    spec: &Arc<LockSpec>,
    wait: Wait,
    runtime: &Handle,
    events: &Events,
) -> Result<Option<QueueEvent<Guard>>> {
    let queues = &connection.queues;
    if let Some(turn) = queues.free_turn(&spec.name, spec.mode) {
        return Ok(Some(QueueEvent::Turn(turn)));
    }
    let _waits = events.wait_locally();
    let event = queues.wait(spec, wait, runtime);
    if spec.persistence != Persistence::Strict {
        return event.await;
    }
    tokio::select! {
        biased;
        event = event => event,
        // Boxed, to keep the future of an acquisition small.
        refusal = Box::pin(queues.refused(&spec.name)) => Err(refusal),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as StdMutex;

    use async_trait::async_trait;
    use tokio::time::timeout;

    use super::*;
    use crate::process::events::tests::Notes;
    use crate::{
        AcquireRequest, Backend, BootInstant, Capabilities, Clock, GuardState, Lease, LockName, LockState,
        Locks, Memory, MemoryConfig, Multi, Observer, Released, Token, Validity,
    };

    const SECOND: Duration = Duration::from_secs(1);
    /// Longer than an outage of these tests and the pause after it.
    const SOON: Duration = Duration::from_secs(20);

    /// A memory backend that can refuse. It notifies the waiters of its own queue, as a server does.
    #[derive(Debug)]
    struct Refusing {
        inner: Memory,
        acquire: StdMutex<Option<Error>>,
        inspect: StdMutex<Option<Error>>,
        /// What the next extensions are refused for.
        extend: Arc<StdMutex<Vec<Error>>>,
    }

    /// A lease whose extensions can be refused.
    #[derive(Debug)]
    struct RefusingLease {
        inner: Box<dyn Lease>,
        extend: Arc<StdMutex<Vec<Error>>>,
    }

    #[async_trait]
    impl Lease for RefusingLease {
        fn token(&self) -> Token {
            self.inner.token()
        }

        fn owner(&self) -> OwnerId {
            self.inner.owner()
        }

        fn validity(&self) -> &Validity {
            self.inner.validity()
        }

        async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
            let refusal = self.extend.lock().unwrap().pop();
            refusal.map_or(Ok(()), Err)?;
            self.inner.extend(ttl).await
        }

        async fn verify(&self) -> Result<GuardState> {
            self.inner.verify().await
        }

        async fn release(&mut self) -> Result<Released> {
            self.inner.release().await
        }
    }

    impl Refusing {
        fn new() -> Arc<Self> {
            let inner = Memory::open(MemoryConfig::new().clock(Clock::tokio())).unwrap();
            let (acquire, inspect, extend) = Default::default();
            Arc::new(Self { inner, acquire, inspect, extend })
        }

        fn locks(self: &Arc<Self>) -> Locks {
            Locks::from_dyn(Arc::clone(self) as Arc<dyn Backend>)
        }

        fn refuse(&self, kind: Option<ErrorKind>) {
            *self.acquire.lock().unwrap() = kind.map(error);
        }

        fn refuse_observers(&self, kind: Option<ErrorKind>) {
            *self.inspect.lock().unwrap() = kind.map(error);
        }
    }

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "memory").with_message("refused")
    }

    fn answer(refusal: &StdMutex<Option<Error>>) -> Result<()> {
        refusal.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    #[async_trait]
    impl Backend for Refusing {
        fn capabilities(&self) -> &Capabilities {
            self.inner.capabilities()
        }

        async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
            answer(&self.acquire)?;
            let has_waited = !matches!(request.wait, Wait::Never);
            let acquired = self.inner.acquire(request).await?;
            match (answer(&self.acquire), acquired) {
                (Err(error), Acquired::Held(mut lease)) if has_waited => {
                    lease.release().await?;
                    Err(error.while_waiting())
                }
                (_, Acquired::Held(inner)) => {
                    Ok(Acquired::Held(Box::new(RefusingLease { inner, extend: Arc::clone(&self.extend) })))
                }
                (_, acquired) => Ok(acquired),
            }
        }

        async fn inspect(&self, name: &LockName) -> Result<LockState> {
            answer(&self.inspect)?;
            self.inner.inspect(name).await
        }

        async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
            loop {
                let state = self.inspect(name).await?;
                if !state.has_holders_of(seen) {
                    return Ok(state);
                }
                sleep(SECOND / 10).await;
            }
        }

        async fn break_lock(&self, name: &LockName) -> Result<bool> {
            self.inner.break_lock(name).await
        }

        async fn close(&self) -> Result<()> {
            self.inner.close().await
        }
    }

    async fn next(leaders: &mut Observer) -> Result<Option<String>> {
        let item = timeout(SOON, leaders.next()).await.expect("an event").expect("it goes on");
        item.map(|leader| leader.and_then(|leader| leader.label().map(str::to_owned)))
    }

    #[tokio::test(start_paused = true)]
    async fn an_acquisition_that_may_have_been_applied_says_so_whatever_the_last_answer_was() {
        let backend = Refusing::new();
        let unknown = error(ErrorKind::Unavailable).with_outcome(Outcome::Unknown).while_waiting();
        *backend.acquire.lock().unwrap() = Some(unknown);
        let mutex = backend.locks().mutex("a");
        let acquiring = tokio::spawn(async move { mutex.try_acquire_for(60 * SECOND).await });
        sleep(SECOND).await;
        backend.refuse(Some(ErrorKind::Denied));
        let error = acquiring.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Denied, Outcome::Unknown), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn each_refusal_is_observed_once() {
        let (backend, notes) = (Refusing::new(), Notes::new(|_| {}));
        let locks = backend.locks().observe(notes.clone());
        backend.refuse(Some(ErrorKind::Denied));
        assert!(locks.mutex("a").acquire().await.is_err());
        assert_eq!(notes.take(), "Requested Failed");
        let goes_on = LockOptions::new().persistence(Persistence::Always);
        assert!(locks.mutex_with("a", goes_on).unwrap().try_acquire_for(SECOND).await.is_err());
        let told = notes.take();
        let count = |event| told.matches(event).count();
        assert!(count("Requested") > 2 && told.ends_with("Refused Requested Failed"), "{told}");
        assert_eq!(count("Requested"), count("Refused") + count("Failed"), "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_goes_on_after_a_grant_whose_hold_is_not_confirmed_and_a_try_does_not() {
        let backend = Refusing::new();
        let locks = backend.locks();
        let hold = LockOptions::new().hold_at_least(5 * SECOND);
        let (mutex, both) = (locks.mutex_with("a", hold.clone()).unwrap(), |options: LockOptions| {
            Multi::new(["a", "b"].map(|name| locks.mutex_with(name, options.clone()).unwrap())).unwrap()
        });
        // The server is set back, and another one has broken the lock.
        let refusals = || vec![error(ErrorKind::Lost), error(ErrorKind::Unavailable)];
        let refuse = |refusals: Vec<Error>| *backend.extend.lock().unwrap() = refusals;

        refuse(refusals());
        let guard = timeout(SOON, mutex.acquire()).await.unwrap().unwrap();
        guard.release().await.unwrap();
        refuse(vec![error(ErrorKind::Lost)]);
        drop(timeout(SOON, both(hold.clone()).acquire()).await.unwrap().unwrap());

        sleep(SOON).await;
        for options in [hold.clone(), hold.persistence(Persistence::Strict)] {
            refuse(vec![error(ErrorKind::Unavailable)]);
            assert!(locks.mutex_with("a", options.clone()).unwrap().try_acquire().await.is_err());
            sleep(SECOND).await;
            refuse(vec![error(ErrorKind::Unavailable)]);
            assert!(both(options.clone()).try_acquire().await.is_err());
            sleep(SECOND).await;
            refuse(vec![error(ErrorKind::Lost)]);
            assert!(locks.mutex_with("a", options).unwrap().try_acquire().await.unwrap().is_none());
            sleep(SECOND).await;
        }
        // Until its patience ends.
        refuse(vec![error(ErrorKind::Unavailable); 1_000]);
        let refused = mutex.try_acquire_for(SECOND).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        // A right that is missing is no outage.
        refuse(vec![error(ErrorKind::Denied)]);
        assert_eq!(mutex.acquire().await.unwrap_err().kind(), ErrorKind::Denied);
        let strict = LockOptions::new().hold_at_least(5 * SECOND).persistence(Persistence::Strict);
        for waits in [true, false] {
            refuse(vec![error(ErrorKind::Unavailable)]);
            let refused = match waits {
                true => both(strict.clone()).acquire().await.map(drop),
                false => locks.mutex_with("a", strict.clone()).unwrap().acquire().await.map(drop),
            };
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
            sleep(SECOND).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_has_queued_goes_on_and_a_first_request_does_not() {
        let backend = Refusing::new();
        let (holds, waits) = (backend.locks(), backend.locks());
        let guard = holds.mutex("a").acquire().await.unwrap();
        let refused = Arc::new(StdMutex::new(Vec::new()));
        let told = Arc::clone(&refused);
        let options = LockOptions::new().on_refused(move |error| told.lock().unwrap().push(error.kind()));
        let mutex = waits.mutex_with("a", options).unwrap();
        let waiter = tokio::spawn(async move { mutex.acquire().await });
        sleep(SECOND).await;
        backend.refuse(Some(ErrorKind::Denied));
        guard.release().await.unwrap();
        sleep(30 * SECOND).await;
        backend.refuse(Some(ErrorKind::Exhausted));
        sleep(30 * SECOND).await;
        assert!(!waiter.is_finished());
        // What never queued, and what does not wait, fails at once.
        for error in [
            holds.mutex("a").acquire().await.unwrap_err(),
            holds.mutex("a").try_acquire_for(SECOND).await.unwrap_err(),
            waits.mutex("a").try_acquire().await.unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.operation()), (ErrorKind::Exhausted, Some("acquire")));
        }
        backend.refuse(None);
        let guard = timeout(SOON, waiter).await.expect("the lock").unwrap().unwrap();
        assert!(guard.is_valid());
        assert_eq!(*refused.lock().unwrap(), [ErrorKind::Denied, ErrorKind::Exhausted], "each reason once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_waited_for_another_has_queued() {
        let backend = Refusing::new();
        let locks = backend.locks();
        let guard = locks.mutex("a").acquire().await.unwrap();
        let waiters = [(); 2].map(|()| {
            let mutex = locks.mutex("a");
            tokio::spawn(async move { mutex.acquire().await })
        });
        sleep(SECOND).await;
        backend.refuse(Some(ErrorKind::Unavailable));
        drop(guard);
        sleep(10 * SECOND).await;
        waiters[0].abort();
        sleep(10 * SECOND).await;
        assert!(!waiters[1].is_finished(), "it has queued behind the same holder");
        backend.refuse(None);
        let [_, second] = waiters;
        assert!(timeout(SOON, second).await.expect("the lock").unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn patience_ends_with_the_refusal() {
        let backend = Refusing::new();
        let locks = backend.locks();
        let guard = locks.mutex("a").acquire().await.unwrap();
        let waiters = [3, 5].map(|patience| {
            let mutex = locks.mutex("a");
            tokio::spawn(async move { mutex.try_acquire_for(patience * SECOND).await })
        });
        sleep(SECOND).await;
        backend.refuse(Some(ErrorKind::Denied));
        drop(guard);
        let began = Instant::now();
        for (waiter, patience) in waiters.into_iter().zip([2, 4]) {
            let error = timeout(SOON, waiter).await.expect("its patience ends").unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied);
            assert_eq!(began.elapsed().as_secs(), patience);
        }
        // The one that asks has no end: of the tasks behind it the patience ends in the same way.
        backend.refuse(None);
        let guard = locks.mutex("a").acquire().await.unwrap();
        let [asks, behind] = [None, Some(3 * SECOND)].map(|patience| {
            let mutex = locks.mutex("a");
            tokio::spawn(async move {
                match patience {
                    Some(patience) => mutex.try_acquire_for(patience).await,
                    None => mutex.acquire().await.map(Some),
                }
            })
        });
        sleep(SECOND).await;
        backend.refuse(Some(ErrorKind::Denied));
        drop(guard);
        let error = timeout(SOON, behind).await.expect("its patience ends").unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        backend.refuse(None);
        assert!(timeout(SOON, asks).await.expect("the lock").unwrap().unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_pass_ends_a_wait_and_so_does_closing() {
        let backend = Refusing::new();
        for closes in [false, true] {
            let (holds, waits) = (backend.locks(), backend.locks());
            let guard = holds.mutex("a").acquire().await.unwrap();
            let mutex = waits.mutex("a");
            let waiter = tokio::spawn(async move { mutex.acquire().await });
            sleep(SECOND).await;
            backend.refuse(Some(ErrorKind::Denied));
            drop(guard);
            sleep(10 * SECOND).await;
            let kind = if closes {
                // Between two requests: it is not asked again.
                waits.close().await.unwrap();
                ErrorKind::Closed
            } else {
                backend.refuse(Some(ErrorKind::Unexpected));
                ErrorKind::Unexpected
            };
            let ended = timeout(SOON, waiter).await.expect("it ends").unwrap();
            assert_eq!(ended.unwrap_err().kind(), kind);
            backend.refuse(None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_strict_end_at_the_first_refusal() {
        let backend = Refusing::new();
        let strict = LockOptions::new().persistence(Persistence::Strict);
        let (holds, waits) = (backend.locks(), backend.locks());
        let guard = holds.mutex("a").acquire().await.unwrap();
        let mutex = waits.mutex_with("a", strict.clone()).unwrap();
        let waiter = tokio::spawn(async move { mutex.acquire().await });
        let election = waits.election_with("b", strict).unwrap();
        let mut leaders = election.observe();
        assert_eq!(next(&mut leaders).await.unwrap(), None);
        sleep(SECOND).await;
        backend.refuse(Some(ErrorKind::Denied));
        backend.refuse_observers(Some(ErrorKind::Unavailable));
        drop(guard);
        assert_eq!(timeout(SOON, waiter).await.unwrap().unwrap().unwrap_err().kind(), ErrorKind::Denied);
        assert_eq!(election.campaign("one").await.unwrap_err().kind(), ErrorKind::Denied);
        assert_eq!(next(&mut leaders).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(leaders.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_strict_do_not_wait_for_one_that_goes_on() {
        let backend = Refusing::new();
        let (holds, waits) = (backend.locks(), backend.locks());
        let guard = holds.mutex("a").acquire().await.unwrap();
        let mutex = waits.mutex("a");
        let mut waiter = Box::pin(async move { mutex.acquire().await });
        assert!(timeout(SECOND, &mut waiter).await.is_err());
        let mutex = waits.mutex_with("a", LockOptions::new().persistence(Persistence::Strict)).unwrap();
        let [before, after] = [mutex.clone(), mutex];
        let before = tokio::spawn(async move { before.acquire().await });
        sleep(SECOND).await;
        backend.refuse(Some(ErrorKind::Denied));
        drop(guard);
        assert!(timeout(SECOND, &mut waiter).await.is_err(), "it goes on");
        for strict in
            [timeout(SOON, before).await.unwrap().unwrap(), timeout(SOON, after.acquire()).await.unwrap()]
        {
            assert_eq!(strict.unwrap_err().kind(), ErrorKind::Denied);
        }
        // A refusal of one that is not polled any more is over at some time.
        backend.refuse(None);
        assert_eq!(waits.mutex("a").try_acquire().await.unwrap_err().kind(), ErrorKind::Denied);
        sleep(100 * SECOND).await;
        assert!(waits.mutex("a").try_acquire().await.unwrap().is_none());
        assert!(timeout(SOON, waiter).await.unwrap().unwrap().is_valid());
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_of_another_election_do_not_keep_an_observer_from_looking() {
        let backend = Refusing::new();
        let locks = backend.locks();
        let mut leaders = locks.election("a").observe();
        assert_eq!(next(&mut leaders).await.unwrap(), None);
        backend.refuse_observers(Some(ErrorKind::Denied));
        let leadership = backend.locks().election("a").campaign("one").await.unwrap();
        assert_eq!(next(&mut leaders).await.unwrap_err().kind(), ErrorKind::Denied);
        // Its pauses are long by then.
        assert!(timeout(SOON, leaders.next()).await.is_err());
        backend.refuse(Some(ErrorKind::Denied));
        let others = tokio::spawn(async move {
            loop {
                drop(timeout(SECOND / 20, locks.election("b").campaign("two")).await);
            }
        });
        backend.refuse_observers(None);
        assert_eq!(next(&mut leaders).await.unwrap().as_deref(), Some("one"));
        others.abort();
        drop(leadership);
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_one_item_of_an_observer_and_so_is_its_end() {
        let backend = Refusing::new();
        let locks = backend.locks();
        let mut leaders = locks.election("a").observe();
        assert_eq!(next(&mut leaders).await.unwrap(), None);
        let leadership = backend.locks().election("a").campaign("one").await.unwrap();
        assert_eq!(next(&mut leaders).await.unwrap().as_deref(), Some("one"));
        backend.refuse_observers(Some(ErrorKind::Denied));
        let refused = next(&mut leaders).await.unwrap_err();
        assert!(refused.kind() == ErrorKind::Denied && refused.can_pass());
        assert!(timeout(SOON, leaders.next()).await.is_err(), "an outage is reported once");
        backend.refuse_observers(None);
        assert_eq!(next(&mut leaders).await.unwrap().as_deref(), Some("one"), "it is over");
        assert!(timeout(SOON, leaders.next()).await.is_err(), "nothing has changed");
        drop(leadership);
    }

    #[tokio::test(start_paused = true)]
    async fn an_observer_shows_that_a_campaign_is_refused() {
        let backend = Refusing::new();
        let locks = backend.locks();
        let mut leaders = locks.election("a").observe();
        assert_eq!(next(&mut leaders).await.unwrap(), None);
        backend.refuse(Some(ErrorKind::Exhausted));
        let election = locks.election("a");
        let candidate = tokio::spawn(async move { election.campaign("one").await });
        assert_eq!(next(&mut leaders).await.unwrap_err().kind(), ErrorKind::Exhausted);
        assert!(timeout(SOON, leaders.next()).await.is_err(), "the campaign goes on");
        backend.refuse(None);
        let leadership = timeout(SOON, candidate).await.expect("it leads").unwrap().unwrap();
        loop {
            // That the refusal is over may be reported before the leader.
            if let Some(leader) = next(&mut leaders).await.unwrap() {
                break assert_eq!(leader, "one");
            }
        }
        leadership.resign().await.unwrap();
        assert_eq!(next(&mut leaders).await.unwrap(), None);
    }
}
