//! Claim 2: waiters of Redis poll, those of ZooKeeper watch.

use std::time::Duration;

use crate::experiments::parts::crowd::{Crowd, WaitingCost};
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "waiting-cost",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 2,
        says: "A Redis waiter must keep polling, and that costs; a ZooKeeper waiter just watches.",
        how: "One client holds a lock, others wait for it, each with a connection of its own through a proxy that counts \
              requests, notifications and bytes. First nothing happens for a while: what each waiter costs per second. \
              Then the lock is released, and every waiter that gets it releases it at once and waits again: what each \
              grant costs. Server CPU is the time of the server processes, counted in ticks of 10 ms; heartbeats of ZooKeeper's sessions count as \
              bytes, not as requests.",
        rule: "Holds when a waiter of every Redis recipe sends more than one request in two seconds while nothing happens, \
               and one of ZooKeeper's queue less; does not hold when none of Redis' does, or when ZooKeeper's does, \
               too; otherwise it depends on the recipe. The largest number of waiters decides.",
        in_quick: true,
        pictures: || {
            vec![
                curve("Requests per waiter and second while nothing happens", IDLE_REQUESTS, "waiters"),
                curve("Requests per grant", GRANT_REQUESTS, "waiters"),
            ]
        },
        judge,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    let crowds = run.mode.pick::<&[u32]>(&[8, 64], &[8, 64, 256]);
    measure_crowds(run, "waiting", run.mode.pick(QUICK, FULL), crowds).await;
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let (zk, waiters) = last(figures, "zk")?;
    let mut redis = Vec::new();
    for subject in figures.subjects(IDLE_REQUESTS).into_iter().filter(|name| name.starts_with("redis")) {
        redis.push((subject, last(figures, subject)?.0));
    }
    let polls = |rate: f64| rate > POLLING;
    let polling: Vec<_> = redis.iter().filter(|(_, rate)| polls(*rate)).map(|(name, _)| *name).collect();
    let verdict = match polling.len() {
        _ if redis.is_empty() => return Err(Failure::new("no waiter of Redis was measured")),
        none if none == 0 || polls(zk) => Verdict::DoesNotHold,
        all if all == redis.len() => Verdict::Holds,
        _ => Verdict::DependsOn("the recipe".into()),
    };
    let rates: Vec<_> = redis.iter().map(|(name, rate)| format!("{name} {rate:.1}")).collect();
    let because =
        format!("with {waiters} waiters, requests per waiter and second: zk {zk:.1}, {}", rates.join(", "));
    Ok(Judgement::new(verdict, because))
}

/// Measures crowds of these subjects and sizes, as figures over the number of waiters. The names of the locks begin with `of`.
pub(super) async fn measure_crowds(run: &mut Measuring<'_>, of: &str, subjects: &[&str], crowds: &[u32]) {
    for subject in subjects {
        let Some(url) = run.url(subject) else { continue };
        for &waiters in crowds {
            let Some(target) = run.target_of(subject) else { continue };
            let lock = run.bench.lock(&format!("{of}-{}-{waiters}", subject.replace([' ', '='], "-")));
            let span = run.mode.pick(Duration::from_millis(500), Duration::from_secs(1));
            let measuring =
                async { Crowd::gather(target, &url, &lock, waiters as usize).await?.measure(span).await };
            let name = format!("{waiters} waiters of {subject}");
            if let Some(cost) = run.part(&name, PATIENCE, measuring).await {
                add(run, subject, waiters, &cost);
            }
        }
    }
}

fn add(run: &mut Measuring<'_>, subject: &str, waiters: u32, cost: &WaitingCost) {
    let idle = [IDLE_REQUESTS, "idle_notifications", "idle_bytes", "idle_server_cpu"];
    let grant = [GRANT_REQUESTS, GRANT_NOTIFICATIONS, "grant_bytes", "grant_server_cpu"];
    let names = [(cost.idle, idle, ["1/s", "B/s", "us/s"]), (cost.grant, grant, ["", "B", "us"])];
    for (of, [requests, notifications, bytes, server], [number, octets, time]) in names {
        let figures = [
            (requests, number, Some(of.requests)),
            (notifications, number, Some(of.notifications)),
            (bytes, octets, Some(of.bytes)),
            (server, time, of.server_us),
        ];
        for (metric, unit, value) in figures {
            value
                .into_iter()
                .for_each(|value| run.add(Figure::new(subject, metric, unit, value).at(waiters)));
        }
    }
}

/// The rate of requests with the most waiters, and how many these are.
fn last(figures: &Figures, subject: &str) -> Outcome<(f64, f64)> {
    let last = figures.curve(subject, IDLE_REQUESTS).pop();
    let (waiters, rate) =
        last.ok_or_else(|| Failure::new(format!("waiting for {subject} was not measured")))?;
    Ok((rate, waiters))
}

const QUICK: &[&str] = &["redis wait=poll", "redis wait=queue", "zk"];
const FULL: &[&str] = &[
    "redis wait=poll",
    "redis wait=notify",
    "redis wait=queue",
    "redis recipe=setnx-timestamp",
    "redlock",
    "zk",
    "zk recipe=ephemeral",
    "zk recipe=ephemeral wait=poll",
];
const IDLE_REQUESTS: &str = "idle_requests";
pub(super) const GRANT_REQUESTS: &str = "grant_requests";
pub(super) const GRANT_NOTIFICATIONS: &str = "grant_notifications";
/// Requests per waiter and second: a waiter that sends more is polling.
const POLLING: f64 = 0.5;
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::claim::judged;

    #[test]
    fn what_polls_decides() {
        let by = |rates: &[(&str, f64)]| {
            let of = |&(subject, rate): &(&str, f64)| Figure::new(subject, IDLE_REQUESTS, "", rate).at(64);
            judged(&THIS, rates.iter().map(of)).0
        };
        let (poll, queue) = (("redis wait=poll", 10.0), ("redis wait=queue", 0.1));
        assert_eq!(by(&[("zk", 0.0), poll]), Verdict::Holds);
        assert_eq!(by(&[("zk", 0.0), poll, queue]), Verdict::DependsOn("the recipe".into()));
        assert_eq!(by(&[("zk", 0.0), queue]), Verdict::DoesNotHold);
        assert_eq!(by(&[("zk", 5.0), poll]), Verdict::DoesNotHold);
        assert_eq!(by(&[("zk", 0.0)]), Verdict::NotJudged);
    }
}
