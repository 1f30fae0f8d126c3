//! A real etcd server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::port::Port;
use crate::process::{locate, off_thread};
use crate::server_process::{ServerProcess, StartError, on_free_ports};

/// An `etcd` of one member on its own loopback ports, in its own temporary directory.
///
/// It is killed when this value is dropped and when the test process dies.
#[derive(Debug)]
pub struct EtcdServer {
    inner: Arc<Inner>,
}

impl EtcdServer {
    /// Starts a server that does not sync to disk.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`](crate::Error::NotInstalled) without `etcd`; otherwise the error carries the end of the server's
    /// log.
    pub async fn start() -> Result<Self> {
        off_thread(|| {
            on_free_ports("etcd", || {
                let (port, peer_port) = (Port::pick("etcd")?, Port::pick("etcd")?);
                let process = ServerProcess::new(format!("etcd on port {}", port.number()))?;
                let inner = Arc::new(Inner { process, port, peer_port });
                inner.launch()?;
                Ok(Self { inner })
            })
        })
        .await
    }

    /// The address for clients.
    pub fn addr(&self) -> SocketAddr {
        self.inner.port.addr()
    }

    /// The id of the server's process.
    pub fn pid(&self) -> u32 {
        self.inner.process.pid()
    }
}

#[derive(Debug)]
struct Inner {
    // The process goes before the claims on its ports.
    process: ServerProcess,
    port: Port,
    /// For other members, of which there are none.
    peer_port: Port,
}

impl Inner {
    fn launch(&self) -> Result<(), StartError> {
        let [clients, members] = [&self.port, &self.peer_port].map(|port| format!("http://{}", port.addr()));
        let mut command = Command::new(locate("etcd", "apt-get install etcd-server")?);
        command
            .args(["--name", NAME, "--unsafe-no-fsync", "--log-level", "warn"])
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &members, "--initial-advertise-peer-urls", &members])
            .args(["--initial-cluster", &format!("{NAME}={members}")])
            .arg("--data-dir")
            .arg(self.process.dir().join("data"));
        self.process.clear_log();
        self.process.launch(&command)?;
        self.process.wait_ready(|_| self.is_healthy())
    }

    /// Whether there is a leader. A server that finds its port taken ends, and is never asked again.
    fn is_healthy(&self) -> bool {
        let ask = || {
            let mut stream = TcpStream::connect(self.port.addr())?;
            stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
            stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        };
        ask().is_ok_and(|answer| answer.contains(r#""health":"true""#))
    }
}

const NAME: &str = "alone";
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
