//! A Redis in memory: it runs real scripts, on tokio's clock, over streams with faults.
//!
//! It is for tests that need many runs or control of the clock: a second takes no time when tokio's clock is paused, and a
//! seed always gives the same run. It speaks RESP2 and RESP3, has the commands that locks use, and runs scripts in the Lua
//! version of Redis. Tests compare its answers with those of Redis.
//!
//! ```
//! use lock_testkit::fake::{Faults, FakeRedis};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let redis = FakeRedis::new();
//! let stream = redis.connect().unwrap();              // for a driver that takes any stream
//! let link = redis.link("client 1", 7);               // the same, with faults that the seed 7 determines
//! link.set_faults(Faults { lose_reply: 0.1, ..Faults::default() });
//! let stream = link.connect().unwrap();
//! assert_eq!(redis.command(&["SET", "k", "v", "PX", "100"]).text(), Some("OK"));
//! # });
//! ```
//!
//! It lacks databases other than 0, replicas, clusters, blocking commands, transactions, ACLs beyond one password, eviction,
//! tracking other than the default mode, and the libraries that Redis adds to Lua. Using them is an error.

mod commands;
mod connection;
mod dice;
mod dispatch;
mod keyspace;
mod link;
mod reply;
mod script;
mod server;
mod trace;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::io::DuplexStream;
use tokio::sync::Notify;
use tokio::time::sleep;

pub use self::dice::Dice;
use self::keyspace::Keyspace;
pub use self::link::{Faults, Link};
use self::server::Server;
pub use self::trace::Trace;
use crate::servers::redis::Reply;

/// A Redis server in this process. Clones are the same server.
#[derive(Clone, Debug)]
pub struct FakeRedis {
    shared: Arc<Shared>,
}

/// The data of a server at some time.
#[derive(Clone, Debug)]
pub struct Snapshot(Keyspace);

#[derive(Debug)]
struct Shared {
    server: Mutex<Server>,
    /// Notified when a client tracks keys or the clock was stepped: the next key may expire sooner.
    wake: Arc<Notify>,
}

