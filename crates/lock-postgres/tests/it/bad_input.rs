//! What users get wrong: every error says what to do, and nothing is left.

use futures_util::future::join_all;
use lock_core::{Error, ErrorKind, Outcome};
use lock_postgres::{PostgresConfig, schema};
use lock_testkit::{PostgresServer, until};

use crate::site::{Site, client, connect, take};

fn says(error: &Error, kind: ErrorKind, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(error.hint().is_some_and(|hint| !hint.is_empty()), "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{text} does not say {words:?}");
}

#[tokio::test]
async fn servers_and_databases_that_are_not_there() {
    let site = Site::open().await;
    let error = connect("postgres://postgres@127.0.0.1:1/x").await.unwrap_err();
    says(&error, ErrorKind::Unavailable, &["127.0.0.1:1", "cannot connect", "check that the server runs"]);
    assert_eq!((error.code(), error.outcome()), ("refused", Outcome::NotApplied));
    let error = connect("postgres:///x?host=/nowhere/at/all").await.unwrap_err();
    says(&error, ErrorKind::Unavailable, &["/nowhere/at/all", "?host=/dir"]);
    assert_eq!(error.code(), "no_socket");
    let elsewhere = site.url().replace(&site.database, "no_such_database");
    says(
        &connect(&elsewhere).await.unwrap_err(),
        ErrorKind::InvalidConfig,
        &["no_such_database", "DATABASE"],
    );
    says(
        &connect(&site.url_of("nobody_known")).await.unwrap_err(),
        ErrorKind::Denied,
        &["nobody_known", "pg_hba.conf"],
    );
}

#[tokio::test]
async fn schemas_that_are_missing_or_newer() {
    let site = Site::open().await;
    let error = connect(&format!("{}&install=off", site.url())).await.unwrap_err();
    says(&error, ErrorKind::InvalidConfig, &["\"polylock\" is not installed", "polylock install"]);
    assert_eq!((error.code(), error.can_pass()), ("not_installed", true));
    assert_eq!(site.number("SELECT count(*) FROM pg_namespace WHERE nspname = 'polylock'").await, 0);

    // Six times at once, and again.
    let config = PostgresConfig::from_url(&site.url()).unwrap();
    let installed = join_all((0..6).map(|_| config.clone().install_schema())).await;
    installed.into_iter().for_each(|one| one.unwrap_or_else(|error| panic!("{error}")));
    config.install_schema().await.unwrap();
    site.client()
        .await
        .batch_execute(&schema::install("polylock", &schema::Grants::default()))
        .await
        .unwrap();
    site.locks("&install=off").await.close().await.unwrap();

    let newer = format!("UPDATE polylock.meta SET version = {}", schema::VERSION + 1);
    site.client().await.batch_execute(&newer).await.unwrap();
    for install in ["off", "auto"] {
        let error = connect(&format!("{}&install={install}", site.url())).await.unwrap_err();
        says(&error, ErrorKind::Unsupported, &["\"polylock\" has version 3", "upgrade this client"]);
    }
}

