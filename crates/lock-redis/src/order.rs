//! The order in which a server executes the requests for one lock.

use std::sync::Arc;

use lock_core::BootInstant;
use lock_core::engine::Order;
use redis_link::client::RedisClient;
use redis_link::dispatch::Dispatch;
use redis_link::keys::Keys;

/// The connection to the server of a lock, and what becomes of the requests that are made now.
#[derive(Clone, Debug)]
pub struct OnConnection {
    client: Arc<RedisClient>,
    keys: Arc<Keys>,
    /// Its generation; `None` if there was none.
    pub(crate) connection: Option<u64>,
    pub(crate) dispatch: Arc<Dispatch>,
    /// Whether a request says when its lease ends.
    says_the_end: bool,
}

impl OnConnection {
    pub(crate) fn new(client: &Arc<RedisClient>, keys: &Arc<Keys>, says_the_end: bool) -> Self {
        Self {
            connection: client.generation(keys),
            dispatch: client.dispatch(),
            client: Arc::clone(client),
            keys: Arc::clone(keys),
            says_the_end,
        }
    }
}

impl Order for OnConnection {
    fn is_open(&self) -> bool {
        self.connection.is_some() && self.connection == self.client.generation(&self.keys)
    }

    fn requests(&self) -> usize {
        self.dispatch.requests()
    }

    fn withdraw(&self) {
        self.dispatch.withdraw();
    }

    /// From when it was written, as it may have waited for its turn; unless it says the end.
    fn counts_from(&self, asked: BootInstant) -> BootInstant {
        let written = self.dispatch.written().filter(|_| !self.says_the_end);
        written.map_or(asked, |written| written.on_clock)
    }
}
