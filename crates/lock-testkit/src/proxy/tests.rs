//! Every fault of the proxy bites, shown with bare sockets and real servers.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::proxy::{Direction, FaultProxy, Protocol, Then, opcode, redis_command, zk_opcode};
use crate::servers::redis::{RedisServer, Reply};
use crate::servers::zookeeper::ZooKeeper;
use tokio::runtime::Runtime;

#[test]
fn requests_pass_and_are_counted() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    assert_eq!(client.ask("SET k v"), "+OK\r\n");
    assert_eq!(client.ask("GET k"), "$1\r\nv\r\n");
    assert_eq!(proxy.requests(), 2);
    assert_eq!(proxy.connections(), 1);

    // Requests that come in one piece, or in several, are as many as they are.
    client.send(b"PING\r\n*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$1");
    assert_eq!(client.read(14), "+PONG\r\n+PONG\r\n");
    assert_eq!(proxy.requests(), 4);
    client.send(b"\r\nk\r\n");
    assert_eq!(client.read(7), "$1\r\nv\r\n");
    assert_eq!(proxy.requests(), 5);

    let big = "x".repeat(300_000);
    assert_eq!(client.ask(&format!("SET big {big}")), "+OK\r\n");
    assert_eq!(client.ask_for(&format!("ECHO {big}"), 300_000 + 11).len(), 300_011);
    assert_eq!(command(&server, "STRLEN big"), Reply::Int(300_000));

    proxy.reset_counters();
    assert_eq!(proxy.requests(), 0);
    drop(client);
    until(|| proxy.connections() == 0);
}

#[test]
fn pushes_are_no_replies() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    client.send(b"HELLO 3\r\n");
    client.read_until("modules");
    client.drain();
    assert_eq!(client.ask("CLIENT TRACKING on BCAST"), "+OK\r\n");
    assert_eq!(proxy.pushes(), 0);
    command(&server, "SET watched 1");
    assert!(client.read_until("watched").starts_with(">2\r\n$10\r\ninvalidate"));
    client.drain();
    assert_eq!(proxy.pushes(), 1);

    // A push on its way must not be swallowed in place of the reply, before or after it.
    proxy.swallow_reply(2, Then::Hang);
    assert_eq!(client.ask("PING"), "+PONG\r\n");
    proxy.hold(Direction::ToServer);
    client.send(b"INCR n\r\n");
    until(|| proxy.queued(Direction::ToServer) > 0);
    command(&server, "SET watched 2");
    assert!(client.read_until("watched").starts_with('>'));
    client.drain();
    proxy.deliver();
    until(|| proxy.fired() == 1);
    assert_eq!(command(&server, "GET n"), Reply::Bulk(b"1".to_vec()));
    client.assert_silent();
}

#[test]
fn messages_of_resp2_are_no_replies() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    client.send(b"SUBSCRIBE a b\r\n");
    client.read_until(":2\r\n");
    assert_eq!(proxy.pushes(), 0);
    proxy.swallow_reply(1, Then::Reset);
    assert_eq!(command(&server, "PUBLISH a hello"), Reply::Int(1));
    client.read_until("hello\r\n");
    assert_eq!(proxy.pushes(), 1);
    client.send(b"PING\r\n");
    client.assert_reset();
}

