//! Inspects and lists locks.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lock_core::backend::MAX_LISTED;
use lock_core::{
    Capabilities, Holder, HolderInfo, LeaseKind, LockMode, LockName, LockState, OwnerId, Result, Token,
    WaiterInfo, stored_time,
};
use tokio_postgres::Row;

use crate::error::{BACKEND, MIN_TTL, unexpected};
use crate::store::PostgresStore;
use crate::stored_name::{decode, stored};

/// How long another request usually has the row of a lock, at most.
const MOMENT: Duration = Duration::from_millis(100);

impl PostgresStore {
    pub(crate) async fn state(&self, name: &Arc<str>) -> Result<LockState> {
        let rows = self.server.inspect(name).await?;
        let mut state = LockState::free();
        let mut is_blocked = false;
        for row in &rows {
            is_blocked |= add(&mut state, row)
                .map_err(|error| unexpected(format!("the answer has another form: {error}")))?;
        }
        if is_blocked {
            let blocker = self.server.blocker(name).await?;
            // Else it is a request.
            let lasts = blocker.filter(|blocker| blocker.open.is_none_or(|open| open >= MOMENT));
            state.blocker = lasts.map(|blocker| blocker.to_string());
        }
        Ok(state)
    }

    pub(crate) async fn names(&self, prefix: &str) -> Result<Vec<LockName>> {
        let one_more = i32::try_from(MAX_LISTED + 1).unwrap_or(i32::MAX);
        let names = self.server.list(&stored(prefix), one_more).await?;
        // Also those that are no names of this library count.
        Capabilities::new(BACKEND, LeaseKind::ttl(MIN_TTL, MIN_TTL)).check_listed(names.len())?;
        Ok(names.iter().filter_map(|name| decode(name)).collect())
    }
}

/// Adds what a row says, and returns whether it says that a transaction has the row of the lock.
fn add(state: &mut LockState, row: &Row) -> std::result::Result<bool, tokio_postgres::Error> {
    let (mode, token): (Option<i32>, Option<i64>) = (row.try_get(2)?, row.try_get(3)?);
    let token = token.and_then(|token| u64::try_from(token).ok()).filter(|token| *token > 0).map(Token::new);
    let info: Option<&str> = row.try_get(6)?;
    match row.try_get(0)? {
        "lock" => {
            state.waiters = mode.and_then(|waiters| usize::try_from(waiters).ok()).unwrap_or_default();
            state.token = token;
        }
        "holder" => {
            let mut holder = HolderInfo::new(identity(info, row.try_get(1)?), lock_mode(mode));
            let remaining: Option<i64> = row.try_get(5)?;
            (holder.token, holder.since) = (token, time(row.try_get(4)?));
            holder.remaining = remaining.and_then(|left| u64::try_from(left).ok()).map(Duration::from_millis);
            holder.id = row.try_get::<_, Option<&str>>(1)?.and_then(OwnerId::decode);
            state.holders.push(holder);
        }
        "waiter" => {
            let mut waiter = WaiterInfo::new(identity(info, row.try_get(1)?), lock_mode(mode));
            waiter.since = time(row.try_get(4)?);
            if state.queue.len() < LockState::MAX_QUEUE {
                state.queue.push(waiter);
            }
        }
        "fence" => return Ok(true),
        _ => {}
    }
    Ok(false)
}

fn identity(info: Option<&str>, owner: Option<&str>) -> Holder {
    match info.and_then(|info| serde_json::from_str(info).ok()) {
        Some(owner) => Holder::Known(owner),
        None => Holder::Unknown(owner.unwrap_or_default().to_owned()),
    }
}

fn lock_mode(mode: Option<i32>) -> LockMode {
    match mode {
        Some(max @ 1..) => LockMode::permit(u32::try_from(max).ok().and_then(NonZeroU32::new)),
        Some(-1) => LockMode::Shared,
        _ => LockMode::Exclusive,
    }
}

fn time(micros: Option<i64>) -> Option<SystemTime> {
    micros.and_then(|micros| u64::try_from(micros).ok()).map(Duration::from_micros).and_then(stored_time)
}
