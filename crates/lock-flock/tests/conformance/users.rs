//! Who may use the files, and who makes them.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use lock_core::{ErrorKind, FindingLevel, Locks};
use lock_flock::FlockConfig;
use lock_testkit::{give_back, take};
use tempfile::TempDir;

use crate::processes::{Case, Other};

pub(crate) const CASES: [(&str, Case); 9] = cases![
    files_are_for_one_user,
    a_mode_and_a_group_are_those_of_all_that_is_made,
    two_users_share_the_locks_of_a_group,
    who_may_read_can_inspect,
    other_users_cannot_lock_the_files,
    only_an_acquisition_makes_the_directory,
    the_doctor_names_what_endangers_the_locks,
    what_another_user_has_put_there_is_refused,
    a_private_folder_of_another_user_is_passed_over,
];

const NOBODY: &str = "65534";
/// Continues in directories.
const LONG: &str = "a long name, of which each part is a directory: ";

async fn files_are_for_one_user() {
    let folder = folder();
    let dir = folder.path().join("app/locks");
    let locks = FlockConfig::new(&dir).connect().await.unwrap();
    hold_all(&locks).await;
    must_be(&dir, 0o600, None);
}

async fn a_mode_and_a_group_are_those_of_all_that_is_made() {
    // That of the process, unless it can give another one.
    let folder = folder();
    let own = fs::metadata(folder.path()).unwrap().gid();
    let group = if is_root() { NOBODY.parse().unwrap() } else { own };
    let dir = folder.path().join("locks");
    let url = format!("flock://{}?mode=0660&group={group}", dir.display());
    hold_all(&connect(&url).await).await;
    must_be(&dir, 0o660, Some(group));

    // The group of a directory that an administrator has made.
    let made = folder.path().join("made");
    fs::create_dir(&made).unwrap();
    chown(&made, None, Some(group)).unwrap();
    fs::set_permissions(&made, Permissions::from_mode(0o2770)).unwrap();
    hold_all(&FlockConfig::new(&made).mode(0o660).connect().await.unwrap()).await;
    must_be(&made, 0o660, Some(group));

    let unknown = FlockConfig::new(&dir).group("no such group").connect().await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::InvalidConfig, "{unknown}");
    let by_name = FlockConfig::new(&dir).group("root").connect().await.unwrap();
    assert!(by_name.mutex("a").acquire().await.is_ok() || !is_root());
}

async fn two_users_share_the_locks_of_a_group() {
    let Some(folder) = folder_of_root() else { return };
    let url = format!("flock://{}?mode=0660&group={NOBODY}", folder.path().join("locks").display());
    let locks = connect(&url).await;
    let first = take(&locks, "a").await;
    let nobody = nobody(&folder, &url);
    let held = nobody.does("inspect").await;
    assert!(held.contains(&format!("pid {}", std::process::id())), "{held}");
    let token = first.token();
    give_back(first).await;
    let second = nobody.acquire().await;
    assert!(second > token && locks.mutex("a").try_acquire().await.unwrap().is_none());
    assert_eq!(nobody.does("release").await, "Released");
    let third = locks.mutex("a").try_acquire().await.unwrap().expect("it is free");
    assert!(third.token() > second);
    assert_eq!(nobody.does("doctor").await, "");
}

async fn who_may_read_can_inspect() {
    let Some(folder) = folder_of_root() else { return };
    let url = format!("flock://{}?mode=0644", folder.path().join("locks").display());
    let locks = connect(&url).await;
    let guard = take(&locks, "a").await;
    let nobody = nobody(&folder, &url);
    let held = nobody.does("inspect").await;
    assert!(held.contains(&format!("token {}", guard.token())), "{held}");
    let denied = nobody.does("acquire").await;
    assert!(denied.contains("Denied") && denied.contains("`mode`"), "{denied}");
    let findings = nobody.does("doctor").await;
    assert!(
        findings.contains("can acquire no new lock there") && findings.contains("group=NAME"),
        "{findings}"
    );
}

/// By `flock(1)`, which needs no more than the right to read.
async fn other_users_cannot_lock_the_files() {
    let Some(folder) = folder_of_root() else { return };
    let locks = FlockConfig::new(folder.path()).connect().await.unwrap();
    drop(take(&locks, "a").await);
    for file in ["a.lock", "a.turn", "a.token"] {
        let mut locking = as_nobody("flock");
        let locked = locking.args(["-n", "-s"]).arg(folder.path().join(file)).arg("true").status();
        assert!(!locked.expect("util-linux is installed").success(), "{file} can be locked by nobody");
    }
}

async fn only_an_acquisition_makes_the_directory() {
    let folder = folder();
    let dir = folder.path().join("mistyped");
    let locks = FlockConfig::new(&dir).connect().await.unwrap();
    assert!(!locks.inspect("a").await.unwrap().is_held());
    assert!(locks.list("").await.unwrap().is_empty());
    assert!(!locks.break_lock("a").await.unwrap());
    let report = locks.doctor().await.unwrap();
    assert!(report.warnings().count() == 1 && report.to_string().contains("does not exist"), "{report}");
    assert!(!dir.exists());
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_some());
    assert!(dir.is_dir());
    assert_eq!(locks.doctor().await.unwrap().findings, []);
    // A lock that was held when somebody removed all of it does not bring it back.
    let guard = take(&locks, "a").await;
    fs::remove_dir_all(&dir).unwrap();
    drop(guard);
    locks.close().await.unwrap();
    assert!(!dir.exists());
}

