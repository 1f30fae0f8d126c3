//! A real etcd, of one member or of several.

mod door;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use self::door::Door;
use crate::error::{Error, Result};
#[cfg(feature = "tls")]
use crate::servers::certificates::Certificates;
use crate::servers::port::Port;
use crate::servers::process::{locate, off_thread};
use crate::servers::server_process::{ServerProcess, StartError, on_free_ports};
use crate::servers::server_version::leave_out;

/// An `etcd` on its own loopback ports, in its own temporary directory: alone, or a member of an [`EtcdCluster`].
///
/// It is killed when this value is dropped and when the test process dies.
#[derive(Debug)]
pub struct EtcdServer {
    inner: Arc<Inner>,
}

/// Several members.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<EtcdServer>,
    /// One for each member, if others connect to it by proxies.
    doors: Vec<Door>,
}

/// The options of an [`EtcdServer`] or an [`EtcdCluster`].
#[derive(Clone, Debug, Default)]
#[must_use = "options start nothing by themselves"]
pub struct EtcdOptions {
    flags: Vec<OsString>,
    is_secure: bool,
    proxied_links: bool,
}

impl EtcdServer {
    /// Starts a server that does not sync to disk.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] without `etcd`; otherwise the error carries the end of the server's log.
    pub async fn start() -> Result<Self> {
        Self::builder().start().await
    }

    /// Options other than the default.
    pub fn builder() -> EtcdOptions {
        EtcdOptions::default()
    }

    /// Whether `etcd` is not installed. Then the run reports that the test of this thread is left out.
    pub fn is_missing() -> bool {
        let is_missing = program().is_err();
        if is_missing {
            leave_out("a machine without etcd-server", "etcd");
        }
        is_missing
    }

    /// The address for clients.
    pub fn addr(&self) -> SocketAddr {
        self.inner.clients.addr()
    }

