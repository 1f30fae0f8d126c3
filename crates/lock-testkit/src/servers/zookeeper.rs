//! Real ZooKeeper servers.

mod class_archive;
mod class_path;
mod ensemble;
mod idle;
mod version;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use self::class_path::Release;
pub use self::ensemble::ZkEnsemble;
pub use self::idle::Borrowed;
use crate::error::{Error, Result};
use crate::servers::port::Port;
use crate::servers::process::{locate, off_thread};
use crate::servers::server_process::{ServerProcess, StartError, on_free_ports};

/// A ZooKeeper server on its own loopback port, in its own temporary directory.
///
/// It is killed when this value is dropped and when the test process dies. It keeps its data over a restart.
#[derive(Debug)]
pub struct ZooKeeper {
    inner: Arc<Inner>,
}

/// The options of a [`ZooKeeper`] or a [`ZkEnsemble`].
#[derive(Clone, Debug)]
#[must_use = "options start nothing by themselves"]
pub struct ZkOptions {
    tick_time: Duration,
    min_session_timeout: Option<Duration>,
    max_session_timeout: Duration,
    force_sync: bool,
    for_load: bool,
    observers: usize,
    properties: Vec<(String, String)>,
    config: Vec<(String, String)>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    sasl: Option<(String, String)>,
    proxied_links: bool,
    release: Release,
    /// Where to write an archive of its classes when it ends.
    archives_to: Option<PathBuf>,
}

/// The certificates of a server, and whether it requires some of its clients.
#[cfg(feature = "tls")]
#[derive(Clone, Debug)]
struct Tls {
    /// Certificate and key in one text, as ZooKeeper expects them.
    identity: String,
    authority: PathBuf,
    client_certificates: bool,
}

impl ZooKeeper {
    /// Starts a standalone server with default options.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] without Java or ZooKeeper; otherwise the error carries the end of the server's log.
    pub async fn start() -> Result<Self> {
        Self::builder().start().await
    }

    /// Options other than the default.
    pub fn builder() -> ZkOptions {
        ZkOptions::default()
    }

