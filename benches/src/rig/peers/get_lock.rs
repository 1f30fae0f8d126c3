//! `GET_LOCK` of MySQL, a lock of the session, by sqlx.

use lock_testkit::history::ReleaseOutcome;
use tokio::sync::Mutex;

use super::Library;
use crate::data::{Failure, Outcome};
use crate::rig::backends::mysql::Session;
use crate::rig::measured_lock::MeasuredLock;

#[derive(Debug)]
pub(crate) struct GetLock {
    session: Mutex<Session>,
    name: String,
}

impl Library for GetLock {
    async fn open(url: &str, name: &str) -> Outcome<Self> {
        Ok(Self { session: Mutex::new(Session::open(url).await?), name: name.to_owned() })
    }
}

impl GetLock {
    /// Whether the answer is 1: other answers are 0, and NULL for an error.
    async fn ask(&self, sql: &'static str) -> Outcome<bool> {
        Ok(self.session.lock().await.number(sql, &[&self.name]).await? == Some(1))
    }
}

impl MeasuredLock for GetLock {
    type Held = ();

    async fn acquire(&self) -> Outcome<()> {
        // MariaDB has no wait without an end.
        match self.ask("SELECT GET_LOCK(?, 1000)").await? {
            true => Ok(()),
            false => Err(Failure::new("GET_LOCK has not granted the lock")),
        }
    }

    async fn release(&self, (): ()) -> Outcome<ReleaseOutcome> {
        let released = self.ask("SELECT RELEASE_LOCK(?)").await?;
        Ok(if released { ReleaseOutcome::Released } else { ReleaseOutcome::AlreadyLost })
    }
}
