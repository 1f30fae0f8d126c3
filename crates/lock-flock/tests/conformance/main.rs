//! The conformance suite on files, with mutexes, and with write locks in their place.
//!
//! The same program is the worker of the cross-process cases when it is called with `--worker URL`, and another process with
//! `--other DIR`.
#![cfg(unix)]

macro_rules! cases {
    ($($case:ident),* $(,)?) => { [$((stringify!($case), (|| Box::pin($case())) as $crate::processes::Case)),*] };
}

mod processes;
mod users;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use libtest_mimic::{Arguments, Trial};
use lock_core::backend::Support;
use lock_core::{Capabilities, ErrorKind, LeaseKind, Locks, Outcome};
use lock_flock::FlockConfig;
use lock_testkit::conformance::{self, CASES, Fault, Handle, Harness, OF_CONNECTIONS, Refusal, Still};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tempfile::TempDir;

const WORKER: &str = "--worker";
/// A trial sleeps for most of its time.
const THREADS: usize = 10;

/// Why cases are none for files.
const LEFT_OUT: &[(&[&str], &str)] = &[
    (OF_CONNECTIONS, "the kernel keeps the locks: there is no connection to cut, and no server to restart"),
    (&["one_of_the_readers_is_broken"], "a broken file is broken for all its holders"),
    (&["a_stopped_holder_knows_that_it_lost"], "a process that is stopped keeps its files locked"),
];

fn main() -> ExitCode {
    let words: Vec<_> = env::args().skip(1).collect();
    if let [worker, url] = &words[..]
        && worker == WORKER
    {
        return serve(url);
    }
    if let Some(ended) = processes::serve(&words) {
        return ended;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let mut trials = Vec::new();
    for handle in [Handle::Mutex, Handle::Write] {
        let harness: Arc<dyn Harness> = Arc::new(FlockHarness::new(handle));
        trials.extend(conformance::trials(&harness).into_iter().map(|trial| {
            Trial::test(trial.name().to_owned(), move || {
                let in_thread = thread::spawn(move || {
                    obey_permissions();
                    trial.run();
                });
                in_thread.join().unwrap_or_else(|panic| resume_unwind(panic));
                Ok(())
            })
        }));
        for (case, why) in conformance::left_out(&*harness) {
            eprintln!("left out: {}::{}: {why}", harness.name(), case.name);
        }
    }
    trials.extend(processes::trials("processes", &processes::CASES));
    trials.extend(processes::trials("users", &users::CASES));
    trials.push(Trial::test("every_case_that_is_left_out_exists", || {
        let cases: BTreeSet<_> = CASES.iter().map(|case| case.name).collect();
        assert!(LEFT_OUT.iter().flat_map(|(names, _)| *names).all(|name| cases.contains(name)));
        Ok(())
    }));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Takes from this thread, and from those that it starts, the right of root to write what is read-only.
fn obey_permissions() {
    let mut rights = capabilities(None).expect("the rights of a thread can be read");
    rights.effective.remove(CapabilitySet::DAC_OVERRIDE);
    set_capabilities(None, rights).expect("a right can be given up");
}

fn serve(url: &str) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let connecting = async { FlockConfig::from_url(url)?.connect().await };
    let served = runtime.expect("the system has threads to spare").block_on(conformance::serve(connecting));
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A directory, which is deleted with the last harness of it.
struct FlockHarness {
    name: &'static str,
    handle: Handle,
    dir: Arc<TempDir>,
}

impl FlockHarness {
    fn new(handle: Handle) -> Self {
        let name = if handle == Handle::Write { "flock::write" } else { "flock::mutex" };
        Self { name, handle, dir: Arc::new(tempfile::tempdir().expect("a directory can be made")) }
    }

    fn url(&self, lease: Duration) -> String {
        format!("flock://{}?session_timeout={}ms", self.dir.path().display(), lease.as_millis())
    }

    /// The files whose names contain this.
    fn files(&self, part: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.dir.path()).expect("the directory exists");
        let paths = entries.map(|entry| entry.expect("the directory can be read").path());
        paths.filter(|path| path.to_string_lossy().contains(part)).collect()
    }
}

#[async_trait]
impl Harness for FlockHarness {
    fn name(&self) -> &str {
        self.name
    }

    fn handle(&self) -> Handle {
        self.handle
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("flock", LeaseKind::session(Duration::from_secs(10)));
        (capabilities.shared, capabilities.listing) = (Support::Yes, Support::Yes);
        capabilities.breaks_one = Support::Yes;
        capabilities.names_sharers = true;
        capabilities.permits = Support::No("flock(2) knows one holder or any number of readers");
        capabilities.revocation = Support::No("a file cannot notify its holders");
        capabilities
    }

    fn leaves_out(&self, case: &str) -> Option<&'static str> {
        LEFT_OUT.iter().find(|(names, _)| names.contains(&case)).map(|(_, why)| *why)
    }

    fn short_lease(&self) -> Duration {
        Duration::from_secs(2)
    }

    async fn connect(&self, lease: Duration) -> lock_core::Result<Locks> {
        FlockConfig::from_url(&self.url(lease))?.connect().await
    }

    async fn worker(&self, lease: Duration) -> Command {
        let mut command = Command::new(env::current_exe().expect("the path of this program is known"));
        command.args([WORKER, &self.url(lease)]);
        command
    }

    /// What the kernel has locked: of holders and of waiters.
    async fn leftovers(&self, part: &str) -> Vec<String> {
        let locked = locked_files();
        let is_locked = |path: &Path| fs::metadata(path).is_ok_and(|file| locked.contains(&file.ino()));
        let files = self.files(part).into_iter().filter(|path| is_locked(path));
        // The ledger is locked for a moment by whoever looks.
        let files = files.filter(|path| path.extension().is_none_or(|extension| extension != "token"));
        files.map(|path| path.display().to_string()).collect()
    }

    async fn delete_behind_the_back(&self, name: &str) {
        let files = self.files(name);
        assert!(!files.is_empty(), "{name} is not held");
        files.iter().for_each(|file| fs::remove_file(file).expect("the file can be deleted"));
    }

    async fn link(&self) -> Box<dyn Harness> {
        unreachable!("the cases with connections are left out")
    }

    async fn private(&self) -> Box<dyn Harness> {
        Box::new(Self::new(self.handle))
    }

    async fn fault(&self, fault: Fault) {
        unreachable!("the cases with {fault:?} are left out")
    }

    async fn restart(&self) {
        unreachable!("the cases with a restart are left out")
    }

    fn refusal(&self) -> Result<Refusal, &'static str> {
        // Who waits has to write the ledger.
        let (kind, advice) = (ErrorKind::Denied, "give this user the right");
        Ok(Refusal { kind, advice, outcome: Outcome::NotApplied, still: Still::Renews })
    }

    async fn refuse_writes(&self, refuses: bool) {
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the file is ours");
        };
        let [of_files, of_directory] = if refuses { [0o400, 0o500] } else { [0o600, 0o700] };
        set(self.dir.path(), of_directory);
        self.files("").iter().for_each(|file| set(file, of_files));
    }
}

/// The numbers of the files that are locked by `flock`, as the kernel lists them: without locking anything.
fn locked_files() -> BTreeSet<u64> {
    let locks = fs::read_to_string("/proc/locks").expect("the tests run on Linux");
    let flocks = locks.lines().filter(|line| line.contains(" FLOCK ") && !line.contains("->"));
    flocks.filter_map(|line| line.split_whitespace().nth(5)?.rsplit(':').next()?.parse().ok()).collect()
}
