//! Examines the masters.

use std::time::Duration;

use lock_core::{DoctorReport, Finding, FindingLevel};
use redis_link::wall_clock::WallClock;
use tokio::time::Instant;

use crate::servers::master::{Master, Readiness};
use crate::servers::masters::{Masters, ask_all, votes_from};
use crate::voting::quorum::quorum;

/// One reading of the clock of a master.
#[derive(Clone, Debug)]
pub(crate) struct ClockReading {
    master: String,
    /// How far it is ahead of the client's clock, at least and at most, in microseconds; negative is behind.
    ahead: (i128, i128),
    pub(crate) round_trip: Duration,
}

/// Examines every master, and the differences between them.
pub(crate) async fn examine(masters: &Masters, ttl: Duration, wall_clock: &WallClock) -> DoctorReport {
    let answers = ask_all(masters, |master| async move { master.client.examine().await }).await;
    let mut report = DoctorReport::default();
    for (master, answer) in masters.iter().zip(answers) {
        match answer {
            Ok(findings) => report.findings.extend(findings),
            Err(error) => report.findings.push(about(
                master,
                format!("the master is unreachable: {error}"),
                "bring it back: until then fewer other masters may fail",
            )),
        }
        if let Readiness::NotVoting(error) = master.readiness() {
            report.findings.push(about(
                master,
                error.to_string(),
                "until it votes, fewer other masters may fail",
            ));
        }
    }
    report.findings.extend(too_many_restarts(masters));
    let clocks = clocks(masters, wall_clock).await;
    report.findings.extend(compare_clocks(&clocks, ttl));
    report.findings.extend(far_away(masters.len(), &clocks, ttl));
    report.findings.sort_by(|one, other| one.server.cmp(&other.server));
    report
}

/// Reads the clocks of all masters.
pub(crate) async fn clocks(masters: &Masters, wall_clock: &WallClock) -> Vec<ClockReading> {
    let answers = ask_all(masters, |master| {
        let wall_clock = wall_clock.clone();
        async move {
            let (sent, before) = (Instant::now(), wall_clock.now());
            let theirs = master.client.time().await?;
            let (after, round_trip) = (wall_clock.now(), sent.elapsed());
            let micros = |time: Duration| i128::try_from(time.as_micros()).unwrap_or(i128::MAX);
            // The master read it at some time between the two.
            let ahead = (micros(theirs) - micros(after), micros(theirs) - micros(before));
            Ok(ClockReading { master: master.client.address().to_owned(), ahead, round_trip })
        }
    });
    answers.await.into_iter().flatten().collect()
}

/// Warns when two clocks differ by more than the drift that leases allow for.
pub(crate) fn compare_clocks(clocks: &[ClockReading], ttl: Duration) -> Option<Finding> {
    let slow = clocks.iter().min_by_key(|clock| clock.ahead.1)?;
    let fast = clocks.iter().max_by_key(|clock| clock.ahead.0)?;
    let differ = Duration::from_micros(u64::try_from(fast.ahead.0 - slow.ahead.1).ok()?);
    let margin = ttl / 100 + Duration::from_millis(2);
    (differ > margin).then(|| Finding::new(FindingLevel::Warning, "", format!(
            "the clock of {} is at least {differ:?} ahead of that of {}, and the drift margin is {margin:?}",
            fast.master, slow.master
        ), "check the time synchronisation (chrony, ntpd) of the masters: a clock that is stepped while locks are held \
             expires them early, and two may hold a lock"))
}

/// Warns when so many masters have restarted that no quorum votes.
fn too_many_restarts(masters: &Masters) -> Option<Finding> {
    let left = votes_from(masters)?.saturating_duration_since(Instant::now());
    let may_fail = u32::try_from(masters.len() - quorum(masters.len())).unwrap_or(u32::MAX);
    let distance = masters[0].longest_quarantine() / may_fail;
    Some(Finding::new(
        FindingLevel::Warning,
        "",
        format!(
            "no lock can be acquired for {left:.1?}: that many masters have restarted; held locks are kept"
        ),
        format!("restart masters one by one, at least {distance:?} apart"),
    ))
}

/// Warns when the round trips are long for the ttl.
fn far_away(masters: usize, clocks: &[ClockReading], ttl: Duration) -> Option<Finding> {
    let trip = round_trip(masters, clocks)?;
    // Renewals are sent at a third of the ttl, and need time for retries.
    (trip * 12 > ttl).then(|| {
        Finding::new(
            FindingLevel::Warning,
            "",
            format!("a quorum answers in {trip:?}, which is long for a ttl of {ttl:?}"),
            "use a longer ttl, or masters that are nearer",
        )
    })
}

/// The time in which a quorum answers.
pub(crate) fn round_trip(masters: usize, clocks: &[ClockReading]) -> Option<Duration> {
    let mut trips: Vec<_> = clocks.iter().map(|clock| clock.round_trip).collect();
    trips.sort_unstable();
    trips.get(quorum(masters) - 1).copied()
}

fn about(master: &Master, what: String, advice: &str) -> Finding {
    let server = master.client.address().to_owned();
    Finding::new(FindingLevel::Warning, server, what, advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that is this many milliseconds ahead, read with a round trip of 10 ms.
    fn clock(master: &str, ahead: i128) -> ClockReading {
        let ahead = (ahead * 1000 - 5000, ahead * 1000 + 5000);
        ClockReading { master: master.into(), ahead, round_trip: Duration::from_millis(10) }
    }

    #[test]
    fn clocks_that_differ_are_reported_with_figures() {
        let ttl = Duration::from_secs(10);
        assert_eq!(compare_clocks(&[], ttl), None);
        let near = [clock("a:1", -50), clock("b:1", 0), clock("c:1", 60)];
        assert_eq!(compare_clocks(&near, ttl), None, "within the margin of 102 ms");
        let far = [clock("a:1", 60), clock("b:1", 0), clock("c:1", -200)];
        let what = compare_clocks(&far, ttl).unwrap().what;
        assert!(what.starts_with("the clock of a:1 is at least 250ms ahead of that of c:1"), "{what}");
        assert!(what.contains("102ms"), "{what}");
    }
}
