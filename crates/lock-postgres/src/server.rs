//! The functions of the schema. A statement, in a transaction of its own, calls one of them once, or for a [group](crate::group) of
//! requests.
//!
//! A call whose future is dropped may be run all the same. What only reads is cancel safe; what changes something is called again,
//! or rolled back by a [release](Server::release).

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{Object, Pool, PoolError, QueueMode, TimeoutType};
use lock_core::engine::{Answer, Ask, Blocker, Changed, Extension};
use lock_core::waiting::pause_between;
use lock_core::{Clock, Error, OwnerId, Result, Token};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::{sleep, timeout};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::config::PostgresSync;
use crate::connect::connection::Connection;
use crate::connect::link::{Dialer, Link};
use crate::connect::turns::Turns;
use crate::error::{BACKEND, During, Endpoint, unexpected};
use crate::message::Key;
use crate::requests::group::{self, Group, Receiver, Reply, Request};
use crate::requests::order::{InOrder, Place};
use crate::requests::request::{Asked, Released};
use crate::requests::value::{Record, Value, changed, info, millis, number, token, unknown_status};
use crate::schema::quoted;
use crate::teller::{Teller, for_the_commit};

/// The server, with the connections for requests.
#[derive(Debug)]
pub(crate) struct Server {
    pool: Pool<Dialer>,
    /// Whose turn it is to use the pool.
    turns: Turns,
    /// One more connection, for renewals while all of the pool are in use.
    reserve: Pool<Dialer>,
    teller: Arc<Teller>,
    /// Notifies that the connections that are open are not used again.
    pub(crate) abandoned: Notify,
    pub(crate) endpoint: Endpoint,
    /// The quoted name of the schema, and a dot.
    schema: String,
    sync: PostgresSync,
    connect_timeout: Duration,
    command_timeout: Duration,
    /// How often a connection was taken from the pool that had answered its last call.
    reuses: AtomicU64,
    /// What waits for a connection, to be sent together.
    asks: Group<Asked>,
    releases: Group<Released>,
    clock: Clock,
}

/// Whose the schema is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SchemaOwner {
    /// There is none. Somebody may be about to make it.
    Missing,
    Trusted,
    /// Whoever it is, or somebody else who can, may have put something there.
    Distrusted(String),
}

impl Server {
    pub(crate) fn new(
        dialer: Dialer,
        size: usize,
        sync: PostgresSync,
        command_timeout: Duration,
        clock: Clock,
    ) -> Result<Self> {
        let (endpoint, connect_timeout) = (dialer.endpoint.clone(), dialer.connect_timeout);
        let limit = connect_timeout + command_timeout;
        let requests = dialer.clone().for_places(size);
        let (pool, reserve) = (pool(requests, size, None)?, pool(dialer, 1, Some(limit))?);
        let schema = format!("{}.", quoted(&endpoint.schema));
        let (turns, teller) = (Turns::new(size), Teller::new(&schema, command_timeout));
        Ok(Self {
            pool,
            turns,
            reserve,
            teller,
            abandoned: Notify::new(),
            endpoint,
            schema,
            sync,
            connect_timeout,
            command_timeout,
            reuses: AtomicU64::new(0),
            asks: Group::new(),
            releases: Group::new(),
            clock,
        })
    }

    /// The time limit of one call.
    pub(crate) fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    /// What grants wait for.
    pub(crate) fn sync(&self) -> PostgresSync {
        self.sync
    }

    /// The order of the next request: by itself if a connection is free.
    pub(crate) async fn order(&self) -> Result<InOrder> {
        if let Some(turn) = self.turns.at_once()
            && let Some(connection) = self.pooled(turn).await?
        {
            return Ok(InOrder::Alone(connection));
        }
        Ok(InOrder::Grouped(Arc::default()))
    }

    /// A connection of the pool. Its turn is waited for as long as the server answers those before it, however many they are.
    pub(crate) async fn connection(&self) -> Result<Connection> {
        loop {
            let turn = self.turn().await?;
            if let Some(connection) = self.pooled(turn).await? {
                return Ok(connection);
            }
        }
    }