    /// The client port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.inner.port.number()
    }

    /// The address for clients.
    pub fn addr(&self) -> SocketAddr {
        self.inner.port.addr()
    }

    /// `zk://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("zk://{}", self.addr())
    }

    /// The address for TLS clients.
    ///
    /// # Panics
    ///
    /// Without [`ZkOptions::tls`].
    pub fn secure_addr(&self) -> SocketAddr {
        self.inner.secure_port.as_ref().expect("TLS was asked for").addr()
    }

    /// `127.0.0.1:port`, as ZooKeeper clients expect it.
    pub fn connect_string(&self) -> String {
        self.addr().to_string()
    }

    /// The id of the server's process.
    pub fn pid(&self) -> u32 {
        self.inner.process.pid()
    }

    /// Kills the server by SIGKILL and restarts it with the same port and data.
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

    /// Removes the data of a killed server: its log and its snapshots.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when they cannot be removed.
    pub fn remove_data(&self) -> Result<()> {
        let data = self.inner.process.dir().join("data").join("version-2");
        match fs::remove_dir_all(&data) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("remove {}", data.display()), error))
            }
            _ => Ok(()),
        }
    }

    /// Restarts a standalone server as so many elections of a leader leave an ensemble: its next transaction has a number that is
    /// as many times 2^32 larger.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start); [`Error::Io`] when the snapshot cannot be renamed.
    ///
    /// # Panics
    ///
    /// If the server left no snapshot.
    pub async fn skip_epochs(&self, count: u64) -> Result<()> {
        // It starts with a snapshot of all data, whose name is the last transaction.
        self.restart().await?;
        self.kill();
        let data = self.inner.process.dir().join("data").join("version-2");
        let failed = |error| Error::io(format!("rename a snapshot in {}", data.display()), error);
        let names = fs::read_dir(&data)
            .map_err(failed)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let last =
            names.filter_map(|name| u64::from_str_radix(name.strip_prefix("snapshot.")?, 16).ok()).max();
        let path = |transaction: u64| data.join(format!("snapshot.{transaction:x}"));
        let last = last.expect("a server that has started has a snapshot");
        fs::rename(path(last), path(last + (count << 32))).map_err(failed)?;
        self.start_again().await
    }

    /// Sets a value of `zoo.cfg`, in force from the next start on.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the file cannot be written.
    pub fn reconfigure(&self, name: &str, value: &str) -> Result<()> {
        let path = self.inner.process.dir().join("zoo.cfg");
        let add = |path: &Path| {
            let mut file = fs::OpenOptions::new().append(true).open(path)?;
            // Of two lines with one name ZooKeeper takes the later.
            writeln!(file, "{name}={value}")
        };
        add(&path).map_err(|e| Error::io(format!("write {}", path.display()), e))
    }

    /// Sets the password of a user that was given by [`ZkOptions::sasl`], in force from the next start on.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the file cannot be written.
    pub fn set_sasl(&self, user: &str, password: &str) -> Result<()> {
        write(&self.inner.process.dir().join(JAAS), &jaas(user, password))
    }

    /// Has the server use the certificates that are in these files now, from the next start on.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the file cannot be written.
    #[cfg(feature = "tls")]
    pub fn set_certificates(&self, certificates: &crate::Certificates) -> Result<()> {
        write(&self.inner.process.dir().join(IDENTITY), &identity(certificates))
    }

    /// Restarts a killed server with the same port and data, and waits until it serves.
    ///
    /// A node of an ensemble serves only while a majority runs: to restart a majority, [`launch`](Self::launch) the nodes
    /// first and wait afterwards.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn start_again(&self) -> Result<()> {
        self.launch().await?;
        self.wait_ready().await
    }

    /// Restarts a killed server without waiting until it serves.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the process cannot be started.
    pub async fn launch(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        off_thread(move || inner.launch()).await
    }

    /// Waits until the server serves clients.
    ///
    /// # Errors
    ///
    /// [`Error::NotReady`] or [`Error::Exited`] with the end of the server's log.
    pub async fn wait_ready(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        off_thread(move || inner.wait_ready().map_err(|e| e.into_error(&inner.process))).await
    }

    /// Stops the server by SIGSTOP: connections stay open, nothing is answered.
    pub fn stop(&self) {
        self.inner.process.stop();
    }

    /// Continues a stopped server by SIGCONT.
    pub fn cont(&self) {
        self.inner.process.cont();
    }

    /// Sends a four-letter word such as `srvr`, `mntr`, `wchp`, `dump` or `cons`, and returns the answer.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the server does not answer within five seconds.
    pub async fn four_letter(&self, word: &str) -> Result<String> {
        let inner = Arc::clone(&self.inner);
        let word = word.to_owned();
        off_thread(move || inner.four_letter(&word)).await
    }

    /// The server's counters, such as `zk_ephemerals_count`, `zk_watch_count` and `zk_packets_sent`.
    ///
    /// # Errors
    ///
    /// As for [`four_letter`](Self::four_letter).
    pub async fn mntr(&self) -> Result<BTreeMap<String, String>> {
        let answer = self.four_letter("mntr").await?;
        Ok(answer
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect())
    }

    /// The version of the server.
    ///
    /// # Errors
    ///
    /// As for [`four_letter`](Self::four_letter).
    pub async fn version(&self) -> Result<String> {
        let answer = self.four_letter("srvr").await?;
        let version = answer.lines().find_map(|line| line.strip_prefix("Zookeeper version: "));
        Ok(version.and_then(|version| version.split(['-', ',']).next()).unwrap_or("unknown").to_owned())
    }

    /// The role: `standalone`, `leader`, `follower` or `observer`; `None` while the server does not serve.
    pub async fn mode(&self) -> Option<String> {
        let inner = Arc::clone(&self.inner);
        off_thread(move || inner.mode()).await
    }
}

impl ZkOptions {
    /// `tickTime`. The default of 200 ms allows session timeouts from 400 ms up.
    pub fn tick_time(mut self, tick: Duration) -> Self {
        self.tick_time = tick;
        self
    }

    /// The minimum session timeout; two ticks by default.
    pub fn min_session_timeout(mut self, timeout: Duration) -> Self {
        self.min_session_timeout = Some(timeout);
        self
    }

    /// The maximum session timeout; a minute by default.
    pub fn max_session_timeout(mut self, timeout: Duration) -> Self {
        self.max_session_timeout = timeout;
        self
    }

    /// Whether every transaction is synced to disk before it is answered, as in production. Off by default: it takes time,
    /// and a killed process loses nothing either way.
    pub fn force_sync(mut self, on: bool) -> Self {
        self.force_sync = on;
        self
    }

    /// Runs the server as `zkServer.sh` does: with a heap of 1 000 MB, and optimized code. Off by default: a small server starts
    /// faster.
    pub fn for_load(mut self, on: bool) -> Self {
        self.for_load = on;
        self
    }

    /// The number of observers in an ensemble, which come last. None by default.
    pub fn observers(mut self, observers: usize) -> Self {
        self.observers = observers;
        self
    }

