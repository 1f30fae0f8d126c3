//! The tables.

use lock_core::TokenBlock;

use super::bench::{Bench, LARGEST};
use super::laws::Step;
use super::op::Op;
use super::state::{Family, Fence, State};

/// State, operation, answer, notifications, state after.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str);

async fn check(rows: &[Row]) {
    check_with(Bench::new(false).await, Family::Single, rows).await;
}

async fn check_on_master(rows: &[Row]) {
    check_with(Bench::new(false).await, Family::Master, rows).await;
}

async fn check_with(mut bench: Bench, family: Family, rows: &[Row]) {
    for (number, (before, op, answer, notified, after)) in rows.iter().enumerate() {
        let state: State = before.parse().unwrap();
        for last in last_tokens(family, &state) {
            let mut case = bench.case_after(last, family, state.clone()).await;
            let op: Op = op.parse().unwrap();
            let step = bench.step(&mut case, op).await;
            let seen = (step.answer, step.notified.join(", "), step.after.to_string());
            let after = after.parse::<State>().unwrap();
            let after = if family == Family::Single { after.of_single() } else { after };
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

#[rustfmt::skip]
#[tokio::test]
async fn claim() {
    check_on_master(&[
        ("free",                       "claim me", "granted",         "", "me:300 | | somebody"),
        ("free | | somebody",          "claim me", "granted",         "", "me:300 | | somebody"),
        ("free | | hash",              "claim me", "refused",         "", "free | | hash"),
        ("free | | full",              "claim me", "refused",         "", "free | | full"),
        // Its already: another token is minted, and it ends when it did. Without one it is not kept.
        ("me:200 | | somebody",        "claim me", "granted",         "", "me:300 | | somebody"),
        ("me:200",                     "claim me", "granted",         "", "me:300 | | somebody"),
        ("me:never",                   "claim me", "granted",         "", "me:300 | | somebody"),
        ("me:200 | | hash",            "claim me", "refused",         "", "free | | hash"),
        ("me:200 | | full",            "claim me", "refused",         "", "free | | full"),
        ("ann:200 | | somebody",       "claim me", "busy 200",        "", "ann:200 | | somebody"),
        ("ann:200 | | hash",           "claim me", "busy 200",        "", "ann:200 | | hash"),
        ("ann:200 | | full",           "claim me", "busy 200",        "", "ann:200 | | full"),
        ("bare-me:200",                "claim me", "busy 200",        "", "bare-me:200"),
        ("longer-me:200 | | somebody", "claim me", "busy 200",        "", "longer-me:200 | | somebody"),
        ("foreign:200",                "claim me", "busy 200",        "", "foreign:200"),
        ("foreign:never",              "claim me", "busy never",      "", "foreign:never"),
        ("hash",                       "claim me", "busy never hash", "", "hash"),
        ("readers:200 me:200",         "claim me", "busy 200",        "", "readers:200 me:200"),
        // It does not know of the queue.
        ("free | ann.x",               "claim me", "granted",         "", "me:300 | ann.x | somebody"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn claim_with_a_token() {
    check_on_master(&[
        ("free",                       "claim me +1000", "granted",         "", "me:300 | | somebody"),
        ("free | | somebody",          "claim me +1000", "granted",         "", "me:300 | | somebody"),
        ("free | | somebody",          "claim me +1",    "granted",         "", "me:300 | | somebody"),
        ("free | | somebody",          "claim me +0",    "granted",         "", "me:300 | | somebody"),
        ("free | | somebody",          "claim me -1",    "granted",         "", "me:300 | | somebody"),
        ("free | | somebody",          "claim me -995",  "granted",         "", "me:300 | | somebody"),
        ("free | | hash",              "claim me +1000", "refused",         "", "free | | hash"),
        ("free | | full",              "claim me +1000", "refused",         "", "free | | full"),
        ("free | | full",              "claim me +0",    "refused",         "", "free | | full"),
        ("free | | full",              "claim me -1000", "refused",         "", "free | | full"),
        ("me:200 | | somebody",        "claim me +1000", "granted",         "", "me:300 | | somebody"),
        ("me:200 | | somebody",        "claim me +0",    "granted",         "", "me:300 | | somebody"),
        ("me:200 | | somebody",        "claim me -5",    "granted",         "", "me:300 | | somebody"),
        ("me:200",                     "claim me +1000", "granted",         "", "me:300 | | somebody"),
        ("me:200 | | hash",            "claim me +1000", "refused",         "", "free | | hash"),
        ("me:200 | | full",            "claim me +1000", "refused",         "", "free | | full"),
        // Who is refused notes nothing.
        ("ann:200 | | somebody",       "claim me +1000", "busy 200",        "", "ann:200 | | somebody"),
        ("ann:200",                    "claim me +1000", "busy 200",        "", "ann:200"),
        ("bare-me:200 | | somebody",   "claim me +1000", "busy 200",        "", "bare-me:200 | | somebody"),
        ("longer-me:200",              "claim me +1000", "busy 200",        "", "longer-me:200"),
        ("foreign:200",                "claim me +1000", "busy 200",        "", "foreign:200"),
        ("foreign:never",              "claim me +1000", "busy never",      "", "foreign:never"),
        ("hash",                       "claim me +1000", "busy never hash", "", "hash"),
        ("readers:200 me:200",         "claim me +1000", "busy 200",        "", "readers:200 me:200"),
        ("free | ann.x",               "claim me +1000", "granted",         "", "me:300 | ann.x | somebody"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn outright() {
    check_on_master(&[
        ("free",                       "outright me +1000", "granted", "", "me:300 | | somebody"),
        ("free | | somebody",          "outright me +1000", "granted", "", "me:300 | | somebody"),
        ("free | | somebody",          "outright me +1",    "granted", "", "me:300 | | somebody"),
        // Taken, though the token is not larger.
        ("free | | somebody",          "outright me +0",    "unclear", "", "me:300 | | somebody"),
        ("free | | somebody",          "outright me -1",    "unclear", "", "me:300 | | somebody"),
        ("free | | somebody",          "outright me -1000", "unclear", "", "me:300 | | somebody"),
        ("free | | hash",              "outright me +1000", "unclear", "", "me:300 | | hash"),
        ("free | | full",              "outright me +0",    "unclear", "", "me:300 | | full"),
        ("free | | full",              "outright me -1000", "unclear", "", "me:300 | | full"),
        // Refused, though the token is noted.
        ("ann:200 | | somebody",       "outright me +1000", "unclear", "", "ann:200 | | somebody"),
        ("ann:200 | | somebody",       "outright me +0",    "unclear", "", "ann:200 | | somebody"),
        ("ann:200 | | somebody",       "outright me -1",    "unclear", "", "ann:200 | | somebody"),
        ("ann:200",                    "outright me +1000", "unclear", "", "ann:200 | | somebody"),
        ("ann:200 | | hash",           "outright me +1000", "unclear", "", "ann:200 | | hash"),
        ("ann:200 | | full",           "outright me -1",    "unclear", "", "ann:200 | | full"),
        ("foreign:200 | | somebody",   "outright me +1000", "unclear", "", "foreign:200 | | somebody"),
        ("foreign:never",              "outright me +1000", "unclear", "", "foreign:never | | somebody"),
        ("bare-me:200",                "outright me +1000", "unclear", "", "bare-me:200 | | somebody"),
        ("longer-me:200",              "outright me +1000", "unclear", "", "longer-me:200 | | somebody"),
        ("hash",                       "outright me +1000", "unclear", "", "hash | | somebody"),
        ("hash | | hash",              "outright me +1000", "unclear", "", "hash | | hash"),
        ("readers:200 me:200",         "outright me +1000", "unclear", "", "readers:200 me:200 | | somebody"),
        // Sent again, it cannot tell that it is its own.
        ("me:200 | | somebody",        "outright me +1000", "unclear", "", "me:200 | | somebody"),
        ("me:200 | | somebody",        "outright me +0",    "unclear", "", "me:200 | | somebody"),
        ("me:200",                     "outright me +1",    "unclear", "", "me:200 | | somebody"),
        // It neither knows of a line nor leaves it.
        ("free | | somebody | ann",    "outright me +1",    "granted", "", "me:300 | | somebody | ann"),
        ("free | | somebody | me",     "outright me +1",    "granted", "", "me:300 | | somebody | me"),
        ("free | ann.x",               "outright me +1",    "granted", "", "me:300 | ann.x | somebody"),
    ]).await;
}

/// State, claims and their answers, what the last of them makes of the last token, which was 1000, and the state after.
type Sequence = (&'static str, &'static [(&'static str, &'static str)], Option<u64>, &'static str);

#[rustfmt::skip]
#[tokio::test]
async fn what_is_taken_outright_and_unclear_is_claimed_again() {
    let sequences: &[Sequence] = &[
        // Never the token that was refused, or was another's before.
        ("free | | somebody", &[("outright me +0", "unclear"), ("claim me +0", "granted")], Some(1008), "me:300 | | somebody"),
        ("free | | somebody", &[("outright me -5", "unclear"), ("claim me -5", "granted")], Some(1008), "me:300 | | somebody"),
        ("free | | somebody", &[("outright me -1", "unclear"), ("claim me +7", "granted")], Some(1007), "me:300 | | somebody"),
        // Nor one that may have been granted: the answer was lost.
        ("free | | somebody", &[("outright me +5", "granted"), ("claim me +0", "granted")], Some(1008), "me:300 | | somebody"),
        ("free",              &[("outright me +5", "granted"), ("claim me +0", "granted")], Some(1008), "me:300 | | somebody"),
        ("free | | somebody", &[("outright me +5", "granted"), ("outright me +5", "unclear"), ("claim me +0", "granted")], Some(1024), "me:300 | | somebody"),
        ("free | | somebody", &[("claim me +5", "granted"), ("outright me +0", "unclear"), ("claim me +0", "granted")], Some(1008), "me:300 | | somebody"),
        // Whoever is refused leaves its token, for the holder and for the next.
        ("ann:200 | | somebody", &[("outright me +5", "unclear"), ("claim me +0", "busy 200")], Some(1005), "ann:200 | | somebody"),
        ("ann:200 | | somebody", &[("outright me +5", "unclear"), ("claim ann +0", "granted")], Some(1008), "ann:300 | | somebody"),
        ("ann:200 | | somebody", &[("outright me +5", "unclear"), ("vacate ann", "vacated"), ("outright bob +0", "unclear"), ("claim bob +0", "granted")], Some(1008), "bob:300 | | somebody"),
        ("ann:200 | | somebody", &[("outright me -5", "unclear"), ("vacate ann", "vacated"), ("outright bob +1", "granted")], Some(1001), "bob:300 | | somebody"),
        // Without a token there is no lock.
        ("free | | hash",     &[("outright me +5", "unclear"), ("claim me +5", "refused")], None, "free | | hash"),
        ("free | | full",     &[("outright me +0", "unclear"), ("claim me +0", "refused")], Some(LARGEST), "free | | full"),
        // Somebody has come first.
        ("free | | somebody", &[("outright ann +5", "granted"), ("outright me +0", "unclear"), ("claim me +0", "busy 300")], Some(1005), "ann:300 | | somebody"),
        // Of a waiter.
        ("free | | somebody | me bob", &[("outright me +0", "unclear"), ("claim me in line", "granted")], None, "me:300 | | somebody | bob"),
    ];
    let mut bench = Bench::new(false).await;
    for (before, ops, last, after) in sequences {
        let mut case = bench.case(Family::Master, before.parse().unwrap()).await;
        let (mut answers, mut left) = (Vec::new(), String::new());
        for (op, _) in *ops {
            let step = bench.step(&mut case, op.parse().unwrap()).await;
            answers.push((*op, step.answer));
            left = step.after.to_string();
        }
        let wanted: Vec<_> = ops.iter().map(|(op, answer)| (*op, (*answer).to_owned())).collect();
        assert_eq!((answers, left.as_str()), (wanted, *after), "{before}");
        if let Some(last) = last {
            let noted: f64 = bench.redis(&["ZSCORE", case.keys.tokens(), "last"]).await;
            assert_eq!(noted as u64, *last, "{before}; {ops:?}");
        }
    }
}

#[rustfmt::skip]
#[tokio::test]
async fn claim_in_line() {
    check_on_master(&[
        ("free",                          "claim me in line", "granted",     "", "me:300 | | somebody"),
        ("free | | hash",                 "claim me in line", "refused",     "", "free | | hash"),
        ("free | | hash | me",            "claim me in line", "refused",     "", "free | | hash | me"),
        ("free | | full | me",            "claim me in line", "refused",     "", "free | | full | me"),
        // It was handed over, or is asked for again: it lasts longer, and never shorter.
        ("me:100 | | somebody",           "claim me in line", "granted",     "", "me:300 | | somebody"),
        ("me:400 | | somebody",           "claim me in line", "granted",     "", "me:400 | | somebody"),
        ("me:200 | | hash | me",          "claim me in line", "refused",     "", "free | | hash | me"),
        ("ann:200 | | somebody",          "claim me in line", "busy 200",    "", "ann:200 | | somebody | me"),
        ("ann:200 | | somebody | me bob", "claim me in line", "busy 200",    "", "ann:200 | | somebody | me bob"),
        ("ann:200 | | somebody | junk bob", "claim me in line", "busy 200",  "", "ann:200 | | somebody | junk me bob"),
        ("bare-me:200",                   "claim me in line", "busy 200",    "", "bare-me:200 | | | me"),
        ("longer-me:200",                 "claim me in line", "busy 200",    "", "longer-me:200 | | | me"),
        ("foreign:never",                 "claim me in line", "busy never",  "", "foreign:never | | | me"),
        ("hash",                          "claim me in line", "busy never hash", "", "hash | | | me"),
        ("readers:200 ann:200",           "claim me in line", "busy 200",    "", "readers:200 ann:200 | | | me"),
        // The queue delays no one.
        ("free | | | ann bob",            "claim me in line", "granted",     "", "me:300 | | somebody | ann bob"),
        ("free | | | me ann",             "claim me in line", "granted",     "", "me:300 | | somebody | ann"),
        ("me:200 | | somebody | me bob",  "claim me in line", "granted",     "", "me:300 | | somebody | bob"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn claim_past_a_line() {
    check_on_master(&[
        // By a client that does not wait.
        ("free | | somebody | bob",          "claim me",       "granted",      "", "me:300 | | somebody | bob"),
        ("free | | somebody | bob",          "claim me +1000", "granted",      "", "me:300 | | somebody | bob"),
        ("ann:200 | | somebody | bob",       "claim me",       "busy 200",     "", "ann:200 | | somebody | bob"),
        ("me:200 | | somebody | bob",        "claim me +1000", "granted",      "", "me:300 | | somebody | bob"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn vacate() {
    check_on_master(&[
        ("free",                          "vacate me",      "not ours", "", "free"),
        ("me:200 | | somebody",           "vacate me",      "vacated",  "", "free | | somebody"),
        ("me:never",                      "vacate me",      "vacated",  "", "free"),
        ("me:200 | | hash",               "vacate me",      "vacated",  "", "free | | hash"),
        ("ann:200 | | somebody",          "vacate me",      "not ours", "", "ann:200 | | somebody"),
        ("bare-me:200",                   "vacate me",      "not ours", "", "bare-me:200"),
        ("longer-me:200",                 "vacate me",      "not ours", "", "longer-me:200"),
        ("foreign:never",                 "vacate me",      "not ours", "", "foreign:never"),
        ("hash",                          "vacate me",      "not ours", "", "hash"),
        ("readers:200 me:200",            "vacate me",      "not ours", "", "readers:200 me:200"),
        // The first waiter has the lock, for the grace period.
        ("me:200 | | somebody | ann bob", "vacate me",      "vacated, wanted",  "ann passed", "ann:100 | | somebody | bob"),
        ("me:200 | | | ann",              "vacate me",      "vacated, wanted",  "ann passed", "ann:100 | | somebody"),
        ("free | | somebody | ann",       "vacate me",      "not ours, wanted", "ann passed", "ann:100 | | somebody"),
        ("me:200 | | somebody | me ann",  "vacate me leave", "vacated, wanted", "ann passed", "ann:100 | | somebody"),
        ("free | | somebody | me ann",    "vacate me leave", "not ours, wanted", "ann passed", "ann:100 | | somebody"),
        // Of another owner it is not handed over.
        ("ann:200 | | somebody | bob",    "vacate me",      "not ours, wanted", "", "ann:200 | | somebody | bob"),
        ("longer-me:200 | | | bob",       "vacate me",      "not ours, wanted", "", "longer-me:200 | | | bob"),
        ("foreign:200 | | | bob",         "vacate me",      "not ours, wanted", "", "foreign:200 | | | bob"),
        ("hash | | | bob",                "vacate me",      "not ours, wanted", "", "hash | | | bob"),
        ("ann:200 | | somebody | me bob", "vacate me leave", "not ours, wanted", "", "ann:200 | | somebody | bob"),
        ("ann:200 | | somebody | me",     "vacate me leave", "not ours",        "", "ann:200 | | somebody"),
        ("me:200 | | somebody | me",      "vacate me leave", "vacated",         "", "free | | somebody"),
        ("me:200 | | somebody",           "vacate me leave", "vacated",         "", "free | | somebody"),
        // Dead waiters and invalid entries are skipped.
        ("me:200 | | somebody | junk ghost spook", "vacate me", "vacated",      "", "free | | somebody"),
        ("free | | somebody | ghost",     "vacate me",      "not ours",         "", "free | | somebody"),
        ("me:200 | | somebody | junk eve ghost", "vacate me", "vacated, wanted", "eve passed", "eve:100 | | somebody | ghost"),
        // Without a token there is no lock, and the waiters stay.
        ("me:200 | | hash | ann",         "vacate me",      "vacated, wanted",  "", "free | | hash | ann"),
        ("me:200 | | full | junk ann bob", "vacate me",     "vacated, wanted",  "", "free | | full | ann bob"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn extend_on_master() {
    check_on_master(&[
        ("free",                     "extend me", "not ours", "", "free"),
        ("free | | somebody",        "extend me", "not ours", "", "free | | somebody"),
        ("me:200 | | somebody",      "extend me", "extended", "", "me:400 | | somebody"),
        ("me:never | | somebody",    "extend me", "extended", "", "me:400 | | somebody"),
        // The last token is not needed for it.
        ("me:200",                   "extend me", "extended", "", "me:400"),
        ("me:200 | | hash",          "extend me", "extended", "", "me:400 | | hash"),
        ("me:200 | | full",          "extend me", "extended", "", "me:400 | | full"),
        ("ann:200 | | somebody",     "extend me", "not ours", "", "ann:200 | | somebody"),
        ("bare-me:200",              "extend me", "not ours", "", "bare-me:200"),
        ("longer-me:200",            "extend me", "not ours", "", "longer-me:200"),
        ("foreign:200",              "extend me", "not ours", "", "foreign:200"),
        ("foreign:never",            "extend me", "not ours", "", "foreign:never"),
        ("hash",                     "extend me", "not ours", "", "hash"),
        ("readers:200 me:200",       "extend me", "not ours", "", "readers:200 me:200"),
        ("me:200 | | somebody | ann | bob:100", "extend me", "extended", "", "me:400 | | somebody | ann | bob:100"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn raise_on_master() {
    check_on_master(&[
        ("free | | somebody",        "raise me 50", "not ours", "", "free | | somebody"),
        ("free",                     "raise me 50", "not ours", "", "free"),
        ("me:200 | | somebody",      "raise me 50", "raised",   "", "me:200 | | somebody"),
        ("me:200 | | somebody",      "raise me 0",  "raised",   "", "me:200 | | somebody"),
        ("me:200 | | somebody",      "raise me -5", "raised",   "", "me:200 | | somebody"),
        ("me:200 | | somebody",      "raise me -999", "raised", "", "me:200 | | somebody"),
        ("me:200",                   "raise me 50", "raised",   "", "me:200 | | somebody"),
        // It keeps the lock, of which others may have a larger token.
        ("me:200 | | hash",          "raise me 50", "refused",  "", "me:200 | | hash"),
        ("me:200 | | full",          "raise me 1",  "refused",  "", "me:200 | | full"),
        ("me:200 | | full",          "raise me 0",  "raised",   "", "me:200 | | full"),
        ("ann:200 | | somebody",     "raise me 50", "not ours", "", "ann:200 | | somebody"),
        ("ann:200",                  "raise me 50", "not ours", "", "ann:200"),
        ("bare-me:200 | | somebody", "raise me 50", "not ours", "", "bare-me:200 | | somebody"),
        ("longer-me:200",            "raise me 50", "not ours", "", "longer-me:200"),
        ("foreign:200 | | somebody", "raise me 50", "not ours", "", "foreign:200 | | somebody"),
        ("hash | | somebody",        "raise me 50", "not ours", "", "hash | | somebody"),
        ("readers:200 me:200",       "raise me 50", "not ours", "", "readers:200 me:200"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn look_on_master() {
    check_on_master(&[
        ("free",                     "look me", "none waiters=0",                  "", "free"),
        ("free | | somebody",        "look me", "none token waiters=0",            "", "free | | somebody"),
        ("free | | | junk ann bob",  "look me", "none waiters=3",                  "", "free | | | junk ann bob"),
        ("me:200 | | somebody",      "look me", "string me token waiters=0",       "", "me:200 | | somebody"),
        ("ann:200 | | somebody | bob", "look me", "string ann token waiters=1",    "", "ann:200 | | somebody | bob"),
        ("ann:never",                "look me", "string ann waiters=0",            "", "ann:never"),
        ("me:200 | | hash",          "look me", "string me waiters=0",             "", "me:200 | | hash"),
        ("me:200 | | full",          "look me", "string me token waiters=0",       "", "me:200 | | full"),
        ("bare-me:200 | | somebody", "look me", "string bare-me token waiters=0",  "", "bare-me:200 | | somebody"),
        ("longer-me:200",            "look me", "string longer-me waiters=0",      "", "longer-me:200"),
        ("foreign:never | | somebody", "look me", "string foreign token waiters=0", "", "foreign:never | | somebody"),
        ("hash | | | ann",           "look me", "hash waiters=1",                  "", "hash | | | ann"),
        ("readers:200 me:200",       "look me", "string shared waiters=0",         "", "readers:200 me:200"),
        // Those of a queue do not count, nor who has been called.
        ("me:200 | ann.x | somebody | bob | cat:100", "look me", "string me token waiters=1", "", "me:200 | ann.x | somebody | bob | cat:100"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn break_lock_on_master() {
    check_on_master(&[
        ("free | | somebody",        "break", "none",   "", "free | | somebody"),
        ("me:200 | | somebody",      "break", "string", "", "free | | somebody"),
        ("me:200 | | hash",          "break", "string", "", "free | | hash"),
        ("longer-me:200",            "break", "string", "", "free"),
        ("foreign:never",            "break", "string", "", "free"),
        ("hash | | somebody",        "break", "hash",   "", "hash | | somebody"),
        ("me:200 | | somebody | ann | bob:100", "break", "string", "", "free | | somebody | ann | bob:100"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn ask() {
    check(&[
        ("free",                       "ask me x", "granted",        "", "me:300 | | me"),
        ("free",                       "ask me r", "granted",        "", "readers:300 me:300 | | me"),
        ("free",                       "ask me 2", "granted",        "", "permits:300 me:300 | | me"),
        ("free | | ann",               "ask me x", "granted",        "", "me:300 | | me"),
        ("free | | somebody",          "ask me x", "granted",        "", "me:300 | | me"),
        ("free | | hash",              "ask me x", "refused",        "", "free | | hash"),
        ("free | | hash",              "ask me r", "refused",        "", "free | | hash"),
        // A grant is confirmed, and lasts from now on.
        ("me:100 | | me",              "ask me x", "granted",        "", "me:300 | | me"),
        ("me:100",                     "ask me x", "granted",        "", "me:300 | | me"),
        ("me:100 | ann.x | me",        "ask me x", "granted",        "ann next 300", "me:300 | ann.x | me"),
        ("readers:200 me:100 ann:200 | | ann", "ask me r", "granted", "", "readers:300 me:300 ann:200 | | me"),
        ("ann:200 | | ann",            "ask me x", "busy 200",       "", "ann:200 | | ann"),
        ("ann:200 | | ann",            "ask me r", "busy 200",       "", "ann:200 | | ann"),
        ("ann:200 | | ann",            "ask me 2", "busy 200",       "", "ann:200 | | ann"),
        ("foreign:200",                "ask me x", "busy 200",       "", "foreign:200"),
        ("foreign:never",              "ask me x", "busy never",     "", "foreign:never"),
        ("foreign:never",              "ask me r", "busy never",     "", "foreign:never"),
        ("hash",                       "ask me x", "busy never hash", "", "hash"),
        ("hash",                       "ask me r", "busy never hash", "", "hash"),
        ("hash",                       "ask me 2", "busy never hash", "", "hash"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn ask_for_a_share() {
    check(&[
        ("readers:200 ann:200 | | ann",          "ask me r", "granted",    "", "readers:300 me:300 ann:200 | | me"),
        ("readers:400 ann:400 | | ann",          "ask me r", "granted",    "", "readers:400 me:300 ann:400 | | me"),
        ("readers:200 ann:200 bob:past | | ann", "ask me r", "granted",    "", "readers:300 me:300 ann:200 bob:past | | me"),
        ("readers:200 ann:200 me:past | | ann",  "ask me r", "granted",    "", "readers:300 me:300 ann:200 | | me"),
        ("readers:200 ann:200 | | ann",          "ask me x", "busy 200",   "", "readers:200 ann:200 | | ann"),
        ("readers:200 ann:200 | | ann",          "ask me 2", "busy 200",   "", "readers:200 ann:200 | | ann"),
        ("permits:200 ann:200 | | ann",          "ask me 2", "granted",    "", "permits:300 me:300 ann:200 | | me"),
        ("permits:200 ann:200 | | ann",          "ask me 1", "busy 200",   "", "permits:200 ann:200 | | ann"),
        ("permits:200 ann:100 bob:200 | | ann",  "ask me 2", "busy 100",   "", "permits:200 ann:100 bob:200 | | ann"),
        ("permits:200 ann:100 bob:200 | | ann",  "ask me x", "busy 200",   "", "permits:200 ann:100 bob:200 | | ann"),
        ("permits:200 ann:past bob:200 | | bob", "ask me 2", "granted",    "", "permits:300 me:300 bob:200 | | me"),
        ("permits:200 ann:200 | | ann",          "ask me r", "busy 200",   "", "permits:200 ann:200 | | ann"),
        // The lock was deleted under its holders: they hold nothing.
        ("free ann:200 bob:200 | | bob",         "ask me r", "granted",    "", "readers:300 me:300 | | me"),
        ("free ann:200 bob:200 | | bob",         "ask me 2", "granted",    "", "permits:300 me:300 | | me"),
        ("free me:200 | | me",                   "ask me r", "granted",    "", "readers:300 me:300 | | me"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn ask_before_a_queue() {
    check(&[
        // The waiter comes first, and gets the lock.
        ("free | ann.x",            "ask me x",   "busy 100", "ann granted", "ann:100 | | ann"),
        ("free | ann.r",            "ask me r",   "granted",  "ann granted", "readers:300 me:300 ann:100 | | me"),
        ("free | ann.x bob.x",      "ask me x",   "busy 100", "ann granted, bob next 100", "ann:100 | bob.x | ann"),
        ("free | ann.r bob.r",      "ask me x",   "busy 100", "ann granted, bob granted", "readers:100 ann:100 bob:100 | | bob"),
        ("free | ann.2 bob.2 cat.2", "ask me 2",  "busy 100", "ann granted, bob granted, cat next 100", "permits:100 ann:100 bob:100 | cat.2 | bob"),
        ("free | ann.x | hash",     "ask me x",   "refused",  "ann granted", "free | | hash"),
        // A reader does not overtake a writer that waits.
        ("readers:200 ann:200 | bob.x | ann", "ask me r", "busy 200", "", "readers:200 ann:200 | bob.x | ann"),
        // Dead waiters and invalid entries block no one.
        ("free | ghost.x",          "ask me x",   "granted",  "", "me:300 | | me"),
        ("free | ghost.x spook.r",  "ask me x",   "granted",  "", "me:300 | | me"),
        ("free | junk",             "ask me x",   "granted",  "", "me:300 | | me"),
        ("free | ghost.x junk ann.x", "ask me x", "busy 100", "ann granted", "ann:100 | | ann"),
        ("free | ghost.x me.x ann.x", "ask me x", "granted",  "ann next 300", "me:300 | ann.x | me"),
        ("free | ghost.x me.x spook.x", "ask me x", "granted", "", "me:300 | | me"),
        // My own turn.
        ("free | me.x",             "ask me x",   "granted",  "", "me:300 | | me"),
        ("free | me.x ann.x",       "ask me x",   "granted",  "ann next 300", "me:300 | ann.x | me"),
        ("free | me.r ann.r bob.x cat.r", "ask me r", "granted", "ann granted, bob next 300", "readers:300 me:300 ann:100 | bob.x cat.r | ann"),
        ("free | ann.x me.x",       "ask me x",   "busy 100", "ann granted", "ann:100 | me.x | ann"),
        // While it is held nobody is bothered, and the dead may wait.
        ("bob:200 | ghost.x ann.x | bob", "ask me x", "busy 200", "", "bob:200 | ghost.x ann.x | bob"),
        // Who could share the lock does not wait for the dead.
        ("readers:200 ann:200 | ghost.x | ann", "ask me r", "granted", "", "readers:300 me:300 ann:200 | | me"),
        ("readers:200 ann:200 | ghost.x bob.x | ann", "ask me r", "busy 200", "bob next 200", "readers:200 ann:200 | bob.x | ann"),
        ("permits:200 ann:200 | ghost.x | ann", "ask me 2", "granted", "", "permits:300 me:300 ann:200 | | me"),
        // Waiters for a smaller number of permits, which is used up, let others pass, also from behind.
        ("permits:200 ann:200 | bob.1 | ann", "ask me 2", "granted", "bob next 200", "permits:300 me:300 ann:200 | bob.1 | me"),
        ("permits:200 ann:200 | bob.1 | ann", "ask me 1", "busy 200", "", "permits:200 ann:200 | bob.1 | ann"),
        ("permits:200 ann:200 | bob.1 me.2 | ann", "ask me 2", "granted", "bob next 200", "permits:300 me:300 ann:200 | bob.1 | me"),
        ("permits:200 ann:200 | bob.1 cat.2 | ann", "ask me 3", "granted", "cat granted, bob next 100", "permits:300 me:300 ann:200 cat:100 | bob.1 | me"),
        ("permits:200 ann:200 | bob.1 cat.2 | ann", "ask me 2", "busy 100", "cat granted", "permits:200 ann:200 cat:100 | bob.1 | cat"),
        ("permits:200 ann:200 | bob.1 cat.x | ann", "ask me 2", "busy 200", "", "permits:200 ann:200 | bob.1 cat.x | ann"),
        ("permits:200 ann:200 | bob.1 cat.r | ann", "ask me 2", "busy 200", "", "permits:200 ann:200 | bob.1 cat.r | ann"),
        ("readers:200 ann:200 | bob.1 | ann", "ask me 2", "busy 200", "", "readers:200 ann:200 | bob.1 | ann"),
        // Nor does it wait for the dead behind those.
        ("permits:200 ann:200 | bob.1 ghost.x | ann", "ask me 2", "granted", "bob next 200", "permits:300 me:300 ann:200 | bob.1 | me"),
        ("permits:200 ann:200 | bob.1 ghost.r spook.x me.2 | ann", "ask me 2", "granted", "bob next 200", "permits:300 me:300 ann:200 | bob.1 | me"),
        ("permits:200 ann:200 | bob.1 ghost.x cat.x | ann", "ask me 2", "busy 200", "", "permits:200 ann:200 | bob.1 cat.x | ann"),
        ("permits:200 ann:200 | bob.1 ghost.x cat.2 | ann", "ask me 2", "busy 100", "cat granted", "permits:200 ann:200 cat:100 | bob.1 | cat"),
        ("permits:200 ann:200 | bob.1 ghost.x me.1 | ann", "ask me 1", "busy 200", "", "permits:200 ann:200 | bob.1 ghost.x me.1 | ann"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn queue_up() {
    check(&[
        ("free",                        "queue me x", "granted",           "", "me:300 | | me"),
        ("ann:200 | | ann",             "queue me x", "busy 200 place=0",  "", "ann:200 | me.x | ann"),
        ("ann:200 | | ann",             "queue me r", "busy 200 place=0",  "", "ann:200 | me.r | ann"),
        ("foreign:200",                 "queue me x", "busy 200 place=0",  "", "foreign:200 | me.x"),
        ("foreign:never",               "queue me x", "busy never place=0", "", "foreign:never | me.x"),
        ("hash",                        "queue me x", "busy never hash place=0", "", "hash | me.x"),
        ("ann:200 | me.x | ann",        "queue me x", "busy 200 place=0",  "", "ann:200 | me.x | ann"),
        ("ann:200 | bob.x | ann",       "queue me x", "busy 200 place=1",  "", "ann:200 | bob.x me.x | ann"),
        ("ann:200 | bob.x me.x cat.x | ann", "queue me x", "busy 200 place=1", "", "ann:200 | bob.x me.x cat.x | ann"),
        ("ann:200 | ghost.x | ann",     "queue me x", "busy 200 place=1",  "", "ann:200 | ghost.x me.x | ann"),
        ("ann:200 | ghost.x spook.x | ann", "queue me x", "busy 200 place=2", "", "ann:200 | ghost.x spook.x me.x | ann"),
        ("ann:200 | junk | ann",        "queue me x", "busy 200 place=1",  "", "ann:200 | junk me.x | ann"),
        ("ann:200 | bob.x junk | ann",  "queue me x", "busy 200 place=2",  "", "ann:200 | bob.x junk me.x | ann"),
        ("free | bob.x",                "queue me x", "busy 100 place=0",  "bob granted", "bob:100 | me.x | bob"),
        ("free | ghost.x",              "queue me x", "granted",           "", "me:300 | | me"),
        ("readers:200 ann:200 | | ann", "queue me x", "busy 200 place=0",  "", "readers:200 ann:200 | me.x | ann"),
        ("readers:200 ann:200 | bob.x | ann", "queue me r", "busy 200 place=1", "", "readers:200 ann:200 | bob.x me.r | ann"),
        ("permits:200 ann:100 bob:200 | | bob", "queue me 2", "busy 100 place=0", "", "permits:200 ann:100 bob:200 | me.2 | bob"),
        // A share that has ended is not what is waited for.
        ("permits:200 ann:past bob:200 | cat.x | bob", "queue me 2", "busy 200 place=1", "", "permits:200 bob:200 | cat.x me.2 | bob"),
        // The lock was deleted under its holders.
        ("free ann:200 | bob.r | ann",  "queue me r", "granted",           "bob granted", "readers:300 me:300 bob:100 | | me"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn confirm() {
    check(&[
        ("me:100 | | me",              "confirm me x", "granted",            "", "me:300 | | me"),
        // The one behind it is the first now.
        ("me:100 | ann.x | me",        "confirm me x", "granted",            "ann next 300", "me:300 | ann.x | me"),
        ("me:100 | ann.r bob.x | me",  "confirm me x", "granted",            "ann next 300", "me:300 | ann.r bob.x | me"),
        ("me:100 | ghost.x junk ann.x | me", "confirm me x", "granted",      "ann next 300", "me:300 | ann.x | me"),
        ("me:100 | ghost.x | me",      "confirm me x", "granted",            "", "me:300 | | me"),
        ("me:100 | ann.x | bob",       "confirm me x", "granted",            "ann next 300", "me:300 | ann.x | me"),
        // Somebody changed the fence: the token is minted anew.
        ("me:100",                     "confirm me x", "granted",            "", "me:300 | | me"),
        ("me:100 | | ann",             "confirm me x", "granted",            "", "me:300 | | me"),
        ("me:100 | | somebody",        "confirm me x", "granted",            "", "me:300 | | me"),
        ("readers:200 me:100 ann:200 | | ann", "confirm me r", "granted",    "", "readers:300 me:300 ann:200 | | me"),
        // It comes too late, and counts as a request.
        ("free | | me",                "confirm me x", "granted",            "", "me:300 | | me"),
        ("free | ann.x | me",          "confirm me x", "busy 100 place=0",   "ann granted", "ann:100 | me.x | ann"),
        ("ann:200 | bob.x | ann",      "confirm me x", "busy 200 place=1",   "", "ann:200 | bob.x me.x | ann"),
        ("foreign:200",                "confirm me x", "busy 200 place=0",   "", "foreign:200 | me.x"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn keep() {
    check(&[
        ("me:100 | | me",                "keep me", "kept",     "", "me:400 | | me"),
        ("me:100",                       "keep me", "kept",     "", "me:400"),
        ("me:100 | ann.x bob.x | me",    "keep me", "kept",     "ann next 400", "me:400 | ann.x bob.x | me"),
        ("me:100 | ghost.x junk ann.r | me", "keep me", "kept", "ann next 400", "me:400 | ann.r | me"),
        ("me:100 | ghost.x | me",        "keep me", "kept",     "", "me:400 | | me"),
        // It comes too late. If the lock was deleted, the first waiter has to ask.
        ("free | ann.x | me",            "keep me", "not ours", "ann next 0", "free | ann.x | me"),
        ("free | ghost.x | me",          "keep me", "not ours", "", "free | | me"),
        ("ann:200 | bob.x | ann",        "keep me", "not ours", "", "ann:200 | bob.x | ann"),
        ("foreign:200 | bob.x",          "keep me", "not ours", "", "foreign:200 | bob.x"),
        ("hash | bob.x",                 "keep me", "not ours", "", "hash | bob.x"),
        ("readers:200 me:200 | bob.x | me", "keep me", "not ours", "", "readers:200 me:200 | bob.x | me"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn release() {
    check(&[
        ("free",                         "release me", "not ours", "", "free"),
        ("me:200 | | me",                "release me", "released", "", "free | | me"),
        ("ann:200 | | ann",              "release me", "not ours", "", "ann:200 | | ann"),
        ("foreign:200",                  "release me", "not ours", "", "foreign:200"),
        ("foreign:never",                "release me", "not ours", "", "foreign:never"),
        ("hash",                         "release me", "not ours", "", "hash"),
        ("me:200 | | hash",              "release me", "released", "", "free | | hash"),
        ("me:200 | ann.x | me",          "release me", "released", "ann passed", "ann:100 | | ann"),
        ("me:200 | ann.x bob.x | me",    "release me", "released", "ann passed", "ann:100 | bob.x | ann"),
        ("me:200 | ghost.x ann.x | me",  "release me", "released", "ann granted", "ann:100 | | ann"),
        ("me:200 | ann.x ghost.x bob.x | me", "release me", "released", "ann passed", "ann:100 | ghost.x bob.x | ann"),
        ("me:200 | ghost.x ann.x bob.x | me", "release me", "released", "ann granted, bob next 100", "ann:100 | bob.x | ann"),
        ("me:200 | ann.x bob.r cat.r | me", "release me", "released", "ann passed", "ann:100 | bob.r cat.r | ann"),
        ("me:200 | ann.x ghost.x | me",  "release me", "released", "ann passed", "ann:100 | ghost.x | ann"),
        ("me:200 | ann.x junk | me",     "release me", "released", "ann passed", "ann:100 | junk | ann"),
        ("me:200 | ghost.x spook.x | me", "release me", "released", "", "free | | ghost"),
        ("me:200 | junk ann.x | me",     "release me", "released", "ann granted", "ann:100 | | ann"),
        ("me:200 | ann.r bob.r cat.x dan.r | me", "release me", "released", "ann granted, bob granted, cat next 100", "readers:100 ann:100 bob:100 | cat.x dan.r | bob"),
        ("me:200 | ann.2 bob.x | me",    "release me", "released", "ann granted, bob next 100", "permits:100 ann:100 | bob.x | ann"),
        ("ann:200 | bob.x | ann",        "release me", "not ours", "", "ann:200 | bob.x | ann"),
        // An owner without the lock hands nothing over.
        ("free | ann.x | me",            "release me", "not ours", "", "free | ann.x | me"),
        ("me:200 | ann.x | hash",        "release me", "released", "", "free | | hash"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn release_of_a_share() {
    check(&[
        ("readers:200 me:200 | | me",                  "release me", "released", "", "free | | me"),
        ("readers:300 me:300 ann:200 | | me",          "release me", "released", "", "readers:200 ann:200 | | me"),
        ("readers:200 ann:200 | | ann",                "release me", "not ours", "", "readers:200 ann:200 | | ann"),
        ("readers:300 me:past ann:200 | | ann",        "release me", "not ours", "", "readers:200 ann:200 | | ann"),
        ("readers:200 me:200 ann:past | | me",         "release me", "released", "", "free | | me"),
        ("readers:200 me:200 ann:past | bob.x | me",   "release me", "released", "bob granted", "bob:100 | | bob"),
        ("readers:300 me:300 ann:200 | bob.x | me",    "release me", "released", "bob next 200", "readers:200 ann:200 | bob.x | me"),
        ("readers:300 me:300 ann:200 | ghost.x bob.r | me", "release me", "released", "bob granted", "readers:200 ann:200 bob:100 | | bob"),
        ("permits:300 me:300 ann:200 | bob.2 | me",    "release me", "released", "bob granted", "permits:200 ann:200 bob:100 | | bob"),
        ("permits:300 me:300 ann:200 | bob.1 | me",    "release me", "released", "bob next 200", "permits:200 ann:200 | bob.1 | me"),
        ("permits:300 me:300 ann:200 | bob.1 cat.2 | me", "release me", "released", "bob next 200, cat granted", "permits:200 ann:200 cat:100 | bob.1 | cat"),
        ("permits:300 me:300 ann:200 | bob.1 cat.1 dan.2 | me", "release me", "released", "bob next 200, dan granted", "permits:200 ann:200 dan:100 | bob.1 cat.1 | dan"),
        ("permits:300 me:300 ann:200 | bob.1 ghost.2 dan.2 | me", "release me", "released", "bob next 200, dan granted", "permits:200 ann:200 dan:100 | bob.1 | dan"),
        ("permits:300 me:300 ann:200 | bob.1 cat.x dan.2 | me", "release me", "released", "bob next 200", "permits:200 ann:200 | bob.1 cat.x dan.2 | me"),
        // The lock was deleted meanwhile.
        ("free me:200 | | me",                         "release me", "not ours", "", "free me:200 | | me"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn leave_the_queue() {
    check(&[
        ("free",                          "leave me x", "not ours", "", "free"),
        ("ann:200 | | ann",               "leave me x", "not ours", "", "ann:200 | | ann"),
        ("ann:200 | me.x | ann",          "leave me x", "not ours", "", "ann:200 | | ann"),
        ("ann:200 | me.x bob.x | ann",    "leave me x", "not ours", "bob next 200", "ann:200 | bob.x | ann"),
        ("ann:200 | bob.x me.x | ann",    "leave me x", "not ours", "bob next 200", "ann:200 | bob.x | ann"),
        ("ann:200 | me.x ghost.x bob.x | ann", "leave me x", "not ours", "bob next 200", "ann:200 | bob.x | ann"),
        ("hash | me.x bob.x",             "leave me x", "not ours", "bob next never", "hash | bob.x"),
        // A writer that leaves was in the way of the readers behind it.
        ("readers:200 ann:200 | me.x bob.r | ann", "leave me x", "not ours", "bob granted", "readers:200 ann:200 bob:100 | | bob"),
        // The grant came at the same time: it goes on to the next.
        ("me:100 | bob.x | me",           "leave me x", "released", "bob passed", "bob:100 | | bob"),
        ("me:100 | | me",                 "leave me x", "released", "", "free | | me"),
        ("readers:100 me:100 | bob.x | me", "leave me r", "released", "bob granted", "bob:100 | | bob"),
        // It has ended in the meantime.
        ("free | me.x bob.x",             "leave me x", "not ours", "bob granted", "bob:100 | | bob"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn rotate() {
    check(&[
        ("free",                       "rotate me ann", "not ours", "", "free"),
        ("bob:200 | | bob",            "rotate me ann", "not ours", "", "bob:200 | | bob"),
        ("foreign:200",                "rotate me ann", "not ours", "", "foreign:200"),
        ("hash",                       "rotate me ann", "not ours", "", "hash"),
        ("me:200 | | me",              "rotate me ann", "passed",   "", "ann:300 | | ann"),
        ("me:200",                     "rotate me ann", "passed",   "", "ann:300 | | ann"),
        ("me:200 | | hash",            "rotate me ann", "refused",  "", "me:200 | | hash"),
        ("me:200 | bob.x | me",        "rotate me ann", "passed",   "", "ann:300 | bob.x | ann"),
        ("readers:200 me:200 | | me",  "rotate me ann", "not ours", "", "readers:200 me:200 | | me"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn extend() {
    check(&[
        ("free",                                "extend me", "not ours", "", "free"),
        ("me:200 | | me",                       "extend me", "extended", "", "me:400 | | me"),
        ("me:200 | ann.x | me",                 "extend me", "extended", "", "me:400 | ann.x | me"),
        ("me:200",                              "extend me", "extended", "", "me:400"),
        ("ann:200 | | ann",                     "extend me", "not ours", "", "ann:200 | | ann"),
        ("foreign:200",                         "extend me", "not ours", "", "foreign:200"),
        ("foreign:never",                       "extend me", "not ours", "", "foreign:never"),
        ("hash",                                "extend me", "not ours", "", "hash"),
        ("readers:200 me:200 | | me",           "extend me", "extended", "", "readers:400 me:400 | | me"),
        ("readers:200 me:100 ann:200 | | ann",  "extend me", "extended", "", "readers:400 me:400 ann:200 | | ann"),
        ("readers:200 me:past ann:200 | | ann", "extend me", "not ours", "", "readers:200 me:past ann:200 | | ann"),
        ("readers:200 ann:200 | | ann",         "extend me", "not ours", "", "readers:200 ann:200 | | ann"),
        ("permits:200 me:200 ann:100 | | me",   "extend me", "extended", "", "permits:400 me:400 ann:100 | | me"),
        ("free me:200 | | me",                  "extend me", "not ours", "", "free me:200 | | me"),
        ("free | me.x",                         "extend me", "not ours", "", "free | me.x"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn downgrade() {
    check(&[
        ("free",                                "downgrade me", "not ours",   "", "free"),
        ("me:200 | | me",                       "downgrade me", "downgraded", "", "readers:400 me:400 | | me"),
        ("me:200",                              "downgrade me", "downgraded", "", "readers:400 me:400"),
        ("ann:200 | | ann",                     "downgrade me", "not ours",   "", "ann:200 | | ann"),
        ("foreign:never",                       "downgrade me", "not ours",   "", "foreign:never"),
        ("hash",                                "downgrade me", "not ours",   "", "hash"),
        ("free | me.x",                         "downgrade me", "not ours",   "", "free | me.x"),
        // Readers come in up to the first who is none, and nobody else.
        ("me:200 | ann.r | me",                 "downgrade me", "downgraded", "ann granted", "readers:400 me:400 ann:100 | | ann"),
        ("me:200 | ann.r bob.r | me",           "downgrade me", "downgraded", "ann granted, bob granted", "readers:400 me:400 ann:100 bob:100 | | bob"),
        ("me:200 | ann.r bob.x cat.r | me",     "downgrade me", "downgraded", "ann granted, bob next 400", "readers:400 me:400 ann:100 | bob.x cat.r | ann"),
        ("me:200 | bob.x ann.r | me",           "downgrade me", "downgraded", "", "readers:400 me:400 | bob.x ann.r | me"),
        ("me:200 | ann.2 | me",                 "downgrade me", "downgraded", "", "readers:400 me:400 | ann.2 | me"),
        // Dead waiters and invalid entries block no one.
        ("me:200 | ghost.x ann.r | me",         "downgrade me", "downgraded", "ann granted", "readers:400 me:400 ann:100 | | ann"),
        ("me:200 | junk spook.r ann.r | me",    "downgrade me", "downgraded", "ann granted", "readers:400 me:400 ann:100 | | ann"),
        ("me:200 | ghost.x ann.x | me",         "downgrade me", "downgraded", "ann next 400", "readers:400 me:400 | ann.x | me"),
        ("me:200 | ann.r | hash",               "downgrade me", "downgraded", "ann granted", "readers:400 me:400 | | hash"),
        // Holders whose lock was deleted share nothing.
        ("me:200 bob:200 | | me",               "downgrade me", "downgraded", "", "readers:400 me:400 | | me"),
        // Sent again.
        ("readers:200 me:200 | ann.x | me",     "downgrade me", "downgraded", "", "readers:400 me:400 | ann.x | me"),
        ("readers:200 me:100 ann:200 | | ann",  "downgrade me", "downgraded", "", "readers:400 me:400 ann:200 | | ann"),
        ("readers:200 me:past ann:200 | | ann", "downgrade me", "not ours",   "", "readers:200 me:past ann:200 | | ann"),
        ("free me:200 | | me",                  "downgrade me", "not ours",   "", "free me:200 | | me"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn raise() {
    check(&[
        ("free | | me",                         "raise me 50", "not ours", "", "free | | me"),
        ("me:200 | | me",                       "raise me 50", "raised",   "", "me:200 | | me"),
        ("me:200 | | me",                       "raise me 0",  "raised",   "", "me:200 | | me"),
        ("me:200 | | me",                       "raise me -5", "raised",   "", "me:200 | | me"),
        ("me:200",                              "raise me 50", "raised",   "", "me:200 | | somebody"),
        ("me:200 | | hash",                     "raise me 50", "refused",  "", "me:200 | | hash"),
        ("ann:200 | | ann",                     "raise me 50", "not ours", "", "ann:200 | | ann"),
        ("foreign:200 | | me",                  "raise me 50", "not ours", "", "foreign:200 | | me"),
        ("hash | | me",                         "raise me 50", "not ours", "", "hash | | me"),
        ("readers:200 me:200 ann:200 | | ann",  "raise me 50", "raised",   "", "readers:200 me:200 ann:200 | | ann"),
        ("readers:200 me:200 ann:200 | | ann",  "raise me 0",  "raised",   "", "readers:200 me:200 ann:200 | | ann"),
        ("readers:200 me:200 ann:200 | | ann",  "raise me -5", "raised",   "", "readers:200 me:200 ann:200 | | ann"),
        ("readers:200 me:200 ann:200 | | me",   "raise me 50", "raised",   "", "readers:200 me:200 ann:200 | | me"),
        ("readers:200 me:past ann:200 | | ann", "raise me 50", "not ours", "", "readers:200 me:past ann:200 | | ann"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn look() {
    check(&[
        ("free",                                "look me", "none waiters=0",               "", "free"),
        ("free | ann.x junk | bob",             "look me", "none waiters=2",               "", "free | ann.x junk | bob"),
        ("me:200 | | me",                       "look me", "string me waiters=0 ours",     "", "me:200 | | me"),
        ("me:200 | | hash",                     "look me", "string me waiters=0 ours",     "", "me:200 | | hash"),
        ("ann:200 | bob.x | ann",               "look me", "string ann waiters=1",         "", "ann:200 | bob.x | ann"),
        ("foreign:never",                       "look me", "string foreign waiters=0",     "", "foreign:never"),
        ("hash | ann.x",                        "look me", "hash waiters=1",               "", "hash | ann.x"),
        ("readers:200 me:200 ann:200 | | ann",  "look me", "string ann waiters=0 ours",    "", "readers:200 me:200 ann:200 | | ann"),
        ("readers:200 me:200 ann:past | | ann", "look me", "string shared waiters=0 ours", "", "readers:200 me:200 ann:past | | ann"),
        ("readers:200 me:past ann:200 | | bob", "look me", "string shared waiters=0",      "", "readers:200 me:past ann:200 | | bob"),
        ("free me:200 | | me",                  "look me", "none waiters=0",               "", "free me:200 | | me"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn break_lock() {
    check(&[
        ("free",                           "break", "none",   "", "free"),
        ("free | ann.x",                   "break", "none",   "", "free | ann.x"),
        ("me:200 | | me",                  "break", "string", "", "free | | me"),
        ("foreign:never",                  "break", "string", "", "free"),
        ("hash | ann.x",                   "break", "hash",   "", "hash | ann.x"),
        ("me:200 | ann.x bob.x | me",      "break", "string", "ann granted, bob next 100", "ann:100 | bob.x | ann"),
        ("me:200 | ghost.x | me",          "break", "string", "", "free | | me"),
        ("readers:200 me:200 ann:200 | bob.x | ann", "break", "string", "bob granted", "bob:100 | | bob"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn waiters_without_a_queue_are_notified() {
    check_with(Bench::new(true).await, Family::Single, &[
        ("me:200 | | me",                     "release me", "released", "free", "free | | me"),
        ("ann:200 | | ann",                   "release me", "not ours", "", "ann:200 | | ann"),
        ("me:200 | ghost.x | me",             "release me", "released", "free", "free | | ghost"),
        ("me:200 | ann.x | me",               "release me", "released", "ann passed", "ann:100 | | ann"),
        ("readers:300 me:300 ann:200 | | me", "release me", "released", "free", "readers:200 ann:200 | | me"),
        ("me:200 | | me",                     "downgrade me", "downgraded", "free", "readers:400 me:400 | | me"),
        ("me:200 | ann.r | me",               "downgrade me", "downgraded", "ann granted, free", "readers:400 me:400 ann:100 | | ann"),
        ("me:200 | ann.x | me",               "downgrade me", "downgraded", "", "readers:400 me:400 | ann.x | me"),
        ("readers:300 me:300 | | me",         "downgrade me", "downgraded", "", "readers:400 me:400 | | me"),
        ("readers:200 me:200 | | me",         "release me", "released", "free", "free | | me"),
        ("me:200 | | me",                     "break",      "string",   "free", "free | | me"),
        ("me:200 | ann.x | me",               "break",      "string",   "ann granted", "ann:100 | | ann"),
        ("free",                              "break",      "none",     "", "free"),
    ]).await;
}

/// Where a double is not exact any more.
/// In microseconds.
const YEAR: u64 = 32_000_000_000_000;

/// State, last token, operation, and the token after it; `None` is the clock.
type Minting = (&'static str, u64, &'static str, Option<u64>);

async fn check_minting(family: Family, rows: &[Minting]) {
    let mut bench = Bench::new(false).await;
    for (state, last, op, wanted) in rows {
        let mut case = bench.case_after(*last, family, state.parse().unwrap()).await;
        let clock = clock();
        let token = bench.step(&mut case, op.parse().unwrap()).await.token.unwrap();
        match wanted {
            Some(wanted) => assert_eq!(token, *wanted, "{op} after {last}"),
            None => assert!(token >= clock && token < clock + YEAR, "{op} after {last}: {token}"),
        }
    }
}

/// Now, as a server tells it: in microseconds since 1970.
fn clock() -> u64 {
    u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap()
}

#[tokio::test]
async fn tokens() {
    let next_year = clock() + YEAR;
    check_minting(
        Family::Single,
        &[
            // Below the clock, and above it: after a restore, or a clock that went back.
            ("free | | ann", 1000, "ask me x", None),
            ("free | | ann", 9, "ask me x", None),
            ("free | | ann", next_year, "ask me x", Some(TokenBlock::end(next_year) + 1)),
            ("free | | ann", 2_999_999_999_999_999, "ask me x", Some(3_000_000_000_000_000)),
            ("free | | ann", 3_000_000_000_000_000, "ask me x", Some(3_000_000_000_000_016)),
            ("me:200 | | me", next_year, "rotate me ann", Some(TokenBlock::end(next_year) + 1)),
            ("me:200 | | me", 1000, "ask me x", Some(1008)),
            // Up to where a double is exact.
            ("free | | ann", LARGEST - 16, "ask me x", Some(LARGEST - 15)),
            ("free | | ann", LARGEST - 16, "ask me r", Some(LARGEST - 15)),
        ],
    )
    .await;
    let mut bench = Bench::new(false).await;
    for (last, by) in [(1000_u64, 1_i64), (1000, 1 << 40), (clock(), 1 << 40), (LARGEST - 19, 1), (99, 1)] {
        let mut case = bench.case_after(last, Family::Single, "me:200 | | me".parse().unwrap()).await;
        bench.step(&mut case, Op::Raise("me".parse().unwrap(), by)).await;
        let floor = last.saturating_add_signed(by);
        let score: f64 = bench.redis(&["ZSCORE", case.keys.tokens(), "last"]).await;
        assert_eq!(score as u64, floor, "{last} raised by {by}");
        let token = bench.step(&mut case, "rotate me ann".parse().unwrap()).await.token;
        assert!(token.unwrap() > floor, "{last} raised by {by}: {token:?}");
    }
}

#[tokio::test]
async fn tokens_on_master() {
    let after = |token| TokenBlock::end(token) + 1;
    let (free, held, next_year) = ("free | | somebody", "me:200 | | somebody", clock() + YEAR);
    check_minting(
        Family::Master,
        &[
            (free, 1000, "claim me", None),
            (free, 9, "claim me", None),
            (held, 1000, "claim me", None),
            (free, next_year, "claim me", Some(after(next_year))),
            (held, next_year, "claim me", Some(after(next_year))),
            (free, next_year, "claim me in line", Some(after(next_year))),
            (free, next_year, "claim me -5", Some(after(next_year))),
            (free, 999, "claim me -998", Some(1008)),
            (free, 999, "claim me +0", Some(1008)),
            (free, 999, "claim me +1", Some(1000)),
            (free, 999, "claim me +9", Some(1008)),
            (free, 1000, "claim me -1", Some(1008)),
            (free, 1008, "claim me +0", Some(1024)),
            (free, 1009, "claim me +0", Some(1024)),
            (free, 999, "outright me +1", Some(1000)),
            (free, 9, "outright me +1991", Some(2000)),
            // Numbers of many digits.
            (free, 2_000_000_000_000_000, "claim me +0", Some(2_000_000_000_000_016)),
            (free, 2_999_999_999_999_999, "claim me +0", Some(3_000_000_000_000_000)),
            (free, 4_000_000_000_000_000, "claim me +1000000000000000", Some(5_000_000_000_000_000)),
            (free, 4_000_000_000_000_000, "outright me +1000000000000000", Some(5_000_000_000_000_000)),
            (free, 5_000_000_000_000_000, "claim me +0", Some(5_000_000_000_000_016)),
            (free, 5_000_000_000_000_000, "outright me +1", Some(5_000_000_000_000_001)),
            // Up to where a double is exact.
            (free, LARGEST - 16, "claim me", Some(LARGEST - 15)),
            (free, LARGEST - 2, "claim me +1", Some(LARGEST - 1)),
            (free, LARGEST - 3, "outright me +1", Some(LARGEST - 2)),
            (held, LARGEST - 16, "claim me -7", Some(LARGEST - 15)),
        ],
    )
    .await;
    let mut bench = Bench::new(false).await;
    for (last, by) in [
        (1000_u64, 1_i64),
        (1000, 1 << 40),
        (clock(), 1 << 40),
        (LARGEST - 19, 1),
        (99, 1),
        (1000, -1),
        (5, 0),
    ] {
        let mut case = bench.case_after(last, Family::Master, held.parse().unwrap()).await;
        bench.step(&mut case, Op::Raise("me".parse().unwrap(), by)).await;
        let floor = last.saturating_add_signed(by);
        let token = bench.step(&mut case, "claim me +0".parse().unwrap()).await.token;
        assert_eq!(token.unwrap(), after(floor.max(last)), "{last} raised by {by}");
    }
}

/// The last token that can be noted is granted, by each way, and none after it.
#[tokio::test]
async fn the_last_of_all_tokens() {
    let mut bench = Bench::new(false).await;
    for (state, op) in [
        ("free | | somebody", "claim me"),
        ("free | | somebody", "claim me +1"),
        ("free | | somebody", "claim me -5"),
        ("free | | somebody", "outright me +1"),
        ("me:200 | | somebody", "claim me +0"),
    ] {
        let largest = TokenBlock::start(LARGEST);
        let mut case = bench.case_after(largest - 1, Family::Master, state.parse().unwrap()).await;
        let Step { token, last, .. } = bench.step(&mut case, op.parse().unwrap()).await;
        assert_eq!((token, last), (Some(largest), Some(largest)), "{state}; {op}");
    }
}

#[tokio::test]
async fn what_is_left_behind_ends_by_itself() {
    let mut bench = Bench::new(false).await;
    let mut case = bench.case(Family::Single, "ann:200 | | ann".parse().unwrap()).await;
    bench.step(&mut case, "queue me x".parse().unwrap()).await;
    let queue: i64 = bench.redis(&["PTTL", case.keys.queue()]).await;
    assert!((1..=5_000).contains(&queue), "{queue}");
    for op in ["claim me in line"] {
        let mut case = bench.case(Family::Master, "ann:200 | | somebody | bob".parse().unwrap()).await;
        bench.step(&mut case, op.parse().unwrap()).await;
        let line: i64 = bench.redis(&["PTTL", &case.keys.line()]).await;
        assert!((1..=5_000).contains(&line), "{op}: {line}");
    }
    let mut case = bench.case(Family::Single, "free".parse().unwrap()).await;
    bench.step(&mut case, "ask me r".parse().unwrap()).await;
    for op in ["extend me", "extend me"] {
        let fence: i64 = bench.redis(&["TTL", case.keys.tokens()]).await;
        assert!(is_a_week(fence), "{fence}");
        let _: i64 = bench.redis(&["EXPIRE", case.keys.tokens(), "60"]).await;
        bench.step(&mut case, op.parse().unwrap()).await;
    }
    let holders: i64 = bench.redis(&["TTL", case.keys.holders()]).await;
    assert!((340..=400).contains(&holders), "{holders}");
}

fn is_a_week(seconds: i64) -> bool {
    let week = 7 * 24 * 3600;
    (week - 60..=week).contains(&seconds)
}

#[tokio::test]
async fn a_master_forgets_the_last_token_after_a_week() {
    let mut bench = Bench::new(false).await;
    for (state, op) in [
        ("free", "claim me"),
        ("free", "claim me +5"),
        ("free | | somebody", "claim me +5"),
        ("free | | somebody", "claim me -5"),
        ("free | | somebody", "claim me in line"),
        ("me:200 | | somebody", "claim me +5"),
        ("me:200 | | somebody", "claim me -5"),
        ("free", "outright me +5"),
        ("free | | somebody", "outright me +5"),
        ("free | | somebody", "outright me -5"),
        ("ann:200", "outright me +5"),
        ("ann:200 | | somebody", "outright me +5"),
        ("me:200 | | somebody", "extend me"),
        ("me:200", "raise me 5"),
        ("me:200 | | somebody", "raise me 5"),
    ] {
        for ends in [false, true] {
            let mut case = bench.case(Family::Master, state.parse().unwrap()).await;
            if ends {
                // It is never left to end sooner.
                let _: i64 = bench.redis(&["EXPIRE", case.keys.tokens(), "60"]).await;
            }
            bench.step(&mut case, op.parse().unwrap()).await;
            let tokens: i64 = bench.redis(&["TTL", case.keys.tokens()]).await;
            assert!(is_a_week(tokens), "{state}; {op}: {tokens}");
        }
    }
}

/// What a refusal leaves as it was.
#[tokio::test]
async fn what_has_no_effect_does_not_keep_the_last_token_either() {
    let mut bench = Bench::new(false).await;
    for op in ["claim me +5", "claim me in line", "extend me", "raise me 5", "vacate me", "look me", "break"]
    {
        let mut case = bench.case(Family::Master, "longer-me:200 | | somebody".parse().unwrap()).await;
        let _: i64 = bench.redis(&["EXPIRE", case.keys.tokens(), "60"]).await;
        bench.step(&mut case, op.parse().unwrap()).await;
        let tokens: i64 = bench.redis(&["TTL", case.keys.tokens()]).await;
        assert!((1..=60).contains(&tokens), "{op}: {tokens}");
    }
}
