//! Real servers start, restart, freeze, and die with the process that started them.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};

use crate::Error;
use crate::Worker;
use crate::proxy::Direction;
use crate::servers::mariadb::{MariadbPair, MariadbServer};
use crate::servers::postgres::{PostgresPair, PostgresServer};
use crate::servers::redis::{RedisFive, RedisServer, Reply};
use crate::servers::zookeeper::{ZkEnsemble, ZooKeeper};
use serde_json::{Value, json};

#[tokio::test]
async fn redis_answers_commands() {
    let server = timed("redis-server", RedisServer::start()).await.unwrap();
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    assert_eq!(server.command(&["PING"]).await.unwrap(), Reply::Simple("PONG".into()));
    assert_eq!(server.command(&["SET", "k", "v w"]).await.unwrap(), Reply::Simple("OK".into()));
    assert_eq!(server.command(&["GET", "k"]).await.unwrap(), Reply::Bulk(b"v w".to_vec()));
    assert_eq!(server.command(&["GET", "none"]).await.unwrap(), Reply::Nil);
    assert_eq!(server.command(&["KEYS", "*"]).await.unwrap(), Reply::Array(vec![Reply::Bulk(b"k".to_vec())]));
    assert!(server.command(&["NONSENSE"]).await.unwrap().is_error());
}

#[tokio::test]
async fn redis_restarts_without_its_data() {
    let server = RedisServer::start().await.unwrap();
    let (port, pid) = (server.port(), server.pid());
    server.command(&["SET", "k", "v"]).await.unwrap();
    server.kill();
    assert!(matches!(server.command(&["PING"]).await, Err(Error::Io { .. })));
    server.start_again().await.unwrap();
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert_eq!(server.command(&["GET", "k"]).await.unwrap(), Reply::Nil);
}

#[tokio::test]
async fn redis_with_appendonly_restarts_with_its_data() {
    let server = RedisServer::builder().appendonly(true).start().await.unwrap();
    server.command(&["SET", "k", "v"]).await.unwrap();
    server.restart().await.unwrap();
    assert_eq!(server.command(&["GET", "k"]).await.unwrap().text(), Some("v"));
}

#[tokio::test]
async fn redis_options_reach_the_server() {
    let server =
        RedisServer::builder().password("s3cret").maxmemory_policy("allkeys-lru").config("hz", "17").start();
    let server = server.await.unwrap();
    assert_eq!(server.url(), format!("redis://:s3cret@127.0.0.1:{}", server.port()));
    for (name, value) in [("requirepass", "s3cret"), ("maxmemory-policy", "allkeys-lru"), ("hz", "17")] {
        let reply = server.command(&["CONFIG", "GET", name]).await.unwrap();
        assert_eq!(reply.array().unwrap()[1].text(), Some(value), "{name}");
    }
}

#[tokio::test]
async fn a_stopped_redis_answers_when_it_goes_on() {
    let server = RedisServer::start().await.unwrap();
    server.stop();
    let mut ping = Box::pin(server.command(&["PING"]));
    tokio::time::timeout(Duration::from_millis(100), &mut ping).await.unwrap_err();
    server.cont();
    assert_eq!(ping.await.unwrap().text(), Some("PONG"));
}

#[tokio::test]
async fn a_failed_start_shows_the_log() {
    let error = RedisServer::builder().config("hz", "many").start().await.unwrap_err();
    assert!(matches!(error, Error::Exited { .. }), "{error}");
    assert!(error.to_string().contains("argument couldn't be parsed into an integer"), "{error}");
    let error = ZooKeeper::builder().config("tickTime", "often").start().await.unwrap_err();
    assert!(error.to_string().contains("often"), "{error}");
}

#[tokio::test]
async fn five_masters_know_nothing_of_each_other() {
    let five = timed("five redis-servers", RedisFive::start()).await.unwrap();
    assert_eq!(five.servers().len(), 5);
    let addrs: Vec<_> = five.servers().iter().map(|server| server.addr().to_string()).collect();
    assert_eq!(five.url(), format!("redlock://{}", addrs.join(",")));
    five.servers()[0].command(&["SET", "k", "v"]).await.unwrap();
    for server in &five.servers()[1..] {
        assert!(server.command(&["GET", "k"]).await.unwrap().is_nil());
    }
}

