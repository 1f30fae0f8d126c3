//! A real PostgreSQL server: a store of locks, and a resource that checks fencing tokens.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getuid, kill_process};

use crate::error::{Error, Result};
use crate::port::Port;
use crate::process::{Child, Output, locate, off_thread, tail};
use crate::server_process::{ServerProcess, StartError, on_free_ports};

/// A `postgres` on its own Unix socket and loopback port, with an empty database in its own temporary directory.
///
/// It is shut down when this value is dropped and when the test process dies. PostgreSQL refuses to run as root: for root the
/// server runs as the user `nobody`.
#[derive(Debug)]
pub struct PostgresServer {
    inner: Arc<Inner>,
}

/// The options of a [`PostgresServer`].
#[derive(Clone, Debug, Default)]
#[must_use = "options start nothing by themselves"]
pub struct PostgresOptions {
    settings: Vec<(String, String)>,
}

impl PostgresServer {
    /// Starts a server that does not sync to disk.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] without PostgreSQL; otherwise the error carries the end of the server's log.
    pub async fn start() -> Result<Self> {
        Self::builder().start().await
    }

    /// Options other than the default.
    pub fn builder() -> PostgresOptions {
        PostgresOptions::default()
    }

    /// The connection string, for drivers that understand those of libpq.
    pub fn connect_string(&self) -> String {
        let (dir, port) = (self.inner.process.dir().display(), self.inner.port.number());
        format!("host={dir} port={port} user={USER} dbname={DATABASE}")
    }

    /// The port on 127.0.0.1, where no password is asked for.
    pub fn port(&self) -> u16 {
        self.inner.port.number()
    }

    /// The address.
    pub fn addr(&self) -> SocketAddr {
        self.inner.port.addr()
    }

    /// The directory of the Unix socket.
    pub fn socket_dir(&self) -> &Path {
        self.inner.process.dir()
    }

    /// `postgres://postgres@127.0.0.1:port/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://{USER}@{}/{DATABASE}", self.addr())
    }

    /// The id of the server's process.
    pub fn pid(&self) -> u32 {
        self.inner.process.pid()
    }

    /// Kills the server by SIGKILL, with the processes of its sessions. Its port stays reserved.
    pub fn kill(&self) {
        // It starts no others meanwhile.
        self.inner.process.stop();
        let sessions = self.inner.family();
        self.inner.process.kill();
        signal(&sessions, Signal::KILL);
        // They keep the shared memory, without which no other server starts.
        let deadline = Instant::now() + QUIT_DEADLINE;
        while sessions.iter().any(|&pid| runs(pid)) && Instant::now() < deadline {
            thread::sleep(POLL);
        }
    }

    /// Restarts a killed server on the same port, with its data.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn start_again(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        off_thread(move || inner.launch().map_err(|error| error.into_error(&inner.process))).await
    }

    /// Stops the server by SIGSTOP, with the processes of its sessions: connections stay open, nothing is answered.
    pub fn stop(&self) {
        self.inner.process.stop();
        signal(&self.inner.family(), Signal::STOP);
    }

    /// Continues a stopped server by SIGCONT.
    pub fn cont(&self) {
        signal(&self.inner.family(), Signal::CONT);
        self.inner.process.cont();
    }
}

impl PostgresOptions {
    /// Sets an option of `postgresql.conf`.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts a server.
    ///
    /// # Errors
    ///
    /// As for [`PostgresServer::start`].
    pub async fn start(self) -> Result<PostgresServer> {
        off_thread(move || {
            on_free_ports("PostgreSQL", || {
                let port = Port::pick("PostgreSQL")?;
                let process = ServerProcess::new(format!("PostgreSQL on port {}", port.number()))?;
                let inner = Arc::new(Inner { process, port, settings: self.settings.clone() });
                inner.make()?;
                inner.launch()?;
                Ok(PostgresServer { inner })
            })
        })
        .await
    }
}

#[derive(Debug)]
struct Inner {
    // The process goes before the claim on its port.
    process: ServerProcess,
    port: Port,
    settings: Vec<(String, String)>,
}

impl Inner {
    /// Makes an empty database.
    fn make(&self) -> Result<()> {
        give_away(self.process.dir())?;
        let mut init = as_a_user(&program("initdb")?)?;
        init.args(["--no-sync", "--no-instructions", "--auth", "trust", "--username", USER]);
        init.args(["--locale", "C", "--encoding", "UTF8", "--pgdata"]).arg(self.data());
        self.finish(init.current_dir(self.process.dir()))
    }

