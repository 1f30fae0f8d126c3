//! Passwords and certificates that change while a lock is held.

use std::time::Duration;

use lock_core::{ErrorKind, Guard, Locks};
use lock_testkit::{RedisServer, SecretFile, give_back};
use tokio::time::sleep;

use crate::common::connect;

const TTL: Duration = Duration::from_secs(2);

async fn send(server: &RedisServer, command: &str) {
    let reply = server.command(&command.split(' ').collect::<Vec<_>>()).await.unwrap();
    assert!(!reply.is_error(), "{command}: {reply:?}");
}

async fn end_connections(server: &RedisServer) {
    for kind in ["normal", "pubsub"] {
        send(server, &format!("CLIENT KILL TYPE {kind}")).await;
    }
}

/// The lock outlives its lease, and other locks can be acquired.
async fn goes_on(guard: Guard, locks: &Locks) {
    sleep(TTL + TTL / 4).await;
    assert!(guard.is_valid());
    guard.verify().await.unwrap();
    give_back(guard).await;
    locks.mutex("b").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_password_in_a_file_is_read_at_each_connect() {
    let mut masters = Vec::new();
    for _ in 0..3 {
        masters.push(RedisServer::start().await.unwrap());
    }
    let secret = SecretFile::new("one");
    let set_password = async |password: &str| {
        for master in &masters {
            send(master, &format!("ACL SETUSER worker on resetpass >{password} ~* &* +@all")).await;
            end_connections(master).await;
        }
    };
    set_password("one").await;
    let addrs: Vec<_> = masters.iter().map(|master| master.addr().to_string()).collect();
    let url = format!("redlock://worker@{}?ttl=2s&password_file={secret}", addrs.join(","));
    let locks = connect(&url).await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    secret.change("two");
    set_password("two").await;
    goes_on(guard, &locks).await;

    secret.remove();
    let error = connect(&url).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidConfig, "no_credentials"), "{error}");
    assert!(error.to_string().contains(&secret.to_string()), "{error}");
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn certificates_are_read_at_each_connect() {
    use std::sync::Arc;

    use lock_testkit::Certificates;

    if RedisServer::lacks_tls() {
        return;
    }
    let certificates = Arc::new(Certificates::new().unwrap());
    let mut masters = Vec::new();
    for _ in 0..3 {
        masters.push(RedisServer::builder().tls(&certificates, false).start().await.unwrap());
    }
    let addrs: Vec<_> = masters.iter().map(|master| master.tls_addr().to_string()).collect();
    let ca = certificates.ca();
    let url = format!("redlocks://{}?ttl=2s&connect_timeout=5s&tls_ca={}", addrs.join(","), ca.display());
    let locks = connect(&url).await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    certificates.replace().unwrap();
    for master in &masters {
        // It reads the file again.
        send(master, &format!("CONFIG SET tls-ca-cert-file {}", ca.display())).await;
        let (cert, key) = certificates.server();
        send(master, &format!("CONFIG SET tls-cert-file {} tls-key-file {}", cert.display(), key.display()))
            .await;
        end_connections(master).await;
    }
    goes_on(guard, &locks).await;
}