#[tokio::test]
async fn a_standalone_zookeeper_serves() {
    let server = timed("standalone zookeeper", ZooKeeper::start()).await.unwrap();
    assert_eq!(server.url(), format!("zk://127.0.0.1:{}", server.port()));
    assert_eq!(server.mode().await.as_deref(), Some("standalone"));
    let mntr = server.mntr().await.unwrap();
    assert_eq!(mntr["zk_server_state"], "standalone");
    assert!(mntr["zk_znode_count"].parse::<u32>().unwrap() > 0, "{mntr:?}");
    let conf = server.four_letter("conf").await.unwrap();
    for line in ["tickTime=200", "minSessionTimeout=400", "maxSessionTimeout=60000"] {
        assert!(conf.contains(line), "no {line} in {conf}");
    }
}

#[tokio::test]
async fn zookeeper_options_reach_the_server() {
    let ms = Duration::from_millis;
    let options = ZooKeeper::builder()
        .tick_time(ms(100))
        .min_session_timeout(ms(300))
        .max_session_timeout(ms(5_000))
        .config("maxClientCnxns", "7");
    let conf = options.start().await.unwrap().four_letter("conf").await.unwrap();
    for line in ["tickTime=100", "minSessionTimeout=300", "maxSessionTimeout=5000", "maxClientCnxns=7"] {
        assert!(conf.contains(line), "no {line} in {conf}");
    }
    let unsafe_server = ZooKeeper::builder().start().await.unwrap();
    let safe_server = ZooKeeper::builder().force_sync(true).property("a.b", "c").start().await.unwrap();
    assert!(unsafe_server.four_letter("envi").await.is_ok());
    let arguments = |pid: u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(arguments(unsafe_server.pid()).contains("forceSync=no"));
    assert!(arguments(safe_server.pid()).contains("forceSync=yes"));
    assert!(arguments(safe_server.pid()).contains("-Da.b=c"));
}

#[tokio::test]
async fn an_ensemble_survives_its_leader() {
    let ensemble = timed("zookeeper ensemble", ZkEnsemble::start()).await.unwrap();
    let version = ensemble.nodes()[0].version().await.unwrap();
    println!("ensembles are of ZooKeeper {version}");
    assert_eq!(version.split('.').count(), 3, "{version}");
    let ports: Vec<_> = ensemble.nodes().iter().map(ZooKeeper::port).collect();
    assert_eq!(
        ensemble.url(),
        format!("zk://127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}", ports[0], ports[1], ports[2])
    );
    let mut modes = Vec::new();
    for node in ensemble.nodes() {
        modes.push(node.mode().await.unwrap());
    }
    modes.sort();
    assert_eq!(modes, ["follower", "follower", "leader"]);

    let leader = ensemble.leader().await.unwrap();
    ensemble.kill(leader);
    let killed = Instant::now();
    let next = eventually("a new leader", async || ensemble.leader().await).await;
    println!("new leader after {:?}", killed.elapsed());
    assert_ne!(next, leader);
    ensemble.nodes()[leader].start_again().await.unwrap();
    assert_eq!(ensemble.nodes()[leader].mode().await.as_deref(), Some("follower"));
}

#[tokio::test]
#[ignore = "full: an ensemble"]
async fn a_follower_hears_its_leader_through_a_proxy() {
    let ensemble = ZooKeeper::builder().proxied_links().start_ensemble(3).await.unwrap();
    let leader = ensemble.leader().await.unwrap();
    let [follower, third] = [1, 2].map(|step| (leader + step) % 3);
    for (from, to, follows) in
        [(follower, leader, 1), (third, leader, 1), (follower, third, 0), (leader, third, 0)]
    {
        let link = ensemble.link(from, to);
        eventually("the links in use", async || (link.connections() == follows).then_some(())).await;
    }
    let node = &ensemble.nodes()[follower];
    // It does not wait for longer than ten ticks.
    ensemble.link(follower, leader).hold(Direction::ToClient);
    eventually("a follower that gave up", async || node.mode().await.is_none().then_some(())).await;
    assert_eq!(
        eventually("a leader", async || ensemble.leader().await).await,
        leader,
        "the third stays with it"
    );
    ensemble.link(follower, leader).deliver();
    node.wait_ready().await.unwrap();
    assert_eq!(eventually("its mode", async || node.mode().await).await, "follower");
}

