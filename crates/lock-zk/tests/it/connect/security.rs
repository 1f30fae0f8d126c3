//! Credentials, ACLs, SASL and TLS, on servers that insist on them.

use lock_core::{Error, ErrorKind, Holder, Locks};
#[cfg(feature = "tls")]
use lock_testkit::Certificates;
#[cfg(any(feature = "sasl", feature = "tls"))]
use lock_testkit::ZooKeeper;
use lock_zk::zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};
use lock_zk::{NodeAcl, ZkConfig};

use crate::common::*;

async fn work(locks: &Locks) {
    let guard = take(locks, "a").await;
    guard.verify().await.unwrap();
    give_back(guard).await;
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
    let server = server().await;
    let ours = opened(&config(&server).credentials("me", "Pa55")).await;
    let guard = take(&ours, "a").await;
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
    let same = opened(&config(&server).credentials("me", "Pa55")).await;
    assert!(same.mutex("a").try_acquire().await.unwrap().is_none());
    give_back(guard).await;
    work(&same).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_acl_can_be_chosen() {
    let server = server().await;
    let with = |acl, name: &str| {
        config(&server).credentials("me", "Pa55").acl(acl).dir(format!("/{name}")).connect()
    };
    let other = config(&server).dir("/readable").connect().await.unwrap();
    let watcher = client(&server).await;
    watcher.auth("digest", b"me:Pa55").await.unwrap();

    let locks = with(NodeAcl::CreatorAndReaders, "readable").await.unwrap();
    let guard = take(&locks, "a").await;
    assert_eq!(acl(&watcher, "/readable/a").await, ["digest:ALL", "world:READ"]);
    let seen = other.inspect("a").await.unwrap();
    assert!(matches!(seen.holder(), Some(Holder::Known(_))), "everybody may look");
    assert!(other.mutex("a").try_acquire().await.unwrap().is_none());
    must_name(&other.break_lock("a").await.unwrap_err(), "delete", "/readable/a");
    give_back(guard).await;

    work(&with(NodeAcl::Open, "open").await.unwrap()).await;
    assert_eq!(acl(&watcher, "/open/a").await, ["world:ALL"]);

    let team = Acl::new(Permission::ALL, AuthId::new("ip", "127.0.0.1"));
    let locks = with(NodeAcl::Custom(vec![team]), "team").await.unwrap();
    work(&locks).await;
    assert_eq!(acl(&watcher, "/team/a").await, ["ip:ALL"]);

    for acl in [NodeAcl::Creator, NodeAcl::Custom(Vec::new())] {
        let error = config(&server).acl(acl).connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_chroot_must_exist_or_is_created_on_request() {
    let scene = Scene::new().await;
    let (server, other) = (&scene.server, &scene.client);
    let url = format!("{}/apps/orders?session=private", server.url());
    let error = ZkConfig::from_url(&url).unwrap().connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    for text in ["/apps/orders", "create_chroot=true"] {
        assert!(error.to_string().contains(text), "{error}");
    }
    assert!(other.check_stat("/apps").await.unwrap().is_none(), "not unasked");
    for _ in 0..2 {
        work(&ZkConfig::from_url(&format!("{url}&create_chroot=true")).unwrap().connect().await.unwrap())
            .await;
        assert!(other.check_stat("/apps/orders/locks/a").await.unwrap().is_some());
    }
    // It must not go, either.
    let locks = opened(&config(server).chroot("/apps/orders").dir("/deep/er")).await;
    work(&locks).await;
    for path in ["/locks/a", "/locks", "/deep/er/a", "/deep/er", "/deep", ""] {
        // The server removes empty containers itself.
        let _ = other.delete(&format!("/apps/orders{path}"), None).await;
    }
    assert!(other.check_stat("/apps/orders").await.unwrap().is_none());
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("/apps/orders"), "{error}");

    let mine = config(server).chroot("/mine").create_chroot(true).credentials("me", "Pa55");
    work(&opened(&mine).await).await;
    let error = config(server).chroot("/mine/too").create_chroot(true).connect().await.unwrap_err();
    must_name(&error, "create", "/mine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_read_only_directory_is_reported() {
    let server = server().await;
    let other = client(&server).await;
    mkdir(&other, "/locks").await;
    let read_only = CreateMode::Persistent.with_acls(Acls::anyone_read());
    other.create("/locks/a", b"", &read_only).await.unwrap();
    let locks = connect(&server).await;
    must_name(&locks.mutex("a").try_acquire().await.unwrap_err(), "create", "/locks/a");
    must_name(&locks.mutex("a").acquire().await.unwrap_err(), "create", "/locks/a");
    assert!(other.list_children("/locks/a").await.unwrap().is_empty());
}

/// The transaction that reports whether a node is alone writes the directory, which is more than a lock needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_directory_that_we_may_not_write_is_listed() {
    let server = server().await;
    let other = client(&server).await;
    mkdir(&other, "/locks").await;
    let rights = Permission::READ | Permission::CREATE | Permission::DELETE;
    let acl = [Acl::new(rights, AuthId::anyone())];
    other.create("/locks/a", b"", &CreateMode::Persistent.with_acls(Acls::new(&acl))).await.unwrap();
    let proxy = proxy(&server);
    let (one, two) = (opened(&through(&proxy)).await, connect(&server).await);
    for _ in 0..2 {
        work(&one).await;
    }
    // What is refused is asked for once.
    proxy.cut_when(transacts());
    for _ in 0..5 {
        let (guard, waiter) = (take(&one, "a").await, queue_up(&two, "a").await);
        give_back(hand_over(guard, waiter).await).await;
        work(&one).await;
    }
    assert_eq!(proxy.fired(), 0);
}

/// A directory may be a node in which another program keeps data.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_others_keep_in_a_directory_stays_there() {
    let server = server().await;
    let other = client(&server).await;
    let proxy = proxy(&server);
    let locks = opened(&through(&proxy)).await;
    for _ in 0..3 {
        work(&locks).await;
    }
    let is_written = other.check_stat("/locks/a").await.unwrap().unwrap().version > 0;
    assert!(is_written, "it is not written when it may be");
    other.set_data("/locks/a", b"theirs", None).await.unwrap();
    for _ in 0..3 {
        work(&locks).await;
    }
    assert_eq!(other.get_data("/locks/a").await.unwrap().0, b"theirs");
    // One that existed before, and is emptied later.
    mkdir(&other, "/locks/b").await;
    other.set_data("/locks/b", b"theirs", None).await.unwrap();
    proxy.cut_when(transacts());
    for _ in 0..3 {
        give_back(take(&locks, "b").await).await;
    }
    assert_eq!(other.get_data("/locks/b").await.unwrap().0, b"theirs");
    assert_eq!(proxy.fired(), 0);
}

/// It was known to be empty when the request was made, which waits until there is a connection again.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_others_put_into_a_directory_while_we_are_cut_off_stays_there() {
    let scene = Scene::with(LASTING, Default::default()).await;
    let other = &scene.client;
    work(&scene.locks).await;
    let is_new = other.check_stat("/locks/a").await.unwrap().unwrap().version == 0;
    assert!(is_new, "it looks as another one that is new");
    scene.cut();
    settled().await;
    let acquisition = acquiring(scene.locks.mutex("a"));
    still_wait(&[&acquisition]).await;
    other.delete("/locks/a", None).await.unwrap();
    let theirs = CreateMode::Persistent.with_acls(Acls::anyone_all());
    other.create("/locks/a", b"theirs", &theirs).await.unwrap();
    scene.proxy.refuse(false);
    give_back(come(acquisition).await).await;
    assert_eq!(other.get_data("/locks/a").await.unwrap().0, b"theirs");
}

