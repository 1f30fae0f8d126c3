//! The directory of the locks, and how files are made in it.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use lock_core::{Error, ErrorKind, OwnerId, Result};
use nix::unistd::Group;
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::FlockConfig;
use crate::error::{BACKEND, failed};
use crate::lock_file::{LockFile, Sharing};

/// The permissions of files, unless the configuration says others: whoever may read a file can lock it.
pub(crate) const OWN_USER: u32 = 0o600;
/// The right of all users to write a file, or to make files in a directory.
const OTHERS_WRITE: u32 = 0o002;
/// Files in a directory with this bit have its group.
const SET_GROUP: u32 = 0o2000;

/// What to do about a directory where all users may make files.
pub(crate) const DIR_OF_ITS_OWN: &str =
    "use a directory for the locks alone, or take that right away (chmod o-w DIRECTORY)";

/// The directory of the locks, and who may use what is made in it.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    mode: u32,
    group: Option<u32>,
}

impl Directory {
    /// The directory of this configuration. It need not exist.
    pub(crate) fn new(config: &FlockConfig) -> Result<Self> {
        let group = config.group.as_deref().map(group_id).transpose()?;
        let path = config.dir.clone();
        match fs::metadata(&path) {
            Ok(found) if !found.is_dir() => {
                Err(failed("use", &path, io::Error::from(io::ErrorKind::NotADirectory)))
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("use", &path, error)),
            _ => Ok(Self { path, mode: config.mode, group }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) const fn mode(&self) -> u32 {
        self.mode
    }

    /// Whether users may make files there who are not meant to share the locks.
    pub(crate) fn is_open_to_all(&self) -> bool {
        let is_open = |dir: Metadata| dir.mode() & OTHERS_WRITE & !self.mode != 0;
        fs::metadata(&self.path).is_ok_and(is_open)
    }

    /// Refuses a file that any user may have put there: who made it can lock it, and in a directory such as `/tmp`, remove it.
    pub(crate) fn check_maker(&self, file: &LockFile) -> Result<()> {
        if !self.is_open_to_all() {
            return Ok(());
        }
        let path = file.id().path();
        let made_by = |found: io::Result<Metadata>| match found {
            Ok(found) => Ok(found.uid()),
            Err(error) => Err(failed("look at", path, error)),
        };
        let trusted = [geteuid().as_raw(), made_by(fs::metadata(&self.path))?];
        let dirs = path.ancestors().skip(1).take_while(|dir| *dir != self.path);
        for found in dirs.map(fs::symlink_metadata).chain([file.file().metadata()]) {
            if !trusted.contains(&made_by(found)?) {
                return Err(planted(path, &self.path));
            }
        }
        Ok(())
    }

    /// Opens the file at this path, and makes it if it does not exist. No program that this process starts inherits it.
    pub(crate) fn open(&self, path: &Path) -> Result<LockFile> {
        loop {
            // First without making it: the kernel may refuse that for a file of another user (`fs.protected_regular`).
            if let Some(file) = LockFile::open_existing(path)? {
                return self.check_maker(&file).map(|()| file);
            }
            self.make_file(path)?;
        }
    }

    /// Makes a file of a lock, unless it exists, with the directories that it needs.
    fn make_file(&self, path: &Path) -> Result<()> {
        if let Some(dir) = path.parent().filter(|dir| !dir.is_dir()) {
            self.make_dir(dir)?;
        }
        self.publish_file(path, hard_link).map_err(|error| failed("make", path, error))
    }

    /// Finds out whether locks can be acquired here: makes a file, locks it, and removes it.
    pub(crate) fn try_out(&self) -> Result<()> {
        let file = draft(&self.path.join("doctor"));
        let tried = self.publish_file(&file, hard_link).map_err(|error| failed("make", &file, error));
        let tried = tried.and_then(|()| self.open(&file)?.try_lock(Sharing::Alone));
        let _ = fs::remove_file(&file);
        tried.map(drop)
    }

    /// The file gets its name last: nobody finds it with other permissions, whenever this process ends. Where the file system
    /// cannot do that, it has its name from the beginning, and is for this user alone at first.
    fn publish_file(&self, path: &Path, link: Naming) -> io::Result<()> {
        let draft = draft(path);
        let made = self.new_file(&draft).and_then(|()| match link(&draft, path) {
            Err(error) if is_unsupported(&error) => self.new_file(path),
            linked => linked,
        });
        let _ = fs::remove_file(&draft);
        made.or_else(|error| if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })
    }

    fn new_file(&self, path: &Path) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).mode(OWN_USER).open(path)?;
        self.permit(&file, self.mode)
    }

    fn make_dir(&self, path: &Path) -> Result<()> {
        let failed = |error| failed("make", path, error);
        let Some(above) = path.parent() else { return Ok(()) };
        if path == self.path {
            tracing::info!(directory = %path.display(), "making the directory of the locks");
            fs::create_dir_all(above).map_err(failed)?;
        } else if !above.is_dir() {
            self.make_dir(above)?;
        }
        self.publish_dir(path, rename_new).map_err(failed)
    }

    /// As a file. It replaces nothing: an administrator may have made an empty directory meanwhile.
    fn publish_dir(&self, path: &Path, rename: Naming) -> io::Result<()> {
        let draft = draft(path);
        let made = self.new_dir(&draft).and_then(|()| match rename(&draft, path) {
            Err(error) if is_unsupported(&error) => self.new_dir(path),
            renamed => renamed,
        });
        // Nothing, once it has been renamed.
        let _ = fs::remove_dir(&draft);
        // Somebody else has made it.
        made.or_else(|error| if path.is_dir() { Ok(()) } else { Err(error) })
    }

    fn new_dir(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(path)?;
        let dir = File::open(path)?;
        let inherited = dir.metadata()?.mode() & SET_GROUP;
        self.permit(&dir, searchable(self.mode) | inherited)
    }

    /// Sets the group, then the permissions, of which a change of the group could remove some. The umask does not count.
    fn permit(&self, file: &File, mode: u32) -> io::Result<()> {
        if self.group.is_some() {
            fchown(file, None, self.group)?;
        }
        file.set_permissions(Permissions::from_mode(mode))
    }
}

