//! A Redis master whose replica receives nothing.

use std::time::Duration;

use lock_testkit::RedisSentinel;
use polylock::Locks;
use tokio::time::timeout;

use crate::data::Outcome;
use crate::experiments::faults::cut_off_replica;
use crate::rig::url;

/// What is to keep a master from granting a lock that its replica does not receive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReplicaGuard {
    /// The option `wait_replicas` of the URL.
    Wait,
    /// The setting `min-replicas-to-write` of the master.
    MinReplicas,
}

/// Whether a lock is granted that the replica does not receive.
pub(crate) async fn is_granted_alone(guard: ReplicaGuard) -> Outcome<bool> {
    let sentinel = RedisSentinel::start().await?;
    let mut url = sentinel.url();
    match guard {
        ReplicaGuard::Wait => {
            // On a busy machine a sound replica may take longer than the default of 100 ms.
            for (name, value) in [("wait_replicas", "1"), ("wait_replicas_timeout", "1s")] {
                url = url::with_option(&url, name, value);
            }
        }
        ReplicaGuard::MinReplicas => {
            let order = ["CONFIG", "SET", "min-replicas-to-write", "1"];
            sentinel.servers()[0].command(&order).await?;
        }
    }
    let locks = Locks::connect(&url).await?;
    let mutex = locks.mutex("failover");
    // The servers grant it while the replica is there.
    mutex.acquire().await?.release().await?;
    cut_off_replica(&sentinel).await?;
    // An error and a wait without end are both no grant.
    let asked = mutex.try_acquire_for(ASK).await;
    let granted = matches!(asked, Ok(Some(_)));
    drop(asked);
    // While the servers refuse writes an orderly end takes long.
    let _ = timeout(ASK, locks.close()).await;
    Ok(granted)
}

const ASK: Duration = Duration::from_secs(3);
