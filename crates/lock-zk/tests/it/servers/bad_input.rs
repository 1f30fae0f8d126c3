//! What servers or operators get wrong, and what users see.

use std::io::{ErrorKind as ErrorKindOfIo, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use lock_core::{ErrorKind, GuardState, LockName, Outcome, OwnerInfo};
use lock_testkit::ZooKeeper;

use crate::common::*;

/// An error at connect comes after it.
const CONNECTING: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_before_3_5_is_refused_with_its_version() {
    for (words, found) in [(true, "3.4.14"), (false, "a version that it does not report")] {
        let server = OldServer::start(words);
        let error = config_of(server.address).connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("older than ZooKeeper 3.5"), "{error}");
        assert!(error.to_string().contains(found), "{error}");
    }
}

/// A label that a server does not read would end the connection of the session, each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_candidate_whose_label_is_too_large_is_refused() {
    let server = server().await;
    let locks = connect(&server).await;
    let large = "l".repeat(1_500_000);
    let refused = soon(locks.election("a").campaign(large)).await.unwrap_err();
    assert_eq!(
        (refused.kind(), refused.outcome()),
        (ErrorKind::InvalidConfig, Outcome::NotApplied),
        "{refused}"
    );
    // A byte of the longest label takes six in a node.
    let longest = "\u{1}".repeat(OwnerInfo::MAX_LABEL_BYTES);
    let leadership = locks.election("a").campaign(&*longest).await.unwrap();
    assert_eq!(locks.election("a").leader().await.unwrap().unwrap().label(), Some(&*longest));
    leadership.resign().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_with_as_many_connections_as_it_allows_is_named_as_the_reason() {
    let server = ZooKeeper::builder().config("maxClientCnxns", "2").start().await.unwrap();
    let mut taken = Vec::new();
    while taken.len() < 2 {
        let mut stream = TcpStream::connect(server.addr()).unwrap();
        // Time: a server closes a connection that is too many at once.
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        // It is closed if a connection from before counts still.
        if stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKindOfIo::WouldBlock) {
            taken.push(stream);
        }
    }
    let config = || config(&server).connect_timeout(CONNECTING);
    let error = config().connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("maxClientCnxns"), "{error}");
    drop(taken);
    opened(&config()).await.close().await.unwrap();
}

