//! Credentials, ACLs, SASL and TLS, on servers that insist on them.

use std::time::{Duration, Instant};

#[cfg(any(feature = "sasl", feature = "tls"))]
use crate::common::Server;
use crate::common::{client, config, mkdir, proxy, through, transacts, until_children};
use lock_core::{Error, ErrorKind, Holder, Locks};
#[cfg(feature = "tls")]
use lock_testkit::Certificates;
#[cfg(any(feature = "sasl", feature = "tls"))]
use lock_testkit::ZooKeeper;
use lock_zk::zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};
use lock_zk::{NodeAcl, ZkConfig};
use tokio::time::sleep;

async fn take_and_give_back(locks: &Locks) {
    let guard = locks.mutex("a").acquire().await.unwrap();
    guard.verify().await.unwrap();
    guard.release().await.unwrap();
}

/// The ACL of this node, as `scheme:rights`.
async fn acl(client: &Client, path: &str) -> Vec<String> {
    let (acl, _) = client.get_acl(path).await.unwrap();
    acl.iter().map(|acl| format!("{}:{}", acl.scheme(), acl.permission())).collect()
}

fn must_name(error: &Error, right: &str, path: &str) {
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        error.to_string().contains(&format!("the ACL of {path} does not grant the right to {right}")),
        "{error}"
    );
    assert!(!format!("{error} {error:?}").contains("Pa55"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn nodes_belong_to_the_client_with_the_credentials() {
    let server = crate::common::server().await;
    let ours = config(&server).credentials("me", "Pa55").connect().await.unwrap();
    let guard = ours.mutex("a").acquire().await.unwrap();
    let other = client(&server).await;
    other.auth("digest", b"me:Pa55").await.unwrap();
    let node = format!("/locks/a/{}", other.list_children("/locks/a").await.unwrap()[0]);
    for path in ["/locks", "/locks/a", &node] {
        assert_eq!(acl(&other, path).await, ["digest:ALL"], "{path}");
    }
    // A wrong password is another user, and so is no password.
    for config in [config(&server).credentials("me", "Wr0ng-Pa55"), config(&server)] {
        let locks = config.connect().await.unwrap();
        must_name(&locks.mutex("a").acquire().await.unwrap_err(), "create", "/locks/a");
        must_name(&locks.mutex("b").acquire().await.unwrap_err(), "create", "/locks");
        must_name(&locks.mutex("a").try_acquire().await.unwrap_err(), "read", "/locks/a");
        must_name(&locks.inspect("a").await.unwrap_err(), "read", "/locks/a");
        must_name(&locks.break_lock("a").await.unwrap_err(), "read", "/locks/a");
    }
    let same = config(&server).credentials("me", "Pa55").private_session(true).connect().await.unwrap();
    assert!(same.mutex("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    take_and_give_back(&same).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_acl_can_be_chosen() {
    let server = crate::common::server().await;
    let with = |acl, name: &str| {
        config(&server).credentials("me", "Pa55").acl(acl).dir(format!("/{name}")).connect()
    };
    let other = config(&server).dir("/readable").connect().await.unwrap();
    let watcher = client(&server).await;
    watcher.auth("digest", b"me:Pa55").await.unwrap();

    let locks = with(NodeAcl::CreatorAndReaders, "readable").await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    assert_eq!(acl(&watcher, "/readable/a").await, ["digest:ALL", "world:READ"]);
    assert!(
        matches!(other.inspect("a").await.unwrap().holder(), Some(Holder::Known(_))),
        "everybody may look"
    );
    assert!(other.mutex("a").try_acquire().await.unwrap().is_none());
    must_name(&other.break_lock("a").await.unwrap_err(), "delete", "/readable/a");
    guard.release().await.unwrap();

    take_and_give_back(&with(NodeAcl::Open, "open").await.unwrap()).await;
    assert_eq!(acl(&watcher, "/open/a").await, ["world:ALL"]);

    let team = Acl::new(Permission::ALL, AuthId::new("ip", "127.0.0.1"));
    let locks = with(NodeAcl::Custom(vec![team]), "team").await.unwrap();
    take_and_give_back(&locks).await;
    assert_eq!(acl(&watcher, "/team/a").await, ["ip:ALL"]);

    let error = config(&server).acl(NodeAcl::Creator).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    let error = config(&server).acl(NodeAcl::Custom(Vec::new())).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_missing_chroot_is_created_on_request() {
    let server = crate::common::server().await;
    let url = format!("{}/apps/orders?session_timeout=4s", server.url());
    let error = ZkConfig::from_url(&url).unwrap().connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("create_chroot=true"), "{error}");
    let other = client(&server).await;
    assert!(other.check_stat("/apps").await.unwrap().is_none(), "not unasked");
    for _ in 0..2 {
        let url = format!("{}/apps/orders?session_timeout=4s&create_chroot=true", server.url());
        take_and_give_back(&ZkConfig::from_url(&url).unwrap().connect().await.unwrap()).await;
        assert!(other.check_stat("/apps/orders/locks/a").await.unwrap().is_some());
    }

    let mine = config(&server).chroot("/mine").create_chroot(true).credentials("me", "Pa55");
    take_and_give_back(&mine.connect().await.unwrap()).await;
    let error = config(&server).chroot("/mine/too").create_chroot(true).connect().await.unwrap_err();
    must_name(&error, "create", "/mine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_read_only_directory_is_reported() {
    let server = crate::common::server().await;
    let other = client(&server).await;
    mkdir(&other, "/locks").await;
    let read_only = CreateMode::Persistent.with_acls(Acls::anyone_read());
    other.create("/locks/a", b"", &read_only).await.unwrap();
    let locks = config(&server).connect().await.unwrap();
    must_name(&locks.mutex("a").try_acquire().await.unwrap_err(), "create", "/locks/a");
    must_name(&locks.mutex("a").acquire().await.unwrap_err(), "create", "/locks/a");
    assert!(other.list_children("/locks/a").await.unwrap().is_empty());
}

/// The transaction that reports whether a node is alone writes the directory, which is more than a lock needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_directory_that_we_may_not_write_is_listed() {
    let server = crate::common::server().await;
    let other = client(&server).await;
    mkdir(&other, "/locks").await;
    let rights = Permission::READ | Permission::CREATE | Permission::DELETE;
    let acl = [Acl::new(rights, AuthId::anyone())];
    other.create("/locks/a", b"", &CreateMode::Persistent.with_acls(Acls::new(&acl))).await.unwrap();
    let proxy = proxy(&server);
    let (one, two) = (through(&proxy).connect().await.unwrap(), config(&server).connect().await.unwrap());
    for _ in 0..2 {
        take_and_give_back(&one).await;
    }
    // What is refused is asked for once.
    proxy.cut_when(transacts());
    for _ in 0..5 {
        let guard = one.mutex("a").acquire().await.unwrap();
        let waiter = two.mutex("a");
        let waiter = tokio::spawn(async move { waiter.acquire().await.unwrap() });
        until_children(&other, "a", 2).await;
        guard.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
        take_and_give_back(&one).await;
    }
    assert_eq!(proxy.fired(), 0);
}

/// A directory may be a node in which another program keeps data.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_others_keep_in_a_directory_stays_there() {
    let server = crate::common::server().await;
    let other = client(&server).await;
    let proxy = proxy(&server);
    let locks = through(&proxy).connect().await.unwrap();
    for _ in 0..3 {
        take_and_give_back(&locks).await;
    }
    assert!(
        other.check_stat("/locks/a").await.unwrap().unwrap().version > 0,
        "it is not written when it may be"
    );
    other.set_data("/locks/a", b"theirs", None).await.unwrap();
    for _ in 0..3 {
        take_and_give_back(&locks).await;
    }
    assert_eq!(other.get_data("/locks/a").await.unwrap().0, b"theirs");
    // One that existed before, and is emptied later.
    mkdir(&other, "/locks/b").await;
    other.set_data("/locks/b", b"theirs", None).await.unwrap();
    proxy.cut_when(transacts());
    for _ in 0..3 {
        locks.mutex("b").acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(other.get_data("/locks/b").await.unwrap().0, b"theirs");
    assert_eq!(proxy.fired(), 0);
}

/// It was known to be empty when the request was made, which waits until there is a connection again.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_others_put_into_a_directory_while_we_are_cut_off_stays_there() {
    let server = crate::common::server().await;
    let other = client(&server).await;
    let proxy = proxy(&server);
    let locks = through(&proxy).connect().await.unwrap();
    take_and_give_back(&locks).await;
    assert_eq!(
        other.check_stat("/locks/a").await.unwrap().unwrap().version,
        0,
        "it is as new as another one"
    );
    proxy.refuse(true);
    proxy.rst();
    let start = Instant::now();
    let mutex = locks.mutex("a");
    sleep(Duration::from_millis(100)).await;
    let acquisition = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    sleep(Duration::from_millis(100)).await;
    other.delete("/locks/a", None).await.unwrap();
    let theirs = CreateMode::Persistent.with_acls(Acls::anyone_all());
    other.create("/locks/a", b"theirs", &theirs).await.unwrap();
    proxy.refuse(false);
    acquisition.await.unwrap().release().await.unwrap();
    assert_eq!(other.get_data("/locks/a").await.unwrap().0, b"theirs", "after {:?}", start.elapsed());
}

#[cfg(feature = "sasl")]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn sasl_admits_the_right_password() {
    use lock_zk::zookeeper_client::SaslOptions;

    let server = Server::from(ZooKeeper::builder().sasl("me", "Pa55").start().await.unwrap());
    let at = |credentials: &str, auth: &str| {
        let patience = "session_timeout=4s&connect_timeout=20s";
        let url = format!("zk://{credentials}{}?{patience}&auth={auth}", server.addr());
        ZkConfig::from_url(&url).unwrap().connect()
    };
    let locks = at("me:Pa55@", "sasl").await.unwrap();
    take_and_give_back(&locks).await;
    let typed = SaslOptions::digest_md5("me", "Pa55");
    let typed = config(&server).sasl(typed).connect().await.unwrap();
    take_and_give_back(&typed).await;

    for (credentials, auth) in [("me:Wr0ng-Pa55@", "sasl"), ("me:Pa55@", "digest"), ("", "digest")] {
        let error = at(credentials, auth).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{credentials} {auth}: {error}");
        assert!(!format!("{error} {error:?}").contains("Pa55"), "{error:?}");
    }
}

/// A request that arrives before the authentication ends the session on such a server.
#[cfg(feature = "sasl")]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: servers of their own"]
async fn a_session_outlives_resets_and_restarts_where_sasl_is_enforced() {
    let options = ZooKeeper::builder().sasl("me", "Pa55");
    let options = options.config("enforce.auth.enabled", "true").config("enforce.auth.schemes", "sasl");
    outlives(&Server::from(options.start().await.unwrap())).await;
}

/// As above, on the release that ensembles are of.
#[cfg(feature = "sasl")]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn a_session_of_an_ensemble_outlives_resets_and_restarts_where_sasl_is_enforced() {
    let options = ZooKeeper::builder().sasl("me", "Pa55");
    let options = options.config("enforce.auth.enabled", "true").config("enforce.auth.schemes", "sasl");
    let ensemble = options.start_ensemble(3).await.unwrap();
    outlives(&ensemble.nodes()[0]).await;
}

#[cfg(feature = "sasl")]
async fn outlives(server: &ZooKeeper) {
    let proxy = proxy(server);
    let through = |addr: String| {
        let config = ZkConfig::new(addr).sasl_credentials("me", "Pa55").private_session(true);
        config.session_timeout(Duration::from_secs(20)).connect()
    };
    let locks = through(proxy.addr().to_string()).await.unwrap();
    let other = through(server.connect_string()).await.unwrap();
    let held = locks.mutex("held").acquire().await.unwrap();
    for round in 0..2 {
        let theirs = other.mutex("awaited").acquire().await.unwrap();
        let waiter = locks.mutex("awaited");
        let waiter = tokio::spawn(async move { waiter.acquire().await });
        sleep(Duration::from_millis(300)).await;
        match round {
            0 => proxy.rst(),
            _ => server.restart().await.unwrap(),
        }
        let start = Instant::now();
        while let Err(error) = held.verify().await {
            assert!(error.is_retryable() && start.elapsed() < Duration::from_secs(30), "{error}");
            sleep(Duration::from_millis(50)).await;
        }
        assert!(held.is_valid(), "round {round}");
        theirs.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
    held.release().await.unwrap();
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn tls() {
    let certificates = Certificates::new().unwrap();
    for client_certificates in [false, true] {
        let server = ZooKeeper::builder().tls(&certificates, client_certificates).start().await.unwrap();
        let server = Server::from(server);
        let (ca, (cert, key)) = (certificates.ca(), certificates.client());
        let (ca, cert, key) = (ca.display(), cert.display(), key.display());
        let address = format!("{}?session_timeout=4s", server.secure_addr());
        let at = |options: &str| ZkConfig::from_url(&format!("zks://{address}{options}"));
        // The first handshake of a server may take seconds.
        let identity = format!("&connect_timeout=20s&tls_ca={ca}&tls_cert={cert}&tls_key={key}");
        take_and_give_back(&at(&identity).unwrap().connect().await.unwrap()).await;
        // The certificate authenticates the client.
        let mine = at(&format!("{identity}&acl=creator&dir=/mine")).unwrap().connect().await;
        if client_certificates {
            take_and_give_back(&mine.unwrap()).await;
            let other = config(&server).dir("/mine").connect().await.unwrap();
            must_name(&other.mutex("a").acquire().await.unwrap_err(), "create", "/mine/a");
        }
        let patience = if client_certificates { "2s" } else { "20s" };
        let without = at(&format!("&connect_timeout={patience}&tls_ca={ca}")).unwrap().connect().await;
        if client_certificates {
            assert_eq!(without.unwrap_err().kind(), ErrorKind::Unavailable);
        } else {
            take_and_give_back(&without.unwrap()).await;
        }
    }
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn servers_that_we_do_not_trust_get_nothing() {
    let (certificates, others) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let server = Server::from(ZooKeeper::builder().tls(&certificates, false).start().await.unwrap());
    let patience = "session_timeout=4s&connect_timeout=2s";
    let url = format!("zks://me:Pa55@{}?{patience}&tls_ca={}", server.secure_addr(), others.ca().display());
    let error = ZkConfig::from_url(&url).unwrap().connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // TLS to a port without, and the other way round.
    let url = format!("zks://{}?{patience}&tls_ca={}", server.addr(), certificates.ca().display());
    assert!(ZkConfig::from_url(&url).unwrap().connect().await.is_err());
    let url = format!("zk://{}?{patience}", server.secure_addr());
    assert!(ZkConfig::from_url(&url).unwrap().connect().await.is_err());

    for (options, text) in [
        ("", "tls_ca"),
        ("tls_ca=/no/such/file", "cannot read"),
        ("tls_ca=/dev/null", "read again"),
        ("tls_ca=/etc/passwd", "PEM"),
        ("tls_ca=/x&tls_cert=/y", "half"),
    ] {
        let url = format!("zks://{}?{options}", server.secure_addr());
        let error = match ZkConfig::from_url(&url) {
            Ok(config) => config.connect().await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{options}: {error}");
        assert!(error.to_string().contains(text), "{options}: {error}");
    }
}

#[cfg(not(feature = "tls"))]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_build_without_tls_says_so() {
    let error = ZkConfig::from_url("zks://a?tls_ca=/x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("--features zk,tls"), "{error}");
}

#[cfg(not(feature = "sasl"))]
#[test]
fn a_build_without_sasl_says_so() {
    let error = ZkConfig::from_url("zk://me:secret@a?auth=sasl").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("--features zk,sasl"), "{error}");
}
