//! Elections: campaigns, observers, and leaders that come back.

use std::future::pending;

use lock_core::{Error, GuardView, Leader, Observer, Released};
use tokio::sync::mpsc::unbounded_channel;

use crate::conformance::Harness;
use crate::conformance::client::Client;
use crate::conformance::helpers::{PATIENCE, SOON, client, fresh, nothing_left, within};

pub(crate) async fn observers_see_every_leader(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let mut leaders = two.election(&name).observe();
    assert_eq!(next(&mut leaders).await, None, "there is no candidate yet");
    let mut last = None;
    for label in ["first", "second", "third"] {
        let leadership = within(SOON, "the leadership", one.election(&name).campaign(label)).await.unwrap();
        let leader = next(&mut leaders).await.expect("somebody leads");
        assert_eq!(leader.label(), Some(label));
        assert!(last < leader.token && leader.token.is_some(), "{:?} came after {last:?}", leader.token);
        last = leader.token;
        assert_eq!(two.election(&name).leader().await.unwrap().as_ref(), Some(&leader));
        assert_eq!(leadership.resign().await.unwrap(), Released::Released);
        assert_eq!(next(&mut leaders).await, None, "the leader has resigned");
    }
    drop(leaders);
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_candidate_that_lost_the_leadership_campaigns_again(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let (leads, mut led) = unbounded_channel();
    let election = one.election(&name);
    let run = tokio::spawn(async move {
        let body = |leadership: GuardView| {
            leads.send(leadership.token()).expect("the test waits for it");
            pending::<()>()
        };
        election.run("candidate", body).await.map_err(Error::from)
    });
    let first = within(SOON, "the leadership", led.recv()).await.expect("it campaigns");
    assert!(two.break_lock(&name).await.unwrap(), "somebody leads");
    let second = within(PATIENCE, "the next leadership", led.recv()).await.expect("it campaigns again");
    assert!(second > first, "token {second} came after {first}");
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled());
    // The dropped run resigns in the background.
    nothing_left(harness, &name).await;
}

pub(crate) async fn leaders_that_resign_in_their_own_loops_are_followed(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let leads = async |locks: &Client, label: &str| {
        let election = locks.election(&name);
        for _ in 0..5 {
            let leadership = election.campaign(label).await.unwrap();
            assert_eq!(leadership.resign().await.unwrap(), Released::Released);
            election.run(label, |_| async {}).await.unwrap();
        }
    };
    let both = async { tokio::join!(leads(&one, "one"), leads(&two, "two")) };
    within(PATIENCE, "ten terms of each", both).await;
    nothing_left(harness, &name).await;
}

async fn next(leaders: &mut Observer) -> Option<Leader> {
    let next = within(PATIENCE, "a report of the observer", leaders.next()).await;
    next.expect("an observer runs for ever").unwrap_or_else(|error| panic!("{error:?}"))
}
