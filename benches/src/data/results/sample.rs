//! Realistic results, for the tests of everything that shows results.

use super::baseline::Change;
use super::*;

/// Realistic results, for the tests of everything that shows results.
pub(crate) fn sample() -> Results {
    let mut results = Results::new(Meta {
        date: "2026-11-20T20:15:00Z".into(),
        version: "0.1.0".into(),
        cores: 2,
        cpu: "Sample <CPU> & Co".into(),
        kernel: "Linux 6.1.0".into(),
        redis: Some("7.0.15".into()),
        zookeeper: Some("3.8.0".into()),
        postgres: Some("15.14".into()),
        mode: Mode::Quick,
        command: "cargo xtask compare --quick".into(),
        duration_s: 31.4,
        settings: std::collections::BTreeMap::from([
            ("contended.hold".into(), "1 ms".into()),
            ("contended.processes".into(), "8".into()),
            ("crash.ttl".into(), "2 s".into()),
        ]),
        note: "Machines are noisy.".into(),
        interrupted: None,
        repeats: 1,
    });
    let uncontended = [
        ("memory", [0.61, 0.74, 2.2], None, 1_420_113.0),
        ("redis", [88.2, 112.9, 241.0], Some([78.1, 97.4, 203.5]), 10_904.3),
        ("redlock", [214.8, 287.3, 611.7], Some([163.0, 228.6, 494.4]), 4_402.9),
        ("zk", [1_893.4, 2_604.0, 6_120.5], Some([1_771.2, 2_391.0, 5_689.3]), 498.2),
    ];
    for (backend, values, floors, ops) in uncontended {
        for (index, metric) in ["p50", "p90", "p99"].into_iter().enumerate() {
            let row = Row::new("uncontended", backend, metric, "us", values[index]);
            results.push(match floors {
                Some(floors) => row.with_floor(floors[index]),
                None => row,
            });
        }
        results.push(Row::new("uncontended", backend, "ops", "1/s", ops));
        results.push(Row::overlaps("uncontended", backend, 0));
    }
    let contended = [
        ("redis", [611.4, 702.5, 3_980.0, 61_200.0, 0.9931, 3.42]),
        ("redlock", [301.2, 2_204.0, 48_120.0, 410_000.0, 0.8713, 21.8]),
        ("zk", [288.7, 1_960.1, 5_400.0, 29_800.0, 0.9998, 4.01]),
    ];
    let metrics = [
        ("grants_per_s", "1/s"),
        ("handoff_p50", "us"),
        ("handoff_p99", "us"),
        ("longest_wait", "us"),
        ("jain", ""),
        ("requests_per_grant", ""),
    ];
    for (backend, values) in contended {
        for ((metric, unit), value) in metrics.into_iter().zip(values) {
            results.push(Row::new("contended", backend, metric, unit, value));
        }
        results.push(Row::overlaps("contended", backend, 0));
    }
    for (backend, takeover, ttl) in
        [("redis", 2_004.1, 2_000.0), ("redlock", 2_031.0, 2_000.0), ("zk", 1_604.9, 4_000.0)]
    {
        results.push(Row::new("crash", backend, "takeover", "ms", takeover).with_floor(ttl));
        results.push(Row::overlaps("crash", backend, 0));
    }
    results.claims = claims();
    results.faults = faults();
    results
}

