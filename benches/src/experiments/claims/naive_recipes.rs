//! Claim 9: the two classic mistakes of Redis locks.

use std::time::Duration;

use futures_util::future::try_join_all;
use polylock::{LockOptions, Locks};
use redis::aio::MultiplexedConnection;
use redis::{Client, cmd};
use tokio::time::sleep;

use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "naive-recipes",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 9,
        says: "Deleting without looking at the value frees somebody else's lock, and SETNX with a later EXPIRE can lock for ever.",
        how: "By bare commands and by polylock, on one server, in several rounds. Late release: a client holds a lock beyond \
              its ttl, a second client acquires it, the first one releases, and a third one tries; counted are the rounds \
              in which it succeeds while the second one holds. Lost EXPIRE: a client acquires a lock and ends at once, \
              between SETNX and EXPIRE where there are two commands; counted are the rounds in which the lock is still \
              held after ten ttls.",
        rule: "Holds when each mistake breaks the lock in every round, and polylock never breaks; does not hold when neither \
               mistake ever does; otherwise it depends on the mistake.",
        in_quick: true,
        pictures: || {
            vec![
                bars("Rounds in which a late release let two clients hold the lock", LATE_RELEASE),
                bars("Rounds in which the lock of a client that ended stayed held", LOST_EXPIRE),
            ]
        },
        judge,
        broken_promise,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    let Some(url) = run.url("redis") else { return };
    let (rounds, lock) = (run.mode.pick(3, 20), run.bench.lock("naive"));
    let is_broken = run.bench.broken == Some(Defect::NaiveRelease);
    // Each round has a lock of its own, and sleeps most of the time: all run at the same time.
    let one_round = async |(subject, mistake): (&str, &str), round: u32| {
        let lock = format!("{lock}-{round}-{}", format!("{mistake} of {subject}").replace(' ', "-"));
        match (subject, mistake) {
            (NAIVE, LATE_RELEASE) => delete_whoever_holds(&url, &lock).await,
            (NAIVE, _) => lose_expire(&url, &lock).await,
            (_, LATE_RELEASE) => release_late(&url, &lock, is_broken).await,
            _ => end_at_once(&url, &lock).await,
        }
    };
    let all_rounds = async |trial| {
        let broken = try_join_all((0..rounds).map(|round| one_round(trial, round))).await?;
        let broken = broken.into_iter().filter(|broken| *broken).count();
        Ok((trial, broken as f64 / f64::from(rounds) * 100.0))
    };
    let trials = [(NAIVE, LATE_RELEASE), (OURS, LATE_RELEASE), (NAIVE, LOST_EXPIRE), (OURS, LOST_EXPIRE)];
    let parts = trials.map(|trial| (format!("{} of {}", trial.1, trial.0), all_rounds(trial)));
    for (_, ((subject, mistake), share)) in run.parts(PATIENCE, parts).await {
        run.add(Figure::new(subject, mistake, "%", share));
    }
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let shares =
        |subject| Ok::<_, Failure>([figures.get(subject, LATE_RELEASE)?, figures.get(subject, LOST_EXPIRE)?]);
    let (naive, ours) = (shares(NAIVE)?, shares(OURS)?);
    let sound = ours.iter().all(|share| *share < 1e-9);
    let verdict = match naive {
        _ if naive.iter().all(|share| *share > 99.9) && sound => Verdict::Holds,
        _ if naive.iter().all(|share| *share < 1e-9) => Verdict::DoesNotHold,
        _ => Verdict::DependsOn("the mistake".into()),
    };
    let because = format!(
        "a late DEL broke the lock in {:.0}% of the rounds, a lost EXPIRE in {:.0}%; polylock broke in {:.0}% and {:.0}%",
        naive[0], naive[1], ours[0], ours[1]
    );
    Ok(Judgement::new(verdict, because))
}

fn broken_promise(figures: &Figures) -> Option<String> {
    let broke = |mistake: &&str| figures.get(OURS, mistake).is_ok_and(|share| share > 0.0);
    let mistake = [LATE_RELEASE, LOST_EXPIRE].into_iter().find(|mistake| broke(mistake))?;
    Some(format!("{mistake} broke a lock of polylock"))
}

/// Whether a third client gets the lock while the second one holds it, as the first one deletes whatever is there.
async fn delete_whoever_holds(url: &str, lock: &str) -> Outcome<bool> {
    let mut redis = connect(url).await?;
    take(set_if_absent(&mut redis, lock, "first", TTL).await?)?;
    sleep(BEYOND_TTL).await;
    take(set_if_absent(&mut redis, lock, "second", LONG_TTL).await?)?;
    let () = cmd("DEL").arg(lock).query_async(&mut redis).await?;
    set_if_absent(&mut redis, lock, "third", TTL).await
}

