//! What others do to a server that is not ours alone: locks of tables, settings, publications, prepared transactions, standbys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::{Locks, Outcome};
use lock_postgres::{Fence, PostgresConfig};
use lock_testkit::postgres::{PostgresPair, PostgresServer};
use lock_testkit::{come, give_back, hand_over, queue_up, soon, take, until};
use tokio::time::{Instant, sleep};

use crate::site::{SESSIONS, Site, client, connect};

/// What a migration, `VACUUM FULL` or `LOCK TABLE` does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: a table is locked for ten seconds"]
async fn while_a_table_is_locked_sessions_stay_few_and_held_locks_are_kept() {
    let (site, stop) = (Site::private().await, Arc::new(AtomicBool::new(false)));
    let (mut processes, mut held) = (Vec::new(), Vec::new());
    // Time: some give calls up before the server does.
    for (number, options) in ["", "", "&command_timeout=500ms", "&command_timeout=500ms"].iter().enumerate() {
        let locks = site.locks(&format!("&ttl=120s{options}")).await;
        held.push(take(&locks, &format!("held {number}")).await);
        processes.push(locks);
    }
    let tasks = (0..40).map(|task| {
        let (locks, stop) = (processes[task % 4].clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            while !stop.load(Relaxed) {
                if let Ok(Some(guard)) = locks.mutex(format!("task {task}")).try_acquire().await {
                    let _ = guard.release().await;
                }
                // Time: it asks again and again.
                sleep(LOOK).await;
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for table in ["lock", "lease", "waiter"] {
        let mut other = site.client().await;
        let transaction = other.transaction().await.unwrap();
        let lock = format!("LOCK TABLE polylock.{table} IN ACCESS EXCLUSIVE MODE");
        transaction.batch_execute(&lock).await.unwrap();
        if table == "lock" {
            let error = processes[0].mutex("probe").try_acquire().await.unwrap_err();
            assert!(error.to_string().contains("has locked a table"), "{error}");
            assert_eq!(error.outcome(), Outcome::NotApplied);
        }
        for _ in 0..80 {
            // Time: the table is locked for so long.
            sleep(LOOK).await;
            // Of each process: twice the pool, two for renewals, two that listen.
            let sessions = site.number(SESSIONS).await;
            assert!(sessions <= 4 * 12, "{sessions} sessions while {table} is locked");
        }
        transaction.rollback().await.unwrap();
        until("calls succeed again", async || processes[2].mutex("probe").try_acquire().await.is_ok()).await;
    }
    assert_eq!(held.iter().filter(|guard| guard.is_valid()).count(), 4);
    stop.store(true, Relaxed);
    join_all(tasks).await.into_iter().for_each(|ended| ended.unwrap());
    join_all(held.into_iter().map(give_back)).await;
    until("sessions that were given up end", async || site.number(SESSIONS).await <= 4 * 6).await;
}

/// Time: how often a load asks, and a test looks.
const LOOK: Duration = Duration::from_millis(50);

/// Demands that no call of several processes that acquire one lock, and share others, fails.
pub(crate) async fn contend(processes: [Locks; 2]) {
    let holders = AtomicU64::new(0);
    let all = processes.iter().flat_map(|locks| [locks, locks]).map(async |locks| {
        for round in 0..20 {
            let guard = take(locks, "contended").await;
            assert_eq!(holders.fetch_add(1, Relaxed), 0, "two hold it");
            tokio::task::yield_now().await;
            holders.fetch_sub(1, Relaxed);
            give_back(guard).await;
            give_back(locks.rw(format!("shared {}", round % 3)).read().await.unwrap()).await;
        }
    });
    join_all(all).await;
}

#[tokio::test]
async fn a_level_of_isolation_that_others_want_fails_no_call() {
    let site = Site::open().await;
    site.install().await;
    for level in ["repeatable read", "serializable"] {
        site.set(&format!("default_transaction_isolation = '{level}'")).await;
        contend([site.locks("&ttl=60s").await, site.locks("&ttl=60s").await]).await;
    }
}

/// Settings of the role or the database are for others.
/// Time: the timeouts are shorter than any call takes.
const SETTINGS: &str = "statement_timeout = '1ms'; lock_timeout = '1ms'; idle_session_timeout = '50ms'; \
    idle_in_transaction_session_timeout = '1ms'; search_path = 'nowhere'; row_security = off; \
    standard_conforming_strings = off; client_encoding = 'LATIN1'; client_min_messages = 'error'; \
    default_transaction_deferrable = on; default_transaction_isolation = 'serializable'; \
    synchronous_commit = off; enable_indexscan = off; plan_cache_mode = 'force_generic_plan'; \
    datestyle = 'German'; intervalstyle = 'sql_standard'; timezone = 'Asia/Kathmandu'; \
    extra_float_digits = -5; bytea_output = 'escape'; lc_messages = 'C'";

#[tokio::test]
async fn settings_of_the_database_change_nothing() {
    for setting in SETTINGS.split("; ") {
        let site = Site::open().await;
        site.set(setting).await;
        let name = r"it's ö \ 'quoted'";
        let (one, two) = (site.locks("&ttl=60s").await, site.locks("&ttl=60s").await);
        let guard = take(&one, name).await;
        // Time: longer than a session may be idle.
        sleep(Duration::from_millis(100)).await;
        guard.extend(Duration::from_secs(40)).await.unwrap_or_else(|error| panic!("{setting}: {error}"));
        let user = site.client_without_limits().await;
        let fence = guard.fence_sql().unwrap();
        user.batch_execute(&fence).await.unwrap_or_else(|error| panic!("{setting}: {error:?}"));
        let waiter = queue_up(&two, name).await;
        let next = hand_over(guard, waiter).await;
        assert_eq!(two.list("it").await.unwrap().len(), 1, "{setting}");
        give_back(next).await;
    }
}

/// As Debezium makes it, and an upgrade by replication. An update needs a key then.
#[tokio::test]
async fn a_publication_of_all_tables_is_in_nobodys_way() {
    let site = Site::open().await;
    site.execute("CREATE PUBLICATION everything FOR ALL TABLES").await;
    let locks = site.locks("").await;
    give_back(take(&locks, "orders").await).await;
    give_back(locks.semaphore("gpu", 2).acquire().await.unwrap()).await;
    assert_eq!(site.number("SELECT removed::bigint FROM polylock.sweep('', 1000, 0, 'on')").await, 2);
    PostgresConfig::from_url(&site.url()).unwrap().install_schema().await.unwrap();
}

#[tokio::test]
async fn a_prepared_transaction_with_a_fence_is_named() {
    let server = PostgresServer::builder().config("max_prepared_transactions", "5").start().await.unwrap();
    let locks = connect(&server.url()).await.unwrap();
    let guard = take(&locks, "orders").await;
    let user = client(&server.connect_string()).await;
    let fenced = format!("BEGIN; {}; PREPARE TRANSACTION 'the nightly\njob'", guard.fence_sql().unwrap());
    user.batch_execute(&fenced).await.unwrap();
    until("it is old enough to be told", async || {
        let blocker = locks.inspect("orders").await.unwrap().blocker;
        blocker.is_some_and(|who| {
            who.contains(r#"the prepared transaction "the nightly\njob""#) && !who.contains("process")
        })
    })
    .await;
    let facts: String = user.query_one("SELECT polylock.doctor()", &[]).await.unwrap().get(0);
    let facts: serde_json::Value = serde_json::from_str(&facts).unwrap();
    assert_eq!(facts["fences"].as_array().unwrap().len(), 1, "{facts}");
    assert_eq!(facts["fences"][0]["application_name"], "the nightly\njob");
    user.batch_execute("COMMIT PREPARED 'the nightly\njob'").await.unwrap();
    give_back(guard).await;
}

/// Whose snapshot it is.
#[tokio::test]
async fn the_doctor_names_who_keeps_dead_rows() {
    let site = Site::private().await;
    let locks = site.locks("&ttl=30s").await;
    let dump = site.client().await;
    dump.batch_execute("SET application_name = 'the dump'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .await
        .unwrap();
    let many = "CREATE TABLE many (i int);
        DO $$ BEGIN FOR i IN 1..10100 LOOP BEGIN INSERT INTO many VALUES (i); EXCEPTION WHEN others THEN NULL; END; END LOOP; END $$";
    site.execute(many).await;
    let report = locks.doctor().await.unwrap();
    assert!(report.warnings().any(|finding| finding.what.contains("the dump")), "{report}");
    dump.batch_execute("ROLLBACK").await.unwrap();
    let report = locks.doctor().await.unwrap();
    assert!(report.warnings().all(|finding| !finding.what.contains("dead rows of")), "{report}");
}

/// The server says that it succeeded, and warns: the standby may lack it.
#[tokio::test]
#[ignore = "full: a primary with a standby"]
async fn a_commit_whose_wait_for_a_standby_is_cancelled_grants_nothing() {
    let pair = PostgresPair::start_synchronous().await.unwrap();
    let [primary, standby] = pair.servers();
    let locks = connect(&format!("{}?ttl=60s&command_timeout=20s", primary.url())).await.unwrap();
    give_back(take(&locks, "orders").await).await;
    standby.stop();
    let mutex = locks.mutex("orders");
    let asks = tokio::spawn(async move { mutex.try_acquire().await });
    let admin = client(&primary.connect_string()).await;
    // It tries once more, and so on: each commit is cancelled until it gives up.
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid <> pg_backend_pid()";
    let mut cancelled = 0_i64;
    until("it ends", async || {
        cancelled += admin.query_one(cancel, &[]).await.unwrap().get::<_, i64>(0);
        asks.is_finished()
    })
    .await;
    let error = asks.await.unwrap().expect_err("no standby has a grant");
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    assert!(cancelled > 0);
    standby.cont();
    soon(locks.backend().settle()).await;
    give_back(take(&locks, "orders").await).await;
}

/// As after an upgrade of the operating system: the server warns at each connect.
#[tokio::test]
async fn a_warning_at_a_connect_is_no_cancelled_commit() {
    let site = Site::open().await;
    site.install().await;
    let database = &site.database;
    site.execute(&format!("UPDATE pg_database SET datcollversion = '1.0' WHERE datname = '{database}'"))
        .await;
    for _ in 0..30 {
        let locks = site.locks("&ttl=20s&listen=off").await;
        give_back(take(&locks, "orders").await).await;
        locks.close().await.unwrap();
    }
}

/// The commit of a notification has a lock of the whole server.
#[tokio::test]
#[ignore = "full: a primary with a standby"]
async fn a_hand_over_that_waits_for_a_standby_keeps_nobody_from_notifying() {
    let pair = PostgresPair::start_synchronous().await.unwrap();
    let [primary, standby] = pair.servers();
    let url = format!("{}?ttl=120s&command_timeout=60s", primary.url());
    let (one, two) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    let guard = take(&one, "orders").await;
    let waiter = queue_up(&two, "orders").await;
    let other = client(&primary.connect_string()).await;
    standby.stop();
    let release = tokio::spawn(guard.release());
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    until("its commit waits", async || other.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) > 0).await;
    soon(other.batch_execute("NOTIFY somebody, 'else'")).await.unwrap();
    assert!(!release.is_finished());
    standby.cont();
    come(release).await.unwrap();
    give_back(come(waiter).await).await;
}

/// A row that it reads may be on a page that is pruned, which is a write.
#[tokio::test]
#[ignore = "full: a primary with a standby"]
async fn a_notification_that_prunes_a_page_keeps_nobody_from_notifying() {
    let pair = PostgresPair::start_synchronous().await.unwrap();
    let [primary, standby] = pair.servers();
    // Its grants wait for no standby, and so there is somebody to notify.
    let url = format!("{}?ttl=120s&command_timeout=60s&sync=off", primary.url());
    let (one, two) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    let other = client(&primary.connect_string()).await;
    for name in 0..200 {
        give_back(take(&one, &format!("so that pages are full {name}")).await).await;
    }
    standby.stop();
    for _ in 0..20 {
        let guard = take(&one, "orders").await;
        let waiter = queue_up(&two, "orders").await;
        give_back(guard).await;
        give_back(come(waiter).await).await;
        soon(other.batch_execute("NOTIFY somebody, 'else'")).await.unwrap();
    }
    standby.cont();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: a standby is away for a minute"]
async fn while_a_standby_is_away_sessions_stay_few() {
    let pair = PostgresPair::start_synchronous().await.unwrap();
    let [primary, standby] = pair.servers();
    // Time: calls are given up soon.
    let locks = connect(&format!("{}?ttl=120s&command_timeout=500ms&pool=2", primary.url())).await.unwrap();
    give_back(take(&locks, "orders").await).await;
    standby.stop();
    // Time: longer than a session that is used no more may be kept.
    let end = Instant::now() + Duration::from_secs(75);
    let mut number = 0;
    while Instant::now() < end {
        let tries = (0..4).map(|at| locks.mutex(format!("{number} {at}")));
        join_all(tries.map(async |mutex| mutex.try_acquire().await.is_ok_and(|taken| taken.is_some()))).await;
        let sessions: u64 = primary.sql(&[SESSIONS]).await.unwrap().parse().unwrap();
        // Twice the pool, and once the pool of those that have lost their place; one for renewals, and one that listens.
        assert!(sessions <= 3 * 2 + 2, "{sessions} sessions after {number} rounds");
        number += 1;
    }
    standby.cont();
    give_back(take(&locks, "orders").await).await;
}

/// An administrator, or a tool before a switchover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: the server is read-only for some seconds"]
async fn a_server_that_is_read_only_for_a_moment_is_not_asked_for_session_after_session() {
    let site = Site::private().await;
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(site.locks("&ttl=60s").await);
    }
    let guard = take(&processes[0], "orders").await;
    let released = |locks: Locks| async move { give_back(take(&locks, "orders").await).await };
    let waiters: Vec<_> = processes.iter().map(|locks| tokio::spawn(released(locks.clone()))).collect();
    until("four waiters", async || processes[0].inspect("orders").await.unwrap().waiters == 4).await;
    let opened = async || {
        // Time: the server counts a session a second later.
        sleep(Duration::from_millis(1_200)).await;
        site.number("SELECT sessions FROM pg_stat_database WHERE datname = current_database()").await
    };
    let before = opened().await;
    site.server.set("default_transaction_read_only", "on").await.unwrap();
    let tries = processes.iter().map(async |locks| {
        for number in 0..40 {
            let _ = locks.mutex(format!("other {number}")).try_acquire().await;
            // Time: the server is read-only for so long.
            sleep(LOOK).await;
        }
    });
    join_all(tries).await;
    site.server.set("default_transaction_read_only", "off").await.unwrap();
    let new = opened().await - before;
    // The test opens four, and each process gives up its few once a second.
    assert!(new < 100, "{new} sessions were opened");
    give_back(guard).await;
    // Whichever of them is first.
    for waiter in waiters {
        come(waiter).await;
    }
}
