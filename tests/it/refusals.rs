//! What can pass ends no wait, no campaign and no observer: each refusal lasts for some seconds here, on real servers.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::Duration;

use lock_testkit::{
    Certificates, PostgresServer, RedisFive, RedisSentinel, RedisServer, ZooKeeper, migration_url, until,
};
use polylock::{Error, ErrorKind, Guard, Leadership, LockOptions, Locks, Persistence, Result};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::NoTls;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

const SOON: Duration = Duration::from_secs(30);
/// Longer than a waiter tolerates a server that does not answer: a lease of a second, a session of two.
const OUTAGE: Duration = Duration::from_secs(3);
const REDIS: &str = "ttl=1s&command_timeout=200ms&connect_timeout=500ms";
/// On a busy machine, a login takes a while, and so does the first call in a session.
const POSTGRES: &str = "ttl=2s&command_timeout=2s&connect_timeout=5s";
const REDLOCK: &str = "ttl=1s&longest_ttl=2s&master_timeout=200ms&connect_timeout=500ms";
const ZK: &str = "session_timeout=2s";

type Candidate = JoinHandle<Result<()>>;

/// A leader and a holder, with those that wait for them: tasks of two other clients.
struct Standbys {
    seen: UnboundedReceiver<Result<Option<String>>>,
    candidates: Vec<Candidate>,
    leads: UnboundedReceiver<(&'static str, Leadership)>,
    waiters: Vec<JoinHandle<Result<()>>>,
    held: Option<(Leadership, Guard)>,
}

impl Standbys {
    /// `first` is the URL of the leader and the holder.
    async fn of(first: &str, others: &str) -> Self {
        let [leading, waiting, observing] =
            [connect(first).await, connect(others).await, connect(others).await];
        let mut seen = observe(&observing);
        assert_eq!(next(&mut seen).await.unwrap(), None);
        let leadership = leading.election("leader").campaign("one").await.unwrap();
        let held = (leadership, leading.mutex("a").acquire().await.unwrap());
        assert_eq!(next(&mut seen).await.unwrap().as_deref(), Some("one"));
        let (says, leads) = unbounded_channel();
        let candidates = [(&waiting, "two"), (&observing, "three")];
        let candidates =
            candidates.map(|(locks, label)| tokio::spawn(stand_by(locks.clone(), label, says.clone())));
        // Two of them are of one client.
        let waiters = [&waiting, &waiting, &observing].map(|locks| tokio::spawn(wait(locks.clone())));
        sleep(Duration::from_millis(500)).await;
        // What is refused at first ends: on a busy machine it takes longer until all of them have been answered.
        two_wait(&observing, "leader").await;
        two_wait(&observing, "a").await;
        Self { seen, candidates: candidates.into(), leads, waiters: waiters.into(), held: Some(held) }
    }

    /// Gives the locks back, or lets them expire where the store refuses that.
    async fn give_back(&mut self) {
        let (leadership, guard) = self.held.take().expect("they are given back once");
        let _ = timeout(Duration::from_secs(1), async { tokio::join!(leadership.resign(), guard.release()) })
            .await;
    }

