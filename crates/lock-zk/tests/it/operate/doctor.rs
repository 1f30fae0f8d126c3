//! What an examination of the servers finds.

use std::time::Duration;

use lock_core::DoctorReport;
use lock_testkit::ZooKeeper;
use lock_zk::zookeeper_client::{Acl, AuthId, Permission};
use lock_zk::{NodeAcl, ZkConfig};

use crate::common::*;

fn finds(report: &DoctorReport, text: &str) -> bool {
    report.findings.iter().any(|finding| finding.to_string().contains(text))
}

/// An ACL that needs no password, and is not for everybody.
fn this_host() -> NodeAcl {
    NodeAcl::Custom(vec![Acl::new(Permission::ALL, AuthId::new("ip", "127.0.0.1"))])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_that_is_well_has_no_warnings() {
    // Time: two ticks are more than a session lasts, which matters to an ensemble only.
    let (tick, least) = (Duration::from_secs(3), Duration::from_secs(1));
    let options = ZooKeeper::builder().tick_time(tick).min_session_timeout(least);
    let server = Server::from(options.max_session_timeout(TIMEOUT).start().await.unwrap());
    let config = config(&server).session_timeout(2 * TIMEOUT).acl(this_host());
    let report = opened(&config).await.doctor().await.unwrap();
    for text in [
        "the session timeout is 5s",
        "a session_timeout of 10s was requested",
        &format!("{}: ZooKeeper 3.", server.addr()),
        "standalone",
        "is alone",
        "grants session timeouts from 1000 to 5000 ms",
    ] {
        assert!(finds(&report, text), "{text} is missing:\n{report}");
    }
    assert!(!finds(&report, "warning"), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn nodes_for_everybody_and_passwords_for_every_reader_are_warned_of() {
    let server = server().await;
    let examined = async |config: ZkConfig| config.connect().await.unwrap().doctor().await.unwrap();
    let of_somebody = || config(&server).credentials("me", "s3cret");
    let [open, shown] = ["everybody may create and delete nodes in /", "the password goes over the network"];

    // Nothing is made yet: the ACL will be that of the client.
    let report = examined(config(&server).dir("/doctor/open")).await;
    assert!(
        finds(&report, open)
            && !finds(&report, shown)
            && !report.warnings().any(|one| one.what.contains(open)),
        "{report}"
    );
    let report = examined(of_somebody().dir("/doctor/closed")).await;
    assert!(!finds(&report, open) && finds(&report, shown), "{report}");

    // What was made without a password stays open.
    let locks = config(&server).dir("/doctor/moved").connect().await.unwrap();
    for name in ["a", "b"] {
        give_back(take(&locks, name).await).await;
    }
    let report = examined(of_somebody().dir("/doctor/moved")).await;
    let moved = "nodes in /doctor/moved and in 2 more directories";
    assert!(report.warnings().any(|one| one.what.contains(moved)), "{report}");

    let hidden = examined(config(&server).dir("/doctor/mine").acl(this_host())).await;
    assert!(!finds(&hidden, open) && !finds(&hidden, shown), "{hidden}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_server_of_an_ensemble_is_examined() {
    let ensemble = ensemble().await;
    let config = ZkConfig::new(ensemble.connect_string()).session_timeout(LASTING);
    let config = config.acl(this_host());
    let locks = config.connect().await.unwrap();
    let report = locks.doctor().await.unwrap();
    let of = |text: &str| report.findings.iter().filter(|finding| finding.what.ends_with(text)).count();
    assert_eq!((of(", leader"), of(", follower")), (1, 2), "{report}");
    // That of some distributions is warned of, on each server.
    let others = |report: &DoctorReport| {
        let warnings = report.warnings().filter(|warning| !warning.what.contains("lose acknowledged writes"));
        warnings.cloned().collect::<Vec<_>>()
    };
    assert_eq!(others(&report), [], "{report}");

    let leader = ensemble.leader().await.unwrap();
    let away = (leader + 1) % 3;
    ensemble.kill(away);
    let report = locks.doctor().await.unwrap();
    let warnings = others(&report);
    assert_eq!(warnings.len(), 1, "{report}");
    assert_eq!(warnings[0].server, ensemble.nodes()[away].addr().to_string());
    ensemble.nodes()[away].start_again().await.unwrap();
}
