//! What the outages do to a server, whatever it stores.

use futures_util::future::BoxFuture;
use lock_testkit::{EtcdServer, MariadbServer, PostgresServer, RedisServer, ZooKeeper};

use crate::data::Outcome;

/// A server of the test kit.
pub(super) trait FaultServer: Sync {
    fn pid(&self) -> u32;
    fn stop(&self);
    fn cont(&self);
    fn kill(&self);
    /// Restarts it, with its data.
    fn start_again(&self) -> BoxFuture<'_, Outcome<()>>;
    /// Whether it answers a request, sooner or later.
    fn answers(&self) -> BoxFuture<'_, bool>;
}

macro_rules! fault_servers {
    ($($server:ty: |$alias:ident| $answers:expr;)+) => {$(
        impl FaultServer for $server {
            fn pid(&self) -> u32 {
                self.pid()
            }

            fn stop(&self) {
                self.stop();
            }

            fn cont(&self) {
                self.cont();
            }

            fn kill(&self) {
                self.kill();
            }

            fn start_again(&self) -> BoxFuture<'_, Outcome<()>> {
                Box::pin(async { Ok(self.start_again().await?) })
            }

            fn answers(&self) -> BoxFuture<'_, bool> {
                let $alias = self;
                Box::pin(async move { $answers.await.is_ok() })
            }
        }
    )+};
}

fault_servers! {
    RedisServer: |server| server.command(&["PING"]);
    ZooKeeper: |server| server.four_letter("ruok");
    PostgresServer: |server| server.sql(&["SELECT 1"]);
    EtcdServer: |server| server.values("fault");
    MariadbServer: |server| server.sql("SELECT 1");
}
