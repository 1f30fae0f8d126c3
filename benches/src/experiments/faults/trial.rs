//! One fault on one backend: a process holds the lock, two others try to acquire it, and the fault happens.

use std::time::Duration;

use lock_testkit::now_ns;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::sleep;

use super::crew::{Crew, HOLDER};
use super::injector::{BEYOND, HOLDERS_ROUTE, Hit, Injector, Lasts, OTHERS_ROUTE, hits_leader};
use super::live_history::LiveHistory;
use super::record::{FaultRecord, RecordHead};
use crate::data::{BackendName, Data, Defect, Effect, Failure, Fault, Flag, Hits, Outcome, Site};
use crate::rig::{ClientOrder, ClientProgram, ClientRole, ClientsTask, FaultServers, Job, Task, stuck, url};

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
        if is_of_leader(fault, site) {
            let leader = leader(&servers).await?;
            for (server, proxy) in servers.proxies_of(HOLDERS_ROUTE).iter().enumerate() {
                // So the holder connects to the leader.
                proxy.refuse(server != leader);
            }
        }
        let ran = self.run_on(fault, Some((site, &servers))).await;
        // After a failure nobody knows in what state it is.
        if is_ensemble && ran.is_ok() {
            self.ensemble = Some(servers);
        }
        ran
    }

    async fn run_on(&self, fault: Fault, site: Option<(Site, &FaultServers)>) -> Outcome<FaultRecord> {
        let (lease, is_late) = (lease(fault, self.backend), fault.row().effect == Effect::DelayReply);
        let lock = format!("fault-{fault}");
        let history = LiveHistory::in_memory(&lock, self.broken == Some(Defect::NoFencingCheck));
        let jobs = self.jobs(site.map(|(_, servers)| servers), &lock, lease);
        let crew = Crew::start(jobs, history).await?;
        let mut dice = StdRng::seed_from_u64(self.seed ^ (fault as u64) << 32);
        let waiters = crew.waiters();
        let mut injector = Injector {
            crew,
            site,
            lease,
            lock,
            replacement: None,
            recovery: Duration::ZERO,
            printed_since_ns: None,
            injected: Vec::new(),
            complaints: Vec::new(),
        };

        let mut from_ns = now_ns();
        injector.prepare(fault).await?;
        if is_late {
            injector.delay_reply().await?;
        } else {
            injector.crew.order(ClientOrder::Hold).await;
        }
        if !injector.crew.granted(CALM_PATIENCE).await {
            return Err(Failure::new(format!("the holder did not get the lock{}", stuck::see_logs())));
        }
        injector.crew.order(ClientOrder::Contend).await;
        if !is_late {
            sleep(CALM + CALM.mul_f64(dice.random_range(0.0..1.0))).await;
            from_ns = now_ns();
        }
        let hit = hit(fault, site, lease, &mut dice).await?;
        let effect = injector.inject(&hit).await?;
        // A leader that was paused leads until its next tick.
        sleep(if self.backend == BackendName::Zk { TICKS } else { Duration::ZERO }).await;
        // An election that fails takes ten seconds (`initLimit`), whatever the clients do: it is a part of the fault.
        injector.all_serve().await?;
        let until_ns = now_ns();

        sleep(WATCH).await;
        // The holder may still be cut off from some servers.
        injector.heal();
        let release_ns = now_ns();
        injector.crew.order(ClientOrder::Release).await;
        let all_served = injector.crew.granted_to_all(release_ns, lease + PATIENCE).await;
        let end_ns = now_ns();
        let stuck = if all_served { None } else { Some(stuck::see_logs()) };
        let complaints = injector.crew.end(lease + PATIENCE).await;
        if !complaints.is_empty() {
            return Err(Failure::new(complaints.join("; ") + &stuck::see_logs()));
        }
        let stopped = injector.injected.iter().filter(|_| fault.row().effect == Effect::Stop);
        let head = RecordHead {
            fault,
            backend: self.backend,
            expectation: fault.name_on(self.backend),
            servers: site.and_then(|(site, _)| (site == Site::Sentinel).then(|| "with sentinels".into())),
            seed: self.seed,
            broken: self.broken,
            lease,
            from_ns,
            until_ns,
            end_ns,
            stopped: stopped.take(1).map(|stopped| (HOLDER, stopped.until_ns)).collect(),
            effect,
            waiters,
            all_served,
            stuck,
        };
        Ok(FaultRecord { head, history: injector.crew.history().take()? })
    }

    /// The holder and the others: processes of their own, but for the memory backend.
    fn jobs(&self, servers: Option<&FaultServers>, lock: &str, lease: Duration) -> Vec<Job> {
        use ClientRole::{Holder, Poller, Waiter};
        let job = |url: &str, process, roles: &[ClientRole], lease| {
            let program = ClientProgram::Ordered(roles.to_vec());
            let task = ClientsTask { program, lease, broken: self.broken };
            Job::new(url, lock, process, Task::Clients(task))
        };
        let Some(servers) = servers else {
            let url = url::with_option("memory://", "ttl", &format!("{}ms", lease.as_millis()));
            return vec![job(&url, HOLDER, &[Holder, Waiter, Poller], lease)];
        };
        let others_lease = match self.broken {
            // A master may vote after the longest ttl that a client knows of: that of others should be at least this one.
            Some(Defect::NoQuarantine) if self.backend == BackendName::Redlock => SHORT_LEASE,
            _ => lease,
        };
        let others = servers.url_of(OTHERS_ROUTE, others_lease);
        vec![
            job(&servers.url_of(HOLDERS_ROUTE, lease), HOLDER, &[Holder], lease),
            job(&others, HOLDER + 1, &[Waiter], others_lease),
            job(&others, HOLDER + 2, &[Poller], others_lease),
        ]
    }
}

