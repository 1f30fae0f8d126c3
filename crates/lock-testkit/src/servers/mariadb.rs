//! A real MariaDB server.

mod pair;

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

pub use self::pair::MariadbPair;
use crate::error::{Error, Result};
#[cfg(feature = "tls")]
use crate::servers::certificates::Certificates;
use crate::servers::disk::{fill, mounted};
use crate::servers::port::Port;
use crate::servers::postgres::{as_a_user, give_away, program_in};
use crate::servers::process::{Child, Output, off_thread, remove_at_exit, spawn, tail};
use crate::servers::server_process::{ServerProcess, StartError, on_free_ports};
use crate::servers::server_version::leave_out;

/// A `mariadbd` on its own loopback port, in its own temporary directory, with an empty database and a user who may do everything in it.
///
/// It is killed when this value is dropped and when the test process dies. For root it runs as the user `nobody`.
#[derive(Debug)]
pub struct MariadbServer {
    inner: Arc<Inner>,
}

/// The options of a [`MariadbServer`].
#[derive(Clone, Debug, Default)]
#[must_use = "options start nothing by themselves"]
pub struct MariadbOptions {
    flags: Vec<OsString>,
    /// In megabytes.
    disk: Option<u32>,
}

impl MariadbServer {
    /// The user of [`url`](Self::url), the password, and the database.
    pub const USER: &str = "me";
    /// The password of the user.
    pub const PASSWORD: &str = "correct-horse-battery-staple";
    /// The database of the user.
    pub const DATABASE: &str = "app";

    /// Starts a server that does not sync to disk.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] without MariaDB; otherwise the error carries the end of the server's log.
    pub async fn start() -> Result<Self> {
        Self::builder().start().await
    }

    /// Options other than the default.
    pub fn builder() -> MariadbOptions {
        MariadbOptions::default()
    }

    /// Whether MariaDB is not installed. Then the run reports that the test of this thread is left out.
    pub fn is_missing() -> bool {
        let is_missing = program("mariadbd").is_err();
        if is_missing {
            leave_out("a machine without mariadb-server", "MariaDB");
        }
        is_missing
    }

    /// The address.
    pub fn addr(&self) -> SocketAddr {
        self.inner.port.addr()
    }

    /// `mysql://me:password@127.0.0.1:port/app`.
    pub fn url(&self) -> String {
        self.url_at(self.addr())
    }

    /// The same, by another address, as that of a proxy.
    pub fn url_at(&self, addr: SocketAddr) -> String {
        format!("mysql://{}:{}@{addr}/{}", Self::USER, Self::PASSWORD, Self::DATABASE)
    }

    /// The id of the server's process.
    pub fn pid(&self) -> u32 {
        self.inner.process.pid()
    }

    /// Runs statements as root, in one session and the database of the user. Returns what they return, a line for each row.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`] with what the server says.
    pub async fn sql(&self, statements: &str) -> Result<String> {
        let (inner, statements) = (Arc::clone(&self.inner), statements.to_owned());
        off_thread(move || {
            let mut client = Command::new(program("mariadb")?);
            client.args(["--no-defaults", "--user=root", "--batch", "--raw", "--skip-column-names"]);
            client.arg(option("--socket=", &inner.socket())).arg(Self::DATABASE);
            client.arg(format!("--execute={statements}"));
            let running = spawn(&client, Stdio::null(), Stdio::piped(), Stdio::piped())?;
            let ended = running.wait_with_output().map_err(|error| Error::io("run mariadb", error))?;
            if ended.status.success() {
                return Ok(String::from_utf8_lossy(&ended.stdout).trim_end().to_owned());
            }
            let what = String::from_utf8_lossy(&ended.stderr).into_owned();
            Err(Error::Protocol { peer: inner.process.name().to_owned(), what })
        })
        .await
    }

    /// Kills the server by SIGKILL. Its port stays reserved.
    pub fn kill(&self) {
        self.inner.process.kill();
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

    /// Removes the data of a killed server, which then starts as a new one.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when they cannot be removed.
    pub async fn remove_data(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        off_thread(move || {
            let data = inner.data();
            fs::remove_dir_all(&data)
                .map_err(|error| Error::io(format!("remove {}", data.display()), error))?;
            finish(&inner.copy_empty()?, "cp", &inner.process.log())
        })
        .await
    }

    /// Fills the [disk](MariadbOptions::disk) of its own, or gives it room again. Returns whether it is full.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], as without such a disk.
    pub async fn fill_disk(&self, full: bool) -> Result<bool> {
        let inner = Arc::clone(&self.inner);
        off_thread(move || fill(inner.process.pid(), &inner.data(), full)).await
    }

    /// Stops the server by SIGSTOP: connections stay open, nothing is answered.
    pub fn stop(&self) {
        self.inner.process.stop();
    }

    /// Continues a stopped server by SIGCONT.
    pub fn cont(&self) {
        self.inner.process.cont();
    }
}

impl MariadbOptions {
    /// Adds a flag, as `--read-only`.
    pub fn flag(mut self, flag: impl Into<OsString>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Keeps the data on a disk of its own with so many megabytes: one in memory, which ends with the server. Needs root.
    pub fn disk(mut self, megabytes: u32) -> Self {
        self.disk = Some(megabytes);
        self
    }

    /// Speaks TLS on its port, and accepts nobody without it.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        let (cert, key) = certificates.server();
        for (flag, file) in [("ssl-cert", cert), ("ssl-key", key), ("ssl-ca", certificates.ca())] {
            self.flags.push(option(&format!("--{flag}="), &file));
        }
        self.flag("--require-secure-transport")
    }

