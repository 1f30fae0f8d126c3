//! The installation, repeated and refused; unused names; the doctor.

use lock_postgres::schema::{Grants, VERSION};
use lock_testkit::postgres::PostgresServer;
use tokio_postgres::{Client, NoTls};

use super::bench::Bench;

fn install(schema: &str) -> String {
    lock_postgres::schema::install(schema, &Grants::default())
}

async fn state_of(client: &Client, sql: &str) -> String {
    match client.batch_execute(sql).await {
        Ok(()) => "ok".to_owned(),
        Err(error) => error.code().unwrap().code().to_owned(),
    }
}

#[tokio::test]
async fn it_may_be_repeated_and_keeps_the_locks() {
    let mut bench = Bench::new().await;
    let name = bench.name("me:200").await;
    for sql in [install(&bench.schema), install(&bench.schema)] {
        assert_eq!(state_of(&bench.client, &sql).await, "ok");
        bench.client.batch_execute("ROLLBACK").await.unwrap();
    }
    assert_eq!(bench.call(&name, "ask me 0").await, "granted");
    let version = bench.client.query_one("SELECT version()", &[]).await;
    // Not that of PostgreSQL, which comes first in a search path.
    assert!(version.unwrap().get::<_, String>(0).starts_with("PostgreSQL"));
    let own = format!("SELECT \"{}\".version()", bench.schema.replace('"', "\"\""));
    assert_eq!(bench.client.query_one(&own, &[]).await.unwrap().get::<_, i32>(0), VERSION);
}

/// What is kept from scanning looks dear to the server, which would compile it at each call: for tens of milliseconds.
#[tokio::test]
async fn no_function_is_compiled() {
    let bench = Bench::new().await;
    let compiled = "SELECT proname::text FROM pg_proc WHERE pronamespace = quote_ident(current_schema())::regnamespace \
                    AND 'enable_seqscan=off' = ANY (proconfig) AND NOT 'jit=off' = ANY (proconfig)";
    let compiled = bench.client.query(compiled, &[]).await.unwrap();
    assert_eq!(compiled.iter().map(|row| row.get(0)).collect::<Vec<String>>(), Vec::<String>::new());
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_stays() {
    let bench = Bench::new().await;
    bench.client.batch_execute("UPDATE meta SET version = version + 1").await.unwrap();
    assert_eq!(state_of(&bench.client, &install(&bench.schema)).await, "PL002");
    let row = bench.client.query_one("SELECT version FROM meta", &[]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), VERSION + 1);
}

/// What a later clock, a name that is removed and a clock that is set back make of tokens.
#[tokio::test]
async fn unused_names_are_removed_and_their_tokens_remembered() {
    let mut bench = Bench::new().await;
    let mut names = Vec::new();
    for state in
        ["free", "me:200", "me:0", "r me:200", "r me:0", "free | ann", "free | ann!", "free *", "free *!"]
    {
        names.push((bench.name(state).await, state));
    }
    let ahead = bench.name("free").await;
    bench.client.execute("UPDATE lock SET last = 1::bigint << 60 WHERE name = $1", &[&ahead]).await.unwrap();
    let last = bench.name("free").await;
    bench.client.execute("UPDATE lock SET last = 1000000000000000 WHERE name = $1", &[&last]).await.unwrap();
    assert_eq!(bench.call("", "sweep").await, "6");
    let left = bench.client.query("SELECT name FROM lock ORDER BY name", &[]).await.unwrap();
    let left: Vec<String> = left.iter().map(|row| row.get(0)).collect();
    let stays = ["me:200", "r me:200", "free | ann", "free *"];
    let mut wanted: Vec<_> =
        names.iter().filter(|(_, state)| stays.contains(state)).map(|(name, _)| name.clone()).collect();
    wanted.push(ahead);
    wanted.sort();
    assert_eq!(left, wanted);
    for table in ["lease", "lock"] {
        let count = bench.client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await.unwrap();
        assert_eq!(count.get::<_, i64>(0), 5);
    }
    let floor = bench.client.query_one("SELECT floor FROM meta", &[]).await.unwrap();
    assert_eq!(floor.get::<_, i64>(0), 1_000_000_000_000_000);
    // As if the clock was set back.
    bench.client.batch_execute("UPDATE meta SET floor = 1::bigint << 60").await.unwrap();
    assert_eq!(bench.call("a new name", "ask me 0").await, "granted");
    assert_eq!(bench.tokens("a new name").await.0, (1 << 60) + 16);
}

#[tokio::test]
async fn a_sweep_walks_all_names_a_few_at_a_time() {
    let mut bench = Bench::new().await;
    for _ in 0..5 {
        bench.name("free").await;
    }
    let (mut after, mut removed) = (Some(String::new()), Vec::new());
    while let Some(name) = after {
        let row = bench
            .client
            .query_one("SELECT removed, next FROM sweep($1, 2, 0, NULL)", &[&name])
            .await
            .unwrap();
        removed.push(row.get::<_, i32>(0));
        after = row.get(1);
    }
    assert_eq!(removed, [2, 2, 1]);
}

/// A server that does not sync, with one open fence.
#[tokio::test]
async fn the_doctor_reports() {
    let server = PostgresServer::start().await.unwrap();
    let (client, connection) = tokio_postgres::connect(&server.connect_string(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&install("polylock")).await.unwrap();
    let row = client.query_one("SELECT polylock.doctor()", &[]).await.unwrap();
    let report = row.get::<_, String>(0);
    for fact in [
        r#""schema_version" : 2"#,
        r#""standby" : false"#,
        r#""fsync" : false"#,
        r#""names" : 0"#,
        r#""fences" : []"#,
    ] {
        assert!(report.contains(fact), "{fact} in {report}");
    }
}
