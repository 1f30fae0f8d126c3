//! Real Redis servers: one alone, independent masters, a master behind sentinels, a cluster.

mod cluster;
mod masters;
mod release;
pub(crate) mod reply;
mod sentinel;

use std::fs;
use std::io::BufReader;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

pub use self::cluster::RedisCluster;
pub use self::masters::RedisFive;
use self::release::program;
pub use self::reply::Reply;
use self::reply::{read_reply, write_command};
pub use self::sentinel::RedisSentinel;
use crate::error::{Error, Result};
#[cfg(feature = "tls")]
use crate::servers::certificates::Certificates;
use crate::servers::port::Port;
use crate::servers::process::off_thread;
use crate::servers::server_process::{ServerProcess, StartError, on_free_ports};
use crate::servers::server_version::is_before;

/// A `redis-server` on its own loopback port, in its own temporary directory.
///
/// It is killed when this value is dropped and when the test process dies.
#[derive(Debug)]
pub struct RedisServer {
    inner: Arc<Inner>,
}

/// The options of a [`RedisServer`].
#[derive(Clone, Debug, Default)]
#[must_use = "options start nothing by themselves"]
pub struct RedisOptions {
    password: Option<String>,
    appendonly: bool,
    unix_socket: bool,
    /// The contents of a configuration file, for what the command line cannot express.
    file: Option<String>,
    /// Whether the server is a cluster node, which needs a second port for the bus.
    clustered: bool,
    #[cfg(feature = "tls")]
    tls: Option<(Arc<Certificates>, bool)>,
    args: Vec<String>,
}

impl RedisServer {
    /// Starts a server without persistence and password.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] without `redis-server`; otherwise the error carries the end of the server's log. The variable
    /// `REDIS_SERVER` names the program of another server, such as Valkey.
    pub async fn start() -> Result<Self> {
        Self::builder().start().await
    }

    /// Options other than the default.
    pub fn builder() -> RedisOptions {
        RedisOptions::default()
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.inner.port.number()
    }

    /// The address.
    pub fn addr(&self) -> SocketAddr {
        self.inner.port.addr()
    }

    /// `redis://127.0.0.1:port`, with the password when there is one.
    pub fn url(&self) -> String {
        format!("redis://{}{}", userinfo(self.inner.options.password.as_deref()), self.addr())
    }

    /// The path of the Unix socket of a server with [`unix_socket`](RedisOptions::unix_socket).
    pub fn socket(&self) -> PathBuf {
        self.inner.socket()
    }

    /// The address that speaks TLS, of a server with [`tls`](RedisOptions::tls).
    ///
    /// # Panics
    ///
    /// When the server was started without.
    #[cfg(feature = "tls")]
    pub fn tls_addr(&self) -> SocketAddr {
        self.inner.second.as_ref().expect("the server was started with TLS").addr()
    }

    /// The port of the cluster bus.
    pub(crate) fn bus_port(&self) -> u16 {
        self.inner.bus_port()
    }

    /// The id of the server's process.
    pub fn pid(&self) -> u32 {
        self.inner.process.pid()
    }

