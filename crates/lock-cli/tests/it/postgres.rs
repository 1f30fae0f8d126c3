//! `polylock install` on a real server: by an owner, by psql, by a role that may not, and again.

use std::process::Command;

use crate::common::{POLYLOCK, Run, sh};
use lock_testkit::PostgresServer;

/// A server with the databases `shop` and `other` of the role `owner`, and the role `app`.
async fn shop() -> PostgresServer {
    let server = PostgresServer::start().await.unwrap();
    let sql = "CREATE ROLE owner LOGIN; CREATE ROLE app LOGIN;
               CREATE DATABASE shop OWNER owner; CREATE DATABASE other OWNER owner;";
    for line in sql.split_inclusive(';') {
        psql(&server, "postgres", "postgres", line).await.is(0, &[]);
    }
    server
}

fn url(server: &PostgresServer, role: &str, database: &str) -> String {
    format!("postgres://{role}@{}/{database}?schema=locks", server.addr())
}

async fn install(url: &str, options: &[&str]) -> Run {
    let mut command = Command::new(POLYLOCK);
    command.args(["install", "--url", url]).args(options);
    Run::of(command).await
}

/// Runs SQL to its end or its first error.
async fn psql(server: &PostgresServer, role: &str, database: &str, sql: &str) -> Run {
    let mut command = Command::new("psql");
    command.args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-U", role, "-d", database]);
    command.arg("-h").arg(server.socket_dir()).args(["-p", &server.port().to_string()]);
    Run::with_input(command, sql.into()).await
}

