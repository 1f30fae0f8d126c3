//! Which role may call what. The table is that of docs/OPERATIONS.md.

use lock_core::ErrorKind;
use lock_postgres::schema::{Grants, VERSION, install};
use lock_testkit::{give_back, take};

use crate::site::{Site, connect};

/// For roles that use locks.
const CLIENTS: &str = "ask blocker doctor downgrade extend fence hand_over hears holds inspect list observe raise release sweep tell unobserve version";
/// For roles that break locks as well.
const OPERATORS: &str = "ask blocker break_if break_lock doctor downgrade extend fence hand_over hears holds inspect list observe raise release sweep tell unobserve version";

/// The functions that a role may call; `public` is everybody.
async fn callable(site: &Site, role: &str) -> String {
    functions(site, &format!("has_function_privilege('{role}', p.oid, 'EXECUTE')")).await
}

/// The functions of the schema of which this holds.
async fn functions(site: &Site, holds: &str) -> String {
    let sql = "SELECT coalesce(string_agg(DISTINCT p.proname::text, ' ' ORDER BY p.proname::text), '') FROM pg_proc p WHERE p.pronamespace = 'polylock'::regnamespace";
    site.client().await.query_one(&format!("{sql} AND {holds}"), &[]).await.unwrap().get(0)
}

async fn install_for(site: &Site, clients: &[&str], operators: &[&str]) {
    let grants = clients.iter().fold(Grants::default(), |grants, &role| grants.client(role));
    let grants = operators.iter().fold(grants, |grants, &role| grants.operator(role));
    site.execute(&install("polylock", &grants)).await;
}

#[tokio::test]
async fn a_role_may_call_what_it_was_granted() {
    let site = Site::open().await;
    let (nobody, app, operator) =
        (site.role("nobody").await, site.role("app").await, site.role("operator").await);
    install_for(&site, &[&app], &[&operator]).await;
    assert_eq!(callable(&site, &nobody).await, "");
    assert_eq!(callable(&site, "public").await, "");
    assert_eq!(callable(&site, &app).await, CLIENTS);
    assert_eq!(callable(&site, &operator).await, OPERATORS);
    // An installation that names nobody takes nothing away.
    install_for(&site, &[], &[]).await;
    assert_eq!(callable(&site, &app).await, CLIENTS);
    assert_eq!(callable(&site, &operator).await, OPERATORS);

    let locks = connect(&site.url_of(&app)).await.unwrap();
    let guard = take(&locks, "orders").await;
    let error = locks.break_lock("orders").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.hint().unwrap().contains("--operator"), "{error}");
    guard.raise_token(guard.token()).await.unwrap();
    give_back(guard).await;
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
    give_back(take(&connect(&site.url_of(&anybody)).await.unwrap(), "orders").await).await;
}

/// What PostgreSQL says of functions with the rights of their owner: a path of their own, and nobody who may call them unasked.
#[tokio::test]
async fn every_function_has_a_path_of_its_own_and_none_is_for_everybody() {
    let site = Site::open().await;
    site.install().await;
    let path = r#"search_path="polylock", pg_temp"#;
    assert_eq!(functions(&site, &format!("NOT coalesce('{path}' = ANY (p.proconfig), false)")).await, "");
    assert_eq!(callable(&site, "public").await, "");
    // What is not for callers has no rights of the owner by itself.
    assert_eq!(functions(&site, "p.prosecdef").await, OPERATORS);
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
    admin.batch_execute(include_str!("version1.sql")).await.unwrap();
    site.execute(&format!("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA polylock TO {app}")).await;
    let ask = "SELECT polylock.ask('held', '00000000-0000-0000-0000-000000000001', 0, 3600000, '{}', 'on', NULL, NULL, NULL);
               SELECT polylock.ask('held', '00000000-0000-0000-0000-000000000002', 0, 3600000, '{}', 'on', 2500, repeat('a', 32), 1);
               SELECT polylock.ask('used', '00000000-0000-0000-0000-000000000003', 0, 3600000, '{}', 'on', NULL, NULL, NULL);
               SELECT polylock.release('used', '00000000-0000-0000-0000-000000000003', 'on')";
    admin.batch_execute(ask).await.unwrap();
    let tokens = "SELECT string_agg(last::text, ' ' ORDER BY name) FROM polylock.lock";
    let before: String = admin.query_one(tokens, &[]).await.unwrap().get(0);
    assert!(callable(&site, &anybody).await.contains("admit"));

    // A client that may not upgrade says so, and does not use it: whoever may call its functions could become its owner.
    let error = connect(&site.url_of(&app)).await.unwrap_err();
    assert_eq!(error.code(), "not_installed", "{error}");

    let locks = site.locks("").await;
    assert_eq!(site.number("SELECT version::bigint FROM polylock.meta").await, i64::from(VERSION));
    let after: String = admin.query_one(tokens, &[]).await.unwrap().get(0);
    assert_eq!(after, before);
    assert_eq!(callable(&site, &anybody).await, "");
    assert_eq!(callable(&site, "public").await, "");
    assert_eq!(callable(&site, &app).await, OPERATORS, "it was granted all, but nothing internal");
    assert!(locks.mutex("held").try_acquire().await.unwrap().is_none(), "its holder keeps it");
    let guard = take(&locks, "used").await;
    assert!(guard.token().get() > before.split(' ').nth(1).unwrap().parse().unwrap());
    give_back(take(&connect(&site.url_of(&app)).await.unwrap(), "other").await).await;
}

/// As `pg_dump --schema-only` leaves it.
#[tokio::test]
async fn a_schema_that_was_restored_without_its_rows_is_installed_again() {
    let site = Site::open().await;
    site.install().await;
    let admin = site.client().await;
    let app = site.role("app").await;
    site.grant(&app).await;
    admin.batch_execute("DELETE FROM polylock.meta; DELETE FROM polylock.gate").await.unwrap();
    let error = connect(&site.url_of(&app)).await.unwrap_err();
    assert_eq!(error.code(), "not_installed", "{error}");
    let locks = site.locks("").await;
    give_back(take(&locks, "orders").await).await;
    give_back(take(&connect(&site.url_of(&app)).await.unwrap(), "orders").await).await;
}

/// Default rights of the database give new functions to roles.
#[tokio::test]
async fn default_rights_of_the_database_open_nothing() {
    let site = Site::open().await;
    let (app, admin) = (site.role("app").await, site.client().await);
    let default = format!("ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO {app}");
    admin.batch_execute(&default).await.unwrap();
    install_for(&site, &[], &[]).await;
    assert_eq!(callable(&site, &app).await, "");
    install_for(&site, &[&app], &[]).await;
    assert_eq!(callable(&site, &app).await, CLIENTS);
    // Nor does a repeated installation find more.
    install_for(&site, &[], &[]).await;
    assert_eq!(callable(&site, &app).await, CLIENTS);
}
