//! What other sessions do to the tables and the sessions of the locks on PostgreSQL, and on MariaDB.

use std::time::Duration;

use tokio::time::sleep;

use super::database::END_SESSIONS;
use super::{FaultServers, Servers};
use crate::data::{Disturbance, Failure, Outcome};
use crate::rig::backends::postgres::connect;
use Disturbance::{Cancels, ForgedNotifications, FullVacuum, Isolation, ReadOnly, TableLock};

/// The statements of a disturbance. Each is a transaction, unless the first is `BEGIN`.
#[derive(Default)]
struct Script {
    begin: Vec<String>,
    /// It is repeated meanwhile.
    again: Option<&'static str>,
    end: Vec<String>,
}

impl Script {
    fn of(disturbance: Disturbance) -> Self {
        // `ALTER SYSTEM` and `VACUUM` run outside of transactions alone.
        let setting = |name: &str, value: &str| {
            let set = vec![format!("ALTER SYSTEM SET {name} = {value}"), RELOAD.to_owned()];
            let reset = vec![format!("ALTER SYSTEM RESET {name}"), RELOAD.to_owned()];
            Self { begin: set, again: None, end: reset }
        };
        match disturbance {
            TableLock(table) => Self {
                begin: vec![
                    "BEGIN".to_owned(),
                    format!("LOCK TABLE polylock.{table} IN ACCESS EXCLUSIVE MODE"),
                ],
                end: vec!["ROLLBACK".to_owned()],
                ..Self::default()
            },
            Cancels { without_standby: false } => Self { again: Some(CANCEL), ..Self::default() },
            Cancels { without_standby: true } => {
                Self { again: Some(CANCEL), ..setting("synchronous_standby_names", "'away'") }
            }
            ReadOnly => setting("default_transaction_read_only", "on"),
            Isolation(level) => Self {
                begin: vec![
                    format!("ALTER ROLE ALL SET default_transaction_isolation = '{level}'"),
                    END_SESSIONS.to_owned(),
                ],
                end: vec![
                    "ALTER ROLE ALL RESET default_transaction_isolation".to_owned(),
                    END_SESSIONS.to_owned(),
                ],
                ..Self::default()
            },
            FullVacuum => Self { begin: vec![VACUUM.to_owned()], ..Self::default() },
            ForgedNotifications => Self { again: Some(FORGE), ..Self::default() },
        }
    }
}

impl FaultServers {
    /// Disturbs the locks by a session of its own until this future ends.
    pub(crate) async fn disturb(
        &self,
        disturbance: Disturbance,
        until: impl Future<Output = Outcome<()>>,
    ) -> Outcome<()> {
        if let Servers::Mysql(server) = &self.servers {
            if disturbance != ReadOnly {
                return Err(Failure::new(format!("MariaDB has no disturbance of {disturbance}")));
            }
            server.sql("SET GLOBAL read_only = 1").await?;
            until.await?;
            return Ok(server.sql("SET GLOBAL read_only = 0").await.map(drop)?);
        }
        let session = connect(&self.postgres(0).url()).await?;
        let Script { begin, again, end } = Script::of(disturbance);
        for statement in begin {
            session.batch_execute(&statement).await?;
        }
        let repeat = async {
            let Some(again) = again else { return std::future::pending().await };
            loop {
                session.batch_execute(again).await?;
                sleep(AGAIN).await;
            }
        };
        tokio::select! {
            ended = until => ended?,
            failed = repeat => return failed,
        }
        for statement in end {
            session.batch_execute(&statement).await?;
        }
        Ok(())
    }
}

const CANCEL: &str = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity \
                      WHERE application_name LIKE 'polylock%' AND state = 'active'";
const VACUUM: &str = "VACUUM FULL polylock.lock, polylock.lease, polylock.sharer, polylock.waiter";
const RELOAD: &str = "SELECT pg_reload_conf()";
/// To the entries of waiters, by keys that everybody may hear and a proof that nobody has made, in the form of version 1 as well;
/// and to all inboxes, by keys that do not exist.
const FORGE: &str = "\
    SELECT pg_notify('polylock_' || inbox, forged) FROM polylock.waiter JOIN polylock.lock USING (name), \
      LATERAL (VALUES (format('granted:%s:%s:%s', left(key, 16), last + 16, repeat('0', 64))), \
        (format('granted %s %s 2500 %s', replace(waiter.owner::text, '-', ''), last + 16, name)), \
        (format('changed:%s', left(key, 16)))) AS payload (forged) WHERE inbox IS NOT NULL; \
    SELECT pg_notify(application_name, forged) FROM pg_stat_activity, md5(random()::text) AS key, \
      LATERAL (VALUES (format('granted:%s:16:%s', left(key, 16), key || key)), (format('changed:%s', left(key, 16)))) \
        AS payload (forged) WHERE application_name LIKE 'polylock\\_%'";
const AGAIN: Duration = Duration::from_millis(10);
