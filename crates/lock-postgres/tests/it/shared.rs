//! What others do to a server that is not ours alone: locks of tables, settings, publications, prepared transactions, standbys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::{Locks, Outcome};
use lock_postgres::Fence;
use lock_testkit::PgBouncer;
use lock_testkit::postgres::{PostgresPair, PostgresServer};
use tokio::time::{sleep, timeout};

use crate::site::{PATIENCE, Site, client, connect, take, until};

const OURS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'polylock%' AND datname = current_database()";

/// What a migration, `VACUUM FULL` or `LOCK TABLE` does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: a table is locked for ten seconds"]
async fn while_a_table_is_locked_sessions_stay_few_and_held_locks_are_kept() {
    let site = Site::private().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut processes = Vec::new();
    // Some give calls up before the server does.
    for options in ["", "", "&command_timeout=500ms", "&command_timeout=500ms"] {
        processes.push(site.locks(&format!("&ttl=30s{options}")).await);
    }
    let mut held = Vec::new();
    for (number, locks) in processes.iter().enumerate() {
        held.push(take(locks, &format!("held {number}")).await);
    }
    let tasks: Vec<_> = (0..40)
        .map(|task| {
            let (locks, stop) = (processes[task % 4].clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                while !stop.load(Relaxed) {
                    if let Ok(Some(guard)) = locks.mutex(format!("task {task}")).try_acquire().await {
                        let _ = guard.release().await;
                    }
                    sleep(Duration::from_millis(50)).await;
                }
            })
        })
        .collect();
    for table in ["lock", "lease", "waiter"] {
        let mut other = site.client().await;
        let transaction = other.transaction().await.unwrap();
        transaction
            .batch_execute(&format!("LOCK TABLE polylock.{table} IN ACCESS EXCLUSIVE MODE"))
            .await
            .unwrap();
        if table == "lock" {
            let error = processes[0].mutex("probe").try_acquire().await.unwrap_err();
            assert!(error.to_string().contains("has locked a table"), "{error}");
            assert_eq!(error.outcome(), Outcome::NotApplied);
        }
        for _ in 0..8 {
            sleep(Duration::from_millis(500)).await;
            // Of each process: twice the pool, two for renewals, two that listen.
            let sessions = site.number(OURS).await;
            assert!(sessions <= 4 * 12, "{sessions} sessions while {table} is locked");
        }
        transaction.rollback().await.unwrap();
        until("calls succeed again", async || processes[2].mutex("probe").try_acquire().await.is_ok()).await;
    }
    assert_eq!(held.iter().filter(|guard| guard.is_valid()).count(), 4);
    stop.store(true, Relaxed);
    join_all(tasks).await.into_iter().for_each(|ended| ended.unwrap());
    for guard in held {
        guard.release().await.unwrap();
    }
    until("sessions that were given up end", async || site.number(OURS).await <= 4 * 6).await;
}

