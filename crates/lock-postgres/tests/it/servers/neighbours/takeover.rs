//! Ways to the rights of the owner of the schema, or of whoever installs or connects.

use lock_core::ErrorKind;
use lock_postgres::schema::{Grants, install};
use lock_postgres::{PostgresConfig, schema};
use lock_testkit::{give_back, take};
use tokio_postgres::Client;

use crate::site::{Site, connect};

/// Makes whoever runs it give its rights away. `$1` is the role that gets them.
const TROJAN: &str = "BEGIN
  IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
    ALTER ROLE $1 SUPERUSER;
  END IF;";

fn trojan(role: &str) -> String {
    TROJAN.replace("$1", role)
}

async fn is_superuser(site: &Site, role: &str) -> bool {
    site.number(&format!("SELECT count(*) FROM pg_roles WHERE rolname = '{role}' AND rolsuper")).await == 1
}

/// Runs what an attacker would: some of it may fail.
async fn try_all(client: &Client, statements: &[&str]) {
    for statement in statements {
        let _ = client.batch_execute(statement).await;
    }
}

/// CVE-2018-1058 and its like: a type of the caller in the place of a table, where a function is compiled for its session.
#[tokio::test]
async fn a_temporary_table_is_in_nobodys_way() {
    let site = Site::open().await;
    site.install().await;
    for is_client in [false, true] {
        let eve = site.role(if is_client { "client" } else { "eve" }).await;
        if is_client {
            site.grant(&eve).await;
        }
        let client = site.client_of(&eve).await;
        let pwn = format!(
            "CREATE FUNCTION pg_temp.pwn(x text) RETURNS boolean LANGUAGE plpgsql AS $$ {} RETURN true; END $$;
             CREATE DOMAIN pg_temp.d AS text CHECK (pg_temp.pwn(VALUE));
             CREATE TEMP TABLE lock (name pg_temp.d, owner uuid, token bigint, last bigint, fenced bigint, since timestamptz, info text,
               shared smallint, queued boolean, observed boolean);
             CREATE FUNCTION pg_temp.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT now() - interval ''1 year''';
             SET search_path = pg_temp, pg_catalog",
            trojan(&eve)
        );
        client.batch_execute(&pwn).await.unwrap();
        let ask = "SELECT status FROM polylock.ask('victim', gen_random_uuid(), 0, 1000, NULL, 'on', NULL, NULL, NULL, NULL)";
        let inside = [
            "SELECT polylock.admit('x', gen_random_uuid(), 0, 1, NULL, clock_timestamp(), NULL)",
            "SELECT polylock.enter('x', clock_timestamp())",
            "SELECT polylock.advance('x', NULL, clock_timestamp())",
            "SELECT polylock.remove_holders('x', 0, 1, 'on')",
            "SELECT polylock.break_lock('x', 1, 'on')",
        ];
        for call in inside {
            let error = client.batch_execute(call).await.unwrap_err();
            assert_eq!(error.code().unwrap().code(), "42501", "{call}: {error:?}");
        }
        assert_eq!(client.batch_execute(ask).await.is_ok(), is_client);
        assert!(!is_superuser(&site, &eve).await);
    }
}

/// The functions with the best fit are those of whoever may create in `public`.
#[tokio::test]
async fn functions_in_public_are_not_called_by_an_installation_or_a_client() {
    let site = Site::open().await;
    let eve = site.role("eve").await;
    let admin = site.client().await;
    admin.batch_execute("GRANT CREATE ON SCHEMA public TO PUBLIC").await.unwrap();
    let client = site.client_of(&eve).await;
    let body = format!("LANGUAGE plpgsql AS $$ {} RETURN; END $$;", trojan(&eve));
    let trojans: String = [
        "hashtextextended(text, int) RETURNS bigint",
        "set_config(text, unknown, boolean) RETURNS text",
        "format(text, name) RETURNS text",
        "concat_ws(text, text) RETURNS text",
        "quote_ident(name) RETURNS text",
        "pg_notify(unknown, unknown) RETURNS void",
        "eq(name, text) RETURNS boolean",
        "eq(text, name) RETURNS boolean",
        "eq(oid, bigint) RETURNS boolean",
        "octet_length(varchar) RETURNS int",
        "generate_series(int, bigint) RETURNS SETOF int",
        "clock_timestamp(int DEFAULT 0) RETURNS timestamptz",
    ]
    .map(|function| {
        let returns =
            if function.contains("void") || function.contains("SETOF") { "RETURN;" } else { "RETURN NULL;" };
        format!("CREATE FUNCTION public.{function} {}", body.replace("RETURN;", returns))
    })
    .concat();
    let created = trojans.replace("unknown", "varchar");
    client.batch_execute(&created).await.unwrap();
    let operators = ["name, RIGHTARG = text", "text, RIGHTARG = name", "oid, RIGHTARG = bigint"];
    for types in operators {
        let sql = format!("CREATE OPERATOR public.= (LEFTARG = {types}, FUNCTION = public.eq)");
        client.batch_execute(&sql).await.unwrap();
    }
    // The worst path that anybody could have set for the database.
    let worst = format!("ALTER DATABASE {} SET search_path = public, pg_catalog", site.database);
    admin.batch_execute(&worst).await.unwrap();
    site.install().await;
    PostgresConfig::from_url(&site.url()).unwrap().install_schema().await.unwrap();
    let locks = site.locks("").await;
    let guard = take(&locks, "orders").await;
    guard.extend(std::time::Duration::from_secs(20)).await.unwrap();
    locks.inspect("orders").await.unwrap();
    locks.list("").await.unwrap();
    locks.doctor().await.unwrap();
    give_back(guard).await;
    assert!(!is_superuser(&site, &eve).await);
}

/// CVE-2022-2625: `IF NOT EXISTS` and `OR REPLACE` adopt what somebody has put there before.
#[tokio::test]
async fn a_schema_that_another_role_made_is_neither_installed_into_nor_used() {
    let site = Site::open().await;
    let eve = site.role("eve").await;
    let admin = site.client().await;
    admin.batch_execute(&format!("GRANT CREATE ON DATABASE {} TO {eve}", site.database)).await.unwrap();
    let squat = format!(
        "CREATE SCHEMA polylock;
         GRANT USAGE ON SCHEMA polylock TO PUBLIC;
         CREATE TABLE polylock.meta (version int NOT NULL DEFAULT 0, floor bigint NOT NULL DEFAULT 0);
         CREATE FUNCTION polylock.pwn() RETURNS trigger LANGUAGE plpgsql AS $$ {body} RETURN NEW; END $$;
         CREATE TRIGGER t BEFORE INSERT OR UPDATE ON polylock.meta FOR EACH ROW EXECUTE FUNCTION polylock.pwn();
         CREATE FUNCTION polylock.version() RETURNS int LANGUAGE plpgsql AS $$ {body} RETURN {version}; END $$",
        body = trojan(&eve),
        version = schema::VERSION,
    );
    site.client_of(&eve).await.batch_execute(&squat).await.unwrap();
    let error = admin.batch_execute(&install("polylock", &Grants::default())).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "42501", "{error:?}");
    admin.batch_execute("ROLLBACK").await.unwrap();
    let config = PostgresConfig::from_url(&site.url()).unwrap();
    for error in [
        config.clone().install_schema().await.unwrap_err(),
        connect(&site.url()).await.unwrap_err(),
        connect(&format!("{}&install=off", site.url())).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.code()), (ErrorKind::Denied, "foreign_schema"), "{error}");
        assert!(error.to_string().contains(&eve), "{error}");
    }
    assert!(!is_superuser(&site, &eve).await);
    // Whoever trusts that role says so.
    connect(&format!("{}&owner={eve}&install=off", site.url())).await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn a_schema_in_which_others_may_create_is_not_used() {
    let site = Site::open().await;
    let eve = site.role("eve").await;
    site.install().await;
    let admin = site.client().await;
    admin.batch_execute(&format!("GRANT CREATE, USAGE ON SCHEMA polylock TO {eve}")).await.unwrap();
    let lets_create = connect(&site.url()).await.unwrap_err();
    assert!(lets_create.to_string().contains("lets other roles create"), "{lets_create}");
    let client = site.client_of(&eve).await;
    let trojan = format!(
        "CREATE FUNCTION polylock.version(int DEFAULT 0) RETURNS int LANGUAGE plpgsql AS $$ {} RETURN 1; END $$",
        trojan(&eve)
    );
    client.batch_execute(&trojan).await.unwrap();
    admin.batch_execute(&format!("REVOKE CREATE ON SCHEMA polylock FROM {eve}")).await.unwrap();
    let has_functions = connect(&site.url()).await.unwrap_err();
    assert!(has_functions.to_string().contains("functions of other roles"), "{has_functions}");
    let error = admin.batch_execute(&install("polylock", &Grants::default())).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "PL003", "{error:?}");
    assert!(!is_superuser(&site, &eve).await);
}

/// It has a table `meta` of its own.
#[tokio::test]
async fn the_schema_of_an_application_is_left_alone() {
    let site = Site::open().await;
    let admin = site.client().await;
    let app = "CREATE TABLE public.meta (version int NOT NULL, floor bigint NOT NULL DEFAULT 0); INSERT INTO public.meta VALUES (0);
               CREATE SCHEMA app; CREATE TABLE app.lock (name text)";
    admin.batch_execute(app).await.unwrap();
    // As on a server that was upgraded from PostgreSQL 14.
    admin.batch_execute("ALTER SCHEMA public OWNER TO postgres").await.unwrap();
    for schema in ["public", "app"] {
        let error = connect(&format!("{}&schema={schema}", site.url())).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Denied, "foreign_schema"), "{error}");
        let error = admin.batch_execute(&install(schema, &Grants::default())).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "PL003", "{error:?}");
    }
    assert_eq!(site.number("SELECT version::bigint FROM public.meta").await, 0);
    let left =
        "SELECT count(*) FROM pg_class WHERE relnamespace IN ('public'::regnamespace, 'app'::regnamespace)";
    assert_eq!(site.number(left).await, 2);
}

#[tokio::test]
async fn objects_in_pg_temp_are_not_used_by_a_fence() {
    let site = Site::open().await;
    let locks = site.locks("").await;
    let guard = take(&locks, "orders").await;
    let client = site.client().await;
    try_all(&client, &["CREATE TEMP TABLE lock (name text)", "SET search_path = pg_temp"]).await;
    let fence = format!("SELECT polylock.fence('orders', {})", guard.token());
    client.batch_execute(&fence).await.unwrap();
    client.batch_execute("SELECT polylock.fence('orders', 1)").await.unwrap_err();
}

/// It is there for a moment, again and again, while clients connect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_appears_while_a_client_connects_is_not_used() {
    let site = Site::open().await;
    let eve = site.role("eve").await;
    let admin = site.client().await;
    admin.batch_execute(&format!("GRANT CREATE ON DATABASE {} TO {eve}", site.database)).await.unwrap();
    let client = site.client_of(&eve).await;
    let squat = format!(
        "BEGIN; CREATE SCHEMA polylock; GRANT USAGE ON SCHEMA polylock TO PUBLIC;
         CREATE FUNCTION polylock.version() RETURNS int LANGUAGE plpgsql AS $$ {} RETURN 2; END $$; COMMIT;
         DROP SCHEMA polylock CASCADE",
        trojan(&eve)
    );
    let squats = tokio::spawn(async move {
        loop {
            let _ = client.batch_execute(&squat).await;
        }
    });
    for _ in 0..40 {
        let _ = connect(&format!("{}&install=off&listen=off", site.url())).await;
    }
    squats.abort();
    assert!(!is_superuser(&site, &eve).await);
}

#[tokio::test]
async fn default_rights_of_the_database_give_neither_the_schema_nor_a_table_away() {
    let site = Site::open().await;
    let app = site.role("app").await;
    let admin = site.client().await;
    let default = ["TABLES", "SEQUENCES", "SCHEMAS", "FUNCTIONS"]
        .map(|kind| format!("ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO {app};"))
        .concat();
    admin.batch_execute(&default).await.unwrap();
    site.install().await;
    let rights = "SELECT count(*) FROM pg_class c, aclexplode(c.relacl) a
                  WHERE c.relnamespace = 'polylock'::regnamespace AND a.grantee <> c.relowner";
    assert_eq!(site.number(rights).await, 0);
    let client = site.client_of(&app).await;
    for attempt in [
        "CREATE FUNCTION polylock.sign(int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TRIGGER t BEFORE INSERT ON polylock.lock FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "SELECT key FROM polylock.waiter",
        "SELECT nextval('polylock.waiter_seq_seq')",
    ] {
        let error = client.batch_execute(attempt).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42501", "{attempt}: {error:?}");
    }
    connect(&site.url()).await.unwrap().close().await.unwrap();
}

/// What runs with the rights of the owner from then on.
#[tokio::test]
async fn an_upgrade_refuses_what_somebody_has_added_to_the_tables() {
    for added in [
        "CREATE TRIGGER t BEFORE INSERT ON polylock.lock FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "CREATE RULE r AS ON INSERT TO polylock.lock DO ALSO NOTIFY somebody",
        "CREATE POLICY p ON polylock.lock",
        "CREATE FUNCTION polylock.sign(int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    ] {
        let site = Site::open().await;
        let admin = site.client().await;
        admin.batch_execute(include_str!("version1.sql")).await.unwrap();
        admin.batch_execute(added).await.unwrap();
        let error = connect(&site.url()).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Denied, "foreign_schema"), "{added}: {error}");
        assert_eq!(site.number("SELECT version::bigint FROM polylock.meta").await, 1);
    }
}

#[tokio::test]
async fn functions_of_an_application_are_kept() {
    let site = Site::open().await;
    let admin = site.client().await;
    let app = "CREATE SCHEMA app; CREATE FUNCTION app.important(int) RETURNS int LANGUAGE sql AS 'SELECT 1'";
    admin.batch_execute(app).await.unwrap();
    let error = admin.batch_execute(&install("app", &Grants::default())).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "PL003", "{error:?}");
    assert_eq!(site.number("SELECT app.important(1)::bigint").await, 1);
}