#[test]
fn delay_is_by_direction() {
    let (_server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    let pause = Duration::from_millis(80);
    // A busy machine may take longer: the shortest of some times counts.
    let mut timed = || {
        let ping = |_| {
            let start = Instant::now();
            client.ask("PING");
            start.elapsed()
        };
        (0..3).map(ping).min().unwrap()
    };
    assert!(timed() < pause);
    proxy.delay(Direction::ToServer, pause);
    assert!((pause..2 * pause).contains(&timed()));
    proxy.delay(Direction::ToClient, pause);
    assert!((2 * pause..3 * pause).contains(&timed()));
    proxy.delay(Direction::ToServer, Duration::ZERO);
    assert!((pause..2 * pause).contains(&timed()));
    // What is delayed already goes at once when the fault ends.
    proxy.delay(Direction::ToClient, Duration::from_secs(60));
    client.send(b"PING\r\n");
    until(|| proxy.queued(Direction::ToClient) == 7);
    proxy.heal();
    assert_eq!(client.read(7), "+PONG\r\n");
}

#[test]
fn a_delay_keeps_no_request_from_being_on_the_way() {
    let (_server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    let delay = Duration::from_millis(400);
    proxy.delay(Direction::ToServer, delay);
    let start = Instant::now();
    for _ in 0..5 {
        client.send(b"PING\r\n");
        thread::sleep(Duration::from_millis(10));
    }
    client.read(35);
    assert!(start.elapsed() < 4 * delay, "{:?}: the delays have added up", start.elapsed());
}

#[test]
fn fin_closes_and_rst_resets() {
    let (server, proxy) = redis();
    let (mut first, mut second) = (Client::connect(&proxy), Client::connect(&proxy));
    first.ask("PING");
    second.ask("PING");
    assert_eq!(proxy.connections(), 2);
    proxy.fin();
    assert_eq!(proxy.connections(), 0);
    first.assert_closed();
    second.assert_closed();
    until(|| clients(&server) == 1);

    let mut third = Client::connect(&proxy);
    third.ask("PING");
    proxy.rst();
    assert_eq!(proxy.connections(), 0);
    third.assert_reset();
    until(|| clients(&server) == 1);
}

#[test]
fn a_black_hole_to_the_server_eats_requests() {
    let (server, proxy) = redis();
    let (mut touched, mut untouched) = (Client::connect(&proxy), Client::connect(&proxy));
    touched.ask("PING");
    untouched.ask("PING");
    proxy.black_hole(Direction::ToServer, true);
    touched.send(b"SET k v\r\n");
    until(|| proxy.requests() == 3);
    touched.assert_silent();
    assert_eq!(command(&server, "GET k"), Reply::Nil);
    // What the server sends still arrives on a connection that has lost bytes in the other direction only.
    assert_eq!(proxy.connections(), 2);

    proxy.black_hole(Direction::ToServer, false);
    touched.assert_reset();
    assert_eq!(untouched.ask("GET k"), "$-1\r\n");
}

#[test]
fn a_black_hole_to_the_client_eats_replies() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    client.ask("PING");
    proxy.black_hole(Direction::ToClient, true);
    client.send(b"SET k v\r\n");
    until(|| command(&server, "GET k") == Reply::Bulk(b"v".to_vec()));
    client.assert_silent();
    proxy.heal();
    client.assert_reset();
}

#[test]
fn a_black_hole_hides_that_a_side_has_closed() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    client.ask("PING");
    proxy.black_hole(Direction::ToServer, true);
    drop(client);
    thread::sleep(SILENCE);
    assert_eq!(clients(&server), 2);
    assert_eq!(proxy.connections(), 1);
    proxy.heal();
    until(|| clients(&server) == 1);

    let mut client = Client::connect(&proxy);
    client.ask("PING");
    proxy.black_hole(Direction::ToClient, true);
    server.kill();
    client.assert_silent();
    // After the client has closed, the loss no longer matters.
    drop(client);
    until(|| proxy.connections() == 0);
}

#[test]
fn a_held_request_reaches_the_server_after_its_client_has_gone() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    client.ask("PING");
    proxy.hold(Direction::ToServer);
    client.send(b"SET k v\r\n");
    until(|| proxy.queued(Direction::ToServer) == 9);
    drop(client);
    thread::sleep(SILENCE);
    assert_eq!(command(&server, "GET k"), Reply::Nil);
    proxy.deliver();
    until(|| command(&server, "GET k") == Reply::Bulk(b"v".to_vec()));
    until(|| clients(&server) == 1);
    until(|| proxy.connections() == 0);
    assert_eq!(proxy.queued(Direction::ToServer), 0);
}

#[test]
fn a_held_request_survives_a_client_that_leaves_by_a_reset() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    client.send(b"PING\r\n");
    until(|| proxy.bytes() == b"PING\r\n+PONG\r\n".len() as u64);
    proxy.hold(Direction::ToServer);
    client.send(b"SET k v\r\n");
    until(|| proxy.queued(Direction::ToServer) == 9);
    // Closing with unread bytes is a reset.
    drop(client);
    proxy.heal();
    until(|| command(&server, "GET k") == Reply::Bulk(b"v".to_vec()));
}