    /// `etcd://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("etcd://{}", self.addr())
    }

    /// The id of the server's process.
    pub fn pid(&self) -> u32 {
        self.inner.process.pid()
    }

    /// Whether it is the leader.
    pub async fn leads(&self) -> bool {
        let inner = Arc::clone(&self.inner);
        off_thread(move || inner.get("/metrics").is_ok_and(|all| all.contains("\netcd_server_is_leader 1\n")))
            .await
    }

    /// How many watches were opened since it started, and how many of them have ended.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`] when it does not answer.
    pub async fn watches(&self) -> Result<(u64, u64)> {
        let inner = Arc::clone(&self.inner);
        let metrics = off_thread(move || {
            let refused = |error: std::io::Error| Error::Protocol {
                peer: inner.process.name().to_owned(),
                what: error.to_string(),
            };
            inner.get("/metrics").map_err(refused)
        })
        .await?;
        let sum = |metric: &str| {
            let ours = metrics
                .lines()
                .filter(|line| line.starts_with(metric) && line.contains(r#"grpc_method="Watch""#));
            ours.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
        };
        Ok((sum("grpc_server_started_total{"), sum("grpc_server_handled_total{")))
    }

    /// Kills the server by SIGKILL. Its ports stay reserved.
    pub fn kill(&self) {
        self.inner.process.kill();
    }

    /// Restarts a killed server on the same ports, with its data.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn start_again(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let again = move || inner.launch().and_then(|()| inner.wait()).map_err(|error| inner.error(error));
        off_thread(again).await
    }

    /// Stops the server by SIGSTOP: connections stay open, nothing is answered.
    pub fn stop(&self) {
        self.inner.process.stop();
    }

    /// Continues a stopped server by SIGCONT.
    pub fn cont(&self) {
        self.inner.process.cont();
    }

    /// Asks the gateway of a server without TLS, as `("kv/range", {"key": ..})`. Keys and values are in base64.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`] with what the server says.
    pub async fn ask(&self, path: &str, body: Value) -> Result<Value> {
        self.ask_as("", path, body).await
    }

    /// The same with the token of a login.
    async fn ask_as(&self, token: &str, path: &str, body: Value) -> Result<Value> {
        let (inner, path) = (Arc::clone(&self.inner), path.to_owned());
        let login = if token.is_empty() { String::new() } else { format!("Authorization: {token}\r\n") };
        off_thread(move || {
            let refused = |what: String| Error::Protocol { peer: inner.process.name().to_owned(), what };
            let body = body.to_string();
            let request =
                format!("POST /v3/{path} HTTP/1.0\r\n{login}Content-Length: {}\r\n\r\n{body}", body.len());
            let said = ask(inner.clients.addr(), &request).map_err(|error| refused(error.to_string()))?;
            let (head, answer) = said.split_once("\r\n\r\n").unwrap_or((&said, ""));
            match serde_json::from_str(answer) {
                Ok(answer) if head.contains(" 200 ") => Ok(answer),
                _ => Err(refused(said)),
            }
        })
        .await
    }

    /// The id of the member.
    async fn id(&self) -> Result<u64> {
        let status = self.ask("maintenance/status", json!({})).await?;
        let id = status["header"]["member_id"].as_str().and_then(|id| id.parse().ok());
        let refused =
            || Error::Protocol { peer: self.inner.process.name().to_owned(), what: status.to_string() };
        id.ok_or_else(refused)
    }

    /// The keys that begin so, and their values.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    pub async fn values(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().expect("the prefix is not empty") += 1;
        let found = self.ask("kv/range", json!({"key": base64(prefix), "range_end": base64(end)})).await?;
        let text = |value: &Value| from_base64(value.as_str().unwrap_or_default());
        let read = |kv: &Value| (String::from_utf8_lossy(&text(&kv["key"])).into_owned(), text(&kv["value"]));
        Ok(found["kvs"].as_array().map(|all| all.iter().map(read).collect()).unwrap_or_default())
    }

    /// Writes a value.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    pub async fn put(&self, key: &str, value: &str) -> Result<()> {
        self.ask("kv/put", json!({"key": base64(key), "value": base64(value)})).await.map(drop)
    }

    /// Deletes a key, and reports whether it existed.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    pub async fn delete(&self, key: &str) -> Result<bool> {
        Ok(self.ask("kv/deleterange", json!({"key": base64(key)})).await?["deleted"] == "1")
    }

    /// Raises the alarm that a member raises whose store is full, or ends it. Returns whether writes are refused as those of a full one.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    pub async fn raise_alarm(&self, on: bool) -> Result<bool> {
        let (action, member) = (if on { "ACTIVATE" } else { "DEACTIVATE" }, self.id().await?.to_string());
        let alarm = json!({"action": action, "memberID": member, "alarm": "NOSPACE"});
        self.ask("maintenance/alarm", alarm).await?;
        let refused = self.put("alarm", "").await.err();
        Ok(refused.is_some_and(|error| error.to_string().contains("space exceeded")))
    }

    /// Changes the password of a user, who has to log in again, where [a password is demanded](Self::demand_password).
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    pub async fn change_password(&self, user: &str, password: &str) -> Result<()> {
        let login = self.ask("auth/authenticate", json!({"name": "root", "password": ROOT})).await?;
        let token = login["token"].as_str().unwrap_or_default();
        let change = json!({"name": user, "password": password});
        self.ask_as(token, "auth/user/changepw", change).await.map(drop)
    }

    /// Makes a user who may read and write what begins so, and demands a password of all clients from then on.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    pub async fn demand_password(&self, user: &str, password: &str, prefix: &str) -> Result<()> {
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().expect("the prefix is not empty") += 1;
        let rights = json!({"permType": "READWRITE", "key": base64(prefix), "range_end": base64(end)});
        for (path, body) in [
            ("auth/user/add", json!({"name": "root", "password": ROOT})),
            ("auth/role/add", json!({"name": "root"})),
            ("auth/user/grant", json!({"user": "root", "role": "root"})),
            ("auth/user/add", json!({"name": user, "password": password})),
            ("auth/role/add", json!({"name": user})),
            ("auth/role/grant", json!({"name": user, "perm": rights})),
            ("auth/user/grant", json!({"user": user, "role": user})),
            ("auth/enable", json!({})),
        ] {
            self.ask(path, body).await?;
        }
        Ok(())
    }
}