#[tokio::test]
#[ignore = "full: an ensemble"]
async fn a_leader_without_followers_stops_leading_whoever_connects_to_it() {
    // A connection that says nothing ends after `initLimit` ticks.
    let options = ZooKeeper::builder().proxied_links().config("initLimit", "500");
    let ensemble = options.start_ensemble(3).await.unwrap();
    let leader = ensemble.leader().await.unwrap();
    let mut silent = Vec::new();
    for follower in [1, 2].map(|step| (leader + step) % 3) {
        let link = ensemble.link(follower, leader);
        link.black_hole(Direction::ToServer, true);
        link.black_hole(Direction::ToClient, true);
        // As a follower does that misses its leader sooner than the leader misses it.
        silent.push(TcpStream::connect(link.addr()).unwrap());
    }
    let node = &ensemble.nodes()[leader];
    let leads = async || node.mode().await.as_deref() == Some("leader");
    eventually("a leader that gave up", async || (!leads().await).then_some(())).await;
}

#[tokio::test]
#[ignore = "full: an ensemble"]
async fn an_ensemble_comes_back_after_all_nodes_died() {
    let ensemble = ZkEnsemble::start().await.unwrap();
    for node in ensemble.nodes() {
        node.kill();
    }
    assert_eq!(ensemble.leader().await, None);
    for node in ensemble.nodes() {
        node.launch().await.unwrap();
    }
    for node in ensemble.nodes() {
        node.wait_ready().await.unwrap();
    }
    assert!(ensemble.leader().await.is_some());
}

#[tokio::test]
async fn a_dropped_server_is_gone_with_its_directory() {
    let server = RedisServer::start().await.unwrap();
    let pid = server.pid();
    let dir = server.command(&["CONFIG", "GET", "dir"]).await.unwrap();
    let dir = dir.array().unwrap()[1].text().unwrap().to_owned();
    assert!(runs(pid) && Path::new(&dir).is_dir());
    drop(server);
    assert!(!runs(pid) && !Path::new(&dir).exists());
}

#[tokio::test]
async fn postgres_answers_queries_and_leaves_nothing_behind() {
    let server = timed("PostgreSQL", PostgresServer::start()).await.unwrap();
    let (client, connection) =
        tokio_postgres::connect(&server.connect_string(), tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let row = client.query_one("SHOW data_directory", &[]).await.unwrap();
    let (pid, data) = (server.pid(), row.get::<_, String>(0));
    assert!(runs(pid) && has_shared_memory(pid));
    drop(server);
    assert!(!runs(pid) && !has_shared_memory(pid));
    assert!(!Path::new(&data).exists());
    connection.await.unwrap().unwrap_err();
}

#[tokio::test]
#[ignore = "full: three starts of PostgreSQL"]
async fn a_standby_of_postgres_takes_over_and_back() {
    let pair = timed("PostgreSQL with a standby", PostgresPair::start_synchronous()).await.unwrap();
    let [primary, standby] = pair.servers();
    primary.sql(&["CREATE TABLE seen (n int)", "INSERT INTO seen VALUES (1)"]).await.unwrap();
    let count = async |server: &PostgresServer| server.sql(&["SELECT count(*) FROM seen"]).await.unwrap();
    pair.catch_up().await.unwrap();
    assert_eq!(count(standby).await, "1");
    let refused = standby.sql(&["INSERT INTO seen VALUES (2)"]).await.unwrap_err();
    assert!(refused.to_string().contains("read-only"), "{refused}");

    primary.shut_down().await.unwrap();
    standby.promote().await.unwrap();
    standby.sql(&["INSERT INTO seen VALUES (2)"]).await.unwrap();
    primary.follow(standby).await.unwrap();
    eventually("the standby has caught up", async || (count(primary).await == "2").then_some(())).await;
}

#[tokio::test]
#[ignore = "full: a start of PostgreSQL"]
async fn a_disk_of_postgres_can_be_full() {
    let server = PostgresServer::builder().disk(100).start().await.unwrap();
    let make = "CREATE TABLE large AS SELECT repeat('x', 1000) FROM generate_series(1, 10000)";
    // The first session writes a file that others need.
    server.sql(&["SELECT 1"]).await.unwrap();
    assert!(server.fill_disk(true).await.unwrap());
    let full = server.sql(&[make]).await.unwrap_err();
    assert!(full.to_string().contains("No space left on device"), "{full}");
    assert!(!server.fill_disk(false).await.unwrap());
    server.sql(&[make]).await.unwrap();
}

#[tokio::test]
#[ignore = "full: a start of MariaDB"]
async fn a_disk_of_mariadb_can_be_full() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::builder().disk(100).start().await.unwrap();
    let make = "CREATE TABLE large AS SELECT REPEAT('x', 1000) AS x FROM seq_1_to_10000";
    assert!(server.fill_disk(true).await.unwrap());
    let full = server.sql(make).await.unwrap_err();
    assert!(full.to_string().contains("No space left on device"), "{full}");
    assert!(!server.fill_disk(false).await.unwrap());
    server.sql(make).await.unwrap();
}