#[test]
fn a_held_reply_arrives_late() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    client.ask("PING");
    proxy.hold(Direction::ToClient);
    client.send(b"SET k v\r\n");
    until(|| command(&server, "GET k") == Reply::Bulk(b"v".to_vec()));
    client.assert_silent();
    proxy.deliver();
    assert_eq!(client.read(5), "+OK\r\n");
    assert_eq!(client.ask("PING"), "+PONG\r\n");
}

#[test]
fn a_swallowed_reply_leaves_an_applied_request() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    proxy.swallow_reply(2, Then::Reset);
    assert_eq!(client.ask("INCR n"), ":1\r\n");
    assert_eq!(proxy.fired(), 0);
    client.send(b"INCR n\r\n");
    client.assert_reset();
    assert_eq!(proxy.fired(), 1);
    assert_eq!(command(&server, "GET n"), Reply::Bulk(b"2".to_vec()));
    // The fault is used up.
    let mut client = Client::connect(&proxy);
    assert_eq!(client.ask("INCR n"), ":3\r\n");
    assert_eq!(client.ask("INCR n"), ":4\r\n");
}

#[test]
fn a_request_that_is_repeated_has_the_second_reply() {
    let (_server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    proxy.repeat_when(redis_command("incr"));
    client.send(b"ECHO a\r\nINCR n\r\nECHO b\r\n");
    assert_eq!(client.read(18), "$1\r\na\r\n:2\r\n$1\r\nb\r\n");
    assert_eq!(proxy.fired(), 1);
    assert_eq!(client.ask("INCR n"), ":3\r\n");
}

#[test]
fn a_reply_may_be_swallowed_by_a_server_that_closes() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    proxy.swallow_reply(1, Then::Fin);
    client.send(b"INCR n\r\n");
    client.assert_closed();
    assert_eq!(proxy.fired(), 1);
    assert_eq!(command(&server, "GET n"), Reply::Bulk(b"1".to_vec()));
    drop(client);
    until(|| proxy.connections() == 0);
}

#[test]
fn a_swallowed_reply_in_a_pipeline_takes_only_what_follows() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    proxy.swallow_when(redis_command("incr"), Then::Hang);
    client.send(b"ECHO a\r\nINCR n\r\nECHO b\r\n");
    assert_eq!(client.read(7), "$1\r\na\r\n");
    client.assert_silent();
    client.send(b"SET k v\r\n");
    until(|| command(&server, "GET k") == Reply::Bulk(b"v".to_vec()));
    assert_eq!(command(&server, "GET n"), Reply::Bulk(b"1".to_vec()));
    client.assert_silent();
    proxy.heal();
    client.assert_reset();
}

#[test]
fn a_cut_request_is_applied() {
    let (server, proxy) = redis();
    for round in 1..=20 {
        let mut client = Client::connect(&proxy);
        proxy.cut_after_request(2);
        assert_eq!(client.ask("PING"), "+PONG\r\n");
        client.send(b"INCR n\r\nINCR after\r\n");
        client.assert_reset();
        until(|| command(&server, "GET n").int() == Some(round));
        assert_eq!(proxy.fired(), round as u64);
    }
    // What came after the cut never reached the server.
    assert_eq!(command(&server, "GET after"), Reply::Nil);
    until(|| clients(&server) == 1);
}

/// Seen from the server: a reset could overtake the request, the end of the stream cannot.
#[test]
fn a_cut_server_reads_the_request_and_then_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = FaultProxy::start(listener.local_addr().unwrap(), Protocol::Redis).unwrap();
    let mut client = Client::connect(&proxy);
    let (mut server, _) = listener.accept().unwrap();
    proxy.cut_after_request(1);
    client.send(b"SET k v\r\n");
    client.assert_reset();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut all = Vec::new();
    server.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"SET k v\r\n");
}