    /// Checks that all go on through the outage.
    async fn stay(&mut self, outage: Duration) {
        let until = Instant::now() + outage;
        while Instant::now() < until {
            if let Some(task) =
                self.candidates.iter_mut().chain(&mut self.waiters).find(|task| task.is_finished())
            {
                panic!("one has ended: {:?}", task.await);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Checks that all get their lock, and that the observer reports the leaders; returns the errors that it reported.
    async fn come(mut self) -> Vec<Error> {
        drop(self.held);
        let mut refusals = Vec::new();
        for _ in 0..2 {
            let (label, leadership) =
                timeout(SOON, self.leads.recv()).await.expect("one leads").expect("two stand by");
            loop {
                match next(&mut self.seen).await {
                    Ok(Some(leader)) if leader == label => break,
                    Ok(_) => {}
                    Err(error) => refusals.push(error),
                }
            }
            leadership.resign().await.unwrap();
        }
        for waiter in self.waiters {
            timeout(SOON, waiter).await.expect("the lock comes").unwrap().unwrap();
        }
        refusals
    }
}

async fn stand_by(
    locks: Locks,
    label: &'static str,
    leads: UnboundedSender<(&'static str, Leadership)>,
) -> Result<()> {
    let leadership = locks.election("leader").campaign(label).await?;
    drop(leads.send((label, leadership)));
    Ok(())
}

async fn wait(locks: Locks) -> Result<()> {
    locks.mutex("a").acquire().await?.release().await.map(drop)
}

async fn two_wait(locks: &Locks, name: &str) {
    if locks.capabilities().counts_waiters {
        let are_two = async || locks.inspect(name).await.is_ok_and(|seen| seen.waiters >= 2);
        until("two wait", are_two).await;
    }
}

async fn connect(url: &str) -> Locks {
    Locks::connect(url).await.unwrap_or_else(|error| panic!("{error}"))
}

/// The labels of the leaders, and the errors between them.
fn observe(locks: &Locks) -> UnboundedReceiver<Result<Option<String>>> {
    let (mut leaders, (says, seen)) = (locks.election("leader").observe(), unbounded_channel());
    tokio::spawn(async move {
        while let Some(item) = leaders.next().await {
            drop(says.send(item.map(|leader| leader.and_then(|leader| leader.label().map(str::to_owned)))));
        }
    });
    seen
}

async fn next(seen: &mut UnboundedReceiver<Result<Option<String>>>) -> Result<Option<String>> {
    timeout(SOON, seen.recv()).await.expect("an event").expect("the observer goes on")
}

async fn all_ok<'a>(servers: impl IntoIterator<Item = &'a RedisServer>, words: &[&str]) {
    for server in servers {
        server.call(words).await;
    }
}

/// Has the user of the locks another password, and closes its connections.
async fn set_password<'a>(servers: impl IntoIterator<Item = &'a RedisServer>, password: &str) {
    for server in servers {
        server.call(&["ACL", "SETUSER", "app", "resetpass", &format!(">{password}")]).await;
        server.call(&["CLIENT", "KILL", "USER", "app"]).await;
    }
}

fn has(errors: &[Error], kind: ErrorKind) -> bool {
    // An outage is an item, and not each try.
    errors.iter().any(|error| error.kind() == kind) && errors.len() < 6
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_runs_out_of_memory_while_the_leader_resigns() {
    let server = RedisServer::builder().maxmemory_policy("noeviction").start().await.unwrap();
    let url = format!("{}?{REDIS}", server.url());
    for forgets in [false, true] {
        let mut standbys = Standbys::of(&url, &url).await;
        server.call(&["CONFIG", "SET", "maxmemory", "1"]).await;
        if forgets {
            // As after a restart: the locks are handed over to nobody. Nobody can enter the queue again.
            server.call(&["DEL", "polylock:queue:{lock:leader}", "polylock:queue:{lock:a}"]).await;
        }
        standbys.give_back().await;
        if forgets {
            standbys.stay(OUTAGE).await;
        }
        sleep(OUTAGE / 3).await;
        server.call(&["CONFIG", "SET", "maxmemory", "0"]).await;
        let refusals = standbys.come().await;
        // It is a candidate of the observing client that was refused.
        assert!(!forgets || has(&refusals, ErrorKind::Exhausted), "{refusals:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_refuses_the_password_for_some_seconds() {
    let server = RedisServer::builder().user("app", "on >right ~* &* +@all").start().await.unwrap();
    let url = format!("redis://app:right@{}?{REDIS}", server.addr());
    let mut standbys = Standbys::of(&url, &url).await;
    set_password([&server], "wrong").await;
    standbys.stay(OUTAGE).await;
    standbys.give_back().await;
    let error = Locks::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "what connects first fails at once: {error}");
    set_password([&server], "right").await;
    let refusals = standbys.come().await;
    assert!(has(&refusals, ErrorKind::Denied), "{refusals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_refuses_the_password_for_some_seconds() {
    let hba = "local all postgres trust\nhost all all 127.0.0.1/32 scram-sha-256";
    let server = PostgresServer::builder().hba(hba).start().await.unwrap();
    let (admin, connection) = tokio_postgres::connect(&server.connect_string(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let set = async |password: &str| {
        // Two transactions: until the first is committed, who is thrown out comes back with the old password.
        admin.batch_execute(&format!("ALTER ROLE app PASSWORD '{password}'")).await.unwrap();
        let sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'";
        admin.batch_execute(sessions).await.unwrap();
    };
    admin.batch_execute("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app").await.unwrap();
    set("right").await;
    let url = format!("postgres://app:right@{}/postgres?{POSTGRES}", server.addr());
    let mut standbys = Standbys::of(&url, &url).await;
    set("wrong").await;
    standbys.stay(OUTAGE).await;
    standbys.give_back().await;
    let error = Locks::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "what connects first fails at once: {error}");
    set("right").await;
    let refusals = standbys.come().await;
    assert!(has(&refusals, ErrorKind::Denied), "{refusals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_keeps_redis_busy() {
    let server = RedisServer::builder().config("lua-time-limit", "700").start().await.unwrap();
    for database in [0, 1] {
        let url = format!("{}/{database}?{REDIS}", server.url());
        let mut standbys = Standbys::of(&url, &url).await;
        let mut script = TcpStream::connect(server.addr()).unwrap();
        script.write_all(b"EVAL \"while true do end\" 0\r\n").unwrap();
        // The connections are given up first. Then the database has to be selected again, and that is refused.
        standbys.stay(OUTAGE).await;
        let refused = Locks::connect(&url).await.unwrap_err();
        assert!(
            refused.can_pass() && refused.to_string().contains("a script blocks the server"),
            "{refused}"
        );
        server.call(&["SCRIPT", "KILL"]).await;
        standbys.give_back().await;
        standbys.come().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_has_a_wrong_certificate_for_some_seconds() {
    let (right, wrong) = (Arc::new(Certificates::new().unwrap()), Certificates::new().unwrap());
    let server = RedisServer::builder().tls(&right, false).start().await.unwrap();
    let set = async |certificates: &Certificates| {
        let (cert, key) = certificates.server();
        let (cert, key) = (cert.display().to_string(), key.display().to_string());
        server.call(&["CONFIG", "SET", "tls-cert-file", &cert, "tls-key-file", &key]).await;
    };
    // On a busy machine, the first handshakes of a test program take a while.
    let options = format!("{REDIS}&tls_ca={}", right.ca().display()).replace("=500ms", "=5s");
    let url = format!("rediss://{}?{options}", server.tls_addr());
    let mut standbys = Standbys::of(&format!("{}?{REDIS}", server.url()), &url).await;
    set(&wrong).await;
    for kind in ["normal", "pubsub"] {
        server.call(&["CLIENT", "KILL", "TYPE", kind]).await;
    }
    standbys.give_back().await;
    standbys.stay(OUTAGE).await;
    set(&right).await;
    let refusals = standbys.come().await;
    assert!(has(&refusals, ErrorKind::InvalidConfig), "{refusals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn patience_ends_with_the_refusal_and_the_strict_end_at_once() {
    let server = RedisServer::builder().user("app", "on >right ~* &* +@all").start().await.unwrap();
    let url = format!("redis://app:right@{}?{REDIS}", server.addr());
    let (holds, patient, strict) = (connect(&url).await, connect(&url).await, connect(&url).await);
    let _guard = holds.mutex("a").acquire().await.unwrap();
    let (began, patience) = (Instant::now(), Duration::from_secs(4));
    let patients = [(); 2].map(|()| {
        let mutex = patient.mutex("a");
        tokio::spawn(async move { mutex.try_acquire_for(patience).await })
    });
    let options = LockOptions::new().persistence(Persistence::Strict);
    let mutex = strict.mutex_with("a", options).unwrap();
    let at_once = tokio::spawn(async move { mutex.acquire().await });
    two_wait(&holds, "a").await;
    set_password([&server], "wrong").await;
    let error = timeout(SOON, at_once).await.expect("it ends").unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    for waiter in patients {
        let error = timeout(SOON, waiter).await.expect("patience ends").unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    let took = began.elapsed();
    assert!(took >= patience && took < 3 * patience, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: a master, a replica and three sentinels"]
async fn a_master_behind_sentinels_runs_out_of_memory() {
    let options = RedisServer::builder().maxmemory_policy("noeviction");
    let servers = RedisSentinel::start_with(options, RedisSentinel::DOWN_AFTER).await.unwrap();
    let url = format!("{}?{REDIS}", servers.url());
    let mut standbys = Standbys::of(&url, &url).await;
    let master = servers.master().await.expect("there is one");
    master.call(&["CONFIG", "SET", "maxmemory", "1"]).await;
    master.call(&["DEL", "polylock:queue:{lock:leader}", "polylock:queue:{lock:a}"]).await;
    standbys.give_back().await;
    standbys.stay(OUTAGE).await;
    master.call(&["CONFIG", "SET", "maxmemory", "0"]).await;
    standbys.come().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_masters_refuse_for_some_seconds() {
    let options = RedisServer::builder().maxmemory_policy("noeviction").user("app", "on >right ~* &* +@all");
    let masters: RedisFive = options.start_n(3).await.unwrap();
    masters.have_been_used().await.unwrap();
    let url = format!("{}?{REDLOCK}", masters.url().replace("redlock://", "redlock://app:right@"));
    let few = || &masters.servers()[..2];

    let mut standbys = Standbys::of(&url, &url).await;
    set_password(few(), "wrong").await;
    standbys.stay(OUTAGE).await;
    standbys.give_back().await;
    set_password(few(), "right").await;
    let refusals = standbys.come().await;
    assert!(has(&refusals, ErrorKind::Denied), "{refusals:?}");

    let mut standbys = Standbys::of(&url, &url).await;
    all_ok(few(), &["CONFIG", "SET", "maxmemory", "1"]).await;
    all_ok(few(), &["DEL", "polylock:line:{lock:leader}", "polylock:line:{lock:a}"]).await;
    standbys.give_back().await;
    standbys.stay(OUTAGE).await;
    all_ok(few(), &["CONFIG", "SET", "maxmemory", "0"]).await;
    standbys.come().await;
}

async fn zk_client(server: &ZooKeeper) -> Client {
    Client::connector().connect(&server.connect_string()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_denies_a_right_for_some_seconds() {
    let server = ZooKeeper::start().await.unwrap();
    let url = format!("{}?{ZK}", server.url());
    let mut standbys = Standbys::of(&url, &url).await;
    let set = async |permission| {
        // Its session may end while there is no server.
        let client = zk_client(&server).await;
        for name in ["leader", "a"] {
            let acl = [Acl::new(permission, AuthId::anyone())];
            client.set_acl(&format!("/locks/{name}"), &acl, None).await.unwrap();
        }
    };
    set(Permission::ADMIN).await;
    // The sessions end, and nobody may enter a queue again.
    server.kill();
    standbys.stay(2 * OUTAGE).await;
    server.start_again().await.unwrap();
    standbys.give_back().await;
    standbys.stay(OUTAGE).await;
    set(Permission::ALL).await;
    let refusals = standbys.come().await;
    assert!(has(&refusals, ErrorKind::Denied), "{refusals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_has_no_quorum_for_longer_than_a_session() {
    let server = ZooKeeper::start().await.unwrap();
    let url = format!("{}?{ZK}", server.url());
    let mut standbys = Standbys::of(&url, &url).await;
    server.kill();
    // A session ends after two seconds, and the next one is tried for two seconds more.
    standbys.stay(3 * OUTAGE).await;
    server.start_again().await.unwrap();
    standbys.give_back().await;
    let refusals = standbys.come().await;
    assert!(has(&refusals, ErrorKind::Unavailable), "{refusals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_loses_its_data() {
    for creates in [false, true] {
        let server = ZooKeeper::start().await.unwrap();
        let create_base = async || {
            let client = zk_client(&server).await;
            client.create("/app", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
            // Larger numbers than those after the loss.
            for number in 0..50 {
                client.set_data("/app", number.to_string().as_bytes(), None).await.unwrap();
            }
        };
        let url = format!("{}/app?{ZK}{}", server.url(), if creates { "&create_chroot=true" } else { "" });
        create_base().await;
        let mut standbys = Standbys::of(&url, &url).await;
        server.kill();
        server.remove_data().unwrap();
        server.start_again().await.unwrap();
        standbys.give_back().await;
        if !creates {
            standbys.stay(OUTAGE).await;
            let error = Locks::connect(&url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "what connects first fails at once: {error}");
            create_base().await;
        }
        standbys.come().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_refused_for_some_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("flock://{}", dir.path().display());
    let mut standbys = Standbys::of(&url, &url).await;
    let files = ["leader", "a"].map(|name| dir.path().join(format!("{name}.token")));
    for file in &files {
        // Denied, also to root: somebody may have put it there.
        std::fs::rename(file, file.with_extension("kept")).unwrap();
        symlink("elsewhere", file).unwrap();
    }
    standbys.give_back().await;
    standbys.stay(OUTAGE).await;
    for file in &files {
        std::fs::rename(file.with_extension("kept"), file).unwrap();
    }
    standbys.come().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_old_store_of_a_migration_runs_out_of_memory() {
    let redis = RedisServer::builder().maxmemory_policy("noeviction").start().await.unwrap();
    let zk = ZooKeeper::start().await.unwrap();
    let (from, to) = (format!("{}?{REDIS}", redis.url()), format!("{}?{ZK}", zk.url()));
    let url = migration_url("shop", &from, &to, "&rung=dual");
    let mut standbys = Standbys::of(&url, &url).await;
    redis.call(&["CONFIG", "SET", "maxmemory", "1"]).await;
    standbys.give_back().await;
    standbys.stay(OUTAGE).await;
    redis.call(&["CONFIG", "SET", "maxmemory", "0"]).await;
    standbys.come().await;
}
