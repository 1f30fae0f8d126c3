//! What endangers the locks of a directory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lock_core::{DoctorReport, ErrorKind, Finding, FindingLevel, Result};

use crate::directory::{DIR_OF_ITS_OWN, Directory};
use crate::file_name::Paths;
use crate::inspect;
use crate::lock_file::LockFile;

const OTHERS_READ: u32 = 0o004;
const OTHERS_SEARCH: u32 = 0o001;

/// Examines the directory and its files, as the user of this process.
pub(crate) fn doctor(dir: &Arc<Directory>) -> Result<DoctorReport> {
    let path = dir.path();
    if !path.exists() {
        let advice = "check the path: the first acquisition makes the directory";
        return Ok(DoctorReport::new(vec![warning(path, "it does not exist", advice)]));
    }
    let mut findings = Vec::new();
    if let Err(error) = dir.try_out() {
        let advice = error.hint().unwrap_or_default().to_owned();
        let what = format!("this user can acquire no new lock there: {}", error.message());
        findings.push(warning(path, &what, &advice));
    }
    if dir.is_open_to_all() {
        let what = "all users may make files there: this user refuses the files of others, and cannot acquire these locks";
        findings.push(warning(path, what, DIR_OF_ITS_OWN));
    }
    match files(dir) {
        Ok(files) => {
            findings.extend(readable(dir, &files));
            findings.extend(foreign(path, &files));
        }
        Err(error) => findings.push(warning(path, error.message(), error.hint().unwrap_or_default())),
    }
    Ok(DoctorReport::new(findings))
}

fn files(dir: &Arc<Directory>) -> Result<Vec<PathBuf>> {
    let names = inspect::list(dir.path(), "")?;
    let paths = names.iter().map(|name| Paths::new(dir, name));
    Ok(paths.flat_map(|paths| [paths.lock, paths.turn, paths.ledger]).collect())
}

/// Files that all users may read, unless the configuration says so.
fn readable(dir: &Directory, files: &[PathBuf]) -> Option<Finding> {
    let has = |path: &Path, right| fs::metadata(path).is_ok_and(|found| found.mode() & right != 0);
    // A name can be guessed: it need not be listed.
    if dir.mode() & OTHERS_READ != 0 || !has(dir.path(), OTHERS_SEARCH) {
        return None;
    }
    let is_readable = |path: &Path| has(path, OTHERS_READ);
    let what =
        "may be read by all users: whoever may read a file can lock it, and keep the lock from everybody";
    some_of(dir.path(), files, is_readable, what, "take that right away: chmod o= FILE")
}

/// Files that this user may not write.
fn foreign(dir: &Path, files: &[PathBuf]) -> Option<Finding> {
    let is_foreign =
        |path: &Path| LockFile::open_existing(path).is_err_and(|error| error.kind() == ErrorKind::Denied);
    let advice = "let the users have a group in common (mode=0660&group=NAME), and give the files to it: \
                  chgrp NAME FILE, chmod 0660 FILE";
    some_of(dir, files, is_foreign, "may not be written by this user, who cannot acquire these locks", advice)
}

fn some_of(
    dir: &Path,
    files: &[PathBuf],
    has_it: impl Fn(&Path) -> bool,
    what: &str,
    advice: &str,
) -> Option<Finding> {
    let mut found = files.iter().filter(|path| has_it(path));
    let first = found.next()?.strip_prefix(dir).ok()?.display();
    let others = match found.count() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    Some(warning(dir, &format!("{first}{others} {what}"), advice))
}

fn warning(dir: &Path, what: &str, advice: &str) -> Finding {
    Finding::new(FindingLevel::Warning, dir.display().to_string(), what, advice)
}