    /// Kills the server by SIGKILL and restarts it on the same port. Only an [`appendonly`](RedisOptions::appendonly) server
    /// keeps its data.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn restart(&self) -> Result<()> {
        self.kill();
        self.start_again().await
    }

    /// Kills the server by SIGKILL. Its port stays reserved.
    pub fn kill(&self) {
        self.inner.process.kill();
    }

    /// Restarts a killed server on the same port.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn start_again(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        off_thread(move || inner.launch().map_err(|e| e.into_error(&inner.process))).await
    }

    /// Stops the server by SIGSTOP: connections stay open, nothing is answered.
    pub fn stop(&self) {
        self.inner.process.stop();
    }

    /// Continues a stopped server by SIGCONT.
    pub fn cont(&self) {
        self.inner.process.cont();
    }

    /// Sends one command on a new connection and returns the reply, which may be an error reply. Needs no driver.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the server does not answer within five seconds.
    ///
    /// # Cancel safety
    ///
    /// The command may be executed although the future was dropped.
    pub async fn command(&self, words: &[&str]) -> Result<Reply> {
        let inner = Arc::clone(&self.inner);
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        off_thread(move || inner.command(&words.iter().map(String::as_str).collect::<Vec<_>>())).await
    }

    /// As [`command`](Self::command), where there is an answer and it is no error.
    ///
    /// # Panics
    ///
    /// When it is one, or there is none.
    pub async fn call(&self, words: &[&str]) -> Reply {
        let reply = self.command(words).await.unwrap_or_else(|error| panic!("{error}"));
        assert!(!reply.is_error(), "{words:?}: {reply:?}");
        reply
    }

    /// Its answer, an error too, as text.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub async fn text(&self, words: &[&str]) -> String {
        let reply = self.command(words).await.unwrap_or_else(|error| panic!("{error}"));
        reply.text().map_or_else(|| format!("{reply:?}"), ToOwned::to_owned)
    }

    /// Starts a replica, which gets all writes from now on.
    pub async fn replica(&self) -> Result<Self> {
        let replica = Self::builder().replica_of(self).start().await?;
        self.wait_for_answer(&["INFO", "replication"], "state=online").await?;
        Ok(replica)
    }

    /// How often commands were called whose names begin so, by scripts too.
    ///
    /// # Panics
    ///
    /// As [`call`](Self::call).
    pub async fn calls_of(&self, command: &str) -> u64 {
        let stats = self.call(&["INFO", "commandstats"]).await;
        let stats = stats.text().unwrap_or_default();
        let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
        let of_command = format!("cmdstat_{command}");
        stats.lines().filter(|line| line.starts_with(&of_command)).filter_map(calls).sum()
    }

    /// Whether there is such a key.
    ///
    /// # Panics
    ///
    /// As [`call`](Self::call).
    pub async fn has_key(&self, key: &str) -> bool {
        self.call(&["EXISTS", key]).await.int() == Some(1)
    }

    /// Its role in a replication, `master` or `slave`; `None` while it does not answer: a server closes its connections when its
    /// role changes.
    pub async fn role(&self) -> Option<String> {
        let answer = self.command(&["ROLE"]).await.ok()?;
        answer.array()?.first()?.text().map(str::to_owned)
    }

    /// Repeats a command until the answer contains `text`.
    pub(crate) async fn wait_for_answer(&self, words: &[&str], text: &str) -> Result<()> {
        let start = Instant::now();
        loop {
            // A server that is promoted closes its connections: errors are no end.
            let answer = self.command(words).await;
            if answer.as_ref().is_ok_and(|answer| answer.text().is_some_and(|answer| answer.contains(text))) {
                return Ok(());
            }
            let waited = start.elapsed();
            if waited > WAIT_DEADLINE {
                return Err(Error::NotReady {
                    server: format!("redis-server on port {}, which should answer {text:?},", self.port()),
                    waited,
                    log: format!("{answer:?}"),
                });
            }
            off_thread(|| thread::sleep(WAIT_POLL)).await;
        }
    }
}

impl RedisOptions {
    /// Requires this password.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Keeps data over a restart: every write is synced to disk before it is answered.
    pub fn appendonly(mut self, on: bool) -> Self {
        self.appendonly = on;
        self
    }

    /// The eviction policy, such as `noeviction` or `allkeys-lru`.
    pub fn maxmemory_policy(self, policy: &str) -> Self {
        self.config("maxmemory-policy", policy)
    }

    /// Listens on a Unix socket as well.
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Speaks TLS on a second port; with `ask_client` it requires a client certificate of the same authority. The first port
    /// stays without TLS, for [`command`](RedisServer::command).
    #[cfg(feature = "tls")]
    pub fn tls(mut self, certificates: &Arc<Certificates>, ask_client: bool) -> Self {
        self.tls = Some((Arc::clone(certificates), ask_client));
        self
    }

    /// Adds a user with the rules of `ACL SETUSER`, such as `on >secret ~* +@all`.
    pub fn user(mut self, name: &str, rules: &str) -> Self {
        self.args.extend(["--user".to_owned(), name.to_owned()]);
        self.args.extend(rules.split_whitespace().map(str::to_owned));
        self
    }

    /// Makes it a replica of this server.
    pub fn replica_of(mut self, master: &RedisServer) -> Self {
        self.args.extend(["--replicaof".to_owned(), "127.0.0.1".to_owned(), master.port().to_string()]);
        self
    }

    /// Without these commands.
    pub fn without_commands(mut self, names: &[&str]) -> Self {
        let renames = names.iter().flat_map(|name| ["--rename-command", name, ""]);
        self.args.extend(renames.map(str::to_owned));
        self
    }

    /// Sets any other option of `redis.conf`.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.args.extend([format!("--{name}"), value.to_owned()]);
        self
    }

    /// Makes it a sentinel with this configuration file.
    pub(crate) fn sentinel(mut self, file: String) -> Self {
        self.file = Some(file);
        self
    }

    /// Makes it a node of a cluster.
    pub(crate) fn clustered(mut self) -> Self {
        self.clustered = true;
        self.config("cluster-enabled", "yes").config("cluster-config-file", "nodes.conf")
    }

    /// Starts a server.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] without `redis-server`; otherwise the error carries the end of the server's log.
    pub async fn start(self) -> Result<RedisServer> {
        off_thread(move || self.start_blocking()).await
    }

    fn needs_second_port(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return true;
        }
        self.clustered
    }

    fn ports(&self) -> Result<(Port, Option<Port>)> {
        if self.clustered && has_fixed_bus_port() {
            let (port, bus) = Port::pick_with_bus("redis-server")?;
            return Ok((port, Some(bus)));
        }
        let second = self.needs_second_port().then(|| Port::pick("redis-server")).transpose()?;
        Ok((Port::pick("redis-server")?, second))
    }

    pub(crate) fn start_blocking(self) -> Result<RedisServer> {
        on_free_ports("redis-server", || {
            let (port, second) = self.ports()?;
            let process = ServerProcess::new(format!("redis-server on port {}", port.number()))?;
            let inner = Arc::new(Inner { port, second, process, options: self.clone() });
            inner.launch()?;
            Ok(RedisServer { inner })
        })
    }
}

