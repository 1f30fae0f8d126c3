//! Which role may call what. The table is that of docs/OPERATIONS.md.

use lock_core::ErrorKind;
use lock_postgres::schema::{Grants, VERSION, install};

use crate::site::{Site, connect, take};

/// For roles that use locks.
const CLIENTS: [&str; 18] = [
    "ask",
    "blocker",
    "doctor",
    "downgrade",
    "extend",
    "fence",
    "hand_over",
    "hears",
    "holds",
    "inspect",
    "list",
    "observe",
    "raise",
    "release",
    "sweep",
    "tell",
    "unobserve",
    "version",
];
/// For roles that break locks as well.
const OPERATORS: [&str; 2] = ["break_if", "break_lock"];

/// The functions that a role may call; `public` is everybody.
async fn callable(site: &Site, role: &str) -> Vec<String> {
    let sql = "SELECT DISTINCT p.proname::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
               WHERE n.nspname = 'polylock' AND has_function_privilege($1, p.oid, 'EXECUTE') ORDER BY 1";
    let rows = site.client().await.query(sql, &[&role]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn install_for(site: &Site, clients: &[&str], operators: &[&str]) {
    let grants = clients.iter().fold(Grants::default(), |grants, &role| grants.client(role));
    let grants = operators.iter().fold(grants, |grants, &role| grants.operator(role));
    site.client().await.batch_execute(&install("polylock", &grants)).await.unwrap();
}

fn of_operators() -> Vec<&'static str> {
    let mut all = [&CLIENTS[..], &OPERATORS].concat();
    all.sort_unstable();
    all
}

#[tokio::test]
async fn a_role_may_call_what_it_was_granted() {
    let site = Site::open().await;
    let (nobody, app, operator) =
        (site.role("nobody").await, site.role("app").await, site.role("operator").await);
    install_for(&site, &[&app], &[&operator]).await;
    assert_eq!(callable(&site, &nobody).await, [""; 0]);
    assert_eq!(callable(&site, "public").await, [""; 0]);
    assert_eq!(callable(&site, &app).await, CLIENTS);
    assert_eq!(callable(&site, &operator).await, of_operators());
    // An installation that names nobody takes nothing away.
    install_for(&site, &[], &[]).await;
    assert_eq!(callable(&site, &app).await, CLIENTS);
    assert_eq!(callable(&site, &operator).await, of_operators());

    let locks = connect(&site.url_of(&app)).await.unwrap();
    let guard = take(&locks, "orders").await;
    let error = locks.break_lock("orders").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.hint().unwrap().contains("--operator"), "{error}");
    guard.raise_token(guard.token()).await.unwrap();
    guard.release().await.unwrap();
    let operators = connect(&site.url_of(&operator)).await.unwrap();
    let guard = take(&operators, "orders").await;
    assert!(operators.break_lock("orders").await.unwrap());
    drop(guard);
}

#[tokio::test]
async fn everybody_may_lock_where_the_owner_says_so() {
    let site = Site::open().await;
    let anybody = site.role("anybody").await;
    install_for(&site, &["public"], &[]).await;
    install_for(&site, &[], &[]).await;
    assert_eq!(callable(&site, &anybody).await, CLIENTS);
    take(&connect(&site.url_of(&anybody)).await.unwrap(), "orders").await.release().await.unwrap();
}

/// What PostgreSQL says of functions with the rights of their owner: a path of their own, and nobody who may call them unasked.
#[tokio::test]
async fn every_function_has_a_path_of_its_own_and_none_is_for_everybody() {
    let site = Site::open().await;
    site.locks("").await.close().await.unwrap();
    let of_schema = "FROM pg_proc p WHERE p.pronamespace = 'polylock'::regnamespace";
    let path = r#"search_path="polylock", pg_temp"#;
    let others = format!("SELECT count(*) {of_schema} AND NOT coalesce('{path}' = ANY (p.proconfig), false)");
    assert_eq!(site.number(&others).await, 0);
    let public =
        format!("SELECT count(*) {of_schema} AND has_function_privilege('public', p.oid, 'EXECUTE')");
    assert_eq!(site.number(&public).await, 0);
    // What is not for callers has no rights of the owner by itself.
    let mut definers = [of_operators()].concat();
    definers.sort_unstable();
    let sql = format!("SELECT DISTINCT p.proname::text {of_schema} AND p.prosecdef ORDER BY 1");
    let rows = site.client().await.query(&sql, &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<String>>(), definers);
    // Nobody but the owner has a right on a table, or may create something.
    let tables = "SELECT count(*) FROM pg_class c, aclexplode(c.relacl) a
                  WHERE c.relnamespace = 'polylock'::regnamespace AND a.grantee <> c.relowner";
    assert_eq!(site.number(tables).await, 0);
    assert!(!install("polylock", &Grants::default()).contains("advisory"), "every role may take those locks");
}

