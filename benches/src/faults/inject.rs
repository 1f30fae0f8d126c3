//! What each fault does.

use std::time::Duration;

use lock_testkit::proxy::{Direction, Then};
use lock_testkit::{RedisSentinel, ZkEnsemble, now_ns};
use rand::Rng;
use rand::rngs::StdRng;
use tokio::time::sleep;

use super::crew::Crew;
use super::trial::{HOLDERS_ROUTE, OTHERS_ROUTE};
use crate::backends::zk;
use crate::failure::{Failure, Outcome};
use crate::fault_servers::FaultServers;
use crate::options::BackendName;
use crate::options::faults::FaultName;
use crate::worker::fault_client::FaultOrder;

/// Where a fault happens.
pub(super) struct Stage<'a> {
    pub(super) fault: FaultName,
    pub(super) backend: BackendName,
    pub(super) servers: Option<&'a FaultServers>,
    pub(super) crew: Crew,
    pub(super) lock: String,
    pub(super) lease: Duration,
    pub(super) dice: StdRng,
    /// The processes that were stopped, and when.
    pub(super) stopped: Vec<(u32, u64)>,
}

/// What has to happen before the holder has the lock. Gives the order to acquire it.
pub(super) async fn before(stage: &Stage<'_>) -> Outcome<()> {
    match stage.fault {
        FaultName::RestartWithoutData | FaultName::Flushall if stage.backend == BackendName::Redlock => {
            // So the lock is granted by the first three masters alone.
            for server in 3..stage.servers()?.len() {
                stage.cut_holder_off(server, BOTH, true)?;
            }
        }
        FaultName::Failover if stage.backend == BackendName::Redis => {
            // The replica cannot log in again, and gets no more writes.
            let [master, replica] = stage.servers()?.sentinel()?.servers() else {
                return Err(Failure::new("there is not one replica"));
            };
            replica.command(&["CONFIG", "SET", "masteruser", "nobody"]).await?;
            replica.command(&["CONFIG", "SET", "masterauth", "nothing"]).await?;
            master.command(&["CLIENT", "KILL", "TYPE", "replica"]).await?;
        }
        FaultName::ReplyLate => {
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
            if is_zk && stage.crew.granted(0, 1, stage.lease).await {
                proxies.iter().for_each(|proxy| proxy.black_hole(Direction::ToServer, true));
            }
            return Ok(());
        }
        _ => {}
    }
    stage.crew.order(FaultOrder::Hold).await;
    Ok(())
}

/// Injects the fault, and ends it.
pub(super) async fn inject(stage: &mut Stage<'_>) -> Outcome<()> {
    let beyond = stage.lease + BEYOND;
    match stage.fault {
        FaultName::ClientPaused => {
            stage.crew.holder_works().await;
            let at_ns = stage.crew.stop_holder();
            stage.stopped.push((super::crew::HOLDER, at_ns));
            match stage.backend {
                BackendName::Memory => sleep(beyond).await,
                _ => stage.another_holds().await,
            }
            stage.crew.continue_holder();
        }
        FaultName::ClientKilled if stage.backend == BackendName::Memory => {
            stage.crew.order(FaultOrder::Abort).await;
        }
        FaultName::ClientKilled => stage.crew.kill_holder(),
        FaultName::ClientCutOff => stage.cut_off(BOTH).await?,
        FaultName::RequestsLost => stage.cut_off(&[Direction::ToServer]).await?,
        FaultName::AnswersLost => stage.cut_off(&[Direction::ToClient]).await?,
        FaultName::ReplyLate => {
            // The holder is cut off already.
            stage.another_holds().await;
            stage.heal()?;
        }
        FaultName::RepliesSwallowed => {
            for route in [HOLDERS_ROUTE, OTHERS_ROUTE] {
                for proxy in stage.servers()?.proxies_of(route) {
                    (1..=SWALLOWED).for_each(|nth| proxy.swallow_reply(nth, Then::Reset));
                }
            }
            sleep(stage.lease).await;
            stage.heal()?;
        }
        FaultName::ConnectionsReset => {
            for route in [HOLDERS_ROUTE, OTHERS_ROUTE] {
                stage.servers()?.proxies_of(route).iter().for_each(|proxy| proxy.rst());
            }
        }
        FaultName::ServerPaused => {
            let servers = stage.minority()?;
            stage.pause(&servers, beyond).await?;
        }
        FaultName::MajorityPaused => {
            let (all, most) = (stage.servers()?.len(), stage.servers()?.len() / 2 + 1);
            let first = stage.dice.random_range(0..all);
            let servers: Vec<usize> = (0..most).map(|next| (first + next) % all).collect();
            stage.pause(&servers, beyond).await?;
        }
        FaultName::RestartWithData => {
            let servers = stage.minority()?;
            servers.iter().try_for_each(|&server| stage.servers().map(|all| all.kill(server)))?;
            sleep(DOWN).await;
            for server in servers {
                stage.servers()?.start_again(server).await?;
            }
        }
        FaultName::RestartWithoutData => {
            let server = if stage.backend == BackendName::Redlock { 2 } else { stage.minority()?[0] };
            let all = stage.servers()?;
            all.kill(server);
            if let Some(ensemble) = all.ensemble() {
                ensemble.nodes()[server].remove_data()?;
            }
            all.start_again(server).await?;
        }
        FaultName::LeaderCutOff => stage.leader_cut_off().await?,
        FaultName::Failover if stage.backend == BackendName::Zk => {
            let all = stage.servers()?;
            let leader = all.leader().await.ok_or_else(|| Failure::new("there is no leader"))?;
            all.kill(leader);
            sleep(DOWN).await;
            all.start_again(leader).await?;
        }
        FaultName::Failover => {
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
        }
        FaultName::KeyEndedOnMinority => stage.end_keys(2).await?,
        FaultName::KeyEnded => match stage.backend {
            BackendName::Zk => stage.delete_node().await?,
            BackendName::Redlock => stage.end_keys(3).await?,
            _ => stage.end_keys(1).await?,
        },
        FaultName::Flushall => {
            let server = if stage.backend == BackendName::Redlock { 2 } else { 0 };
            stage.servers()?.redis(server).command(&["FLUSHALL"]).await?;
        }
    }
    match stage.servers.and_then(FaultServers::ensemble) {
        // An election that fails takes ten seconds (`initLimit`), whatever the clients do: it is a part of the fault.
        Some(ensemble) => stage.servers()?.until("all servers serve", async || serves(ensemble).await).await,
        None => Ok(()),
    }
}