#[test]
fn a_cut_by_filter_waits_for_its_request() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    proxy.cut_when(redis_command("SET"));
    assert_eq!(client.ask("GET SET"), "$-1\r\n");
    assert_eq!(client.ask("INCR n"), ":1\r\n");
    client.send(b"SET k v\r\n");
    client.assert_reset();
    until(|| command(&server, "GET k") == Reply::Bulk(b"v".to_vec()));

    proxy.cut_when(redis_command("SET"));
    proxy.heal();
    assert_eq!(Client::connect(&proxy).ask("SET k w"), "+OK\r\n");
}

#[test]
fn the_rest_of_a_write_is_held_after_a_request() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    proxy.hold_after(redis_command("SET"));
    client.send(b"SET k v\r\nSET k w\r\n");
    until(|| {
        command(&server, "GET k") == Reply::Bulk(b"v".to_vec()) && proxy.queued(Direction::ToServer) > 0
    });
    assert_eq!(proxy.fired(), 1);
    proxy.deliver();
    until(|| command(&server, "GET k") == Reply::Bulk(b"w".to_vec()));
}

#[test]
fn replies_are_held_from_a_request_on() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    proxy.hold_replies_when(redis_command("SET"));
    assert_eq!(client.ask("PING"), "+PONG\r\n");
    client.send(b"SET k v\r\n");
    until(|| {
        command(&server, "GET k") == Reply::Bulk(b"v".to_vec()) && proxy.queued(Direction::ToClient) > 0
    });
    assert_eq!(proxy.fired(), 1);
    proxy.deliver();
    assert_eq!(client.read(5), "+OK\r\n");
}

#[test]
fn refused_connections_are_reset_and_open_ones_stay() {
    let (_server, proxy) = redis();
    let mut old = Client::connect(&proxy);
    old.ask("PING");
    proxy.refuse(true);
    Client::connect(&proxy).assert_reset();
    assert_eq!(old.ask("PING"), "+PONG\r\n");
    proxy.refuse(false);
    assert_eq!(Client::connect(&proxy).ask("PING"), "+PONG\r\n");
}

#[test]
fn a_dead_server_is_a_reset_and_a_restarted_one_is_reached() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    client.ask("PING");
    server.kill();
    client.assert_ended();
    Client::connect(&proxy).assert_reset();
    RUNTIME.block_on(server.start_again()).unwrap();
    assert_eq!(Client::connect(&proxy).ask("PING"), "+PONG\r\n");
}

#[test]
fn an_opaque_proxy_forwards_bytes() {
    let server = RUNTIME.block_on(RedisServer::start()).unwrap();
    let proxy = FaultProxy::start(server.addr(), Protocol::Opaque).unwrap();
    let mut client = Client::connect(&proxy);
    client.send(b"PI");
    client.send(b"NG\r\n");
    assert_eq!(client.read(7), "+PONG\r\n");
    assert_eq!(proxy.requests(), 0);
    proxy.black_hole(Direction::ToServer, true);
    client.send(b"PING\r\n");
    client.assert_silent();
}

#[test]
fn a_half_closed_client_gets_its_replies() {
    let (_server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    proxy.delay(Direction::ToClient, Duration::from_millis(30));
    client.send(b"PING\r\n");
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read(7), "+PONG\r\n");
    client.assert_closed();
}

#[test]
fn everything_ends_with_the_proxy() {
    let (server, proxy) = redis();
    let mut client = Client::connect(&proxy);
    client.ask("PING");
    let addr = proxy.addr();
    drop(proxy);
    client.assert_ended();
    assert!(TcpStream::connect(addr).is_err());
    until(|| clients(&server) == 1);
}

