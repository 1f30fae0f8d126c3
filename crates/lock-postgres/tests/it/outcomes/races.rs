//! Connections that acquire, extend, pause, fence, release and are killed at random, on one lock with short leases.

use std::time::{Duration, Instant};

use lock_testkit::{by_tier, come, until};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::sleep;
use tokio_postgres::{Client, Error};

use super::bench::{Bench, open, pid, waits_for_a_lock};
use super::state::owner;

const CLIENTS: u64 = 6;
/// Time: leases end all the time.
const TTL: Duration = Duration::from_millis(150);

/// A token, and from when to when its holder treated the lock as valid.
#[derive(Debug)]
struct Hold {
    token: i64,
    start: Instant,
    end: Instant,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: races for some seconds"]
async fn holds_never_overlap_and_commits_are_never_stale() {
    let bench = Bench::new().await;
    bench.client.batch_execute("CREATE TABLE journal (nr bigserial, token bigint NOT NULL)").await.unwrap();
    let until = Instant::now() + Duration::from_secs(by_tier(4, 6, 60));
    let tasks: Vec<_> =
        (0..CLIENTS).map(|seed| tokio::spawn(race(bench.schema.clone(), seed, until))).collect();
    while Instant::now() < until {
        // Time: it goes on for so long.
        sleep(TTL).await;
        // Any of them, and at any time.
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE query LIKE '%''race''%' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1";
        bench.client.query(sql, &[]).await.unwrap();
    }
    let mut holds = Vec::new();
    for task in tasks {
        holds.extend(task.await.unwrap());
    }
    holds.sort_by_key(|hold| hold.start);
    for pair in holds.windows(2) {
        assert!(pair[0].end <= pair[1].start && pair[0].token < pair[1].token, "{pair:#?}");
    }
    let rows = bench.client.query("SELECT token FROM journal ORDER BY nr", &[]).await.unwrap();
    let commits: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert!(commits.is_sorted(), "an earlier holder has committed after a later one: {commits:?}");
    let commits = commits.len();
    println!("{} holds, {commits} commits", holds.len());
    assert!(holds.len() > 5 && commits > 2);
}

/// Its client has given it up meanwhile, and extended the lease by another call.
#[tokio::test]
async fn a_slow_extension_shortens_no_later_one() {
    let mut bench = Bench::new().await;
    let slow = "CREATE OR REPLACE FUNCTION commit_by(p_sync text) RETURNS void LANGUAGE plpgsql AS
                $$ BEGIN PERFORM pg_advisory_xact_lock(4711) WHERE current_setting('test.slow', true) = 'on'; END $$";
    bench.client.batch_execute(slow).await.unwrap();
    let extend = |ttl: u64, shortens: bool| {
        format!(
            "extend(ARRAY[$1], ARRAY[$2::text::uuid], ARRAY[{ttl}::bigint], ARRAY[{shortens}], 'on')::text"
        )
    };
    let downgrade = "(downgrade($1, $2::text::uuid, 300000, 'on')).status".to_owned();
    for (state, slow, later) in [
        ("me:200", extend(100_000, false), extend(300_000, false)),
        ("r me:200", extend(100_000, false), extend(300_000, false)),
        // The later one is as short: the core asks for no longer one then.
        ("me:400", extend(300_000, true), extend(300_000, true)),
        ("r me:400", extend(300_000, true), extend(300_000, true)),
        ("me:200", downgrade.clone(), downgrade),
    ] {
        let (name, me) = (bench.name(state).await, owner("me"));
        let (first, second) = (bench.connection().await, bench.connection().await);
        first.batch_execute("SET test.slow = 'on'").await.unwrap();
        bench.client.batch_execute("SELECT pg_advisory_lock(4711)").await.unwrap();
        let session = pid(&first).await;
        let (slow, later) = (format!("SELECT {slow}"), format!("SELECT {later}"));
        let late = {
            let (name, me, sql) = (name.clone(), me.clone(), slow.clone());
            tokio::spawn(
                async move { first.query_one(&sql, &[&name, &me]).await.unwrap().get::<_, String>(0) },
            )
        };
        until("it is under way", async || waits_for_a_lock(&second, session).await).await;
        let extended = second.query_one(&later, &[&name, &me]).await.unwrap().get::<_, String>(0);
        let ends = ends(&second, &name).await;
        bench.client.batch_execute("SELECT pg_advisory_unlock(4711)").await.unwrap();
        if extended == "locked" {
            // The slow one has the row, so that no later one comes before it.
            assert_eq!(come(late).await, "shared", "{slow}");
            continue;
        }
        assert!(["{1}", "shared"].contains(&extended.as_str()), "{extended}");
        assert_eq!(come(late).await, extended, "{slow}");
        assert!(self::ends(&bench.client, &name).await >= ends, "{state}: {slow}");
    }
}

/// When the lease ends, or that of a reader.
async fn ends(client: &Client, name: &str) -> f64 {
    let sql = "SELECT extract(epoch FROM max(expires_at))::float8 FROM (
                 SELECT expires_at FROM lease WHERE name = $1 UNION ALL SELECT expires_at FROM sharer WHERE name = $1) AS leases";
    client.query_one(sql, &[&name]).await.unwrap().get(0)
}

