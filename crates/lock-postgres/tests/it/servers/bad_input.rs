//! What users get wrong: every error says what to do, and nothing is left.

use futures_util::future::join_all;
use lock_core::{Error, ErrorKind, Outcome};
use lock_postgres::{PostgresConfig, schema};
use lock_testkit::{PostgresServer, give_back, hand_over, queue_up, take, until};

use crate::site::{Site, client, connect};

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
    site.install().await;
    site.locks("&install=off").await.close().await.unwrap();

    site.execute(&format!("UPDATE polylock.meta SET version = {}", schema::VERSION + 1)).await;
    for install in ["off", "auto"] {
        let error = connect(&format!("{}&install={install}", site.url())).await.unwrap_err();
        says(&error, ErrorKind::Unsupported, &["\"polylock\" has version 3", "upgrade this client"]);
    }
}

#[tokio::test]
async fn a_password_is_asked_for() {
    let site =
        Site::secured(PostgresServer::builder(), "host all all 127.0.0.1/32 scram-sha-256", "s3cret").await;
    for (user, words) in [("app", "the server asks for a password"), ("app:wr0ng", "28P01")] {
        let error = connect(&site.url_of(user)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let text = format!("{error} {error:?}");
        assert!(error.to_string().contains(words) && !text.contains("wr0ng"), "{text}");
    }
    let config = PostgresConfig::from_url(&site.url_of("app:wr0ng")).unwrap();
    let error = config.install_schema().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "it is no matter of rights on the schema: {error}");
    // Of several servers, that one counts which answers.
    let url = format!("postgres://app@127.0.0.1:1,{}/{}", site.server.addr(), site.database);
    let error = connect(&url).await.unwrap_err();
    assert!(error.to_string().contains("asks for a password"), "{error}");
}

#[tokio::test]
async fn roles_without_rights() {
    let site = Site::open().await;
    let role = site.role("app").await;
    // It may not create a schema.
    let error = connect(&site.url_of(&role)).await.unwrap_err();
    says(&error, ErrorKind::InvalidConfig, &["this role may not create or upgrade", "--print"]);

    // Nor may it use one whose owner has granted it nothing.
    site.install().await;
    let error = connect(&site.url_of(&role)).await.unwrap_err();
    says(&error, ErrorKind::Denied, &["\"polylock\"", "polylock install --grant ROLE"]);

    // With the functions alone it can do everything.
    site.grant(&role).await;
    let locks = connect(&site.url_of(&role)).await.unwrap();
    let guard = take(&locks, "orders").await;
    let waiter = queue_up(&connect(&site.url_of(&role)).await.unwrap(), "orders").await;
    give_back(hand_over(guard, waiter).await).await;
    assert!(locks.doctor().await.unwrap().warnings().all(|finding| !finding.what.contains("notify")));
    site.client_of(&role).await.batch_execute("SELECT * FROM polylock.lock").await.unwrap_err();

    // Without the functions it can do nothing.
    let revoke = format!("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA polylock FROM {role}");
    site.execute(&revoke).await;
    let error = locks.mutex("orders").acquire().await.unwrap_err();
    says(&error, ErrorKind::Denied, &["polylock install --grant ROLE"]);
    assert_eq!(error.outcome(), Outcome::NotApplied);
}

#[tokio::test]
async fn databases_that_allow_no_writes() {
    let site = Site::open().await;
    site.set("default_transaction_read_only = on").await;
    let error = connect(&format!("{}&target_session_attrs=read-write", site.url())).await.unwrap_err();
    says(&error, ErrorKind::Unavailable, &["none of the servers is a primary", "name all servers"]);
    assert_eq!((error.code(), error.outcome()), ("replica", Outcome::NotApplied));
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
