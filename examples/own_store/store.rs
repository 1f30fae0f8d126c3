//! A store of leases of one's own: a directory, with a file of JSON for each lock.
//!
//! What a lock is, and what each request makes of it, is [`Record`]; the rest is [`Engine`]. So a store only has to change a record in
//! one step: here, while it has locked a file beside it. A table would have a transaction, a key-value store a compare-and-swap.
//!
//! Leases count by the clock since boot, which the processes of one host share: the directory has to end with it, as one in `/run`.

use std::fs::{self, File};
use std::io::{
    self,
    ErrorKind::{NotFound, TimedOut},
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use polylock::backend::engine::{
    self, Answer, Answered, Changed, Engine, EngineOptions, Extension, Hold, LeaseStore, Release, Unnotified,
};
use polylock::backend::record::{self, Now, Record, Shown, Turn, Waiting};
use polylock::backend::{Locks, Support, TokenBlock};
use polylock::{
    BootInstant, Capabilities, Clock, Error, ErrorKind, LeaseKind, LockName, LockState, Outcome, OwnerId,
    OwnerInfo, Result, Token,
};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

const NAME: &str = "directory";
/// Longer ones are not names of files, as each byte may take three.
pub(crate) const LONGEST_NAME: usize = 80;
/// A waiter asks several times a second. One that has not asked for so long has gone.
const GONE: Duration = Duration::from_secs(3);
const TIMEOUT: Duration = Duration::from_secs(5);

/// Locks in this directory, which is made if it is not there. Their leases last for `ttl`.
pub(crate) fn connect(directory: &Path, ttl: Duration) -> Result<Locks> {
    fs::create_dir_all(directory).map_err(failed)?;
    let mut capabilities = Capabilities::new(NAME, LeaseKind::ttl(ttl, Duration::from_millis(100)));
    (capabilities.fifo, capabilities.counts_waiters, capabilities.names_sharers) = (true, true, true);
    (capabilities.shared, capabilities.permits, capabilities.breaks_one) =
        (Support::Yes, Support::Yes, Support::Yes);
    let store = Directory { path: directory.to_owned(), is_closed: AtomicBool::new(false) };
    let mut options = EngineOptions::new(TIMEOUT);
    (options.poll, options.local_handovers) = (Duration::from_millis(20), TokenBlock::USUAL_SERIES);
    Ok(Locks::new(Engine::new(store, capabilities, options)?))
}

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    is_closed: AtomicBool,
}

/// What is kept of a holder or a waiter.
#[derive(Debug, Deserialize, Serialize)]
struct Party {
    info: OwnerInfo,
    since: SystemTime,
    asked: BootInstant,
}

impl Shown for Party {
    fn info(&self) -> &OwnerInfo {
        &self.info
    }

    fn since(&self) -> SystemTime {
        self.since
    }
}

struct Moment(BootInstant);

impl Now<Party> for Moment {
    fn time(&self) -> BootInstant {
        self.0
    }

    fn lives(&self, waiter: &Waiting<Party>) -> bool {
        self.0 < waiter.party.asked + GONE
    }

    /// Each grant has a block of tokens. By the clock, so that they grow if somebody deletes the file.
    fn mint(&mut self, last: Token) -> Token {
        let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let clock = u64::try_from(since_1970.as_micros()).unwrap_or_default();
        Token::new(TokenBlock::start((last.get() + TokenBlock::SIZE).max(clock)))
    }
}

impl Directory {
    fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Relaxed) { Err(Error::closed(NAME)) } else { Ok(()) }
    }

    /// Looks at the record of a lock, as it was after some step.
    fn look<T>(&self, file: &Path, look: impl FnOnce(&Record<Party>, &Moment) -> T) -> Result<T> {
        self.check_open()?;
        let record = read(file).map_err(failed)?;
        Ok(look(&record, &Moment(Clock::boot().now())))
    }

    /// Changes the record of a lock in one step. What fails changes nothing, as the new record replaces the old one last.
    async fn change<T: Send + 'static>(
        &self,
        file: &Path,
        change: impl FnOnce(&mut Record<Party>, &mut Moment) -> T + Send + 'static,
    ) -> Result<T> {
        let file = file.to_owned();
        let changed = move || {
            let _locked = lock(&file)?;
            let mut record = read(&file)?;
            let changed = change(&mut record, &mut Moment(Clock::boot().now()));
            // Whoever is killed here leaves the old one or the new one.
            let new = file.with_extension("new");
            fs::write(&new, serde_json::to_vec(&record)?)?;
            fs::rename(new, file)?;
            Ok(changed)
        };
        spawn_blocking(changed).await.unwrap_or_else(|panic| Err(io::Error::other(panic))).map_err(failed)
    }
}

