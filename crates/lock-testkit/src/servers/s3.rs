//! A server that answers as S3 does.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::servers::port::Port;
use crate::servers::process::off_thread;
use crate::servers::server_process::{ServerProcess, StartError, on_free_ports};
use crate::servers::server_version::leave_out;

/// moto, on its own loopback port, with the bucket `locks`. All is in its memory.
///
/// It is killed when this value is dropped and when the test process dies.
#[derive(Debug)]
pub struct S3Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    // The process goes before the claim on its port.
    process: ServerProcess,
    python: PathBuf,
    honours_conditions: bool,
    port: Port,
}

impl S3Server {
    /// Starts a server with the packages below this target directory, where `cargo xtask setup --peers` installs them.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`](crate::Error::NotInstalled) without them; otherwise the error carries the end of the server's log.
    pub async fn start(target: impl AsRef<Path>) -> Result<Self> {
        Self::start_with(python(target.as_ref()), true).await
    }

    /// A server that ignores the conditions of writes.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn start_careless(target: impl AsRef<Path>) -> Result<Self> {
        Self::start_with(python(target.as_ref()), false).await
    }

    async fn start_with(python: PathBuf, honours_conditions: bool) -> Result<Self> {
        let start = move || {
            let port = Port::pick("s3")?;
            let process = ServerProcess::new(format!("moto on port {}", port.number()))?;
            let inner = Inner { process, python: python.clone(), honours_conditions, port };
            inner.launch()?;
            Ok::<_, StartError>(Self { inner: Arc::new(inner) })
        };
        off_thread(move || on_free_ports("moto", start)).await
    }

    /// Whether the packages are not installed. Then the run reports that the test of this thread is left out.
    pub fn is_missing(target: impl AsRef<Path>) -> bool {
        let is_missing = !python(target.as_ref()).exists();
        if is_missing {
            leave_out("a machine without the Python packages of a server like S3", "moto");
        }
        is_missing
    }

    /// The address for clients.
    pub fn addr(&self) -> SocketAddr {
        self.inner.port.addr()
    }

    /// `s3://key:secret@locks/PREFIX?endpoint=..`, for a client of this address, which may be a proxy's. Other options follow after an `&`.
    pub fn url(addr: SocketAddr, prefix: &str) -> String {
        format!("s3://key:secret@locks/{prefix}?endpoint=http://{addr}&allow_http=true")
    }

    /// Kills the server by SIGKILL. Its port stays reserved.
    pub fn kill(&self) {
        self.inner.process.kill();
    }

    /// Restarts a killed server on the same port, without its data.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn start_again(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let again = move || inner.launch().map_err(|error| error.into_error(&inner.process));
        off_thread(again).await
    }
}

impl Inner {
    fn launch(&self) -> Result<(), StartError> {
        let mut command = Command::new(&self.python);
        command.args(["-c", include_str!("s3.py")]).arg(self.port.number().to_string());
        if !self.honours_conditions {
            command.arg("careless");
        }
        self.process.clear_log();
        self.process.launch(&command)?;
        self.process
            .wait_ready(|_| TcpStream::connect_timeout(&self.port.addr(), Duration::from_secs(1)).is_ok())
    }
}

fn python(target: &Path) -> PathBuf {
    target.join("peers/s3/bin/python")
}
