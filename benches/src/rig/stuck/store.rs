//! The state of a lock in its store, as `inspect` shows it and in raw.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use futures_util::future::join_all;
use polylock::Locks;
use polylock::backend::LockUrl;
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::time::timeout;

use crate::data::Outcome;
use crate::rig::backends::{postgres as postgres_servers, redis as redis_servers, zk as zk_servers};
use crate::rig::url;

/// The state of these locks, by URL and name.
pub(super) async fn look_at_all(places: &BTreeSet<(&str, &str)>) -> String {
    join_all(places.iter().map(|(url, lock)| look_at(url, lock))).await.join("\n")
}

async fn look_at(url: &str, lock: &str) -> String {
    let scheme = LockUrl::parse(url).map(|url| url.scheme).unwrap_or_default();
    let mut text = format!("# {lock} on {scheme} {}\n\n", url::hosts(url).join(","));
    section(&mut text, "inspect", inspect(url, lock)).await;
    for host in url::hosts(url) {
        match scheme.as_str() {
            "redis" | "redlock" => section(&mut text, host, redis(url, host, lock)).await,
            "zk" => section(&mut text, host, four_letter_words(host)).await,
            _ => {}
        }
    }
    if scheme == "zk" {
        section(&mut text, "nodes", zookeeper(url, lock)).await;
    }
    if scheme == "postgres" {
        section(&mut text, "rows and sessions", postgres(url, lock)).await;
    }
    text
}

async fn section(text: &mut String, title: &str, look: impl Future<Output = Outcome<String>>) {
    let looked = timeout(PATIENCE, look).await;
    let looked = match looked {
        Ok(Ok(looked)) => looked,
        Ok(Err(failure)) => format!("failed: {failure}"),
        Err(_) => format!("no answer within {PATIENCE:?}"),
    };
    let _ = writeln!(text, "## {title}\n\n{}\n", looked.trim_end());
}

async fn inspect(url: &str, lock: &str) -> Outcome<String> {
    let locks = Locks::connect(url).await?;
    let state = locks.inspect(lock).await?;
    Ok(state.to_string())
}

/// All keys with the name of the lock, and the connections.
async fn redis(url: &str, host: &str, lock: &str) -> Outcome<String> {
    let mut connection = redis_servers::connect(url, host).await?;
    let mut text = String::new();
    for key in redis_servers::keys_with(&mut connection, lock).await?.into_iter().take(MOST_KEYS) {
        let kind: String = redis::cmd("TYPE").arg(&key).query_async(&mut connection).await?;
        let left: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut connection).await?;
        let value = value_of(&mut connection, &key, &kind).await?;
        let _ = writeln!(text, "{} ({kind}, pttl {left} ms): {value}", String::from_utf8_lossy(&key));
    }
    let clients: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut connection).await?;
    let _ = write!(text, "\nCLIENT LIST\n{clients}");
    Ok(text)
}

async fn value_of(connection: &mut MultiplexedConnection, key: &[u8], kind: &str) -> Outcome<String> {
    let (command, arguments): (&str, &[&str]) = match kind {
        "string" => ("GET", &[]),
        "hash" => ("HGETALL", &[]),
        "list" => ("LRANGE", &["0", "99"]),
        "set" => ("SMEMBERS", &[]),
        "zset" => ("ZRANGE", &["0", "99", "WITHSCORES"]),
        _ => return Ok("?".into()),
    };
    let value: Value = redis::cmd(command).arg(key).arg(arguments).query_async(connection).await?;
    Ok(text_of(&value))
}

fn text_of(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => bytes.escape_ascii().to_string(),
        Value::Array(values) | Value::Set(values) => {
            values.iter().map(text_of).collect::<Vec<_>>().join(", ")
        }
        Value::Map(pairs) => pairs
            .iter()
            .map(|(name, value)| format!("{}: {}", text_of(name), text_of(value)))
            .collect::<Vec<_>>()
            .join(", "),
        other => format!("{other:?}"),
    }
}

/// The children of the lock's directory with their data. Peers have theirs at the top.
async fn zookeeper(url: &str, lock: &str) -> Outcome<String> {
    let client = zk_servers::connect(url, PATIENCE).await?;
    let mut text = String::new();
    for directory in [format!("{}/{lock}", zk_servers::directory_of(url)), format!("/{lock}")] {
        let Some(mut children) = zk_servers::or_none(client.list_children(&directory).await)? else {
            let _ = writeln!(text, "{directory}: no such node");
            continue;
        };
        let data = zk_servers::or_none(client.get_data(&directory).await)?.map(|(data, _)| data);
        let _ = writeln!(text, "{directory}: {}", data.unwrap_or_default().escape_ascii());
        children.sort_unstable_by_key(|child| child.get(child.len().saturating_sub(10)..).map(str::to_owned));
        for child in children.iter().take(MOST_KEYS) {
            if let Some((data, stat)) =
                zk_servers::or_none(client.get_data(&format!("{directory}/{child}")).await)?
            {
                let _ = writeln!(
                    text,
                    "    {child}: session {:#x}, czxid {:#x}: {}",
                    stat.ephemeral_owner,
                    stat.czxid,
                    data.escape_ascii()
                );
            }
        }
    }
    Ok(text)
}

/// All rows of the lock, and the sessions.
async fn postgres(url: &str, lock: &str) -> Outcome<String> {
    let (client, schema) = (postgres_servers::connect(url).await?, postgres_servers::schema_of(url));
    let mut text = String::new();
    for (title, from) in [
        ("lock", format!("{schema}.lock AS r WHERE name = $1")),
        ("lease", format!("{schema}.lease AS r WHERE name = $1")),
        ("sharer", format!("{schema}.sharer AS r WHERE name = $1")),
        ("waiter", format!("{schema}.waiter AS r WHERE name = $1")),
        ("session", "pg_stat_activity AS r WHERE $1 <> '' AND datid IS NOT NULL".into()),
    ] {
        let query = format!("SELECT to_jsonb(r)::text FROM {from} LIMIT {MOST_KEYS}");
        for row in client.query(&query, &[&lock]).await? {
            let _ = writeln!(text, "{title}: {}", row.get::<_, &str>(0));
        }
    }
    Ok(text)
}

/// What is not enabled says so.
async fn four_letter_words(host: &str) -> Outcome<String> {
    let mut text = String::new();
    for word in ["srvr", "cons", "dump"] {
        let _ = writeln!(text, "{word}\n{}\n", zk_servers::four_letter(host, word).await?.trim_end());
    }
    Ok(text)
}

/// For each look: an outage may be why the lock is stuck.
const PATIENCE: Duration = Duration::from_secs(5);
const MOST_KEYS: usize = 100;
