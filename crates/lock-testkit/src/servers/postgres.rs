//! A real PostgreSQL server: a store of locks, and a resource that checks fencing tokens.

mod pair;

use std::fs;
use std::net::SocketAddr;
#[cfg(feature = "tls")]
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getuid, kill_process};

pub use self::pair::PostgresPair;
use crate::error::{Error, Result};
#[cfg(feature = "tls")]
use crate::servers::certificates::Certificates;
use crate::servers::disk::{NOBODY, fill, mounted};
use crate::servers::port::Port;
use crate::servers::process::{Child, Output, locate, off_thread, spawn, tail};
use crate::servers::server_process::{ServerProcess, StartError, on_free_ports};

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
    /// In megabytes.
    disk: Option<u32>,
    hba: Option<String>,
    #[cfg(feature = "tls")]
    tls: Option<Arc<Certificates>>,
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

    /// Runs statements, each in a transaction of its own, by `psql`. Returns what they return, a line for each row.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`] with what the server says.
    pub async fn sql(&self, statements: &[&str]) -> Result<String> {
        let (parameters, name) = (self.connect_string(), self.inner.process.name().to_owned());
        let statements: Vec<_> = statements.iter().map(|&statement| statement.to_owned()).collect();
        off_thread(move || {
            let mut psql = Command::new(program("psql")?);
            psql.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set", "ON_ERROR_STOP=1"]);
            psql.arg("--dbname").arg(format!("{parameters} connect_timeout=10"));
            for statement in &statements {
                psql.args(["--command", statement]);
            }
            let running = spawn(&psql, Stdio::null(), Stdio::piped(), Stdio::piped())?;
            let ended = running.wait_with_output().map_err(|error| Error::io("run psql", error))?;
            if ended.status.success() {
                return Ok(String::from_utf8_lossy(&ended.stdout).trim_end().to_owned());
            }
            Err(Error::Protocol { peer: name, what: String::from_utf8_lossy(&ended.stderr).into_owned() })
        })
        .await
    }

    /// Sets an option of `postgresql.conf` while the server runs. One that it was started with stays as it is.
    ///
    /// # Errors
    ///
    /// As for [`sql`](Self::sql).
    pub async fn set(&self, name: &str, value: &str) -> Result<()> {
        let set = format!("ALTER SYSTEM SET {name} = '{value}'");
        self.sql(&[&set, "SELECT pg_reload_conf()"]).await.map(drop)
    }

    /// Makes a standby a primary, and waits until it is one.
    ///
    /// # Errors
    ///
    /// The error carries the end of the server's log.
    pub async fn promote(&self) -> Result<()> {
        self.control("promote", &[]).await
    }

    /// Shuts the server down in order: standbys that are connected get everything.
    ///
    /// # Errors
    ///
    /// The error carries the end of the server's log.
    pub async fn shut_down(&self) -> Result<()> {
        self.control("stop", &["--mode", "fast"]).await
    }

    async fn control(&self, what: &'static str, options: &'static [&str]) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        off_thread(move || {
            let mut control = as_a_user(&program("pg_ctl")?)?;
            control.arg(what).args(options).arg("--wait").arg("--pgdata").arg(inner.data());
            inner.finish(control.current_dir(inner.process.dir()))
        })
        .await
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

    /// Fills the [disk](PostgresOptions::disk) of its own, or gives it room again. Returns whether it is full.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], as without such a disk.
    pub async fn fill_disk(&self, full: bool) -> Result<bool> {
        let inner = Arc::clone(&self.inner);
        off_thread(move || fill(inner.process.pid(), &inner.data(), full)).await
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

    /// Keeps the data on a disk of its own with so many megabytes: one in memory, which ends with the server. Needs root.
    pub fn disk(mut self, megabytes: u32) -> Self {
        self.disk = Some(megabytes);
        self
    }

    /// Replaces `pg_hba.conf`, which lets everybody in. [`connect_string`](PostgresServer::connect_string) needs
    /// `local all postgres trust`.
    pub fn hba(mut self, lines: &str) -> Self {
        self.hba = Some(format!("{lines}\n"));
        self
    }

    /// Speaks TLS on its port, if the client asks for that, and knows the authority of client certificates.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, certificates: &Arc<Certificates>) -> Self {
        self.tls = Some(Arc::clone(certificates));
        self.config("ssl", "on").config("ssl_ca_file", "root.crt")
    }

    /// Starts a server.
    ///
    /// # Errors
    ///
    /// As for [`PostgresServer::start`].
    pub async fn start(self) -> Result<PostgresServer> {
        self.start_on(Inner::make).await
    }

    /// Starts a server on the data that `make` makes.
    async fn start_on(self, make: impl Fn(&Inner) -> Result<()> + Send + 'static) -> Result<PostgresServer> {
        off_thread(move || {
            on_free_ports("PostgreSQL", || {
                let port = Port::pick("PostgreSQL")?;
                let process = ServerProcess::new(format!("PostgreSQL on port {}", port.number()))?;
                let inner = Arc::new(Inner { process, port, options: self.clone() });
                give_away(inner.process.dir())?;
                make(&inner)?;
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
    options: PostgresOptions,
}

impl Inner {
    /// Makes an empty database, unless its disk is still to be made.
    fn make(&self) -> Result<()> {
        if self.options.disk.is_some() {
            return Ok(());
        }
        self.finish(&self.init()?)?;
        let Some(lines) = &self.options.hba else { return Ok(()) };
        let file = self.data().join("pg_hba.conf");
        fs::write(&file, lines).map_err(|error| Error::io(format!("write {}", file.display()), error))
    }

    fn init(&self) -> Result<Command> {
        let mut init = as_a_user(&program("initdb")?)?;
        init.args(["--no-sync", "--no-instructions", "--auth", "trust", "--username", USER]);
        init.args(["--locale", "C", "--encoding", "UTF8", "--pgdata"]).arg(self.data());
        init.current_dir(self.process.dir());
        Ok(init)
    }

    /// Copies the certificates of the moment to where the server reads them.
    #[cfg(feature = "tls")]
    fn hand_out_certificates(&self) -> Result<()> {
        let Some(certificates) = &self.options.tls else { return Ok(()) };
        let (certificate, key) = certificates.server();
        let files = [(certificates.ca(), "root.crt"), (certificate, "server.crt"), (key, "server.key")];
        for (from, name) in files {
            let to = self.data().join(name);
            // It refuses a key that others may read.
            fs::copy(&from, &to)
                .and_then(|_| fs::set_permissions(&to, fs::Permissions::from_mode(0o600)))
                .map_err(|error| Error::io(format!("write {}", to.display()), error))?;
            give_away(&to)?;
        }
        Ok(())
    }

    fn launch(&self) -> Result<(), StartError> {
        let (folder, data) = (self.process.dir(), self.data());
        // Of a server that was killed: it would count as ready at once.
        let _ = fs::remove_file(data.join("postmaster.pid"));
        #[cfg(feature = "tls")]
        self.hand_out_certificates()?;
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
        for (name, value) in &self.options.settings {
            server.args(["-c", &format!("{name}={value}")]);
        }
        if let Some(megabytes) = self.options.disk {
            server = mounted(&data, megabytes, &self.init()?, &server)?;
            server.current_dir(folder);
        }
        self.process.launch(&server)?;
        self.process.wait_ready(|pid| {
            // As `pg_ctl` does: a server that still recovers accepts connections, and refuses to serve them.
            let status = match self.options.disk {
                None => fs::read_to_string(data.join("postmaster.pid")),
                Some(_) => fs::read_to_string(format!("/proc/{pid}/root{}/postmaster.pid", data.display())),
            };
            status.unwrap_or_default().lines().any(|line| matches!(line.trim_end(), "ready" | "standby"))
        })
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

/// Gives a file or a folder to the user of the server.
pub(crate) fn give_away(path: &Path) -> Result<()> {
    if !getuid().is_root() {
        return Ok(());
    }
    let nobody = NOBODY.parse().expect("the id is a number");
    chown(path, Some(nobody), Some(nobody))
        .map_err(|error| Error::io(format!("give {} to the user nobody", path.display()), error))
}

/// Finds a program in `PATH`, or where its package of Debian puts it.
pub(crate) fn program_in(name: &str, folder: &str, package: &str) -> Result<PathBuf> {
    let packaged = Path::new(folder).join(name);
    match locate(name, &format!("apt-get install {package}")) {
        Err(_) if packaged.is_file() => Ok(packaged),
        found => found,
    }
}

/// Finds a program of PostgreSQL, of one version for all: that of the `postgres` in `PATH`, or the newest of Debian's packages.
fn program(name: &str) -> Result<PathBuf> {
    let server = match locate("postgres", "apt-get install postgresql") {
        // Debian's other programs in `PATH` choose a version by themselves.
        Ok(server) => fs::canonicalize(&server).unwrap_or(server),
        Err(missing) => newest_of_debian().ok_or(missing)?,
    };
    Ok(server.with_file_name(name))
}

fn newest_of_debian() -> Option<PathBuf> {
    let versions = fs::read_dir(DEBIAN_VERSIONS).into_iter().flatten().flatten();
    versions
        .map(|version| version.path())
        .filter(|version| version.join("bin/postgres").is_file())
        .max_by_key(|version| version.file_name()?.to_str()?.parse::<u32>().ok())
        .map(|version| version.join("bin/postgres"))
}

const USER: &str = "postgres";
/// Every new server has it.
const DATABASE: &str = "postgres";
const DEBIAN_VERSIONS: &str = "/usr/lib/postgresql";
const POLL: Duration = Duration::from_millis(2);
const QUIT_DEADLINE: Duration = Duration::from_secs(5);
