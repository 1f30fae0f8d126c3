//! Other users: what `polylock` may not kill, and a user who has no process left.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::common::{POLYLOCK, Run, Stage};
use lock_testkit::{RedisServer, ZooKeeper};
use rustix::process::geteuid;
use tempfile::TempDir;
use tokio::time::sleep;

fn is_root() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        eprintln!("left out: only root can be another user");
    }
    is_root
}

impl Stage {
    /// `polylock` as nobody, for whom root may have set programs aside.
    fn as_nobody(&self, options: &str, command: &[&str]) -> Command {
        let mut run = self.as_user(65_534, &[]);
        run.args(options.split_whitespace()).args(["job", "--"]).args(command);
        run
    }

    /// `polylock run` as this user, by this program, without its own arguments.
    fn as_user(&self, user: u32, by: &[&str]) -> Command {
        let polylock = self.file("polylock");
        if !polylock.exists() {
            fs::set_permissions(self.folder(), Permissions::from_mode(0o755)).unwrap();
            fs::copy(POLYLOCK, &polylock).unwrap();
        }
        let (mut run, user) = (Command::new("setpriv"), user.to_string());
        run.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).args(by).arg(polylock);
        run.arg("run").env("POLYLOCK_URL", &self.url);
        run
    }

    /// A program that becomes root altogether, as sudo does.
    fn sudo(&self) -> String {
        let sudo = self.file("sudo");
        fs::copy("/usr/bin/setpriv", &sudo).unwrap();
        fs::set_permissions(&sudo, Permissions::from_mode(0o4755)).unwrap();
        sudo.to_str().unwrap().to_owned()
    }
}

/// A folder in which all users may make files.
fn shared_folder() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let locks = folder.path().join("locks");
    fs::create_dir(&locks).unwrap();
    fs::set_permissions(&locks, Permissions::from_mode(0o777)).unwrap();
    (folder, locks)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_stopped_is_refused_or_reported() {
    if !is_root() {
        return;
    }
    let (stage, _redis) = Stage::on_redis().await;
    let (sudo, file) = (stage.sudo(), stage.file("file"));
    let job = [&*sudo, "--reuid", "0", "--clear-groups", "sleep", "8"];
    Run::of(stage.as_nobody("", &job)).await.is(70, &["set-user-ID", "--on-lost warn"]);
    Run::of(stage.as_nobody("--on-lost warn", &job[..5])).await.is(1, &[]);

    let script = format!("{} & echo running; wait", job.join(" "));
    let holder = stage.begin(&stage.as_nobody("--ttl 1s --grace 100ms", &["sh", "-c", &script]));
    holder.prints("running").await;
    // Time: it becomes root first.
    sleep(Duration::from_millis(300)).await;
    stage.breaks().await;
    let text = holder.ends_as(70, &["gets SIGTERM", "processes of another user"]).await;
    assert!(!text.contains("watchdog"), "{text}");

    // A lock that is valid is kept for as long as they run.
    fs::write(&file, "").unwrap();
    let job = format!("exec 9<{}; flock -s 9; {sudo} --reuid 0 sleep 5 & echo running; wait", file.display());
    let holder = stage.begin(&stage.as_nobody("--max-run 2s --grace 100ms", &["sh", "-c", &job]));
    holder.prints("running").await;
    let succeeds = ["flock", "-n", file.to_str().unwrap(), "echo", "succeeded"];
    stage.begin(&stage.as_nobody("", &succeeds)).takes_over().await;
    holder.ends_as(124, &["is kept until they end"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_stays_locked_until_the_last_process_of_a_killed_polylock_is_gone() {
    if !is_root() {
        return;
    }
    let (_folder, locks) = shared_folder();
    let stage = Stage::at(&format!("flock://{}", locks.display())).await;
    let (sudo, file) = (stage.sudo(), stage.file("file"));
    fs::write(&file, "").unwrap();
    let job = format!("exec 9<{}; flock -s 9; {sudo} --reuid 0 sleep 8 & echo running; wait", file.display());
    let holder = stage.begin(&stage.as_nobody("", &["sh", "-c", &job]));
    holder.prints("running").await;
    let succeeds = ["flock", "-n", file.to_str().unwrap(), "echo", "succeeded"];
    let next = stage.begin(&stage.as_nobody("", &succeeds));
    next.prints("waiting for the lock").await;
    holder.process.kill();
    next.takes_over().await;
}

/// A user may have so many processes and threads: `polylock` lacks one for itself, for its watchdog or for the command.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_lacks_a_process_or_a_thread_ends_with_an_error() {
    if !is_root() {
        return;
    }
    let (redis, zk) = (RedisServer::start().await.unwrap(), ZooKeeper::start().await.unwrap());
    let (_folder, locks) = shared_folder();
    // Nobody else has it.
    let user = 2_000_000 + std::process::id();
    for url in [redis.url(), zk.url(), format!("flock://{}?mode=0666", locks.display())] {
        let stage = Stage::at(&url).await;
        let mut most = 1..=20;
        loop {
            let most = most.next().unwrap_or_else(|| panic!("{url}: it never runs"));
            let mut command = stage.as_user(user, &["prlimit", &format!("--nproc={most}:{most}")]);
            command.args(["-n", "job", "--", "true"]);
            let (code, text) = stage.begin(&command).ends().await;
            if code == 0 {
                break;
            }
            // The driver of ZooKeeper panics on a thread of its own.
            let says_so = text.contains("ulimit -u") || url.starts_with("zk:") && text.contains("spawn");
            assert!([69, 70].contains(&code) && says_so, "{url}, {most}: {code}: {text}");
            assert!(!stage.is_held().await);
        }
    }
}
