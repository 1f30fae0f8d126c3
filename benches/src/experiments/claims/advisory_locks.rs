//! Claim 14: advisory locks are enough. The one of sqlx beside ours, in what befalls services.

use std::time::Duration;

use lock_testkit::{PgBouncer, PostgresServer};
use polylock::{LockOptions, Locks, Mutex};
use tokio::time::timeout;

use crate::experiments::prelude::*;
use crate::rig::peers::Library;

pub(crate) static THIS: Experiment = Experiment {
    name: "advisory-locks",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 14,
        says: "Advisory locks are enough.",
        how: "PgAdvisoryLock of sqlx and polylock on one PostgreSQL server with 100 connections, in several rounds (one in a \
              quick run). Behind PgBouncer in transaction mode, with one session, where sqlx is tried again after an \
              error, up to 100 times: two clients try to acquire a lock at once, and a client ends with a lock, for which \
              another one waits past the pooler. Cancelled: a client drops the future of its acquisition, the holder releases, and a third one waits. Restart: the server is killed and \
              restarted while a client holds a lock that it does not know to be lost, and another one waits. Connections: one \
              client acquires 500 locks.",
        rule: "Behind the pooler the lock must not be granted twice, and must be free within 3 s of the end of its client (the \
               ttl is 1 s); after the cancellation it must be granted within 3 s; after the restart it must not be granted for 1 s \
               to another client (the ttl is 30 s); and all 500 locks must be granted. Holds when advisory locks do all of \
               that in every round; does not hold when they fail in everything; otherwise it depends on what happens.",
        pictures: || Trial::ALL.map(|trial| bars(trial.title(), trial.metric())).into(),
        judge,
        broken_promise,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    if run.target_of("postgres").is_none() {
        return;
    }
    let rounds = run.mode.pick(1, 3);
    let measuring = async {
        let site = Site::start().await?;
        let mut figures = Vec::new();
        for trial in Trial::ALL {
            figures.push((SQLX, trial, trial.share_of_failures(&site, SQLX, rounds).await?));
            figures.push((OURS, trial, trial.share_of_failures(&site, OURS, rounds).await?));
        }
        Ok(figures)
    };
    let tried = Box::pin(run.part("advisory locks", PATIENCE, measuring)).await;
    for (subject, trial, share) in tried.into_iter().flatten() {
        run.add(Figure::new(subject, trial.metric(), "%", share));
    }
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let mut parts = Vec::new();
    for trial in Trial::ALL {
        let [theirs, ours] = [SQLX, OURS].map(|of| figures.get(of, trial.metric()));
        let (theirs, ours) = (theirs?, ours?);
        parts.push((theirs <= 0.0, format!("{} {theirs:.0}% and {ours:.0}%", trial.title())));
    }
    Judgement::of_parts(parts, "what happens", "failures of sqlx and of polylock", "nothing was tried")
}

fn broken_promise(figures: &Figures) -> Option<String> {
    let fails = |trial: &Trial| figures.get(OURS, trial.metric()).is_ok_and(|share| share > 0.0);
    Some(Trial::ALL.into_iter().find(fails)?.title().to_owned())
}

/// What befalls a lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Trial {
    TwoBehindPooler,
    EndBehindPooler,
    Cancelled,
    ManyLocks,
    Restart,
}

impl Trial {
    /// A restart comes last: the pools of others have to connect again.
    const ALL: [Self; 5] =
        [Self::TwoBehindPooler, Self::EndBehindPooler, Self::Cancelled, Self::ManyLocks, Self::Restart];

    const fn metric(self) -> &'static str {
        match self {
            Self::TwoBehindPooler => "pooler_two",
            Self::EndBehindPooler => "pooler_stranded",
            Self::Cancelled => "cancelled",
            Self::ManyLocks => "refused",
            Self::Restart => "restart",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::TwoBehindPooler => "two clients behind a pooler held the lock at once",
            Self::EndBehindPooler => "the lock of a client that ended behind a pooler stayed held",
            Self::Cancelled => "the lock stayed held after a cancelled acquisition",
            Self::ManyLocks => "of 500 locks not granted with 100 connections",
            Self::Restart => "another client had the lock after a restart, its holder knew nothing",
        }
    }

    /// In how many of the rounds the lock failed, or of the locks, in percent.
    async fn share_of_failures(self, site: &Site, subject: &str, rounds: u32) -> Outcome<f64> {
        if self == Self::ManyLocks {
            let refused = MANY - site.granted(subject).await?;
            return Ok(refused as f64 / MANY as f64 * 100.0);
        }
        let mut failures = 0;
        for round in 0..rounds {
            let lock = format!("{}-{subject}-{round}", self.metric());
            failures += u32::from(match subject {
                SQLX => self.fails::<Sqlx>(site, &lock).await?,
                _ => self.fails::<Mutex>(site, &lock).await?,
            });
        }
        Ok(f64::from(failures) / f64::from(rounds) * 100.0)
    }

    async fn fails<L: Tried>(self, site: &Site, lock: &str) -> Outcome<bool> {
        let (direct, pooler) =
            (|| L::connect(site, lock, Way::Direct), || L::connect(site, lock, Way::Pooler));
        match self {
            Self::TwoBehindPooler => {
                let [one, two] = [pooler().await?, pooler().await?];
                let _held = again(async || one.acquire().await).await?;
                Ok(within(MOMENT, again(async || two.acquire().await)).await?.is_some())
            }
            Self::EndBehindPooler => {
                let ended = pooler().await?;
                L::end_with(again(async || ended.acquire().await).await?);
                drop(ended);
                Ok(within(SOON, direct().await?.acquire()).await?.is_none())
            }
            Self::Cancelled => {
                let [holder, cancelled, third] = [direct().await?, direct().await?, direct().await?];
                let held = holder.acquire().await?;
                if within(MOMENT, cancelled.acquire()).await?.is_some() {
                    return Err(Failure::new("a lock that is held was granted to another client"));
                }
                holder.release(held).await?;
                Ok(within(SOON, third.acquire()).await?.is_none())
            }
            Self::Restart => {
                let held = direct().await?.acquire().await?;
                site.server.kill();
                site.server.start_again().await?;
                let other = within(RESTARTED, direct().await?.acquire()).await?;
                Ok(other.is_some() && L::seems_valid(&held))
            }
            Self::ManyLocks => Ok(false),
        }
    }
}