    fn launch(&self) -> Result<(), StartError> {
        let (folder, data) = (self.process.dir(), self.data());
        // Of a server that was killed: it would count as ready at once.
        let _ = fs::remove_file(data.join("postmaster.pid"));
        self.process.clear_log();
        let mut server = as_a_user(&program("postgres")?)?;
        server.arg("-D").arg(&data).arg("-k").arg(folder).current_dir(folder);
        server.args(["-p", &self.port.number().to_string()]);
        // No shared memory that would outlive a server that was killed.
        let fixed =
            [("listen_addresses", "127.0.0.1"), ("dynamic_shared_memory_type", "mmap"), ("fsync", "off")];
        for (name, value) in fixed {
            server.args(["-c", &format!("{name}={value}")]);
        }
        for (name, value) in &self.settings {
            server.args(["-c", &format!("{name}={value}")]);
        }
        self.process.launch(&server)?;
        // As `pg_ctl` does: a server that still recovers accepts connections, and refuses to serve them.
        let status = || fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
        self.process.wait_ready(|_| status().lines().any(|line| line.trim_end() == "ready"))
    }

    fn data(&self) -> PathBuf {
        self.process.dir().join("data")
    }

    /// The processes that the server has started.
    fn family(&self) -> Vec<u32> {
        if !self.process.is_running() {
            return Vec::new();
        }
        let pid = self.process.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        children.split_whitespace().filter_map(|child| child.parse().ok()).collect()
    }

    /// Runs a program to its end.
    fn finish(&self, command: &Command) -> Result<()> {
        let status = Child::spawn(command, &Output::File(self.process.log()))?.wait();
        if status.success() {
            return Ok(());
        }
        let (server, log) = (self.process.name().to_owned(), tail(&self.process.log()));
        Err(Error::Exited { server, status, log })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        signal(&self.family(), Signal::CONT);
        self.process.cont();
        // A killed server leaves a segment of System V shared memory behind.
        let _ = self.process.quit(QUIT_DEADLINE);
    }
}

fn signal(processes: &[u32], signal: Signal) {
    for pid in processes.iter().filter_map(|&pid| Pid::from_raw(pid as i32)) {
        // It may have ended.
        let _ = kill_process(pid, signal);
    }
}

/// Whether a process has not ended; one that nobody has waited for has.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

/// The command that runs a program as a user other than root, which ends in order when this process dies.
pub(crate) fn as_a_user(program: &Path) -> Result<Command> {
    let mut command = Command::new(locate("setpriv", "apt-get install util-linux")?);
    if getuid().is_root() {
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    }
    // A change of the user clears the signal that the test kit has set.
    command.args(["--pdeathsig", "QUIT", "--"]).arg(program);
    Ok(command)
}

/// Gives the folder to the user of the server.
pub(crate) fn give_away(folder: &Path) -> Result<()> {
    if !getuid().is_root() {
        return Ok(());
    }
    let nobody = NOBODY.parse().expect("the id is a number");
    chown(folder, Some(nobody), Some(nobody))
        .map_err(|error| Error::io(format!("give {} to the user nobody", folder.display()), error))
}

/// Finds a program in `PATH`, or where its package of Debian puts it.
pub(crate) fn program_in(name: &str, folder: &str, package: &str) -> Result<PathBuf> {
    let packaged = Path::new(folder).join(name);
    match locate(name, &format!("apt-get install {package}")) {
        Err(_) if packaged.is_file() => Ok(packaged),
        found => found,
    }
}

/// Finds a program of the server in `PATH`, or in the newest version of Debian's packages.
fn program(name: &str) -> Result<PathBuf> {
    let missing = match locate(name, "apt-get install postgresql") {
        Ok(path) => return Ok(path),
        Err(missing) => missing,
    };
    let versions = fs::read_dir(DEBIAN_VERSIONS).into_iter().flatten().flatten();
    versions
        .map(|version| version.path())
        .filter(|version| version.join("bin").join(name).is_file())
        .max_by_key(|version| version.file_name()?.to_str()?.parse::<u32>().ok())
        .map(|version| version.join("bin").join(name))
        .ok_or(missing)
}

const USER: &str = "postgres";
/// Every new server has it.
const DATABASE: &str = "postgres";
/// The id of the user and of its group. Their names differ among distributions.
const NOBODY: &str = "65534";
const DEBIAN_VERSIONS: &str = "/usr/lib/postgresql";
const POLL: Duration = Duration::from_millis(2);
const QUIT_DEADLINE: Duration = Duration::from_secs(5);
