//! What operators see and do: holders, names, breaking.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use lock_core::backend::MAX_LISTED;
use lock_core::{
    Error, ErrorKind, Holder, HolderInfo, LockMode, LockName, LockState, Result, Token, stored_time,
};

use crate::error::{BACKEND, failed};
use crate::file_name::{Paths, is_continued, lock_name};
use crate::ledger::{Ledger, Record};
use crate::lock_file::{LockFile, Sharing};

/// The state of a lock. The kernel says whether it is held, the ledger by whom.
pub(crate) fn inspect(paths: &Paths) -> Result<LockState> {
    let Some(ledger) = Ledger::lock_to_read(paths)? else {
        return Ok(held_by(&[], probe(paths)?));
    };
    let mut state = held_by(&ledger.holders, probe(paths)?);
    state.token = Token::stored(ledger.last()).filter(|token| token.get() > 0);
    Ok(state)
}

/// Removes the lock file, and returns whether the lock was held. Later holders lock another file. The tokens stay.
pub(crate) fn break_lock(paths: &Paths) -> Result<bool> {
    // Nobody acquires the lock between the look and the removal.
    let _ledger = Ledger::lock_to_read(paths)?;
    match probe(paths)? {
        Some(_) => remove(paths).map(|()| true),
        None => Ok(false),
    }
}

/// Removes the lock file if the holder with this token is the only one, and returns whether it was the holder.
pub(crate) fn break_lock_if(paths: &Paths, token: Token) -> Result<bool> {
    // Until the removal, this library grants the lock to nobody.
    let Some(ledger) = Ledger::lock_to_read(paths)? else { return Ok(false) };
    let state = held_by(&ledger.holders, probe(paths)?);
    if !state.holders.iter().any(|holder| holder.token == Some(token)) {
        return Ok(false);
    }
    if state.holders.len() > 1 {
        return Err(shared(state.holders.len()));
    }
    remove(paths).map(|()| true)
}

fn remove(paths: &Paths) -> Result<()> {
    fs::remove_file(&paths.lock).map_err(|error| failed("remove", &paths.lock, error))
}

fn shared(holders: usize) -> Error {
    Error::new(ErrorKind::Unsupported, BACKEND)
        .with_message(format!(
            "{holders} holders share the lock, and a broken file is broken for all of them"
        ))
        .with_hint("end the process of that holder: the kernel takes its share away at once")
}

/// The names of the locks whose files exist, up to one more than may be listed.
pub(crate) fn list(dir: &Path, prefix: &str) -> Result<Vec<LockName>> {
    let (mut names, mut dirs) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(next) = dirs.pop() {
        let entries = match fs::read_dir(&next) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed("list", &next, error)),
        };
        for entry in entries {
            let entry = entry.map_err(|error| failed("list", &next, error))?;
            let path = entry.path();
            if is_continued(&path) && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                dirs.push(path.clone());
            }
            let name = path.strip_prefix(dir).ok().and_then(lock_name);
            names.extend(name.filter(|name| name.as_str().starts_with(prefix)));
            if names.len() > MAX_LISTED {
                return Ok(names);
            }
        }
    }
    Ok(names)
}

/// How the lock is held, if it is. Whoever has the ledger locks the file for a moment without being in the way of anybody.
fn probe(paths: &Paths) -> Result<Option<Sharing>> {
    let Some(file) = LockFile::open_to_read(&paths.lock)? else { return Ok(None) };
    if file.try_lock(Sharing::Alone)? {
        return Ok(None);
    }
    Ok(Some(if file.try_lock(Sharing::Shared)? { Sharing::Shared } else { Sharing::Alone }))
}

fn held_by(records: &[Record], sharing: Option<Sharing>) -> LockState {
    let Some(sharing) = sharing else { return LockState::free() };
    let is_shared = sharing == Sharing::Shared;
    let known: Vec<_> = records.iter().filter(|record| record.shared == is_shared).map(info).collect();
    if !known.is_empty() {
        return LockState::held(known);
    }
    // Locked without this library.
    let holder = Holder::Unknown("a process that has the file locked".into());
    LockState::held([HolderInfo::new(holder, mode(is_shared))])
}

fn info(record: &Record) -> HolderInfo {
    let mut info = HolderInfo::new(Holder::Known(record.owner.clone()), mode(record.shared));
    info.token = Token::stored(record.token);
    info.since = stored_time(Duration::from_millis(record.since));
    info
}

fn mode(is_shared: bool) -> LockMode {
    if is_shared { LockMode::Shared } else { LockMode::Exclusive }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lock_core::OwnerInfo;
    use proptest::prelude::*;

    use super::*;
    use crate::directory::Directory;

    proptest! {
        #[test]
        fn whatever_a_file_says_can_be_shown(token: u64, since: u64, garbage: Vec<u8>) {
            let owner = OwnerInfo::this_process();
            let record = Record { token, since, shared: false, owner, pid_namespace: None };
            let token = info(&record).token.map_or(0, |token| token.get());
            prop_assert!(!info(&record).to_string().is_empty() && token <= i64::MAX as u64);
            let dir = tempfile::tempdir().unwrap();
            let config = crate::FlockConfig::new(dir.path());
            let paths = Paths::new(&Arc::new(Directory::new(&config).unwrap()), &LockName::new("a").unwrap());
            let line = format!("{:<63}\n", format!("{0} {0}", record.token));
            for text in [[line.as_bytes(), &garbage].concat(), garbage] {
                fs::write(&paths.ledger, text).unwrap();
                let ledger = Ledger::lock(&paths).unwrap();
                prop_assert!(ledger.last() <= i64::MAX as u64);
            }
        }
    }
}
