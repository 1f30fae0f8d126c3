//! The journal of a soak on PostgreSQL: a table that holders write to in fenced transactions.

use std::time::Duration;

use polylock::{Error, Fence, Guard};
use tokio::time::sleep;
use tokio_postgres::Client;

use crate::data::Outcome;
use crate::rig::backends::postgres::connect;

/// A session that writes to the journal, opened at the first write.
pub(super) struct Journal {
    url: String,
    process: u32,
    client: u64,
    session: Option<Client>,
}

impl Journal {
    /// `None` on other backends.
    pub(super) fn new(url: &str, process: u32, client: u64) -> Option<Self> {
        let url = url.starts_with("postgres").then(|| url.to_owned())?;
        Some(Self { url, process, client, session: None })
    }

    /// Writes the token of a guard in a fenced transaction, and pauses before the commit. `Err` inside if the fence refused it.
    ///
    /// After an error, and when the future is dropped, the session ends.
    pub(super) async fn write(
        &mut self,
        guard: &Guard,
        lock: &str,
        pause: Duration,
    ) -> Outcome<Result<(), Error>> {
        let mut session = match self.session.take().filter(|session| !session.is_closed()) {
            Some(session) => session,
            None => self.open().await?,
        };
        let transaction = session.transaction().await?;
        if let Err(refused) = guard.fence(&transaction).await {
            return Ok(Err(refused));
        }
        let insert = "INSERT INTO journal (lock, process, client, token) VALUES ($1, $2, $3, $4)";
        let (process, client) = (i64::from(self.process), self.client as i64);
        transaction.execute(insert, &[&lock, &process, &client, &(guard.token().get() as i64)]).await?;
        sleep(pause).await;
        transaction.commit().await?;
        self.session = Some(session);
        Ok(Ok(()))
    }

    async fn open(&self) -> Outcome<Client> {
        let session = connect(&self.url).await?;
        session.batch_execute(SETTINGS).await?;
        Ok(session)
    }
}

/// It is ended and cancelled as the sessions of the locks are. A transaction whose client is stopped or cut off keeps the lock from
/// everybody, for as long as the server lets it.
const SETTINGS: &str = "SET application_name = 'polylock journal'; SET idle_in_transaction_session_timeout = '1s'; \
                        SET client_connection_check_interval = '1s'";