impl FakeRedis {
    /// A server without a password.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new() -> Self {
        let wake = Arc::new(Notify::new());
        let shared = Arc::new(Shared { server: Mutex::new(Server::new()), wake: Arc::clone(&wake) });
        drop(tokio::spawn(reap(Arc::downgrade(&shared), wake)));
        Self { shared }
    }

    /// Requires this password.
    #[must_use]
    pub fn with_password(self, password: impl Into<String>) -> Self {
        self.server().password = Some(password.into());
        self
    }

    /// Sets the number of one of several servers, which distinguishes its `run_id`.
    #[must_use]
    pub fn numbered(self, number: u64) -> Self {
        let mut server = self.server();
        server.number = number;
        server.start();
        drop(server);
        self
    }

    /// Connects over a stream without faults.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::ConnectionRefused`] while the server is down.
    pub fn connect(&self) -> io::Result<DuplexStream> {
        self.link("direct", 0).connect()
    }

    /// The network between one client and the server. Its faults are off until they are
    /// [set](Link::set_faults).
    #[must_use]
    pub fn link(&self, label: impl Into<String>, seed: u64) -> Link {
        Link::new(self.clone(), label.into(), seed)
    }

    /// Runs one command for the test, without a connection. The reply may be an error reply.
    pub fn command(&self, words: &[&str]) -> Reply {
        let words: Vec<_> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        self.server().serve_test(&words).into()
    }

    /// Stops the server: all connections end, and data in flight is lost.
    pub fn crash(&self) {
        self.server().crash();
    }

    /// Starts the server after a [`crash`](Self::crash), with its data or empty. It has a new `run_id` and no scripts.
    pub fn start_again(&self, keep_data: bool) {
        let mut server = self.server();
        if !keep_data {
            server.keys.clear();
        }
        server.start();
        server.note(|| format!("the server is up {}", if keep_data { "with its data" } else { "empty" }));
    }

    /// The data of now, for a restart that [rolls back](Self::roll_back) to it.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.server().keys.clone())
    }

    /// Puts earlier data back after a [`crash`](Self::crash). What has expired since then ends with the next command.
    pub fn roll_back(&self, snapshot: Snapshot) {
        let mut server = self.server();
        server.keys = snapshot.0;
        server.note(|| "the data of earlier is put back".to_owned());
    }

    /// [`crash`](Self::crash) and [`start_again`](Self::start_again).
    pub fn restart(&self, keep_data: bool) {
        self.crash();
        self.start_again(keep_data);
    }

    /// [`restart`](Self::restart) without data and without a trace: `run_id` and uptime stay the same.
    pub fn restart_unseen(&self) {
        let mut server = self.server();
        let (run_id, started_us) = (server.run_id.clone(), server.started_us);
        server.crash();
        server.keys.clear();
        server.start();
        (server.run_id, server.started_us) = (run_id, started_us);
        server.note(|| "the server is up empty, with the same run_id".to_owned());
    }

    /// Steps the server's wall clock, by which keys expire and the uptime counts; a negative step goes backwards.
    pub fn step_clock(&self, millis: i64) {
        let mut server = self.server();
        server.clock.step(millis.saturating_mul(1000));
        server.note(|| format!("the server's clock steps by {millis} ms"));
        self.shared.wake.notify_one();
    }

    /// Expires a key now. Returns whether it existed.
    pub fn expire(&self, key: &str) -> bool {
        let mut server = self.server();
        server.tick();
        let was = server.keys.exists(key.as_bytes()) && server.keys.remove(key.as_bytes());
        if was {
            server.note(|| format!("the key {key} expires early"));
        }
        server.notify_trackers(0);
        was
    }

    /// The keys, sorted.
    pub fn keys(&self) -> Vec<String> {
        let mut server = self.server();
        server.tick();
        server.keys.keys().iter().map(|key| server::text(key)).collect()
    }

    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.server().sessions.len()
    }

    /// Writes connections, commands, answers, pushes and faults into the trace from now on. Each line begins with `name`.
    pub fn keep(&self, trace: &Trace, name: impl Into<String>) {
        self.server().trace = Some((trace.clone(), name.into()));
    }

    /// Runs a command of a connection.
    fn serve(&self, id: u64, words: &[Vec<u8>]) {
        let mut server = self.server();
        server.serve(id, words);
        if server.has_watchers() {
            self.shared.wake.notify_one();
        }
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        self.shared.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for FakeRedis {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

/// Expires tracked keys in time, so that their trackers are notified.
async fn reap(shared: Weak<Shared>, wake: Arc<Notify>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let next = shared.server.lock().unwrap_or_else(PoisonError::into_inner).reap();
        drop(shared);
        tokio::select! {
            biased;
            () = wake.notified() => {}
            () = sleep(next.unwrap_or_default()), if next.is_some() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::{Instant, timeout};

    use std::time::Duration;

    use super::*;
    use crate::servers::redis::reply::write_command;

    /// Sends commands and reads until a second of silence.
    async fn say(stream: &mut DuplexStream, commands: &[&[&str]]) -> String {
        let mut bytes = Vec::new();
        for command in commands {
            write_command(&mut bytes, command).unwrap();
        }
        stream.write_all(&bytes).await.unwrap();
        hear(stream).await
    }

    async fn hear(stream: &mut DuplexStream) -> String {
        let mut heard = Vec::new();
        while let Ok(Ok(1..)) = timeout(Duration::from_secs(1), stream.read_buf(&mut heard)).await {}
        String::from_utf8(heard).unwrap().replace("\r\n", " ")
    }

    #[tokio::test(start_paused = true)]
    async fn commands_are_answered_in_order_in_both_protocols() {
        let redis = FakeRedis::new();
        let mut stream = redis.connect().unwrap();
        let heard =
            say(&mut stream, &[&["SET", "k", "v"], &["GET", "k"], &["GET", "none"], &["CONFIG", "GET", "h"]])
                .await;
        assert_eq!(heard, "+OK $1 v $-1 *0 ");
        assert!(say(&mut stream, &[&["HELLO", "3"]]).await.starts_with("%7 $6 server $5 redis "));
        assert_eq!(say(&mut stream, &[&["GET", "none"], &["CONFIG", "GET", "h"]]).await, "_ %0 ");
        assert_eq!(say(&mut stream, &[&["GET"]]).await, "-ERR wrong number of arguments for 'get' command ");
    }

    #[tokio::test(start_paused = true)]
    async fn keys_expire_by_the_clock_of_the_test() {
        let redis = FakeRedis::new();
        drop(redis.command(&["SET", "k", "v", "PX", "1000"]));
        tokio::time::advance(Duration::from_millis(400)).await;
        assert_eq!(redis.command(&["PTTL", "k"]).int(), Some(600));
        redis.step_clock(-100);
        assert_eq!(redis.command(&["PTTL", "k"]).int(), Some(700));
        redis.step_clock(701);
        assert!(redis.keys().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tracker_is_notified_once_of_a_change_an_expiry_or_a_flush() {
        let redis = FakeRedis::new();
        let mut stream = redis.connect().unwrap();
        let hello = say(&mut stream, &[&["HELLO", "3"], &["CLIENT", "TRACKING", "ON"]]).await;
        assert!(hello.ends_with("+OK "), "{hello}");
        let invalidated = ">2 $10 invalidate *1 $1 k ";

        assert_eq!(say(&mut stream, &[&["GET", "k"]]).await, "_ ");
        drop(redis.command(&["SET", "k", "1"]));
        drop(redis.command(&["SET", "k", "2"]));
        assert_eq!(hear(&mut stream).await, invalidated);

        let script = "return redis.call('PTTL', KEYS[1])";
        assert_eq!(
            say(&mut stream, &[&["EVAL", script, "1", "k"]]).await,
            ":-1 ",
            "it reads through a script too"
        );
        assert_eq!(say(&mut stream, &[&["PEXPIRE", "k", "5000"]]).await, format!(":1 {invalidated}"));

        assert_eq!(say(&mut stream, &[&["TYPE", "k"]]).await, "+string ");
        let start = Instant::now();
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        assert!((2_900..5_100).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
        assert_eq!(hear(&mut stream).await, &invalidated[1..], "an expiry is a change");

        drop(redis.command(&["FLUSHALL"]));
        assert_eq!(hear(&mut stream).await, ">2 $10 invalidate _ ");
        drop(redis.command(&["SET", "k", "3"]));
        assert_eq!(hear(&mut stream).await, "", "the key was not read since");
    }

    #[tokio::test(start_paused = true)]
    async fn messages_reach_subscribers() {
        let redis = FakeRedis::new();
        let (mut old, mut new) = (redis.connect().unwrap(), redis.connect().unwrap());
        assert_eq!(
            say(&mut old, &[&["SUBSCRIBE", "a", "b"]]).await,
            "*3 $9 subscribe $1 a :1 *3 $9 subscribe $1 b :2 "
        );
        assert!(say(&mut old, &[&["GET", "k"]]).await.starts_with("-ERR Can't execute 'get'"));
        drop(say(&mut new, &[&["HELLO", "3"]]).await);
        assert_eq!(say(&mut new, &[&["SSUBSCRIBE", "a"]]).await, ">3 $10 ssubscribe $1 a :1 ");
        assert_eq!(redis.command(&["PUBLISH", "a", "x"]).int(), Some(1));
        assert_eq!(hear(&mut old).await, "*3 $7 message $1 a $1 x ");
        assert_eq!(say(&mut new, &[&["SPUBLISH", "a", "y"]]).await, ">3 $8 smessage $1 a $1 y :1 ");
        assert_eq!(say(&mut old, &[&["UNSUBSCRIBE", "a"]]).await, "*3 $11 unsubscribe $1 a :1 ");
        assert_eq!(redis.command(&["PUBSUB", "NUMSUB", "a"]).array().unwrap()[1].int(), Some(0));
        drop(old);
        tokio::task::yield_now().await;
        assert_eq!(
            redis.command(&["PUBLISH", "b", "x"]).int(),
            Some(0),
            "a closed connection is not counted"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_ends_connections_and_forgets_scripts() {
        let redis = FakeRedis::new();
        let mut stream = redis.connect().unwrap();
        let hash = redis.command(&["SCRIPT", "LOAD", "return 1"]);
        let run_id = |info: Reply| info.text().unwrap().lines().nth(3).unwrap().to_owned();
        let before = run_id(redis.command(&["INFO", "server"]));
        drop(redis.command(&["SET", "k", "v"]));
        redis.restart(true);
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
        assert!(
            redis.command(&["EVALSHA", hash.text().unwrap(), "0"]).text().unwrap().starts_with("NOSCRIPT")
        );
        assert_ne!(run_id(redis.command(&["INFO", "server"])), before);
        assert_eq!(redis.keys(), ["k"]);
        redis.crash();
        assert_eq!(redis.connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        redis.start_again(false);
        assert!(redis.keys().is_empty() && redis.connect().is_ok());
    }

    /// The effect of one fault on `RPUSH n x`: the reply, whether the connection is closed, and `n`.
    async fn spoiled(faults: Faults) -> (String, bool, Option<i64>) {
        let redis = FakeRedis::new();
        let link = redis.link("one", 1);
        link.set_faults(faults);
        let mut stream = link.connect().unwrap();
        let heard = say(&mut stream, &[&["RPUSH", "n", "x"]]).await;
        let closed = matches!(timeout(Duration::from_secs(1), stream.read(&mut [0])).await, Ok(Ok(0)));
        (heard, closed, redis.command(&["LLEN", "n"]).int())
    }

    #[tokio::test(start_paused = true)]
    async fn links_lose_and_reset() {
        let none = Faults::default();
        assert_eq!(spoiled(none.clone()).await, (":1 ".into(), false, Some(1)));
        let cases = [
            (Faults { lose_request: 1.0, ..none.clone() }, (false, Some(0))),
            (Faults { lose_reply: 1.0, ..none.clone() }, (false, Some(1))),
            (Faults { reset_before: 1.0, ..none.clone() }, (true, Some(0))),
            (Faults { reset_after: 1.0, ..none.clone() }, (true, Some(1))),
        ];
        for (faults, (closed, value)) in cases {
            assert_eq!(spoiled(faults.clone()).await, (String::new(), closed, value), "{faults:?}");
        }
        let refusing = FakeRedis::new().link("one", 1);
        refusing.set_faults(Faults { refuse: 1.0, ..none });
        assert!(refusing.connect().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn links_delay_and_stall_and_deliver_requests_of_closed_clients() {
        let redis = FakeRedis::new();
        let link = redis.link("one", 1);
        link.set_faults(Faults { delay_ms: 10..=10, ..Faults::default() });
        let (mut stream, start) = (link.connect().unwrap(), Instant::now());
        let mut bytes = Vec::new();
        write_command(&mut bytes, &["RPUSH", "n", "x"]).unwrap();
        stream.write_all(&bytes).await.unwrap();
        stream.read_exact(&mut [0; 4]).await.unwrap();
        assert!((20..25).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());

        link.stall(Duration::from_secs(5));
        stream.write_all(&bytes).await.unwrap();
        drop(stream);
        sleep(Duration::from_secs(4)).await;
        assert_eq!((redis.command(&["LLEN", "n"]).int(), redis.connections()), (Some(1), 1));
        sleep(Duration::from_secs(2)).await;
        assert_eq!((redis.command(&["LLEN", "n"]).int(), redis.connections()), (Some(2), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn passwords_are_required() {
        let redis = FakeRedis::new().with_password("open");
        let mut stream = redis.connect().unwrap();
        assert_eq!(say(&mut stream, &[&["GET", "k"]]).await, "-NOAUTH Authentication required. ");
        assert!(say(&mut stream, &[&["AUTH", "shut"]]).await.starts_with("-WRONGPASS"));
        assert_eq!(say(&mut stream, &[&["AUTH", "open"], &["GET", "k"]]).await, "+OK $-1 ");
    }
}
