//! Other roles of the same database: what they may do, and what they cannot.

mod messages;
mod poison;
mod rights;
mod takeover;

use lock_core::Locks;
use tokio_postgres::Client;

use crate::site::Site;

/// The id of an acquisition of the other role.
const OWNER: &str = "'00000000-0000-0000-0000-00000000000e'";

/// A database with locks, and a session of another role that may use them.
struct Shared {
    site: Site,
    locks: Locks,
    app: String,
    client: Client,
}

impl Shared {
    async fn new() -> Self {
        let site = Site::open().await;
        let (app, locks) = (site.role("app").await, site.locks("&ttl=20s").await);
        site.grant(&app).await;
        let client = site.client_of(&app).await;
        Self { site, locks, app, client }
    }

    /// Calls a function as the other role.
    async fn call(&self, call: &str) {
        let sql = format!("SELECT polylock.{call}");
        self.client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{call}: {error:?}"));
    }

    /// The SQLSTATE of a call of the other role, which is refused.
    async fn refused(&self, call: &str) -> String {
        let error = self.client.batch_execute(&format!("SELECT polylock.{call}")).await.unwrap_err();
        error.code().unwrap_or_else(|| panic!("{call}: {error:?}")).code().to_owned()
    }
}
