//! What befalls a lock on PostgreSQL, that of sqlx and ours.

use std::time::Duration;

use lock_testkit::{PgBouncer, PostgresServer};
use polylock::{Guard, LockOptions, Locks};
use tokio::time::timeout;

use crate::data::{Failure, Outcome};
use crate::rig::{MeasuredLock, Sqlx, url};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Subject {
    Sqlx,
    Ours,
}

/// What befalls a lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Trial {
    TwoBehindPooler,
    EndBehindPooler,
    Cancelled,
    ManyLocks,
    Restart,
}

/// A server with a pooler before it.
pub(crate) struct Site {
    server: PostgresServer,
    pooler: PgBouncer,
}

impl Subject {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sqlx => "sqlx",
            Self::Ours => "postgres",
        }
    }
}

impl Trial {
    /// A restart comes last: the pools of others have to connect again.
    pub(crate) const ALL: [Self; 5] =
        [Self::TwoBehindPooler, Self::EndBehindPooler, Self::Cancelled, Self::ManyLocks, Self::Restart];

    pub(crate) const fn metric(self) -> &'static str {
        match self {
            Self::TwoBehindPooler => "pooler_two",
            Self::EndBehindPooler => "pooler_stranded",
            Self::Cancelled => "cancelled",
            Self::ManyLocks => "refused",
            Self::Restart => "restart",
        }
    }

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::TwoBehindPooler => "two clients behind a pooler held the lock at once",
            Self::EndBehindPooler => "the lock of a client that ended behind a pooler stayed held",
            Self::Cancelled => "the lock stayed held after a cancelled acquisition",
            Self::ManyLocks => "of 500 locks not granted with 100 connections",
            Self::Restart => "another client had the lock after a restart, its holder knew nothing",
        }
    }

    /// In how many of the rounds the lock failed, or of the locks, in percent.
    pub(crate) async fn share_of_failures(self, site: &Site, subject: Subject, rounds: u32) -> Outcome<f64> {
        if self == Self::ManyLocks {
            let granted = match subject {
                Subject::Sqlx => many_of_sqlx(&site.server.url()).await?,
                Subject::Ours => many_of_ours(&site.server.url()).await?,
            };
            return Ok((MANY - granted) as f64 / MANY as f64 * 100.0);
        }
        let mut failures = 0;
        for round in 0..rounds {
            let lock = format!("{}-{}-{round}", self.metric(), subject.name());
            failures += u32::from(match subject {
                Subject::Sqlx => self.fails_sqlx(site, &lock).await?,
                Subject::Ours => self.fails_ours(site, &lock).await?,
            });
        }
        Ok(f64::from(failures) / f64::from(rounds) * 100.0)
    }

    async fn fails_sqlx(self, site: &Site, lock: &str) -> Outcome<bool> {
        let direct = async || Sqlx::connect(&site.server.url(), lock, 2).await;
        match self {
            Self::TwoBehindPooler => {
                let [one, two] = [site.sqlx_behind_pooler(lock).await?, site.sqlx_behind_pooler(lock).await?];
                let _held = again(async || one.acquire().await).await?;
                Ok(again(async || two.try_acquire().await).await?.is_some())
            }
            Self::EndBehindPooler => {
                // As the kernel closes the connections of a process that was killed.
                let ended = site.sqlx_behind_pooler(lock).await?;
                drop(again(async || ended.acquire().await).await?.detach());
                let other = direct().await?;
                Ok(timeout(SOON, other.acquire()).await.is_err())
            }
            Self::Cancelled => {
                let [holder, cancelled, third] = [direct().await?, direct().await?, direct().await?];
                let held = holder.acquire().await?;
                give_up(cancelled.acquire()).await?;
                holder.release(held).await?;
                Ok(timeout(SOON, third.acquire()).await.is_err())
            }
            Self::Restart => {
                let _held = direct().await?.acquire().await?;
                site.restart().await?;
                Ok(direct().await?.try_acquire().await?.is_some())
            }
            Self::ManyLocks => Ok(false),
        }
    }

    async fn fails_ours(self, site: &Site, lock: &str) -> Outcome<bool> {
        let direct = async || Ok::<_, Failure>(Locks::connect(&site.server.url()).await?);
        match self {
            Self::TwoBehindPooler => {
                let [one, two] = [site.behind_pooler().await?, site.behind_pooler().await?];
                let held = one.mutex(lock).acquire().await?;
                let is_granted_twice = two.mutex(lock).try_acquire().await?.is_some();
                held.release().await?;
                Ok(is_granted_twice)
            }
            Self::EndBehindPooler => {
                let ended = site.behind_pooler().await?;
                let options = LockOptions::new().fixed_ttl(TTL);
                std::mem::forget(ended.mutex_with(lock, options)?.acquire().await?);
                drop(ended);
                Ok(soon(&direct().await?, lock).await?.is_none())
            }
            Self::Cancelled => {
                let [holder, cancelled, third] = [direct().await?, direct().await?, direct().await?];
                let held = holder.mutex(lock).acquire().await?;
                give_up(async { Ok(cancelled.mutex(lock).acquire().await?) }).await?;
                held.release().await?;
                Ok(soon(&third, lock).await?.is_none())
            }
            Self::Restart => {
                let held = direct().await?.mutex(lock).acquire().await?;
                site.restart().await?;
                let other = direct().await?.mutex(lock).try_acquire_for(RESTARTED).await?;
                Ok(other.is_some() && held.is_valid())
            }
            Self::ManyLocks => Ok(false),
        }
    }
}

