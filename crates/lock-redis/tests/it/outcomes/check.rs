//! Tables of what scripts answer, notify and leave: a row is a state, an operation, an answer, the notifications and the state
//! after.

use super::bench::{Bench, LARGEST, Scripts};
use super::state::{Family, Fence, State};

/// State, operation, answer, notifications, state after.
pub type Row = (&'static str, &'static str, &'static str, &'static str, &'static str);

pub async fn check<S: Scripts>(rows: &[Row]) {
    check_with::<S>(Bench::new(false).await, rows).await;
}

pub async fn check_with<S: Scripts>(mut bench: Bench<S>, rows: &[Row]) {
    for (number, (before, op, answer, notified, after)) in rows.iter().enumerate() {
        let state: State = before.parse().unwrap();
        for last in last_tokens(S::FAMILY, &state) {
            let mut case = bench.case_after(last, state.clone()).await;
            let step = bench.step(&mut case, op.parse().unwrap()).await;
            let seen = (step.answer, step.notified.join(", "), step.after.to_string());
            let after = after.parse::<State>().unwrap();
            let after = if S::FAMILY == Family::Single { after.of_single() } else { after };
            let wanted = ((*answer).to_owned(), (*notified).to_owned(), after.to_string());
            assert_eq!(seen, wanted, "row {number}, after {last}: {before}; {op}");
        }
    }
}

/// What the last token is to have been: a single server is quicker where it is one of the clock, and behind it.
fn last_tokens(family: Family, state: &State) -> Vec<u64> {
    match (family, &state.fence) {
        (Family::Single, Fence::Of(_)) => vec![1000, clock() - YEAR, clock() + YEAR],
        (_, Fence::Full) => vec![LARGEST],
        _ => vec![1000],
    }
}

/// In microseconds.
pub const YEAR: u64 = 32_000_000_000_000;

/// State, last token, operation, and the token after it; `None` is the clock.
pub type Minting = (&'static str, u64, &'static str, Option<u64>);

pub async fn check_minting<S: Scripts>(rows: &[Minting]) {
    let mut bench = Bench::<S>::new(false).await;
    for (state, last, op, wanted) in rows {
        let mut case = bench.case_after(*last, state.parse().unwrap()).await;
        let clock = clock();
        let token = bench.step(&mut case, op.parse().unwrap()).await.token.unwrap();
        match wanted {
            Some(wanted) => assert_eq!(token, *wanted, "{op} after {last}"),
            None => assert!(token >= clock && token < clock + YEAR, "{op} after {last}: {token}"),
        }
    }
}

/// Now, as a server tells it: in microseconds since 1970.
pub fn clock() -> u64 {
    u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap()
}

pub fn is_a_week(seconds: i64) -> bool {
    let week = 7 * 24 * 3600;
    (week - 60..=week).contains(&seconds)
}
