//! The store as the target of a migration: the record, and who takes part.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::migration::{Member, MigrationTarget, StoredRecord};
use lock_core::{
    AcquireRequest, Acquired, Backend, ErrorKind, Lease, LeasePolicy, LockName, OwnerInfo, Token, TokenBlock,
    Wait,
};
use lock_testkit::ZooKeeper;
use lock_testkit::proxy::{Direction, Then};
use lock_zk::zookeeper_client::{Acls, CreateMode};
use lock_zk::{Zk, ZkConfig};
use tokio::time::timeout;

use crate::common::{
    LASTING, SHORT, TIMEOUT, client, config, lose, mkdir, proxy, server, soon, through, until,
};

const MEMBERS: &str = "/locks/!migration/members";

/// Registers the record that it has seen, and remembers the calls.
#[derive(Debug, Default)]
struct Process {
    seen: Mutex<Vec<Option<StoredRecord>>>,
    /// What it has to say beside the record.
    says: Mutex<String>,
}

impl Member for Process {
    fn registration(&self, seen: Option<&StoredRecord>) -> Vec<u8> {
        let mut before = self.seen.lock().unwrap();
        if before.last() != Some(&seen.cloned()) {
            before.push(seen.cloned());
        }
        let mut text = seen.map_or_else(|| b"none".to_vec(), |record| record.data.to_vec());
        text.extend(self.says.lock().unwrap().bytes());
        text
    }
}

async fn connect(server: &ZooKeeper) -> Zk {
    open(config(server)).await
}

async fn open(config: ZkConfig) -> Zk {
    Zk::connect(config).await.unwrap()
}

fn target(zk: &Zk) -> &dyn MigrationTarget {
    zk.migration_target().unwrap()
}

async fn hold(zk: &Zk, name: &str) -> Box<dyn Lease> {
    let owner = Arc::new(OwnerInfo::this_process());
    let name = LockName::new(name).unwrap();
    let request = AcquireRequest::exclusive(name, Wait::Forever, LeasePolicy::default(), owner);
    match zk.acquire(request).await.unwrap() {
        Acquired::Held(lease) => lease,
        busy => panic!("{busy:?}"),
    }
}

async fn registered(zk: &Zk) -> Vec<String> {
    let members = target(zk).members().await.unwrap();
    members.into_iter().map(|member| String::from_utf8(member.data).unwrap()).collect()
}

