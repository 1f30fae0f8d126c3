//! One attempt to acquire a lock, and the wait for the next.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{AcquireRequest, BootInstant, Clock, Error, Mode, OwnerInfo, Result, Token, Wait};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::delivery::deliver;
use crate::directory::Directory;
use crate::error::{BACKEND, no_thread};
use crate::file_name::Paths;
use crate::ledger::{Ledger, Record};
use crate::lock_file::{FileId, LockFile, Sharing};
use crate::wake::Wake;
use crate::watches::Watches;

/// How long a free lock is left to the one that has the turn. That takes it within milliseconds, unless it is paused.
const TURN_LASTS: Duration = Duration::from_secs(3);

/// A lock that was granted.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) file: LockFile,
    pub(crate) token: Token,
    /// When the file was last found where it should be, or a moment before.
    pub(crate) looked: BootInstant,
}

/// What an attempt came to.
enum Attempt {
    Granted(Grant),
    /// What the waiter keeps open until the next attempt.
    Busy(Contender),
}

/// A client that asks for a lock, with the files that it has open.
///
/// # Drop
///
/// Dropping it gives its turn up. Nothing else is left of it.
#[derive(Debug)]
struct Contender {
    paths: Paths,
    sharing: Sharing,
    owner: Arc<OwnerInfo>,
    lock: LockFile,
    turn: LockFile,
    /// Since when the lock has been free, at each attempt, though another one has the turn.
    free_since: Option<Instant>,
}

pub(crate) fn sharing(mode: Mode) -> Sharing {
    if mode == Mode::Shared { Sharing::Shared } else { Sharing::Alone }
}

/// Acquires the lock, waiting as long as the request says; `None` if it is busy.
///
/// # Cancel safety
///
/// All files belong to the attempt, or to its [task](deliver) between two attempts. An attempt runs to its end in a thread of
/// its own; when this future has been dropped by then, its result is dropped, which unlocks the files.
pub(crate) async fn acquire(
    request: &AcquireRequest,
    paths: Paths,
    steps: &TaskTracker,
    watches: &Watches,
    closed: &CancellationToken,
) -> Result<Option<Grant>> {
    let acquiring = || {
        let (steps, watches, closed) = (steps.clone(), watches.clone(), closed.clone());
        let waiting = Waiting { wait: request.wait, steps, watches, closed };
        waiting.acquire(paths.clone(), sharing(request.mode), Arc::clone(&request.owner))
    };
    deliver(steps, acquiring).await?
}

/// How an acquisition waits.
struct Waiting {
    wait: Wait,
    steps: TaskTracker,
    watches: Watches,
    closed: CancellationToken,
}

impl Waiting {
    async fn acquire(self, paths: Paths, sharing: Sharing, owner: Arc<OwnerInfo>) -> Result<Option<Grant>> {
        if self.closed.is_cancelled() {
            return Err(Error::closed(BACKEND));
        }
        let (waits, watched) = (!self.wait.is_expired(), paths.clone());
        let first = self.steps.spawn_blocking(move || Contender::open(paths, sharing, owner)?.attempt(waits));
        match first.await.map_err(no_thread)?? {
            Attempt::Granted(grant) => Ok(Some(grant)),
            Attempt::Busy(_) if !waits => Ok(None),
            Attempt::Busy(contender) => self.wait(contender, &watched).await.map_err(Error::while_waiting),
        }
    }

    async fn wait(&self, mut contender: Contender, watched: &Paths) -> Result<Option<Grant>> {
        let Self { wait, steps, watches, closed } = self;
        // Before the second attempt, so that no release falls between.
        let mut wake = Wake::new(watches, watched);
        loop {
            let (is_over, opened) = (wait.is_expired(), contender.opened());
            match steps.spawn_blocking(move || contender.attempt(!is_over)).await.map_err(no_thread)?? {
                Attempt::Granted(grant) => return Ok(Some(grant)),
                Attempt::Busy(_) if is_over => return Ok(None),
                Attempt::Busy(waiting) => contender = waiting,
            }
            if contender.opened() != opened {
                // What is watched is a file that was replaced.
                wake = Wake::new(watches, watched);
                continue;
            }
            tokio::select! {
                biased;
                () = closed.cancelled() => return Err(Error::closed(BACKEND)),
                () = wake.wait() => {}
                () = end_of(wait.deadline()) => {}
            }
        }
    }
}

async fn end_of(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

impl Contender {
    fn open(paths: Paths, sharing: Sharing, owner: Arc<OwnerInfo>) -> Result<Self> {
        let open = |path| paths.dir.open(path);
        let (lock, turn) = (open(&paths.lock)?, open(&paths.turn)?);
        Ok(Self { paths, sharing, owner, lock, turn, free_since: None })
    }

    fn opened(&self) -> [FileId; 2] {
        [self.lock.id().clone(), self.turn.id().clone()]
    }

    /// Takes the turn, then the lock, and gives the turn back. One that waits keeps its turn until it has the lock. The turn is for
    /// fairness alone: a free lock is granted past a waiter that has not taken it, as it is paused.
    fn attempt(mut self, waits: bool) -> Result<Attempt> {
        let dir = &*Arc::clone(&self.paths.dir);
        let mut ledger = Ledger::lock(&self.paths)?;
        let has_turn = lock_current(dir, &mut self.turn, self.sharing)?;
        if !has_turn && !self.is_left_free()? {
            return Ok(Attempt::Busy(self));
        }
        let looked = Clock::boot().now();
        // A reader tries to be alone first: if it can, no earlier holder is left.
        let is_alone = lock_current(dir, &mut self.lock, Sharing::Alone)?;
        let is_granted = match self.sharing {
            Sharing::Alone => is_alone,
            Sharing::Shared => lock_current(dir, &mut self.lock, Sharing::Shared)?,
        };
        if !is_granted {
            if !waits {
                self.turn.unlock();
            }
            return Ok(Attempt::Busy(self));
        }
        let token = ledger.next_token()?;
        let mut holders = if is_alone { Vec::new() } else { std::mem::take(&mut ledger.holders) };
        holders.push(Record::new(token, &self.owner, self.sharing));
        ledger.set_holders(holders)?;
        Ok(Attempt::Granted(Grant { file: self.lock, token, looked }))
    }

    /// Whether the lock has been free for some time, and nobody has taken it. It is locked then.
    fn is_left_free(&mut self) -> Result<bool> {
        if !lock_current(&self.paths.dir, &mut self.lock, Sharing::Alone)? {
            self.free_since = None;
            return Ok(false);
        }
        let is_left = self.free_since.get_or_insert_with(Instant::now).elapsed() >= TURN_LASTS;
        if !is_left {
            self.lock.unlock();
        }
        Ok(is_left)
    }
}

/// Locks the file that its path leads to, and returns whether it is locked. A lock on a file that was deleted or replaced
/// excludes nobody, so it is compared after it was locked.
fn lock_current(dir: &Directory, file: &mut LockFile, sharing: Sharing) -> Result<bool> {
    loop {
        let is_locked = file.try_lock(sharing)?;
        if file.id().is_current()? {
            return Ok(is_locked);
        }
        *file = dir.open(file.id().path())?;
    }
}