#[tokio::test]
#[ignore = "full: four servers of MariaDB"]
async fn a_semi_synchronous_replica_of_mariadb_has_what_a_detached_one_lacks() {
    if MariadbServer::is_missing() {
        return;
    }
    for semi_synchronous in [false, true] {
        let pair = match semi_synchronous {
            true => MariadbPair::start_semi_synchronous().await.unwrap(),
            false => MariadbPair::start().await.unwrap(),
        };
        let [primary, replica] = pair.servers();
        primary.sql("CREATE TABLE before_it (n INT)").await.unwrap();
        if !semi_synchronous {
            pair.detach().await.unwrap();
        }
        primary.sql("CREATE TABLE after_it (n INT)").await.unwrap();
        primary.kill();
        pair.promote().await.unwrap();
        let tables = replica.sql("SHOW TABLES").await.unwrap();
        assert_eq!(tables, if semi_synchronous { "after_it\nbefore_it" } else { "before_it" });
        assert_eq!(replica.sql("SELECT @@read_only").await.unwrap(), "0");
    }
}

#[tokio::test]
#[ignore = "full: two servers of PostgreSQL"]
async fn a_detached_standby_of_postgres_lacks_what_follows() {
    let pair = PostgresPair::start().await.unwrap();
    let [primary, standby] = pair.servers();
    primary.sql(&["CREATE TABLE before ()"]).await.unwrap();
    pair.detach().await.unwrap();
    primary.sql(&["CREATE TABLE after ()"]).await.unwrap();
    primary.kill();
    standby.promote().await.unwrap();
    let tables = "SELECT to_regclass('before') IS NOT NULL, to_regclass('after') IS NULL";
    assert_eq!(standby.sql(&[tables]).await.unwrap(), "t|t");
}

/// The process that starts servers is killed as hard as can be, so nothing of its own can clean up.
#[tokio::test]
async fn servers_die_with_a_killed_parent() {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "tests::helper_that_starts_servers", "--ignored", "--nocapture", "--quiet"]);
    // The helper cannot clean up, so its directories are made in one that this process removes.
    let dir = tempfile::tempdir().unwrap();
    // For root, PostgreSQL runs as another user.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    command.env(HELPER, "1").env("TMPDIR", dir.path());
    let helper = Worker::spawn(&command).unwrap();
    let pids = helper.recv_deadline(Duration::from_secs(60)).await.unwrap();
    let pids: Vec<_> = pids.as_array().unwrap().iter().map(|pid| pid.as_u64().unwrap() as u32).collect();
    assert_eq!(pids.len(), 3);
    for &pid in &pids {
        assert!(runs(pid), "{pid}");
    }
    assert!(has_shared_memory(pids[2]));
    helper.kill();
    for &pid in &pids {
        eventually("the end of a server", async || (!runs(pid)).then_some(())).await;
    }
    assert!(!has_shared_memory(pids[2]), "PostgreSQL ends in order");
}

/// Not a test: the helper of the test above, run in a process of its own.
#[tokio::test]
#[ignore = "runs only as a helper process"]
async fn helper_that_starts_servers() {
    if env::var_os(HELPER).is_none() {
        return;
    }
    let redis = RedisServer::start().await.unwrap();
    // Started by a thread that ends at once: the server must live as long as the process all the same.
    let zookeeper = std::thread::spawn(|| {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(ZooKeeper::start()).unwrap()
    });
    let zookeeper = zookeeper.join().unwrap();
    let postgres = PostgresServer::start().await.unwrap();
    println!("\n{}", json!([redis.pid(), zookeeper.pid(), postgres.pid()]) as Value);
    std::future::pending::<()>().await;
}

async fn timed<T>(what: &str, start: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let started = start.await;
    println!("{what} up after {:?}", began.elapsed());
    started
}

async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "no sign of {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A process that is not waited for stays as a zombie, which counts as ended.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Whether a segment of System V shared memory exists that this process has made. It outlives a process that was killed.
fn has_shared_memory(pid: u32) -> bool {
    let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let creator = |segment: &str| segment.split_whitespace().nth(4).and_then(|pid| pid.parse().ok());
    segments.lines().any(|segment| creator(segment) == Some(pid))
}

const HELPER: &str = "LOCK_TESTKIT_HELPER";