    /// Starts a server.
    ///
    /// # Errors
    ///
    /// As for [`MariadbServer::start`].
    pub async fn start(self) -> Result<MariadbServer> {
        off_thread(move || {
            on_free_ports("MariaDB", || {
                let port = Port::pick("MariaDB")?;
                let process = ServerProcess::new(format!("MariaDB on port {}", port.number()))?;
                let inner = Arc::new(Inner { process, port, options: self.clone() });
                give_away(inner.process.dir())?;
                if inner.options.disk.is_none() {
                    finish(&inner.copy_empty()?, "cp", &inner.process.log())?;
                }
                inner.launch()?;
                Ok(MariadbServer { inner })
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
    options: MariadbOptions,
}

impl Inner {
    /// The command that copies an empty server, which takes seconds to make. A file without holes needs no room later.
    fn copy_empty(&self) -> Result<Command> {
        let mut copy = Command::new("cp");
        copy.args(["-aT", "--sparse=never"]).arg(empty()?).arg(self.data());
        Ok(copy)
    }

    fn launch(&self) -> Result<(), StartError> {
        self.process.clear_log();
        // It is read at each start.
        let init = self.process.dir().join("init.sql");
        let (user, password, database) =
            (MariadbServer::USER, MariadbServer::PASSWORD, MariadbServer::DATABASE);
        let users = format!(
            "CREATE DATABASE IF NOT EXISTS {database};\n\
             CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{password}';\n\
             GRANT ALL ON {database}.* TO {user};\n"
        );
        fs::write(&init, users).map_err(|error| Error::io(format!("write {}", init.display()), error))?;
        let mut server = as_a_user(&program("mariadbd")?)?;
        server.arg("--no-defaults").current_dir(self.process.dir());
        for (flag, file) in [
            ("datadir", self.data()),
            // A server that starts removes all temporary tables there, also those of others.
            ("tmpdir", self.process.dir().to_owned()),
            ("socket", self.socket()),
            ("init-file", init),
        ] {
            server.arg(option(&format!("--{flag}="), &file));
        }
        server.arg(format!("--port={}", self.port.number())).arg("--bind-address=127.0.0.1").args(SMALL);
        // What a process that is killed has committed stays, as the system has it.
        server.args([
            "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-flush-method=nosync",
        ]);
        server.args(&self.options.flags);
        if let Some(megabytes) = self.options.disk {
            server = mounted(&self.data(), megabytes, &self.copy_empty()?, &server)?;
            server.current_dir(self.process.dir());
        }
        self.process.launch(&server)?;
        self.process.wait_ready(|_| {
            fs::read_to_string(self.process.log())
                .is_ok_and(|log| log.contains("mariadbd: ready for connections"))
        })
    }

    fn data(&self) -> PathBuf {
        self.process.dir().join("data")
    }

    fn socket(&self) -> PathBuf {
        self.process.dir().join("socket")
    }
}

/// The directory of an empty server, which is made once in a process.
fn empty() -> Result<PathBuf> {
    static MADE: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(data) = &*made {
        return Ok(data.clone());
    }
    let dir = tempfile::Builder::new().prefix("lock-testkit-mariadb-").tempdir();
    let dir = dir.map_err(|error| Error::io("make a temporary directory", error))?.keep();
    remove_at_exit(&dir)?;
    give_away(&dir)?;
    let data = dir.join("data");
    let mut install = as_a_user(&program("mariadb-install-db")?)?;
    install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
    install.arg(option("--datadir=", &data)).arg(option("--tmpdir=", &dir)).args(SMALL).current_dir(&dir);
    finish(&install, "mariadb-install-db", &dir.join("log"))?;
    Ok(made.insert(data).clone())
}

fn finish(command: &Command, name: &str, log: &Path) -> Result<()> {
    let status = Child::spawn(command, &Output::File(log.to_owned()))?.wait();
    if status.success() {
        return Ok(());
    }
    Err(Error::Exited { server: name.to_owned(), status, log: tail(log) })
}

fn option(flag: &str, file: &Path) -> OsString {
    let mut option = OsString::from(flag);
    option.push(file);
    option
}

fn program(name: &str) -> Result<PathBuf> {
    program_in(name, "/usr/sbin", "mariadb-server")
}

/// A log of 96 MB would be copied for each test.
const SMALL: [&str; 2] = ["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=24M"];
