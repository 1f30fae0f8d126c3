//! The floor of Redlock: the commands of one server on all masters in parallel, until a majority has answered; with or
//! without fencing tokens.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use polylock::OwnerId;
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::sync::Mutex;

use super::Floor;
use super::redis::{BareRedis, expect, tokens_of};
use crate::data::{Failure, Outcome};

/// One connection for each master.
///
/// An operation ends when a majority has answered. The other answers are read during later operations: the driver might not
/// send a request whose answer is not awaited, and the key would stay.
#[derive(Debug)]
pub(crate) struct BareRedlock {
    masters: Vec<Master>,
    key: String,
    minting: bool,
    operation: u64,
    in_flight: FuturesUnordered<BoxFuture<'static, (u64, RedisResult<Value>)>>,
}

#[derive(Debug)]
struct Master {
    connection: MultiplexedConnection,
    set: Arc<Cmd>,
    delete: Arc<Cmd>,
    /// Held until an answer: where the queue of the driver is full, a later request may overtake an earlier one.
    in_turn: Arc<Mutex<()>>,
}

/// What is sent to a master in one write.
enum Request {
    One(Arc<Cmd>),
    /// Answered by an array.
    Several(Pipeline),
}

impl BareRedlock {
    /// Uses these connections to all masters, which others may share.
    pub(crate) async fn on(
        connections: &[MultiplexedConnection],
        key: &str,
        owner: OwnerId,
        ttl: Duration,
    ) -> Outcome<Self> {
        let mut masters = Vec::new();
        for connection in connections {
            let connection = connection.clone();
            let BareRedis { set, delete, .. } = BareRedis::on(connection.clone(), key, owner, ttl).await?;
            let (set, delete, in_turn) = (Arc::new(set), Arc::new(delete), Arc::default());
            masters.push(Master { connection, set, delete, in_turn });
        }
        let in_flight = FuturesUnordered::new();
        Ok(Self { masters, key: key.to_owned(), minting: false, operation: 0, in_flight })
    }

    /// With fencing tokens: each master stores the local clock if that is larger than its last token.
    ///
    /// Counters of the masters, as on one server, would agree on nothing without a second round trip.
    pub(crate) fn minting(self) -> Self {
        Self { minting: true, ..self }
    }

    async fn at_majority(&mut self, request: impl Fn(&Master) -> Request, wanted: &Value) -> Outcome<()> {
        self.operation += 1;
        let operation = self.operation;
        for master in &self.masters {
            let (connection, request) = (master.connection.clone(), request(master));
            let in_turn = Arc::clone(&master.in_turn);
            self.in_flight.push(Box::pin(async move {
                let _turn = in_turn.lock().await;
                (operation, request.send(connection).await)
            }));
        }
        let mut missing = self.masters.len() / 2 + 1;
        while missing > 0 {
            let Some((of, answer)) = self.in_flight.next().await else {
                return Err(Failure::new("a majority of the masters did not answer"));
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

impl Request {
    async fn send(self, mut connection: MultiplexedConnection) -> RedisResult<Value> {
        match self {
            Self::One(command) => connection.req_packed_command(&command).await,
            Self::Several(commands) => {
                let answers = connection.req_packed_commands(&commands, 0, commands.len()).await?;
                Ok(Value::Array(answers))
            }
        }
    }
}

impl Floor for BareRedlock {
    async fn acquire(&mut self) -> Outcome<()> {
        if !self.minting {
            return self.at_majority(|master| Request::One(Arc::clone(&master.set)), &Value::Okay).await;
        }
        let token = u64::try_from(UNIX_EPOCH.elapsed()?.as_micros())?;
        let mut mint = redis::cmd("ZADD");
        mint.arg(tokens_of(&self.key)).arg("GT").arg("CH").arg(token).arg("last");
        let set_and_mint = |master: &Master| {
            let mut both = Pipeline::with_capacity(2);
            both.add_command((*master.set).clone()).add_command(mint.clone());
            Request::Several(both)
        };
        // The number of changed members: one, if the token is larger than the last.
        self.at_majority(set_and_mint, &Value::Array(vec![Value::Okay, Value::Int(1)])).await
    }

    async fn release(&mut self) -> Outcome<()> {
        self.at_majority(|master| Request::One(Arc::clone(&master.delete)), &Value::Int(1)).await
    }

    async fn settle(&mut self) -> Outcome<()> {
        while let Some((_, answer)) = self.in_flight.next().await {
            answer?;
        }
        Ok(())
    }

    async fn clean(mut self) -> Outcome<()> {
        self.settle().await?;
        if self.minting {
            let delete = redis::cmd("DEL").arg(tokens_of(&self.key)).clone();
            for master in &mut self.masters {
                delete.exec_async(&mut master.connection).await?;
            }
        }
        Ok(())
    }
}