/// Acquires one lock from several processes, and counts errors.
async fn contend(processes: &[Locks]) -> u64 {
    let (errors, holders) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let all = processes.iter().flat_map(|locks| [locks.clone(), locks.clone()]).map(|locks| {
        let (errors, holders) = (Arc::clone(&errors), Arc::clone(&holders));
        tokio::spawn(async move {
            for round in 0..20 {
                match locks.mutex("contended").acquire().await {
                    Ok(guard) => {
                        assert_eq!(holders.fetch_add(1, Relaxed), 0, "two hold it");
                        tokio::task::yield_now().await;
                        holders.fetch_sub(1, Relaxed);
                        errors.fetch_add(u64::from(guard.release().await.is_err()), Relaxed);
                    }
                    Err(error) => {
                        println!("{round}: {error}");
                        errors.fetch_add(1, Relaxed);
                    }
                }
                match locks.rw(format!("shared {}", round % 3)).read().await {
                    Ok(reader) => drop(reader.release().await),
                    Err(_) => drop(errors.fetch_add(1, Relaxed)),
                }
            }
        })
    });
    join_all(all).await.into_iter().for_each(|ended| ended.unwrap());
    errors.load(Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_of_isolation_that_others_want_fails_no_call() {
    let site = Site::open().await;
    site.locks("").await.close().await.unwrap();
    for level in ["repeatable read", "serializable"] {
        let set = format!("ALTER DATABASE {} SET default_transaction_isolation = '{level}'", site.database);
        site.client().await.batch_execute(&set).await.unwrap();
        let processes = [site.locks("&ttl=30s").await, site.locks("&ttl=30s").await];
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'polylock'";
        assert!(site.number(sessions).await > 0);
        assert_eq!(contend(&processes).await, 0, "{level}");
    }
}

/// A pooler has sessions of its own, which nobody else's settings reach.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_that_takes_no_settings_calls_are_repeated() {
    let site = Site::open().await;
    site.locks("").await.close().await.unwrap();
    let set =
        format!("ALTER DATABASE {} SET default_transaction_isolation = 'repeatable read'", site.database);
    site.client().await.batch_execute(&set).await.unwrap();
    let pooler =
        PgBouncer::start_with(&site.server, 4, "ignore_startup_parameters = extra_float_digits").await;
    let pooler = pooler.unwrap_or_else(|error| panic!("{error}"));
    let url = format!("postgres://postgres@{}/{}?ttl=30s&listen=off", pooler.addr(), site.database);
    let processes = [connect(&url).await.unwrap(), connect(&url).await.unwrap()];
    assert_eq!(contend(&processes).await, 0);
}

/// Settings of the role or the database are for others.
#[tokio::test]
async fn settings_of_the_database_change_nothing() {
    for setting in [
        "statement_timeout = '1ms'",
        "lock_timeout = '1ms'",
        "idle_session_timeout = '50ms'",
        "idle_in_transaction_session_timeout = '1ms'",
        "search_path = 'nowhere'",
        "row_security = off",
        "standard_conforming_strings = off",
        "client_encoding = 'LATIN1'",
        "client_min_messages = 'error'",
        "default_transaction_deferrable = on",
        "default_transaction_isolation = 'serializable'",
        "synchronous_commit = off",
        "enable_indexscan = off",
        "plan_cache_mode = 'force_generic_plan'",
        "datestyle = 'German'",
        "intervalstyle = 'sql_standard'",
        "timezone = 'Asia/Kathmandu'",
        "extra_float_digits = -5",
        "bytea_output = 'escape'",
        "lc_messages = 'C'",
    ] {
        let site = Site::open().await;
        let set = format!("ALTER DATABASE {} SET {setting}", site.database);
        site.client().await.batch_execute(&set).await.unwrap();
        let name = r"it's ö \ 'quoted'";
        let (one, two) = (site.locks("&ttl=30s").await, site.locks("&ttl=30s").await);
        let guard = one.mutex(name).acquire().await.unwrap_or_else(|error| panic!("{setting}: {error}"));
        sleep(Duration::from_millis(100)).await;
        guard.extend(Duration::from_secs(20)).await.unwrap_or_else(|error| panic!("{setting}: {error}"));
        let user = site.client().await;
        user.batch_execute("SET statement_timeout = 0; SET lock_timeout = 0; SET idle_session_timeout = 0")
            .await
            .unwrap();
        user.batch_execute(&guard.fence_sql().unwrap())
            .await
            .unwrap_or_else(|error| panic!("{setting}: {error:?}"));
        let waiter = tokio::spawn({
            let two = two.clone();
            async move { take(&two, name).await }
        });
        until(setting, async || one.inspect(name).await.unwrap().waiters == 1).await;
        guard.release().await.unwrap_or_else(|error| panic!("{setting}: {error}"));
        let next = timeout(PATIENCE, waiter).await.expect(setting).unwrap();
        assert_eq!(two.list("it").await.unwrap().len(), 1, "{setting}");
        next.release().await.unwrap();
    }
}

/// As Debezium makes it, and an upgrade by replication. An update needs a key then.
#[tokio::test]
async fn a_publication_of_all_tables_is_in_nobodys_way() {
    let site = Site::open().await;
    let admin = site.client().await;
    admin.batch_execute("CREATE PUBLICATION everything FOR ALL TABLES").await.unwrap();
    let locks = site.locks("").await;
    take(&locks, "orders").await.release().await.unwrap();
    let permit = locks.semaphore("gpu", 2).acquire().await.unwrap();
    permit.release().await.unwrap();
    assert_eq!(site.number("SELECT removed::bigint FROM polylock.sweep('', 1000, 0, 'on')").await, 2);
    let config = lock_postgres::PostgresConfig::from_url(&site.url()).unwrap();
    config.install_schema().await.unwrap();
}

#[tokio::test]
async fn a_prepared_transaction_with_a_fence_is_named() {
    let started = PostgresServer::builder().config("max_prepared_transactions", "5").start().await;
    let server = started.unwrap_or_else(|error| panic!("{error}"));
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
    guard.release().await.unwrap();
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
    site.client().await.batch_execute(many).await.unwrap();
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
    let pair = PostgresPair::start_synchronous().await.unwrap_or_else(|error| panic!("{error}"));
    let [primary, standby] = pair.servers();
    let locks = connect(&format!("{}?ttl=30s&command_timeout=20s", primary.url())).await.unwrap();
    take(&locks, "orders").await.release().await.unwrap();
    standby.stop();
    let asks = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("orders").try_acquire().await }
    });
    let admin = client(&primary.connect_string()).await;
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid <> pg_backend_pid()";
    until("its commit waits, and is cancelled", async || {
        let cancelled: i64 = admin.query_one(cancel, &[]).await.unwrap().get(0);
        cancelled > 0 && {
            sleep(Duration::from_millis(200)).await;
            true
        }
    })
    .await;
    // It tries once more, and so on: each commit is cancelled until it gives up, or the standby is there again.
    let cancels = tokio::spawn(async move {
        loop {
            let _ = admin.query(cancel, &[]).await;
            sleep(Duration::from_millis(50)).await;
        }
    });
    let tried = timeout(PATIENCE, asks).await.expect("it ends").unwrap();
    cancels.abort();
    let error = tried.expect_err("no standby has a grant");
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    standby.cont();
    timeout(PATIENCE, locks.backend().settle()).await.expect("it is rolled back");
    take(&locks, "orders").await.release().await.unwrap();
}

