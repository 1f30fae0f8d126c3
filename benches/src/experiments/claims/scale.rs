//! Claim 11: costs at scale.

use std::time::Duration;

use crate::experiments::parts::crowd::Crowd;
use crate::experiments::parts::teams::alone_us;
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "scale",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 11,
        says: "It scales: a grant costs the same however many wait, and a lock however many are held.",
        how: "Waiters: as claim 2, the time from one grant to the next and the memory of the servers, over the number of \
              waiters (up to a thousand have connections of their own, more are tasks of these). Held locks: a process \
              holds many; the time to acquire each, its memory, the CPU time of client and servers for its renewals, and \
              the time of acquire + release of one more name meanwhile.",
        rule: "Growth is the exponent of the power law that fits best: below 0.15 constant, below 0.6 logarithmic, below \
               1.3 linear, else worse. Holds when the time between grants, the time to acquire, the memory of a lock \
               and the time of one more name grow less than linearly on every backend; does not hold when one of them \
               does not on every backend; otherwise it depends on the backend.",
        pictures: || {
            vec![
                curve("From one grant to the next", BETWEEN_GRANTS, "waiters"),
                curve("Server memory per waiter", "server_bytes_per_waiter", "waiters"),
                curve("Time to acquire each of many locks", ACQUIRE, "held locks"),
                curve("Client memory per held lock", BYTES, "held locks"),
                curve("CPU of client and servers for renewals", "renewal_cpu", "held locks"),
                curve("Acquire + release of one more name", ONE_MORE, "held locks"),
            ]
        },
        judge,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    let waiters = run.mode.pick::<&[u32]>(&[1, 100], &[1, 10, 100, 5000]);
    let locks = run.mode.pick::<&[u32]>(&[100, 1000], &[1000, 10_000]);
    for backend in BACKENDS {
        // Five connections of each waiter are too many for one machine.
        let most = if backend == "redlock" { 100 } else { u32::MAX };
        for &waiters in waiters.iter().filter(|waiters| **waiters <= most) {
            measure_waiters(run, backend, waiters).await;
        }
        for &count in locks {
            measure_held(run, backend, count).await;
        }
    }
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let mut parts = Vec::new();
    for backend in BACKENDS {
        let (mut grown, mut texts) = (false, Vec::new());
        for (metric, name) in JUDGED {
            let Some(growth) = Growth::of(&figures.curve(backend, metric)) else { continue };
            texts.push(format!("{backend} {name} {growth}"));
            grown |= growth.is_linear_or_worse();
        }
        parts.extend((!texts.is_empty()).then(|| (!grown, texts.join(", "))));
    }
    Judgement::of_parts(parts, "the backend", "growth", "no backend was measured at two sizes")
}

async fn measure_waiters(run: &mut Measuring<'_>, backend: &str, waiters: u32) {
    let (Some(target), Some(url)) = (run.target_of(backend), run.url(backend)) else { return };
    let lock = run.bench.lock(&format!("scale-waiters-{waiters}"));
    let measuring = async { Crowd::gather(target, &url, &lock, waiters as usize).await?.measure(SPAN).await };
    if let Some(cost) = run.part(&format!("{waiters} waiters of {backend}"), PATIENCE, measuring).await {
        let between = cost.between_grants.as_secs_f64() * 1e6;
        run.add(Figure::new(backend, BETWEEN_GRANTS, "us", between).at(waiters));
        run.add(Figure::new(backend, "server_bytes_per_waiter", "B", cost.server_bytes).at(waiters));
    }
}

async fn measure_held(run: &mut Measuring<'_>, backend: &str, count: u32) {
    let Some(target) = run.target_of(backend) else { return };
    let lock = run.bench.lock(&format!("scale-held-{count}"));
    let measuring = held(target, &lock, count);
    if let Some((cost, one_more_us)) =
        run.part(&format!("{count} locks of {backend}"), PATIENCE, measuring).await
    {
        let figures = [
            (ACQUIRE, "us", cost.acquire_all.as_secs_f64() * 1e6 / f64::from(count)),
            (BYTES, "B", cost.bytes_per_lock),
            ("renewal_cpu", "%", cost.client_percent + cost.servers_percent.unwrap_or(0.0)),
            (ONE_MORE, "us", one_more_us),
        ];
        for (metric, unit, value) in figures {
            run.add(Figure::new(backend, metric, unit, value).at(count));
        }
    }
}

/// What many held locks cost, and the time of acquire + release of one more name meanwhile.
async fn held(target: &Target, lock: &str, count: u32) -> Outcome<(HeldLocksCost, f64)> {
    let task = Task::Many { count: count as usize, watch: RENEWAL, servers: target.processes() };
    let worker = WorkerHandle::start_one(Job::new(target.url(), lock, 0, task)).await?;
    let cost = worker.cost(WORKER_PATIENCE).await?;
    let one_more = alone_us(target.url(), &format!("{lock}-one-more"), ONE_MORE_SPAN).await?;
    // Locks that are left would be renewed, or end, while the next part is measured.
    worker.send(Order::Go).await?;
    worker.events(WORKER_PATIENCE).await?;
    Ok((cost, one_more))
}

const BACKENDS: [&str; 3] = ["redis", "redlock", "zk"];
const BETWEEN_GRANTS: &str = "between_grants";
const ACQUIRE: &str = "acquire_each";
const BYTES: &str = "bytes_per_lock";
const ONE_MORE: &str = "one_more";
/// What must not grow, with names for people.
const JUDGED: [(&str, &str); 4] = [
    (BETWEEN_GRANTS, "between grants"),
    (ACQUIRE, "to acquire"),
    (BYTES, "memory"),
    (ONE_MORE, "one more name"),
];
const SPAN: Duration = Duration::from_secs(1);
/// More than a third of the default ttl, so that all locks are renewed once.
const RENEWAL: Duration = Duration::from_secs(11);
const ONE_MORE_SPAN: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(330);
/// A worker that is stuck says so before the part is.
const WORKER_PATIENCE: Duration = Duration::from_secs(160);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::claim::judged;

    #[test]
    fn linear_growth_decides() {
        let by = |grow: fn(&str, f64) -> f64| {
            let mut figures = Vec::new();
            for (backend, (metric, _)) in
                BACKENDS.into_iter().flat_map(|backend| JUDGED.map(|of| (backend, of)))
            {
                let of = |x: f64| Figure::new(backend, metric, "us", grow(backend, x)).at(x);
                figures.extend([1.0, 100.0, 10_000.0].map(of));
            }
            judged(&THIS, figures).0
        };
        assert_eq!(by(|_, _| 7.0), Verdict::Holds);
        assert_eq!(by(|_, x| x), Verdict::DoesNotHold);
        let depends = Verdict::DependsOn("the backend".into());
        assert_eq!(by(|backend, x| if backend == "zk" { x } else { 7.0 }), depends);
    }
}