#[derive(Debug)]
struct Inner {
    // The process goes before the claim on its port.
    process: ServerProcess,
    port: Port,
    /// For TLS, or for the bus of a cluster.
    second: Option<Port>,
    options: RedisOptions,
}

impl Inner {
    fn launch(&self) -> Result<(), StartError> {
        let mut command = Command::new(program()?);
        if let Some(file) = &self.options.file {
            let path = self.process.dir().join("redis.conf");
            // Written once: a sentinel stores its state there.
            if !path.exists() {
                fs::write(&path, file).map_err(|e| Error::io(format!("write {}", path.display()), e))?;
            }
            command.arg(path).arg("--sentinel");
        } else {
            command.args(["--save", ""]);
        }
        command
            .args(["--port", &self.port.number().to_string(), "--bind", "127.0.0.1"])
            .args(["--daemonize", "no"])
            .arg("--dir")
            .arg(self.process.dir());
        if self.options.unix_socket {
            command.arg("--unixsocket").arg(self.socket());
        }
        if self.options.clustered && !has_fixed_bus_port() {
            command.args(["--cluster-port", &self.bus_port().to_string()]);
        }
        #[cfg(feature = "tls")]
        if let (Some((certificates, ask_client)), Some(port)) = (&self.options.tls, &self.second) {
            command.arg("--tls-port").arg(port.number().to_string());
            command.args(["--tls-auth-clients", if *ask_client { "yes" } else { "no" }]);
            command.arg("--tls-ca-cert-file").arg(certificates.ca());
            command.arg("--tls-cert-file").arg(certificates.server().0);
            command.arg("--tls-key-file").arg(certificates.server().1);
        }
        if self.options.appendonly {
            command.args(["--appendonly", "yes", "--appendfsync", "always"]);
        }
        if let Some(password) = &self.options.password {
            command.args(["--requirepass", password]);
        }
        command.args(&self.options.args);

        self.process.clear_log();
        self.process.launch(&command)?;
        self.process.wait_ready(|pid| self.serves(pid))
    }

    fn socket(&self) -> PathBuf {
        self.process.dir().join("redis.sock")
    }

    fn bus_port(&self) -> u16 {
        self.second.as_ref().map_or(0, Port::number)
    }

    /// Whether the server answers, and is ours: another process may have taken the port before it.
    fn serves(&self, pid: u32) -> bool {
        let ours = match self.command(&["INFO", "server"]) {
            Ok(Reply::Bulk(info)) => {
                String::from_utf8_lossy(&info).lines().any(|line| line == format!("process_id:{pid}"))
            }
            // The configuration may forbid INFO.
            Ok(reply) => reply.is_error(),
            Err(_) => false,
        };
        // INFO is answered while data is loaded, PING is not.
        ours && match self.command(&["PING"]) {
            Ok(Reply::Error(error)) => !error.starts_with("LOADING"),
            Ok(_) => true,
            Err(_) => false,
        }
    }

    fn command(&self, words: &[&str]) -> Result<Reply> {
        let talk = || {
            let mut stream = TcpStream::connect(self.port.addr())?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
            let mut replies = BufReader::new(stream.try_clone()?);
            if let Some(password) = &self.options.password {
                write_command(&mut stream, &["AUTH", password])?;
                let reply = read_reply(&mut replies)?;
                if reply.is_error() {
                    return Ok(reply);
                }
            }
            write_command(&mut stream, words)?;
            read_reply(&mut replies)
        };
        talk().map_err(|e| {
            Error::io(format!("send {} to {}", words.first().unwrap_or(&"nothing"), self.process.name()), e)
        })
    }
}

/// Whether the port of the bus of a cluster follows from that of the clients.
fn has_fixed_bus_port() -> bool {
    is_before(RedisServer::version(), (7, 0))
}

fn userinfo(password: Option<&str>) -> String {
    password.map(|password| format!(":{password}@")).unwrap_or_default()
}

const ANSWER_DEADLINE: Duration = Duration::from_secs(20);
const WAIT_POLL: Duration = Duration::from_millis(20);
const WAIT_DEADLINE: Duration = Duration::from_secs(30);
