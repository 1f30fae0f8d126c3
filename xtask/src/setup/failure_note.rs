//! Notes of what could not be installed.

use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::failure::Failure;

/// The note of why something optional is missing. On the same day nothing but `cargo xtask setup` tries again.
#[derive(Debug)]
pub(crate) struct FailureNote {
    file: PathBuf,
}

impl FailureNote {
    /// The note in this file, if there is one.
    pub(crate) const fn new(file: PathBuf) -> Self {
        Self { file }
    }

    /// The reason that was written today (in UTC).
    pub(crate) fn of_today(&self) -> Option<String> {
        let written = self.file.metadata().and_then(|data| data.modified()).ok()?;
        if day(written) != day(SystemTime::now()) {
            return None;
        }
        fs::read_to_string(&self.file).ok()
    }

    /// Writes the reason. Its first line is enough: the rest is advice for a terminal.
    pub(crate) fn write(&self, failure: &Failure) {
        let text = failure.to_string();
        let line = text.lines().next().unwrap_or_default();
        let folder = self.file.parent().map_or(Ok(()), fs::create_dir_all);
        // What is optional fails no run.
        if let Err(error) = folder.and_then(|()| fs::write(&self.file, line)) {
            eprintln!("    cannot write {}: {error}", self.file.display());
        }
    }

    /// Removes the note, so that the next run tries again.
    pub(crate) fn remove(&self) {
        // Mostly there is none.
        let _ = fs::remove_file(&self.file);
    }
}

fn day(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / (24 * 3600))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_failure_is_remembered_for_the_day() {
        let folder = std::env::temp_dir().join(format!("xtask-note-{}", std::process::id()));
        let note = FailureNote::new(folder.join("missing"));
        assert_eq!(note.of_today(), None);
        note.write(&Failure::new("`go build` failed\n\nMake sure that ..."));
        assert_eq!(note.of_today().as_deref(), Some("`go build` failed"));
        let yesterday = SystemTime::now() - Duration::from_secs(24 * 3600);
        fs::File::options().append(true).open(&note.file).unwrap().set_modified(yesterday).unwrap();
        assert_eq!(note.of_today(), None);
        note.write(&Failure::new("again"));
        note.remove();
        assert_eq!(note.of_today(), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
