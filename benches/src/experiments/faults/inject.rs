//! What each fault does.

use std::time::Duration;

use futures_util::future::join_all;
use lock_testkit::proxy::{Direction, Then};
use lock_testkit::{RedisSentinel, ZkEnsemble, ZooKeeper, now_ns};
use rand::Rng;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::crew::{Crew, HOLDER, HOLDERS_ROUTE, OTHERS_ROUTE};
use super::evidence::Evidence;
use crate::data::{BackendName, Data, Failure, Fault, Outcome};
use crate::rig::backends::zk;
use crate::rig::{FaultOrder, FaultServers, Outage};

pub(super) struct Stage<'a> {
    pub(super) fault: Fault,
    pub(super) backend: BackendName,
    pub(super) servers: Option<&'a FaultServers>,
    pub(super) crew: Crew,
    pub(super) lock: String,
    pub(super) lease: Duration,
    pub(super) dice: StdRng,
    pub(super) stopped: Vec<(u32, u64)>,
}

/// What has to happen before the clients connect.
pub(super) async fn before_clients(
    fault: Fault,
    backend: BackendName,
    servers: &FaultServers,
) -> Outcome<()> {
    if is_of_leader(fault, backend) {
        let leader = leader(servers).await?;
        for (server, proxy) in servers.proxies_of(HOLDERS_ROUTE).iter().enumerate() {
            // So the holder connects to the leader.
            proxy.refuse(server != leader);
        }
    }
    Ok(())
}

/// What has to happen before the holder has the lock. Gives the order to acquire it.
pub(super) async fn before(stage: &Stage<'_>) -> Outcome<()> {
    match stage.fault {
        Fault::RestartWithoutData | Fault::Flushall if stage.backend == BackendName::Redlock => {
            // So the lock is granted by the first three masters alone.
            let others: Vec<usize> = (3..stage.servers()?.len()).collect();
            stage.servers()?.begin(&cut_off(BOTH), &others).await?;
        }
        Fault::Failover if stage.backend == BackendName::Redis => {
            cut_off_replica(stage.servers()?.sentinel()?).await?;
        }
        Fault::Failover if stage.backend == BackendName::Postgres => {
            stage.servers()?.pair()?.detach().await?;
        }
        Fault::ReplyLate => {
            let proxies = stage.servers()?.proxies_of(HOLDERS_ROUTE);
            proxies.iter().for_each(|proxy| proxy.hold(Direction::ToClient));
            stage.crew.order(FaultOrder::Hold).await;
            sleep(stage.lease * 3 / 10).await;
            let is_zk = stage.backend == BackendName::Zk;
            for proxy in proxies {
                // A ZooKeeper client needs more than one reply; the others would renew the lock.
                proxy.black_hole(Direction::ToServer, !is_zk);
                proxy.deliver();
            }
            if is_zk && stage.crew.granted(stage.lease).await {
                proxies.iter().for_each(|proxy| proxy.black_hole(Direction::ToServer, true));
            }
            return Ok(());
        }
        fault if is_of_leader(fault, stage.backend) => stage.heal(),
        _ => {}
    }
    stage.crew.order(FaultOrder::Hold).await;
    Ok(())
}

/// Takes care that the replica gets no more writes: it cannot log in again.
pub(crate) async fn cut_off_replica(sentinel: &RedisSentinel) -> Outcome<()> {
    let [master, replica] = sentinel.servers() else {
        return Err(Failure::new("there is not one replica"));
    };
    replica.command(&["CONFIG", "SET", "masteruser", "nobody"]).await?;
    replica.command(&["CONFIG", "SET", "masterauth", "nothing"]).await?;
    master.command(&["CLIENT", "KILL", "TYPE", "replica"]).await?;
    Ok(())
}

