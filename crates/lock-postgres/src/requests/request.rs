//! What asks for a lock, and what releases one, as the functions take it.

use lock_core::OwnerId;
use lock_core::engine::Ask;
use tokio_postgres::types::{ToSql, Type};

use crate::config::PostgresSync;
use crate::requests::group::Request;
use crate::requests::value::{ToInbox, Value, info, millis, mode_number};

/// Asks for a lock, queues up for it, or confirms a grant.
#[derive(Debug)]
pub(crate) struct Asked {
    name: String,
    owner: String,
    mode: i32,
    ttl: i64,
    info: String,
    sync: &'static str,
    grace: Option<i64>,
    inbox: Option<String>,
    listener: Option<i32>,
    key: Option<String>,
}

/// Removes what an owner has: a lock, a share, an entry in the queue. A lock goes to the next waiter.
#[derive(Debug)]
pub(crate) struct Released {
    name: String,
    owner: String,
    sync: &'static str,
}

impl Asked {
    pub(crate) fn new<M: Sync>(
        name: &str,
        ask: &Ask<'_, M>,
        inbox: Option<ToInbox<'_>>,
        sync: PostgresSync,
    ) -> Self {
        Self {
            name: name.to_owned(),
            owner: ask.owner.to_string(),
            mode: mode_number(ask.mode),
            ttl: millis(ask.ttl),
            info: info(ask),
            sync: sync.as_str(),
            grace: ask.queue.as_ref().map(|queue| millis(queue.grace)),
            inbox: inbox.map(|inbox| inbox.id.to_owned()),
            listener: inbox.map(|inbox| inbox.listener),
            key: inbox.map(|inbox| format!("{}{}", inbox.key, inbox.secret.reveal())),
        }
    }
}

impl Released {
    pub(crate) fn new(name: &str, owner: OwnerId, sync: PostgresSync) -> Self {
        Self { name: name.to_owned(), owner: owner.to_string(), sync: sync.as_str() }
    }
}

impl Request for Asked {
    const ONE: &'static str = "SELECT {s}ask($1, $2::pg_catalog.text::pg_catalog.uuid, $3, $4, $5, $6, $7, $8, $9, $10)::pg_catalog.text";

    /// Only a grant is to survive a crash. What one of them lets the commit do without is not for the others.
    const MANY: &'static str = "SELECT answers, pg_catalog.set_config('synchronous_commit', CASE WHEN grants THEN $6 ELSE 'off' END, true)
FROM (SELECT pg_catalog.array_agg(answer ORDER BY nr) AS answers,
    pg_catalog.bool_or(pg_catalog.starts_with(answer, '(granted') OR pg_catalog.right(answer, 2) OPERATOR(pg_catalog.=) 't)') AS grants
  FROM (SELECT a.nr, pg_catalog.pg_stat_clear_snapshot(),
      {s}ask(a.name, a.owner::pg_catalog.uuid, a.mode, a.ttl, a.info, $6, a.grace, a.inbox, a.listener, a.key)::pg_catalog.text AS answer
    FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4), pg_catalog.unnest($5),
        pg_catalog.unnest($7), pg_catalog.unnest($8), pg_catalog.unnest($9), pg_catalog.unnest($10))
      WITH ORDINALITY AS a(name, owner, mode, ttl, info, grace, inbox, listener, key, nr) OFFSET 0) AS asked) AS ended";

    fn name(&self) -> &str {
        &self.name
    }

    fn params(&self) -> Vec<(Value<'_>, Type)> {
        vec![
            (&self.name, Type::TEXT),
            (&self.owner, Type::TEXT),
            (&self.mode, Type::INT4),
            (&self.ttl, Type::INT8),
            (&self.info, Type::TEXT),
            (&self.sync, Type::TEXT),
            (&self.grace, Type::INT8),
            (&self.inbox, Type::TEXT),
            (&self.listener, Type::INT4),
            (&self.key, Type::TEXT),
        ]
    }

    fn columns(many: &[Self]) -> Vec<(Box<dyn ToSql + Sync + Send + '_>, Type)> {
        vec![
            (column(many, |one| &*one.name), Type::TEXT_ARRAY),
            (column(many, |one| &*one.owner), Type::TEXT_ARRAY),
            (column(many, |one| one.mode), Type::INT4_ARRAY),
            (column(many, |one| one.ttl), Type::INT8_ARRAY),
            (column(many, |one| &*one.info), Type::TEXT_ARRAY),
            (Box::new(many[0].sync), Type::TEXT),
            (column(many, |one| one.grace), Type::INT8_ARRAY),
            (column(many, |one| one.inbox.as_deref()), Type::TEXT_ARRAY),
            (column(many, |one| one.listener), Type::INT4_ARRAY),
            (column(many, |one| one.key.as_deref()), Type::TEXT_ARRAY),
        ]
    }
}

impl Request for Released {
    const ONE: &'static str =
        "SELECT {s}release($1, $2::pg_catalog.text::pg_catalog.uuid, $3)::pg_catalog.text";

    /// Only what hands a lock over is to survive a crash.
    const MANY: &'static str = "SELECT answers, pg_catalog.set_config('synchronous_commit', CASE WHEN hands_over THEN $3 ELSE 'off' END, true)
FROM (SELECT pg_catalog.array_agg(answer ORDER BY nr) AS answers, pg_catalog.bool_or(pg_catalog.right(answer, 2) OPERATOR(pg_catalog.=) 't)') AS hands_over
  FROM (SELECT a.nr, pg_catalog.pg_stat_clear_snapshot(), {s}release(a.name, a.owner::pg_catalog.uuid, $3)::pg_catalog.text AS answer
    FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) WITH ORDINALITY AS a(name, owner, nr) OFFSET 0) AS released) AS ended";

    fn name(&self) -> &str {
        &self.name
    }

    fn params(&self) -> Vec<(Value<'_>, Type)> {
        vec![(&self.name, Type::TEXT), (&self.owner, Type::TEXT), (&self.sync, Type::TEXT)]
    }

    fn columns(many: &[Self]) -> Vec<(Box<dyn ToSql + Sync + Send + '_>, Type)> {
        vec![
            (column(many, |one| &*one.name), Type::TEXT_ARRAY),
            (column(many, |one| &*one.owner), Type::TEXT_ARRAY),
            (Box::new(many[0].sync), Type::TEXT),
        ]
    }
}

fn column<'a, R, T: ToSql + Sync + Send + 'a>(
    many: &'a [R],
    value: impl Fn(&'a R) -> T,
) -> Box<dyn ToSql + Sync + Send + 'a> {
    Box::new(many.iter().map(value).collect::<Vec<_>>())
}