/// The same with polylock; with the defect, its release deletes the lock of whoever holds it.
async fn release_late(url: &str, lock: &str, is_broken: bool) -> Outcome<bool> {
    let locks = [Locks::connect(url).await?, Locks::connect(url).await?, Locks::connect(url).await?];
    let mutex = |client: usize| locks[client].mutex_with(lock, LockOptions::new().fixed_ttl(TTL));
    let first = mutex(0)?.acquire().await?;
    sleep(BEYOND_TTL).await;
    let long = LockOptions::new().fixed_ttl(LONG_TTL);
    let second = locks[1].mutex_with(lock, long)?.try_acquire().await?;
    // Otherwise nothing is tested.
    take(second.as_ref().is_some_and(|second| second.is_valid()))?;
    // It says that the lock was lost.
    first.release().await?;
    if is_broken {
        locks[0].break_lock(lock).await?;
    }
    let third = mutex(2)?.try_acquire().await?;
    let broken = third.is_some();
    drop((second, third));
    for locks in locks {
        locks.close().await?;
    }
    Ok(broken)
}

/// Whether the lock is still held long after its client has ended, between the two commands.
async fn lose_expire(url: &str, lock: &str) -> Outcome<bool> {
    let mut ended = connect(url).await?;
    take(cmd("SETNX").arg(lock).arg("first").query_async(&mut ended).await?)?;
    drop(ended);
    sleep(10 * TTL).await;
    let mut redis = connect(url).await?;
    let held = !set_if_absent(&mut redis, lock, "second", LONG_TTL).await?;
    let () = cmd("DEL").arg(lock).query_async(&mut redis).await?;
    Ok(held)
}

/// The same with polylock: the guard is forgotten, and nothing renews it.
async fn end_at_once(url: &str, lock: &str) -> Outcome<bool> {
    let ended = Locks::connect(url).await?;
    std::mem::forget(ended.mutex_with(lock, LockOptions::new().fixed_ttl(TTL))?.acquire().await?);
    drop(ended);
    sleep(10 * TTL).await;
    let rival = Locks::connect(url).await?;
    let held = rival.mutex(lock).try_acquire().await?.is_none();
    rival.close().await?;
    Ok(held)
}

/// Fails when a lock that was free, or had expired, was not granted: then the round shows nothing.
fn take(is_granted: bool) -> Outcome<()> {
    is_granted.then_some(()).ok_or_else(|| Failure::new("a lock that should be free was not granted"))
}

async fn connect(url: &str) -> Outcome<MultiplexedConnection> {
    Ok(Client::open(url::without_options(url))?.get_multiplexed_async_connection().await?)
}

async fn set_if_absent(
    redis: &mut MultiplexedConnection,
    lock: &str,
    value: &str,
    ttl: Duration,
) -> Outcome<bool> {
    let ttl = ttl.as_millis() as u64;
    let set: Option<String> =
        cmd("SET").arg(lock).arg(value).arg("NX").arg("PX").arg(ttl).query_async(redis).await?;
    Ok(set.is_some())
}

const NAIVE: &str = "bare commands";
const OURS: &str = "polylock";
const LATE_RELEASE: &str = "late_release";
const LOST_EXPIRE: &str = "lost_expire";
const PATIENCE: Duration = Duration::from_secs(120);
const TTL: Duration = Duration::from_millis(150);
/// Of the second holder, which must still hold when the third one tries.
const LONG_TTL: Duration = Duration::from_secs(10);
const BEYOND_TTL: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::claim::judged;

    #[test]
    fn both_mistakes_must_break_the_lock_and_ours_must_not() {
        let by = |naive: [f64; 2], ours: [f64; 2]| {
            let of = |(subject, [late, lost]): (&str, [f64; 2])| {
                [Figure::new(subject, LATE_RELEASE, "%", late), Figure::new(subject, LOST_EXPIRE, "%", lost)]
            };
            judged(&THIS, [(NAIVE, naive), (OURS, ours)].into_iter().flat_map(of))
        };
        assert_eq!(by([100.0; 2], [0.0; 2]), (Verdict::Holds, true));
        assert_eq!(by([0.0; 2], [0.0; 2]).0, Verdict::DoesNotHold);
        assert_eq!(by([100.0, 0.0], [0.0; 2]).0, Verdict::DependsOn("the mistake".into()));
        assert!(!by([100.0; 2], [5.0, 0.0]).1);
    }
}
