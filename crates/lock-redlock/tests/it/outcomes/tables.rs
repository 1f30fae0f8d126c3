//! The tables.

use lock_core::TokenBlock;

use super::bench::{Bench, LARGEST};
use super::check::{YEAR, check, check_minting, clock, is_a_week};
use super::laws::Step;
use super::master::Master;

#[rustfmt::skip]
#[tokio::test]
async fn claim() {
    check::<Master>(&[
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
    check::<Master>(&[
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
    check::<Master>(&[
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
    let mut bench = Bench::<Master>::new(false).await;
    for (before, ops, last, after) in sequences {
        let mut case = bench.case(before.parse().unwrap()).await;
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
    check::<Master>(&[
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
    check::<Master>(&[
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
    check::<Master>(&[
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
async fn extend() {
    check::<Master>(&[
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
async fn raise() {
    check::<Master>(&[
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
async fn look() {
    check::<Master>(&[
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
async fn break_lock() {
    check::<Master>(&[
        ("free | | somebody",        "break", "none",   "", "free | | somebody"),
        ("me:200 | | somebody",      "break", "string", "", "free | | somebody"),
        ("me:200 | | hash",          "break", "string", "", "free | | hash"),
        ("longer-me:200",            "break", "string", "", "free"),
        ("foreign:never",            "break", "string", "", "free"),
        ("hash | | somebody",        "break", "hash",   "", "hash | | somebody"),
        ("me:200 | | somebody | ann | bob:100", "break", "string", "", "free | | somebody | ann | bob:100"),
    ]).await;
}

#[tokio::test]
async fn tokens() {
    let after = |token| TokenBlock::end(token) + 1;
    let (free, held, next_year) = ("free | | somebody", "me:200 | | somebody", clock() + YEAR);
    check_minting::<Master>(&[
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
    ])
    .await;
    let mut bench = Bench::<Master>::new(false).await;
    for (last, by) in [
        (1000_u64, 1_i64),
        (1000, 1 << 40),
        (clock(), 1 << 40),
        (LARGEST - 19, 1),
        (99, 1),
        (1000, -1),
        (5, 0),
    ] {
        let mut case = bench.case_after(last, held.parse().unwrap()).await;
        bench.step(&mut case, format!("raise me {by}").parse().unwrap()).await;
        let floor = last.saturating_add_signed(by);
        let token = bench.step(&mut case, "claim me +0".parse().unwrap()).await.token;
        assert_eq!(token.unwrap(), after(floor.max(last)), "{last} raised by {by}");
    }
}

/// The last token that can be noted is granted, by each way, and none after it.
#[tokio::test]
async fn the_last_of_all_tokens() {
    let mut bench = Bench::<Master>::new(false).await;
    for (state, op) in [
        ("free | | somebody", "claim me"),
        ("free | | somebody", "claim me +1"),
        ("free | | somebody", "claim me -5"),
        ("free | | somebody", "outright me +1"),
        ("me:200 | | somebody", "claim me +0"),
    ] {
        let largest = TokenBlock::start(LARGEST);
        let mut case = bench.case_after(largest - 1, state.parse().unwrap()).await;
        let Step { token, last, .. } = bench.step(&mut case, op.parse().unwrap()).await;
        assert_eq!((token, last), (Some(largest), Some(largest)), "{state}; {op}");
    }
}

#[tokio::test]
async fn a_master_forgets_the_last_token_after_a_week() {
    let mut bench = Bench::<Master>::new(false).await;
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
            let mut case = bench.case(state.parse().unwrap()).await;
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
    let mut bench = Bench::<Master>::new(false).await;
    for op in ["claim me +5", "claim me in line", "extend me", "raise me 5", "vacate me", "look me", "break"]
    {
        let mut case = bench.case("longer-me:200 | | somebody".parse().unwrap()).await;
        let _: i64 = bench.redis(&["EXPIRE", case.keys.tokens(), "60"]).await;
        bench.step(&mut case, op.parse().unwrap()).await;
        let tokens: i64 = bench.redis(&["TTL", case.keys.tokens()]).await;
        assert!((1..=60).contains(&tokens), "{op}: {tokens}");
    }
}

#[tokio::test]
async fn a_place_in_the_line_ends_by_itself() {
    let mut bench = Bench::<Master>::new(false).await;
    let mut case = bench.case("ann:200 | | somebody | bob".parse().unwrap()).await;
    bench.step(&mut case, "claim me in line".parse().unwrap()).await;
    let line: i64 = bench.redis(&["PTTL", &case.keys.line()]).await;
    assert!((1..=5_000).contains(&line), "{line}");
}