#[cfg(feature = "sasl")]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn sasl_admits_the_right_password() {
    use lock_zk::zookeeper_client::SaslOptions;

    let server = Server::from(ZooKeeper::builder().sasl("me", "Pa55").start().await.unwrap());
    let at = |credentials: &str, auth: &str| {
        let url = format!("zk://{credentials}{}?connect_timeout=20s&auth={auth}", server.addr());
        ZkConfig::from_url(&url).unwrap().connect()
    };
    let locks = at("me:Pa55@", "sasl").await.unwrap();
    work(&locks).await;
    let typed = SaslOptions::digest_md5("me", "Pa55");
    work(&opened(&config(&server).sasl(typed)).await).await;

    for (credentials, auth) in [("me:Wr0ng-Pa55@", "sasl"), ("me:Pa55@", "digest"), ("", "digest")] {
        let error = at(credentials, auth).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{credentials} {auth}: {error}");
        assert!(!format!("{error} {error:?}").contains("Pa55"), "{error:?}");
    }
}

/// A request that arrives before the authentication ends the session on such a server.
#[cfg(feature = "sasl")]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn a_session_of_an_ensemble_outlives_resets_and_restarts_where_sasl_is_enforced() {
    let options = ZooKeeper::builder().sasl("me", "Pa55");
    let options = options.config("enforce.auth.enabled", "true").config("enforce.auth.schemes", "sasl");
    let ensemble = options.start_ensemble(3).await.unwrap();
    let server = &ensemble.nodes()[0];
    let proxy = proxy(server);
    let connect = async |addr: String| {
        opened(&config_of(addr).sasl_credentials("me", "Pa55").session_timeout(LASTING)).await
    };
    let (locks, other) = (connect(proxy.addr().to_string()).await, connect(server.connect_string()).await);
    let held = take(&locks, "held").await;
    for restarts in [false, true] {
        let (theirs, waiter) = (take(&other, "awaited").await, queue_up(&locks, "awaited").await);
        if restarts {
            server.restart().await.unwrap();
        } else {
            proxy.rst();
        }
        until("the session goes on", async || held.verify().await.is_ok()).await;
        assert!(held.is_valid(), "{restarts}");
        give_back(hand_over(theirs, waiter).await).await;
    }
    give_back(held).await;
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn tls_admits_who_is_trusted() {
    let certificates = Certificates::new().unwrap();
    for client_certificates in [false, true] {
        let server = ZooKeeper::builder().tls(&certificates, client_certificates).start().await.unwrap();
        let server = Server::from(server);
        let (ca, (cert, key)) = (certificates.ca(), certificates.client());
        let (ca, cert, key) = (ca.display(), cert.display(), key.display());
        let at = |options: &str| ZkConfig::from_url(&format!("zks://{}?{options}", server.secure_addr()));
        // The first handshake of a server may take seconds.
        let identity = format!("connect_timeout=20s&tls_ca={ca}&tls_cert={cert}&tls_key={key}");
        work(&at(&identity).unwrap().connect().await.unwrap()).await;
        // The certificate authenticates the client.
        let mine = at(&format!("{identity}&acl=creator&dir=/mine")).unwrap().connect().await;
        if client_certificates {
            work(&mine.unwrap()).await;
            let other = opened(&config(&server).dir("/mine")).await;
            must_name(&other.mutex("a").acquire().await.unwrap_err(), "create", "/mine/a");
        }
        // Time: an error at connect comes after it.
        let patience = if client_certificates { "2s" } else { "20s" };
        let without = at(&format!("connect_timeout={patience}&tls_ca={ca}")).unwrap().connect().await;
        if client_certificates {
            assert_eq!(without.unwrap_err().kind(), ErrorKind::Unavailable);
        } else {
            work(&without.unwrap()).await;
            who_is_not_trusted_gets_nothing(&server, &certificates).await;
        }
    }
}

#[cfg(feature = "tls")]
async fn who_is_not_trusted_gets_nothing(server: &ZooKeeper, certificates: &Certificates) {
    let others = Certificates::new().unwrap();
    let patience = "connect_timeout=2s"; // Time: an error at connect comes after it.
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
        ("tls_ca=/x&tls_cert=/y", "tls_key="),
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
