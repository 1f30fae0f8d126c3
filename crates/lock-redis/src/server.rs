//! One Redis server: the part that a single lock server and each master of a quorum have in common.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::Pool;
use lock_core::{Clock, Error, ErrorKind, Outcome, OwnerId, Result, Token};
use redis::aio::{ConnectionLike, MultiplexedConnection, PubSub};
use redis::{ConnectionAddr, ConnectionInfo, PushInfo, RedisError, ServerErrorKind, Value};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;

use crate::Keys;
use crate::dial::{Dial, DriverDial};
use crate::error::Place;
use crate::link::{Link, load};
use crate::scripts::{ACQUIRE, BREAK, Call, EXTEND, INSPECT, RAISE, RELEASE};

/// The last token outlives its lock by this, or by a hundred times the time to live if that is more.
const FENCE_TTL: Duration = Duration::from_secs(7 * 24 * 3600);
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// How to reach a server.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServerOptions {
    /// The name of the backend that errors show.
    pub backend: &'static str,
    /// Address, database and credentials.
    pub info: ConnectionInfo,
    /// Where to take connections from; one of our own when `None`.
    pub pool: Option<Pool>,
    /// What makes the connections; the driver when `None`. The pool is not used then.
    pub dial: Option<Arc<dyn Dial>>,
    /// How long to wait for a connection.
    pub connect_timeout: Duration,
    /// How long to wait for an answer.
    pub command_timeout: Duration,
    /// The clock that leases are counted on.
    pub clock: Clock,
}

/// One Redis server, reached over one connection that all locks on it share.
pub struct Server {
    link: Link,
    clock: Clock,
}

/// What an acquisition asks of a server.
#[derive(Debug)]
pub struct Claim<'a> {
    /// The lock.
    pub keys: &'a Keys,
    /// The identity of the acquisition.
    pub owner: OwnerId,
    /// The time to live.
    pub ttl: Duration,
    /// What `inspect` shows of the owner.
    pub info: &'a str,
    /// The token to use if it is larger than the last; the server's clock when `None`.
    pub proposal: Option<Token>,
}

/// What a server answers to a [`Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The lock is ours, with this token.
    Granted(Token),
    /// Somebody else has the key.
    Busy {
        /// When it ends by itself, if it does.
        ends_in: Option<Duration>,
        /// The type of the key when it is not a string, and so no lock of this protocol.
        foreign_type: Option<String>,
    },
    /// The connection broke: the lock may be ours. [`undo`](Server::undo) the claim, and make another
    /// if you like: the connection may just have been idle for too long.
    Broken,
}

/// Why a request has no answer.
enum Failure {
    /// The connection was closed or reset under it.
    Dropped,
    Told(Error),
}

/// What is known of a claim that is to be [undone](Server::undo).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It was answered, or never sent.
    Answered,
    /// Nothing is known but the connection that was in use when it was made, if there was one.
    InDoubt {
        /// The [generation](Server::generation) of that connection.
        connection: Option<u64>,
    },
}

impl Sent {
    /// Whether a request on the present connection comes after the claim.
    fn is_settled_on(self, present: Option<u64>) -> bool {
        match self {
            Self::Answered => true,
            Self::InDoubt { connection } => connection.is_some() && connection == present,
        }
    }
}

/// What a server knows about a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// The type of the key, `none` when the lock is free.
    pub kind: String,
    /// The value of the key.
    pub value: String,
    /// The last token.
    pub token: Option<Token>,
    /// Who got it.
    pub owner: String,
    /// What that owner told about itself.
    pub info: String,
    /// When it was granted, in microseconds since 1970 by the server's clock.
    pub since: Option<u64>,
    /// How many processes wait for the lock.
    pub waiters: usize,
}

impl ServerOptions {
    /// The driver, a second for a connection and for an answer, and the clock that goes on while the
    /// host is suspended.
    #[must_use]
    pub fn new(backend: &'static str, info: ConnectionInfo) -> Self {
        Self {
            backend,
            info,
            pool: None,
            dial: None,
            connect_timeout: Duration::from_secs(1),
            command_timeout: Duration::from_secs(1),
            clock: Clock::boot(),
        }
    }
}

