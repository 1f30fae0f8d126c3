//! The tables.

use lock_core::TokenBlock;

use super::bench::{Bench, LARGEST};
use super::check::{YEAR, check, check_minting, check_with, clock, is_a_week};
use super::op::Op;
use super::single::Single;

#[rustfmt::skip]
#[tokio::test]
async fn ask() {
    check::<Single>(&[
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
    check::<Single>(&[
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
    check::<Single>(&[
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
    check::<Single>(&[
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
    check::<Single>(&[
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
    check::<Single>(&[
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
    check::<Single>(&[
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
    check::<Single>(&[
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
    check::<Single>(&[
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
    check::<Single>(&[
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
    check::<Single>(&[
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
    check::<Single>(&[
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
    check::<Single>(&[
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
    check::<Single>(&[
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
    check::<Single>(&[
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
    check_with::<Single>(Bench::new(true).await, &[
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

#[tokio::test]
async fn tokens() {
    let next_year = clock() + YEAR;
    check_minting::<Single>(&[
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
    ])
    .await;
    let mut bench = Bench::<Single>::new(false).await;
    for (last, by) in [(1000_u64, 1_i64), (1000, 1 << 40), (clock(), 1 << 40), (LARGEST - 19, 1), (99, 1)] {
        let mut case = bench.case_after(last, "me:200 | | me".parse().unwrap()).await;
        bench.step(&mut case, Op::Raise("me".parse().unwrap(), by)).await;
        let floor = last.saturating_add_signed(by);
        let score: f64 = bench.redis(&["ZSCORE", case.keys.tokens(), "last"]).await;
        assert_eq!(score as u64, floor, "{last} raised by {by}");
        let token = bench.step(&mut case, "rotate me ann".parse().unwrap()).await.token;
        assert!(token.unwrap() > floor, "{last} raised by {by}: {token:?}");
    }
}

#[tokio::test]
async fn what_is_left_behind_ends_by_itself() {
    let mut bench = Bench::<Single>::new(false).await;
    let mut case = bench.case("ann:200 | | ann".parse().unwrap()).await;
    bench.step(&mut case, "queue me x".parse().unwrap()).await;
    let queue: i64 = bench.redis(&["PTTL", case.keys.queue()]).await;
    assert!((1..=5_000).contains(&queue), "{queue}");
    let mut case = bench.case("free".parse().unwrap()).await;
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
