//! Host names: several addresses, of which some are silent, and name servers that do not answer.

use std::net::TcpListener;

use lock_core::lookup::TestName;
use lock_core::{ErrorKind, Locks};
use lock_testkit::{ended, give_back, hand_over, queue_up, take};
use tokio::runtime::Builder;

use crate::site::{Site, connect};

/// A name of two addresses: the first accepts connections and is silent, the second is that of the server.
fn half_silent(name: &str, site: &Site) -> (TestName, TcpListener) {
    let silent = TcpListener::bind(("127.0.0.2", site.server.addr().port())).unwrap();
    (TestName::new(name, [[127, 0, 0, 2], [127, 0, 0, 1]]), silent)
}

/// A waiter is notified, so the connection that listens is there as well.
async fn works(one: &Locks, other: &Locks) {
    let guard = take(one, "orders").await;
    let waiter = queue_up(other, "orders").await;
    give_back(hand_over(guard, waiter).await).await;
}

#[tokio::test]
async fn a_name_whose_first_address_is_silent_leads_to_the_next_one() {
    let site = Site::private().await;
    let _name = half_silent("postgres.test", &site);
    let url = format!(
        "postgres://postgres@postgres.test:{}/{}?connect_timeout=10&ttl=20s",
        site.server.addr().port(),
        site.database
    );
    let (one, other) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    works(&one, &other).await;
    let guard = take(&one, "held").await;
    // All connect anew.
    site.server.kill();
    site.server.start_again().await.unwrap();
    works(&one, &other).await;
    give_back(guard).await;
}

#[tokio::test]
async fn addresses_and_hosts_are_asked_in_turn_or_at_random() {
    let site = Site::private().await;
    let _name = half_silent("turns.test", &site);
    let (port, database) = (site.server.addr().port(), &site.database);
    for options in ["", "&load_balance_hosts=random", "&load_balance_hosts=random&target_session_attrs=any"] {
        let url = format!(
            "postgres://postgres@turns.test:{port},unknown.test:{port},127.0.0.2:{port}/{database}?connect_timeout=10{options}"
        );
        let _unknown = TestName::new::<[u8; 4]>("unknown.test", []);
        let locks = connect(&url).await.unwrap_or_else(|error| panic!("{error}"));
        give_back(take(&locks, "orders").await).await;
    }
    let url = format!("postgres://postgres@unknown.test:{port}/{database}?hostaddr=127.0.0.1");
    let locks = connect(&url).await.unwrap_or_else(|error| panic!("{error}"));
    give_back(take(&locks, "orders").await).await;
}

#[tokio::test]
async fn a_name_without_an_address_is_reported() {
    let _unknown = TestName::new::<[u8; 4]>("nowhere.test", []);
    let error = connect("postgres://postgres@nowhere.test/x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("nowhere.test has no address"), "{error}");
}

#[test]
fn a_name_server_that_does_not_answer_keeps_no_runtime_from_ending() {
    let _name = TestName::unanswered("postgres.unanswered.test");
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Time: it does not answer, whatever the timeout.
    let url = "postgres://postgres@postgres.unanswered.test/x?connect_timeout=200ms";
    let error = runtime.block_on(connect(url)).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "timeout"), "{error}");
    assert!(error.to_string().contains("name servers did not answer"), "{error}");
    ended(runtime);
}
