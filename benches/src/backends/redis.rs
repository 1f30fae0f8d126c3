//! What there is to do on Redis servers beside locking.

use lock_redis::connection_info;
use lock_redis::with_nodelay;
use polylock::backend::LockUrl;
use redis::Client;
use redis::aio::MultiplexedConnection;

use crate::address;
use crate::failure::Outcome;

/// The version of the server.
pub(super) async fn version(url: &str, host: &str) -> Outcome<String> {
    let mut connection = connect(url, host).await?;
    let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
    Ok(version.unwrap_or("unknown").to_owned())
}

/// Removes every key with the name of this run in it, from every server of the URL: locks and their fences,
/// whatever prefix the URL asks for.
pub(super) async fn clean(url: &str, run: &str) -> Outcome<()> {
    for host in address::hosts(url) {
        let mut connection = connect(url, host).await?;
        let mut cursor = String::from("0");
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(format!("*{run}*")).arg("COUNT").arg(1000);
            let (next, keys): (String, Vec<Vec<u8>>) = scan.query_async(&mut connection).await?;
            if !keys.is_empty() {
                redis::cmd("UNLINK").arg(keys).query_async::<u64>(&mut connection).await?;
            }
            if next == "0" {
                break;
            }
            cursor = next;
        }
    }
    Ok(())
}

/// A connection to one host of the URL.
pub(crate) async fn connect(url: &str, host: &str) -> Outcome<MultiplexedConnection> {
    let info = connection_info("redis", &LockUrl::parse(url)?, host)?;
    Ok(Client::open(with_nodelay(info))?.get_multiplexed_async_connection().await?)
}
