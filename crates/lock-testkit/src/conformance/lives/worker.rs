//! The worker process of the cross-process cases.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lock_core::{Error, LockOptions, Locks, Released};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::conformance::Handle;
use crate::conformance::client::Client;
use crate::conformance::held::Held;
use crate::history::{Event, EventKind, Mode, Recorder, ReleaseOutcome, now_ns};

/// What a case sends to a worker.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Order {
    /// Acquire the lock, and hold it.
    Acquire { name: String, handle: Handle },
    /// Acquire the lock as a reader, and hold it.
    Read { name: String },
    /// Acquire the lock, and hold it at least so long.
    HoldAtLeast { name: String, hold: Duration },
    /// Report whether the guard is valid.
    Report,
    /// Release the lock.
    Release,
    /// Add one to the number in a file, under the lock, this many times.
    Count { name: String, handle: Handle, file: PathBuf, history: PathBuf, times: u32 },
    /// Enter and leave a room, whose visitors a file counts, with a permit, this many times.
    Visit { name: String, permits: u32, file: PathBuf, history: PathBuf, times: u32 },
}

/// What a worker answers.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// It is connected, and waits for orders.
    Ready,
    /// It holds the lock.
    Held { token: u64 },
    /// The state of its guard.
    Reported { valid: bool, state: String },
    /// Whether it held the lock until the release.
    Released { was_ours: bool },
    /// It has counted.
    Counted,
    /// It has been in the room, and out again.
    Visited,
    /// The order failed.
    Failed { error: String },
}

/// Executes the orders of the cases: reads them from standard input and answers on standard output, until its input ends.
///
/// To be called by the program that [`Harness::worker`](crate::conformance::Harness::worker) starts, in a multi-threaded tokio runtime.
///
/// # Errors
///
/// When standard output is closed.
pub async fn serve(connect: impl Future<Output = lock_core::Result<Locks>> + Send) -> io::Result<()> {
    let locks = match connect.await {
        Ok(locks) => locks,
        Err(error) => return answer(&failed(&error)),
    };
    answer(&Answer::Ready)?;
    let mut orders = orders();
    let mut held: Option<Held> = None;
    while let Some(order) = orders.recv().await {
        let done = match order {
            Order::Acquire { name, handle } => {
                let lock = Client::new(locks.clone(), handle).mutex(name);
                hold(&mut held, lock.acquire().await)
            }
            Order::Read { name } => hold(&mut held, locks.rw(name).read().await),
            Order::HoldAtLeast { name, hold: least } => {
                let lock = locks.mutex_with(name, LockOptions::new().hold_at_least(least));
                let acquired = async { lock?.acquire().await }.await;
                hold(&mut held, acquired)
            }
            Order::Report => report(held.as_ref()),
            Order::Release => release(held.take()).await,
            Order::Count { name, handle, file, history, times } => {
                let client = Client::new(locks.clone(), handle);
                match count(&client, &name, &file, &history, times).await {
                    Ok(()) => Answer::Counted,
                    Err(error) => Answer::Failed { error },
                }
            }
            Order::Visit { name, permits, file, history, times } => {
                match visit(&locks, &name, permits, &file, &history, times).await {
                    Ok(()) => Answer::Visited,
                    Err(error) => Answer::Failed { error },
                }
            }
        };
        answer(&done)?;
    }
    Ok(())
}

fn hold(held: &mut Option<Held>, acquired: lock_core::Result<impl Into<Held>>) -> Answer {
    match acquired {
        Ok(guard) => Answer::Held { token: held.insert(guard.into()).token().get() },
        Err(error) => failed(&error),
    }
}

fn report(held: Option<&Held>) -> Answer {
    // The first check after a long pause, as by a holder that is about to write.
    let valid = held.is_some_and(Held::is_valid);
    Answer::Reported { valid, state: held.map_or_else(String::new, |guard| format!("{:?}", guard.state())) }
}

async fn release(held: Option<Held>) -> Answer {
    let Some(guard) = held else { return Answer::Failed { error: "nothing is held".to_owned() } };
    match guard.release().await {
        Ok(released) => Answer::Released { was_ours: released == Released::Released },
        Err(error) => failed(&error),
    }
}