    async fn turn(&self) -> Result<OwnedSemaphorePermit> {
        let limit = self.connect_timeout + self.command_timeout;
        let mut turn = pin!(self.turns.next());
        loop {
            let reuses = self.reuses.load(Ordering::Relaxed);
            match timeout(limit, turn.as_mut()).await {
                Ok(turn) => return turn.ok_or_else(|| Error::closed(BACKEND)),
                Err(_) if self.reuses.load(Ordering::Relaxed) == reuses => return Err(self.busy()),
                Err(_) => {}
            }
        }
    }

    /// The connection of this turn. `None` if the server, or a pooler, has no room for one more session, and another one of the pool is
    /// open: its turn is to be waited for.
    async fn pooled(&self, turn: OwnedSemaphorePermit) -> Result<Option<Connection>> {
        let got = self.pool.get().await;
        match &got {
            Ok(link) if Object::metrics(link).recycle_count > 0 => {
                self.reuses.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => self.turns.has_room(),
            Err(PoolError::Backend(error)) if lacks_room(error) && self.pool.status().size > 0 => {
                self.turns.has_no_room(turn);
                return Ok(None);
            }
            Err(_) => {}
        }
        self.opened(got, Some(turn)).map(Some)
    }

    fn busy(&self) -> Error {
        let size = self.pool.status().max_size;
        self.endpoint.pool_is_busy(size, self.connect_timeout + self.command_timeout)
    }

    /// A connection for a renewal. It does not wait for those of the pool: a thread that computes keeps the ones that its tasks have,
    /// or are next in line for, and the lease would expire meanwhile. Only where there is no room for one more session, it does.
    async fn connection_of_renewals(&self) -> Result<Connection> {
        match self.pooled_at_once().await {
            Err(error) if !lacks_room(&error) => return Err(error),
            Ok(Some(connection)) => return Ok(connection),
            _ => {}
        }
        match self.opened(self.reserve.get().await, None) {
            Err(error) if lacks_room(&error) => self.connection().await,
            opened => opened,
        }
    }

    /// A connection of the pool, if nobody else waits for one.
    async fn pooled_at_once(&self) -> Result<Option<Connection>> {
        // Else it would be waited for until a session that was given up has ended.
        let has_one = self.pool.status().available > 0 || self.pool.manager().has_room();
        let Some(turn) = self.turns.at_once().filter(|_| has_one) else { return Ok(None) };
        let connection = self.pooled(turn).await?;
        if connection.is_some() {
            // It is not needed any more.
            self.reserve.retain(|_, _| false);
        }
        Ok(connection)
    }

    fn opened(
        &self,
        got: std::result::Result<Object<Dialer>, PoolError<Error>>,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Result<Connection> {
        match got {
            Ok(link) => Ok(Connection::new(link, turn)),
            Err(PoolError::Backend(error)) => Err(error),
            Err(PoolError::Closed) => Err(Error::closed(BACKEND)),
            Err(PoolError::Timeout(TimeoutType::Wait)) => Err(self.busy()),
            Err(error) => Err(self.endpoint.no_connection(self.connect_timeout).caused_by(error)),
        }
    }

    /// Closes all connections, and opens no more.
    pub(crate) fn close(&self) {
        self.pool.close();
        self.turns.close();
        self.reserve.close();
    }

    /// The version of the schema; `None` if it has no rows. Runs code of the owner of the schema.
    pub(crate) async fn version(&self) -> Result<Option<i32>> {
        get(first(&self.read("SELECT {s}version()", &[]).await?)?, 0)
    }

    /// Whose the schema is. Calls nothing of it, nor what a search path could put in its way. Besides `trusted`, the server's
    /// administrators, the owner of the database and this role are trusted.
    pub(crate) async fn owner(&self, trusted: Option<&str>) -> Result<SchemaOwner> {
        let params = [(&self.endpoint.schema as Value<'_>, Type::TEXT), (&trusted, Type::TEXT)];
        let rows = self.read(OWNER, &params).await?;
        let Some(row) = rows.first() else { return Ok(SchemaOwner::Missing) };
        Ok(get::<Option<String>>(row, 0)?.map_or(SchemaOwner::Trusted, SchemaOwner::Distrusted))
    }

    /// Runs statements that are not ours, as one transaction.
    pub(crate) async fn batch(&self, sql: &str) -> Result<()> {
        let connection = self.connection().await?;
        // It waits for other installers, and writes catalogs.
        let limit = self.command_timeout * 5;
        match timeout(limit, connection.batch(sql)).await {
            Ok(done) => done.map_err(|error| self.endpoint.of(During::Call, &error)),
            Err(_) => Err(self.silent(&connection, limit)),
        }
    }

    /// Asks for a lock, queues up for it, or confirms a grant.
    pub(crate) async fn ask(self: &Arc<Self>, on: &InOrder, request: Asked) -> Result<Answer> {
        let answer = self.send(on, &self.asks, request).await?;
        match *answer.fields() {
            ["granted", minted, ..] => Ok(Answer::Granted(token(minted)?)),
            ["locked", ..] => Ok(Answer::Blocked),
            // A number below zero is one that is not known.
            ["busy", _, ahead, ends_in] => Ok(Answer::Busy {
                ahead: ahead.parse().ok(),
                ends_in: ends_in.parse().ok().map(Duration::from_millis),
            }),
            ref other => Err(unknown_status(&other.join(","))),
        }
    }

    /// Removes what this owner has: a lock, a share, an entry in the queue. A lock goes to the next waiter.
    pub(crate) async fn release(self: &Arc<Self>, on: &InOrder, request: Released) -> Result<Changed> {
        self.send(on, &self.releases, request).await?.changed()
    }

    /// Extends leases, all in one call; those with `true` may be shortened. The answers are in the order of the leases.
    pub(crate) async fn extend(&self, leases: &[Extension<'_, Arc<str>>]) -> Result<Vec<Changed>> {
        const SQL: &str = "SELECT {s}extend($1, $2::pg_catalog.text[]::pg_catalog.uuid[], $3, $4, $5)";
        let names: Vec<_> = leases.iter().map(|lease| &**lease.place).collect();
        let owners: Vec<_> = leases.iter().map(|lease| lease.owner.to_string()).collect();
        let ttls: Vec<_> = leases.iter().map(|lease| millis(lease.ttl)).collect();
        let shortens: Vec<_> = leases.iter().map(|lease| lease.shortens).collect();
        let row = self
            .one(
                &self.connection_of_renewals().await?,
                SQL,
                &[
                    (&names, Type::TEXT_ARRAY),
                    (&owners, Type::TEXT_ARRAY),
                    (&ttls, Type::INT8_ARRAY),
                    (&shortens, Type::BOOL_ARRAY),
                    (&self.sync.as_str(), Type::TEXT),
                ],
            )
            .await?;
        let answers: Vec<i32> = get(&row, 0)?;
        if answers.len() != leases.len() {
            return Err(unexpected(format!("{} answers to {} leases", answers.len(), leases.len())));
        }
        let answers = answers.into_iter().map(|answer| match answer {
            1 => Ok(Changed::Done(())),
            0 => Ok(Changed::NotHeld),
            -1 => Ok(Changed::Blocked),
            other => Err(unknown_status(&other.to_string())),
        });
        answers.collect()
    }

    /// Whether this owner holds the lock.
    pub(crate) async fn holds(&self, name: &str, owner: OwnerId) -> Result<bool> {
        const SQL: &str =
            "SELECT {s}holds($1, $2::pg_catalog.text::pg_catalog.uuid), pg_catalog.pg_is_in_recovery()";
        let owner = owner.to_string();
        let rows = self.read(SQL, &[(&name, Type::TEXT), (&owner, Type::TEXT)]).await?;
        // It may lag behind the primary, or be about to become it.
        if get(first(&rows)?, 1)? {
            return Err(self.endpoint.standby());
        }
        get(first(&rows)?, 0)
    }

    /// Hands a lock that is held alone over to another owner of this process.
    pub(crate) async fn hand_over<M: Sync>(
        self: &Arc<Self>,
        on: &InOrder,
        name: &str,
        from: OwnerId,
        to: &Ask<'_, M>,
    ) -> Result<Changed<Token>> {
        const SQL: &str = "SELECT {s}hand_over($1, $2::pg_catalog.text::pg_catalog.uuid, $3::pg_catalog.text::pg_catalog.uuid, $4, $5, $6)::pg_catalog.text";
        let (from, owner, ttl, info) = (from.to_string(), to.owner.to_string(), millis(to.ttl), info(to));
        let answer = self
            .answer(
                &self.connection_in(on).await?,
                SQL,
                &[
                    (&name, Type::TEXT),
                    (&from, Type::TEXT),
                    (&owner, Type::TEXT),
                    (&ttl, Type::INT8),
                    (&info, Type::TEXT),
                    (&self.sync.as_str(), Type::TEXT),
                ],
                name,
            )
            .await?;
        match *answer.fields() {
            ["granted", minted] => Ok(Changed::Done(token(minted)?)),
            ["locked", _] => Ok(Changed::Blocked),
            ["lost", _] => Ok(Changed::NotHeld),
            ref other => Err(unknown_status(&other.join(","))),
        }
    }

    /// Makes a lock that is held alone a share of this owner.
    pub(crate) async fn downgrade(
        self: &Arc<Self>,
        name: &str,
        owner: OwnerId,
        ttl: Duration,
    ) -> Result<Changed> {
        const SQL: &str =
            "SELECT {s}downgrade($1, $2::pg_catalog.text::pg_catalog.uuid, $3, $4)::pg_catalog.text";
        // It may last: the reserve is for renewals.
        let (on, owner, ttl) = (self.connection().await?, owner.to_string(), millis(ttl));
        let params = [
            (&name as Value<'_>, Type::TEXT),
            (&owner, Type::TEXT),
            (&ttl, Type::INT8),
            (&self.sync.as_str(), Type::TEXT),
        ];
        self.answer(&on, SQL, &params, name).await?.changed()
    }

    /// Makes all later tokens larger than `floor`, if this owner holds the lock.
    pub(crate) async fn raise(&self, name: &str, owner: OwnerId, floor: Token) -> Result<Changed> {
        const SQL: &str = "SELECT {s}raise($1, $2::pg_catalog.text::pg_catalog.uuid, $3, $4)";
        let (owner, floor) = (owner.to_string(), number(floor));
        let params = [
            (&name as Value<'_>, Type::TEXT),
            (&owner, Type::TEXT),
            (&floor, Type::INT8),
            (&self.sync.as_str(), Type::TEXT),
        ];
        changed(get(&self.one(&self.connection().await?, SQL, &params).await?, 0)?)
    }

    /// Removes a lock from the holders with tokens up to this one.
    pub(crate) async fn break_up_to(self: &Arc<Self>, name: &str, last: Token) -> Result<Changed> {
        self.break_by("SELECT {s}break_lock($1, $2, $3)::pg_catalog.text", name, last).await
    }

    /// Removes a lock from the holder with this token.
    pub(crate) async fn break_one(self: &Arc<Self>, name: &str, token: Token) -> Result<Changed> {
        self.break_by("SELECT {s}break_if($1, $2, $3)::pg_catalog.text", name, token).await
    }

    async fn break_by(self: &Arc<Self>, sql: &str, name: &str, token: Token) -> Result<Changed> {
        let token = number(token);
        let params =
            [(&name as Value<'_>, Type::TEXT), (&token, Type::INT8), (&self.sync.as_str(), Type::TEXT)];
        self.answer(&self.connection().await?, sql, &params, name).await?.changed()
    }

    /// What there is of a lock, in rows.
    pub(crate) async fn inspect(&self, name: &str) -> Result<Vec<Row>> {
        let sql = "SELECT kind, owner, mode, token, since, remaining, info, pid FROM {s}inspect($1)";
        self.read(sql, &[(&name, Type::TEXT)]).await
    }

    /// The names of locks that begin so.
    pub(crate) async fn list(&self, prefix: &str, at_most: i32) -> Result<Vec<String>> {
        let params = [(&prefix as Value<'_>, Type::TEXT), (&at_most, Type::INT4)];
        let rows = self.read("SELECT {s}list($1, $2)", &params).await?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    /// Who has the row of a lock.
    pub(crate) async fn blocker(&self, name: &str) -> Result<Option<Blocker>> {
        let sql = "SELECT pid, application_name, open_ms FROM {s}blocker($1)";
        let rows = self.read(sql, &[(&name, Type::TEXT)]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let open: Option<i64> = get(row, 2)?;
        let open = open.and_then(|open| u64::try_from(open).ok()).map(Duration::from_millis);
        let (pid, application): (i32, Option<String>) = (get(row, 0)?, get(row, 1)?);
        let what = blocker_text(pid.into(), application.as_deref());
        let what = if pid == 0 { what } else { format!("the transaction of {what}") };
        Ok(Some(Blocker { what, open }))
    }

    /// Notifies this inbox of changes of the lock from now on, or no longer. Returns whether that is so: not if another
    /// transaction has the row.
    pub(crate) async fn observe(
        &self,
        name: &str,
        inbox: &str,
        key: Key,
        listener: Option<i32>,
    ) -> Result<bool> {
        let (on, key) = (self.connection().await?, key.to_string());
        let key = (&key as Value<'_>, Type::TEXT);
        let (name, inbox) = ((&name as Value<'_>, Type::TEXT), (&inbox as Value<'_>, Type::TEXT));
        let row = match listener {
            Some(pid) => {
                let pid = (&pid as Value<'_>, Type::INT4);
                self.one(&on, "SELECT {s}observe($1, $2, $3, $4)", &[name, inbox, pid, key]).await?
            }
            None => self.one(&on, "SELECT {s}unobserve($1, $2, $3)", &[name, inbox, key]).await?,
        };
        Ok(matches!(get(&row, 0)?, "observed" | "done"))
    }

    /// Removes rows of names that are not in use, a few of those after `after`. Returns how many, and where to go on; `None` at the end.
    pub(crate) async fn sweep(
        self: &Arc<Self>,
        after: &str,
        at_most: i32,
        idle: Duration,
    ) -> Result<(i32, Option<String>)> {
        let idle = millis(idle);
        let params = [
            (&after as Value<'_>, Type::TEXT),
            (&at_most, Type::INT4),
            (&idle, Type::INT8),
            (&self.sync.as_str(), Type::TEXT),
        ];
        let on = self.connection().await?;
        let row = self.one(&on, "SELECT removed, next, tell FROM {s}sweep($1, $2, $3, $4)", &params).await?;
        if let Some(names) = get::<Option<Vec<String>>>(&row, 2)? {
            self.tell(&on, names, true).await;
        }
        Ok((get(&row, 0)?, get(&row, 1)?))
    }

    /// What the server says of itself, in JSON.
    pub(crate) async fn doctor(&self) -> Result<String> {
        get(first(&self.read("SELECT {s}doctor()", &[]).await?)?, 0)
    }

    /// Whether the server finds this listener, asked on its own connection.
    pub(crate) async fn hears(&self, link: &Link, inbox: &str) -> Result<Option<i32>> {
        let sql = "SELECT {s}hears($1, pg_catalog.pg_backend_pid()), pg_catalog.pg_backend_pid()";
        let rows = self.rows(link, sql, &[(&inbox, Type::TEXT)]).await?;
        let hears: bool = get(first(&rows)?, 0)?;
        Ok(if hears { Some(get(first(&rows)?, 1)?) } else { None })
    }

    /// Whether the server that requests go to finds this listener.
    pub(crate) async fn finds(&self, inbox: &str, listener: i32) -> Result<bool> {
        let params = [(&inbox as Value<'_>, Type::TEXT), (&listener, Type::INT4)];
        get(first(&self.read("SELECT {s}hears($1, $2)", &params).await?)?, 0)
    }

    /// Notifies a channel. What is not notified in time says nothing of the connections.
    pub(crate) async fn notify(&self, channel: &str, payload: &str) -> Result<()> {
        let on = self.connection().await?;
        let sql = format!("SELECT {}, pg_catalog.pg_notify($1, $2)", for_the_commit(self.command_timeout));
        let params = [(&channel as Value<'_>, Type::TEXT), (&payload as Value<'_>, Type::TEXT)];
        match on.in_time(self.command_timeout, on.call(&sql, &params)).await {
            Ok(notified) => notified.map(drop).map_err(|error| self.endpoint.of(During::Call, &error)),
            Err(limit) => {
                on.give_up();
                Err(self.endpoint.silent(limit))
            }
        }
    }

    /// The statement that fences a token of a lock.
    pub(crate) fn fence_sql(&self, name: &str, token: Token) -> String {
        format!("SELECT {}fence({}, {token})", self.schema, literal(name))
    }

    /// A connection for this order: what is sent over it now is executed after what was sent in that order before.
    async fn connection_in(&self, on: &InOrder) -> Result<Connection> {
        let place = match on {
            InOrder::Alone(on) => return Ok(on.clone()),
            InOrder::Grouped(place) => place,
        };
        if let Some(on) = place.connection() {
            return Ok(on);
        }
        let limit = self.longest_call();
        if timeout(limit, place.ended()).await.is_err() {
            place.end(false);
            return Err(self.endpoint.silent(limit));
        }
        let on = self.connection().await?;
        place.send_alone(&on, self.clock.now());
        Ok(on)
    }

    /// The answer to a request, which is sent by itself or with others.
    async fn send<R: Request>(
        self: &Arc<Self>,
        on: &InOrder,
        group: &Group<R>,
        mut request: R,
    ) -> Result<Record> {
        if let InOrder::Grouped(place) = on
            && place.is_waiting()
        {
            match self.grouped(place, group.join(place, request)).await? {
                Reply::Answered(answer) => return Ok(answer),
                Reply::Alone(refused) => request = refused,
            }
        }
        let on = self.connection_in(on).await?;
        self.answer(&on, R::ONE, &request.params(), request.name()).await
    }

    /// The reply to a request that waits for a connection. Whoever has the next turn lets the first of all that wait be sent.
    async fn grouped<R>(self: &Arc<Self>, place: &Arc<Place>, mut receiver: Receiver<R>) -> Result<Reply<R>> {
        let mut reply = pin!(receiver.reply());
        let limit = self.longest_call();
        let mut turn = pin!(self.turn());
        while place.is_waiting() {
            tokio::select! {
                biased;
                reply = &mut reply => return self.received(place, reply),
                next = &mut turn => {
                    match next {
                        Ok(turn) => self.send_next(turn, place),
                        Err(error) if place.withdraw() => return Err(error),
                        Err(_) => {}
                    }
                    turn.set(self.turn());
                }
                // It may have been sent meanwhile, by a task of a runtime that does not run.
                () = sleep(limit) => {}
            }
        }
        match timeout(limit, reply).await {
            Ok(reply) => self.received(place, reply),
            Err(_) => {
                place.end(false);
                Err(self.endpoint.silent(limit))
            }
        }
    }

    fn received<R>(&self, place: &Place, reply: Option<Result<Reply<R>>>) -> Result<Reply<R>> {
        reply.unwrap_or_else(|| {
            place.end(false);
            Err(self.endpoint.sender_has_ended())
        })
    }

    /// How long a call may last that another task makes.
    fn longest_call(&self) -> Duration {
        // That task may wait for its processor.
        self.command_timeout + Duration::from_secs(1)
    }

    /// Sends what waits in this turn of one of them, also if the caller is dropped: releases, if there are any, as they make room.
    fn send_next(self: &Arc<Self>, turn: OwnedSemaphorePermit, of: &Arc<Place>) {
        if self.releases.is_empty() && self.asks.is_empty() {
            return;
        }
        let (server, place) = (Arc::clone(self), Arc::clone(of));
        drop(self.pool.manager().home.driver().spawn(async move {
            match server.pooled(turn).await {
                Ok(Some(on)) if !server.releases.is_empty() => server.send_group(&on, &server.releases).await,
                Ok(Some(on)) => server.send_group(&on, &server.asks).await,
                // Those that wait go on waiting.
                Ok(None) => {}
                Err(error) => {
                    server.releases.refuse(&place, &error);
                    server.asks.refuse(&place, &error);
                }
            }
        }));
    }

    async fn send_group<R: Request>(self: &Arc<Self>, on: &Connection, group: &Group<R>) {
        let sent = group.next(self.clock.now());
        if sent.requests().is_empty() {
            return;
        }
        let answers = match self.answers(on, sent.requests()).await {
            Ok(answers) => answers,
            Err(error) => return sent.fail(&error),
        };
        let told = sent.requests().iter().zip(&answers).filter(|(_, answer)| answer.tells());
        let names: Vec<_> = told.map(|(request, _)| request.name().to_owned()).collect();
        let later = sent.answer(answers, |answer| answer.is_grant() || !answer.tells());
        if !names.is_empty() {
            self.tell(on, names, !later.is_empty()).await;
        }
        later.into_iter().for_each(group::Answer::send);
    }

    /// The answers of one call. It is not repeated: the roll-back of one whose caller was dropped may be under way.
    async fn answers<R: Request>(&self, on: &Connection, many: &[R]) -> Result<Vec<Record>> {
        let (sql, columns) = (R::MANY.replacen("{s}", &self.schema, 1), R::columns(many));
        let params: Vec<_> =
            columns.iter().map(|(column, kind)| (&**column as Value<'_>, kind.clone())).collect();
        let rows = self.answered(on, pin!(on.call(&sql, &params))).await?;
        let answers: Vec<String> = get(first(&rows)?, 0)?;
        if answers.len() != many.len() {
            return Err(unexpected(format!("{} answers to {} requests", answers.len(), many.len())));
        }
        Ok(answers.into_iter().map(Record).collect())
    }

    /// The answer to a call for a lock that may hand it over: who is to be notified has been, as a rule. A grant does not wait for that.
    async fn answer(
        self: &Arc<Self>,
        on: &Connection,
        sql: &str,
        params: &[(Value<'_>, Type)],
        name: &str,
    ) -> Result<Record> {
        let answer = Record(get(&self.one(on, sql, params).await?, 0)?);
        if answer.tells() {
            self.tell(on, vec![name.to_owned()], !answer.is_grant()).await;
        }
        Ok(answer)
    }

    async fn tell(self: &Arc<Self>, on: &Connection, names: Vec<String>, waits: bool) {
        let (runtime, server) = (self.pool.manager().home.driver(), Arc::clone(self));
        let next = async move { server.connection().await.ok() };
        self.teller.tell(on, next, &runtime, names, waits).await;
    }

    async fn one(&self, on: &Connection, sql: &str, params: &[(Value<'_>, Type)]) -> Result<Row> {
        let rows = self.rows(on, sql, params).await?;
        rows.into_iter().next().ok_or_else(|| unexpected("the server returned no row"))
    }

    /// A call that can be repeated: once more, over another connection, where the server has just closed this one.
    async fn read(&self, sql: &str, params: &[(Value<'_>, Type)]) -> Result<Vec<Row>> {
        let on = self.connection().await?;
        match self.rows(&on, sql, params).await {
            Err(error) if has_ended(&error) => {
                drop(on);
                let on = self.connection().await?;
                self.rows(&on, sql, params).await
            }
            read => read,
        }
    }

    async fn rows(&self, on: &Link, sql: &str, params: &[(Value<'_>, Type)]) -> Result<Vec<Row>> {
        let sql = sql.replacen("{s}", &self.schema, 1);
        self.answered(on, pin!(self.serialized(on, &sql, params))).await
    }

    /// What a call over this connection comes to. It stays where it is: moved in here, it would take its place three times.
    async fn answered(
        &self,
        on: &Link,
        call: Pin<&mut impl Future<Output = std::result::Result<Vec<Row>, tokio_postgres::Error>>>,
    ) -> Result<Vec<Row>> {
        match on.in_time(self.command_timeout, call).await {
            Ok(Ok(_)) if on.is_warned() => Err(self.endpoint.not_on_standby()),
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => {
                let error = self.endpoint.of(During::Call, &error);
                if has_ended(&error) {
                    self.abandon_connections(on, false);
                }
                Err(error)
            }
            Err(limit) => Err(self.silent(on, limit)),
        }
    }

    /// A call, again while the server has rolled it back for another one: behind a pooler that takes no settings, the level of isolation
    /// may be one at which that happens.
    async fn serialized(
        &self,
        on: &Link,
        sql: &str,
        params: &[(Value<'_>, Type)],
    ) -> std::result::Result<Vec<Row>, tokio_postgres::Error> {
        loop {
            match on.call(sql, params).await {
                Err(error) if is_serialization_failure(&error) => sleep(pause_between(1, 10)).await,
                answer => return answer,
            }
        }
    }

    fn silent(&self, on: &Link, limit: Duration) -> Error {
        on.give_up();
        self.abandon_connections(on, true);
        self.endpoint.silent(limit)
    }

    /// Uses neither this connection nor the others again: they have hardly outlived it. Each would cost a time limit where the
    /// server was paused, and answer what it knows where that has a successor. Once a second at most: a server that allows no
    /// writes for a moment would be asked for a new session by each call. And not for one that is used no more: it says nothing of
    /// those that were opened since.
    fn abandon_connections(&self, on: &Link, is_silent: bool) {
        if !self.pool.manager().distrust_all(on, is_silent) {
            return;
        }
        on.give_up();
        // Of both pools.
        self.pool.retain(|_, _| false);
        self.reserve.retain(|_, _| false);
        self.abandoned.notify_waiters();
    }
}

fn pool(dialer: Dialer, size: usize, limit: Option<Duration>) -> Result<Pool<Dialer>> {
    let pool = Pool::builder(dialer)
        .max_size(size)
        // The session that was used last: in a new one, the first call of a function has to compile it.
        .queue_mode(QueueMode::Lifo)
        .wait_timeout(limit)
        .runtime(Runtime::Tokio1)
        .build();
    pool.map_err(|error| unexpected(format!("the pool cannot be made: {error}")))
}

/// One row with the reason for distrust, if there is one; none without a schema.
const OWNER: &str = r#"
SELECT CASE
  WHEN NOT (r.rolsuper OR r.oid OPERATOR(pg_catalog.=) d.datdba OR r.rolname OPERATOR(pg_catalog.=) 'pg_database_owner'
    OR r.rolname OPERATOR(pg_catalog.=) CURRENT_USER
    OR $2::pg_catalog.name IS NOT NULL AND r.rolname OPERATOR(pg_catalog.=) $2::pg_catalog.name) THEN pg_catalog.concat('belongs to the role "', r.rolname, '"')
  WHEN EXISTS (SELECT FROM pg_catalog.aclexplode(n.nspacl) a
    WHERE a.privilege_type OPERATOR(pg_catalog.=) 'CREATE' AND a.grantee OPERATOR(pg_catalog.<>) n.nspowner)
    THEN 'lets other roles create functions'
  WHEN EXISTS (SELECT FROM pg_catalog.pg_proc p
    WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid AND p.proowner OPERATOR(pg_catalog.<>) n.nspowner)
    THEN 'has functions of other roles'
  END
FROM pg_catalog.pg_namespace n
JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) n.nspowner
JOIN pg_catalog.pg_database d ON d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
WHERE n.nspname OPERATOR(pg_catalog.=) $1::pg_catalog.name"#;

/// Whose transaction it is. A prepared one belongs to no process, and has its own name. Others choose these names.
pub(crate) fn blocker_text(pid: i64, name: Option<&str>) -> String {
    match (pid, name.filter(|name| !name.is_empty())) {
        (0, name) => format!("the prepared transaction {:?}", name.unwrap_or_default()),
        (pid, Some(name)) => format!("process {pid} of the server ({name:?})"),
        (pid, None) => format!("process {pid} of the server"),
    }
}

fn is_serialization_failure(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| matches!(code.code(), "40001" | "40P01"))
}

/// Whether there is no room for one more session, though others may be open.
fn lacks_room(error: &Error) -> bool {
    matches!(error.code(), "too_many_connections" | "broken")
}

/// Whether a connection is of no more use: it broke, or its server is no primary any more.
fn has_ended(error: &Error) -> bool {
    matches!(error.code(), "broken" | "replica")
}

fn first(rows: &[Row]) -> Result<&Row> {
    rows.first().ok_or_else(|| unexpected("the server returned no row"))
}

fn get<'r, T: tokio_postgres::types::FromSql<'r>>(row: &'r Row, column: usize) -> Result<T> {
    row.try_get(column).map_err(|error| unexpected(format!("the answer has another form: {error}")))
}

/// A text in SQL, whatever `standard_conforming_strings` is.
fn literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if doubled.contains('\\') {
        return format!("E'{}'", doubled.replace('\\', "\\\\"));
    }
    format!("'{doubled}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts_cannot_leave_their_quotes() {
        assert_eq!(quoted(r#"a"b"#), r#""a""b""#);
        assert_eq!(literal("orders/42"), "'orders/42'");
        assert_eq!(literal(r"it's"), "'it''s'");
        assert_eq!(literal(r"\'"), r"E'\\'''");
    }
}
