//! Servers that wait for their disks, and the same that do not.

use std::time::Duration;

use lock_testkit::{RedisServer, ZooKeeper};
use tokio::time::timeout;

use super::teams::alone_us;
use crate::data::{Failure, Figure, Outcome};
use crate::experiments::claim::Measuring;

/// Adds the time of one client of servers that do and do not wait for the disk, as this metric.
pub(crate) async fn add_durable(run: &mut Measuring<'_>, metric: &str) {
    for policy in ["no", "everysec", "always"] {
        let subject = format!("redis appendfsync={policy}");
        let measuring = async {
            let options = RedisServer::builder().appendonly(true).config("appendfsync", policy);
            let server = options.start().await?;
            alone(&server.url(), &run.bench.lock("durable")).await
        };
        let measured = measuring.await;
        add_alone(run, &subject, metric, measured);
    }
    for forced in [false, true] {
        let sync = if forced { "forced sync" } else { "no forced sync" };
        let lock = run.bench.lock("durable");
        let one = async {
            let server = ZooKeeper::builder().for_load(true).force_sync(forced).start().await?;
            alone(&server.url(), &lock).await
        };
        let measured = one.await;
        add_alone(run, &format!("zk one server, {sync}"), metric, measured);
        let three = async {
            let ensemble = ZooKeeper::builder().for_load(true).force_sync(forced).start_ensemble(3).await?;
            alone(&ensemble.url(), &lock).await
        };
        let measured = three.await;
        add_alone(run, &format!("zk three servers, {sync}"), metric, measured);
    }
}

fn add_alone(run: &mut Measuring<'_>, subject: &str, metric: &str, measured: Outcome<f64>) {
    match measured {
        Ok(us) => run.add(Figure::new(subject, metric, "us", us)),
        Err(failure) => run.leave_out(subject, failure),
    }
}

/// One client that acquires and releases a free lock.
async fn alone(url: &str, lock: &str) -> Outcome<f64> {
    timeout(PATIENCE, alone_us(url, lock, ALONE))
        .await
        .unwrap_or_else(|_| Err(Failure::new(format!("stuck for {PATIENCE:?}"))))
}

const ALONE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(60);