/// A claim of each verdict and each kind of picture.
fn claims() -> Vec<ClaimResult> {
    let claim = |id, says: &str, verdict, because: &str| ClaimResult {
        id,
        claim: says.into(),
        verdict,
        because: because.into(),
        rule: "Holds when the figures say so.".into(),
        how: "Clients contend, and <someone> counts.".into(),
        figures: Vec::new(),
        pictures: Vec::new(),
        missing: Vec::new(),
        broken_promise: None,
        command: format!("cargo xtask compare --claim {id}"),
    };
    let mut waiting = claim(2, "A Redis waiter must keep polling.", Verdict::Holds, "redis 7.1, zk 0.0");
    for (subject, idle) in [("redis wait=queue", 1.4), ("redlock", 6.5), ("zk", 0.0)] {
        waiting.figures.push(Figure::new(subject, "idle_requests", "1/s", idle).at(64));
        waiting.figures.push(Figure::new(subject, "grant_requests", "", 4.0).at(64));
    }
    let [title, metric, x] =
        ["Requests while nothing happens", "idle_requests", "waiters"].map(str::to_owned);
    waiting.pictures.push(Picture::Curve { title, metric, x });
    let mut herd =
        claim(3, "Without sequential nodes there is a herd.", Verdict::Holds, "64 requests against 4");
    for (subject, counts) in
        [("zk", [4.0, 4.0]), ("zk recipe=ephemeral", [9.0, 64.0]), ("redlock", [21.0, 0.0])]
    {
        for (waiters, count) in [8_u32, 64].into_iter().zip(counts) {
            herd.figures.push(Figure::new(subject, "grant_requests", "", count).at(waiters));
        }
    }
    let [title, metric, x] = ["Requests per grant", "grant_requests", "waiters"].map(str::to_owned);
    herd.pictures.push(Picture::Curve { title, metric, x });
    let depends = Verdict::DependsOn("how many clocks jump, and on the quarantine".into());
    let mut fair = claim(4, "ZooKeeper locks are fair.", depends, "fair: zk 0.01; not fair: kazoo 3.1");
    for (subject, wait) in [("redis", 6_120.0), ("zk", 29_800.0), ("kazoo", 880_000.0)] {
        fair.figures.push(Figure::new(subject, "longest_wait", "us", wait));
    }
    let [title, metric] = ["The longest wait", "longest_wait"].map(str::to_owned);
    fair.pictures.push(Picture::Bars { title, metric });
    fair.missing.push("curator: java & its jars are missing".into());
    let mut safe = claim(8, "ZooKeeper is not absolutely safe either.", Verdict::DoesNotHold, "0 at L3");
    let span = |from_ms, until_ms, what, note: &str| Span { from_ms, until_ms, what, note: note.into() };
    let lane = |name: &str, spans| Lane { name: name.into(), spans };
    let lanes = vec![
        lane(
            "process 1",
            vec![
                span(0.0, 800.0, SpanKind::Valid, "token 7"),
                span(800.0, 2_600.0, SpanKind::Paused, ""),
                span(2_600.0, 2_900.0, SpanKind::Invalid, ""),
                span(2_600.0, 2_900.0, SpanKind::Overlap, "late write"),
            ],
        ),
        lane("process 2", vec![span(2_000.0, 3_000.0, SpanKind::Valid, "token 8")]),
        lane("anyone", vec![span(800.0, 2_000.0, SpanKind::Outage, "no grant")]),
    ];
    safe.pictures.push(Picture::Timeline { title: "A pause beyond the lease".into(), lanes });
    let mut moves = claim(12, "A fleet can move.", Verdict::NotJudged, "not part of this run");
    for (subject, p50) in [("redis", 88.2), ("zk", 289.0), ("migrate old", 89.1), ("migrate dual", 391.0)] {
        moves.figures.push(Figure::new(subject, "p50", "us", p50));
    }
    let steps = ["migrate old", "migrate dual"].map(str::to_owned).to_vec();
    let lines = ["redis", "zk"].map(str::to_owned).to_vec();
    let [title, metric] = ["Each rung", "p50"].map(str::to_owned);
    moves.pictures.push(Picture::Steps { title, metric, steps, lines });
    vec![waiting, herd, fair, safe, moves]
}

fn faults() -> Vec<FaultResult> {
    let fault = |fault: &str, backend: &str, l1, l2, verdict| FaultResult {
        fault: fault.into(),
        backend: backend.into(),
        servers: None,
        l1,
        l2,
        l3: 0,
        unfenced: 1,
        tokens: 0,
        outage_ms: 1_250.0,
        wait_ms: 1_300.0,
        promised: "two valid guards for the rest of the ttl".into(),
        verdict,
        what: "the lock was granted again".into(),
        history: "faults/restart.json".into(),
        command: "cargo xtask compare --faults".into(),
    };
    vec![
        fault("client paused", "redis", 1, 0, FaultVerdict::Holds),
        fault("client paused", "zk", 1, 0, FaultVerdict::Holds),
        fault("server restarted without data", "redis", 1, 1, FaultVerdict::BreaksAsDocumented),
    ]
}

/// Every field of every kind, for the test of the documentation.
pub(super) fn with_every_field() -> Results {
    let mut results = sample();
    results.fail("crash on zk", "stuck");
    results.faults[0].servers = Some("with sentinels".into());
    results.promises = crate::data::promises::judge(&results, &crate::data::plan::Plan::new(Mode::Quick));
    let spread = Spread { median: 1.0, least: 0.9, most: 1.1, repeats: 5 };
    let [scenario, backend, metric, unit] = ["crash", "zk", "takeover", "ms"].map(str::to_owned);
    let change = Change { scenario, backend, metric, unit, old: spread, new: spread };
    let mut baseline = BaselineResult::of(&results, &[]);
    baseline.changes.push(change);
    results.baseline = Some(baseline);
    results
}