async fn count(locks: &Client, name: &str, file: &Path, history: &Path, times: u32) -> Result<(), String> {
    let process = std::process::id();
    let recorder = Recorder::create(history, process).map_err(|error| error.to_string())?;
    let mut resource = Resource::open(file).map_err(|error| error.to_string())?;
    let mutex = locks.mutex(name);
    let mode = if locks.handle() == Handle::Permit { Mode::Permit(1) } else { Mode::Exclusive };
    for _ in 0..times {
        recorder.record(CLIENT, name, EventKind::AcquireCalled);
        let guard = mutex.acquire().await.map_err(|error| error.to_string())?;
        let token = guard.token().get();
        recorder.record(CLIENT, name, acquired(&guard, mode));
        let (number, _) = resource.read().map_err(|error| error.to_string())?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        let (at_ns, accepted) = resource.write(number + 1, token).map_err(|error| error.to_string())?;
        let kind = EventKind::Write { token, accepted };
        recorder.write(&Event { process, client: CLIENT, lock: name.to_owned(), at_ns, kind });
        let_go(&recorder, name, guard).await;
    }
    recorder.flush().map_err(|error| error.to_string())
}

async fn visit(
    locks: &Locks,
    name: &str,
    permits: u32,
    room: &Path,
    history: &Path,
    times: u32,
) -> Result<(), String> {
    let recorder = Recorder::create(history, std::process::id()).map_err(|error| error.to_string())?;
    let mut room = Resource::open(room).map_err(|error| error.to_string())?;
    let semaphore = locks.semaphore(name, permits);
    for _ in 0..times {
        recorder.record(CLIENT, name, EventKind::AcquireCalled);
        let guard = semaphore.acquire().await.map(Held::from).map_err(|error| error.to_string())?;
        recorder.record(CLIENT, name, acquired(&guard, Mode::Permit(permits)));
        room.enter().map_err(|error| error.to_string())?;
        tokio::time::sleep(Duration::from_millis(2)).await;
        room.leave().map_err(|error| error.to_string())?;
        let_go(&recorder, name, guard).await;
    }
    recorder.flush().map_err(|error| error.to_string())
}

fn acquired(guard: &Held, mode: Mode) -> EventKind {
    let valid_until_ns = u64::try_from(guard.valid_until().since_boot().as_nanos()).ok();
    EventKind::Acquired { token: Some(guard.token().get()), valid_until_ns, mode }
}

async fn let_go(recorder: &Recorder, name: &str, guard: Held) {
    recorder.record(CLIENT, name, EventKind::ReleaseCalled);
    let outcome = match guard.release().await {
        Ok(Released::Released) => ReleaseOutcome::Released,
        Ok(_) => ReleaseOutcome::AlreadyLost,
        Err(_) => ReleaseOutcome::Unknown,
    };
    recorder.record(CLIENT, name, EventKind::Released { outcome });
}

/// A number in a file, with the token of the last write: it refuses smaller tokens.
///
/// Each of its steps is atomic, but not a read and the write that follows: that is what the lock is for.
#[derive(Debug)]
pub(crate) struct Resource {
    file: File,
}

impl Resource {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)? })
    }

    /// The number, and the last token.
    pub(crate) fn read(&mut self) -> io::Result<(u64, u64)> {
        self.atomically(Self::content)
    }

    /// The time of the decision, and whether the number was written.
    fn write(&mut self, number: u64, token: u64) -> io::Result<(u64, bool)> {
        self.atomically(|resource| {
            let (_, last) = resource.content()?;
            let accepted = token >= last;
            if accepted {
                resource.put(number, token)?;
            }
            Ok((now_ns(), accepted))
        })
    }

    /// Adds a visitor; the second number is the largest number of visitors so far.
    fn enter(&mut self) -> io::Result<()> {
        self.atomically(|room| {
            let (inside, most) = room.content()?;
            room.put(inside + 1, most.max(inside + 1))
        })
    }

    fn leave(&mut self) -> io::Result<()> {
        self.atomically(|room| {
            let (inside, most) = room.content()?;
            room.put(inside.saturating_sub(1), most)
        })
    }

    fn put(&mut self, number: u64, beside: u64) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        write!(self.file, "{number} {beside}")
    }

    fn content(&mut self) -> io::Result<(u64, u64)> {
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_string(&mut text)?;
        let mut numbers = text.split_whitespace().map(|number| number.parse().unwrap_or_default());
        Ok((numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)))
    }

    fn atomically<T>(&mut self, step: impl FnOnce(&mut Self) -> io::Result<T>) -> io::Result<T> {
        flock(&self.file, FlockOperation::LockExclusive)?;
        let done = step(self);
        flock(&self.file, FlockOperation::Unlock)?;
        done
    }
}

fn orders() -> mpsc::UnboundedReceiver<Order> {
    let (sender, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Some(order) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { return };
            if sender.send(order).is_err() {
                return;
            }
        }
    });
    orders
}

fn answer(answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()
}

fn failed(error: &Error) -> Answer {
    Answer::Failed { error: error.to_string() }
}

/// A worker does one thing after another.
const CLIENT: u64 = 0;