#[tokio::test]
async fn roles_without_rights() {
    let site = Site::open().await;
    let (database, role) = (&site.database, format!("app_{}", site.database));
    let admin = site.client().await;
    admin.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.unwrap();
    // It may not create a schema.
    let error = connect(&site.url_of(&role)).await.unwrap_err();
    says(&error, ErrorKind::InvalidConfig, &["this role may not create or upgrade", "--print"]);

    // Nor may it use one whose owner has granted it nothing.
    site.locks("").await.close().await.unwrap();
    let error = connect(&site.url_of(&role)).await.unwrap_err();
    says(&error, ErrorKind::Denied, &["\"polylock\"", "polylock install --grant ROLE"]);

    // With the functions alone it can do everything.
    site.grant(&role).await;
    let locks = connect(&site.url_of(&role)).await.unwrap();
    let guard = take(&locks, "orders").await;
    let waiter = {
        let locks = connect(&site.url_of(&role)).await.unwrap();
        tokio::spawn(async move { take(&locks, "orders").await })
    };
    crate::site::until("a waiter", async || locks.inspect("orders").await.unwrap().waiters == 1).await;
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    assert!(locks.doctor().await.unwrap().warnings().all(|finding| !finding.what.contains("notify")));
    client(
        &site
            .server
            .connect_string()
            .replace("user=postgres dbname=postgres", &format!("user={role} dbname={database}")),
    )
    .await
    .batch_execute("SELECT * FROM polylock.lock")
    .await
    .unwrap_err();

    // Without the functions it can do nothing.
    let revoke = format!("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA polylock FROM {role}");
    admin.batch_execute(&revoke).await.unwrap();
    let error = locks.mutex("orders").acquire().await.unwrap_err();
    says(&error, ErrorKind::Denied, &["polylock install --grant ROLE"]);
    assert_eq!(error.outcome(), Outcome::NotApplied);
}

#[tokio::test]
async fn databases_that_allow_no_writes() {
    let site = Site::open().await;
    let locks = site.locks("").await;
    let (database, client) = (&site.database, site.client().await);
    let read_only = format!("ALTER DATABASE {database} SET default_transaction_read_only = on");
    client.batch_execute(&read_only).await.unwrap();
    let error = connect(&format!("{}&target_session_attrs=read-write", site.url())).await.unwrap_err();
    says(&error, ErrorKind::Unavailable, &["none of the servers is a primary", "name all servers"]);
    let reads = site.locks("").await;
    let error = reads.mutex("orders").acquire().await.unwrap_err();
    says(&error, ErrorKind::Unavailable, &["standby", "name all servers"]);
    assert_eq!((error.code(), error.outcome()), ("replica", Outcome::NotApplied));
    locks.close().await.unwrap();
}

#[tokio::test]
async fn all_connections_are_in_use() {
    let started = PostgresServer::builder()
        .config("max_connections", "10")
        .config("superuser_reserved_connections", "1")
        .start();
    let server = started.await.unwrap_or_else(|error| panic!("{error}"));
    let admin = client(&server.connect_string()).await;
    admin.batch_execute("CREATE ROLE app LOGIN SUPERUSER; CREATE ROLE web LOGIN").await.unwrap();
    connect(&server.url()).await.unwrap().close().await.unwrap();
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'polylock%'";
    until("all sessions have ended", async || {
        admin.query_one(sessions, &[]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
    let mut others = Vec::new();
    for _ in 0..10 {
        let parameters = server.connect_string().replace("user=postgres", "user=web");
        match tokio_postgres::connect(&parameters, tokio_postgres::NoTls).await {
            Ok((client, connection)) => others.push((client, tokio::spawn(connection))),
            Err(_) => break,
        }
    }
    let url = server.url().replace("postgres@", "web@");
    let error = connect(&url).await.unwrap_err();
    says(&error, ErrorKind::Unavailable, &["53300", "max_connections", "pool="]);
    assert_eq!((error.code(), error.outcome()), ("too_many_connections", Outcome::NotApplied));
}

#[tokio::test]
async fn long_names_and_odd_ones_are_locks_of_their_own() {
    let site = Site::open().await;
    let locks = site.locks("").await;
    let names = ["x".repeat(1_024), "\0".repeat(1_024), "\u{1}".repeat(1_024), "ö".repeat(512)];
    let mut guards = Vec::new();
    for name in &names {
        guards.push(locks.mutex(name).try_acquire().await.unwrap().expect("it is a lock of its own"));
    }
    let mut listed = locks.list("").await.unwrap();
    listed.sort();
    let mut expected = names.to_vec();
    expected.sort();
    assert_eq!(listed.iter().map(|name| name.as_str()).collect::<Vec<_>>(), expected);
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert!(locks.list("").await.unwrap().is_empty());
}
