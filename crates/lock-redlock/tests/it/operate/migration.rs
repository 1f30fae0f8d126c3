//! What a migration asks of the masters that locks move from.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::backend::Support;
use lock_core::migration::MigrationSource;
use lock_core::{Backend, ErrorKind, FindingLevel, LockName, Locks, Token};
use lock_redlock::Redlock;
use lock_testkit::{RedisFive, RedisServer, take};

use crate::common::{backend, run};

const CLAIM: &str = "polylock:migration:lock:";

struct Fleet {
    five: RedisFive,
    redlock: Arc<Redlock>,
    locks: Locks,
}

impl Fleet {
    async fn start() -> Self {
        let five = RedisServer::builder().appendonly(true).start_n(5).await.unwrap();
        let (redlock, locks) = backend(&format!("{}?ttl=20s", five.url())).await;
        Self { five, redlock, locks }
    }

    fn source(&self) -> &dyn MigrationSource {
        self.redlock.migration_source().unwrap()
    }

    fn master(&self, number: usize) -> &RedisServer {
        &self.five.servers()[number]
    }

    /// Notes this migration on these masters, as the process of another does.
    async fn note(&self, masters: &[usize], migration: &str) {
        for &number in masters {
            run(self.master(number), &format!("SET {CLAIM} {migration}")).await;
        }
    }

    async fn forget(&self, masters: &[usize]) {
        for &number in masters {
            run(self.master(number), &format!("DEL {CLAIM}")).await;
        }
    }

