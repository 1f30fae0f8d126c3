//! The tokens of a lock, and its holders.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use lock_core::{Error, ErrorKind, OwnerInfo, Result, Token};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::error::{BACKEND, failed};
use crate::file_name::Paths;
use crate::lock_file::{LockFile, Sharing};

/// How long another process may take for its step. Only one that is stopped within it takes so long.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);
/// The length of each of the two lines of the last token.
const LINE: usize = 64;
/// Where the line of the holders begins.
const HOLDERS: u64 = 2 * LINE as u64;

/// The ledger of one lock, locked: whoever has it is the only one that takes a step on this lock.
///
/// The file is text. Two lines have the last token and the one before it, each written twice; a line that a crash of the
/// host left half written does not have the same number twice, and the other line has every token that was granted by
/// then. The third line is the holders, as JSON. One that crashed stays there until the next change, and is not read.
///
/// # Drop
///
/// Dropping it unlocks it.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: LockFile,
    lines: [u64; 2],
    pub(crate) holders: Vec<Record>,
}

/// What the ledger says about a holder.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Record {
    pub(crate) token: u64,
    pub(crate) owner: OwnerInfo,
    pub(crate) shared: bool,
    /// Milliseconds since 1970.
    pub(crate) since: u64,
    /// Where the process id counts, if the system says it: containers have numbers of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pid_namespace: Option<u64>,
}

impl Ledger {
    /// Locks the ledger of this lock; makes it if it does not exist. It blocks the thread while another process takes a step.
    pub(crate) fn lock(paths: &Paths) -> Result<Self> {
        match Self::lock_by(|| paths.dir.open(&paths.ledger).map(Some))? {
            Some(ledger) => Ok(ledger),
            None => unreachable!("it was made"),
        }
    }

    /// Locks the ledger of this lock, if it exists.
    pub(crate) fn lock_existing(paths: &Paths) -> Result<Option<Self>> {
        Self::lock_by(|| LockFile::open_existing(&paths.ledger))
    }

    /// Locks the ledger of this lock, if it exists, for a user that may not write it.
    pub(crate) fn lock_to_read(paths: &Paths) -> Result<Option<Self>> {
        Self::lock_by(|| LockFile::open_to_read(&paths.ledger))
    }

    fn lock_by(open: impl Fn() -> Result<Option<LockFile>>) -> Result<Option<Self>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let Some(file) = open()? else { return Ok(None) };
            while !file.try_lock(Sharing::Alone)? {
                if Instant::now() >= deadline {
                    return Err(stuck(file.id().path()));
                }
                thread::sleep(PAUSE);
            }
            // Somebody may have deleted it meanwhile, and a third one made and locked another.
            if file.id().is_current()? {
                return Self::read(file).map(Some);
            }
        }
    }

    fn read(file: LockFile) -> Result<Self> {
        let mut text = Vec::new();
        read_all(file.file(), &mut text).map_err(|error| failed("read", file.id().path(), error))?;
        let line = |at: usize| text.get(at * LINE..(at + 1) * LINE).and_then(parse).unwrap_or_default();
        let holders = text.get(2 * LINE..).and_then(|line| serde_json::from_slice(line).ok());
        let mut holders: Vec<Record> = holders.unwrap_or_default();
        // Another program may have locked the file since.
        holders.retain(|record| !record.has_ended());
        Ok(Self { file, lines: [line(0), line(1)], holders })
    }

    /// The last token: 0 if there was none.
    pub(crate) fn last(&self) -> u64 {
        self.lines[0].max(self.lines[1])
    }

    /// A token that is larger than all before it, once it is on the disk.
    ///
    /// No smaller than the clock in microseconds: should the file be deleted, the clock is ahead of every token in it.
    pub(crate) fn next_token(&mut self) -> Result<Token> {
        let next = self.last().saturating_add(1).max(micros());
        if i64::try_from(next).is_err() {
            return Err(Error::new(ErrorKind::Exhausted, BACKEND)
                .with_message(format!("no token is larger than {}", self.last()))
                .with_hint("use another lock name, and let the resource forget the tokens of this one")
                .with_can_pass(false));
        }
        self.raise(next).map(|()| Token::new(next))
    }

    /// Makes all later tokens larger than this one.
    pub(crate) fn raise(&mut self, token: u64) -> Result<()> {
        if token <= self.last() {
            return Ok(());
        }
        // The line of the smaller one: the other one stays readable, whatever becomes of this write.
        let at = usize::from(self.lines[0] > self.lines[1]);
        let is_new = self.last() == 0;
        let line = format!("{:<width$}\n", format!("{token:020} {token:020}"), width = LINE - 1);
        let (file, path) = (self.file.file(), self.file.id().path());
        let written = file.write_all_at(line.as_bytes(), (at * LINE) as u64).and_then(|()| file.sync_data());
        written.map_err(|error| failed("write", path, error))?;
        if is_new {
            // The entry of a new file is on the disk only after this.
            let synced = path.parent().map_or(Ok(()), |dir| File::open(dir).and_then(|dir| dir.sync_all()));
            synced.map_err(|error| failed("write", path, error))?;
        }
        self.lines[at] = token;
        Ok(())
    }

    /// Notes the holders. For people: it need not outlive a crash of the host.
    pub(crate) fn set_holders(&mut self, holders: Vec<Record>) -> Result<()> {
        let (file, path) = (self.file.file(), self.file.id().path());
        let line = serde_json::to_vec(&holders).map_err(|error| failed("write", path, error.into()))?;
        let written = file.set_len(HOLDERS).and_then(|()| file.write_all_at(&line, HOLDERS));
        written.map_err(|error| failed("write", path, error))?;
        self.holders = holders;
        Ok(())
    }
}

