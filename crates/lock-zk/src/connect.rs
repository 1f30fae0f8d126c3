//! From options to locks.

use lock_core::{Lazy, Locks, Result};

use crate::backend::Zk;
use crate::capabilities::capabilities;
use crate::config::ZkConfig;

impl ZkConfig {
    /// Connects, and checks that the chroot exists.
    ///
    /// The session lives on the tokio runtime of the caller.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a bad option or a missing chroot,
    /// [`ErrorKind::Unavailable`](lock_core::ErrorKind::Unavailable) when no server answers,
    /// [`ErrorKind::Denied`](lock_core::ErrorKind::Denied) when the servers refuse the credentials,
    /// [`ErrorKind::Unsupported`](lock_core::ErrorKind::Unsupported) in a child of a process that has used ZooKeeper before the
    /// fork: no thread of the driver is there.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: a session that was just opened is closed again.
    pub async fn connect(self) -> Result<Locks> {
        Ok(Locks::new(Zk::connect(self).await?))
    }

    /// The same locks, not connected yet: their first use connects, and reports what is wrong with the connection.
    ///
    /// For a service that starts before its server. Needs no runtime; every use does.
    ///
    /// ```
    /// # use lock_zk::ZkConfig;
    /// let locks = ZkConfig::from_url("zk://a:2181,b:2181,c:2181/app")?.connect_lazy()?;
    /// let mutex = locks.mutex("orders/42"); // nothing is sent before mutex.acquire()
    /// # let _ = mutex;
    /// # Ok::<(), lock_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a bad option.
    pub fn connect_lazy(self) -> Result<Locks> {
        self.check()?;
        let expected = capabilities(self.recipe, self.session_timeout);
        Ok(Locks::new(Lazy::new(expected, move || Zk::connect(self.clone()))))
    }
}
