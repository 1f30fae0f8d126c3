//! Counts the requests that a grant costs the servers, by a proxy before each of them.

use lock_testkit::history::Event;

use super::contention::{grants, jobs, let_contend};
use crate::experiments::prelude::*;

/// What each grant cost the servers.
#[derive(Debug)]
pub(crate) struct RequestsPerGrant {
    pub(crate) requests: f64,
    /// Pushes and watch events.
    pub(crate) notifications: f64,
    pub(crate) events: Vec<Event>,
}

impl RequestsPerGrant {
    /// Divides what was counted by the grants in `span`. Fails when there were none.
    pub(crate) fn of(counts: Counts, events: Vec<Event>, span: Window) -> Outcome<Self> {
        let grants = grants(&events).iter().filter(|grant| span.contains(grant.begin_ns)).count();
        if grants == 0 {
            return Err(Failure::new("no lock was granted while requests were counted"));
        }
        let each = |count: u64| count as f64 / grants as f64;
        Ok(Self { requests: each(counts.requests), notifications: each(counts.notifications), events })
    }
}

/// Counts while processes contend.
pub(crate) async fn count_requests(
    bench: &Bench,
    backend: BackendName,
    url: &str,
    lock: &str,
) -> Outcome<RequestsPerGrant> {
    let counters = Proxies::start(backend, url).await?;
    let workers = WorkerHandle::start_all(jobs(bench, &counters.url(url), lock)).await?;
    let window = Window::after(bench.plan.counted, bench.plan.warm_up);
    let counting = async {
        window.begins().await;
        let before = counters.counts();
        window.ends().await;
        counters.counts().since(before)
    };
    let (counts, events) = tokio::join!(counting, let_contend(&workers, window));
    RequestsPerGrant::of(counts, events?, window)
}