/// The password of `root`, once passwords are demanded.
const ROOT: &str = "the-password-of-root";

impl EtcdCluster {
    /// Starts three members, and waits for their leader.
    ///
    /// # Errors
    ///
    /// As for [`EtcdServer::start`].
    pub async fn start() -> Result<Self> {
        EtcdOptions::default().start_cluster().await
    }

    /// The members, in the order of the URL.
    pub fn members(&self) -> &[EtcdServer] {
        &self.members
    }

    /// `etcd://127.0.0.1:a,127.0.0.1:b,127.0.0.1:c`.
    pub fn url(&self) -> String {
        let members: Vec<_> = self.members.iter().map(|member| member.addr().to_string()).collect();
        format!("etcd://{}", members.join(","))
    }

    /// Cuts a member off from the others, and not from clients, or ends that. Needs [`EtcdOptions::proxied_links`].
    ///
    /// # Errors
    ///
    /// As [`EtcdServer::ask`].
    pub async fn cut_off(&self, member: usize, on: bool) -> Result<()> {
        let id = self.members[member].id().await?;
        for (at, door) in self.doors.iter().enumerate() {
            door.cut_off(|source| at == member || source == id, on);
        }
        Ok(())
    }

    /// The place of the leader; `None` while there is none.
    pub async fn leader(&self) -> Option<usize> {
        for (at, member) in self.members.iter().enumerate() {
            if member.inner.process.is_running() && member.leads().await {
                return Some(at);
            }
        }
        None
    }
}

impl EtcdOptions {
    /// Adds a flag, as `--quota-backend-bytes=16777216`.
    pub fn flag(mut self, flag: impl Into<OsString>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Puts proxies between the members of a cluster, for [`EtcdCluster::cut_off`].
    pub fn proxied_links(mut self) -> Self {
        self.proxied_links = true;
        self
    }

    /// Serves by TLS alone, with the certificate of the server, and accepts clients with the certificate of the client only.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        let (cert, key) = certificates.server();
        self.is_secure = true;
        for (flag, file) in [("cert-file", cert), ("key-file", key), ("trusted-ca-file", certificates.ca())] {
            self.flags.push(option(&format!("--{flag}="), &file));
        }
        self.flag("--client-cert-auth")
    }

    /// Starts a server alone.
    ///
    /// # Errors
    ///
    /// As for [`EtcdServer::start`].
    pub async fn start(self) -> Result<EtcdServer> {
        let start = move || self.start_blocking(1).map(|mut cluster| cluster.members.remove(0));
        off_thread(|| on_free_ports("etcd", start)).await
    }

    /// Starts three members, and waits for their leader.
    ///
    /// # Errors
    ///
    /// As for [`EtcdServer::start`].
    pub async fn start_cluster(self) -> Result<EtcdCluster> {
        let start = move || self.start_blocking(3);
        off_thread(|| on_free_ports("etcd", start)).await
    }

