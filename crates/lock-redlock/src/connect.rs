//! Connects to the masters: checks which of them vote, and whether the ttl fits their round trips.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result};
use redis_link::greeting::Identity;
use redis_link::wall_clock::WallClock;
use tokio::time::Instant;

use crate::error::{BACKEND, no_quorum, same_server};
use crate::operate::doctor::{self, compare_clocks};
use crate::servers::fan_out::FanOut;
use crate::servers::masters::Masters;
use crate::servers::quarantine::at_first_connect;
use crate::voting::quorum::quorum;

/// How often the round trip is measured before the ttl is rejected as too short.
const MEASUREMENTS: u32 = 5;

/// Connects to all masters; fails without a quorum.
pub(crate) async fn connect_quorum(masters: &Masters, longest_ttl: Duration) -> Result<()> {
    let mut replies = FanOut::new(masters.iter().map(|master| {
        let master = Arc::clone(master);
        async move { master.client.connect().await }
    }));
    let (mut connected, mut failed) = (0, Vec::new());
    while let Some((master, answer)) = replies.answer().await {
        match answer {
            Ok(()) => connected += 1,
            Err(error) => {
                failed.push((masters[master].client.address().to_owned(), error.clone()));
                drop(masters[master].noted::<()>(Instant::now(), Err(error)));
            }
        }
    }
    if connected < quorum(masters.len()) {
        // It says which masters fail, to a caller that may try again each second.
        let failed: Vec<_> = failed.into_iter().map(|(_, error)| error).collect();
        return Err(no_quorum(masters.len(), connected, failed));
    }
    for (master, error) in failed {
        tracing::warn!(master, %error, "a master is unreachable");
    }
    let fleet: Vec<Option<Arc<Identity>>> = masters.iter().map(|master| master.client.identity()).collect();
    let known: Vec<_> = fleet.iter().map(Option::as_deref).collect();
    let votes_from = at_first_connect(&known, longest_ttl);
    for ((master, identity), from) in masters.iter().zip(fleet).zip(votes_from) {
        if let Some(identity) = identity {
            master.first_seen(identity, from);
        }
    }
    let twin = masters.iter().find_map(|master| Some((master.client.address(), master.twin()?)));
    match twin {
        Some((one, other)) => Err(same_server(one, &other)),
        None => Ok(()),
    }
}

/// Measures round trips and clocks of the masters; warns about clocks that differ, and rejects a ttl that is too short.
pub(crate) async fn check_distance(masters: &Masters, ttl: Duration, wall_clock: &WallClock) -> Result<()> {
    let clocks = doctor::clocks(masters, wall_clock).await;
    if let Some(finding) = compare_clocks(&clocks, ttl) {
        tracing::warn!("{finding}");
    }
    let count = u32::try_from(masters.len()).unwrap_or(u32::MAX);
    let fits = |trip: &Duration| ttl >= *trip * count;
    let Some(mut trip) = doctor::round_trip(masters.len(), &clocks) else { return Ok(()) };
    // A busy host makes round trips longer: the shortest of several measurements counts.
    for _ in 1..MEASUREMENTS {
        if fits(&trip) {
            break;
        }
        let again = doctor::clocks(masters, wall_clock).await;
        trip = doctor::round_trip(masters.len(), &again).map_or(trip, |again| trip.min(again));
    }
    if fits(&trip) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidConfig, BACKEND)
        .with_message(format!(
            "a ttl of {ttl:?} is too short: a quorum of the masters answers in {trip:?} at best, and {count} round trips do not fit"
        ))
        .with_hint(format!("use a ttl of at least {:?}, or masters that are nearer", trip * count)))
}