/// All that the database has, as SQL.
async fn dump(server: &PostgresServer, database: &str) -> String {
    let mut command = Command::new("pg_dump");
    command.args(["--schema-only", "-U", "postgres", "-d", database]);
    command.arg("-h").arg(server.socket_dir()).args(["-p", &server.port().to_string()]);
    let dump = Run::of(command).await;
    dump.is(0, &["CREATE SCHEMA"]);
    // Some releases guard each dump by a random word.
    dump.stdout.lines().filter(|line| !line.contains("restrict ")).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_sql_does_what_the_command_does() {
    let server = shop().await;
    install(&url(&server, "owner", "shop"), &[]).await.is(0, &["The schema is installed."]);
    let printed = install(&url(&server, "nobody", "nowhere"), &["--print"]).await;
    printed.is(0, &["BEGIN;", "E'locks'", "CREATE SCHEMA", "COMMIT;"]);
    for _ in 0..2 {
        psql(&server, "owner", "other", &printed.stdout).await.is(0, &[]);
    }
    assert_eq!(dump(&server, "other").await, dump(&server, "shop").await);

    let document = install(&url(&server, "owner", "shop"), &["--json", "--print"]).await.document();
    assert_eq!(document["sql"].as_str().unwrap().trim_end(), printed.stdout.trim_end());
    let document = install(&url(&server, "owner", "shop"), &["--json"]).await.document();
    assert_eq!(document["installed"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_needs_the_functions_alone() {
    let server = shop().await;
    let app = format!("{}&install=off", url(&server, "app", "shop"));
    sh(&app, "", "echo ran").await.is(64, &["\"locks\" is not installed", "polylock install"]);
    install(&url(&server, "app", "shop"), &[]).await.is(64, &["may not create", "--print"]);

    install(&url(&server, "owner", "shop"), &["--grant", "app"]).await.is(0, &[]);
    sh(&app, "", "echo ran under $POLYLOCK_TOKEN").await.is(0, &["ran under 1"]);
    for sql in ["SELECT FROM locks.lock", "DELETE FROM locks.lease", "CREATE TABLE locks.mine ()"] {
        psql(&server, "app", "shop", sql).await.is(3, &["permission denied"]);
    }
    psql(&server, "app", "shop", "SELECT locks.fence('job', 16)").await.is(3, &["the lock \"job\" is lost"]);
    psql(&server, "postgres", "shop", "CREATE ROLE guest LOGIN; CREATE ROLE admin LOGIN").await.is(0, &[]);
    let breaks = "SELECT locks.break_lock('job', 16, 'on')";
    psql(&server, "app", "shop", breaks).await.is(3, &["permission denied"]);
    // A later installation keeps what was granted before.
    let printed = install(&url(&server, "owner", "shop"), &["--operator", "admin", "--print"]).await.stdout;
    psql(&server, "owner", "shop", &printed).await.is(0, &[]);
    sh(&app, "", "echo ran").await.is(0, &["ran"]);
    psql(&server, "admin", "shop", breaks).await.is(0, &["free"]);
    sh(&url(&server, "guest", "shop"), "", "echo ran").await.is(70, &["--grant ROLE"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_with_a_fence_is_shown() {
    let server = shop().await;
    let url = url(&server, "owner", "shop");
    let psql =
        format!("psql -XqAt -U owner -d shop -h {} -p {}", server.socket_dir().display(), server.port());
    let script = format!(
        // Time: transactions that end at once are not shown.
        "{psql} <<END\nBEGIN; SELECT locks.fence('job', $POLYLOCK_TOKEN), pg_sleep(0.2);\n\\! {POLYLOCK} holders --url '{url}' job\nEND"
    );
    let shown =
        ["job", "is granted to nobody before the end of the transaction of process ", "(\"psql\"), since "];
    sh(&url, "", &script).await.is(0, &shown);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_is_done_or_says_why_not() {
    let server = shop().await;
    let (owner, app) = (url(&server, "owner", "shop"), url(&server, "app", "shop"));
    install(&owner, &["--grant", "app"]).await.is(0, &[]);
    let version =
        async |sql: &str| psql(&server, "owner", "shop", sql).await.stdout.trim().parse::<i32>().unwrap();
    let latest = version("SELECT locks.version()").await;
    let older =
        "UPDATE locks.meta SET version = version - 1; DROP FUNCTION locks.break_if; SELECT locks.version()";
    assert_eq!(version(older).await, latest - 1);

    // Who may not upgrade it does not use it: in version 1, every role could become the owner of the functions.
    let refused = ["may not create or upgrade the schema \"locks\"", "--print"];
    sh(&app, "", "echo ran").await.is(64, &refused);
    install(&app, &[]).await.is(64, &refused);
    let off = format!("{app}&install=off");
    sh(&off, "", "echo ran").await.is(64, &["it has the old version 1", "polylock install"]);
    assert_eq!(version("SELECT locks.version()").await, latest - 1);

    install(&owner, &[]).await.is(0, &[]);
    assert_eq!(
        version("SELECT locks.version() WHERE to_regproc('locks.break_if') IS NOT NULL").await,
        latest
    );

    sh(&app, "", "echo ran").await.is(0, &["ran"]);

    let newer = "UPDATE locks.meta SET version = version + 1; SELECT locks.version()";
    assert_eq!(version(newer).await, latest + 1);
    install(&owner, &[]).await.is(64, &["newer", "upgrade this client"]);
    let printed = install(&owner, &["--print"]).await.stdout;
    psql(&server, "owner", "shop", &printed).await.is(3, &["newer"]);
    install("redis://127.0.0.1", &[]).await.is(64, &["postgres://"]);
}

/// A container without certificates of authorities, and one whose only authority is ours.
#[tokio::test(flavor = "multi_thread")]
async fn the_certificates_of_the_system_are_for_tls_alone() {
    let certificates = std::sync::Arc::new(lock_testkit::Certificates::new().unwrap());
    let server = PostgresServer::builder().tls(&certificates).start().await.unwrap();
    let ours = certificates.ca().display().to_string();
    for (authorities, options, code) in [
        ("/nowhere", "", 0),
        ("/nowhere", "sslmode=verify-full", 64),
        (&*ours, "sslmode=verify-full", 0),
        (&*ours, "sslrootcert=system", 0),
    ] {
        let mut command = Command::new(POLYLOCK);
        command.args(["install", "--url", &format!("{}?connect_timeout=10s&{options}", server.url())]);
        command.env("SSL_CERT_FILE", authorities).env("SSL_CERT_DIR", "/nowhere");
        Run::of(command).await.is(code, &[if code == 0 { "is installed" } else { "no certificates" }]);
    }
}
