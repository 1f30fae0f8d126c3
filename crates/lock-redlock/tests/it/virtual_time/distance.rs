//! Masters that are far away, and masters whose clocks differ.

use lock_core::{ErrorKind, FindingLevel};
use lock_testkit::LogCapture;
use tokio::time::sleep;

use super::fleet::Fleet;
use super::{MILLI, SECOND, away, cycle};

#[tokio::test(start_paused = true)]
async fn clocks_that_differ_are_warned_of_with_the_figures() {
    let (fleet, (log, _guard)) = (Fleet::new(3).await, LogCapture::begin());
    let locks = fleet.connect(10 * SECOND).await;
    assert_eq!(log.warnings("the clock of"), [""; 0]);
    let report = locks.doctor().await.unwrap();
    assert!(!report.to_string().contains("the clock of"), "{report}");

    fleet.masters[1].step_clock(500);
    let report = locks.doctor().await.unwrap();
    let _locks = fleet.connect(10 * SECOND).await;
    for said in [report.to_string(), log.warnings("the clock of").concat()] {
        for figure in ["the clock of master-1:6379 is at least 500ms ahead", "the drift margin is 102ms"] {
            assert!(said.contains(figure), "{said}");
        }
        assert!(
            ["master-0:6379", "master-2:6379"].iter().any(|other| said.contains(&format!("that of {other}"))),
            "{said}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn masters_that_are_too_far_away_for_the_ttl_are_refused() {
    let fleet = Fleet::new(3).await;
    fleet.set_all(&away(50));
    let error = fleet.config(SECOND / 5).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("too short: a quorum of the masters"), "{error}");
    let report = fleet.connect(SECOND).await.doctor().await.unwrap();
    let far = report.warnings().find(|finding| finding.what.contains("which is long for a ttl"));
    assert!(far.is_some_and(|finding| finding.level == FindingLevel::Warning), "{report}");
}

#[tokio::test(start_paused = true)]
async fn masters_that_are_slow_for_a_moment_are_not_too_far_away() {
    let fleet = Fleet::new(3).await;
    fleet.set_all(&away(250));
    let config = fleet.config(SECOND).master_timeout(5 * SECOND).connect_timeout(20 * SECOND);
    let connecting = tokio::spawn(config.connect());
    // Each is asked once when it is examined, and then to see how far away it is.
    sleep(800 * MILLI).await;
    assert!(!connecting.is_finished());
    fleet.set_all(&away(0));
    cycle(&connecting.await.unwrap().unwrap()).await;
}
