//! The fence in transactions of the caller.

use std::time::Duration;

use lock_core::{ErrorKind, MemoryConfig, Released};
use lock_postgres::Fence;
use lock_testkit::LogCapture;
use tokio::time::{sleep, timeout};

use crate::site::{PATIENCE, Site, take, until};

const ACCOUNT: &str =
    "CREATE TABLE account (id int PRIMARY KEY, cents int); INSERT INTO account VALUES (7, 100)";
const TAKE_FIVE: &str = "UPDATE account SET cents = cents - 5 WHERE id = 7";

#[tokio::test]
async fn a_holder_that_lost_its_lock_commits_nothing() {
    let site = Site::open().await;
    let (locks, mut client) = (site.locks("").await, site.client().await);
    client.batch_execute(ACCOUNT).await.unwrap();
    let stale = take(&locks, "account/7").await;
    let transaction = client.transaction().await.unwrap();
    stale.fence(&transaction).await.unwrap();
    transaction.execute(TAKE_FIVE, &[]).await.unwrap();
    transaction.commit().await.unwrap();

    assert!(locks.break_lock("account/7").await.unwrap());
    let next = take(&locks, "account/7").await;
    let transaction = client.transaction().await.unwrap();
    let error = stale.fence(&transaction).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Lost, Some("fence")), "{error}");
    let text = error.to_string();
    assert!(text.contains(&stale.token().to_string()) && text.contains("account/7"), "{text}");
    transaction.execute(TAKE_FIVE, &[]).await.unwrap_err();
    drop(transaction);

    // By the text, as another driver sends it.
    let sql = next.fence_sql().unwrap();
    assert_eq!(sql, format!("SELECT \"polylock\".fence('account/7', {})", next.token()));
    client.batch_execute(&format!("BEGIN; {sql}; {TAKE_FIVE}; COMMIT")).await.unwrap();
    assert_eq!(site.number("SELECT cents::bigint FROM account").await, 90);
    next.release().await.unwrap();
}

#[tokio::test]
async fn nobody_is_granted_the_lock_while_a_fenced_transaction_is_open() {
    let site = Site::open().await;
    let (one, two, mut client) = (site.locks("").await, site.locks("").await, site.client().await);
    let guard = take(&one, "orders").await;
    let transaction = client.transaction().await.unwrap();
    guard.fence(&transaction).await.unwrap();
    // Renewals go on.
    sleep(Duration::from_secs(4)).await;
    assert!(guard.is_valid());
    guard.fence(&transaction).await.unwrap();
    assert!(two.mutex("orders").try_acquire().await.unwrap().is_none());
    let blocker = two.inspect("orders").await.unwrap().blocker.expect("the transaction is open");
    assert!(blocker.starts_with("the transaction of process ") && blocker.contains(", since "), "{blocker}");
    let inspecting = two.clone();
    let waiter = tokio::spawn(async move { take(&two, "orders").await });
    let (log, _guard) = LogCapture::begin();
    let release = tokio::spawn(guard.release());
    let warnings = || log.warnings("waits for the end of a transaction");
    until("a warning", async || !warnings().is_empty()).await;
    assert!(!release.is_finished() && !waiter.is_finished(), "the transaction is open");
    let said = warnings();
    assert!(said.len() == 1 && said[0].contains("process "), "{said:?}");
    transaction.commit().await.unwrap();
    assert_eq!(inspecting.inspect("orders").await.unwrap().blocker, None);
    let released = timeout(PATIENCE, release).await.unwrap().unwrap();
    assert_eq!(released.unwrap(), Released::Released);
    timeout(PATIENCE, waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn names_and_backends_are_checked() {
    let site = Site::open().await;
    let (locks, mut client) = (site.locks("&schema=it's").await, site.client().await);
    for name in ["it's", r"back\slash", "a\0b", "\"quoted\"", "$1", "ünïcode"] {
        let guard = take(&locks, name).await;
        let transaction = client.transaction().await.unwrap();
        guard.fence(&transaction).await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        transaction.commit().await.unwrap();
        client.batch_execute(&guard.fence_sql().unwrap()).await.unwrap();
        guard.release().await.unwrap();
    }
    let memory = MemoryConfig::new().connect().unwrap();
    let elsewhere = take(&memory, "orders").await;
    let error = elsewhere.fence_sql().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("the lock is not in PostgreSQL"), "{error}");
}
