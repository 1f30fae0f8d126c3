//! A real PostgreSQL server, as a resource that checks fencing tokens.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::getuid;

use crate::error::{Error, Result};
use crate::process::{Child, Output, locate, off_thread, tail};
use crate::server_process::{ServerProcess, StartError};

/// A `postgres` on its own Unix socket, with an empty database in its own temporary directory.
///
/// It is shut down when this value is dropped and when the test process dies. PostgreSQL refuses to run as root: for root the
/// server runs as the user `nobody`.
#[derive(Debug)]
pub struct PostgresServer {
    inner: Arc<Inner>,
}

impl PostgresServer {
    /// Starts a server that does not sync to disk.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] without PostgreSQL; otherwise the error carries the end of the server's log.
    pub async fn start() -> Result<Self> {
        off_thread(|| {
            let inner = Arc::new(Inner { process: ServerProcess::new("PostgreSQL".to_owned())? });
            inner.launch().map_err(|error| error.into_error(&inner.process))?;
            Ok(Self { inner })
        })
        .await
    }

    /// The connection string, for drivers that understand those of libpq.
    pub fn connect_string(&self) -> String {
        format!("host={} user={USER} dbname={DATABASE}", self.inner.process.dir().display())
    }

    /// The id of the server's process.
    pub fn pid(&self) -> u32 {
        self.inner.process.pid()
    }
}

#[derive(Debug)]
struct Inner {
    process: ServerProcess,
}

impl Inner {
    fn launch(&self) -> Result<(), StartError> {
        let (folder, data) = (self.process.dir(), self.process.dir().join("data"));
        give_away(folder)?;
        let mut init = as_a_user(&program("initdb")?)?;
        init.args(["--no-sync", "--no-instructions", "--auth", "trust", "--username", USER]);
        init.args(["--locale", "C", "--encoding", "UTF8", "--pgdata"]).arg(&data);
        self.finish(init.current_dir(folder))?;

        let mut server = as_a_user(&program("postgres")?)?;
        server.arg("-D").arg(&data).arg("-k").arg(folder).current_dir(folder);
        // No TCP port, and no shared memory that would outlive a server that was killed.
        server.args(["-c", "listen_addresses=", "-c", "dynamic_shared_memory_type=mmap", "-c", "fsync=off"]);
        self.process.launch(&server)?;
        // As `pg_ctl` does: a server that still recovers accepts connections, and refuses to serve them.
        let status = || fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
        self.process.wait_ready(|_| status().lines().any(|line| line.trim_end() == "ready"))
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
        // A killed server leaves a segment of System V shared memory behind.
        let _ = self.process.quit(QUIT_DEADLINE);
    }
}

/// The command that runs a program as a user other than root, which ends in order when this process dies.
fn as_a_user(program: &Path) -> Result<Command> {
    let mut command = Command::new(locate("setpriv", "apt-get install util-linux")?);
    if getuid().is_root() {
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    }
    // A change of the user clears the signal that the test kit has set.
    command.args(["--pdeathsig", "QUIT", "--"]).arg(program);
    Ok(command)
}

/// Gives the folder to the user of the server.
fn give_away(folder: &Path) -> Result<()> {
    if !getuid().is_root() {
        return Ok(());
    }
    let nobody = NOBODY.parse().expect("the id is a number");
    chown(folder, Some(nobody), Some(nobody))
        .map_err(|error| Error::io(format!("give {} to the user nobody", folder.display()), error))
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
const QUIT_DEADLINE: Duration = Duration::from_secs(5);