#[test]
fn zookeeper_requests_are_counted_and_events_are_pushes() {
    let (server, proxy) = zookeeper();
    let mut session = Session::connect(proxy.addr());
    assert_eq!(proxy.requests(), 0);
    session.ping();
    assert_eq!(proxy.requests(), 0);
    assert_eq!(session.exists("/a", true), NO_NODE);
    assert_eq!(proxy.requests(), 1);
    assert_eq!(proxy.pushes(), 0);
    assert_eq!(Session::connect(server.addr()).create("/a"), OK);
    assert_eq!(session.receive().xid, EVENT);
    assert_eq!(proxy.pushes(), 1);
    assert_eq!(session.exists("/a", false), OK);
    assert_eq!(proxy.requests(), 2);
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn zookeeper_replies_are_swallowed_by_filter() {
    let (server, proxy) = zookeeper();
    let mut session = Session::connect(proxy.addr());
    proxy.swallow_when(zk_opcode(opcode::CREATE), Then::Hang);
    assert_eq!(session.exists("/a", true), NO_NODE);
    session.send_create("/a");
    until(|| proxy.fired() == 1);
    // The watch goes off before the reply would come.
    assert_eq!(session.receive().xid, EVENT);
    session.client.assert_silent();
    assert_eq!(Session::connect(server.addr()).exists("/a", false), OK);

    proxy.heal();
    session.client.assert_reset();
    let mut session = Session::connect(proxy.addr());
    proxy.swallow_reply(2, Then::Reset);
    assert_eq!(session.create("/b"), OK);
    session.ping();
    session.send_create("/c");
    session.client.assert_reset();
    assert_eq!(Session::connect(server.addr()).exists("/c", false), OK);
}

#[test]
fn zookeeper_requests_are_cut() {
    let (server, proxy) = zookeeper();
    for round in 0..10 {
        let path = format!("/n{round}");
        let mut session = Session::connect(proxy.addr());
        proxy.cut_when(zk_opcode(opcode::CREATE));
        assert_eq!(session.exists(&path, false), NO_NODE);
        session.send_create(&path);
        session.client.assert_reset();
        until(|| Session::connect(server.addr()).exists(&path, false) == OK);
    }
}

#[test]
fn a_held_zookeeper_request_arrives_after_its_client_has_gone() {
    let (server, proxy) = zookeeper();
    let mut session = Session::connect(proxy.addr());
    session.ping();
    proxy.hold(Direction::ToServer);
    session.send_create("/late");
    until(|| proxy.queued(Direction::ToServer) > 0);
    drop(session);
    thread::sleep(SILENCE);
    assert_eq!(Session::connect(server.addr()).exists("/late", false), NO_NODE);
    proxy.deliver();
    until(|| Session::connect(server.addr()).exists("/late", false) == OK);
}

#[test]
fn four_letter_words_pass() {
    let (_server, proxy) = zookeeper();
    let mut client = Client::connect(&proxy);
    client.send(b"ruok");
    assert_eq!(client.read(4), "imok");
    client.assert_closed();
    assert_eq!(proxy.requests(), 0);
}

/// The servers' own interface is asynchronous; the proxy and the sockets of these tests need no runtime.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the system can run a runtime")
});

const SILENCE: Duration = Duration::from_millis(60);
const PATIENCE: Duration = Duration::from_secs(10);

fn redis() -> (RedisServer, FaultProxy) {
    let server = RUNTIME.block_on(RedisServer::start()).unwrap();
    let proxy = FaultProxy::start(server.addr(), Protocol::Redis).unwrap();
    (server, proxy)
}

fn zookeeper() -> (ZooKeeper, FaultProxy) {
    let server = RUNTIME.block_on(ZooKeeper::start()).unwrap();
    let proxy = FaultProxy::start(server.addr(), Protocol::ZooKeeper).unwrap();
    (server, proxy)
}

fn command(server: &RedisServer, line: &str) -> Reply {
    RUNTIME.block_on(server.command(&line.split(' ').collect::<Vec<_>>())).unwrap()
}

/// How many connections the server knows of, with the one that asks.
fn clients(server: &RedisServer) -> usize {
    command(server, "CLIENT LIST").text().unwrap().lines().count()
}

fn until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it did not come to pass");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A line as a RESP array.
fn request(line: &str) -> String {
    let words: Vec<_> = line.split(' ').collect();
    let bulks: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{bulks}", words.len())
}

struct Client {
    stream: TcpStream,
}

impl Client {
    fn connect(proxy: &FaultProxy) -> Self {
        Self::to(proxy.addr())
    }