    async fn claims(&self) -> [Option<String>; 5] {
        let mut claims = [const { None }; 5];
        for (number, claim) in claims.iter_mut().enumerate() {
            *claim = run(self.master(number), &format!("GET {CLAIM}")).await.text().map(str::to_owned);
        }
        claims
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_no_tombstones_and_it_says_why() {
    let fleet = Fleet::start().await;
    let (source, name) = (fleet.source(), LockName::new("a").unwrap());
    assert!(matches!(source.keeps_tombstones(), Support::No(why) if why.contains("quarantine")));
    let error = source.read_tombstone(&name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("quarantine"), "{error}");
    assert!(source.tombstones("").await.unwrap().is_empty());
    let identity = source.identity();
    assert!(
        identity.starts_with("redlock://127.0.0.1:") && identity.ends_with("?prefix=lock:"),
        "{identity}"
    );
    fleet.master(0).stop();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    let clock = u128::from(source.time(&name).await.unwrap());
    assert!(clock.abs_diff(now) < 20_000_000, "{clock} {now}");
    fleet.master(0).cont();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_migration_is_noted_on_a_quorum() {
    let fleet = Fleet::start().await;
    let source = fleet.source();
    assert_eq!(source.claim("one").await.unwrap(), "one");
    assert_eq!(source.claim("two").await.unwrap(), "one");
    assert_eq!(fleet.claims().await, [const { Some("one") }; 5].map(|one| one.map(str::to_owned)));
    // A minority that has lost it changes nothing, and another one does not stay there.
    fleet.forget(&[0, 3]).await;
    assert_eq!(source.claim("two").await.unwrap(), "one");
    assert!(!fleet.claims().await.contains(&Some("two".to_owned())));
    fleet.master(4).kill();
    assert_eq!(source.claim("one").await.unwrap(), "one");
    fleet.master(4).start_again().await.unwrap();
    source.unclaim("two").await.unwrap();
    assert_eq!(source.claim("one").await.unwrap(), "one");
    source.unclaim("one").await.unwrap();
    assert_eq!(source.claim("two").await.unwrap(), "two");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_split_between_migrations_is_an_error_and_an_established_one_stays() {
    let fleet = Fleet::start().await;
    let source = fleet.source();
    for (masters, migration) in [(&[0, 1][..], "a"), (&[2, 3], "b"), (&[4], "c")] {
        fleet.note(masters, migration).await;
    }
    let error = source.claim("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("\"b\""), "{error}");
    assert_eq!(fleet.claims().await.iter().flatten().count(), 3, "a cannot win, and has left");
    assert_eq!(source.claim("b").await.unwrap(), "b");
    // One that is noted on masters that do not answer stays noted.
    fleet.note(&[0, 1], "a").await;
    fleet.master(4).stop();
    fleet.note(&[2, 3], "b").await;
    let error = source.claim("b").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    fleet.master(4).cont();
    assert_eq!(fleet.claims().await.iter().flatten().filter(|claim| *claim == "b").count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_migrations_of_a_quorum_are_warnings() {
    let fleet = Fleet::start().await;
    let source = fleet.source();
    let levels = async || {
        let findings = source.examine("ours").await.unwrap();
        let other = findings.iter().filter(|finding| finding.what.contains("another migration"));
        other.map(|finding| finding.level).collect::<Vec<_>>()
    };
    assert_eq!(levels().await, []);
    assert_eq!(source.claim("ours").await.unwrap(), "ours");
    assert_eq!(levels().await, []);
    for number in 0..3 {
        let expected = if number == 0 { vec![] } else { vec![FindingLevel::Note] };
        assert_eq!(levels().await, expected);
        run(fleet.master(number), &format!("SET {CLAIM}a/ theirs")).await;
    }
    assert_eq!(levels().await, [FindingLevel::Warning]);
    let findings = source.examine("ours").await.unwrap();
    assert_eq!(findings.iter().filter(|finding| finding.what.contains("may acquire")).count(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_master_has_to_be_closed() {
    if RedisServer::lacks("users that may only read a key (%R~)", (7, 0)) {
        return;
    }
    let fleet = Fleet::start().await;
    let writers = fleet.source().writers().await.unwrap();
    assert_eq!(writers.len(), 5, "{writers:?}");
    assert!(writers.is_sorted());
    for number in 0..5 {
        run(fleet.master(number), "ACL SETUSER default resetkeys %R~*").await;
    }
    assert_eq!(fleet.source().writers().await.unwrap(), []);
    assert_eq!(fleet.source().longest_lease().await.unwrap(), None);
    run(fleet.master(2), "ACL SETUSER default ~*").await;
    let writers = fleet.source().writers().await.unwrap();
    assert!(writers.len() == 1 && writers[0].server == fleet.master(2).addr().to_string(), "{writers:?}");
    fleet.master(3).kill();
    let error = fleet.source().writers().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&fleet.master(3).addr().to_string()), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_found_on_any_quorum() {
    let fleet = Fleet::start().await;
    let source = fleet.source();
    assert_eq!(source.longest_lease().await.unwrap(), None);
    let guard = take(&fleet.locks, "a").await;
    fleet.master(0).kill();
    fleet.master(1).kill();
    let longest = source.longest_lease().await.unwrap().unwrap();
    assert!(longest > Duration::from_secs(5) && longest <= Duration::from_secs(20), "{longest:?}");
    // It does not vote: it may have forgotten locks.
    fleet.master(0).start_again().await.unwrap();
    fleet.master(2).kill();
    assert_eq!(source.longest_lease().await.unwrap_err().kind(), ErrorKind::Unavailable);
    drop(guard);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_token_is_found_on_any_quorum() {
    let fleet = Fleet::start().await;
    let source = fleet.source();
    assert_eq!(source.largest_token().await.unwrap(), None);
    for name in ["a", "{orders}/42"] {
        let guard = take(&fleet.locks, name).await;
        let raised = Token::new(source.largest_token().await.unwrap().unwrap().get() + 7_000_000_000);
        assert!(guard.token() < raised);
        guard.raise_token(raised).await.unwrap();
        assert_eq!(source.largest_token().await.unwrap(), Some(raised), "{name}");
    }
    let before = source.largest_token().await.unwrap();
    for (lost, error) in [(0, false), (4, false), (2, true)] {
        fleet.master(lost).kill();
        assert_eq!(source.largest_token().await.ok(), if error { None } else { Some(before) });
    }
}
