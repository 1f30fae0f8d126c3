//! Requests that wait for a connection, and are sent together.

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{join, join_all, join3};
use futures_util::poll;
use lock_core::LockOptions;
use lock_testkit::{acquiring, come, give_back, hand_over, queue_up, take, until};
use tokio::task::JoinHandle;

use crate::site::Site;

/// The commits of this process that wait for a standby.
const WAITS: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'polylock-one'";

/// An acquisition of this name waits for an advisory lock.
const SLOW: &str = "ALTER FUNCTION polylock.ask RENAME TO asks; \
    CREATE FUNCTION polylock.ask(p_name text, p_owner uuid, p_mode int, p_ttl bigint, p_info text, p_sync text, p_grace bigint, \
      p_inbox text, p_listener int, p_key text, OUT status text, OUT token bigint, OUT ahead int, OUT ends_in bigint, OUT tell boolean) \
    LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN \
      IF p_name = 'slow' THEN PERFORM pg_advisory_xact_lock(42); END IF; \
      SELECT a.* INTO status, token, ahead, ends_in, tell FROM polylock.asks( \
        p_name, p_owner, p_mode, p_ttl, p_info, p_sync, p_grace, p_inbox, p_listener, p_key) a; END $$";

/// One connection, so that all but the first request wait for it.
const ONE: &str = "&pool=1&ttl=60s&command_timeout=40s&sync=on&application_name=polylock-one";

#[tokio::test]
async fn what_waits_for_a_connection_is_one_transaction() {
    let site = Site::open().await;
    let locks = site.locks(ONE).await;
    let guards = join_all((0..20).map(async |number| take(&locks, &format!("{number}")).await)).await;
    let transactions = "SELECT count(DISTINCT xmin::text) FROM polylock.lock";
    assert_eq!(site.number(transactions).await, 2);
    join_all(guards.into_iter().map(give_back)).await;
    assert_eq!(site.number(transactions).await, 2);
    let held = "SELECT count(*) FROM polylock.lock WHERE owner IS NOT NULL";
    assert_eq!(site.number(held).await, 0);
}

#[tokio::test]
async fn what_the_server_refuses_fails_alone() {
    let site = Site::open().await;
    let locks = site.locks(ONE).await;
    let too_long = LockOptions::new().label("l".repeat(20_000));
    let refused = locks.mutex_with("refused", too_long).unwrap();
    let (first, refused, last) = join3(take(&locks, "first"), refused.acquire(), take(&locks, "last")).await;
    let error = refused.unwrap_err();
    assert!(error.to_string().contains("out of bounds"), "{error}");
    join(give_back(first), give_back(last)).await;
}

#[tokio::test]
async fn an_acquisition_that_is_dropped_before_it_is_sent_leaves_nothing() {
    let site = Site::open().await;
    let locks = site.locks(ONE).await;
    {
        let [first, dropped] = ["first", "dropped"].map(|name| locks.mutex(name));
        let (mut first, mut dropped) = (pin!(first.acquire()), pin!(dropped.acquire()));
        assert!(poll!(&mut first).is_pending() && poll!(&mut dropped).is_pending());
    }
    give_back(take(&locks, "later").await).await;
    until("the first one is rolled back", async || held(&site, "first").await == 0).await;
    let names = "SELECT count(*) FROM polylock.lock WHERE name = 'dropped'";
    assert_eq!(site.number(names).await, 0);
}

#[tokio::test]
async fn an_acquisition_that_is_dropped_while_its_group_is_executed_is_rolled_back() {
    let site = Site::open().await;
    // The other connection is free when the group is executed.
    let locks = site.locks("&pool=2&ttl=60s&command_timeout=40s").await;
    join_all(["first", "second"].map(async |name| give_back(take(&locks, name).await).await)).await;
    site.execute(SLOW).await;
    let user = site.client().await;
    user.batch_execute("SELECT pg_advisory_lock(42)").await.unwrap();
    // Each is polled before one is answered.
    let [first, second, slow, dropped] =
        ["first", "second", "slow", "dropped"].map(|name| acquiring(locks.mutex(name)));
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    until("the group is executed", async || site.number(waiting).await == 1).await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    join_all([come(first).await, come(second).await].map(give_back)).await;
    user.batch_execute("SELECT pg_advisory_unlock(42)").await.unwrap();
    give_back(come(slow).await).await;
    let granted = "SELECT count(*) FROM polylock.lock WHERE name = 'dropped' AND token > 0";
    assert_eq!(site.number(granted).await, 1);
    until("it is rolled back", async || held(&site, "dropped").await == 0).await;
}

#[tokio::test]
async fn a_grant_waits_for_the_standby_whatever_else_is_in_its_group() {
    let site = Arc::new(Site::private().await);
    let (holder, locks) = (site.locks("&ttl=60s").await, site.locks(ONE).await);
    let [first, held] = [take(&holder, "first").await, take(&holder, "held").await];
    give_back(take(&locks, "free").await).await;
    let waits = without_standby(&site).await;
    // Each is polled before the first is answered, which writes nothing. The last one is queued up, which a crash may undo.
    let busy = tokio::spawn({
        let first = locks.mutex("first");
        async move { first.try_acquire().await.unwrap().is_none() }
    });
    let [free, queued] = ["free", "held"].map(|name| acquiring(locks.mutex(name)));
    until("the grant waits", async || site.number(WAITS).await == 1).await;
    assert!(busy.await.unwrap() && !free.is_finished());
    with_standby(&site, waits).await;
    join_all([come(free).await, hand_over(held, queued).await, first].map(give_back)).await;
}

#[tokio::test]
async fn a_release_waits_for_the_standby_if_it_hands_a_lock_over() {
    let site = Arc::new(Site::private().await);
    let (other, locks) = (site.locks("&ttl=60s").await, site.locks(ONE).await);
    let guards = join_all(["a", "b", "c", "d"].map(async |name| take(&locks, name).await)).await;
    let waiter = queue_up(&other, "d").await;
    let waits = without_standby(&site).await;
    let [a, b, c, d] = guards.try_into().unwrap();
    // Nobody waits for the first two.
    join(give_back(a), give_back(b)).await;
    let releasing = tokio::spawn(join(give_back(c), give_back(d)));
    until("it waits", async || site.number(WAITS).await == 1).await;
    with_standby(&site, waits).await;
    come(releasing).await;
    give_back(come(waiter).await).await;
}

async fn held(site: &Site, name: &str) -> i64 {
    site.number(&format!("SELECT count(*) FROM polylock.lock WHERE name = '{name}' AND owner IS NOT NULL"))
        .await
}

/// Returns when commits wait for a standby, with a task whose commit does.
async fn without_standby(site: &Arc<Site>) -> JoinHandle<()> {
    site.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await;
    site.execute("SELECT pg_reload_conf()").await;
    let commits = tokio::spawn({
        let site = Arc::clone(site);
        async move {
            for number in 0.. {
                site.execute(&format!("CREATE TABLE t{number} ()")).await;
            }
        }
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    until("a commit waits", async || site.number(waits).await == 1).await;
    commits
}

async fn with_standby(site: &Site, commits: JoinHandle<()>) {
    site.execute("ALTER SYSTEM SET synchronous_standby_names = ''").await;
    site.execute("SELECT pg_reload_conf()").await;
    commits.abort();
}
