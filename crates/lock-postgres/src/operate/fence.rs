//! The fence: a transaction of the caller that only the last holder of a lock can commit.

use std::sync::Arc;

use async_trait::async_trait;
use lock_core::{Error, ErrorKind, Guard, Result, Token};
use tokio_postgres::Transaction;

use crate::error::BACKEND;
use crate::server::Server;

/// Fences transactions with the token of a guard.
///
/// A transaction that has called the fence commits only if no later holder was granted the lock, and while it is open, nobody is
/// granted the lock. That is true with holders that were paused, leases that have expired and clocks that jump, and among the tasks
/// of one process. Call it first in the transaction, and check nothing else.
///
/// A guard whose token is known, by a fence or by [`Guard::token`], goes to the next task of the process by a request to the server,
/// which refuses the token from then on.
///
/// # Examples
///
/// ```no_run
/// use lock_postgres::Fence;
///
/// # async fn example(locks: lock_core::Locks, client: &mut tokio_postgres::Client)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let guard = locks.mutex("account/7").acquire().await?;
/// let transaction = client.transaction().await?;
/// guard.fence(&transaction).await?;
/// transaction.execute("UPDATE account SET cents = cents - 5 WHERE id = 7", &[]).await?;
/// transaction.commit().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Fence {
    /// The statement that fences the transaction in which it is run, for any driver:
    /// `SELECT "polylock".fence('account/7', 1795598823144368)`.
    ///
    /// Outside of a transaction it succeeds, and protects nothing. A `ROLLBACK TO SAVEPOINT` undoes it, and so does a PL/pgSQL block
    /// that catches an exception after it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the lock is not one of PostgreSQL.
    fn fence_sql(&self) -> Result<String>;

    /// Fences this transaction. It waits while another transaction with a fence of the same lock is open.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if this token is not of the last grant: roll the transaction back.
    /// [`ErrorKind::Unsupported`] if the lock is not one of PostgreSQL. Otherwise as the server says.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the transaction may be fenced.
    async fn fence(&self, transaction: &Transaction<'_>) -> Result<()>;
}

/// What the fence needs of a held lock.
pub(crate) struct Fencing {
    pub(crate) server: Arc<Server>,
    pub(crate) name: Arc<str>,
}

#[async_trait]
impl Fence for Guard {
    fn fence_sql(&self) -> Result<String> {
        Ok(fencing(self)?.sql(self.token()))
    }

    async fn fence(&self, transaction: &Transaction<'_>) -> Result<()> {
        let fencing = fencing(self)?;
        let fenced = transaction.query_typed(&fencing.sql(self.token()), &[]).await;
        fenced
            .map(drop)
            .map_err(|error| fencing.server.endpoint.fence(&error).during("fence").on(self.name()))
    }
}

impl Fencing {
    fn sql(&self, token: Token) -> String {
        self.server.fence_sql(&self.name, token)
    }
}

fn fencing(guard: &Guard) -> Result<Arc<Fencing>> {
    guard.backend_specific().ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, BACKEND)
            .with_message("the lock is not in PostgreSQL, or is below a migration")
            .with_hint("let the resource compare the token itself: docs/FENCING.md")
            .during("fence")
            .on(guard.name())
    })
}
