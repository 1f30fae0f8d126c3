//! What one client did to one lock, recorded for the check of the history.

use lock_testkit::history::{Event, EventKind, Mode, ReleaseOutcome};
use lock_testkit::now_ns;
use polylock::{Guard, Released};

/// The events of one client, in memory: writing them to a file would disturb the measurement.
#[derive(Debug)]
pub(crate) struct EventLog {
    process: u32,
    client: u64,
    lock: String,
    events: Vec<Event>,
}

impl EventLog {
    pub(crate) fn new(process: u32, client: u64, lock: &str) -> Self {
        Self { process, client, lock: lock.to_owned(), events: Vec::new() }
    }

    pub(crate) fn acquire_called(&mut self) {
        self.add(now_ns(), EventKind::AcquireCalled);
    }

    pub(crate) fn acquired(&mut self, guard: &Guard) {
        self.add(now_ns(), acquired(GrantInfo::of(guard)));
    }

    pub(crate) fn refused(&mut self) {
        self.add(now_ns(), EventKind::AcquireFailed);
    }

    pub(crate) fn release_called(&mut self) {
        self.add(now_ns(), EventKind::ReleaseCalled);
    }

    pub(crate) fn released(&mut self, released: Released) {
        self.add(now_ns(), EventKind::Released { outcome: outcome(released) });
    }

    /// The process was killed at this time.
    pub(crate) fn died(&mut self, at_ns: u64) {
        self.add(at_ns, EventKind::Died);
    }

    pub(crate) fn hold(&mut self, hold: &TimedHold) {
        self.acquire_called_at(hold.called_ns);
        self.held(hold);
    }

    pub(crate) fn acquire_called_at(&mut self, called_ns: u64) {
        self.add(called_ns, EventKind::AcquireCalled);
    }

    /// Adds a hold without the call of acquire.
    pub(crate) fn held(&mut self, hold: &TimedHold) {
        self.add(hold.acquired_ns, acquired(hold.grant));
        self.add(hold.release_called_ns, EventKind::ReleaseCalled);
        self.add(hold.released_ns, EventKind::Released { outcome: hold.released });
    }

    pub(crate) fn into_events(self) -> Vec<Event> {
        self.events
    }

    fn add(&mut self, at_ns: u64, kind: EventKind) {
        let (process, client, lock) = (self.process, self.client, self.lock.clone());
        self.events.push(Event { process, client, lock, at_ns, kind });
    }
}

/// One hold of a lock, for loops in which even an [`EventLog`] would cost too much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedHold {
    pub(crate) called_ns: u64,
    pub(crate) acquired_ns: u64,
    pub(crate) grant: GrantInfo,
    pub(crate) release_called_ns: u64,
    pub(crate) released_ns: u64,
    pub(crate) released: ReleaseOutcome,
}

impl TimedHold {
    /// The time that the acquisition took.
    pub(crate) const fn acquire_ns(&self) -> u64 {
        self.acquired_ns - self.called_ns
    }

    pub(crate) const fn release_ns(&self) -> u64 {
        self.released_ns - self.release_called_ns
    }

    pub(crate) const fn took_ns(&self) -> u64 {
        self.acquire_ns() + self.release_ns()
    }
}

/// What came with a grant. The default is neither a token nor a deadline, as most peers have none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GrantInfo {
    pub(crate) token: Option<u64>,
    /// The end of the lease, on the clock of the histories.
    pub(crate) until_ns: Option<u64>,
}

impl GrantInfo {
    pub(crate) fn of(guard: &Guard) -> Self {
        let until_ns = u64::try_from(guard.valid_until().since_boot().as_nanos()).unwrap_or(u64::MAX);
        Self { token: Some(guard.token().get()), until_ns: Some(until_ns) }
    }
}

const fn acquired(grant: GrantInfo) -> EventKind {
    EventKind::Acquired { token: grant.token, valid_until_ns: grant.until_ns, mode: Mode::Exclusive }
}

pub(crate) const fn outcome(released: Released) -> ReleaseOutcome {
    match released {
        Released::Released => ReleaseOutcome::Released,
        _ => ReleaseOutcome::AlreadyLost,
    }
}

/// The events of a hold, for tests of what reads histories.
#[cfg(test)]
pub(crate) fn sample_hold(process: u32, [called, from, until]: [u64; 3], grant: GrantInfo) -> Vec<Event> {
    let mut log = EventLog::new(process, 0, "a");
    log.hold(&TimedHold {
        called_ns: called,
        acquired_ns: from,
        grant,
        release_called_ns: until,
        released_ns: until + 1,
        released: ReleaseOutcome::Released,
    });
    log.into_events()
}