/// Injects the fault, and ends it. Returns what shows that it happened.
pub(super) async fn inject(stage: &mut Stage<'_>) -> Outcome<Evidence> {
    let beyond = stage.lease + BEYOND;
    let effect = match stage.fault {
        Fault::ClientPaused => {
            let at_ns = stage.crew.pause_holder(LONGEST).await?;
            stage.stopped.push((HOLDER, at_ns));
            let effect = match stage.backend {
                BackendName::Memory => {
                    // Some threads stop later than others.
                    sleep(MOMENT).await;
                    let stopped_ns = now_ns();
                    sleep(beyond).await;
                    Evidence::seen(stage.crew.was_silent_since(stopped_ns), "processes stopped")
                }
                // The holder continues in the middle of a hold, whose writes a store compares its late one with.
                _ => {
                    let is_other = |client| client != (HOLDER, 0);
                    Evidence::seen(
                        stage.crew.wrote(is_other, at_ns, beyond + LONGEST).await,
                        "writes of another holder",
                    )
                }
            };
            stage.crew.continue_holder(LONGEST).await;
            effect
        }
        Fault::ClientKilled => {
            match stage.backend {
                BackendName::Memory => stage.crew.abort_holder().await,
                _ => stage.crew.kill_holder(),
            }
            stage.another_holds().await
        }
        Fault::ClientCutOff => stage.cut_off(BOTH).await?,
        Fault::RequestsLost => stage.cut_off(&[Direction::ToServer]).await?,
        Fault::AnswersLost => stage.cut_off(&[Direction::ToClient]).await?,
        Fault::ReplyLate => {
            // The holder is cut off already.
            let effect = stage.another_holds().await;
            stage.heal();
            effect
        }
        Fault::RepliesSwallowed => {
            for route in [HOLDERS_ROUTE, OTHERS_ROUTE] {
                for proxy in stage.servers()?.proxies_of(route) {
                    (1..=SWALLOWED).for_each(|nth| proxy.swallow_reply(nth, Then::Reset));
                }
            }
            sleep(stage.lease).await;
            stage.heal();
            let swallowed = stage.servers()?.proxies_of(HOLDERS_ROUTE).iter().map(|proxy| proxy.fired());
            Evidence::counted(swallowed.sum(), "replies to the holder swallowed")
        }
        Fault::ConnectionsReset => {
            let of_holder =
                stage.servers()?.proxies_of(HOLDERS_ROUTE).iter().map(|proxy| proxy.connections());
            let effect =
                Evidence::counted(of_holder.sum::<usize>() as u64, "connections of the holder reset");
            for route in [HOLDERS_ROUTE, OTHERS_ROUTE] {
                stage.servers()?.proxies_of(route).iter().for_each(|proxy| proxy.rst());
            }
            effect
        }
        Fault::ConnectionsEnded => {
            Evidence::counted(stage.servers()?.end_sessions().await?, "sessions ended")
        }
        Fault::NoConnectionLeft => {
            let taken = stage.servers()?.take_connections().await?;
            sleep(beyond).await;
            Evidence::seen(taken.are_all().await?, "servers without a connection for a lock")
        }
        Fault::DiskFull => {
            let is_full = stage.servers()?.fill_disk(true).await?;
            sleep(beyond).await;
            stage.servers()?.fill_disk(false).await?;
            Evidence::seen(is_full, "disks full")
        }
        Fault::ServerPaused => {
            let servers = stage.minority()?;
            stage.pause(&servers, beyond).await?
        }
        Fault::MajorityPaused => {
            let (all, most) = (stage.servers()?.len(), stage.servers()?.len() / 2 + 1);
            let first = stage.dice.random_range(0..all);
            let servers: Vec<usize> = (0..most).map(|next| (first + next) % all).collect();
            stage.pause(&servers, beyond).await?
        }
        Fault::RestartWithData => {
            let servers = stage.minority()?;
            restart(stage.servers()?, &servers, Data::Kept, DOWN).await?
        }
        Fault::RollingRestart => stage.rolling_restart().await?,
        Fault::RestartWithoutData => {
            let server = if stage.backend == BackendName::Redlock { 2 } else { stage.minority()?[0] };
            restart(stage.servers()?, &[server], Data::Lost, Duration::ZERO).await?
        }
        Fault::LeaderCutOff => stage.leader_cut_off().await?,
        Fault::Failover if stage.backend == BackendName::Zk => {
            let leader = stage.leader_of_holder().await?;
            restart(stage.servers()?, &[leader], Data::Kept, DOWN).await?
        }
        Fault::Failover | Fault::SynchronousFailover if stage.backend == BackendName::Postgres => {
            stage.promote_standby().await?
        }
        Fault::Failover | Fault::SynchronousFailover => {
            let sentinel = stage.servers()?.sentinel()?;
            let (order, at_ns) = (["SENTINEL", "FAILOVER", RedisSentinel::NAME], now_ns());
            sentinel.servers()[0].kill();
            for _ in 0..FAILOVER_ORDERS {
                // Sentinels abandon some failovers. One that goes on refuses the order.
                sentinel.sentinels()[0].command(&order).await?;
                if stage.crew.granted_to_another(at_ns, FAILOVER_ORDER).await {
                    break;
                }
            }
            sleep(MOMENT).await;
            let old = sentinel.servers()[0].port();
            let promoted = sentinel.master().await.is_some_and(|master| master.port() != old);
            Evidence::seen(promoted, "replicas promoted")
        }
        Fault::KeyEndedOnMinority => stage.end_keys(2).await?,
        Fault::KeyEnded => match stage.backend {
            BackendName::Zk => stage.delete_node().await?,
            BackendName::Redlock => stage.end_keys(3).await?,
            BackendName::Postgres => stage.end_lease().await?,
            _ => stage.end_keys(1).await?,
        },
        Fault::Flushall => {
            let server = if stage.backend == BackendName::Redlock { 2 } else { 0 };
            let server = stage.servers()?.redis(server);
            let had = server.command(&["EXISTS", &stage.key()]).await?.int().unwrap_or(0);
            server.command(&["FLUSHALL"]).await?;
            Evidence::seen(had > 0, "keys of the lock deleted")
        }
        fault => return Err(Failure::new(format!("{fault} is not in the table"))),
    };
    if let Some(ensemble) = stage.servers.and_then(FaultServers::ensemble) {
        // A leader that was paused leads until its next tick.
        sleep(TICKS).await;
        // An election that fails takes ten seconds (`initLimit`), whatever the clients do: it is a part of the fault.
        stage.servers()?.until("all servers serve", async || serves(ensemble).await).await?;
    }
    Ok(effect)
}

