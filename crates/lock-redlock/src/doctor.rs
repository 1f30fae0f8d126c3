//! The examination of the masters.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Finding, Level, Report};
use lock_redis::WallClock;
use tokio::time::Instant;

use crate::backend::ask_all;
use crate::master::{Master, Readiness};
use crate::quorum::quorum;

/// What was read of the clock of one master.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockReading {
    /// How far it is ahead of ours at least, and at most; negative is behind. In microseconds.
    ahead: (i128, i128),
    pub(crate) round_trip: Duration,
}

/// Examines every master, and what is between them.
pub(crate) async fn examine(masters: &Arc<[Arc<Master>]>, ttl: Duration, wall_clock: &WallClock) -> Report {
    let answers = ask_all(masters, |master| async move { master.server.examine().await }).await;
    let mut report = Report::default();
    for (master, answer) in masters.iter().zip(answers) {
        match answer {
            Ok(findings) => report.findings.extend(findings),
            Err(error) => report.findings.push(about(
                master,
                format!("the master is not there: {error}"),
                "bring it back: until then fewer others may fail",
            )),
        }
        if let Readiness::Barred(error) = master.readiness() {
            report.findings.push(about(master, error.to_string(), "until then fewer others may fail"));
        }
    }
    let clocks = clocks(masters, wall_clock).await;
    report.findings.extend(compare_clocks(masters, &clocks, ttl));
    report.findings.extend(far_away(masters, &clocks, ttl));
    report.findings.sort_by(|one, other| one.server.cmp(&other.server));
    report
}

/// Reads the clocks of all masters.
pub(crate) async fn clocks(
    masters: &Arc<[Arc<Master>]>,
    wall_clock: &WallClock,
) -> Vec<Option<ClockReading>> {
    let answers = ask_all(masters, |master| {
        let wall_clock = wall_clock.clone();
        async move {
            let (sent, before) = (Instant::now(), wall_clock.now());
            let theirs = master.server.time().await?;
            let (after, round_trip) = (wall_clock.now(), sent.elapsed());
            let micros = |time: Duration| i128::try_from(time.as_micros()).unwrap_or(i128::MAX);
            // It was read at some time between the two.
            let ahead = (micros(theirs) - micros(after), micros(theirs) - micros(before));
            Ok(ClockReading { ahead, round_trip })
        }
    });
    answers.await.into_iter().map(Result::ok).collect()
}

/// Warns when two clocks differ by more than the drift that leases allow for.
pub(crate) fn compare_clocks(
    masters: &[Arc<Master>],
    clocks: &[Option<ClockReading>],
    ttl: Duration,
) -> Option<Finding> {
    let read = || masters.iter().zip(clocks).filter_map(|(master, clock)| Some((master, (*clock)?)));
    let (slowest, slow) = read().min_by_key(|(_, clock)| clock.ahead.1)?;
    let (fastest, fast) = read().max_by_key(|(_, clock)| clock.ahead.0)?;
    let differ = Duration::from_micros(u64::try_from(fast.ahead.0 - slow.ahead.1).ok()?);
    let margin = ttl / 100 + Duration::from_millis(2);
    (differ > margin).then(|| Finding {
        level: Level::Warning,
        server: String::new(),
        what: format!(
            "the clock of {} is at least {differ:?} ahead of that of {}, and the drift margin is {margin:?}",
            fastest.server.address(),
            slowest.server.address()
        ),
        advice: String::from(
            "check what keeps the clocks of the masters (chrony, ntpd): one that is stepped while locks are held \
             ends them early, and two may hold a lock",
        ),
    })
}

/// Warns when the masters are too far away for the time to live.
fn far_away(masters: &[Arc<Master>], clocks: &[Option<ClockReading>], ttl: Duration) -> Option<Finding> {
    let mut trips: Vec<_> = clocks.iter().flatten().map(|clock| clock.round_trip).collect();
    trips.sort_unstable();
    let trip = *trips.get(quorum(masters.len()) - 1)?;
    // A renewal is sent when a third is left to go wrong in, and tried again.
    (trip * 12 > ttl).then(|| Finding {
        level: Level::Warning,
        server: String::new(),
        what: format!("a quorum answers in {trip:?}, which is long for a ttl of {ttl:?}"),
        advice: String::from("use a longer ttl, or masters that are nearer"),
    })
}

fn about(master: &Master, what: String, advice: &str) -> Finding {
    let server = master.server.address().to_owned();
    Finding { level: Level::Warning, server, what, advice: advice.to_owned() }
}
