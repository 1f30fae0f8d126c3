//! A real PgBouncer before a PostgreSQL server.

use std::fs;
use std::net::{SocketAddr, TcpStream};

use crate::error::{Error, Result};
use crate::servers::port::Port;
use crate::servers::postgres::{PostgresServer, as_a_user, give_away, program_in};
use crate::servers::process::off_thread;
use crate::servers::server_process::{ServerProcess, on_free_ports};

/// A `pgbouncer` in transaction mode, on its own loopback port: each transaction may go to another session of the server.
///
/// It is killed when this value is dropped and when the test process dies.
#[derive(Debug)]
pub struct PgBouncer {
    // The process goes before the claim on its port.
    _process: ServerProcess,
    port: Port,
}

impl PgBouncer {
    /// Starts a pooler with this many sessions before a server.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] without PgBouncer; otherwise the error carries the end of its log.
    pub async fn start(server: &PostgresServer, sessions: usize) -> Result<Self> {
        Self::start_with(server, sessions, "").await
    }

    /// The same, with more lines of its configuration.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub async fn start_with(server: &PostgresServer, sessions: usize, more: &'static str) -> Result<Self> {
        let upstream = server.port();
        off_thread(move || {
            on_free_ports("PgBouncer", || {
                let port = Port::pick("PgBouncer")?;
                let process = ServerProcess::new(format!("PgBouncer on port {}", port.number()))?;
                give_away(process.dir())?;
                let file = process.dir().join("pgbouncer.ini");
                let settings = format!(
                    "[databases]\n* = host=127.0.0.1 port={upstream} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
                     unix_socket_dir =\nauth_type = any\npool_mode = transaction\nmax_client_conn = 1000\n\
                     default_pool_size = {sessions}\nserver_round_robin = 1\n\
                     ignore_startup_parameters = extra_float_digits,options\n{more}\n",
                    port.number()
                );
                fs::write(&file, settings).map_err(|e| Error::io(format!("write {}", file.display()), e))?;
                let mut command = as_a_user(&program_in("pgbouncer", "/usr/sbin", "pgbouncer")?)?;
                command.arg(&file).current_dir(process.dir());
                process.launch(&command)?;
                process.wait_ready(|_| TcpStream::connect(port.addr()).is_ok())?;
                Ok(Self { _process: process, port })
            })
        })
        .await
    }

    /// The address.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }
}
