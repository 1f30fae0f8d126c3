//! The tables.

use lock_core::Token;

use crate::bench::Bench;
use crate::op::Op;
use crate::state::State;

/// State, operation, answer, what is told to whom, state after.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str);

async fn check(rows: &[Row]) {
    check_with(Bench::new(false).await, rows).await;
}

async fn check_with(mut bench: Bench, rows: &[Row]) {
    for (number, (before, op, answer, told, after)) in rows.iter().enumerate() {
        let state: State = before.parse().unwrap();
        let mut case = bench.case(state).await;
        let op: Op = op.parse().unwrap();
        let (effect, state, _) = bench.step(&mut case, op).await;
        let seen = (effect.answer, effect.told.join(", "), state.to_string());
        let wanted = ((*answer).to_owned(), (*told).to_owned(), (*after).to_owned());
        assert_eq!(seen, wanted, "row {number}: {before}; {op}");
    }
}

#[rustfmt::skip]
#[tokio::test]
async fn claim() {
    check(&[
        ("free",                       "claim me", "granted",        "", "me:300 | | me"),
        ("free | | ann",               "claim me", "granted",        "", "me:300 | | me"),
        ("free | | somebody",          "claim me", "granted",        "", "me:300 | | me"),
        ("free | | hash",              "claim me", "refused",        "", "free | | hash"),
        ("me:200 | | me",              "claim me", "granted",        "", "me:200 | | me"),
        ("me:200",                     "claim me", "granted",        "", "me:200 | | me"),
        ("ann:200 | | ann",            "claim me", "busy 200",       "", "ann:200 | | ann"),
        ("foreign:200",                "claim me", "busy 200",       "", "foreign:200"),
        ("foreign:never",              "claim me", "busy never",     "", "foreign:never"),
        ("hash",                       "claim me", "busy never hash", "", "hash"),
        ("readers:200 me:200 | | me",  "claim me", "busy 200",       "", "readers:200 me:200 | | me"),
        // It does not know of the queue.
        ("free | ann.x",               "claim me", "granted",        "", "me:300 | ann.x | me"),
    ]).await;
}

