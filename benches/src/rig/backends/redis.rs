//! Connections to Redis servers beside those of the locks: version and clean-up.

use std::time::Duration;

use lock_redis::{connection_info, with_nodelay};
use polylock::backend::LockUrl;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};

use crate::data::Outcome;
use crate::rig::url;

pub(super) async fn version(url: &str, host: &str) -> Outcome<String> {
    let mut connection = connect(url, host).await?;
    let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
    Ok(version.unwrap_or("unknown").to_owned())
}

/// Removes every key whose name contains the name of this run, from every server of the URL.
pub(super) async fn clean(url: &str, run: &str) -> Outcome<()> {
    for host in url::hosts(url) {
        let mut connection = connect(url, host).await?;
        for keys in keys_with(&mut connection, run).await?.chunks(KEYS_AT_ONCE) {
            redis::cmd("UNLINK").arg(keys).query_async::<u64>(&mut connection).await?;
        }
    }
    Ok(())
}

pub(crate) async fn keys_with(connection: &mut MultiplexedConnection, text: &str) -> Outcome<Vec<Vec<u8>>> {
    let (mut cursor, mut found) = (String::from("0"), Vec::new());
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(format!("*{text}*")).arg("COUNT").arg(KEYS_AT_ONCE);
        let (next, keys): (String, Vec<Vec<u8>>) = scan.query_async(connection).await?;
        found.extend(keys);
        if next == "0" {
            return Ok(found);
        }
        cursor = next;
    }
}

/// Connects to one host of the URL, with the URL's credentials and database, without Nagle's delay.
pub(crate) async fn connect(url: &str, host: &str) -> Outcome<MultiplexedConnection> {
    // Many tasks may wait for one connection, and a floor reads some answers later: half a second, the default, is too short.
    let options = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    Ok(client(url, host)?.get_multiplexed_async_connection_with_config(&options).await?)
}

/// As [`connect`], before the connection is made.
pub(crate) fn client(url: &str, host: &str) -> Outcome<Client> {
    Ok(Client::open(with_nodelay(connection_info("redis", &LockUrl::parse(url)?, host)?))?)
}

const PATIENCE: Duration = Duration::from_secs(10);
const KEYS_AT_ONCE: usize = 1000;
