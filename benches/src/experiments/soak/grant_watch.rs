//! Follows the histories while they are written, to see which locks were granted since the end of a fault.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use lock_testkit::history::{Event, EventKind};

use crate::data::Outcome;

/// The last grant of every lock, from the files of a folder.
#[derive(Debug)]
pub(super) struct GrantWatch {
    folder: PathBuf,
    /// The position up to which each file was read, at the end of a line.
    read: HashMap<PathBuf, u64>,
    granted_ns: BTreeMap<String, u64>,
}

impl GrantWatch {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), read: HashMap::new(), granted_ns: BTreeMap::new() }
    }

    /// Reads what is new, and returns the locks without a grant since this time.
    pub(super) fn waiting_since(&mut self, at_ns: u64) -> Outcome<Vec<&str>> {
        for path in histories(&self.folder)? {
            let read = self.read.entry(path.clone()).or_default();
            let (mut file, mut bytes) = (File::open(path)?, Vec::new());
            file.seek(SeekFrom::Start(*read))?;
            file.read_to_end(&mut bytes)?;
            let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            *read += whole as u64;
            for line in bytes[..whole].split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
                let event: Event = serde_json::from_slice(line)?;
                if matches!(event.kind, EventKind::Acquired { .. }) {
                    let last = self.granted_ns.entry(event.lock).or_default();
                    *last = event.at_ns.max(*last);
                }
            }
        }
        let waiting = self.granted_ns.iter().filter(|(_, granted_ns)| **granted_ns < at_ns);
        Ok(waiting.map(|(lock, _)| lock.as_str()).collect())
    }
}

/// The history files of a folder.
pub(super) fn histories(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            paths.push(path);
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use lock_testkit::history::{Mode, Recorder};

    use super::*;

    #[test]
    fn locks_without_a_new_grant_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = GrantWatch::new(folder.path());
        assert_eq!(watch.waiting_since(5).unwrap(), Vec::<&str>::new());
        let path = folder.path().join("process-1.jsonl");
        let recorder = Recorder::create(&path, 1).unwrap().flush_every_event();
        let granted = EventKind::Acquired { token: None, valid_until_ns: None, mode: Mode::Exclusive };
        recorder.record_at(1, 0, "a", granted.clone());
        recorder.record_at(2, 0, "b", granted.clone());
        assert_eq!(watch.waiting_since(2).unwrap(), ["a"]);
        recorder.record_at(3, 0, "a", EventKind::AcquireCalled);
        assert_eq!(watch.waiting_since(2).unwrap(), ["a"]);
        recorder.record_at(4, 0, "a", granted);
        // An incomplete line is read once it is complete.
        let line = fs::read_to_string(&path).unwrap();
        let last = line.lines().last().unwrap().replace("\"a\"", "\"b\"").replace(":4", ":9");
        let (begin, rest) = last.split_at(20);
        fs::write(folder.path().join("process-2.jsonl"), begin).unwrap();
        assert_eq!(watch.waiting_since(4).unwrap(), ["b"]);
        fs::write(folder.path().join("process-2.jsonl"), format!("{begin}{rest}\n")).unwrap();
        assert_eq!(watch.waiting_since(4).unwrap(), Vec::<&str>::new());
    }
}
