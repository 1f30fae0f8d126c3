//! The commands of one server, on all masters in parallel until a majority has answered.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::{Cmd, RedisResult, Value};

use super::Floor;
use super::redis::{BareRedis, expect};
use crate::address;
use crate::failure::{Failure, Outcome};

/// One connection for each master.
///
/// An operation ends when a majority has answered it. The answers of the minority come in during the next ones: a
/// request whose answer nobody awaits may not be sent at all by the driver, and the key would stay.
#[derive(Debug)]
pub(crate) struct BareRedlock {
    masters: Vec<Master>,
    operation: u64,
    on_their_way: FuturesUnordered<BoxFuture<'static, (u64, RedisResult<Value>)>>,
}

#[derive(Debug)]
struct Master {
    connection: MultiplexedConnection,
    set: Arc<Cmd>,
    delete: Arc<Cmd>,
}

impl BareRedlock {
    /// Connects to every master of this URL.
    ///
    /// # Errors
    ///
    /// When one of them does not let us in.
    pub(crate) async fn connect(url: &str, key: &str, ttl: Duration) -> Outcome<Self> {
        let mut masters = Vec::new();
        for host in address::hosts(url) {
            let BareRedis { connection, set, delete } = BareRedis::connect(url, host, key, ttl).await?;
            masters.push(Master { connection, set: Arc::new(set), delete: Arc::new(delete) });
        }
        Ok(Self { masters, operation: 0, on_their_way: FuturesUnordered::new() })
    }

    async fn at_majority(&mut self, command: fn(&Master) -> &Arc<Cmd>, wanted: &Value) -> Outcome<()> {
        self.operation += 1;
        let operation = self.operation;
        for master in &self.masters {
            let (mut connection, command) = (master.connection.clone(), Arc::clone(command(master)));
            let answer = async move { (operation, connection.req_packed_command(&command).await) };
            self.on_their_way.push(Box::pin(answer));
        }
        let mut missing = self.masters.len() / 2 + 1;
        while missing > 0 {
            let Some((of, answer)) = self.on_their_way.next().await else {
                return Err(Failure::new("the masters do not answer"));
            };
            let answer = answer?;
            if of == operation {
                expect(answer, wanted)?;
                missing -= 1;
            }
        }
        Ok(())
    }
}

impl Floor for BareRedlock {
    async fn acquire(&mut self) -> Outcome<()> {
        self.at_majority(|master| &master.set, &Value::Okay).await
    }

    async fn release(&mut self) -> Outcome<()> {
        self.at_majority(|master| &master.delete, &Value::Int(1)).await
    }

    async fn clean(mut self) -> Outcome<()> {
        while let Some((_, answer)) = self.on_their_way.next().await {
            answer?;
        }
        Ok(())
    }
}