/// Whom the fault hits, and for how long.
async fn hit(
    fault: Fault,
    site: Option<(Site, &FaultServers)>,
    lease: Duration,
    dice: &mut StdRng,
) -> Outcome<Hit> {
    let row = fault.row();
    let lasts = match row.effect {
        Effect::Stop if site.is_some() => Lasts::UntilWritten,
        Effect::Kill | Effect::CutOff(_) | Effect::DelayReply => Lasts::UntilGranted,
        Effect::SwallowReplies => Lasts::For(lease),
        Effect::Restart(Data::Lost) => Lasts::For(Duration::ZERO),
        Effect::Restart(Data::Kept) | Effect::FailOver(_) => Lasts::For(DOWN),
        _ => Lasts::For(lease + BEYOND),
    };
    let servers = match site {
        Some((site, servers)) => hit_servers(fault, site, servers, dice).await?,
        None => Vec::new(),
    };
    let directions =
        if let Effect::CutOff(directions) = row.effect { directions.to_vec() } else { Vec::new() };
    let (clients, also_killed) = (vec![0], Vec::new());
    Ok(Hit { fault, lasts, servers, clients, directions, variant: 0, rounds: ROUNDS, also_killed })
}

async fn hit_servers(
    fault: Fault,
    site: Site,
    servers: &FaultServers,
    dice: &mut StdRng,
) -> Outcome<Vec<usize>> {
    let all = servers.len();
    let first = dice.random_range(0..all.max(1));
    let some = |count| (0..count).map(|next| (first + next) % all).collect();
    Ok(match fault.row().hits {
        Hits::Leader if is_of_leader(fault, site) => {
            let leader = leader(servers).await?;
            match servers.proxy_of(HOLDERS_ROUTE, leader).connections() {
                0 => return Err(Failure::new("the holder is not connected to the leader")),
                _ => vec![leader],
            }
        }
        Hits::Needed if site == Site::Redlock => vec![2],
        // The one that the holder uses.
        Hits::Minority | Hits::Needed if servers.elects() => {
            let used = servers.proxies_of(HOLDERS_ROUTE).iter().position(|proxy| proxy.connections() > 0);
            vec![used.ok_or_else(|| Failure::new("the holder is not connected"))?]
        }
        Hits::Minority => some(servers.most_failing()),
        Hits::Needed => vec![first],
        Hits::Majority => some(all / 2 + 1),
        _ => (0..all).collect(),
    })
}

fn is_of_leader(fault: Fault, site: Site) -> bool {
    matches!(site, Site::Zk | Site::LinkedZk | Site::Etcd | Site::LinkedEtcd)
        && hits_leader(fault.row().effect)
}

async fn leader(servers: &FaultServers) -> Outcome<usize> {
    servers.leader().await.ok_or_else(|| Failure::new("there is no leader"))
}

/// The servers of a fault, unless the backend has none.
fn site(fault: Fault, backend: BackendName) -> Option<Site> {
    Some(match (backend, fault.row().effect) {
        (BackendName::Memory | BackendName::Sqlite | BackendName::S3, _) => return None,
        (BackendName::Redis, Effect::FailOver(_)) => Site::Sentinel,
        (BackendName::Redis, _) => Site::Redis,
        (BackendName::Redlock, _) => Site::Redlock,
        (BackendName::Zk, Effect::CutLeaderOff) => Site::LinkedZk,
        (BackendName::Zk, _) => Site::Zk,
        (BackendName::Postgres, Effect::FailOver(Data::Lost)) => Site::Standby,
        (BackendName::Postgres, Effect::FailOver(Data::Kept)) => Site::SynchronousStandby,
        (BackendName::Postgres, Effect::FillDisk) => Site::SmallDisk,
        (BackendName::Postgres, _) => Site::Postgres,
        (BackendName::Etcd, Effect::CutLeaderOff) => Site::LinkedEtcd,
        (BackendName::Etcd, _) => Site::Etcd,
        (BackendName::Mysql, Effect::FailOver(Data::Lost)) => Site::MysqlReplica,
        (BackendName::Mysql, Effect::FailOver(Data::Kept)) => Site::MysqlSemiSynchronous,
        (BackendName::Mysql, Effect::FillDisk) => Site::MysqlSmallDisk,
        (BackendName::Mysql, _) => Site::Mysql,
    })
}

fn lease(fault: Fault, backend: BackendName) -> Duration {
    match backend {
        BackendName::Zk => ZK_LEASE,
        _ if fault.row().is(Flag::HasLongLease) => LONG_LEASE,
        _ => TTL,
    }
}

const TTL: Duration = Duration::from_secs(2);
const LONG_LEASE: Duration = Duration::from_secs(6);
const SHORT_LEASE: Duration = Duration::from_millis(500);
const ZK_LEASE: Duration = Duration::from_secs(3);
/// How long restarted servers are away.
const DOWN: Duration = Duration::from_millis(500);
/// How often each server restarts: long enough that a majority has restarted just now for longer than a lease.
const ROUNDS: usize = 2;
/// More than two ticks of an ensemble.
const TICKS: Duration = Duration::from_millis(500);
const CALM: Duration = Duration::from_millis(300);
const CALM_PATIENCE: Duration = Duration::from_secs(15);
/// How long the holder goes on after the fault.
const WATCH: Duration = Duration::from_millis(1500);
/// How much longer than a lease it may take until all clients were served: longer than any limit of an outage.
const PATIENCE: Duration = Duration::from_secs(15);
