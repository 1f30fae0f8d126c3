//! A real etcd: one member, and three of which some are killed or paused.

use std::time::Duration;

use futures_util::future::join_all;
use lock_core::{ErrorKind, Guard, Locks, Outcome, Result};
use lock_kv::EtcdConfig;
use lock_testkit::proxy::{FaultProxy, Protocol, Then};
use lock_testkit::{
    Certificates, EtcdCluster, EtcdServer, PATIENCE, SecretFile, by_tier, hand_over, is_renewed, queue_up,
    soon, take, until,
};
use tokio::runtime::Builder;

const PASSWORD: &str = "correct-horse-battery-staple";

async fn open(url: &str) -> Result<Locks> {
    EtcdConfig::from_url(url)?.connect().await
}

async fn connect(url: &str) -> Locks {
    open(url).await.unwrap_or_else(|error| panic!("{error}"))
}

/// The error of this kind, which has changed nothing, says what to do, and shows no secret.
async fn refused(url: &str, kind: ErrorKind, hint: &str) {
    let error = open(url).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.backend(), error.outcome()),
        (kind, "etcd", Outcome::NotApplied),
        "{error}"
    );
    assert!(error.hint().is_some_and(|found| found.contains(hint)), "{error}");
    assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_and_tokens_outlive_a_restart() {
    if EtcdServer::is_missing() {
        return;
    }
    let server = EtcdServer::start().await.unwrap();
    let (one, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = take(&one, "a").await;
    let token = guard.token();
    assert!(other.mutex("a").try_acquire().await.unwrap().is_none(), "it is held");
    server.kill();
    server.start_again().await.unwrap();
    assert!(other.mutex("a").try_acquire().await.unwrap().is_none(), "it is held");
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    assert!(take(&other, "a").await.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_says_how_many_records_there_are_and_how_full_the_store_is() {
    if EtcdServer::is_missing() {
        return;
    }
    let server = EtcdServer::start().await.unwrap();
    let locks = connect(&server.url()).await;
    for name in ["a", "b", "c"] {
        take(&locks, name).await.release().await.unwrap();
    }
    let report = locks.doctor().await.unwrap();
    assert_eq!(report.warnings().count(), 0, "{report}");
    for part in ["note: 3 records of locks", "the database of a member (etcd 3.", " MB, of a quota"] {
        assert!(report.to_string().contains(part), "{part}: {report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_whose_answer_is_lost_is_found_by_its_value() {
    if EtcdServer::is_missing() {
        return;
    }
    let server = EtcdServer::start().await.unwrap();
    let proxy = FaultProxy::start(server.addr(), Protocol::Http2).unwrap();
    let locks = connect(&format!("etcd://{}", proxy.addr())).await;
    let guard = take(&locks, "a").await;
    let token = guard.token();
    guard.release().await.unwrap();
    // The record is remembered: the next request is the swap.
    let before = proxy.requests();
    proxy.swallow_reply(1, Then::Reset);
    let guard = locks.mutex("a").acquire().await.unwrap();
    // Nothing was rolled back.
    assert_eq!((proxy.fired(), proxy.requests() - before), (1, 2));
    assert!(guard.token() > token);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_need_a_password_and_rights() {
    if EtcdServer::is_missing() {
        return;
    }
    let server = EtcdServer::start().await.unwrap();
    server.demand_password("me", PASSWORD, "app/").await.unwrap();
    let addr = server.addr();
    refused(&format!("etcd://{addr}/app"), ErrorKind::Denied, "user:password@").await;
    refused(&format!("etcd://me:x{PASSWORD}@{addr}/app"), ErrorKind::Denied, "check both").await;
    refused(&format!("etcd://you:{PASSWORD}@{addr}/app"), ErrorKind::Denied, "check both").await;
    refused(&format!("etcd://me:{PASSWORD}@{addr}/other"), ErrorKind::Denied, "grant-permission").await;
    let locks = connect(&format!("etcd://me:{PASSWORD}@{addr}/app")).await;
    take(&locks, "a").await.release().await.unwrap();
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_named_at_once() {
    for url in
        ["etcd://me@127.0.0.1:1?password_file=/missing/secret", "etcds://127.0.0.1:1?tls_ca=/missing/ca"]
    {
        let error = open(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
        assert!(error.to_string().contains("/missing/"), "{url}: {error}");
    }
}

/// As one that loses in a `select!` is put aside. It is the one that logs in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_nobody_polls_keeps_no_renewal_from_the_login() {
    if EtcdServer::is_missing() {
        return;
    }
    let server = EtcdServer::start().await.unwrap();
    server.demand_password("me", PASSWORD, "app/").await.unwrap();
    let proxy = FaultProxy::start(server.addr(), Protocol::Http2).unwrap();
    let (file, addr) = (SecretFile::new(PASSWORD), proxy.addr());
    // Time: it is renewed only once the request is put aside.
    let locks =
        connect(&format!("etcd://me@{addr}/app?ttl=15s&password_file={}", file.path().display())).await;
    let guard = take(&locks, "a").await;
    file.change("another-password");
    server.change_password("me", "another-password").await.unwrap();
    proxy.swallow_when(|request| request.windows(16).any(|part| part == b"another-password"), Then::Hang);
    let mut aside = Box::pin(locks.inspect("a"));
    until("it logs in", async || {
        assert!(futures_util::poll!(&mut aside).is_pending());
        proxy.fired() == 1
    })
    .await;
    is_renewed(&guard).await;
    drop(aside);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_names_are_keys_and_other_values_are_errors() {
    if EtcdServer::is_missing() {
        return;
    }
    let server = EtcdServer::start().await.unwrap();
    let locks = connect(&server.url()).await;
    take(&locks, &"x".repeat(1_024)).await.release().await.unwrap();
    server.put("polylock/lock/text", "hello").await.unwrap();
    let error = locks.mutex("text").acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unexpected, Outcome::NotApplied), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("delete the value")), "{error}");
    assert_eq!(server.values("polylock/lock/text").await.unwrap()[0].1, b"hello");
    // The key for trials of this one begins as a lock of the other one.
    let _within = connect(&format!("etcd://{}/polylock/lock", server.addr())).await;
    let names = locks.list("").await.unwrap();
    assert_eq!(names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["text"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: a thousand locks"]
async fn a_list_has_what_is_in_use_behind_many_records() {
    if EtcdServer::is_missing() {
        return;
    }
    let server = EtcdServer::start().await.unwrap();
    let locks = connect(&server.url()).await;
    let make = |at: usize| {
        let locks = &locks;
        async move { take(locks, &format!("a{at}")).await.release().await.unwrap() }
    };
    for at in (0..1_010).step_by(10) {
        join_all((at..at + 10).map(make)).await;
    }
    let _guard = take(&locks, "b").await;
    let names = locks.list("").await.unwrap();
    assert_eq!(names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_needs_the_authority_and_the_client_certificate() {
    if EtcdServer::is_missing() {
        return;
    }
    let (certificates, others) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let server = EtcdServer::builder().tls(&certificates).start().await.unwrap();
    let (cert, key) = certificates.client();
    let own = format!("tls_cert={}&tls_key={}", cert.display(), key.display());
    let url = |options: String| format!("etcds://{}?{options}", server.addr());
    let locks = connect(&url(format!("{own}&tls_ca={}", certificates.ca().display()))).await;
    take(&locks, "a").await.release().await.unwrap();
    let other_ca = url(format!("{own}&tls_ca={}", others.ca().display()));
    refused(&other_ca, ErrorKind::Unavailable, "the ports and TLS").await;
    refused(&url(format!("tls_ca={}", certificates.ca().display())), ErrorKind::Unavailable, "TLS").await;
    refused(&server.url(), ErrorKind::Unavailable, "has TLS where they want it").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_leaves_no_watch_and_closed_locks_no_connection() {
    const WAITS: u64 = 20;
    if EtcdServer::is_missing() {
        return;
    }
    let server = EtcdServer::start().await.unwrap();
    let proxy = FaultProxy::start(server.addr(), Protocol::Http2).unwrap();
    let url = format!("etcd://{}", proxy.addr());
    let (one, two) = (connect(&url).await, connect(&url).await);
    let mut guard = take(&one, "a").await;
    for wait in 0..WAITS {
        let waiting = queue_up(if wait % 2 == 0 { &two } else { &one }, "a").await;
        guard = hand_over(guard, waiting).await;
    }
    assert!(server.watches().await.unwrap().0 >= WAITS, "waiters watch");
    until("the watches have ended", async || {
        let (opened, ended) = server.watches().await.unwrap();
        opened == ended
    })
    .await;
    until("the notices are removed", async || server.values("polylock/granted/").await.unwrap().is_empty())
        .await;
    // One is closed while it waits, and the other one is dropped.
    let waiting = two.mutex("a");
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    until("it waits", async || one.inspect("a").await.unwrap().waiters == 1).await;
    two.close().await.unwrap();
    assert_eq!(soon(waiting).await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    guard.release().await.unwrap();
    drop(one);
    until("the connections are closed", async || proxy.connections() == 0).await;
}

#[test]
fn locks_go_on_when_the_runtime_that_connected_has_ended() {
    if EtcdServer::is_missing() {
        return;
    }
    let stays = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = stays.block_on(EtcdServer::start()).unwrap();
    for mut first in [Builder::new_multi_thread(), Builder::new_current_thread()] {
        let first = first.enable_all().build().unwrap();
        let locks = first.block_on(connect(&server.url()));
        first.block_on(async { take(&locks, "a").await.release().await.unwrap() });
        first.shutdown_timeout(PATIENCE);
        stays.block_on(async { take(&locks, "a").await.release().await.unwrap() });
    }
}

/// What happens to a member, while a lock is held and waited for.
#[derive(Clone, Copy, Debug)]
enum Outage {
    Killed,
    Paused,
}

/// The holder keeps its lock, and the waiter gets it.
async fn goes_on(holder: &Locks, waiter: &Locks, guard: Guard, during: impl AsyncFnOnce()) -> Guard {
    let waiting = queue_up(waiter, "a").await;
    let token = guard.token();
    during().await;
    is_renewed(&guard).await;
    assert!(
        soon(holder.inspect("a")).await.unwrap().holders.iter().any(|holder| holder.token == Some(token))
    );
    let next = hand_over(guard, waiting).await;
    assert!(next.token() > token);
    next
}

async fn a_member_is(outage: Outage, leads: bool) {
    if EtcdServer::is_missing() {
        return;
    }
    let cluster = EtcdCluster::start().await.unwrap();
    let (one, two) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let mut guard = take(&one, "a").await;
    for round in 0..by_tier(2, 2, 10) {
        println!("round {round}");
        until("there is a leader", async || cluster.leader().await.is_some()).await;
        let leader = cluster.leader().await.unwrap();
        let at = if leads { leader } else { (leader + 1 + round % 2) % 3 };
        let member = &cluster.members()[at];
        guard = goes_on(&one, &two, guard, async || match outage {
            Outage::Killed => member.kill(),
            Outage::Paused => member.stop(),
        })
        .await;
        guard = goes_on(&two, &one, guard, async || match outage {
            Outage::Killed => member.start_again().await.unwrap(),
            Outage::Paused => member.cont(),
        })
        .await;
    }
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: three members"]
async fn a_leader_that_is_killed_ends_no_lock() {
    a_member_is(Outage::Killed, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: three members"]
async fn a_leader_that_is_paused_ends_no_lock() {
    a_member_is(Outage::Paused, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: three members"]
async fn a_follower_that_is_paused_ends_no_lock() {
    a_member_is(Outage::Paused, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: three members"]
async fn without_a_majority_nothing_is_granted_and_the_holder_learns_of_it() {
    if EtcdServer::is_missing() {
        return;
    }
    let cluster = EtcdCluster::start().await.unwrap();
    let (one, two) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let guard = take(&one, "a").await;
    let paused = &cluster.members()[..2];
    paused.iter().for_each(EtcdServer::stop);
    let error = soon(two.mutex("b").acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("majority")), "{error}");
    soon(guard.lost()).await;
    assert!(!guard.is_valid());
    paused.iter().for_each(EtcdServer::cont);
    // Longer than the requests that were under way.
    let retry = async || two.mutex("a").try_acquire_for(Duration::from_secs(20)).await;
    let mut next = None;
    until("the members have a leader", async || {
        next = retry().await.ok().flatten();
        next.is_some()
    })
    .await;
    assert!(next.unwrap().token() > guard.token());
}