/// Version 1 let everybody call everything. Whoever was granted a right by its owner keeps it.
#[tokio::test]
async fn an_upgrade_from_version_1_keeps_locks_and_tokens_and_takes_rights_from_everybody() {
    let site = Site::open().await;
    let (anybody, app) = (site.role("anybody").await, site.role("app").await);
    let admin = site.client().await;
    let version_1 = include_str!("version1.sql");
    admin.batch_execute(version_1).await.unwrap();
    admin
        .batch_execute(&format!("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA polylock TO {app}"))
        .await
        .unwrap();
    let ask = "SELECT polylock.ask('held', '00000000-0000-0000-0000-000000000001', 0, 3600000, '{}', 'on', NULL, NULL, NULL);
               SELECT polylock.ask('held', '00000000-0000-0000-0000-000000000002', 0, 3600000, '{}', 'on', 2500, repeat('a', 32), 1);
               SELECT polylock.ask('used', '00000000-0000-0000-0000-000000000003', 0, 3600000, '{}', 'on', NULL, NULL, NULL);
               SELECT polylock.release('used', '00000000-0000-0000-0000-000000000003', 'on')";
    admin.batch_execute(ask).await.unwrap();
    let tokens = "SELECT string_agg(last::text, ' ' ORDER BY name) FROM polylock.lock";
    let before: String = admin.query_one(tokens, &[]).await.unwrap().get(0);
    assert!(callable(&site, &anybody).await.contains(&"admit".to_owned()));

    // A client that may not upgrade says so, and does not use it: whoever may call its functions could become its owner.
    let error = connect(&site.url_of(&app)).await.unwrap_err();
    assert_eq!(error.code(), "not_installed", "{error}");

    let locks = site.locks("").await;
    assert_eq!(site.number("SELECT version::bigint FROM polylock.meta").await, i64::from(VERSION));
    let after: String = admin.query_one(tokens, &[]).await.unwrap().get(0);
    assert_eq!(after, before);
    assert_eq!(callable(&site, &anybody).await, [""; 0]);
    assert_eq!(callable(&site, "public").await, [""; 0]);
    assert_eq!(callable(&site, &app).await, of_operators(), "it was granted all, but nothing internal");
    assert!(locks.mutex("held").try_acquire().await.unwrap().is_none(), "its holder keeps it");
    let guard = take(&locks, "used").await;
    assert!(guard.token().get() > before.split(' ').nth(1).unwrap().parse().unwrap());
    take(&connect(&site.url_of(&app)).await.unwrap(), "other").await.release().await.unwrap();
}

/// As `pg_dump --schema-only` leaves it.
#[tokio::test]
async fn a_schema_that_was_restored_without_its_rows_is_installed_again() {
    let site = Site::open().await;
    site.locks("").await.close().await.unwrap();
    let admin = site.client().await;
    let app = site.role("app").await;
    site.grant(&app).await;
    admin.batch_execute("DELETE FROM polylock.meta; DELETE FROM polylock.gate").await.unwrap();
    let error = connect(&site.url_of(&app)).await.unwrap_err();
    assert_eq!(error.code(), "not_installed", "{error}");
    let locks = site.locks("").await;
    take(&locks, "orders").await.release().await.unwrap();
    take(&connect(&site.url_of(&app)).await.unwrap(), "orders").await.release().await.unwrap();
}

/// Default rights of the database give new functions to roles.
#[tokio::test]
async fn default_rights_of_the_database_open_nothing_internal() {
    let site = Site::open().await;
    let (app, admin) = (site.role("app").await, site.client().await);
    let default = format!("ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO {app}");
    admin.batch_execute(&default).await.unwrap();
    admin.batch_execute(&install("polylock", &Grants::default())).await.unwrap();
    assert_eq!(callable(&site, &app).await, of_operators());
}
