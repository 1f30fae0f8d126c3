//! The floor of PostgreSQL: a row that is inserted unless there is one that has not expired, and deleted if it is ours.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use polylock::OwnerId;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Statement};

use super::Floor;
use crate::data::{Failure, Outcome};
use crate::rig::backends::postgres::{FLOOR, connect};
use crate::rig::idle::Idle;
use crate::rig::url;

/// A pool of as many sessions as a client of ours has, with prepared statements.
#[derive(Debug)]
pub(crate) struct Sessions(Idle<Session>);

#[derive(Debug)]
struct Session {
    client: Client,
    insert: Statement,
    delete: Statement,
}

#[derive(Debug)]
pub(crate) struct BarePostgres {
    sessions: Arc<Sessions>,
    name: String,
    owner: String,
    ttl_ms: i64,
}

impl Sessions {
    pub(super) async fn open(url: &str) -> Outcome<Self> {
        let size = url::option(url, "pool").map_or(Ok(POOL), str::parse)?;
        let first = connect(url).await?;
        make_table(&first).await?;
        let others = try_join_all((1..size).map(|_| connect(url))).await?;
        let all = try_join_all([first].into_iter().chain(others).map(Session::prepare)).await?;
        Ok(Self(Idle::of(all)))
    }

    /// Executes a statement on the session that was used last, and returns how many rows it changed.
    async fn execute(
        &self,
        statement: fn(&Session) -> &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Outcome<u64> {
        let session = self.0.take().await?;
        let changed = session.client.execute(statement(&session), parameters).await;
        self.0.put_back(session).await;
        Ok(changed?)
    }
}

/// Makes the table of the floor. Several processes may do so at once.
pub(crate) async fn make_table(client: &Client) -> Outcome<()> {
    let make = format!("CREATE TABLE IF NOT EXISTS {FLOOR} (name text PRIMARY KEY, {COLUMNS})");
    Ok(client.batch_execute(&format!("SELECT pg_advisory_xact_lock({MAKING}); {make}")).await?)
}

impl Session {
    async fn prepare(client: Client) -> Outcome<Self> {
        let insert = format!("INSERT INTO {FLOOR} AS f {UNLESS_HELD}");
        let insert = client.prepare_typed(&insert, &[Type::TEXT, Type::TEXT, Type::INT8]).await?;
        let delete = format!("DELETE FROM {FLOOR} WHERE name = $1 AND owner = $2");
        let delete = client.prepare_typed(&delete, &[Type::TEXT, Type::TEXT]).await?;
        Ok(Self { client, insert, delete })
    }
}

impl BarePostgres {
    pub(super) fn on(sessions: &Arc<Sessions>, name: &str, owner: OwnerId, ttl: Duration) -> Outcome<Self> {
        let (sessions, ttl_ms) = (Arc::clone(sessions), i64::try_from(ttl.as_millis())?);
        Ok(Self { sessions, name: name.to_owned(), owner: owner.to_string(), ttl_ms })
    }
}

impl Floor for BarePostgres {
    async fn acquire(&mut self) -> Outcome<()> {
        let row: [&(dyn ToSql + Sync); 3] = [&self.name, &self.owner, &self.ttl_ms];
        one(self.sessions.execute(|session| &session.insert, &row).await?)
    }

    async fn release(&mut self) -> Outcome<()> {
        one(self.sessions.execute(|session| &session.delete, &[&self.name, &self.owner]).await?)
    }
}

/// Fails unless the statement did its work: otherwise its time is no floor.
fn one(changed: u64) -> Outcome<()> {
    match changed {
        1 => Ok(()),
        _ => Err(Failure::new(format!("the bare statements failed: {changed} rows instead of one"))),
    }
}

/// The default of a client of ours.
const POOL: usize = 4;
/// The number of an advisory lock.
const MAKING: i64 = 0x706f_6c79_6c6f_636b;
const COLUMNS: &str = "owner text NOT NULL, expires_at timestamptz NOT NULL";
const UNLESS_HELD: &str = "VALUES ($1, $2, clock_timestamp() + $3 * interval '1 ms') ON CONFLICT (name) \
                           DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at \
                           WHERE f.expires_at <= clock_timestamp()";

#[cfg(test)]
mod tests {
    use lock_testkit::PostgresServer;

    use super::*;
    use crate::rig::floor::BareConnections;

    #[tokio::test]
    async fn a_held_lock_is_no_floor_until_it_expires() {
        let server = PostgresServer::start().await.unwrap();
        let (url, ttl) = (format!("{}?sync=off", server.url()), Duration::from_secs(30));
        let connections = BareConnections::open(&url, ttl).await.unwrap();
        let mut floor = connections.floor("unit", ttl).await.unwrap();
        for _ in 0..3 {
            floor.acquire().await.unwrap();
            floor.release().await.unwrap();
        }
        floor.acquire().await.unwrap();
        let mut rival = connections.floor("unit", Duration::ZERO).await.unwrap();
        assert!(rival.acquire().await.is_err() && rival.release().await.is_err());
        floor.release().await.unwrap();
        rival.acquire().await.unwrap();
        floor.acquire().await.unwrap();
    }
}
