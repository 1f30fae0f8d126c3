//! What is counted, and that no metric has a secret.

use std::time::Duration;

use crate::common::{PASSED_ON, SECRET, Stage};
use lock_core::{LockName, Locks, LossReason};
use lock_layers::{MetricsLayer, PrefixLayer};
use lock_testkit::{give_back, take};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::time::{sleep, timeout};

/// A metric as `name{label="value",...}`, and its value: of a histogram all that was recorded.
type Metrics = Vec<(String, Vec<f64>)>;

fn read(snapshotter: &Snapshotter) -> Metrics {
    let mut all: Metrics = Vec::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: Vec<_> =
            key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let values = match value {
            DebugValue::Counter(count) => vec![count as f64],
            DebugValue::Gauge(value) => vec![value.into_inner()],
            DebugValue::Histogram(values) => values.into_iter().map(f64::from).collect(),
        };
        all.push((format!("{}{{{}}}", key.key().name(), labels.join(",")), values));
    }
    all.sort_by(|one, two| one.0.cmp(&two.0));
    all
}

fn of<'a>(metrics: &'a Metrics, name: &str) -> &'a [f64] {
    let found = metrics.iter().find(|(metric, _)| metric == name);
    &found.unwrap_or_else(|| panic!("there is no {name} in {metrics:#?}")).1
}

#[tokio::test(start_paused = true)]
async fn each_refusal_of_a_candidate_and_an_observer_is_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    let locks = Locks::new(Stage::new()).layer(MetricsLayer::new());
    let (election, limit) = (locks.election("down"), Duration::from_secs(20));
    let mut leaders = election.observe();
    let observes = async { while leaders.next().await.is_some() {} };
    let (led, observed) = tokio::join!(timeout(limit, election.campaign("one")), timeout(limit, observes));
    assert!(led.is_err() && observed.is_err(), "both go on");
    let all = read(&snapshotter);
    for refused in ["operation=acquire,code=timeout", "operation=inspect,code=denied"] {
        let counted =
            of(&all, &format!("polylock_errors_total{{backend=stage,{refused},outcome=not_applied}}"));
        assert!((10.0..30.0).contains(&counted[0]), "{refused}: {counted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn waits_and_holds_are_measured_and_ends_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    let stage = Stage::new();
    let last = stage.last.clone();
    let group = |name: &LockName| if name.as_str() == "a" { "first".to_owned() } else { "other".to_owned() };
    let locks = Locks::new(stage).layer(MetricsLayer::new().group_by(group));

    let guard = locks.mutex("a").acquire().await.unwrap();
    let owner = guard.owner().to_string();
    sleep(Duration::from_secs(2)).await;
    guard.release().await.unwrap();
    let lost = locks.mutex("b").acquire().await.unwrap();
    let lease = last.get();
    lease.cell.suspect();
    sleep(Duration::from_secs(1)).await;
    lease.cell.lose(LossReason::DeadlinePassed);
    sleep(Duration::from_secs(1)).await;
    assert!(lost.extend(Duration::from_secs(1)).await.is_err());
    lost.release().await.unwrap();
    assert!(locks.mutex("busy").try_acquire().await.unwrap().is_none());
    assert!(locks.mutex("down").acquire().await.is_err());
    assert!(timeout(Duration::from_secs(3), locks.mutex("never").acquire()).await.is_err());
    assert!(locks.inspect("a").await.is_err());

    let all = read(&snapshotter);
    let of = |name: &str| of(&all, name).to_vec();
    assert_eq!(of("polylock_hold_seconds{backend=stage,mode=exclusive,end=released,group=first}"), [2.0]);
    let held = of("polylock_hold_seconds{backend=stage,mode=exclusive,end=lost,group=other}");
    assert_eq!(held, [1.0], "until the loss");
    for (outcome, group) in
        [("acquired", "first"), ("acquired", "other"), ("busy", "other"), ("failed", "other")]
    {
        let wait =
            format!("polylock_wait_seconds{{backend=stage,mode=exclusive,outcome={outcome},group={group}}}");
        assert_eq!(of(&wait), [0.0], "{wait}");
    }
    assert_eq!(
        of("polylock_wait_seconds{backend=stage,mode=exclusive,outcome=cancelled,group=other}"),
        [3.0]
    );
    for counter in [
        "polylock_acquired_total{backend=stage,mode=exclusive,group=first}",
        "polylock_acquired_total{backend=stage,mode=exclusive,group=other}",
        "polylock_busy_total{backend=stage,mode=exclusive,group=other}",
        "polylock_cancelled_total{backend=stage,mode=exclusive,group=other}",
        "polylock_errors_total{backend=stage,operation=acquire,code=timeout,outcome=not_applied,group=other}",
        "polylock_errors_total{backend=stage,operation=extend,code=unavailable,outcome=not_applied,group=other}",
        "polylock_errors_total{backend=stage,operation=inspect,code=denied,outcome=not_applied}",
        "polylock_lost_total{backend=stage,mode=exclusive,reason=deadline_passed,group=other}",
        "polylock_released_total{backend=stage,mode=exclusive,group=first}",
        "polylock_suspect_total{backend=stage,mode=exclusive,group=other}",
    ] {
        assert_eq!(of(counter), [1.0], "{counter}");
    }
    assert_eq!(all.len(), 17, "{all:#?}");
    for (metric, _) in &all {
        assert!(!metric.contains(SECRET) && !metric.contains(&owner), "{metric}");
    }
}

#[tokio::test(start_paused = true)]
async fn hand_overs_are_counted() {
    for name in ["handed over", PASSED_ON] {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let _local = metrics::set_default_local_recorder(&recorder);
        let group = MetricsLayer::new().group_by(|name| name.as_str().len().to_string());
        // Wherever it stands, it sees the names of the program.
        let locks = Locks::new(Stage::new()).layer(group).layer(PrefixLayer::new("the/").unwrap());
        let first = take(&locks, name).await;
        let (mutex, releases) = (locks.mutex(name), async {
            sleep(Duration::from_secs(2)).await;
            first.release().await
        });
        let next = tokio::join!(mutex.acquire(), releases).0.unwrap();
        sleep(Duration::from_secs(1)).await;
        give_back(next).await;
        let all = read(&snapshotter);
        let of = |metric: &str, label: &str| {
            let metric = format!("{metric}{{backend=stage,mode=exclusive{label},group={}}}", name.len());
            of(&all, &metric).to_vec()
        };
        assert_eq!(of("polylock_acquired_total", ""), [1.0]);
        assert_eq!(of("polylock_wait_seconds", ",outcome=acquired"), [0.0, 2.0]);
        assert_eq!(of("polylock_queued_seconds", ""), [2.0]);
        assert_eq!(of("polylock_handed_over_total", ""), [1.0]);
        assert_eq!(of("polylock_released_total", ""), [1.0]);
        assert_eq!(of("polylock_hold_seconds", ",end=handed_over"), [2.0]);
        assert_eq!(of("polylock_hold_seconds", ",end=released"), [1.0]);
    }
}
