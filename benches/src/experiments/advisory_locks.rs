//! Claim 14: advisory locks are enough. The one of sqlx beside ours, in what befalls services.

use std::time::Duration;

use async_trait::async_trait;
use lock_testkit::{PgBouncer, PostgresServer};
use polylock::{Guard, LockOptions, Locks};
use tokio::time::timeout;

use super::claim::{About, Claim, Judgement, Measuring};
use crate::data::{Failure, Figure, Figures, Mode, Outcome, Verdict};
use crate::rig::{MeasuredLock, Sqlx, url};

#[derive(Debug)]
pub(super) struct AdvisoryLocks;

#[async_trait(?Send)]
impl Claim for AdvisoryLocks {
    fn about(&self) -> About {
        About {
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
            needs: &[],
            in_quick: false,
        }
    }

    async fn measure(&self, run: &mut Measuring<'_>) {
        if run.target_of("postgres").is_none() {
            return;
        }
        let rounds = match run.mode {
            Mode::Quick => 1,
            Mode::Full => 5,
        };
        let measuring = async {
            let site = Site::start().await?;
            let mut figures = Vec::new();
            for subject in [Subject::Sqlx, Subject::Ours] {
                for trial in Trial::ALL {
                    figures.push((subject, trial, trial.share_of_failures(&site, subject, rounds).await?));
                }
            }
            Ok(figures)
        };
        for (subject, trial, share) in
            run.part("advisory locks", PATIENCE, measuring).await.into_iter().flatten()
        {
            run.add(Figure::new(subject.name(), trial.metric(), "%", share));
        }
        run.bars(&Trial::ALL.map(|trial| (trial.title(), trial.metric())));
    }

    fn judge(&self, figures: &Figures) -> Outcome<Judgement> {
        let (mut failed, mut texts) = (0, Vec::new());
        for trial in Trial::ALL {
            let [theirs, ours] =
                [Subject::Sqlx, Subject::Ours].map(|of| figures.get(of.name(), trial.metric()));
            let (theirs, ours) = (theirs?, ours?);
            failed += usize::from(theirs > 0.0);
            texts.push(format!("{}: {theirs:.0}% and {ours:.0}%", trial.title()));
        }
        let all = Trial::ALL.len();
        let verdict = Verdict::of(all - failed, all, "what happens")
            .ok_or_else(|| Failure::new("nothing was tried"))?;
        Ok(Judgement::new(verdict, format!("failures of sqlx and of polylock: {}", texts.join("; "))))
    }

    fn broken_promise(&self, figures: &Figures) -> Option<String> {
        let fails =
            |trial: &Trial| figures.get(Subject::Ours.name(), trial.metric()).is_ok_and(|share| share > 0.0);
        Some(Trial::ALL.into_iter().find(fails)?.title().to_owned())
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Subject {
    Sqlx,
    Ours,
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

/// A server with a pooler before it.
struct Site {
    server: PostgresServer,
    pooler: PgBouncer,
}

impl Subject {
    const fn name(self) -> &'static str {
        match self {
            Self::Sqlx => "sqlx",
            Self::Ours => "postgres",
        }
    }
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
    async fn share_of_failures(self, site: &Site, subject: Subject, rounds: u32) -> Outcome<f64> {
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
    async fn start() -> Outcome<Self> {
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
const PATIENCE: Duration = Duration::from_secs(180);

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(theirs: [f64; 5], ours: [f64; 5]) -> (Verdict, Option<String>) {
        let mut figures = Vec::new();
        for (subject, shares) in [(Subject::Sqlx, theirs), (Subject::Ours, ours)] {
            for (trial, share) in Trial::ALL.into_iter().zip(shares) {
                figures.push(Figure::new(subject.name(), trial.metric(), "%", share));
            }
        }
        let figures = Figures::from(figures);
        (AdvisoryLocks.judge(&figures).unwrap().verdict, AdvisoryLocks.broken_promise(&figures))
    }

    #[test]
    fn every_failure_counts() {
        assert_eq!(judged([0.0; 5], [0.0; 5]), (Verdict::Holds, None));
        assert_eq!(judged([100.0, 20.0, 100.0, 80.0, 100.0], [0.0; 5]), (Verdict::DoesNotHold, None));
        let (verdict, broken) = judged([100.0, 0.0, 0.0, 80.0, 100.0], [0.0, 0.0, 20.0, 0.0, 0.0]);
        assert_eq!(verdict, Verdict::DependsOn("what happens".into()));
        assert_eq!(broken.as_deref(), Some(Trial::Cancelled.title()));
    }
}