    fn to(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends a line as a RESP array and reads a reply that fits into one piece.
    fn ask(&mut self, line: &str) -> String {
        self.send(request(line).as_bytes());
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buffer = [0; 512];
        let length = self.stream.read(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    /// The same for a reply of this length. Not as an inline command: those end at 64 KiB.
    fn ask_for(&mut self, line: &str, length: usize) -> String {
        self.send(request(line).as_bytes());
        self.read(length)
    }

    fn read(&mut self, length: usize) -> String {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn read_until(&mut self, text: &str) -> String {
        let mut all = String::new();
        while !all.contains(text) {
            all.push_str(&self.read(1));
        }
        all
    }

    /// Reads what is on its way.
    fn drain(&mut self) {
        self.stream.set_read_timeout(Some(SILENCE)).unwrap();
        while self.stream.read(&mut [0; 512]).is_ok() {}
    }

    /// Nothing comes, and the connection stays.
    fn assert_silent(&mut self) {
        self.stream.set_read_timeout(Some(SILENCE)).unwrap();
        let error = self.stream.read(&mut [0; 512]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    }

    fn assert_closed(&mut self) {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(self.stream.read(&mut [0; 512]).unwrap(), 0);
    }

    fn assert_reset(&mut self) {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(self.stream.read(&mut [0; 512]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    /// Closed or reset: the kernel of a killed process chooses.
    fn assert_ended(&mut self) {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        match self.stream.read(&mut [0; 512]) {
            Ok(length) => assert_eq!(length, 0),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
}

const OK: i32 = 0;
const NO_NODE: i32 = -101;
const EVENT: i32 = -1;
const PING: i32 = -2;

/// A ZooKeeper session, made by hand.
struct Session {
    client: Client,
    xid: i32,
}

struct Answer {
    xid: i32,
    error: i32,
}

impl Session {
    fn connect(addr: SocketAddr) -> Self {
        let mut session = Self { client: Client::to(addr), xid: 0 };
        let version_and_zxid = [0; 12];
        let timeout = 5_000_i32.to_be_bytes();
        let session_id = [0; 8];
        session.send(&[&version_and_zxid[..], &timeout, &session_id, &buffer(&[0; 16]), &[0]].concat());
        session.receive_bytes();
        session
    }

    fn ping(&mut self) {
        self.send(&[PING.to_be_bytes(), 11_i32.to_be_bytes()].concat());
        assert_eq!(self.receive().xid, PING);
    }

    fn create(&mut self, path: &str) -> i32 {
        self.send_create(path);
        self.answer()
    }

    fn send_create(&mut self, path: &str) {
        let acl =
            [&1_i32.to_be_bytes()[..], &31_i32.to_be_bytes(), &buffer(b"world"), &buffer(b"anyone")].concat();
        let persistent = 0_i32.to_be_bytes();
        self.request(
            opcode::CREATE,
            &[&buffer(path.as_bytes())[..], &buffer(b""), &acl, &persistent].concat(),
        );
    }

    fn exists(&mut self, path: &str, watch: bool) -> i32 {
        self.request(opcode::EXISTS, &[&buffer(path.as_bytes())[..], &[u8::from(watch)]].concat());
        self.answer()
    }

    fn request(&mut self, opcode: i32, body: &[u8]) {
        self.xid += 1;
        self.send(&[&self.xid.to_be_bytes()[..], &opcode.to_be_bytes(), body].concat());
    }

    /// The answer to the last request; events in between are skipped.
    fn answer(&mut self) -> i32 {
        loop {
            let answer = self.receive();
            if answer.xid != EVENT {
                assert_eq!(answer.xid, self.xid);
                return answer.error;
            }
        }
    }

    fn receive(&mut self) -> Answer {
        let bytes = self.receive_bytes();
        let int = |at: usize| i32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        Answer { xid: int(0), error: int(12) }
    }

    fn send(&mut self, body: &[u8]) {
        self.client.send(&buffer(body));
    }

    fn receive_bytes(&mut self) -> Vec<u8> {
        self.client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut length = [0; 4];
        self.client.stream.read_exact(&mut length).unwrap();
        let mut bytes = vec![0; i32::from_be_bytes(length) as usize];
        self.client.stream.read_exact(&mut bytes).unwrap();
        bytes
    }
}

fn buffer(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as i32).to_be_bytes()[..], bytes].concat()
}