/// As after an upgrade of the operating system: the server warns at each connect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warning_at_a_connect_is_no_cancelled_commit() {
    let site = Site::open().await;
    site.locks("").await.close().await.unwrap();
    let mismatch =
        format!("UPDATE pg_database SET datcollversion = '1.0' WHERE datname = '{}'", site.database);
    site.client().await.batch_execute(&mismatch).await.unwrap();
    for _ in 0..30 {
        let locks = site.locks("&ttl=20s&listen=off").await;
        take(&locks, "orders").await.release().await.unwrap();
        locks.close().await.unwrap();
    }
}

/// The commit of a notification has a lock of the whole server.
#[tokio::test]
#[ignore = "full: a primary with a standby"]
async fn a_hand_over_that_waits_for_a_standby_keeps_nobody_from_notifying() {
    let pair = PostgresPair::start_synchronous().await.unwrap_or_else(|error| panic!("{error}"));
    let [primary, standby] = pair.servers();
    let url = format!("{}?ttl=60s&command_timeout=30s", primary.url());
    let (one, two) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    let guard = take(&one, "orders").await;
    let waiter = tokio::spawn(async move { take(&two, "orders").await });
    until("a waiter", async || one.inspect("orders").await.unwrap().waiters == 1).await;
    let other = client(&primary.connect_string()).await;
    standby.stop();
    let release = tokio::spawn(async move { guard.release().await });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    until("its commit waits", async || other.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) > 0).await;
    let notified = other.batch_execute("NOTIFY somebody, 'else'");
    timeout(Duration::from_secs(20), notified).await.expect("it waits for nobody").unwrap();
    assert!(!release.is_finished());
    standby.cont();
    timeout(PATIENCE, release).await.expect("it is released").unwrap().unwrap();
    timeout(PATIENCE, waiter).await.expect("it is granted").unwrap().release().await.unwrap();
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
    let waiters: Vec<_> = processes
        .iter()
        .map(|locks| {
            let locks = locks.clone();
            tokio::spawn(async move { take(&locks, "orders").await.release().await.unwrap() })
        })
        .collect();
    until("four waiters", async || processes[0].inspect("orders").await.unwrap().waiters == 4).await;
    let admin = site.client().await;
    let opened = "SELECT sessions FROM pg_stat_database WHERE datname = current_database()";
    let count = async || -> i64 {
        sleep(Duration::from_millis(1_200)).await;
        admin.query_one(opened, &[]).await.unwrap().get(0)
    };
    let before = count().await;
    site.server.set("default_transaction_read_only", "on").await.unwrap();
    let tries = processes.iter().map(|locks| async move {
        for number in 0..40 {
            let _ = locks.mutex(format!("other {number}")).try_acquire().await;
            sleep(Duration::from_millis(50)).await;
        }
    });
    join_all(tries).await;
    site.server.set("default_transaction_read_only", "off").await.unwrap();
    let new = count().await - before;
    // `set` opens four, and each process gives up its few once a second.
    assert!(new < 100, "{new} sessions were opened");
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    for waiter in waiters {
        timeout(PATIENCE, waiter).await.expect("it goes on").unwrap();
    }
}

/// PgBouncer in session mode, which adds the address of its client to the name of a session.
#[tokio::test]
async fn a_pooler_that_adds_to_the_name_of_a_session_is_not_taken_for_one_in_transaction_mode() {
    let site = Site::open().await;
    let more = "pool_mode = session\napplication_name_add_host = 1";
    let pooler =
        PgBouncer::start_with(&site.server, 30, more).await.unwrap_or_else(|error| panic!("{error}"));
    let url = format!("postgres://postgres@{}/{}?ttl=20s", pooler.addr(), site.database);
    let (one, two) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    let guard = take(&one, "orders").await;
    let waiter = tokio::spawn(async move { take(&two, "orders").await });
    let notified = "SELECT count(*) FROM polylock.waiter WHERE inbox IS NOT NULL";
    until("a waiter that listens", async || site.number(notified).await == 1).await;
    guard.release().await.unwrap();
    timeout(PATIENCE, waiter).await.expect("it is notified").unwrap().release().await.unwrap();
}
