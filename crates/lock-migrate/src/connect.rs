//! From options to locks.

use std::sync::Arc;

use lock_core::backend::Backend;
use lock_core::{Lazy, Locks, Result, runtime};

use crate::backend::Migration;
use crate::capabilities::capabilities;
use crate::config::MigrationConfig;
use crate::error::BACKEND;
use crate::rungs::operator::Operator;

impl MigrationConfig {
    /// Takes part in the migration between these stores.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for an empty namespace, a tombstone that lives for less than a day, stores between which
    ///   locks cannot move, a store that takes part in another migration, and [`Rung::New`](crate::Rung::New) before the seal is written.
    /// * [`ErrorKind::Unavailable`](lock_core::ErrorKind::Unavailable) when a store does not answer. After the seal, only the new one has to.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn open(self, from: Arc<dyn Backend>, to: Arc<dyn Backend>) -> Result<Migration> {
        self.check(&*from, &*to)?;
        runtime::current(BACKEND)?;
        Migration::open(self, from, to).await
    }

    /// Connects as the operator of the migration between these stores. The rung and what else is for processes does not count.
    ///
    /// # Errors
    ///
    /// As for [`Operator::connect`]; [`ErrorKind::InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a bad option.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn operate(self, from: Arc<dyn Backend>, to: Arc<dyn Backend>) -> Result<Operator> {
        self.check(&*from, &*to)?;
        Operator::connect(self.namespace, from, to).await
    }

    /// The same locks without a connection: the first use takes part in the migration, and returns the errors of that.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a bad option.
    pub fn open_lazy(self, from: Arc<dyn Backend>, to: Arc<dyn Backend>) -> Result<Locks> {
        self.check(&*from, &*to)?;
        let expected = capabilities(&*from, &*to);
        let open = move || self.clone().open(Arc::clone(&from), Arc::clone(&to));
        Ok(Locks::new(Lazy::new(expected, open)))
    }
}