    fn start_blocking(&self, count: usize) -> Result<EtcdCluster, StartError> {
        let pick = || Ok([Port::pick("etcd")?, Port::pick("etcd")?, Port::pick("etcd")?]);
        let ports: Vec<[Port; 3]> = (0..count).map(|_| pick()).collect::<Result<_>>()?;
        let proxied = if self.proxied_links { &ports[..] } else { &[] };
        let doors: Vec<_> =
            proxied.iter().map(|[_, peers, _]| Door::start(peers.addr())).collect::<Result<_>>()?;
        let for_others = |at: usize| doors.get(at).map_or_else(|| ports[at][1].addr(), Door::addr);
        let for_others: Vec<_> = (0..count).map(for_others).collect();
        let named = |(at, addr): (usize, &SocketAddr)| format!("m{at}=http://{addr}");
        let cluster = for_others.iter().enumerate().map(named).collect::<Vec<_>>().join(",");
        let mut members = Vec::new();
        for (at, [clients, peers, metrics]) in ports.into_iter().enumerate() {
            let process = ServerProcess::new(format!("etcd on port {}", clients.number()))?;
            let scheme = if self.is_secure { "https" } else { "http" };
            let mut flags = vec![option("--data-dir=", &process.dir().join("data"))];
            flags.extend(
                [
                    format!("--name=m{at}"),
                    format!("--listen-client-urls={scheme}://{}", clients.addr()),
                    format!("--advertise-client-urls={scheme}://{}", clients.addr()),
                    format!("--listen-peer-urls=http://{}", peers.addr()),
                    format!("--initial-advertise-peer-urls=http://{}", for_others[at]),
                    format!("--listen-metrics-urls=http://{}", metrics.addr()),
                    format!("--initial-cluster={cluster}"),
                    "--unsafe-no-fsync".to_owned(),
                    "--log-level=warn".to_owned(),
                ]
                .map(OsString::from),
            );
            flags.extend(self.flags.iter().cloned());
            let inner = Inner { process, flags, clients, metrics, _peers: peers };
            inner.launch()?;
            members.push(inner);
        }
        for member in &members {
            member.wait()?;
        }
        let members = members.into_iter().map(|inner| EtcdServer { inner: Arc::new(inner) }).collect();
        Ok(EtcdCluster { members, doors })
    }
}

#[derive(Debug)]
struct Inner {
    // The process goes before the claims on its ports.
    process: ServerProcess,
    flags: Vec<OsString>,
    clients: Port,
    /// For its health, without TLS.
    metrics: Port,
    /// For other members.
    _peers: Port,
}

impl Inner {
    /// Starts the process. It is ready when there is a leader.
    fn launch(&self) -> Result<(), StartError> {
        let mut command = Command::new(program()?);
        command.args(&self.flags);
        self.process.clear_log();
        Ok(self.process.launch(&command)?)
    }

    /// A server that finds its port taken ends, and is never asked again.
    fn wait(&self) -> Result<(), StartError> {
        self.process.wait_ready(|_| self.get("/health").is_ok_and(|said| said.contains(r#""health":"true""#)))
    }

    fn get(&self, path: &str) -> std::io::Result<String> {
        ask(self.metrics.addr(), &format!("GET {path} HTTP/1.0\r\n\r\n"))
    }

    fn error(&self, error: StartError) -> Error {
        error.into_error(&self.process)
    }
}

fn program() -> Result<std::path::PathBuf> {
    locate("etcd", "apt-get install etcd-server")
}

fn option(flag: &str, file: &Path) -> OsString {
    let mut option = OsString::from(flag);
    option.push(file);
    option
}

/// Asks a server by HTTP/1.0, which closes the connection after its answer.
fn ask(server: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&server, ANSWER_DEADLINE)?;
    stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map(|_| answer)
}

/// Not by a crate: this is all that the test kit needs of base64.
fn base64(bytes: impl AsRef<[u8]>) -> String {
    let encode = |chunk: &[u8]| {
        let bits =
            chunk.iter().chain([&0; 2]).take(3).fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte));
        let digit = |at: usize| if at <= chunk.len() { BASE64[bits >> (18 - 6 * at) & 63] } else { b'=' };
        (0..4).map(|at| char::from(digit(at))).collect::<String>()
    };
    bytes.as_ref().chunks(3).map(encode).collect()
}

fn from_base64(text: &str) -> Vec<u8> {
    let digits = text.bytes().filter_map(|byte| BASE64.iter().position(|digit| *digit == byte));
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0, 0);
    for digit in digits {
        (bits, count) = ((bits << 6 | digit) & 0xfff, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    bytes
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_goes_both_ways() {
        for (text, encoded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob\u{ff}", "Zm9vYsO/")]
        {
            assert_eq!(base64(text), encoded);
            assert_eq!(from_base64(encoded), text.as_bytes());
        }
    }
}