/// The last token is 1000.
#[rustfmt::skip]
#[tokio::test]
async fn claim_with_a_token() {
    check(&[
        ("free",                       "claim me 2000", "granted",        "", "me:300 | | me"),
        ("free | | ann",               "claim me 2000", "granted",        "", "me:300 | | me"),
        ("free | | ann",               "claim me 1000", "granted",        "", "me:300 | | me"),
        ("free | | ann",               "claim me 5",    "granted",        "", "me:300 | | me"),
        ("free | | somebody",          "claim me 2000", "granted",        "", "me:300 | | me"),
        ("free | | somebody",          "claim me 5",    "granted",        "", "me:300 | | me"),
        ("free | | hash",              "claim me 2000", "refused",        "", "free | | hash"),
        // It held the lock until a moment ago.
        ("free | | me",                "claim me 2000", "granted",        "", "me:300 | | me"),
        ("free | | me",                "claim me 1000", "granted",        "", "me:300 | | me"),
        ("me:200 | | me",              "claim me 2000", "granted",        "", "me:200 | | me"),
        ("me:200",                     "claim me 2000", "granted",        "", "me:200 | | me"),
        ("ann:200 | | ann",            "claim me 2000", "busy 200",       "", "ann:200 | | ann"),
        ("foreign:200",                "claim me 2000", "busy 200",       "", "foreign:200"),
        ("foreign:never",              "claim me 2000", "busy never",     "", "foreign:never"),
        ("hash",                       "claim me 2000", "busy never hash", "", "hash"),
        ("readers:200 me:200 | | me",  "claim me 2000", "busy 200",       "", "readers:200 me:200 | | me"),
        ("free | ann.x",               "claim me 2000", "granted",        "", "me:300 | ann.x | me"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn claim_in_line() {
    check(&[
        ("free",                          "claim me in line", "granted",     "", "me:300 | | me"),
        ("free | | hash",                 "claim me in line", "refused",     "", "free | | hash"),
        ("free | | hash | me",            "claim me in line", "refused",     "", "free | | hash | me"),
        ("me:200 | | me",                 "claim me in line", "granted",     "", "me:200 | | me"),
        ("ann:200 | | ann",               "claim me in line", "busy 200",    "", "ann:200 | | ann | me"),
        ("ann:200 | | ann | me bob",      "claim me in line", "busy 200",    "", "ann:200 | | ann | me bob"),
        ("ann:200 | | ann | junk bob",    "claim me in line", "busy 200",    "", "ann:200 | | ann | junk me bob"),
        ("foreign:never",                 "claim me in line", "busy never",  "", "foreign:never | | | me"),
        ("hash",                          "claim me in line", "busy never hash", "", "hash | | | me"),
        ("readers:200 ann:200 | | ann",   "claim me in line", "busy 200",    "", "readers:200 ann:200 | | ann | me"),
        // Nobody has been called: the line holds nobody up.
        ("free | | | ann bob",            "claim me in line", "granted",     "", "me:300 | | me | ann bob"),
        ("free | | | me ann",             "claim me in line", "granted",     "", "me:300 | | me | ann"),
        // It is another's turn, and then one is called.
        ("free | | ann | | bob:100",      "claim me in line", "busy never",  "", "free | | ann | me | bob:100"),
        ("free | | ann | me | bob:100",   "claim me in line", "busy never",  "", "free | | ann | me | bob:100"),
        ("ann:200 | | ann | | bob:100",   "claim me in line", "busy never",  "", "ann:200 | | ann | me | bob:100"),
        // It is ours.
        ("free | | ann | | me:100",       "claim me in line", "granted",     "", "me:300 | | me"),
        ("free | | ann | me bob | me:100", "claim me in line", "granted",    "", "me:300 | | me | bob"),
        ("ann:200 | | ann | | me:100",    "claim me in line", "busy 200",    "", "ann:200 | | ann | me | me:100"),
        // Sent again, whosever turn it is.
        ("me:200 | | me | bob | bob:100", "claim me in line", "granted",     "", "me:200 | | me | bob | bob:100"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn claim_past_a_line() {
    check(&[
        // By one who does not wait.
        ("free | | ann | bob",            "claim me",       "granted",      "", "me:300 | | me | bob"),
        ("free | | ann | bob",            "claim me 2000",  "granted",      "", "me:300 | | me | bob"),
        ("ann:200 | | ann | bob",         "claim me",       "busy 200",     "", "ann:200 | | ann | bob"),
        ("free | | ann | | bob:100",      "claim me",       "busy 100",     "", "free | | ann | | bob:100"),
        ("free | | ann | | bob:100",      "claim me 2000",  "busy 100",     "", "free | | ann | | bob:100"),
        ("free | | ann | me | me:100",    "claim me",       "busy 100",     "", "free | | ann | me | me:100"),
        // By one who gives up waiting with it.
        ("free | | ann | me bob",         "claim me for the last time", "granted",  "", "me:300 | | me | bob"),
        ("ann:200 | | ann | me bob",      "claim me for the last time", "busy 200", "", "ann:200 | | ann | bob"),
        ("ann:200 | | ann",               "claim me for the last time", "busy 200", "", "ann:200 | | ann"),
        ("free | | ann | me | bob:100",   "claim me for the last time", "busy 100", "", "free | | ann | | bob:100"),
        ("free | | ann | me | me:100",    "claim me for the last time", "granted",  "", "me:300 | | me"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn vacate() {
    check(&[
        ("free",                          "vacate me",      "not ours", "", "free"),
        ("me:200 | | me",                 "vacate me",      "vacated",  "", "free | | me"),
        ("ann:200 | | ann",               "vacate me",      "not ours", "", "ann:200 | | ann"),
        ("foreign:never",                 "vacate me",      "not ours", "", "foreign:never"),
        ("hash",                          "vacate me",      "not ours", "", "hash"),
        ("readers:200 me:200 | | me",     "vacate me",      "not ours", "", "readers:200 me:200 | | me"),
        // Nobody is called who is not to be, and nobody else leaves.
        ("me:200 | | me | me ann",        "vacate me",      "vacated",  "", "free | | me | me ann"),
        ("free | | me | | me:100",        "vacate me",      "not ours", "", "free | | me | | me:100"),
        ("me:200 | | me | me ann",        "vacate me leave", "vacated", "", "free | | me | ann"),
        ("free | | ann | me | me:100",    "vacate me leave", "not ours", "", "free | | ann"),
        ("free | | ann | me | bob:100",   "vacate me leave", "not ours", "", "free | | ann | | bob:100"),
        ("me:200 | | me | bob",           "vacate me stay", "vacated",  "", "free | | me | me bob"),
        ("ann:200 | | ann",               "vacate me stay", "not ours", "", "ann:200 | | ann | me"),
        // Whoever is called has the turn.
        ("me:200 | | me | ann bob",       "vacate me call", "vacated",  "ann turn", "free | | me | bob | ann:100"),
        ("me:200 | | me",                 "vacate me call", "vacated",  "", "free | | me"),
        ("free | | me | ann",             "vacate me call", "not ours", "ann turn", "free | | me | | ann:100"),
        ("ann:200 | | ann | bob",         "vacate me call", "not ours", "", "ann:200 | | ann | bob"),
        ("foreign:200 | | | bob",         "vacate me call", "not ours", "", "foreign:200 | | | bob"),
        ("hash | | | bob",                "vacate me call", "not ours", "", "hash | | | bob"),
        ("me:200 | | me | ann | bob:100", "vacate me call", "vacated",  "", "free | | me | ann | bob:100"),
        // The dead, and what makes no sense, are passed over.
        ("me:200 | | me | junk ghost spook", "vacate me call", "vacated", "", "free | | me"),
        ("me:200 | | me | junk eve ghost", "vacate me call", "vacated", "eve turn", "free | | me | ghost | eve:100"),
        // One who stays may be the next, and who leaves hands its turn on.
        ("me:200 | | me | bob",           "vacate me stay call", "vacated", "me turn", "free | | me | bob | me:100"),
        ("free | | ann | me bob | me:100", "vacate me leave call", "not ours", "bob turn", "free | | ann | | bob:100"),
        ("me:200 | | me | me",            "vacate me leave call", "vacated", "", "free | | me"),
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
        // The lock was deleted under those who shared it: they have nothing any more.
        ("free ann:200 bob:200 | | bob",         "ask me r", "granted",    "", "readers:300 me:300 | | me"),
        ("free ann:200 bob:200 | | bob",         "ask me 2", "granted",    "", "permits:300 me:300 | | me"),
        ("free me:200 | | me",                   "ask me r", "granted",    "", "readers:300 me:300 | | me"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn ask_before_a_queue() {
    check(&[
        // Who waits comes first, and the lock is given to it.
        ("free | ann.x",            "ask me x",   "busy 100", "ann granted", "ann:100 | | ann"),
        ("free | ann.r",            "ask me r",   "granted",  "ann granted", "readers:300 me:300 ann:100 | | me"),
        ("free | ann.x bob.x",      "ask me x",   "busy 100", "ann granted, bob next 100", "ann:100 | bob.x | ann"),
        ("free | ann.r bob.r",      "ask me x",   "busy 100", "ann granted, bob granted", "readers:100 ann:100 bob:100 | | bob"),
        ("free | ann.2 bob.2 cat.2", "ask me 2",  "busy 100", "ann granted, bob granted, cat next 100", "permits:100 ann:100 bob:100 | cat.2 | bob"),
        ("free | ann.x | hash",     "ask me x",   "refused",  "ann granted", "free | | hash"),
        // A reader does not overtake a writer that waits.
        ("readers:200 ann:200 | bob.x | ann", "ask me r", "busy 200", "", "readers:200 ann:200 | bob.x | ann"),
        // The dead and what makes no sense stand in nobody's way.
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
        // The lock was deleted under those who shared it.
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
        // It comes too late, and is as one who asks.
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
        // It comes too late. Where the lock has gone, the first is to ask.
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
        // Nothing is handed over by one who has nothing.
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
        // The lock was deleted under us.
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
        // The dead and what makes no sense stand in nobody's way.
        ("me:200 | ghost.x ann.r | me",         "downgrade me", "downgraded", "ann granted", "readers:400 me:400 ann:100 | | ann"),
        ("me:200 | junk spook.r ann.r | me",    "downgrade me", "downgraded", "ann granted", "readers:400 me:400 ann:100 | | ann"),
        ("me:200 | ghost.x ann.x | me",         "downgrade me", "downgraded", "ann next 400", "readers:400 me:400 | ann.x | me"),
        ("me:200 | ann.r | hash",               "downgrade me", "downgraded", "ann granted", "readers:400 me:400 | | hash"),
        // Those whose lock was deleted under them share nothing.
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
        ("ann:200 | | ann",                     "raise me 50", "not ours", "", "ann:200 | | ann"),
        ("foreign:200 | | me",                  "raise me 50", "not ours", "", "foreign:200 | | me"),
        ("hash | | me",                         "raise me 50", "not ours", "", "hash | | me"),
        ("readers:200 me:200 ann:200 | | ann",  "raise me 50", "raised",   "", "readers:200 me:200 ann:200 | | ann"),
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
async fn those_who_wait_in_no_queue_are_told() {
    check_with(Bench::new(true).await, &[
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

/// The last token, what is proposed or by how much it is raised, and the token after it; `None` is the clock.
#[tokio::test]
async fn tokens() {
    const EXACT: u64 = 1 << 53;
    let (most, year) = (i64::MAX as u64, 32_000_000_000_000);
    let clock = u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap();
    let rows = [
        // Below the clock, and above it: after a restore, or a clock that went back.
        ("free | | ann", 1000, "ask me x", None),
        ("free | | ann", 9, "ask me x", None),
        ("free | | ann", clock + year, "ask me x", Some(clock + year + 1)),
        ("free | | ann", 9_999_999_999_999_999, "ask me x", Some(10_000_000_000_000_000)),
        ("me:200 | | me", clock + year, "rotate me ann", Some(clock + year + 1)),
        ("free | | ann", clock + year, "claim me", Some(clock + year + 1)),
        ("free | | ann", clock + year, "claim me 1000", Some(clock + year + 1)),
        ("free | | ann", 1000, "claim me 1000", Some(1001)),
        ("free | | ann", 1000, "claim me 1001", Some(1001)),
        ("free | | ann", 999, "claim me 1", Some(1000)),
        // Where a double is not exact any more.
        ("free | | ann", EXACT, "ask me x", Some(EXACT + 1)),
        ("free | | ann", EXACT + 1, "claim me", Some(EXACT + 2)),
        ("free | | ann", EXACT + 3, "ask me r", Some(EXACT + 4)),
        ("free | | ann", EXACT, "claim me 9007199254740993", Some(EXACT + 1)),
        ("free | | ann", EXACT + 1, "claim me 9007199254740992", Some(EXACT + 2)),
        ("free | | ann", most - 1, "ask me x", Some(most)),
    ];
    let mut bench = Bench::new(false).await;
    for (state, last, op, wanted) in rows {
        let mut case = bench.case(state.parse().unwrap()).await;
        case.set_last(&bench, last).await;
        let (_, _, token) = bench.step(&mut case, op.parse().unwrap()).await;
        let token = token.map(Token::get).unwrap();
        match wanted {
            Some(wanted) => assert_eq!(token, wanted, "{op} after {last}"),
            None => assert!(token >= clock && token < clock + year, "{op} after {last}: {token}"),
        }
    }
    for (last, by) in
        [(1000_u64, 1_i64), (1000, 1 << 40), (clock, 1 << 40), (EXACT, 1), (EXACT + 2, 7), (99, 1)]
    {
        let mut case = bench.case("me:200 | | me".parse().unwrap()).await;
        case.set_last(&bench, last).await;
        bench.step(&mut case, Op::Raise("me".parse().unwrap(), by)).await;
        let floor = last.saturating_add_signed(by);
        let fence: String = bench.redis(&["GET", case.keys.fence()]).await;
        assert_eq!(fence.split(' ').next(), Some(&*floor.to_string()), "{last} raised by {by}");
        let (_, _, token) = bench.step(&mut case, "rotate me ann".parse().unwrap()).await;
        assert!(token.unwrap().get() > floor, "{last} raised by {by}: {token:?}");
    }
}

#[tokio::test]
async fn what_is_left_behind_ends_by_itself() {
    let mut bench = Bench::new(false).await;
    let mut case = bench.case("ann:200 | | ann".parse().unwrap()).await;
    bench.step(&mut case, "queue me x".parse().unwrap()).await;
    let queue: i64 = bench.redis(&["PTTL", case.keys.queue()]).await;
    assert!((1..=5_000).contains(&queue), "{queue}");
    for op in ["claim me in line", "vacate me stay"] {
        let mut case = bench.case("ann:200 | | ann | bob".parse().unwrap()).await;
        bench.step(&mut case, op.parse().unwrap()).await;
        let line: i64 = bench.redis(&["PTTL", case.keys.line()]).await;
        assert!((1..=5_000).contains(&line), "{op}: {line}");
    }
    let mut case = bench.case("free".parse().unwrap()).await;
    bench.step(&mut case, "ask me r".parse().unwrap()).await;
    let week = 7 * 24 * 3600;
    for op in ["extend me", "extend me"] {
        let fence: i64 = bench.redis(&["TTL", case.keys.fence()]).await;
        assert!((week - 60..=week).contains(&fence), "{fence}");
        let _: i64 = bench.redis(&["EXPIRE", case.keys.fence(), "60"]).await;
        bench.step(&mut case, op.parse().unwrap()).await;
    }
    for op in ["claim me 2000", "claim me 5"] {
        let mut case = bench.case("free | | ann".parse().unwrap()).await;
        bench.step(&mut case, op.parse().unwrap()).await;
        let fence: i64 = bench.redis(&["TTL", case.keys.fence()]).await;
        assert!((week - 60..=week).contains(&fence), "{op}: {fence}");
    }
    let holders: i64 = bench.redis(&["TTL", case.keys.holders()]).await;
    assert!((340..=400).contains(&holders), "{holders}");
}