/// Whether the fault hits the leader of an ensemble, with a holder that uses this leader.
fn is_of_leader(fault: Fault, backend: BackendName) -> bool {
    backend == BackendName::Zk && matches!(fault, Fault::LeaderCutOff | Fault::Failover)
}

async fn leader(servers: &FaultServers) -> Outcome<usize> {
    servers.leader().await.ok_or_else(|| Failure::new("there is no leader"))
}

/// Kills servers by SIGKILL and restarts them after this time, with or without their data.
async fn restart(all: &FaultServers, servers: &[usize], data: Data, down: Duration) -> Outcome<Evidence> {
    let mut before = Vec::new();
    for &server in servers {
        all.mark_data(server).await?;
        before.push(all.pid(server));
    }
    all.begin(&Outage::Killed, servers).await?;
    if let (Some(ensemble), Data::Lost) = (all.ensemble(), data) {
        servers.iter().try_for_each(|&server| ensemble.nodes()[server].remove_data())?;
    }
    sleep(down).await;
    all.end(&Outage::Killed, servers).await?;
    let mut restarted = 0;
    for (&server, pid) in servers.iter().zip(before) {
        let has_data = all.has_marked_data(server).await?.unwrap_or(data == Data::Kept);
        restarted += u64::from(all.pid(server) != pid && has_data == (data == Data::Kept));
    }
    Ok(Evidence::counted(
        restarted,
        match data {
            Data::Kept => "servers restarted with their data",
            Data::Lost => "servers restarted without their data",
        },
    ))
}

/// That the holder is cut off from servers.
fn cut_off(directions: &[Direction]) -> Outage {
    Outage::CutOff { route: HOLDERS_ROUTE, directions: directions.to_vec() }
}

