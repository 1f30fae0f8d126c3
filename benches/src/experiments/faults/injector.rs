//! What each effect does: the one injector of the fault table and of the soak.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lock_testkit::proxy::{Direction, Then};
use lock_testkit::{RedisSentinel, now_ns};
use serde::{Serialize, Serializer};
use tokio::time::{sleep, timeout};

use super::crew::{Crew, HOLDER};
use super::evidence::Evidence;
use crate::data::{Data, Disturbance, Effect, Failure, Fault, Hits, Outcome, Site};
use crate::rig::backends::zk;
use crate::rig::worker::client_runtimes::RUNTIMES;
use crate::rig::{ClientOrder, FaultServers, Job, Outage, WorkerReport};

/// The route of the holder; that of all clients in a soak.
pub(crate) const HOLDERS_ROUTE: usize = 0;
/// The route of the others.
pub(crate) const OTHERS_ROUTE: usize = 1;

/// Injects faults into servers and clients.
pub(crate) struct Injector<'a> {
    pub(crate) crew: Crew,
    /// None with the memory backend.
    pub(crate) site: Option<(Site, &'a FaultServers)>,
    pub(crate) lease: Duration,
    /// The lock of the ordered clients.
    pub(crate) lock: String,
    /// The jobs of the processes that replace killed ones, and whether these fork.
    pub(crate) replacement: Option<Box<dyn FnMut(bool) -> Job + Send + Sync + 'a>>,
    /// The time between two turns of a fault.
    pub(crate) recovery: Duration,
    /// Has each fault printed, with the time since then.
    pub(crate) printed_since_ns: Option<u64>,
    pub(crate) injected: Vec<Injected>,
    pub(crate) complaints: Vec<String>,
}

/// A fault to inject, as its driver chose it.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    pub(crate) fault: Fault,
    pub(crate) lasts: Lasts,
    pub(crate) servers: Vec<usize>,
    /// The members of the crew.
    pub(crate) clients: Vec<usize>,
    pub(crate) directions: Vec<Direction>,
    /// Chooses among the variants of an effect.
    pub(crate) variant: usize,
    /// How often each server is hit, where one is after the other.
    pub(crate) rounds: usize,
    /// Those that are killed in the middle.
    pub(crate) also_killed: Vec<usize>,
}

/// How long a fault lasts that does not end at once.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lasts {
    For(Duration),
    /// Until a client other than the holder has the lock.
    UntilGranted,
    /// Until such a client has written.
    UntilWritten,
}

/// The record of an injected fault.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Injected {
    #[serde(rename = "kind", serialize_with = "by_its_name")]
    pub(crate) fault: Fault,
    /// The servers or clients, in words.
    pub(crate) whom: String,
    /// Whether it is the end of a pause: the limit counts from there again.
    pub(crate) resumes: bool,
    /// Whether no client may lose a lock by it, but for the thread that computes.
    pub(crate) keeps_locks: bool,
    /// When it began, on the clock of the histories.
    pub(crate) from_ns: u64,
    /// When it ended. For a client that was killed or stopped: when that happened, as its lease runs out from then on.
    pub(crate) until_ns: u64,
    /// The process and its runtime whose thread computes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) computes: Option<(u32, usize)>,
}

fn by_its_name<S: Serializer>(fault: &Fault, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&fault.soak_name())
}