/// Keeps the record to this request until it is dropped. A process that is stopped meanwhile keeps nobody waiting for ever.
fn lock(file: &Path) -> io::Result<File> {
    let beside = File::options().create(true).append(true).open(file.with_extension("lock"))?;
    let began = Instant::now();
    loop {
        match flock(&beside, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(beside),
            Err(Errno::WOULDBLOCK) if began.elapsed() < TIMEOUT => thread::sleep(Duration::from_millis(1)),
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::new(TimedOut, "others had the file locked all the time"));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The record in this file.
fn read(file: &Path) -> io::Result<Record<Party>> {
    match fs::read(file) {
        Ok(json) => Ok(serde_json::from_slice(&json)?),
        Err(error) if error.kind() == NotFound => Ok(Record::new()),
        Err(error) => Err(error),
    }
}

fn failed(error: io::Error) -> Error {
    let (outcome, hint) = match error.kind() {
        TimedOut => (Outcome::NotApplied, "look for a process that is stopped, and for a slow disk"),
        _ => (Outcome::Unknown, "check its rights and the room on its disk"),
    };
    Error::new(ErrorKind::Unavailable, NAME)
        .with_message("the directory of the locks cannot be used")
        .with_hint(hint)
        .with_outcome(outcome)
        .caused_by(error)
}

impl LeaseStore for Directory {
    type Place = PathBuf;
    type Order = ();
    type Mailbox = Unnotified;

    fn place(&self, name: &LockName) -> Result<PathBuf> {
        if name.as_str().len() > LONGEST_NAME {
            let what = format!("a name of more than {LONGEST_NAME} bytes is no name of a file");
            return Err(Error::new(ErrorKind::InvalidName, NAME).with_message(what));
        }
        let escaped = |byte: u8| match byte {
            b'a'..=b'z' | b'0'..=b'9' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        };
        Ok(self.path.join(name.as_str().bytes().map(escaped).collect::<String>() + ".json"))
    }

    async fn order(&self, _: &PathBuf) -> Result<()> {
        self.check_open()
    }

    async fn ask(&self, (): &(), file: &PathBuf, ask: &engine::Ask<'_, Unnotified>) -> Result<Answer> {
        let mut ask = record_of(ask);
        let asked = move |record: &mut Record<Party>, now: &mut Moment| {
            ask.party.asked = now.time();
            record.ask(now, ask).0.at(now.time())
        };
        self.change(file, asked).await
    }

    async fn release(
        &self,
        (): &(),
        file: &PathBuf,
        owner: OwnerId,
        _: Release<'_, Unnotified>,
    ) -> Result<Changed> {
        self.change(file, move |record, now| changed(record.release(now, owner).0)).await
    }

    async fn extend(&self, leases: &[Extension<'_, PathBuf>], answered: impl Answered<Result<Changed>>) {
        for (at, &Extension { place, owner, ttl, shortens, hold, .. }) in leases.iter().enumerate() {
            let extend = move |record: &mut Record<_>, now: &mut Moment| {
                changed(match hold {
                    Hold::Downgrading => record.downgrade(now, owner, ttl).0,
                    _ => record.extend(now, owner, ttl, shortens).is_some(),
                })
            };
            answered(at, self.change(place, extend).await);
        }
    }

    async fn holds(&self, file: &PathBuf, owner: OwnerId) -> Result<bool> {
        self.look(file, |record, now| record.is_held_by(now, owner))
    }

    async fn raise(&self, file: &PathBuf, owner: OwnerId, floor: Token) -> Result<Changed> {
        self.change(file, move |record, now| changed(record.raise(now, owner, floor))).await
    }

    async fn hand_over(
        &self,
        (): &(),
        file: &PathBuf,
        from: OwnerId,
        to: &engine::Ask<'_, Unnotified>,
    ) -> Result<Changed<Token>> {
        let to = record_of(to);
        let handed_over = self.change(file, move |record, now| record.hand_over(now, from, to)).await?;
        Ok(handed_over.map_or(Changed::NotHeld, Changed::Done))
    }

    async fn inspect(&self, file: &PathBuf) -> Result<LockState> {
        self.look(file, |record, now| record.state(now))
    }

    async fn break_lock(&self, file: &PathBuf, only: Option<Token>) -> Result<Changed> {
        let is_one = move |token| only.is_none_or(|only| token == only);
        self.change(file, move |record, now| changed(record.break_lock(now, is_one).0)).await
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}

fn record_of(ask: &engine::Ask<'_, Unnotified>) -> record::Ask<Party> {
    let party =
        Party { info: OwnerInfo::clone(ask.info), since: SystemTime::now(), asked: Clock::boot().now() };
    let waits = ask.queue.as_ref().map(|_| Turn::Asks);
    record::Ask { owner: ask.owner, mode: ask.mode, ttl: ask.ttl, waits, party }
}

fn changed(is_changed: bool) -> Changed {
    if is_changed { Changed::Done(()) } else { Changed::NotHeld }
}
