//! The ways to reach the masters, and what the doctor sees of them.

use lock_core::{ErrorKind, FindingLevel};
use lock_testkit::{RedisCluster, RedisServer, give_back, take};

use crate::common::{connect, start};

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn the_doctor_sees_every_master() {
    let (five, locks) = start(5, "").await;
    five.servers()[3].kill();
    let report = locks.doctor().await.unwrap();
    for (at, master) in five.servers().iter().enumerate() {
        let said = |what: &str| {
            let about = report.findings.iter().filter(|finding| finding.server == master.addr().to_string());
            about.filter(|finding| finding.what.contains(what)).map(|finding| finding.level).next()
        };
        if at == 3 {
            assert_eq!(said("unreachable"), Some(FindingLevel::Warning), "{report}");
        } else {
            let version = RedisServer::version();
            assert_eq!((said(version), said("unreachable")), (Some(FindingLevel::Note), None), "{report}");
        }
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn names_whose_helpers_would_be_elsewhere_are_refused_by_masters_in_cluster_mode() {
    let mut masters = Vec::new();
    for _ in 0..3 {
        masters.push(RedisCluster::start_n(1, false).await.unwrap());
    }
    let addrs: Vec<_> = masters.iter().map(|cluster| cluster.masters()[0].addr().to_string()).collect();
    let locks = connect(&format!("redlock://{}", addrs.join(","))).await.unwrap();
    for _ in 0..2 {
        give_back(take(&locks, "{a}b").await).await;
    }
    let error = locks.mutex("a}b").try_acquire().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
    assert!(error.to_string().contains("{orders}"), "{error}");
    for master in &masters {
        assert!(!master.masters()[0].has_key("lock:a}b").await, "nothing is left");
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn masters_are_spoken_to_over_tls() {
    use std::sync::Arc;

    use lock_testkit::Certificates;

    use crate::common::{all_have_it, secure};

    if RedisServer::lacks_tls() {
        return;
    }
    let certificates = Arc::new(Certificates::new().unwrap());
    let (masters, url) = secure(&certificates).await;
    let locks = connect(&format!("{url}?tls_ca={}", certificates.ca().display())).await.unwrap();
    let guard = take(&locks, "a").await;
    all_have_it(&masters).await;
    give_back(guard).await;
    let error = connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("tls_ca"), "{error}");
    let error = connect(&url.replace("redlocks", "redlock")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
