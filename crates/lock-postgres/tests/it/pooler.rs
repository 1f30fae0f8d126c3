//! Behind PgBouncer in transaction mode: each request may go to another session of the server.

use std::time::Duration;

use lock_core::Locks;
use lock_postgres::Fence;
use lock_testkit::PgBouncer;
use tokio::time::timeout;

use crate::site::{PATIENCE, Site, client, connect, take, until};

async fn through(pooler: &PgBouncer, site: &Site, options: &str) -> Locks {
    let url = format!("postgres://postgres@{}/{}?ttl=3s{options}", pooler.addr(), site.database);
    connect(&url).await.unwrap_or_else(|error| panic!("{error}"))
}

#[tokio::test]
async fn everything_works_and_waiters_poll() {
    let site = Site::open().await;
    let pooler = PgBouncer::start(&site.server, 3).await.unwrap_or_else(|error| panic!("{error}"));
    let (one, two) = (through(&pooler, &site, "").await, through(&pooler, &site, "").await);
    let guard = take(&one, "orders").await;
    assert!(two.mutex("orders").try_acquire().await.unwrap().is_none());
    let waiter = tokio::spawn(async move { take(&two, "orders").await });
    until("a waiter", async || one.inspect("orders").await.unwrap().waiters == 1).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(guard.is_valid() && !waiter.is_finished());

    let parameters =
        format!("host=127.0.0.1 port={} user=postgres dbname={}", pooler.addr().port(), site.database);
    let mut user = client(&parameters).await;
    let transaction = user.transaction().await.unwrap();
    guard.fence(&transaction).await.unwrap();
    transaction.commit().await.unwrap();

    guard.release().await.unwrap();
    let next = timeout(PATIENCE, waiter).await.expect("the waiter goes on").unwrap();
    next.release().await.unwrap();
    for name in ["a", "b"] {
        let (reader, permit) =
            (one.rw(name).read().await.unwrap(), one.semaphore("gpu", 2).acquire().await.unwrap());
        reader.release().await.unwrap();
        permit.release().await.unwrap();
    }
    let report = one.doctor().await.unwrap();
    assert!(report.warnings().any(|finding| finding.what.contains("pooler")), "{report}");
}

#[tokio::test]
async fn waiters_that_listen_past_the_pooler_are_notified() {
    let site = Site::open().await;
    let pooler = PgBouncer::start(&site.server, 3).await.unwrap_or_else(|error| panic!("{error}"));
    let listen = format!("&listen_host={}", site.server.addr());
    let (one, two) = (through(&pooler, &site, &listen).await, through(&pooler, &site, &listen).await);
    let report = one.doctor().await.unwrap();
    assert!(report.warnings().all(|finding| !finding.what.contains("pooler")), "{report}");
    let guard = take(&one, "orders").await;
    let waiter = tokio::spawn(async move { take(&two, "orders").await });
    let notified = "SELECT count(*) FROM polylock.waiter WHERE inbox IS NOT NULL";
    until("a waiter that listens", async || site.number(notified).await == 1).await;
    guard.release().await.unwrap();
    timeout(PATIENCE, waiter).await.expect("the waiter is notified").unwrap().release().await.unwrap();
}