impl Record {
    pub(crate) fn new(token: Token, owner: &OwnerInfo, sharing: Sharing) -> Self {
        let (owner, shared) = (owner.clone(), sharing == Sharing::Shared);
        Self { token: token.get(), owner, shared, since: micros() / 1_000, pid_namespace: pid_namespace() }
    }

    /// Whether its process is known to have ended. That of another host or container is not known.
    fn has_ended(&self) -> bool {
        let is_elsewhere = |own| self.pid_namespace.is_some_and(|namespace| namespace != own);
        if self.owner.host != OwnerInfo::this_process().host || pid_namespace().is_some_and(is_elsewhere) {
            return false;
        }
        let pid = i32::try_from(self.owner.pid).ok().and_then(Pid::from_raw);
        pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
    }
}

fn pid_namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|namespace| namespace.ino())
}

/// The number of a line that was written as a whole.
fn parse(line: &[u8]) -> Option<u64> {
    let (one, two) = str::from_utf8(line).ok()?.trim_end().split_once(' ')?;
    let number = Token::stored(one.parse().ok()?)?.get();
    (one == two).then_some(number)
}

fn read_all(file: &File, text: &mut Vec<u8>) -> std::io::Result<()> {
    let mut part = [0; 1024];
    loop {
        match file.read_at(&mut part, text.len() as u64)? {
            0 => return Ok(()),
            read => text.extend_from_slice(&part[..read]),
        }
    }
}

fn micros() -> u64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

fn stuck(path: &Path) -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .with_message(format!("another process has {} locked for {PATIENCE:?}", path.display()))
        .with_hint("a process is stopped within its step: find it in /proc/locks, and continue or end it")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lock_core::LockName;

    use super::*;
    use crate::FlockConfig;
    use crate::directory::Directory;

    fn paths(dir: &tempfile::TempDir) -> Paths {
        let dir = Directory::new(&FlockConfig::new(dir.path())).unwrap();
        Paths::new(&Arc::new(dir), &LockName::new("a").unwrap())
    }

    #[test]
    fn tokens_grow_through_reopened_damaged_and_deleted_files() {
        let dir = tempfile::tempdir().unwrap();
        let paths = &paths(&dir);
        let mut last = 0;
        let mut grow = |what: &str| {
            let token = Ledger::lock(paths).unwrap().next_token().unwrap().get();
            assert!(token > last, "{what}: {token} came after {last}");
            last = token;
            token
        };
        grow("a new file");
        // Far ahead of the clock, so that only the file can know it.
        let far = grow("an old file") + 1_000_000_000_000;
        for _ in 0..2 {
            Ledger::lock(paths).unwrap().raise(far).unwrap();
            grow("raised");
        }
        // A crash within the next write leaves half a line. As a number it would be beyond the last token.
        let lines = Ledger::lock(paths).unwrap().lines;
        let file = fs::OpenOptions::new().write(true).open(&paths.ledger).unwrap();
        let smaller = u64::from(lines[0] > lines[1]);
        file.write_all_at(b"09999999999", smaller * LINE as u64).unwrap();
        grow("half a line");
        fs::remove_file(&paths.ledger).unwrap();
        let mut new = Ledger::lock(paths).unwrap();
        assert!(new.next_token().unwrap().get() >= micros() - 60_000_000, "the clock goes on");
    }

    #[test]
    fn the_last_tokens_are_not_granted_twice() {
        let dir = tempfile::tempdir().unwrap();
        let paths = &paths(&dir);
        let mut ledger = Ledger::lock(paths).unwrap();
        ledger.raise(i64::MAX as u64 - 1).unwrap();
        assert_eq!(ledger.next_token().unwrap().get(), i64::MAX as u64);
        assert_eq!(ledger.next_token().unwrap_err().kind(), ErrorKind::Exhausted);
    }

    #[test]
    fn a_process_has_ended_if_this_host_and_container_no_longer_have_it() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let mut record = Record::new(Token::new(7), &OwnerInfo::this_process(), Sharing::Alone);
        assert!(!record.has_ended(), "this process");
        record.owner.pid = 1;
        assert!(!record.has_ended(), "a process of another user");
        child.wait().unwrap();
        record.owner.pid = child.id();
        assert!(record.has_ended());
        let namespace = record.pid_namespace.take();
        assert!(record.has_ended(), "as before there was a namespace");
        record.pid_namespace = namespace.map(|own| own + 1);
        assert!(namespace.is_none() || !record.has_ended(), "another container");
        record.pid_namespace = namespace;
        record.owner.host.push('x');
        assert!(!record.has_ended(), "another host");
        record.owner = OwnerInfo::this_process();
        for none in [0, u32::MAX] {
            record.owner.pid = none;
            assert!(record.has_ended(), "{none} is no process");
        }
    }

    #[test]
    fn holders_are_noted_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let paths = &paths(&dir);
        let long = OwnerInfo::this_process().with_label("x".repeat(5_000));
        let record = |owner: &OwnerInfo| Record::new(Token::new(7), owner, Sharing::Shared);
        for holders in [vec![record(&long), record(&OwnerInfo::this_process())], vec![record(&long)], vec![]]
        {
            Ledger::lock(paths).unwrap().set_holders(holders.clone()).unwrap();
            assert_eq!(Ledger::lock_existing(paths).unwrap().unwrap().holders, holders);
        }
    }
}
