//! The journal of a soak on PostgreSQL: a table that holders write to in fenced transactions.

use std::time::SystemTime;

use lock_testkit::history::{Event, EventKind};
use lock_testkit::now_ns;

use super::{FaultServers, Servers};
use crate::data::{Failure, Outcome};

impl FaultServers {
    /// What was committed to the journal of a soak, in the order of the commits.
    pub(crate) async fn journal(&self) -> Outcome<Vec<Event>> {
        if !matches!(self.servers, Servers::Postgres(_)) {
            return Ok(Vec::new());
        }
        let rows = self.postgres(0).sql(&[READ_JOURNAL]).await?;
        // Commits have the time of day, events that since the start of the machine.
        let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let since_ns = i128::from(now_ns()) - epoch.as_nanos() as i128;
        let event = |row: &str| {
            let [lock, process, client, token, at_us] = row.split('|').collect::<Vec<_>>().try_into().ok()?;
            let at_ns = u64::try_from(at_us.parse::<i128>().ok()? * 1_000 + since_ns).ok()?;
            let kind = EventKind::Write { token: token.parse().ok()?, accepted: true };
            let (process, client) = (process.parse().ok()?, client.parse().ok()?);
            Some(Event { process, client, lock: lock.to_owned(), at_ns, kind })
        };
        let events = rows
            .lines()
            .map(|row| event(row).ok_or_else(|| Failure::new(format!("the journal has {row:?}"))));
        events.collect()
    }
}

pub(super) const MAKE_JOURNAL: &str =
    "CREATE TABLE journal (nr bigserial, lock text, process bigint, client bigint, token bigint)";
const READ_JOURNAL: &str = "SELECT lock, process, client, token, \
    (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::bigint FROM journal \
    ORDER BY pg_xact_commit_timestamp(xmin), nr";