/// Else a renewal that has read the lock before, and gets the row of its lease after that, would extend it.
#[tokio::test]
async fn whoever_ends_an_expired_lease_takes_its_owner_away() {
    let mut bench = Bench::new().await;
    for call in ["ask ann -1", "ask ann 2", "release ann", "break 9999"] {
        let name = bench.name("me:0").await;
        bench.call(&name, call).await;
        let sql = "SELECT owner IS NULL FROM lease WHERE name = $1";
        let is_free: bool = bench.client.query_one(sql, &[&name]).await.unwrap().get(0);
        assert!(is_free, "{call}");
    }
}

async fn race(schema: String, seed: u64, until: Instant) -> Vec<Hold> {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut holds, mut count) = (Vec::new(), 0);
    let mut client = open(&schema).await;
    while Instant::now() < until {
        count += 1;
        let owner = format!("{seed:016x}{count:016x}");
        let tried = attempt(&client, &owner, &mut random, &mut holds).await;
        if tried.is_err_and(|error| error.is_closed() || error.code().is_none()) {
            client = open(&schema).await;
        }
        // Time: at random, as everything here.
        sleep(TTL * random.random_range(0..4) / 150).await;
    }
    holds
}

/// Acquires the lock, and does with it what comes.
async fn attempt(
    client: &Client,
    owner: &str,
    random: &mut StdRng,
    holds: &mut Vec<Hold>,
) -> Result<(), Error> {
    let ttl = TTL.as_millis();
    let sent = Instant::now();
    let sql = format!(
        "SELECT status, token FROM ask('race', '{owner}', 0, {ttl}, '', 'off', NULL, NULL, NULL, NULL)"
    );
    let row = client.query_one(&sql, &[]).await?;
    if row.get::<_, &str>(0) != "granted" {
        return Ok(());
    }
    let (token, start, mut end) = (row.get(1), Instant::now(), sent + TTL);
    if random.random() {
        let sent = Instant::now();
        let sql = format!("SELECT extend('{{race}}', '{{{owner}}}', '{{{ttl}}}', '{{false}}', 'off')");
        let answer = client.query_one(&sql, &[]).await;
        if answer.is_ok_and(|row| row.get::<_, Vec<i32>>(0) == [1]) {
            end = sent + TTL;
        }
    }
    if random.random_ratio(1, 4) {
        // Time: a pause that may be longer than the lease.
        sleep(TTL * random.random_range(0..300) / 150).await;
    }
    let fenced = if random.random() { write(client, token, random).await } else { Ok(()) };
    let released = Instant::now();
    holds.extend((start < end.min(released)).then(|| Hold { token, start, end: end.min(released) }));
    fenced?;
    if random.random_ratio(3, 4) {
        client.query_one(&format!("SELECT release('race', '{owner}', 'off')"), &[]).await?;
    }
    Ok(())
}

/// Writes to the journal in a fenced transaction, which finds no later token there, before and after a pause.
async fn write(client: &Client, token: i64, random: &mut StdRng) -> Result<(), Error> {
    let pause = if random.random_ratio(1, 3) { 3 * TTL } else { Duration::ZERO };
    client.batch_execute("BEGIN").await?;
    let fenced = async {
        client.batch_execute(&format!("SELECT fence('race', {token})")).await?;
        for _ in 0..2 {
            let row = client.query_one("SELECT coalesce(max(token), 0) FROM journal", &[]).await?;
            assert!(row.get::<_, i64>(0) <= token, "a later holder has committed before {token}");
            // Time: the lease may end meanwhile.
            sleep(pause / 2).await;
        }
        client.execute("INSERT INTO journal (token) VALUES ($1)", &[&token]).await
    };
    let end = if fenced.await.is_ok() { "COMMIT" } else { "ROLLBACK" };
    client.batch_execute(end).await
}
