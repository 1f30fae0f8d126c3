//! What one client did to one lock, for the judgement at the end.

use lock_testkit::history::{Event, EventKind, Mode, ReleaseOutcome};
use lock_testkit::now_ns;
use polylock::{Guard, Released};

/// The events of one client, kept in memory so that writing them down costs the measurement nothing.
#[derive(Clone, Debug)]
pub(crate) struct Diary {
    process: u32,
    client: u64,
    lock: String,
    events: Vec<Event>,
}

impl Diary {
    /// The empty diary of this client of this process.
    pub(crate) fn new(process: u32, client: u64, lock: &str) -> Self {
        Self { process, client, lock: lock.to_owned(), events: Vec::new() }
    }

    /// Asking for the lock now.
    pub(crate) fn acquire_called(&mut self) {
        self.note(now_ns(), EventKind::AcquireCalled);
    }

    /// Got it just now.
    pub(crate) fn acquired(&mut self, guard: &Guard) {
        self.note(now_ns(), granted(Claim::of(guard)));
    }

    /// Did not get it.
    pub(crate) fn refused(&mut self) {
        self.note(now_ns(), EventKind::AcquireFailed);
    }

    /// Giving it back now.
    pub(crate) fn release_called(&mut self) {
        self.note(now_ns(), EventKind::ReleaseCalled);
    }

    /// It is given back.
    pub(crate) fn released(&mut self, released: Released) {
        self.note(now_ns(), EventKind::Released { outcome: outcome(released) });
    }

    /// The process was killed at this time.
    pub(crate) fn died(&mut self, at_ns: u64) {
        self.note(at_ns, EventKind::Died);
    }

    /// A tenure whose times were taken before.
    pub(crate) fn tenure(&mut self, tenure: &Tenure) {
        self.note(tenure.called_ns, EventKind::AcquireCalled);
        self.note(tenure.acquired_ns, granted(tenure.claim));
        self.note(tenure.release_called_ns, EventKind::ReleaseCalled);
        self.note(tenure.released_ns, EventKind::Released { outcome: tenure.released });
    }

    /// All events.
    pub(crate) fn into_events(self) -> Vec<Event> {
        self.events
    }

    fn note(&mut self, at_ns: u64, kind: EventKind) {
        let (process, client, lock) = (self.process, self.client, self.lock.clone());
        self.events.push(Event { process, client, lock, at_ns, kind });
    }
}

/// One hold of a lock in a few numbers, for loops in which even a diary would cost too much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenure {
    /// When the lock was asked for.
    pub(crate) called_ns: u64,
    /// When it was there.
    pub(crate) acquired_ns: u64,
    /// What the holder was told.
    pub(crate) claim: Claim,
    /// When it was given back.
    pub(crate) release_called_ns: u64,
    /// When that was done.
    pub(crate) released_ns: u64,
    /// What the release found.
    pub(crate) released: ReleaseOutcome,
}

/// What a holder was told when it got the lock. The default is nothing at all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Claim {
    /// The fencing token.
    pub(crate) token: Option<u64>,
    /// Until when the lock is its own, on the clock of the histories.
    pub(crate) until_ns: Option<u64>,
}

impl Claim {
    /// That of one of our guards.
    pub(crate) fn of(guard: &Guard) -> Self {
        let until_ns = u64::try_from(guard.valid_until().since_boot().as_nanos()).unwrap_or(u64::MAX);
        Self { token: Some(guard.token().get()), until_ns: Some(until_ns) }
    }
}

const fn granted(claim: Claim) -> EventKind {
    EventKind::Acquired { token: claim.token, valid_until_ns: claim.until_ns, mode: Mode::Exclusive }
}

/// What our releases answer, in the words of the histories.
pub(crate) const fn outcome(released: Released) -> ReleaseOutcome {
    match released {
        Released::Released => ReleaseOutcome::Released,
        _ => ReleaseOutcome::AlreadyLost,
    }
}
