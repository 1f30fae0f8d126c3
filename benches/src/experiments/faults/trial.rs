//! One fault on one backend: a process holds the lock, two others try to acquire it, and the fault happens.

use std::time::Duration;

use lock_testkit::now_ns;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::sleep;

use super::crew::{Crew, HOLDER, HOLDERS_ROUTE, OTHERS_ROUTE};
use super::inject::{self, Stage};
use super::record::{FaultRecord, RecordHead};
use super::store::FencedStore;
use crate::data::{BackendName, Data, Defect, Effect, Failure, Fault, Outcome, Site};
use crate::rig::{ClientRole, FaultOrder, FaultServers, FaultTask, Job, Task, stuck, url};

pub(super) struct Trials {
    backend: BackendName,
    seed: u64,
    broken: Option<Defect>,
    /// An ensemble takes seconds to start, and is used for all faults.
    ensemble: Option<FaultServers>,
}

impl Trials {
    /// Nothing is started yet.
    pub(super) const fn new(backend: BackendName, seed: u64, broken: Option<Defect>) -> Self {
        Self { backend, seed, broken, ensemble: None }
    }

    pub(super) async fn run(&mut self, fault: Fault) -> Outcome<FaultRecord> {
        let Some(site) = site(fault, self.backend) else { return self.run_on(fault, None).await };
        let is_ensemble = site == Site::Zk;
        let data = if fault.row().effect == Effect::Restart(Data::Lost) { Data::Lost } else { Data::Kept };
        let mut servers = match self.ensemble.take_if(|_| is_ensemble) {
            Some(ensemble) => ensemble,
            None => FaultServers::start(site, data).await?,
        };
        servers.new_routes(2).await?;
        inject::before_clients(fault, self.backend, &servers).await?;
        let ran = self.run_on(fault, Some(&servers)).await;
        // After a failure nobody knows in what state it is.
        if is_ensemble && ran.is_ok() {
            self.ensemble = Some(servers);
        }
        ran
    }

    async fn run_on(&self, fault: Fault, servers: Option<&FaultServers>) -> Outcome<FaultRecord> {
        let lease = lease(fault, self.backend);
        let lock = format!("fault-{fault}");
        let store = FencedStore::new(self.broken != Some(Defect::NoFencingCheck));
        let crew = Crew::start(self.jobs(servers, &lock, lease), store).await?;
        let dice = StdRng::seed_from_u64(self.seed ^ (fault as u64) << 32);
        let waiters = crew.waiters();
        let mut stage =
            Stage { fault, backend: self.backend, servers, crew, lock, lease, dice, stopped: Vec::new() };

        let mut from_ns = now_ns();
        inject::before(&stage).await?;
        if !stage.crew.granted(CALM_PATIENCE).await {
            return Err(Failure::new(format!("the holder did not get the lock{}", stuck::see_logs())));
        }
        stage.crew.order(FaultOrder::Contend).await;
        if fault != Fault::ReplyLate {
            sleep(CALM + stage.dice_up_to(CALM)).await;
            from_ns = now_ns();
        }
        let effect = inject::inject(&mut stage).await?;
        let until_ns = now_ns();

        sleep(WATCH).await;
        // The holder may still be cut off from some servers.
        stage.heal();
        let release_ns = now_ns();
        stage.crew.order(FaultOrder::Release).await;
        let all_served = stage.crew.granted_to_all(release_ns, lease + PATIENCE).await;
        let end_ns = now_ns();
        let stuck = if all_served { None } else { Some(stuck::see_logs()) };
        let Stage { crew, stopped, .. } = stage;
        let history = crew.end().await?;
        let head = RecordHead {
            fault,
            backend: self.backend,
            expectation: fault.name_on(self.backend),
            servers: self.servers(fault),
            seed: self.seed,
            broken: self.broken,
            lease,
            from_ns,
            until_ns,
            end_ns,
            stopped,
            effect,
            waiters,
            all_served,
            stuck,
        };
        Ok(FaultRecord { head, history })
    }

    /// The holder and the others: processes of their own, but for the memory backend.
    fn jobs(&self, servers: Option<&FaultServers>, lock: &str, lease: Duration) -> Vec<Job> {
        use ClientRole::{Holder, Poller, Waiter};
        let job = |url: &str, process, roles: &[ClientRole]| {
            let task = FaultTask { roles: roles.to_vec(), broken: self.broken };
            Job::new(url, lock, process, Task::Fault(task))
        };
        let Some(servers) = servers else {
            let url = url::with_option("memory://", "ttl", &format!("{}ms", lease.as_millis()));
            return vec![job(&url, HOLDER, &[Holder, Waiter, Poller])];
        };
        let others_lease = match self.broken {
            // A master may vote after the longest ttl that a client knows of: that of others should be at least this one.
            Some(Defect::NoQuarantine) if self.backend == BackendName::Redlock => SHORT_LEASE,
            _ => lease,
        };
        let others = servers.url_of(OTHERS_ROUTE, others_lease);
        vec![
            job(&servers.url_of(HOLDERS_ROUTE, lease), HOLDER, &[Holder]),
            job(&others, HOLDER + 1, &[Waiter]),
            job(&others, HOLDER + 2, &[Poller]),
        ]
    }

    fn servers(&self, fault: Fault) -> Option<String> {
        let has_sentinels = self.backend == BackendName::Redis && fault == Fault::Failover;
        has_sentinels.then(|| "with sentinels".into())
    }
}

/// The servers of a fault, unless the backend has none.
fn site(fault: Fault, backend: BackendName) -> Option<Site> {
    Some(match (backend, fault.row().effect) {
        (BackendName::Memory, _) => return None,
        (BackendName::Redis, Effect::FailOver(_)) => Site::Sentinel,
        (BackendName::Redis, _) => Site::Redis,
        (BackendName::Redlock, _) => Site::Redlock,
        (BackendName::Zk, Effect::CutLeaderOff) => Site::LinkedZk,
        (BackendName::Zk, _) => Site::Zk,
        (BackendName::Postgres, Effect::FailOver(Data::Lost)) => Site::Standby,
        (BackendName::Postgres, Effect::FailOver(Data::Kept)) => Site::SynchronousStandby,
        (BackendName::Postgres, Effect::FillDisk) => Site::SmallDisk,
        (BackendName::Postgres, _) => Site::Postgres,
    })
}

fn lease(fault: Fault, backend: BackendName) -> Duration {
    match backend {
        BackendName::Zk => ZK_LEASE,
        _ if fault.row().has_long_lease => LONG_LEASE,
        _ => TTL,
    }
}

const TTL: Duration = Duration::from_secs(2);
const LONG_LEASE: Duration = Duration::from_secs(6);
const SHORT_LEASE: Duration = Duration::from_millis(500);
const ZK_LEASE: Duration = Duration::from_secs(3);
const CALM: Duration = Duration::from_millis(300);
const CALM_PATIENCE: Duration = Duration::from_secs(15);
/// How long the holder goes on after the fault.
const WATCH: Duration = Duration::from_millis(1500);
/// How much longer than a lease it may take until all clients were served: longer than any limit of an outage.
const PATIENCE: Duration = Duration::from_secs(15);
