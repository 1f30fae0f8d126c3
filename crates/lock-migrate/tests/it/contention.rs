//! Processes that contend for one name, and what happened: it is judged at the end.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Guard, Locks, Released};
use lock_testkit::history::{Event, EventKind, Mode, ReleaseOutcome};
use lock_testkit::{History, check, now_ns, soon, until};
use tokio::task::JoinSet;
use tokio::time::sleep;

pub(crate) struct Contention {
    seen: Arc<Seen>,
    running: JoinSet<()>,
}

struct Seen {
    name: String,
    events: Mutex<Vec<Event>>,
    /// By process.
    grants: Vec<AtomicU32>,
    errors: Mutex<Vec<Error>>,
    is_over: AtomicBool,
}

impl Contention {
    /// Now and then a process holds the lock for longer than this lease.
    pub(crate) fn begin<'a>(
        name: &str,
        lease: Duration,
        processes: impl IntoIterator<Item = &'a Locks>,
    ) -> Self {
        let processes: Vec<_> = processes.into_iter().cloned().collect();
        let seen = Arc::new(Seen {
            name: name.to_owned(),
            events: Mutex::default(),
            grants: processes.iter().map(|_| AtomicU32::default()).collect(),
            errors: Mutex::default(),
            is_over: AtomicBool::default(),
        });
        let mut running = JoinSet::new();
        for (number, locks) in processes.into_iter().enumerate() {
            running.spawn(Arc::clone(&seen).contend(number, locks, lease));
        }
        Self { seen, running }
    }

    pub(crate) fn name(&self) -> &str {
        &self.seen.name
    }

    pub(crate) fn granted(&self) -> Vec<u32> {
        self.seen.grants.iter().map(|grants| grants.load(Ordering::SeqCst)).collect()
    }

    /// Waits until each of the processes has got the lock again.
    pub(crate) async fn each_gets_it(&self, when: &str) {
        let before = self.granted();
        let what = format!("{} {when}: {before:?}", self.seen.name);
        // The first of them may be on its way.
        until(&what, async || self.granted().iter().zip(&before).all(|(now, before)| *now >= before + 2))
            .await;
    }

    /// Ends the contention, and judges what happened.
    pub(crate) async fn end(self) {
        self.seen.is_over.store(true, Ordering::SeqCst);
        soon(self.running.join_all()).await;
        let name = &self.seen.name;
        let report = check(&History::new(self.seen.events.lock().unwrap().drain(..)));
        let verdict = report.verdict();
        assert!(report.holds >= 4, "{name} was hardly held");
        assert!(verdict.l2 && verdict.l3 && verdict.token_order, "{name}: {report}");
        let errors = self.seen.errors.lock().unwrap();
        let unexpected = errors.iter().filter(|error| {
            // Lost: granted, and over before the answer of the other store came.
            !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Moved | ErrorKind::Lost)
                || error.lock().map(|lock| lock.as_str()) != Some(name)
        });
        let unexpected: BTreeSet<_> = unexpected.map(|error| format!("{error:?}")).collect();
        assert!(unexpected.is_empty(), "{unexpected:#?}");
    }
}

impl Seen {
    async fn contend(self: Arc<Self>, process: usize, locks: Locks, lease: Duration) {
        let mutex = locks.mutex(&*self.name);
        while !self.is_over.load(Ordering::SeqCst) {
            self.note(process, EventKind::AcquireCalled);
            // Time: it gives up, and asks again.
            match mutex.try_acquire_for(Duration::from_secs(1)).await {
                Ok(Some(guard)) => self.hold(process, guard, lease).await,
                Ok(None) => self.note(process, EventKind::AcquireFailed),
                Err(error) => {
                    self.note(process, EventKind::AcquireUnknown);
                    self.errors.lock().unwrap().push(error);
                    // Time: a store that refuses is not asked all the time.
                    sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    async fn hold(&self, process: usize, guard: Guard, lease: Duration) {
        let until = |guard: &Guard| u64::try_from(guard.valid_until().since_boot().as_nanos()).unwrap();
        let grants = self.grants[process].fetch_add(1, Ordering::SeqCst) + 1;
        let (token, valid_until_ns) = (Some(guard.token().get()), Some(until(&guard)));
        self.note(process, EventKind::Acquired { token, valid_until_ns, mode: Mode::Exclusive });
        // Time: now and then it is renewed.
        let holds = if grants.is_multiple_of(16) { lease + lease / 4 } else { Duration::from_millis(2) };
        let ends = sleep(holds); // Time: the same.
        tokio::select! {
            _ = guard.lost() => self.note(process, EventKind::Lost),
            () = ends => self.note(process, EventKind::Extended { valid_until_ns: until(&guard) }),
        }
        self.note(process, EventKind::ReleaseCalled);
        let outcome = match guard.release().await {
            Ok(Released::Released) => ReleaseOutcome::Released,
            Ok(_) => ReleaseOutcome::AlreadyLost,
            Err(_) => ReleaseOutcome::Unknown,
        };
        self.note(process, EventKind::Released { outcome });
    }

    fn note(&self, process: usize, kind: EventKind) {
        let (process, lock) = (u32::try_from(process).unwrap(), self.name.clone());
        self.events.lock().unwrap().push(Event { process, client: 0, lock, at_ns: now_ns(), kind });
    }
}