async fn the_doctor_names_what_endangers_the_locks() {
    // Nobody can make a file there, and root neither.
    let locks = FlockConfig::new("/proc/self/fdinfo").connect().await.unwrap();
    let report = locks.doctor().await.unwrap();
    assert!(report.findings.iter().all(|finding| finding.level == FindingLevel::Warning), "{report}");
    assert!(report.to_string().contains("can acquire no new lock there"), "{report}");

    let folder = folder();
    let locks = FlockConfig::new(folder.path()).connect().await.unwrap();
    drop(take(&locks, "a").await);
    // As before there was a mode.
    fs::set_permissions(folder.path().join("a.token"), Permissions::from_mode(0o644)).unwrap();
    let report = locks.doctor().await.unwrap();
    assert!(report.to_string().contains("a.token may be read by all users"), "{report}");
    // Who knows the name of a file need not list the directory.
    fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).unwrap();
    let report = locks.doctor().await.unwrap();
    assert!(report.to_string().contains("a.token may be read by all users"), "{report}");
    let meant = FlockConfig::new(folder.path()).mode(0o644).connect().await.unwrap();
    assert_eq!(meant.doctor().await.unwrap().findings, []);
}

/// As in `/tmp`, where only the user that made a file may remove it.
async fn what_another_user_has_put_there_is_refused() {
    let Some(folder) = folder_of_root() else { return };
    fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
    let locks = FlockConfig::new(folder.path()).connect().await.unwrap();
    let report = locks.doctor().await.unwrap();
    assert!(report.to_string().contains("all users may make files there"), "{report}");
    hold_all(&locks).await;

    let mine: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    for path in mine {
        chown(&path, Some(NOBODY.parse().unwrap()), None).unwrap();
    }
    for name in ["a".to_owned(), LONG.repeat(10)] {
        let error = locks.mutex(name).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("chmod o-w")), "{error}");
    }
    assert!(!locks.inspect("a").await.unwrap().is_held(), "an operator can look");
    // Where all users are meant to share the locks.
    let all = FlockConfig::new(folder.path()).mode(0o666).connect().await.unwrap();
    assert!(all.mutex("a").try_acquire().await.unwrap().is_some());
    assert_eq!(all.doctor().await.unwrap().findings, []);
    // Where nobody else can make files.
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_some());
}

async fn a_private_folder_of_another_user_is_passed_over() {
    let Some(folder) = folder_of_root() else { return };
    let dir = folder.path().join("locks");
    let url = format!("flock://{}?mode=0660&group={NOBODY}", dir.display());
    let locks = connect(&url).await;
    drop(take(&locks, "a").await);
    let private = Permissions::from_mode(0o700);
    fs::create_dir(dir.join("private")).unwrap();
    fs::set_permissions(dir.join("private"), private.clone()).unwrap();
    let nobody = nobody(&folder, &url);
    let listed = nobody.does("list").await;
    assert!(listed.contains("\"a\""), "{listed}");
    assert_eq!(nobody.does("doctor").await, "");
    // This may be the first part of names.
    fs::create_dir(dir.join("part+")).unwrap();
    fs::set_permissions(dir.join("part+"), private).unwrap();
    let findings = nobody.does("doctor").await;
    assert!(findings.contains("cannot list") && findings.contains("part+"), "{findings}");
}

async fn connect(url: &str) -> Locks {
    FlockConfig::from_url(url).unwrap().connect().await.unwrap()
}

/// Acquires locks with a short name and a long one.
async fn hold_all(locks: &Locks) {
    for name in ["a".to_owned(), LONG.repeat(10)] {
        give_back(take(locks, &name).await).await;
    }
}

/// Checks the directory and all that is in it.
fn must_be(dir: &Path, mode: u32, group: Option<u32>) {
    let mut files = 0;
    let mut paths = vec![dir.to_owned()];
    while let Some(path) = paths.pop() {
        let found = fs::metadata(&path).unwrap();
        let wanted = if found.is_dir() { mode | (mode & 0o444) >> 2 } else { mode };
        assert_eq!(format!("{:o}", found.mode() & 0o777), format!("{wanted:o}"), "{}", path.display());
        assert!(group.is_none_or(|group| found.gid() == group), "{} has {}", path.display(), found.gid());
        if found.is_dir() {
            paths.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            files += 1;
        }
    }
    assert_eq!(files, 6, "three for each lock");
}

/// A folder that all users may search.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    folder
}

fn folder_of_root() -> Option<TempDir> {
    if !is_root() {
        eprintln!("left out: only root can run a program as another user");
        return None;
    }
    Some(folder())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// This program, as another user.
fn nobody(folder: &TempDir, url: &str) -> Other {
    // It may not search the folders above the program.
    let program: PathBuf = folder.path().join("program");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    Other::of(as_nobody(&program), url)
}

fn as_nobody(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(program);
    command
}
