//! What a store may have or do that is no lock: errors that say what to do, and nothing is left.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ErrorKind, Outcome, Token};
use lock_kv::{KvConfig, Registers};
use lock_testkit::take;

use crate::simulation::table::{Client, Ignored, Link, Table, Versions};

fn store() -> (Arc<Table>, Client) {
    let table = Arc::new(Table::new(Versions::Numbers));
    let client = Client::new(&table, &Link::new(0));
    (table, client)
}

#[tokio::test(start_paused = true)]
async fn a_store_that_ignores_conditions_is_refused() {
    for ignored in [Ignored::All, Ignored::Versions] {
        let (table, client) = store();
        table.ignore(ignored);
        let error = KvConfig::new().connect(client).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Unsupported, "unconditional"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("conditional writes")), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn leases_that_end_between_two_looks_are_refused() {
    // Time: of a store that is read once a second.
    let slow = || store().1.with_poll(Duration::from_secs(1));
    // Time: nine looks, in virtual time.
    let error = KvConfig::new().ttl(Duration::from_secs(9)).connect(slow()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    KvConfig::new().connect(slow()).await.unwrap();
    let error = KvConfig::new().connect(store().1.with_poll(Duration::MAX)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
}

/// A record of a free lock.
fn record(last: &str, number: &str) -> String {
    format!(r#"{{"format":1,"number":{number},"mark":1,"last":{last},"holders":[],"queue":[]}}"#)
}

#[tokio::test(start_paused = true)]
async fn values_that_are_no_records_are_errors_and_stay() {
    let (table, client) = store();
    let locks = KvConfig::new().connect(client).await.unwrap();
    let values = [
        ("text", "hello".to_owned(), ErrorKind::Unexpected, "delete the value"),
        ("json", "{\"format\":1}".to_owned(), ErrorKind::Unexpected, "delete the value"),
        ("token", record("18446744073709551615", "1"), ErrorKind::Unexpected, "delete the value"),
        ("number", record("16", "18446744073709551615"), ErrorKind::Unexpected, "delete the value"),
        ("later", "{\"format\":2,\"what\":[]}".to_owned(), ErrorKind::Unsupported, "the same release"),
    ];
    let other = Client::new(&table, &Link::new(1));
    for (name, value, kind, hint) in values {
        let key = format!("lock/{name}");
        other.swap(&key, None, value.as_bytes()).await.unwrap().expect("the key is new");
        let error = locks.mutex(name).acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (kind, Outcome::NotApplied), "{error}");
        assert!(error.hint().is_some_and(|found| found.contains(hint)), "{error}");
        assert_eq!(locks.inspect(name).await.unwrap_err().kind(), kind);
        assert_eq!(other.read(&key).await.unwrap().unwrap().value, value.as_bytes());
    }
    let guard = take(&locks, "other").await;
    // A prefix that is a part of this one has it.
    other.swap("lock/polylock-probe", None, b"{\"probe\":\"0\"}").await.unwrap().unwrap();
    let mut names: Vec<_> = locks.list("").await.unwrap().iter().map(ToString::to_string).collect();
    names.sort();
    assert_eq!(names, ["json", "later", "number", "other", "text", "token"]);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tokens_that_are_raised_as_far_as_possible_can_be_read() {
    let (table, client) = store();
    let locks = KvConfig::new().connect(client).await.unwrap();
    let other = KvConfig::new().connect(Client::new(&table, &Link::new(1))).await.unwrap();
    let mut guard = take(&locks, "a").await;
    guard.raise_token(Token::new((1 << 62) - 1)).await.unwrap();
    // By turns: each knows what it has written itself.
    for locks in [&other, &locks].into_iter().cycle().take(20) {
        let token = guard.token();
        guard.release().await.unwrap();
        guard = take(locks, "a").await;
        assert!(guard.token() > token);
    }
    guard.release().await.unwrap();
    // One that nothing can follow.
    let last = record(&(i64::MAX as u64 - 16).to_string(), "1");
    Client::new(&table, &Link::new(2)).swap("lock/b", None, last.as_bytes()).await.unwrap().unwrap();
    let error = locks.mutex("b").acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Exhausted, Outcome::NotApplied), "{error}");
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_too_long_are_refused() {
    let (_, client) = store();
    let locks = KvConfig::new().connect(client).await.unwrap();
    take(&locks, &"x".repeat(1_024)).await.release().await.unwrap();
    let (_, short) = store();
    let locks = KvConfig::new().connect(short.with_longest_key(100)).await.unwrap();
    let error = locks.mutex("x".repeat(96)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
    assert!(error.message().contains("room for 95"), "{error}");
    take(&locks, &"x".repeat(95)).await.release().await.unwrap();
}

/// The store gives ten names at a time, and most are of locks that nobody has any more.
#[tokio::test(start_paused = true)]
async fn a_list_shows_the_locks_in_use_among_many_others() {
    let (_, client) = store();
    let locks = KvConfig::new().connect(client).await.unwrap();
    let mut held = Vec::new();
    for number in 0..50 {
        let guard = take(&locks, &format!("job/{number:02}")).await;
        match number % 20 {
            0 => held.push(guard),
            _ => drop(guard.release().await.unwrap()),
        }
    }
    let mut names = locks.list("job/").await.unwrap();
    names.sort();
    let names: Vec<_> = names.iter().map(|name| name.as_str()).collect();
    assert_eq!(names, ["job/00", "job/20", "job/40"]);
}