/// Waits until this is registered.
async fn until_registered(zk: &Zk, expected: &[&str]) {
    until(&format!("{expected:?} is registered"), async || registered(zk).await == expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_record_is_written_by_compare_and_set() {
    let server = server().await;
    let zk = connect(&server).await;
    let target = target(&zk);
    assert_eq!(target.read_record().await.unwrap(), None);
    assert!(target.write_record(b"one", None).await.unwrap());
    assert!(!target.write_record(b"two", None).await.unwrap());
    let record = target.read_record().await.unwrap().unwrap();
    assert_eq!(&*record.data, b"one");
    assert!(target.write_record(b"two", Some(record.version)).await.unwrap());
    assert!(!target.write_record(b"three", Some(record.version)).await.unwrap());
    assert_eq!(&*target.read_record().await.unwrap().unwrap().data, b"two");
    assert_eq!(zk.list("").await.unwrap(), [], "the record is no lock");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_answer_to_a_write_of_the_record_is_lost() {
    let server = server().await;
    let proxy = proxy(&server);
    let (zk, other) = (open(through(&proxy).session_timeout(LASTING)).await, connect(&server).await);
    let (target, other) = (target(&zk), target(&other));
    let mut version = None;
    let writes = |data: &'static [u8]| move |sent: &[u8]| sent.windows(data.len()).any(|at| at == data);
    for data in [b"one", b"two"] {
        lose(&proxy, Some(Then::Reset), writes(data));
        assert!(soon(target.write_record(data, version)).await.unwrap());
        assert_eq!(proxy.fired(), 1);
        let record = target.read_record().await.unwrap().unwrap();
        assert_eq!((&*record.data, record.version), (&data[..], version.map_or(0, |version| version + 1)));
        version = Some(record.version);
    }
    // Whoever was first is the only one.
    assert!(other.write_record(b"three", version).await.unwrap());
    lose(&proxy, Some(Then::Reset), writes(b"four"));
    assert!(!soon(target.write_record(b"four", version)).await.unwrap());
    assert_eq!(&*target.read_record().await.unwrap().unwrap().data, b"three");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_process_is_registered_before_its_first_lock_and_follows_the_record() {
    let server = server().await;
    let (zk, operator) = (connect(&server).await, connect(&server).await);
    let process = Arc::new(Process::default());
    let member: Arc<dyn Member> = Arc::clone(&process) as _;
    target(&zk).join(Arc::clone(&member)).await.unwrap();
    assert_eq!(target(&zk).join(member).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    assert_eq!(registered(&operator).await, ["none"], "before its first lock");
    let first = hold(&zk, "a").await;
    assert_eq!(registered(&operator).await, ["none"]);
    assert_eq!(target(&zk).record_at(&*first).await.unwrap(), None);

    assert!(target(&operator).write_record(b"one", None).await.unwrap());
    let second = hold(&zk, "b").await;
    assert_eq!(
        &*target(&zk).record_at(&*second).await.unwrap().unwrap().data,
        b"one",
        "a grant sees it at once"
    );
    until_registered(&operator, &["one"]).await;

    let record = target(&operator).read_record().await.unwrap().unwrap();
    assert!(target(&operator).write_record(b"two", Some(record.version)).await.unwrap());
    until_registered(&operator, &["two"]).await;
    assert_eq!(&*target(&zk).record_at(&*first).await.unwrap().unwrap().data, b"two");
    assert_eq!(process.seen.lock().unwrap().len(), 3, "none, one, two");

    process.says.lock().unwrap().push_str(", and more");
    until_registered(&operator, &["two, and more"]).await;

    // By hand, by somebody who took it for dead.
    let hand = client(&server).await;
    let members = hand.list_children(MEMBERS).await.unwrap();
    assert_eq!(members.len(), 1);
    hand.delete(&format!("{MEMBERS}/{}", members[0]), None).await.unwrap();
    until_registered(&operator, &["two, and more"]).await;

    zk.close().await.unwrap();
    until_registered(&operator, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_process_without_locks_stays_registered_when_its_session_ends() {
    let server = server().await;
    let proxy = proxy(&server);
    let (zk, operator) = (open(through(&proxy).session_timeout(SHORT)).await, connect(&server).await);
    target(&zk).join(Arc::new(Process::default())).await.unwrap();
    let before = target(&operator).members().await.unwrap();
    proxy.refuse(true);
    proxy.rst();
    until_registered(&operator, &[]).await;
    proxy.heal();
    until_registered(&operator, &["none"]).await;
    assert_ne!(before[0].session, target(&operator).members().await.unwrap()[0].session);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn registrations_that_are_dropped_leave_one_member_per_session_that_follows() {
    let server = server().await;
    let proxy = proxy(&server);
    let zk = open(through(&proxy).session_timeout(2 * TIMEOUT).locks_per_session(1)).await;
    let operator = connect(&server).await;
    target(&zk).join(Arc::new(Process::default())).await.unwrap();
    let _first = hold(&zk, "held").await;
    // Time: acquisitions are dropped at each step within these delays.
    proxy.delay(Direction::ToClient, Duration::from_millis(5));
    for at in 0..40 {
        let lock = format!("dropped-{at}");
        // Time: as above.
        let _ = timeout(Duration::from_millis(2 * at), hold(&zk, &lock)).await;
    }
    proxy.heal();
    assert!(target(&operator).write_record(b"one", None).await.unwrap());
    until("one member per session, which follows", async || {
        let members = target(&operator).members().await.unwrap();
        let sessions: HashSet<_> = members.iter().map(|member| member.session.split('-').next()).collect();
        members.iter().all(|member| member.data == b"one") && sessions.len() == members.len()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn locks_that_wait_for_the_registration_of_a_session_have_their_room_there() {
    let server = server().await;
    let zk = open(config(&server).session_timeout(LASTING).locks_per_session(1)).await;
    target(&zk).join(Arc::new(Process::default())).await.unwrap();
    let leases = join_all(["a", "b", "c", "d"].map(|name| hold(&zk, name))).await;
    let sessions = registered(&zk).await.len();
    assert_eq!(sessions, leases.len(), "a session has one lock");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_process_takes_part_once_the_server_no_longer_refuses() {
    let server = server().await;
    let (zk, operator) = (connect(&server).await, client(&server).await);
    mkdir(&operator, "/locks/!migration").await;
    let closed = CreateMode::Persistent.with_acls(Acls::anyone_read());
    operator.create(MEMBERS, b"", &closed).await.unwrap();
    let member: Arc<dyn Member> = Arc::new(Process::default());
    for _ in 0..2 {
        let error = target(&zk).join(Arc::clone(&member)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    operator.delete(MEMBERS, None).await.unwrap();
    target(&zk).join(member).await.unwrap();
    assert_eq!(registered(&zk).await, ["none"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn names_that_have_moved_are_noted() {
    let server = server().await;
    // A busy machine takes long for a thousand nodes.
    let zk = open(config(&server).session_timeout(LASTING)).await;
    let names: Vec<_> =
        (0..1000).map(|at| LockName::new(format!("orders/{at} %\u{1f600}")).unwrap()).collect();
    assert_eq!(target(&zk).moved().await.unwrap(), []);
    target(&zk).note_moved(&names).await.unwrap();
    target(&zk).note_moved(&names[..3]).await.unwrap();
    let mut noted = target(&zk).moved().await.unwrap();
    noted.sort();
    let mut expected = names.clone();
    expected.sort();
    assert_eq!(noted, expected);
    target(&zk).forget_moved(&names[1..]).await.unwrap();
    target(&zk).forget_moved(&names[1..2]).await.unwrap();
    assert_eq!(target(&zk).moved().await.unwrap(), names[..1]);
    assert_eq!(zk.list("").await.unwrap(), [], "they are no locks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_migration_of_a_directory_above_is_found() {
    let server = server().await;
    let at = |dir| open(config(&server).dir(dir));
    let (above, below) = (at("/a").await, at("/a/b/c").await);
    assert!(target(&above).write_record(b"one", None).await.unwrap());
    assert!(target(&below).write_record(b"two", None).await.unwrap());
    assert_eq!(target(&above).examine().await.unwrap(), []);
    let findings = target(&below).examine().await.unwrap();
    assert!(matches!(&*findings, [finding] if finding.what.contains("/a ")), "{findings:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_new_session_registers_anew() {
    let server = server().await;
    let proxy = proxy(&server);
    let (zk, operator) = (open(through(&proxy).session_timeout(SHORT)).await, connect(&server).await);
    target(&zk).join(Arc::new(Process::default())).await.unwrap();
    let lease = hold(&zk, "a").await;
    let before = target(&operator).members().await.unwrap();
    assert_eq!(before.len(), 1);
    proxy.refuse(true);
    proxy.rst();
    soon(lease.validity().lost()).await;
    proxy.heal();
    let _lease = hold(&zk, "a").await;
    let after = target(&operator).members().await.unwrap();
    assert_eq!(after.len(), 1);
    assert_ne!(before[0].session, after[0].session);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_age_of_a_lock_includes_what_was_raised() {
    let server = server().await;
    let zk = connect(&server).await;
    let lease = hold(&zk, "a").await;
    let before = target(&zk).age(&*lease).await.unwrap();
    assert_eq!(before.newest, before.created);
    assert_eq!(TokenBlock::SIZE * before.created, lease.token().get());
    lease.raise_token(Token::new(1_000_000_000)).await.unwrap();
    let after = target(&zk).age(&*lease).await.unwrap();
    assert_eq!(after.created, before.created);
    assert!(after.newest > after.created, "{after:?}");
    let later = hold(&zk, "b").await;
    let later = target(&zk).age(&*later).await.unwrap();
    assert!(later.created > after.newest && later.newest == later.created, "{later:?}");
}