impl Site {
    pub(crate) async fn start() -> Outcome<Self> {
        let server = PostgresServer::builder().config("max_connections", "100").start().await?;
        let pooler = PgBouncer::start(&server, 1).await?;
        Ok(Self { server, pooler })
    }

    fn pooler_url(&self) -> String {
        url::with_hosts(&self.server.url(), &[self.pooler.addr()])
    }

    async fn sqlx_behind_pooler(&self, lock: &str) -> Outcome<Sqlx> {
        Sqlx::connect_by_a_pooler(&self.pooler_url(), lock).await
    }

    async fn behind_pooler(&self) -> Outcome<Locks> {
        Ok(Locks::connect(&self.pooler_url()).await?)
    }

    async fn restart(&self) -> Outcome<()> {
        self.server.kill();
        Ok(self.server.start_again().await?)
    }
}

/// Tries again after an error, as services do: behind a pooler the driver takes the name of a statement that another client has
/// prepared, and the next one at the next try.
async fn again<T>(attempt: impl AsyncFn() -> Outcome<T>) -> Outcome<T> {
    let mut tried = attempt().await;
    for _ in 0..TRIES {
        if tried.is_ok() {
            break;
        }
        tried = attempt().await;
    }
    tried
}

/// Drops an acquisition that waits.
async fn give_up<T>(acquisition: impl Future<Output = Outcome<T>>) -> Outcome<()> {
    match timeout(CANCELLED, acquisition).await {
        Err(_) => Ok(()),
        Ok(Ok(_)) => Err(Failure::new("a lock that is held was granted to another client")),
        Ok(Err(failure)) => Err(failure),
    }
}

async fn soon(locks: &Locks, lock: &str) -> Outcome<Option<Guard>> {
    Ok(locks.mutex(lock).try_acquire_for(SOON).await?)
}

/// How many locks are granted before one is refused.
async fn many_of_sqlx(url: &str) -> Outcome<usize> {
    let (one, mut held) = (Sqlx::connect(url, "", MANY as u32).await?, Vec::new());
    while held.len() < MANY {
        let lock = one.with_name(&format!("many-{}", held.len()));
        match timeout(REFUSED, lock.acquire()).await {
            Ok(Ok(connection)) => held.push(connection),
            // The server has no connection left: the pool tries again.
            Ok(Err(_)) | Err(_) => break,
        }
    }
    let granted = held.len();
    drop(held);
    one.close().await;
    Ok(granted)
}

async fn many_of_ours(url: &str) -> Outcome<usize> {
    let (locks, mut held) = (Locks::connect(url).await?, Vec::new());
    while held.len() < MANY {
        match locks.mutex(format!("many-{}", held.len())).try_acquire_for(REFUSED).await {
            Ok(Some(guard)) => held.push(guard),
            Ok(None) | Err(_) => break,
        }
    }
    let granted = held.iter().filter(|guard| guard.is_valid()).count();
    for guard in held {
        guard.release().await?;
    }
    locks.close().await?;
    Ok(granted)
}

const MANY: usize = 500;
/// More than the statements of all clients before.
const TRIES: usize = 100;
const TTL: Duration = Duration::from_secs(1);
/// Longer than the ttl, and than a waiter that polls sleeps.
const SOON: Duration = Duration::from_secs(3);
const CANCELLED: Duration = Duration::from_millis(300);
const RESTARTED: Duration = Duration::from_secs(1);
const REFUSED: Duration = Duration::from_secs(2);
