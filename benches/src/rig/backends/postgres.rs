//! Sessions with PostgreSQL servers beside those of the locks: version and clean-up.

use std::future::poll_fn;

use tokio::sync::mpsc::UnboundedSender;
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::data::Outcome;
use crate::rig::url;

pub(super) async fn version(url: &str) -> Outcome<String> {
    let row = connect(url).await?.query_one("SHOW server_version", &[]).await?;
    let version: &str = row.get(0);
    // A distribution may follow in parentheses.
    Ok(version.split(' ').next().unwrap_or(version).to_owned())
}

/// How many sessions the clients of locks have.
pub(crate) async fn sessions_of_locks(url: &str) -> Outcome<i64> {
    let query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'polylock%'";
    Ok(connect(url).await?.query_one(query, &[]).await?.get(0))
}

/// The size of the tables of the locks, with their indexes, in bytes.
pub(crate) async fn size_of_tables(url: &str) -> Outcome<i64> {
    let query = "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::int8 FROM pg_class \
                 WHERE relkind = 'r' AND relnamespace = $1::text::regnamespace";
    Ok(connect(url).await?.query_one(query, &[&schema_of(url)]).await?.get(0))
}

/// Removes the schema of the locks.
pub(crate) async fn drop_schema(url: &str) -> Outcome<()> {
    Ok(connect(url).await?.batch_execute(&format!("DROP SCHEMA {} CASCADE", schema_of(url))).await?)
}

/// Removes every row of a lock whose name contains the name of this run, and the table of the floor.
pub(super) async fn clean(url: &str, run: &str) -> Outcome<()> {
    let (client, schema) = (connect(url).await?, schema_of(url));
    for table in TABLES {
        let table = format!("{schema}.{table}");
        if client.query_one("SELECT to_regclass($1) IS NULL", &[&table]).await?.get(0) {
            continue;
        }
        client.execute(&format!("DELETE FROM {table} WHERE strpos(name, $1) > 0"), &[&run]).await?;
    }
    Ok(client.batch_execute(&format!("DROP TABLE IF EXISTS {FLOOR}")).await?)
}

/// The schema of the locks, as SQL has it.
pub(crate) fn schema_of(url: &str) -> String {
    let name = url::option(url, "schema").unwrap_or("polylock");
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Opens a session, without TLS. Grants wait for what those of the locks wait for.
pub(crate) async fn connect(url: &str) -> Outcome<Client> {
    let (client, connection) = tokio_postgres::connect(&for_the_driver(url), NoTls).await?;
    // What fails shows at the next request.
    tokio::spawn(connection);
    if let Some(sync) = url::option(url, "sync") {
        client.execute("SELECT set_config('synchronous_commit', $1, false)", &[&sync]).await?;
    }
    Ok(client)
}

/// Opens a session whose notifications are passed on, without their texts.
pub(crate) async fn listen(url: &str, notify: UnboundedSender<()>) -> Outcome<Client> {
    let (client, mut connection) = tokio_postgres::connect(&for_the_driver(url), NoTls).await?;
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            // Nobody listens any more: the session is about to end.
            if matches!(message, AsyncMessage::Notification(_)) && notify.send(()).is_err() {
                return;
            }
        }
    });
    Ok(client)
}

/// The URL without the options of the locks, which the driver does not know.
fn for_the_driver(url: &str) -> String {
    let known = KNOWN.iter().filter_map(|name| Some((name, url::option(url, name)?)));
    known.fold(url::without_options(url).to_owned(), |url, (name, value)| url::with_option(&url, name, value))
}

/// The table of the floor.
pub(crate) const FLOOR: &str = "polylock_bench_floor";
const TABLES: [&str; 5] = ["lock", "lease", "sharer", "waiter", "observer"];
const KNOWN: [&str; 4] = ["host", "port", "options", "target_session_attrs"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_gets_its_own_options() {
        let url = "postgres://me@/shop?ttl=2s&host=/run/postgresql&sync=off&port=7";
        assert_eq!(for_the_driver(url), "postgres://me@/shop?host=/run/postgresql&port=7");
        assert_eq!(schema_of("postgres://h?schema=my\"locks"), "\"my\"\"locks\"");
    }
}