impl<'a> Injector<'a> {
    /// Injects a fault, and ends it. Returns what shows that it happened. When the future is dropped, the fault stays.
    pub(crate) async fn inject(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let cut_off = || Outage::CutOff { route: HOLDERS_ROUTE, directions: hit.directions.clone() };
        match hit.fault.row().effect {
            Effect::Stop => self.stop(hit).await,
            Effect::Kill | Effect::Fork => self.kill(hit).await,
            Effect::Compute => self.compute(hit).await,
            Effect::Close => self.close(hit).await,
            Effect::Crowd => self.crowd(hit).await,
            Effect::CutOff(_) => self.outage(hit, &cut_off()).await,
            Effect::Silence => self.silence(hit).await,
            Effect::SwallowReplies => self.swallow_replies(hit).await,
            Effect::DelayReply => self.after_delayed_reply(hit).await,
            Effect::Reset => self.reset(hit).await,
            Effect::EndSessions => self.end_sessions(hit).await,
            Effect::TakeConnections => self.take_connections(hit).await,
            Effect::Freeze => self.outage(hit, &Outage::Frozen).await,
            Effect::Restart(data) => self.restart(hit, data).await,
            Effect::FillDisk => self.fill_disk(hit).await,
            Effect::FillMemory => self.outage(hit, &Outage::Full).await,
            Effect::CutLeaderOff => self.cut_leader_off(hit).await,
            Effect::FailOver(data) => self.fail_over(hit, data).await,
            Effect::EndKeys => self.end_keys(hit).await,
            Effect::Flush => self.flush(hit).await,
            Effect::RunScript => self.run_script(hit).await,
            Effect::Renegotiate => self.renegotiate(hit).await,
            Effect::ChangePassword => self.outage(hit, &Outage::OtherPassword).await,
            Effect::ChangeCertificate => self.outage(hit, &Outage::OtherCertificates).await,
            Effect::Disturb(variants) => self.disturb(hit, variants[hit.variant % variants.len()]).await,
            Effect::Forge if self.is_postgres() => self.disturb(hit, Disturbance::ForgedNotifications).await,
            Effect::Forge => self.forge(hit).await,
        }
    }