impl Server {
    /// A server that will be connected to when it is first used.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] when the driver refuses the address.
    pub fn new(options: ServerOptions) -> Result<Self> {
        let place = Place { backend: options.backend, address: address(&options.info) };
        let ServerOptions { info, pool, connect_timeout, command_timeout, .. } = options;
        let driver = DriverDial { pool, connect_timeout, command_timeout };
        let dialer = options.dial.unwrap_or_else(|| Arc::new(driver));
        Ok(Self {
            link: Link::new(place, dialer, info, connect_timeout, command_timeout),
            clock: options.clock,
        })
    }

    /// Host and port, or the path of the socket.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.link.place.address
    }

    /// How long an answer is awaited.
    #[must_use]
    pub const fn command_timeout(&self) -> Duration {
        self.link.command_timeout
    }

    /// Connects now, and warns if the server may throw locks away.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] or [`ErrorKind::Denied`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn connect(&self) -> Result<()> {
        self.link.connection().await.map(drop)
    }

    /// A RESP3 connection of its own that hands everything that the server pushes to `told`.
    ///
    /// # Errors
    ///
    /// When there is no connection, or no RESP3.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn pushes(&self, told: UnboundedSender<PushInfo>) -> redis::RedisResult<MultiplexedConnection> {
        self.link.dialer.pushes(&self.link.to, told).await
    }

    /// A RESP2 connection of its own for subscriptions.
    ///
    /// # Errors
    ///
    /// When there is no connection.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn messages(&self) -> redis::RedisResult<PubSub> {
        self.link.dialer.messages(&self.link.to).await
    }

    /// Asks for a lock: one round trip.
    ///
    /// # Errors
    ///
    /// With [`Outcome::Unknown`] the lock may have been taken:
    /// [`undo`](Self::undo) it.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lock may be taken: [`undo`](Self::undo) it.
    pub async fn claim(&self, claim: &Claim<'_>) -> Result<Verdict> {
        let call = ACQUIRE
            .on(&[&claim.keys.lock, &claim.keys.fence])
            .arg(claim.owner.to_string())
            .arg(millis(claim.ttl))
            .arg(claim.info)
            .arg(fence_millis(claim.ttl))
            .arg(claim.proposal.map_or_else(String::new, |token| token.to_string()));
        // Never sent twice: an owner whose claim may be on its way in two copies cannot be undone for sure.
        match self.send(&call).await {
            Ok(answer) => verdict(&answer).ok_or_else(|| self.link.place.unexpected(&answer)),
            Err(Failure::Dropped) => Ok(Verdict::Broken),
            Err(Failure::Told(error)) => Err(error),
        }
    }

    /// Gives a lock back, and says whether it was the owner's: one round trip. `None` when the lock is
    /// not the owner's any more and an earlier sending of this very request may be why.
    ///
    /// # Errors
    ///
    /// With [`Outcome::Unknown`] it may have been given back.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lock may or may not be given back; ask again.
    pub async fn release(&self, keys: &Keys, owner: OwnerId) -> Result<Option<bool>> {
        let call = RELEASE.on(&[&keys.lock]).arg(owner.to_string()).arg(&keys.channel);
        let (answer, resent) = self.run(&call).await?;
        let ours = flag(&answer).ok_or_else(|| self.link.place.unexpected(&answer))?;
        Ok(Some(ours).filter(|ours| *ours || !resent))
    }

    /// Lets locks end later, all in one round trip, and says for each whether it is the owner's.
    ///
    /// # Errors
    ///
    /// With [`Outcome::Unknown`] any of them may have been extended.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, any of them may have been extended.
    pub async fn extend(&self, leases: &[(&Keys, OwnerId, Duration)]) -> Result<Vec<Result<bool>>> {
        let calls = leases.iter().map(|(keys, owner, ttl)| {
            let call = EXTEND.on(&[&keys.lock, &keys.fence]);
            call.arg(owner.to_string()).arg(millis(*ttl)).arg(fence_millis(*ttl))
        });
        let calls: Vec<_> = calls.collect();
        let answers = self.run_all(&calls).await?;
        let told = |answer: Value| flag(&answer).ok_or_else(|| self.link.place.unexpected(&answer));
        Ok(answers.into_iter().map(|answer| answer.and_then(told)).collect())
    }

    /// Lifts the last token to `floor` while the lock is the owner's, and says whether it is.
    ///
    /// # Errors
    ///
    /// With [`Outcome::Unknown`] it may have been lifted.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, it may have been lifted.
    pub async fn raise(&self, keys: &Keys, owner: OwnerId, floor: Token, ttl: Duration) -> Result<bool> {
        let call = RAISE.on(&[&keys.lock, &keys.fence]);
        self.flag(&call.arg(owner.to_string()).arg(floor.get()).arg(fence_millis(ttl))).await
    }

    /// Looks at a lock: one round trip.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked, or refuses.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn look(&self, keys: &Keys) -> Result<Sight> {
        let (answer, _) = self.run(&INSPECT.on(&[&keys.lock, &keys.fence]).arg(&keys.channel)).await?;
        sight(&answer).ok_or_else(|| self.link.place.unexpected(&answer))
    }

    /// Takes a lock away from whoever holds it, and gives the type of the key that was there. A key
    /// that is no string is left alone.
    ///
    /// # Errors
    ///
    /// With [`Outcome::Unknown`] it may have been broken.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, it may have been broken.
    pub async fn break_lock(&self, keys: &Keys) -> Result<String> {
        // Never sent twice: the second could break the lock of the next holder.
        let call = BREAK.on(&[&keys.lock]).arg(&keys.channel);
        let answer = self.send(&call).await.map_err(|failure| self.told(failure))?;
        redis::from_redis_value_ref(&answer).map_err(|_| self.link.place.unexpected(&answer))
    }

    /// Removes what a claim may have left, however late it arrives, and says whether there was
    /// something; `None` when an earlier request of this very call may have removed it.
    ///
    /// After an answered claim, and on the connection that carried it, one answer settles it. After
    /// that connection broke, the claim may still be on its way: it is looked for until a lease of `ttl`
    /// taken now would have ended.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, something may be left until its time to live is over.
    pub async fn undo(&self, keys: &Keys, owner: OwnerId, ttl: Duration, sent: Sent) -> Option<bool> {
        let until = self.clock.now() + ttl + self.command_timeout();
        let (mut pause, mut in_doubt) = (FIRST_PAUSE, false);
        while self.clock.now() < until {
            match self.release(keys, owner).await {
                Ok(Some(true)) => return Some(true),
                Ok(removed) => {
                    in_doubt |= removed.is_none();
                    if sent.is_settled_on(self.generation()) {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Closed => break,
                Err(error) => in_doubt |= error.outcome() != Outcome::NotApplied,
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
        Some(false).filter(|_| !in_doubt)
    }

    /// The error of a [broken](Verdict::Broken) connection.
    #[must_use]
    pub fn broken(&self) -> Error {
        self.link.place.dropped()
    }

    /// Which connection is in use, `None` without one; for [`undo`](Self::undo).
    #[must_use]
    pub fn generation(&self) -> Option<u64> {
        self.link.generation()
    }

    /// Closes the connection for good.
    pub fn close(&self) {
        self.link.close();
    }

    async fn flag(&self, call: &Call) -> Result<bool> {
        let (answer, _) = self.run(call).await?;
        flag(&answer).ok_or_else(|| self.link.place.unexpected(&answer))
    }

    /// The answer, and whether the request was sent twice for it.
    async fn run(&self, call: &Call) -> Result<(Value, bool)> {
        match self.send(call).await {
            // What is run this way answers the same when its owner sends it twice. Whatever the second answer
            // is, the first request may have been carried out.
            Err(Failure::Dropped) => match self.send(call).await {
                Err(failure) => Err(self.told(failure).with_outcome(Outcome::Unknown)),
                Ok(answer) => Ok((answer, true)),
            },
            answer => answer.map(|answer| (answer, false)).map_err(|failure| self.told(failure)),
        }
    }

    async fn send(&self, call: &Call) -> Result<Value, Failure> {
        let (mut connection, generation) = self.link.connection().await.map_err(Failure::Told)?;
        let mut answer = connection.req_packed_command(&call.command).await.and_then(Value::extract_error);
        if answer.as_ref().is_err_and(is_no_script) {
            answer = load_and_run(&mut connection, call).await;
        }
        answer.map_err(|error| match self.link.drops(&error, generation) {
            true if error.is_connection_dropped() => Failure::Dropped,
            true => Failure::Told(self.link.place.no_answer(&error)),
            false => Failure::Told(self.link.place.refused(&error)),
        })
    }

    fn told(&self, failure: Failure) -> Error {
        match failure {
            Failure::Dropped => self.link.place.dropped(),
            Failure::Told(error) => error,
        }
    }

    async fn run_all(&self, calls: &[Call]) -> Result<Vec<Result<Value>>> {
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors();
        for call in calls {
            pipeline.add_command(call.command.clone());
        }
        let mut loaded = false;
        loop {
            let (mut connection, generation) = self.link.connection().await?;
            match pipeline.query_async::<Vec<redis::RedisResult<Value>>>(&mut connection).await {
                Ok(answers)
                    if !loaded && answers.iter().any(|answer| answer.as_ref().is_err_and(is_no_script)) =>
                {
                    loaded = true;
                    load(&mut connection).await.map_err(|error| self.link.place.no_answer(&error))?;
                }
                Ok(answers) => {
                    let told = |answer: redis::RedisResult<Value>| {
                        answer.map_err(|error| self.link.place.refused(&error))
                    };
                    return Ok(answers.into_iter().map(told).collect());
                }
                Err(error) if self.link.drops(&error, generation) => {
                    return Err(self.link.place.no_answer(&error));
                }
                Err(error) => return Err(self.link.place.refused(&error)),
            }
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.link.place.address).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerOptions").field("address", &address(&self.info)).finish_non_exhaustive()
    }
}

fn address(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{host}:{port}")
        }
        ConnectionAddr::Unix(path) => path.display().to_string(),
        _ => String::from("unknown address"),
    }
}

/// Loads the script and runs it in one round trip, after the server forgot it.
async fn load_and_run(connection: &mut MultiplexedConnection, call: &Call) -> redis::RedisResult<Value> {
    let mut pipeline = redis::pipe();
    pipeline.add_command(call.script.load()).ignore().add_command(call.command.clone());
    let (answer,) = pipeline.query_async::<(Value,)>(connection).await?;
    Ok(answer)
}

fn is_no_script(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}

fn verdict(answer: &Value) -> Option<Verdict> {
    let Value::Array(parts) = answer else { return None };
    match parts.as_slice() {
        [Value::Int(1), token] => Some(Verdict::Granted(token_of(token)?)),
        [Value::Int(0), Value::Int(pttl), kind] => {
            let kind: String = redis::from_redis_value_ref(kind).ok()?;
            // No time to live is -1, and -2 a key that ended between two commands.
            let ends_in =
                if *pttl == -1 { None } else { Some(Duration::from_millis(pttl.max(&0).unsigned_abs())) };
            Some(Verdict::Busy {
                ends_in,
                foreign_type: Some(kind).filter(|kind| kind != "string" && kind != "none"),
            })
        }
        _ => None,
    }
}

fn flag(answer: &Value) -> Option<bool> {
    match answer {
        Value::Int(0) => Some(false),
        Value::Int(1) => Some(true),
        _ => None,
    }
}

fn sight(answer: &Value) -> Option<Sight> {
    let (kind, value, fence, waiters) =
        redis::from_redis_value_ref::<(String, Vec<u8>, Vec<u8>, usize)>(answer).ok()?;
    let (value, fence) = (String::from_utf8_lossy(&value).into_owned(), String::from_utf8_lossy(&fence));
    let mut parts = fence.splitn(4, ' ');
    let mut part = || parts.next().unwrap_or_default();
    Some(Sight {
        kind,
        value,
        token: part().parse().ok().filter(|number| *number <= i64::MAX as u64).map(Token::new),
        owner: part().to_owned(),
        since: part().parse().ok(),
        info: part().to_owned(),
        waiters,
    })
}

fn token_of(value: &Value) -> Option<Token> {
    let text: String = redis::from_redis_value_ref(value).ok()?;
    text.parse().ok().filter(|number| *number <= i64::MAX as u64).map(Token::new)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn fence_millis(ttl: Duration) -> u64 {
    millis(FENCE_TTL.max(ttl.saturating_mul(100))).min(i64::MAX as u64 / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn verdicts() {
        let granted = Value::Array(vec![Value::Int(1), bulk("42")]);
        assert_eq!(verdict(&granted), Some(Verdict::Granted(Token::new(42))));
        let busy =
            |pttl, kind| verdict(&Value::Array(vec![Value::Int(0), Value::Int(pttl), bulk(kind)])).unwrap();
        assert_eq!(
            busy(7, "string"),
            Verdict::Busy { ends_in: Some(Duration::from_millis(7)), foreign_type: None }
        );
        assert_eq!(busy(-1, "hash"), Verdict::Busy { ends_in: None, foreign_type: Some("hash".into()) });
        assert_eq!(busy(-2, "none"), Verdict::Busy { ends_in: Some(Duration::ZERO), foreign_type: None });
        assert_eq!(verdict(&Value::Okay), None);
        assert_eq!(verdict(&Value::Array(vec![Value::Int(1), bulk("99999999999999999999")])), None);
    }
}
