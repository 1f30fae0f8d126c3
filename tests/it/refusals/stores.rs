//! Refusals of PostgreSQL, of ZooKeeper, and of the old store of a migration.

use std::time::Duration;

use lock_testkit::{PostgresServer, RedisServer, ZooKeeper, migration_url};
use polylock::ErrorKind;
use tokio::time::sleep;
use tokio_postgres::NoTls;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

use super::{OUTAGE, endure, has, is_refused};

/// On a busy machine, a login takes a while, and so does the first call in a session.
const POSTGRES: &str = "ttl=5s&command_timeout=5s&connect_timeout=5s";
// Time: an outage outlasts it.
const ZK: &str = "session_timeout=2s";

async fn zk_client(server: &ZooKeeper) -> Client {
    Client::connector().connect(&server.connect_string()).await.unwrap()
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
    let allow = async || {
        is_refused(&url, ErrorKind::Denied).await;
        set("right").await;
    };
    let refusals = endure((&url, &url), 2 * OUTAGE, async || set("wrong").await, allow).await;
    has(&refusals, ErrorKind::Denied);
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_denies_a_right_for_some_seconds() {
    let server = ZooKeeper::start().await.unwrap();
    let url = format!("{}?{ZK}", server.url());
    let set = async |permission| {
        // Its session may end while there is no server.
        let client = zk_client(&server).await;
        for name in ["leader", "a"] {
            let acl = [Acl::new(permission, AuthId::anyone())];
            client.set_acl(&format!("/locks/{name}"), &acl, None).await.unwrap();
        }
    };
    let refuse = async || {
        set(Permission::ADMIN).await;
        server.kill();
        // Time: the sessions end, and nobody may enter a queue again.
        sleep(2 * OUTAGE).await;
        server.start_again().await.unwrap();
    };
    let refusals = endure((&url, &url), OUTAGE, refuse, async || set(Permission::ALL).await).await;
    has(&refusals, ErrorKind::Denied);
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_has_no_quorum_for_longer_than_a_session() {
    let server = ZooKeeper::start().await.unwrap();
    let url = format!("{}?{ZK}", server.url());
    // A session ends after two seconds, and the next one is tried for two seconds more.
    let refusals = endure(
        (&url, &url),
        3 * OUTAGE,
        async || server.kill(),
        async || server.start_again().await.unwrap(),
    );
    has(&refusals.await, ErrorKind::Unavailable);
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
        let refuse = async || {
            server.kill();
            server.remove_data().unwrap();
            server.start_again().await.unwrap();
        };
        let allow = async || {
            if !creates {
                is_refused(&url, ErrorKind::InvalidConfig).await;
                create_base().await;
            }
        };
        endure((&url, &url), if creates { Duration::ZERO } else { OUTAGE }, refuse, allow).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_old_store_of_a_migration_runs_out_of_memory() {
    let redis = RedisServer::builder().maxmemory_policy("noeviction").start().await.unwrap();
    let zk = ZooKeeper::start().await.unwrap();
    // Time: an outage outlasts it.
    let (from, to) = (format!("{}?ttl=2s", redis.url()), format!("{}?{ZK}", zk.url()));
    let url = migration_url("shop", &from, &to, "&rung=dual");
    let limit = async |bytes: &str| redis.call(&["CONFIG", "SET", "maxmemory", bytes]).await;
    endure((&url, &url), OUTAGE, async || drop(limit("1").await), async || drop(limit("0").await)).await;
}