async fn serves(ensemble: &ZkEnsemble) -> Outcome<bool> {
    for node in ensemble.nodes() {
        if node.mode().await.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

impl<'a> Stage<'a> {
    /// A random time.
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
    async fn another_holds(&self) {
        self.crew.granted_to_another(now_ns(), self.lease + LONGEST).await;
        sleep(MOMENT).await;
    }

    fn cut_holder_off(&self, server: usize, directions: &[Direction], on: bool) -> Outcome<()> {
        let proxy = self.servers()?.proxy_of(HOLDERS_ROUTE, server);
        directions.iter().for_each(|&direction| proxy.black_hole(direction, on));
        Ok(())
    }

    async fn cut_off(&self, directions: &[Direction]) -> Outcome<()> {
        for server in 0..self.servers()?.len() {
            self.cut_holder_off(server, directions, true)?;
        }
        self.another_holds().await;
        self.heal()
    }

    fn heal(&self) -> Outcome<()> {
        for route in [HOLDERS_ROUTE, OTHERS_ROUTE] {
            self.servers()?.proxies_of(route).iter().for_each(|proxy| proxy.heal());
        }
        Ok(())
    }

    async fn pause(&self, servers: &[usize], span: Duration) -> Outcome<()> {
        let all = self.servers()?;
        servers.iter().for_each(|&server| all.stop(server));
        sleep(span).await;
        servers.iter().for_each(|&server| all.cont(server));
        Ok(())
    }

    async fn leader_cut_off(&self) -> Outcome<()> {
        let all = self.servers()?;
        let ensemble = all.ensemble().ok_or_else(|| Failure::new("there is no ensemble"))?;
        let leader = all.leader().await.ok_or_else(|| Failure::new("there is no leader"))?;
        let followers = (0..all.len()).filter(|&server| server != leader);
        let links: Vec<_> = followers.map(|follower| ensemble.link(follower, leader)).collect();
        for link in &links {
            BOTH.iter().for_each(|&direction| link.black_hole(direction, true));
        }
        sleep(self.lease + BEYOND).await;
        links.iter().for_each(|link| link.heal());
        Ok(())
    }

    /// Deletes the key on the first servers.
    async fn end_keys(&self, servers: usize) -> Outcome<()> {
        let key = format!("lock:{}", self.lock);
        for server in 0..servers {
            let reply = self.servers()?.redis(server).command(&["PEXPIRE", &key, "0"]).await?;
            if reply.int() != Some(1) {
                return Err(Failure::new(format!("there is no key {key}: {reply:?}")));
            }
        }
        Ok(())
    }

    /// Deletes the node of the holder: the first of the queue.
    async fn delete_node(&self) -> Outcome<()> {
        let client = zk::connect(&self.servers()?.direct_url(), self.lease).await?;
        let directory = format!("/locks/{}", self.lock);
        let mut nodes = client.list_children(&directory).await?;
        nodes.sort_by_key(|node| node[node.len().saturating_sub(10)..].to_owned());
        let first = nodes.first().ok_or_else(|| Failure::new(format!("{directory} is empty")))?;
        Ok(client.delete(&format!("{directory}/{first}"), None).await?)
    }
}

const BOTH: &[Direction] = &[Direction::ToServer, Direction::ToClient];
/// The replies that are swallowed at each server, on each route.
const SWALLOWED: u64 = 4;
/// How much longer than a lease servers are away.
const BEYOND: Duration = Duration::from_millis(500);
const DOWN: Duration = Duration::from_millis(500);
const MOMENT: Duration = Duration::from_millis(300);
const FAILOVER_ORDERS: usize = 10;
const FAILOVER_ORDER: Duration = Duration::from_secs(1);
/// How much longer than a lease it may take until another client has the lock.
const LONGEST: Duration = Duration::from_secs(10);