async fn serves(ensemble: &ZkEnsemble) -> Outcome<bool> {
    for node in ensemble.nodes() {
        if node.mode().await.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a server answers that it does not lead. A server that is elected without followers answers so, too.
async fn denies_leading(node: &ZooKeeper) -> bool {
    let answer = node.four_letter("srvr").await.unwrap_or_default();
    !answer.is_empty() && !answer.contains("Mode: leader")
}

impl<'a> Stage<'a> {
    pub(super) fn dice_up_to(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.dice.random_range(0.0..1.0))
    }

    fn servers(&self) -> Outcome<&'a FaultServers> {
        self.servers.ok_or_else(|| Failure::new("there are no servers"))
    }

    /// The servers that may fail: of an ensemble the one that the holder uses.
    fn minority(&mut self) -> Outcome<Vec<usize>> {
        let all = self.servers()?;
        if all.ensemble().is_some() {
            let proxies = all.proxies_of(HOLDERS_ROUTE);
            let used = proxies.iter().position(|proxy| proxy.connections() > 0);
            return Ok(vec![used.ok_or_else(|| Failure::new("the holder is not connected"))?]);
        }
        let first = self.dice.random_range(0..all.len());
        Ok((0..all.most_failing()).map(|next| (first + next) % all.len()).collect())
    }

    /// Waits until another client has the lock, and for a moment more. The verdict shows it when none gets it.
    async fn another_holds(&self) -> Evidence {
        let granted = self.crew.granted_to_another(now_ns(), self.lease + LONGEST).await;
        sleep(MOMENT).await;
        Evidence::seen(granted, "grants to other clients")
    }

    /// The leader of the ensemble, which the holder is connected to.
    async fn leader_of_holder(&self) -> Outcome<usize> {
        let leader = leader(self.servers()?).await?;
        match self.servers()?.proxy_of(HOLDERS_ROUTE, leader).connections() {
            0 => Err(Failure::new("the holder is not connected to the leader")),
            _ => Ok(leader),
        }
    }

    /// The key of the lock on a Redis server.
    fn key(&self) -> String {
        format!("lock:{}", self.lock)
    }

    async fn cut_off(&self, directions: &[Direction]) -> Outcome<Evidence> {
        let all = self.servers()?;
        all.begin(&cut_off(directions), &(0..all.len()).collect::<Vec<_>>()).await?;
        let effect = self.another_holds().await;
        self.heal();
        Ok(effect)
    }

    /// Ends all faults of the network.
    pub(super) fn heal(&self) {
        let Some(servers) = self.servers else { return };
        for route in [HOLDERS_ROUTE, OTHERS_ROUTE] {
            servers.proxies_of(route).iter().for_each(|proxy| proxy.heal());
        }
    }

    async fn pause(&self, servers: &[usize], span: Duration) -> Outcome<Evidence> {
        let all = self.servers()?;
        let until = Instant::now() + span;
        all.begin(&Outage::Frozen, servers).await?;
        let answer = join_all(servers.iter().map(|&server| all.answers(server))).await;
        sleep_until(until).await;
        all.end(&Outage::Frozen, servers).await?;
        let silent = answer.iter().filter(|answers| !**answers).count();
        Ok(Evidence::counted(silent as u64, "servers that did not answer"))
    }

    async fn rolling_restart(&self) -> Outcome<Evidence> {
        let all = self.servers()?;
        let restarts = all.len() * ROUNDS;
        for server in (0..restarts).map(|nth| nth % all.len()) {
            let effect = restart(all, &[server], Data::Kept, DOWN).await?;
            if effect.is_none() {
                return Ok(effect);
            }
            if let Some(ensemble) = all.ensemble() {
                all.until("all servers serve", async || serves(ensemble).await).await?;
            }
        }
        Ok(Evidence::counted(restarts as u64, "servers restarted with their data, one after the other"))
    }

    async fn leader_cut_off(&self) -> Outcome<Evidence> {
        let all = self.servers()?;
        let ensemble = all.ensemble().ok_or_else(|| Failure::new("there is no ensemble"))?;
        let leader = self.leader_of_holder().await?;
        let followers = (0..all.len()).filter(|&server| server != leader);
        let links: Vec<_> = followers.map(|follower| ensemble.link(follower, leader)).collect();
        for link in &links {
            BOTH.iter().for_each(|&direction| link.black_hole(direction, true));
        }
        sleep(self.lease + BEYOND).await;
        // A leader that gave up cannot lead again while the links are cut, so a late look misses nothing. A look after that,
        // such as at the epoch, shows nothing: healing resets the links, and any leader loses its followers.
        let node = &ensemble.nodes()[leader];
        let gives_up = async {
            while !denies_leading(node).await {
                sleep(MOMENT).await;
            }
        };
        let gave_up = timeout(LONGEST, gives_up).await.is_ok();
        links.iter().for_each(|link| link.heal());
        Ok(Evidence::seen(gave_up, "leaders that lost their followers"))
    }

    /// Kills the primary of PostgreSQL, and promotes its standby.
    async fn promote_standby(&self) -> Outcome<Evidence> {
        let ([primary, standby], at_ns) = (self.servers()?.pair()?.servers(), now_ns());
        primary.kill();
        standby.promote().await?;
        if self.fault == Fault::Failover {
            self.crew.granted_to_another(at_ns, self.lease + LONGEST).await;
            sleep(MOMENT).await;
        }
        let is_primary = standby.sql(&["SELECT NOT pg_is_in_recovery()"]).await? == "t";
        Ok(Evidence::seen(is_primary, "standbys promoted"))
    }

    /// Has PostgreSQL take the lease for one that has expired.
    async fn end_lease(&self) -> Outcome<Evidence> {
        let end = format!(
            "WITH ended AS (UPDATE polylock.lease SET expires_at = '-infinity' WHERE name = '{}' RETURNING 1) \
             SELECT count(*) FROM ended",
            self.lock
        );
        let ended = self.servers()?.postgres(0).sql(&[&end]).await?;
        Ok(Evidence::counted(ended.parse().unwrap_or(0), "leases ended"))
    }

    /// Deletes the key on the first servers.
    async fn end_keys(&self, servers: usize) -> Outcome<Evidence> {
        let mut ended = 0;
        for server in 0..servers {
            let reply = self.servers()?.redis(server).command(&["PEXPIRE", &self.key(), "0"]).await?;
            ended += u64::from(reply.int() == Some(1));
        }
        Ok(Evidence::counted(ended, "keys ended"))
    }

    /// Deletes the node of the holder: the first of the queue.
    async fn delete_node(&self) -> Outcome<Evidence> {
        let client = zk::connect(&self.servers()?.direct_url(), self.lease).await?;
        let directory = format!("/locks/{}", self.lock);
        let mut nodes = client.list_children(&directory).await?;
        nodes.sort_by_key(|node| node[node.len().saturating_sub(10)..].to_owned());
        let first = nodes.first().ok_or_else(|| Failure::new(format!("{directory} is empty")))?;
        client.delete(&format!("{directory}/{first}"), None).await?;
        Ok(Evidence::counted(1, "nodes deleted"))
    }
}

const BOTH: &[Direction] = &[Direction::ToServer, Direction::ToClient];
/// The replies that are swallowed at each server, on each route.
const SWALLOWED: u64 = 4;
/// How much longer than a lease servers are away.
const BEYOND: Duration = Duration::from_millis(1500);
/// More than two ticks of an ensemble.
const TICKS: Duration = Duration::from_millis(500);
const DOWN: Duration = Duration::from_millis(500);
/// How often each server restarts: long enough that a majority has restarted just now for longer than a lease.
const ROUNDS: usize = 2;
const MOMENT: Duration = Duration::from_millis(300);
const FAILOVER_ORDERS: usize = 10;
const FAILOVER_ORDER: Duration = Duration::from_secs(1);
/// How much longer than a lease it may take until another client has the lock.
const LONGEST: Duration = Duration::from_secs(10);
