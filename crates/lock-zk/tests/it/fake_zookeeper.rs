//! The ensemble in memory answers as ZooKeeper does: the same scripts of requests on both, by two sessions.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use lock_testkit::{ZooKeeper, by_tier};
use lock_zk::zookeeper_client::{Acls, Connector, CreateMode, MultiWriteError, MultiWriteResult, Stat};
use lock_zk::{Change, DriverSession, Ensemble as _, SessionClient, Watching};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tokio::runtime::Builder;

use crate::common::{server, until};
use crate::simulation::driver::Link;
use crate::simulation::ensemble::Ensemble;

/// One request; the numbers choose among paths, kinds and versions.
#[derive(Clone, Copy, Debug)]
enum Request {
    Create { path: &'static str, mode: CreateMode },
    Delete { path: &'static str, version: Option<i32> },
    Set { path: &'static str, version: Option<i32> },
    Stat { path: &'static str },
    Data { path: &'static str },
    Children { path: &'static str },
    WatchStat { path: &'static str },
    WatchData { path: &'static str },
    Enter { dir: &'static str },
    Rotate { node: &'static str, dir: &'static str },
    Guarded { check: &'static str, version: Option<i32>, set: &'static str },
}

/// A session, and the watches that were set in it.
struct Side {
    client: Arc<dyn SessionClient>,
    /// Never locked: it only makes the bench `Sync`.
    watches: Mutex<Vec<Watching>>,
}

/// Both sessions of one server.
struct Bench {
    sides: [Side; 2],
    root: String,
    /// The transactions that answers showed, in that order.
    zxids: Mutex<Vec<i64>>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_comparison_sees_a_difference() {
    let real = server().await;
    let (mut one, mut other) = (genuine(&real, "/a").await, fake(1, "/a").await);
    let create = Request::Create { path: "/x", mode: CreateMode::EphemeralSequential };
    one.ask(0, create).await;
    assert_ne!(one.ask(0, create).await, other.ask(0, create).await);
}

#[test]
fn random_requests_are_answered_alike() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let real = runtime.block_on(server());
    for servers in [1, 3] {
        let config = Config { cases: by_tier(8, 12, 80), failure_persistence: None, ..Config::default() };
        let (mut runner, run) = (TestRunner::new(config), Cell::new(0));
        let ran = runner.run(&vec((0..2_usize, request()), 1..40), |script| {
            run.set(run.get() + 1);
            let root = format!("/run-{servers}-{}", run.get());
            runtime.block_on(compare(&real, servers, &root, &script)).map_err(TestCaseError::fail)
        });
        if let Err(failure) = ran {
            panic!("{servers} servers: {failure}");
        }
    }
}

fn request() -> impl Strategy<Value = Request> {
    let path = || select(&["/d", "/d/a", "/d/a", "/d/b", "/c", "/c/n0000000000", "/c/n0000000001"]);
    let version = || select(&[None, None, Some(-1), Some(0), Some(1)]);
    let mode = select(&[
        CreateMode::Persistent,
        CreateMode::Persistent,
        CreateMode::Ephemeral,
        CreateMode::Container,
        CreateMode::EphemeralSequential,
        CreateMode::PersistentSequential,
    ]);
    let sequential = select(&["/c/n", "/d/n", "/n"]);
    prop_oneof![
        4 => (path(), mode).prop_map(|(path, mode)| Request::Create { path, mode }),
        4 => sequential.prop_map(|path| Request::Create { path, mode: CreateMode::EphemeralSequential }),
        3 => (path(), version()).prop_map(|(path, version)| Request::Delete { path, version }),
        2 => (path(), version()).prop_map(|(path, version)| Request::Set { path, version }),
        1 => path().prop_map(|path| Request::Stat { path }),
        1 => path().prop_map(|path| Request::Data { path }),
        1 => path().prop_map(|path| Request::Children { path }),
        2 => path().prop_map(|path| Request::WatchStat { path }),
        2 => path().prop_map(|path| Request::WatchData { path }),
        3 => select(&["/c", "/d"]).prop_map(|dir| Request::Enter { dir }),
        2 => (path(), path()).prop_map(|(node, dir)| Request::Rotate { node, dir }),
        2 => (path(), version(), path()).prop_map(|(check, version, set)| Request::Guarded { check, version, set }),
    ]
}

async fn compare(
    real: &ZooKeeper,
    servers: usize,
    root: &str,
    script: &[(usize, Request)],
) -> Result<(), String> {
    let (mut real, mut fake) = (genuine(real, root).await, fake(servers, root).await);
    for (number, (side, request)) in script.iter().enumerate() {
        let (expected, got) = (real.ask(*side, *request).await, fake.ask(*side, *request).await);
        if expected != got {
            return Err(format!("{number}: {request:?}: ZooKeeper says {expected}, the fake {got}"));
        }
    }
    if real.order() != fake.order() {
        return Err(format!("transactions in the order {:?}, in the fake {:?}", real.order(), fake.order()));
    }
    // The nodes of a session go with it.
    let mut left = Vec::new();
    for bench in [&mut real, &mut fake] {
        bench.close_first().await;
        for path in ["", "/c", "/d"] {
            let mut below = bench.sides[1].names(&format!("{root}{path}")).await;
            below.sort();
            left.push(below);
        }
    }
    let (expected, got) = left.split_at(3);
    if expected == got { Ok(()) } else { Err(format!("left are {expected:?}, in the fake {got:?}")) }
}

async fn genuine(server: &ZooKeeper, root: &str) -> Bench {
    let open = async || {
        let connect = |connector: Connector, host: String| async move { connector.connect(&host).await };
        let hosts = server.connect_string();
        Arc::new(DriverSession::open(&hosts, Duration::from_secs(20), connect).await.unwrap())
    };
    Bench::new(open().await, open().await, root).await
}

async fn fake(servers: usize, root: &str) -> Bench {
    let link = Link::new(&Ensemble::new(servers, Duration::from_millis(32), 7), 8);
    // To catch up in real time is slow enough without something to catch up with.
    link.trust_sync();
    let open = async || link.open(Duration::from_secs(20)).await.unwrap();
    Bench::new(open().await, open().await, root).await
}

/// Lets the server of a client apply all that was committed by now.
async fn catch_up(client: &dyn SessionClient) {
    client.multi(&[Change::Check { path: "/", version: None }]).await.unwrap();
}

impl Side {
    fn watch(&mut self, watching: Watching) {
        self.watches.get_mut().unwrap().push(watching);
    }

    /// What is below a node, or nothing.
    async fn names(&self, path: &str) -> Vec<String> {
        self.client.children(path).await.map(|(names, _)| names).unwrap_or_default()
    }
}

impl Bench {
    async fn new(one: Arc<dyn SessionClient>, other: Arc<dyn SessionClient>, root: &str) -> Self {
        let acl = Acls::anyone_all();
        one.create(root, &[], CreateMode::Persistent, acl).await.unwrap();
        one.create(&format!("{root}/c"), &[], CreateMode::Container, acl).await.unwrap();
        let sides = [one, other].map(|client| Side { client, watches: Mutex::default() });
        Self { sides, root: root.to_owned(), zxids: Mutex::default() }
    }

    /// Sends a request, and returns the answer and the events since.
    async fn ask(&mut self, side: usize, request: Request) -> String {
        let client = Arc::clone(&self.sides[side].client);
        catch_up(&*client).await;
        let (at, acl) = (|path: &str| format!("{}{path}", self.root), Acls::anyone_all());
        let mut answer = match request {
            Request::Create { path, mode } => {
                let created = client.create(&at(path), b"xyz", mode, acl).await;
                format!("{:?}", created.map(|(path, stat)| (path, self.plain(stat))))
            }
            Request::Delete { path, version } => format!("{:?}", client.delete(&at(path), version).await),
            Request::Set { path, version } => {
                let set = client.set_data(&at(path), b"12", version).await;
                format!("{:?}", set.map(|stat| self.plain(stat)))
            }
            Request::Stat { path } => {
                let stat = client.stat(&at(path)).await;
                format!("{:?}", stat.map(|stat| stat.map(|stat| self.plain(stat))))
            }
            Request::Data { path } => {
                let data = client.data(&at(path)).await;
                format!("{:?}", data.map(|(data, stat)| (data, self.plain(stat))))
            }
            Request::Children { path } => {
                let listed = client.children(&at(path)).await;
                let sorted = listed.map(|(names, stat)| (BTreeSet::from_iter(names), self.plain(stat)));
                format!("{sorted:?}")
            }
            Request::WatchStat { path } => {
                let watched = client.watch_stat(&at(path)).await.map(|(stat, watching)| {
                    self.sides[side].watch(watching);
                    stat.map(|stat| self.plain(stat))
                });
                format!("{watched:?}")
            }
            Request::WatchData { path } => {
                let watched = client.watch_data(&at(path)).await.map(|(data, stat, watching)| {
                    self.sides[side].watch(watching);
                    (data, self.plain(stat))
                });
                format!("{watched:?}")
            }
            Request::Enter { dir } => {
                let (path, dir) = (at(&format!("{dir}/n")), at(dir));
                let mode = CreateMode::EphemeralSequential;
                let changes = [
                    Change::Create { path: &path, data: &[], mode, acl },
                    Change::Set { path: &dir, data: &[], version: None },
                ];
                self.answer(client.multi(&changes).await)
            }
            Request::Rotate { node, dir } => {
                let (node, dir) = (at(node), at(dir));
                let mode = CreateMode::Container;
                let changes = [
                    Change::Delete { path: &node, version: None },
                    Change::Delete { path: &dir, version: None },
                    Change::Create { path: &dir, data: &[], mode, acl },
                ];
                self.answer(client.multi(&changes).await)
            }
            Request::Guarded { check, version, set } => {
                let (check, set) = (at(check), at(set));
                let changes = [
                    Change::Check { path: &check, version },
                    Change::Set { path: &set, data: b"guarded", version: None },
                ];
                self.answer(client.multi(&changes).await)
            }
        };
        for side in &mut self.sides {
            // Events come before what is answered later.
            catch_up(&*side.client).await;
            side.client.stat("/").await.unwrap();
            side.watches.get_mut().unwrap().retain_mut(|watching| match watching.now_or_never() {
                Some(event) => {
                    answer.push_str(&format!(" {:?} {}", event.event_type, event.path));
                    false
                }
                None => true,
            });
        }
        answer
    }

    async fn close_first(&mut self) {
        let gone = Side { client: Arc::clone(&self.sides[1].client), watches: Mutex::default() };
        drop(std::mem::replace(&mut self.sides[0], gone));
        // It says farewell in its own time.
        until("its nodes are gone", async || {
            catch_up(&*self.sides[1].client).await;
            !self.has_nodes_of_the_first().await
        })
        .await;
    }

    async fn has_nodes_of_the_first(&self) -> bool {
        let client = &self.sides[1].client;
        for path in ["", "/c", "/d"] {
            for name in self.sides[1].names(&format!("{}{path}", self.root)).await {
                let stat = client.stat(&format!("{}{path}/{name}", self.root)).await.unwrap();
                if stat.is_some_and(|stat| stat.ephemeral_owner != 0 && stat.ephemeral_owner != client.id()) {
                    return true;
                }
            }
        }
        false
    }

    /// Without what depends on the server and the moment.
    fn plain(&self, stat: Stat) -> Stat {
        let owner = self.sides.iter().position(|side| side.client.id() == stat.ephemeral_owner);
        Stat {
            czxid: self.number(stat.czxid),
            mzxid: self.number(stat.mzxid),
            pzxid: self.number(stat.pzxid),
            ctime: 0,
            mtime: 0,
            ephemeral_owner: owner.map_or(0, |owner| owner as i64 + 1),
            ..stat
        }
    }

    /// Transactions are renumbered, as the sessions of earlier scripts may be ending on the server.
    fn number(&self, zxid: i64) -> i64 {
        let mut zxids = self.zxids.lock().unwrap();
        let known = zxids.iter().position(|known| *known == zxid);
        known.unwrap_or_else(|| {
            zxids.push(zxid);
            zxids.len() - 1
        }) as i64
    }

    /// The numbers in the order of the transactions.
    fn order(&self) -> Vec<usize> {
        let zxids = self.zxids.lock().unwrap();
        let mut order: Vec<usize> = (0..zxids.len()).collect();
        order.sort_unstable_by_key(|&number| zxids[number]);
        order
    }

    fn answer(&self, answer: Result<Vec<MultiWriteResult>, MultiWriteError>) -> String {
        let results = answer.map(|results| {
            let texts = results.into_iter().map(|result| match result {
                // ZooKeeper sends a stat of its own making here.
                MultiWriteResult::Create { path, .. } => format!("created {path}"),
                MultiWriteResult::SetData { stat } => format!("set {:?}", self.plain(stat)),
                other => format!("{other:?}"),
            });
            texts.collect::<Vec<_>>()
        });
        format!("{results:?}")
    }
}