    /// Sets a Java system property, such as `znode.container.checkIntervalMs`.
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a line to `zoo.cfg`.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.config.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Speaks TLS as well, on a [second port](ZooKeeper::secure_addr); `client_certificates` says whether it requires a client
    /// certificate.
    ///
    /// # Panics
    ///
    /// When the certificates cannot be read.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, certificates: &crate::Certificates, client_certificates: bool) -> Self {
        let identity = identity(certificates);
        self.tls = Some(Tls { identity, authority: certificates.ca(), client_certificates });
        self
    }

    /// Requires SASL (DIGEST-MD5) authentication as this user.
    pub fn sasl(mut self, user: &str, password: &str) -> Self {
        self.sasl = Some((user.to_owned(), password.to_owned()));
        self.config("authProvider.1", "org.apache.zookeeper.server.auth.SASLAuthenticationProvider")
            .property("zookeeper.sessionRequireClientSASLAuth", "true")
    }

    /// Puts a proxy into the connection of each follower to each leader; see [`ZkEnsemble::link`]. Elections bypass it.
    ///
    /// The leader drops a follower that is silent for ten ticks (`syncLimit`): for longer faults raise it by
    /// [`config`](Self::config).
    pub fn proxied_links(mut self) -> Self {
        self.proxied_links = true;
        self
    }

    /// Starts a standalone server.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] without Java or ZooKeeper; otherwise the error carries the end of the server's log.
    pub async fn start(self) -> Result<ZooKeeper> {
        off_thread(move || {
            on_free_ports("zookeeper", || {
                let node = self.prepare(Arc::new(Port::pick("zookeeper")?), None)?;
                node.launch()?;
                node.wait_ready()?;
                Ok(ZooKeeper { inner: Arc::new(node) })
            })
        })
        .await
    }

    fn prepare(&self, port: Arc<Port>, member: Option<EnsembleMember>) -> Result<Inner> {
        let name = match &member {
            Some(EnsembleMember { id, .. }) => format!("zookeeper {id} on port {}", port.number()),
            None => format!("zookeeper on port {}", port.number()),
        };
        let process = ServerProcess::new(name)?;
        let data = process.dir().join("data");
        fs::create_dir(&data).map_err(|e| Error::io(format!("make {}", data.display()), e))?;

        let mut config = String::new();
        let mut line = |key: &str, value: &dyn std::fmt::Display| {
            writeln!(config, "{key}={value}").expect("writing to a string does not fail");
        };
        line("dataDir", &data.display());
        line("clientPortAddress", &"127.0.0.1");
        line("clientPort", &port.number());
        line("tickTime", &self.tick_time.as_millis());
        if let Some(timeout) = self.min_session_timeout {
            line("minSessionTimeout", &timeout.as_millis());
        }
        line("maxSessionTimeout", &self.max_session_timeout.as_millis());
        // The default limit of 60 connections per client address is soon reached on one machine.
        line("maxClientCnxns", &0);
        line("4lw.commands.whitelist", &"*");
        line("extendedTypesEnabled", &true);
        if let Some(EnsembleMember { id, .. }) = &member {
            write(&data.join("myid"), &id.to_string())?;
        }
        for (name, value) in &self.config {
            line(name, value);
        }
        #[cfg_attr(not(feature = "tls"), allow(unused_mut))]
        let mut secure_port = None;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let (port, identity) = (Port::pick("zookeeper")?, process.dir().join(IDENTITY));
            write(&identity, &tls.identity)?;
            line("serverCnxnFactory", &"org.apache.zookeeper.server.NettyServerCnxnFactory");
            line("secureClientPort", &port.number());
            line("secureClientPortAddress", &"127.0.0.1");
            line("ssl.keyStore.location", &identity.display());
            line("ssl.keyStore.type", &"PEM");
            line("ssl.trustStore.location", &tls.authority.display());
            line("ssl.trustStore.type", &"PEM");
            line("ssl.clientAuth", &if tls.client_certificates { "need" } else { "none" });
            secure_port = Some(port);
        }
        if let Some((user, password)) = &self.sasl {
            write(&process.dir().join(JAAS), &jaas(user, password))?;
        }
        // Of two lines with one name ZooKeeper takes the later: that of the test.
        let config = member.map(|member| member.config).unwrap_or_default() + &config;
        write(&process.dir().join("zoo.cfg"), &config)?;
        Ok(Inner { process, port, secure_port, options: self.clone() })
    }
}