/// Gives what is at the first path the second one, unless something else has it.
type Naming = fn(&Path, &Path) -> io::Result<()>;

fn hard_link(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to)
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn rename_new(_: &Path, _: &Path) -> io::Result<()> {
    Err(Errno::OPNOTSUPP.into())
}

/// Whether the file system cannot give a second name, or not without replacing what has it.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL))
}

/// The permissions of a directory whose files have these.
pub(crate) const fn searchable(mode: u32) -> u32 {
    mode | (mode & 0o444) >> 2
}

/// A name beside this one, by which nobody looks for a lock.
fn draft(path: &Path) -> PathBuf {
    path.with_file_name(format!(".{}.new", OwnerId::random()))
}

fn planted(path: &Path, dir: &Path) -> Error {
    Error::new(ErrorKind::Denied, BACKEND)
        .with_message(format!(
            "another user may have put {} there: all users may make files in {}",
            path.display(),
            dir.display()
        ))
        .with_hint(format!("{DIR_OF_ITS_OWN}, then remove the file"))
}

fn group_id(group: &str) -> Result<u32> {
    if let Ok(id) = group.parse() {
        return Ok(id);
    }
    let found = Group::from_name(group).ok().flatten();
    found.map(|group| group.gid.as_raw()).ok_or_else(|| {
        Error::new(ErrorKind::InvalidConfig, BACKEND)
            .with_message(format!("this host knows no group {group:?}"))
            .with_hint("name one that `getent group` lists, or its number")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODE: u32 = 0o640;

    fn directory(folder: &tempfile::TempDir) -> Directory {
        Directory::new(&FlockConfig::new(folder.path()).mode(MODE)).unwrap()
    }

    fn permissions(path: &Path) -> String {
        format!("{:o}", fs::metadata(path).unwrap().mode() & 0o7777)
    }

    fn drafts(folder: &tempfile::TempDir) -> usize {
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with('.')).count()
    }

    /// As with vfat, and some file systems in user space.
    #[test]
    fn files_are_made_where_there_are_no_hard_links() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, path) = (directory(&folder), folder.path().join("a.lock"));
        let refusals: [Naming; 3] = [
            |_, _| Err(Errno::PERM.into()),
            |_, _| Err(Errno::OPNOTSUPP.into()),
            |_, _| Err(Errno::NOSYS.into()),
        ];
        for refuse in refusals {
            dir.publish_file(&path, refuse).unwrap();
            assert_eq!(permissions(&path), "640");
            fs::write(&path, "kept").unwrap();
            dir.publish_file(&path, refuse).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"kept");
            fs::remove_file(&path).unwrap();
        }
        let error = dir.publish_file(&path, |_, _| Err(Errno::IO.into())).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::IO));
        assert!(!path.exists() && drafts(&folder) == 0);
    }

    #[test]
    fn a_directory_that_somebody_made_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, path) = (directory(&folder), folder.path().join("locks"));
        let namings: [Naming; 2] = [rename_new, |_, _| Err(Errno::INVAL.into())];
        for rename in namings {
            dir.publish_dir(&path, rename).unwrap();
            assert_eq!(permissions(&path), "750");
            fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
            dir.publish_dir(&path, rename).unwrap();
            assert_eq!(permissions(&path), "700", "it is not replaced");
            fs::remove_dir(&path).unwrap();
        }
        assert_eq!(drafts(&folder), 0);
    }
}