    /// What has to happen before the clients of a delayed reply, a failover or a lost server connect or have the lock.
    pub(crate) async fn prepare(&self, fault: Fault) -> Outcome<()> {
        let Some((site, servers)) = self.site else { return Ok(()) };
        match (site, fault.row().effect) {
            (Site::Redlock, Effect::Restart(Data::Lost) | Effect::Flush) => {
                // So the lock is granted by the first three masters alone.
                let others: Vec<usize> = (3..servers.len()).collect();
                servers
                    .begin(&Outage::CutOff { route: HOLDERS_ROUTE, directions: BOTH.into() }, &others)
                    .await
            }
            (Site::Sentinel, Effect::FailOver(Data::Lost)) => cut_off_replica(servers.sentinel()?).await,
            (Site::Standby | Site::MysqlReplica, _) => servers.detach().await,
            (Site::Zk | Site::LinkedZk | Site::Etcd | Site::LinkedEtcd, effect) if hits_leader(effect) => {
                self.heal();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Gives the order to acquire the lock, and delays the reply to it.
    pub(crate) async fn delay_reply(&self) -> Outcome<()> {
        let servers = self.servers()?;
        let proxies = servers.proxies_of(HOLDERS_ROUTE);
        if let Some(patience) = servers.patience_of_swaps() {
            // The holder reads the record before, and others count from when they have seen it: that is a part of the delay.
            proxies.iter().for_each(|proxy| proxy.hold_replies_when(is_grant));
            self.crew.order(ClientOrder::Hold).await;
            sleep(patience / 3).await;
            self.crew.order(ClientOrder::Contend).await;
            sleep(patience / 2).await;
        } else {
            proxies.iter().for_each(|proxy| proxy.hold(Direction::ToClient));
            self.crew.order(ClientOrder::Hold).await;
            sleep(self.lease * 3 / 10).await;
        }
        let is_zk = servers.ensemble().is_some();
        for proxy in proxies {
            // A ZooKeeper client needs more than one reply; the others would renew the lock.
            proxy.black_hole(Direction::ToServer, !is_zk);
            proxy.deliver();
        }
        if is_zk && self.crew.granted(self.lease).await {
            proxies.iter().for_each(|proxy| proxy.black_hole(Direction::ToServer, true));
        }
        Ok(())
    }

    /// Ends all faults of the network.
    pub(crate) fn heal(&self) {
        let Some((_, servers)) = self.site else { return };
        servers.all_proxies().for_each(|proxy| proxy.heal());
    }

    /// Waits until all servers that elect a leader serve.
    pub(crate) async fn all_serve(&self) -> Outcome<()> {
        match self.site {
            Some((_, servers)) if servers.elects() => {
                servers.until("all servers serve", async || Ok(servers.all_serve().await)).await
            }
            _ => Ok(()),
        }
    }

    async fn stop(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let fault = self.begin(hit, self.processes(&hit.clients));
        // Ordered clients write all the time.
        let patience = self.replacement.is_none().then_some(LONGEST);
        for &client in &hit.clients {
            self.crew.stop(client, patience).await?;
        }
        self.end(fault);
        // Some threads stop later than others.
        sleep(if self.site.is_none() { MOMENT } else { Duration::ZERO }).await;
        let stopped_ns = now_ns();
        let seen = self.last(hit).await?;
        let evidence = match (self.site, seen) {
            (_, Some(seen)) => seen,
            (None, None) => {
                Evidence::seen(self.crew.history().was_silent_since(stopped_ns), "processes stopped")
            }
            _ => Evidence::counted(hit.clients.len() as u64, "processes stopped"),
        };
        // A client that goes on may disturb the others once more.
        let (resumed, resumed_ns) = (self.resume(fault), now_ns());
        hit.clients.iter().for_each(|&client| self.crew.cont(client));
        self.end(resumed);
        if patience.is_some() {
            // Its late write.
            self.crew.wrote(|client| *client == (HOLDER, 0), resumed_ns, LONGEST).await;
        }
        Ok(evidence)
    }

    async fn kill(&mut self, hit: &Hit) -> Outcome<Evidence> {
        self.kill_some(hit, hit.fault, &hit.clients).await?;
        Ok(match hit.lasts {
            Lasts::For(_) => Evidence::counted(hit.clients.len() as u64, "processes killed"),
            _ => self.another_holds().await,
        })
    }

    /// Kills clients, and starts others.
    async fn kill_some(&mut self, hit: &Hit, by: Fault, clients: &[usize]) -> Outcome<()> {
        let hit = Hit { fault: by, ..hit.clone() };
        let fault = self.begin(&hit, self.processes(clients));
        for &client in clients {
            if self.site.is_none() {
                self.crew.abort_holder().await;
                continue;
            }
            self.crew.kill(client);
            if let Some(next) = &mut self.replacement {
                let job = next(by.row().effect == Effect::Fork);
                self.crew.replace(client, job).await?;
            }
        }
        self.end(fault);
        Ok(())
    }

    async fn compute(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let (client, runtime, span) = (hit.clients[0], hit.variant % RUNTIMES, hit.span());
        let process = self.crew.process(client);
        let fault = self.begin(hit, format!("runtime {runtime} of process {process}"));
        self.injected[fault].computes = Some((process, runtime));
        self.crew.order_one(client, ClientOrder::Compute { runtime, span }).await?;
        self.end(fault);
        let is_it = |report: &WorkerReport| matches!(report, WorkerReport::Computed).then_some(());
        self.crew.report(client, span + self.lease + REPORT, is_it).await?;
        let resumed = self.resume(fault);
        self.end(resumed);
        Ok(Evidence::counted(1, "threads computed"))
    }

    async fn close(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let fault = self.begin(hit, self.processes(&hit.clients));
        for &client in &hit.clients {
            self.crew.order_one(client, ClientOrder::Close).await?;
        }
        for &client in &hit.clients {
            let is_it = |report: &WorkerReport| matches!(report, WorkerReport::Closed).then_some(());
            self.crew.report(client, self.lease + REPORT, is_it).await?;
        }
        self.end(fault);
        Ok(Evidence::counted(hit.clients.len() as u64, "processes closed their locks"))
    }

    /// Has many tasks of a client acquire a lock each.
    async fn crowd(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let (client, tasks) = (hit.clients[0], self.site.map_or(0, |(site, _)| crowd(site)));
        let whom = format!("{tasks} tasks of process {}", self.crew.process(client));
        let fault = self.begin(hit, whom.clone());
        self.crew.order_one(client, ClientOrder::Crowd(tasks)).await?;
        let failures = |report: &WorkerReport| match report {
            WorkerReport::Crowded { failed, why } => Some((*failed, why.clone())),
            _ => None,
        };
        let (failed, why) = self.crew.report(client, CROWD, failures).await?;
        if failed > tasks / 100 {
            self.complaints.push(format!("{failed} of {whom} got no lock: {why}"));
        }
        self.end(fault);
        Ok(Evidence::counted((tasks - failed) as u64, "tasks had a lock"))
    }

    /// Keeps servers from serving while the fault lasts.
    async fn outage(&mut self, hit: &Hit, outage: &Outage) -> Outcome<Evidence> {
        let (all, servers) = (self.servers()?, &hit.servers);
        let fault = self.begin(
            hit,
            match outage {
                Outage::CutOff { directions, .. } => format!("servers {servers:?} {directions:?}"),
                Outage::OtherPassword => "all servers".to_owned(),
                _ => format!("servers {servers:?}"),
            },
        );
        all.begin(outage, servers).await?;
        if *outage == Outage::Full {
            self.crew.order_one(hit.clients[0], ClientOrder::Keep(hit.span())).await?;
        }
        let frozen = if *outage == Outage::Frozen { &servers[..] } else { &[] };
        let answer = join_all(frozen.iter().map(|&server| all.answers(server)));
        let (seen, answer) = tokio::join!(self.last(hit), answer);
        let seen = seen?;
        all.end(outage, servers).await?;
        self.end(fault);
        let silent = answer.iter().filter(|answers| !**answers).count();
        Ok(match outage {
            Outage::Frozen => Evidence::counted(silent as u64, "servers that did not answer"),
            // Behind sentinels no server is named.
            _ => seen.unwrap_or_else(|| Evidence::counted(servers.len().max(1) as u64, "servers changed")),
        })
    }

    async fn silence(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let (all, servers) = (self.servers()?, &hit.servers);
        let forget = async {
            servers.iter().for_each(|&server| all.proxy_of(HOLDERS_ROUTE, server).forget());
            Ok(servers.len() as u64)
        };
        self.at_once(hit, format!("servers {servers:?}"), forget, "servers silent").await
    }

    async fn swallow_replies(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let all = self.servers()?;
        for proxy in all.all_proxies() {
            (1..=SWALLOWED).for_each(|nth| proxy.swallow_reply(nth, Then::Reset));
        }
        self.last(hit).await?;
        self.heal();
        let swallowed = all.proxies_of(HOLDERS_ROUTE).iter().map(|proxy| proxy.fired());
        Ok(Evidence::counted(swallowed.sum(), "replies to the holder swallowed"))
    }

    /// The holder is cut off already.
    async fn after_delayed_reply(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let seen = self.last(hit).await?;
        self.heal();
        Ok(seen.unwrap_or_else(|| Evidence::seen(true, "replies delayed")))
    }

    async fn reset(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let (all, servers) = (self.servers()?, &hit.servers);
        let whom = if servers.is_empty() { "all clients".into() } else { format!("servers {servers:?}") };
        self.at_once(hit, whom, all.reset(servers), "connections of the holder reset").await
    }

    async fn end_sessions(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let (all, whom) = (self.servers()?, format!("servers {:?}", hit.servers));
        self.at_once(hit, whom, all.end_sessions(), "sessions ended").await
    }

    async fn take_connections(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let mut taken = self.servers()?.take_connections().await?;
        self.last(hit).await?;
        Ok(Evidence::seen(taken.are_all().await?, "servers without a connection for a lock"))
    }

    /// Kills servers by SIGKILL and restarts them, with or without their data: together, or one after the other.
    async fn restart(&mut self, hit: &Hit, data: Data) -> Outcome<Evidence> {
        if hit.fault.row().hits != Hits::EachInTurn {
            let fault = self.begin(hit, format!("servers {:?}", hit.servers));
            let evidence = self.restart_some(hit, &hit.servers, data).await;
            self.end(fault);
            return evidence;
        }
        let restarts = hit.servers.len() * hit.rounds;
        for &server in hit.servers.iter().cycle().take(restarts) {
            let fault = self.begin(hit, format!("server {server}"));
            let evidence = self.restart_some(hit, &[server], data).await?;
            self.end(fault);
            if evidence.is_none() {
                return Ok(evidence);
            }
            self.all_serve().await?;
            sleep(self.recovery).await;
        }
        Ok(Evidence::counted(restarts as u64, "servers restarted with their data, one after the other"))
    }

    async fn restart_some(&mut self, hit: &Hit, servers: &[usize], data: Data) -> Outcome<Evidence> {
        let (all, mut before) = (self.servers()?, Vec::new());
        for &server in servers {
            all.mark_data(server).await?;
            before.push(all.pid(server));
        }
        all.begin(&Outage::Killed, servers).await?;
        if data == Data::Lost {
            all.remove_data(servers).await?;
        }
        self.last(hit).await?;
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

    async fn fill_disk(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let is_full = self.servers()?.fill_disk(true).await?;
        self.last(hit).await?;
        self.servers()?.fill_disk(false).await?;
        Ok(Evidence::seen(is_full, "disks full"))
    }

    async fn cut_leader_off(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let (all, leader) = (self.servers()?, hit.servers[0]);
        all.cut_leader_off(leader, true).await?;
        self.last(hit).await?;
        // A leader that gave up cannot lead again while the links are cut, so a late look misses nothing. A look after that,
        // such as at the epoch, shows nothing: healing resets the links, and any leader loses its followers.
        let gives_up = async {
            while !all.denies_leading(leader).await {
                sleep(MOMENT).await;
            }
        };
        let gave_up = timeout(LONGEST, gives_up).await.is_ok();
        all.cut_leader_off(leader, false).await?;
        Ok(Evidence::seen(gave_up, "leaders that lost their followers"))
    }

    async fn fail_over(&mut self, hit: &Hit, data: Data) -> Outcome<Evidence> {
        let all = self.servers()?;
        if all.elects() {
            return self.restart_some(hit, &hit.servers, Data::Kept).await;
        }
        if all.has_standby() {
            return self.promote_standby(data).await;
        }
        if self.replacement.is_none() {
            return self.promote_replica().await;
        }
        let promote = async { all.fail_over(data == Data::Kept).await.map(|()| 1) };
        let evidence = self.at_once(hit, "the master".to_owned(), promote, "replicas promoted").await;
        all.settle().await?;
        evidence
    }

    /// Kills the master of Redis, and has the sentinels promote its replica.
    async fn promote_replica(&self) -> Outcome<Evidence> {
        let sentinel = self.servers()?.sentinel()?;
        let (order, at_ns) = (["SENTINEL", "FAILOVER", RedisSentinel::NAME], now_ns());
        sentinel.servers()[0].kill();
        for _ in 0..FAILOVER_ORDERS {
            // Sentinels abandon some failovers. One that goes on refuses the order.
            sentinel.sentinels()[0].command(&order).await?;
            if self.crew.granted_to_another(at_ns, FAILOVER_ORDER).await {
                break;
            }
        }
        sleep(MOMENT).await;
        let old = sentinel.servers()[0].port();
        let promoted = sentinel.master().await.is_some_and(|master| master.port() != old);
        Ok(Evidence::seen(promoted, "replicas promoted"))
    }

    /// Kills the primary of a database, and promotes its standby.
    async fn promote_standby(&self, data: Data) -> Outcome<Evidence> {
        let at_ns = now_ns();
        let is_primary = self.servers()?.promote().await?;
        if data == Data::Lost {
            self.crew.granted_to_another(at_ns, self.lease + LONGEST).await;
            sleep(MOMENT).await;
        }
        Ok(Evidence::seen(is_primary, "standbys promoted"))
    }

    /// Ends the lock on as many servers as are hit.
    async fn end_keys(&self, hit: &Hit) -> Outcome<Evidence> {
        let all = self.servers()?;
        if all.ensemble().is_some() {
            return self.delete_node().await;
        }
        if let Some(ended) = all.end_lease(&self.lock).await? {
            return Ok(Evidence::counted(ended, "leases ended"));
        }
        if hit.fault.row().hits == Hits::Minority {
            self.granted_by_all().await?;
        }
        let mut ended = 0;
        for server in 0..hit.servers.len() {
            let reply = all.redis(server).command(&["PEXPIRE", &self.key(), "0"]).await?;
            ended += u64::from(reply.int() == Some(1));
        }
        Ok(Evidence::counted(ended, "keys ended"))
    }

    /// Waits until all masters have granted the lock. One that was late when the holder asked is asked again by the next renewal.
    async fn granted_by_all(&self) -> Outcome<()> {
        let all = self.servers()?;
        for server in 0..all.len() {
            let (master, began) = (all.redis(server), Instant::now());
            while master.command(&["EXISTS", &self.key()]).await?.int() != Some(1) {
                if began.elapsed() > self.lease {
                    return Err(Failure::new(format!(
                        "a renewal left out the master on port {}",
                        master.port()
                    )));
                }
                sleep(LOOK).await;
            }
        }
        Ok(())
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

    async fn flush(&self, hit: &Hit) -> Outcome<Evidence> {
        let server = self.servers()?.redis(hit.servers[0]);
        let had = server.command(&["EXISTS", &self.key()]).await?.int().unwrap_or(0);
        server.command(&["FLUSHALL"]).await?;
        Ok(Evidence::seen(had > 0, "keys of the lock deleted"))
    }

    async fn run_script(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let (all, mut hits) = (self.servers()?, 0);
        let mut masters = all.masters().await?;
        let first = hit.variant % masters.len().max(1);
        masters.rotate_left(first);
        for master in masters {
            let fault = self.begin(hit, format!("the server on port {}", master.port()));
            all.run_script(master, async { self.last(hit).await.map(drop) }).await?;
            self.end(fault);
            hits += 1;
        }
        Ok(Evidence::counted(hits, "servers busy"))
    }

    async fn renegotiate(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let (all, server) = (self.servers()?, hit.servers[0]);
        let fault = self.begin(hit, format!("server {server}"));
        all.restart_with_limit(server, self.lease / 3).await?;
        // All clients choose a server anew.
        all.reset(&(0..all.len()).collect::<Vec<_>>()).await?;
        self.end(fault);
        sleep(hit.span()).await;
        let resumed = self.resume(fault);
        all.strand_clients_of(server, true);
        sleep(self.lease).await;
        all.strand_clients_of(server, false);
        all.restart_with_limit(server, NO_LIMIT).await?;
        self.end(resumed);
        Ok(Evidence::counted(1, "servers restarted with a lower limit"))
    }

    /// Has another session of the database disturb the locks while the fault lasts.
    async fn disturb(&mut self, hit: &Hit, disturbance: Disturbance) -> Outcome<Evidence> {
        let (all, fault) = (self.servers()?, self.begin(hit, disturbance.to_string()));
        all.disturb(disturbance, async { self.last(hit).await.map(drop) }).await?;
        self.end(fault);
        Ok(Evidence::counted(1, "disturbances"))
    }

    async fn forge(&mut self, hit: &Hit) -> Outcome<Evidence> {
        let (all, fault) = (self.servers()?, self.begin(hit, "all inboxes".to_owned()));
        all.forge_messages(async { self.last(hit).await.map(drop) }).await?;
        self.end(fault);
        Ok(Evidence::counted(1, "forgeries"))
    }

    /// Records a fault that ends at once.
    async fn at_once(
        &mut self,
        hit: &Hit,
        whom: String,
        happens: impl Future<Output = Outcome<u64>>,
        evidence: &str,
    ) -> Outcome<Evidence> {
        let fault = self.begin(hit, whom);
        let count = happens.await?;
        self.end(fault);
        Ok(Evidence::counted(count, evidence))
    }

    /// Waits while a fault lasts, and returns what shows it if that is not up to the servers. Clients may be killed meanwhile.
    async fn last(&mut self, hit: &Hit) -> Outcome<Option<Evidence>> {
        let since_ns = now_ns();
        match hit.lasts {
            Lasts::For(span) => {
                sleep(span / 2).await;
                if !hit.also_killed.is_empty() {
                    self.kill_some(hit, Fault::ClientKilled, &hit.also_killed).await?;
                }
                sleep(span - span / 2).await;
                Ok(None)
            }
            Lasts::UntilGranted => Ok(Some(self.another_holds().await)),
            // A store compares a late write with it.
            Lasts::UntilWritten => {
                let is_other = |client: &(u32, u64)| *client != (HOLDER, 0);
                let wrote = self.crew.wrote(is_other, since_ns, self.lease + BEYOND + LONGEST).await;
                Ok(Some(Evidence::seen(wrote, "writes of another holder")))
            }
        }
    }

    /// Waits until another client has the lock, and for a moment more. The verdict shows it when none gets it.
    async fn another_holds(&self) -> Evidence {
        let granted = self.crew.granted_to_another(now_ns(), self.lease + LONGEST).await;
        sleep(MOMENT).await;
        Evidence::seen(granted, "grants to other clients")
    }

    fn begin(&mut self, hit: &Hit, whom: String) -> usize {
        let (fault, from_ns) = (hit.fault, now_ns());
        if let Some(since_ns) = self.printed_since_ns {
            let at = (from_ns - since_ns) as f64 / 1e9;
            let (name, span) = (fault.soak_name(), hit.span().as_secs_f64());
            eprintln!("    {at:.2} s: {name} of {whom}, {span:.1} s");
        }
        let keeps_locks = self.site.is_some_and(|(site, _)| fault.row().keeps_locks(site));
        let (resumes, until_ns, computes) = (false, u64::MAX, None);
        self.injected.push(Injected { fault, whom, resumes, keeps_locks, from_ns, until_ns, computes });
        self.injected.len() - 1
    }

    /// Begins the end of a fault.
    fn resume(&mut self, fault: usize) -> usize {
        let begun = self.injected[fault].clone();
        self.injected.push(Injected { resumes: true, from_ns: now_ns(), until_ns: u64::MAX, ..begun });
        self.injected.len() - 1
    }

    fn end(&mut self, fault: usize) {
        self.injected[fault].until_ns = now_ns();
    }

    fn processes(&self, clients: &[usize]) -> String {
        let processes: Vec<_> = clients.iter().map(|&client| self.crew.process(client)).collect();
        format!("processes {processes:?}")
    }

    fn servers(&self) -> Outcome<&'a FaultServers> {
        Ok(self.site.ok_or_else(|| Failure::new("there are no servers"))?.1)
    }

    fn is_postgres(&self) -> bool {
        self.site.is_some_and(|(site, _)| {
            matches!(site, Site::Postgres | Site::SmallDisk | Site::Standby | Site::SynchronousStandby)
        })
    }

    /// The key of the lock on a Redis server.
    fn key(&self) -> String {
        format!("lock:{}", self.lock)
    }
}

impl Hit {
    fn span(&self) -> Duration {
        match self.lasts {
            Lasts::For(span) => span,
            _ => Duration::ZERO,
        }
    }
}

/// Whether the effect hits the leader of an ensemble, with a holder that uses this leader.
pub(crate) const fn hits_leader(effect: Effect) -> bool {
    matches!(effect, Effect::CutLeaderOff | Effect::FailOver(_))
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

/// Whether a request of a store that swaps writes a record with a holder.
fn is_grant(request: &[u8]) -> bool {
    request.windows(HOLDERS.len()).any(|part| part == HOLDERS)
}

/// How many tasks a worker can have at once: all of them get their lock within some leases.
const fn crowd(site: Site) -> usize {
    match site {
        Site::Redis | Site::RedisTls | Site::Sentinel => 20_000,
        Site::Redlock => 1_000,
        // Each takes three requests, which a busy machine has to answer within a part of the lease.
        Site::Etcd | Site::Mysql => 100,
        _ => 2_000,
    }
}

pub(crate) const BOTH: &[Direction] = &[Direction::ToServer, Direction::ToClient];
/// How much longer than a lease servers are away in the table.
pub(crate) const BEYOND: Duration = Duration::from_millis(1500);
/// The replies that are swallowed at each server, on each route.
const SWALLOWED: u64 = 4;
/// The member of a record that has those who hold the lock.
const HOLDERS: &[u8] = b"\"holders\"";
const MOMENT: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(20);
const FAILOVER_ORDERS: usize = 10;
const FAILOVER_ORDER: Duration = Duration::from_secs(1);
/// How much longer than a lease it may take until another client has the lock.
const LONGEST: Duration = Duration::from_secs(10);
/// The limit of session timeouts that the servers began with.
const NO_LIMIT: Duration = Duration::from_secs(60);
/// How much longer than a lease a client may take to report.
const REPORT: Duration = Duration::from_secs(30);
const CROWD: Duration = Duration::from_secs(120);