/// Ephemeral nodes need a session that all servers know.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn sessions_that_are_local_to_a_server_are_upgraded_or_named_as_the_reason() {
    for upgrades in [true, false] {
        let options = ZooKeeper::builder().config("localSessionsEnabled", "true");
        let options =
            options.config("localSessionsUpgradingEnabled", if upgrades { "true" } else { "false" });
        let ensemble = Ensemble::from(options.start_ensemble(2).await.unwrap());
        for node in ensemble.nodes() {
            let locks = opened(&config(node)).await;
            // The second one writes the directory in the same transaction.
            for _ in 0..2 {
                let acquired = soon(locks.mutex("a").acquire()).await;
                if upgrades {
                    give_back(acquired.unwrap()).await;
                    continue;
                }
                let error = acquired.unwrap_err();
                assert_eq!((error.kind(), error.can_pass()), (ErrorKind::Unsupported, false), "{error}");
                assert!(error.to_string().contains("localSessionsUpgradingEnabled"), "{error}");
            }
            locks.close().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn a_read_only_server_is_no_server() {
    let options = ZooKeeper::builder().property("readonlymode.enabled", "true");
    let ensemble = Ensemble::from(options.start_ensemble(2).await.unwrap());
    let config = || config_of(ensemble.connect_string()).connect_timeout(CONNECTING);
    let locks = opened(&config()).await;
    let guard = take(&locks, "a").await;
    ensemble.kill(0);
    // The remaining server only reads, and would show the lock as held for ever.
    until("it only reads", async || ensemble.nodes()[1].mode().await.as_deref() == Some("read-only")).await;
    soon(guard.lost()).await;
    assert!(guard.verify().await.is_ok_and(|state| matches!(state, GuardState::Lost(_))));
    let error = config().connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("majority"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn no_lock_is_taken_through_an_observer() {
    let ensemble = ZooKeeper::builder().observers(1).start_ensemble(2).await.unwrap();
    let ensemble = Ensemble::from(ensemble);
    let observer = &ensemble.nodes()[2];
    assert_eq!(observer.mode().await.as_deref(), Some("observer"));
    let config = |hosts| config_of(hosts).connect_timeout(4 * CONNECTING);
    let error = config(observer.connect_string()).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    for text in [observer.connect_string().as_str(), "all of these servers are observers"] {
        assert!(error.to_string().contains(text), "{error}");
    }

    // Beside others it is left alone.
    let mut guards = Vec::new();
    for number in 0..10 {
        let locks = config(ensemble.connect_string()).connect().await.unwrap();
        guards.push((take(&locks, &format!("lock {number}")).await, locks));
    }
    // There is only this question, once those have gone that asked it for its number.
    until("the observer has no session", async || {
        observer.mntr().await.unwrap()["zk_num_alive_connections"] == "1"
    })
    .await;
    let report = guards[0].1.doctor().await.unwrap();
    let of_observer = report.findings.iter().filter(|finding| finding.server == observer.addr().to_string());
    assert!(of_observer.into_iter().any(|finding| finding.what.contains("has no vote")), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn an_observer_that_comes_back_later_gets_no_session() {
    let ensemble = ZooKeeper::builder().observers(1).start_ensemble(3).await.unwrap();
    let ensemble = Ensemble::from(ensemble);
    let [first, .., observer] = ensemble.nodes() else { panic!("there are four") };
    observer.kill();
    let hosts = format!("{},{}", first.connect_string(), observer.connect_string());
    let config = config_of(hosts).session_timeout(LONG).connect_timeout(4 * CONNECTING);
    let locks = opened(&config).await;
    let guard = take(&locks, "a").await;
    observer.start_again().await.unwrap();
    first.kill();
    // Its session has nowhere to go.
    until("the lock is lost", async || {
        let connections = observer.four_letter("cons").await.unwrap();
        assert!(!connections.contains("sid="), "{connections}");
        !guard.is_valid()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_name_has_a_directory_of_its_own() {
    let server = server().await;
    let (locks, other) = (connect(&server).await, client(&server).await);
    let longest = "\u{1f600}".repeat(256);
    let names = ["zookeeper", ".", "..", "a/b", "a%2Fb", "a\0b", "\u{e000}\u{ffff}", "!token-base", &longest];
    let mut guards = Vec::new();
    for name in names {
        guards.push(locks.mutex(name).try_acquire().await.unwrap().expect(name));
    }
    let directories = other.list_children("/locks").await.unwrap();
    assert_eq!(directories.len(), names.len(), "{directories:?}");
    for guard in guards {
        give_back(guard).await;
    }
    for name in [String::new(), "n".repeat(LockName::MAX_BYTES + 1)] {
        let error = locks.mutex(&name).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_dir_below_an_ephemeral_node_is_reported() {
    use lock_zk::zookeeper_client::{Acls, CreateMode};

    let (server, everybody) = (server().await, Acls::anyone_all());
    let other = client(&server).await;
    other.create("/gone-soon", b"", &CreateMode::Ephemeral.with_acls(everybody)).await.unwrap();
    let locks = config(&server).dir("/gone-soon").connect().await.unwrap();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("/gone-soon/a is below an ephemeral node"), "{error}");
}

/// As much of a server of version 3.4 as a client sees of it before it is refused.
struct OldServer {
    address: String,
}

impl OldServer {
    fn start(words: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for stream in listener.incoming() {
                // The client may leave at any time.
                drop(stream.map(|stream| serve(stream, words)));
            }
        });
        Self { address }
    }
}

fn serve(mut stream: TcpStream, words: bool) -> std::io::Result<()> {
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    if &head == b"srvr" {
        let answer = if words {
            "Zookeeper version: 3.4.14-4c25d480e, built on 03/06/2019\nMode: leader\n"
        } else {
            ""
        };
        return stream.write_all(answer.as_bytes());
    }
    let mut body = vec![0; i32::from_be_bytes(head) as usize];
    stream.read_exact(&mut body)?;
    // Protocol, timeout, session, password, not read-only.
    let answer = [
        &0_i32.to_be_bytes()[..],
        &5_000_i32.to_be_bytes(),
        &7_i64.to_be_bytes(),
        &16_i32.to_be_bytes(),
        &[1; 16],
        &[0],
    ];
    frame(&mut stream, &answer.concat())?;
    loop {
        stream.read_exact(&mut head)?;
        body.resize(i32::from_be_bytes(head) as usize, 0);
        stream.read_exact(&mut body)?;
        // There is no such node, whatever is asked for; a ping finds all well.
        let error = if body[..4] == (-2_i32).to_be_bytes() { 0_i32 } else { -101 };
        frame(&mut stream, &[&body[..4], &1_i64.to_be_bytes(), &error.to_be_bytes()].concat())?;
    }
}

fn frame(stream: &mut TcpStream, body: &[u8]) -> std::io::Result<()> {
    stream.write_all(&i32::try_from(body.len()).unwrap().to_be_bytes())?;
    stream.write_all(body)
}