/// How a client connects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    Direct,
    Pooler,
}

/// A lock of one of the two.
trait Tried: MeasuredLock + Send + Sized {
    fn connect(site: &Site, lock: &str, way: Way) -> impl Future<Output = Outcome<Self>> + Send;

    /// The client ends with the lock.
    fn end_with(held: Self::Held);

    /// Whether the holder does not know that it lost the lock.
    fn seems_valid(held: &Self::Held) -> bool;
}

impl Tried for Sqlx {
    async fn connect(site: &Site, lock: &str, way: Way) -> Outcome<Self> {
        match way {
            Way::Direct => Self::connect(&site.server.url(), lock, 2).await,
            Way::Pooler => Self::connect_by_a_pooler(&site.pooler_url(), lock).await,
        }
    }

    /// As the kernel closes the connections of a process that was killed.
    fn end_with(held: Self::Held) {
        drop(held.detach());
    }

    fn seems_valid(_: &Self::Held) -> bool {
        true
    }
}

impl Tried for Mutex {
    async fn connect(site: &Site, lock: &str, way: Way) -> Outcome<Self> {
        match way {
            Way::Direct => Ok(Locks::connect(&site.server.url()).await?.mutex(lock)),
            Way::Pooler => {
                let locks = Locks::connect(&site.pooler_url()).await?;
                Ok(locks.mutex_with(lock, LockOptions::new().fixed_ttl(TTL))?)
            }
        }
    }

    /// Nothing renews a fixed ttl.
    fn end_with(held: Self::Held) {
        std::mem::forget(held);
    }

    fn seems_valid(held: &Self::Held) -> bool {
        held.is_valid()
    }
}

/// A server with a pooler before it.
struct Site {
    server: PostgresServer,
    pooler: PgBouncer,
}

impl Site {
    async fn start() -> Outcome<Self> {
        let server = PostgresServer::builder().config("max_connections", "100").start().await?;
        let pooler = PgBouncer::start(&server, 1).await?;
        Ok(Self { server, pooler })
    }

    fn pooler_url(&self) -> String {
        url::with_hosts(&self.server.url(), &[self.pooler.addr()])
    }

    /// How many locks are granted to one client before one is refused.
    async fn granted(&self, subject: &str) -> Outcome<usize> {
        if subject == SQLX {
            let one = Sqlx::connect(&self.server.url(), "", MANY as u32).await?;
            let granted = until_refused(|lock| one.with_name(lock)).await?;
            one.close().await;
            return Ok(granted);
        }
        let locks = Locks::connect(&self.server.url()).await?;
        let granted = until_refused(|lock| Ok(locks.mutex(lock))).await?;
        locks.close().await?;
        Ok(granted)
    }
}

async fn until_refused<L: Tried>(lock: impl Fn(&str) -> Outcome<L>) -> Outcome<usize> {
    let mut held = Vec::new();
    while held.len() < MANY {
        // Where the server has no connection left, the pool of sqlx tries again.
        let lock = lock(&format!("many-{}", held.len()))?;
        match within(REFUSED, lock.acquire()).await {
            Ok(Some(one)) => held.push(one),
            _ => break,
        }
    }
    Ok(held.iter().filter(|held| L::seems_valid(held)).count())
}

/// Drops an acquisition that takes longer.
async fn within<T>(span: Duration, acquiring: impl Future<Output = Outcome<T>>) -> Outcome<Option<T>> {
    timeout(span, acquiring).await.ok().transpose()
}

/// Tries again after an error, as services do: behind a pooler the driver of sqlx takes the name of a statement that another client
/// has prepared, and the next one at the next try.
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

const SQLX: &str = "sqlx";
const OURS: &str = "postgres";
const PATIENCE: Duration = Duration::from_secs(180);
const MANY: usize = 500;
/// More than the statements of all clients before.
const TRIES: usize = 100;
const TTL: Duration = Duration::from_secs(1);
/// Longer than the ttl, and than a waiter that polls sleeps.
const SOON: Duration = Duration::from_secs(3);
/// Shorter than the ttl.
const MOMENT: Duration = Duration::from_millis(300);
const RESTARTED: Duration = Duration::from_secs(1);
const REFUSED: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::claim::judged;

    #[test]
    fn every_failure_counts() {
        let by = |theirs: [f64; 5], ours: [f64; 5]| {
            let of = |subject, shares: [f64; 5]| {
                let both = Trial::ALL.into_iter().zip(shares);
                both.map(move |(trial, share)| Figure::new(subject, trial.metric(), "%", share))
            };
            judged(&THIS, of(SQLX, theirs).chain(of(OURS, ours)))
        };
        assert_eq!(by([0.0; 5], [0.0; 5]), (Verdict::Holds, true));
        assert_eq!(by([100.0, 20.0, 100.0, 80.0, 100.0], [0.0; 5]), (Verdict::DoesNotHold, true));
        let depends = Verdict::DependsOn("what happens".into());
        assert_eq!(by([100.0, 0.0, 0.0, 80.0, 100.0], [0.0, 0.0, 20.0, 0.0, 0.0]), (depends, false));
    }
}