impl Default for ZkOptions {
    fn default() -> Self {
        Self {
            tick_time: Duration::from_millis(200),
            min_session_timeout: None,
            max_session_timeout: Duration::from_secs(60),
            force_sync: false,
            for_load: false,
            observers: 0,
            properties: Vec::new(),
            config: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
            sasl: None,
            proxied_links: false,
            release: Release::Installed,
            archives_to: None,
        }
    }
}

#[derive(Debug)]
struct Inner {
    // The process goes before the claims on its ports.
    process: ServerProcess,
    port: Arc<Port>,
    secure_port: Option<Port>,
    options: ZkOptions,
}

/// What one server of an ensemble needs to know of it.
struct EnsembleMember {
    id: usize,
    /// Lines of `zoo.cfg`.
    config: String,
}

impl Inner {
    fn launch(&self) -> Result<()> {
        let mut command = Command::new(locate("java", "apt-get install default-jre-headless")?);
        if self.options.for_load {
            command.arg("-Xmx1000m");
        } else {
            command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
        }
        command.arg("-Xshare:auto");
        if let Some(archive) = &self.options.archives_to {
            command.arg(format!("-XX:ArchiveClassesAtExit={}", archive.display()));
        } else if let Some(archive) = class_archive::get(self.options.release) {
            command.arg(format!("-XX:SharedArchiveFile={}", archive.display()));
        }
        command.args(["-XX:-UsePerfData", "-Dzookeeper.admin.enableServer=false"]);
        // The report of a crash would else go into the folder of whoever runs the tests.
        command.arg(format!("-XX:ErrorFile={}", self.process.dir().join("java-crash.log").display()));
        command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
        command.arg(format!("-Dzookeeper.forceSync={}", if self.options.force_sync { "yes" } else { "no" }));
        for (name, value) in &self.options.properties {
            command.arg(format!("-D{name}={value}"));
        }
        if self.options.sasl.is_some() {
            let jaas = self.process.dir().join(JAAS);
            command.arg(format!("-Djava.security.auth.login.config={}", jaas.display()));
        }
        command.arg("-cp").arg(self.options.release.class_path()?);
        command
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(self.process.dir().join("zoo.cfg"));
        self.process.clear_log();
        self.process.launch(&command)
    }

    /// Waits until the server serves, and is ours: another process may have taken the port before it.
    fn wait_ready(&self) -> Result<(), StartError> {
        let ours = self.process.dir().display().to_string();
        self.process.wait_ready(|_| {
            // A server that has just bound its port may never answer the connections that it accepted before.
            let ask = |word| self.ask(word, PROBE_DEADLINE).unwrap_or_default();
            mode(&ask("srvr")).is_some() && ask("conf").contains(&ours) && self.is_secure()
        })
    }

    /// Whether the TLS port, which is opened last, accepts connections.
    fn is_secure(&self) -> bool {
        let open = |port: &Port| TcpStream::connect_timeout(&port.addr(), PROBE_DEADLINE).is_ok();
        self.secure_port.as_ref().is_none_or(open)
    }

    /// Asks repeatedly with growing timeouts: a slow server is not down. See also [`wait_ready`](Self::wait_ready).
    fn mode(&self) -> Option<String> {
        let mut patience = PROBE_DEADLINE;
        loop {
            match self.ask("srvr", patience) {
                Ok(answer) => return mode(&answer),
                Err(error) if is_late(&error) && patience < ANSWER_DEADLINE / 2 => patience *= 2,
                Err(_) => return None,
            }
        }
    }

    fn four_letter(&self, word: &str) -> Result<String> {
        self.ask(word, ANSWER_DEADLINE)
            .map_err(|e| Error::io(format!("ask {} for `{word}`", self.process.name()), e))
    }

    fn ask(&self, word: &str, patience: Duration) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.port.addr(), patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|e| Error::io(format!("write {}", path.display()), e))
}

fn jaas(user: &str, password: &str) -> String {
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    format!("Server {{ {module} required user_{user}=\"{password}\"; }};\n")
}

#[cfg(feature = "tls")]
fn identity(certificates: &crate::Certificates) -> String {
    let (cert, key) = certificates.server();
    let read = |path| fs::read_to_string(path).expect("the certificates are there");
    read(cert) + &read(key)
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

fn mode(srvr: &str) -> Option<String> {
    Some(srvr.lines().find_map(|line| line.strip_prefix("Mode: "))?.to_owned())
}

/// The files of a server in its directory.
const JAAS: &str = "jaas.conf";
#[cfg(feature = "tls")]
const IDENTITY: &str = "identity.pem";
const PROBE_DEADLINE: Duration = Duration::from_millis(300);
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
