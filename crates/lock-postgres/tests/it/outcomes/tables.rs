//! The tables of single calls.

use super::bench::Bench;
use super::state::{owner, read};

#[rustfmt::skip]
#[tokio::test]
async fn ask_exclusively() {
    Bench::new().await.check(&[
        ("none",                  "ask me 0",      "granted",     "",            "me:300"),
        ("free",                  "ask me 0",      "granted",     "",            "me:300"),
        ("free *",                "ask me 0",      "granted",     "changed",     "me:300 *"),
        ("free",                  "row/ask me 0",  "locked",      "",            "free"),
        ("free",                  "lease/ask me 0", "locked",     "",            "free"),
        // What it has already: the same token.
        ("me:200",                "ask me 0",      "granted",     "",            "me:300"),
        ("me:200 | ann",          "ask me 0",      "granted",     "",            "me:300 | ann"),
        ("me:200",                "row/ask me 0",  "locked",      "",            "me:200"),
        ("me:200",                "lease/ask me 0", "locked",     "",            "me:200"),
        // Another one. Who does not wait, or is in the queue, only reads.
        ("ann:200",               "ask me 0",      "busy -1 200", "",            "ann:200"),
        ("ann:200",               "row/ask me 0",  "busy -1 200", "",            "ann:200"),
        ("ann:200",               "ask me 0 wait", "busy 0 200",  "",            "ann:200 | me"),
        ("ann:200",               "ask me 0 poll", "busy 0 200",  "",            "ann:200 | me~"),
        ("ann:200",               "row/ask me 0 wait", "locked",  "",            "ann:200"),
        ("ann:200",               "lease/ask me 0 wait", "busy 0 200", "",       "ann:200 | me"),
        ("ann:200 | bob",         "ask me 0 wait", "busy 1 200",  "",            "ann:200 | bob me"),
        ("ann:200 | bob me",      "ask me 0 wait", "busy 1 200",  "",            "ann:200 | bob me"),
        ("ann:200 | bob me",      "row/ask me 0 wait", "busy 1 200", "",         "ann:200 | bob me"),
        ("ann:200 | me bob",      "ask me 0 poll", "busy 0 200",  "",            "ann:200 | me~ bob"),
        ("ann:200 | me! bob",     "ask me 0 wait", "busy 0 200",  "",            "ann:200 | me bob"),
        ("ann:200 | me~ bob",     "ask me 0 poll", "busy 0 200",  "",            "ann:200 | me~ bob"),
        ("ann:200 | me~! bob",    "ask me 0 poll", "busy 0 200",  "",            "ann:200 | me~ bob"),
        ("ann:200 | me bob",      "ask me 0",      "busy -1 200", "",            "ann:200 | me bob"),
        // An expired one.
        ("ann:0",                 "ask me 0",      "granted",     "",            "me:300"),
        ("me:0",                  "ask me 0",      "granted",     "",            "me:300"),
        ("ann:0 *",               "ask me 0",      "granted",     "changed",     "me:300 *"),
        ("ann:0",                 "row/ask me 0",  "locked",      "",            "ann:0"),
        // Its renewal may be about to be committed.
        ("ann:0",                 "lease/ask me 0", "locked",     "",            "ann:0"),
        ("ann:0",                 "lease/ask me 0 wait", "locked", "",           "ann:0"),
        ("ann:0 | bob",           "ask me 0",      "busy -1 100", "granted bob", "bob:100"),
        ("ann:0 | bob carl",      "ask me 0 wait", "busy 1 100",  "granted bob", "bob:100 | carl me"),
        ("ann:0 | bob! me carl",  "ask me 0 wait", "granted",     "",            "me:300 | carl"),
        // Waiters come first, if they live.
        ("free | ann",            "ask me 0",      "busy -1 100", "granted ann", "ann:100"),
        ("free | ann!",           "ask me 0",      "granted",     "",            "me:300"),
        ("free | ann! bob",       "ask me 0",      "busy -1 100", "granted bob", "bob:100"),
        ("free | ann! me",        "ask me 0 wait", "granted",     "",            "me:300"),
        ("free | ann~",           "ask me 0",      "busy -1 -1",  "",            "free | ann~"),
        ("free | ann~!",          "ask me 0",      "granted",     "",            "me:300"),
        ("free | ann~",           "ask ann 0 poll", "granted",    "",            "ann:300"),
        ("free | ann~",           "ask me 0 wait", "busy 1 -1",   "",            "free | ann~ me"),
        ("free | me ann",         "ask me 0 wait", "granted",     "",            "me:300 | ann"),
        ("free | me ann",         "ask me 0",      "granted",     "",            "me:300 | ann"),
        // Sharers.
        ("r ann:200",             "ask me 0",      "busy -1 200", "",            "r ann:200"),
        ("r ann:100 bob:200",     "ask me 0 wait", "busy 0 200",  "",            "r ann:100 bob:200 | me"),
        ("r ann:0",               "ask me 0",      "granted",     "",            "me:300"),
        ("r ann:0 bob:100",       "ask me 0",      "busy -1 100", "",            "r bob:100"),
        // Its renewal may be about to be committed.
        ("r ann:0",               "share/ask me 0", "busy -1 0",  "",            "r ann:0"),
        ("r ann:200",             "row/ask me 0",  "locked",      "",            "r ann:200"),
        ("p ann/2:200",           "ask me 0 wait", "busy 0 200",  "",            "p ann/2:200 | me"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn ask_to_share() {
    Bench::new().await.check(&[
        ("none",                  "ask me -1",      "granted",     "",            "r me:300"),
        ("free",                  "ask me -1",      "granted",     "",            "r me:300"),
        ("free *",                "ask me -1",      "granted",     "changed",     "r me:300 *"),
        ("free",                  "row/ask me -1",  "locked",      "",            "free"),
        ("r ann:200",             "ask me -1",      "granted",     "",            "r ann:200 me:300"),
        ("r me:200",              "ask me -1",      "granted",     "",            "r me:300"),
        ("r me:200",              "share/ask me -1", "locked",     "",            "r me:200"),
        ("r me:0",                "ask me -1",      "granted",     "",            "r me:300"),
        ("r me:0",                "share/ask me -1", "locked",     "",            "r me:0"),
        ("r ann:0",               "ask me -1",      "granted",     "",            "r me:300"),
        ("ann:200",               "ask me -1",      "busy -1 200", "",            "ann:200"),
        ("ann:200",               "ask me -1 wait", "busy 0 200",  "",            "ann:200 | me.r"),
        ("ann:0",                 "ask me -1",      "granted",     "",            "r me:300"),
        ("ann:0",                 "lease/ask me -1", "locked",     "",            "ann:0"),
        ("p ann/2:200",           "ask me -1",      "busy -1 200", "",            "p ann/2:200"),
        // Readers wait behind a waiting writer, if it lives.
        ("r ann:200 | bob",       "ask me -1",      "busy -1 200", "",            "r ann:200 | bob"),
        ("r ann:200 | bob",       "ask me -1 wait", "busy 1 200",  "",            "r ann:200 | bob me.r"),
        ("r ann:200 | bob!",      "ask me -1 wait", "granted",     "",            "r ann:200 me:300"),
        ("r ann:200 | bob! me.r", "ask me -1 wait", "granted",     "",            "r ann:200 me:300"),
        ("free | ann.r bob.r",    "ask me -1",      "granted",     "granted ann, granted bob", "r ann:100 bob:100 me:300"),
        ("free | me.r ann.r bob carl.r", "ask me -1 wait", "granted", "granted ann", "r me:300 ann:100 | bob carl.r"),
        ("ann:0 | bob.r carl me.r", "ask me -1 wait", "busy 1 100", "granted bob", "r bob:100 | carl me.r"),
        ("free | ann.r~ me.r",    "ask me -1 wait", "busy 1 -1",   "",            "free | ann.r~ me.r"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn ask_for_a_permit() {
    Bench::new().await.check(&[
        ("free",                       "ask me 1",      "granted",     "",            "p me/1:300"),
        ("p ann/2:200",                "ask me 2",      "granted",     "",            "p ann/2:200 me/2:300"),
        ("p ann/2:200",                "ask me 1",      "busy -1 200", "",            "p ann/2:200"),
        ("p ann/2:100 bob/2:200",      "ask me 2 wait", "busy 0 100",  "",            "p ann/2:100 bob/2:200 | me.2"),
        ("p ann/2:100 bob/2:200",      "ask me 3",      "granted",     "",            "p ann/2:100 bob/2:200 me/3:300"),
        ("p ann/2:0 bob/2:200",        "ask me 2",      "granted",     "",            "p bob/2:200 me/2:300"),
        ("p me/2:200 ann/2:200",       "ask me 2",      "granted",     "",            "p ann/2:200 me/2:300"),
        ("r ann:200",                  "ask me 2",      "busy -1 200", "",            "r ann:200"),
        ("ann:200",                    "ask me 2",      "busy -1 200", "",            "ann:200"),
        // A smaller number of permits, which is used up, lets others pass.
        ("p ann/2:200 | bob.1",        "ask me 2",      "granted",     "",            "p ann/2:200 me/2:300 | bob.1"),
        ("p ann/2:200 | bob.1 carl.1", "ask me 1 wait", "busy 2 200",  "",            "p ann/2:200 | bob.1 carl.1 me.1"),
        ("p ann/2:200 | bob.1 me.3",   "ask me 3 wait", "granted",     "",            "p ann/2:200 me/3:300 | bob.1"),
        ("p ann/2:200 | bob",          "ask me 2",      "busy -1 200", "",            "p ann/2:200 | bob"),
        ("p ann/2:200 | bob!",         "ask me 2",      "granted",     "",            "p ann/2:200 me/2:300"),
        ("free | ann.1 bob.2 me.2",    "ask me 2 wait", "busy 0 100",  "granted ann, granted bob", "p ann/1:100 bob/2:100 | me.2"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn release() {
    Bench::new().await.check(&[
        ("none",                    "release me",     "lost",     "",            "none"),
        ("free",                    "release me",     "lost",     "",            "free"),
        ("me:200",                  "release me",     "released", "",            "free"),
        ("me:200 *",                "release me",     "released", "changed",     "free *"),
        ("me:0",                    "release me",     "lost",     "",            "free"),
        ("ann:200",                 "release me",     "lost",     "",            "ann:200"),
        ("me:200",                  "row/release me", "locked",   "",            "me:200"),
        ("me:200",                  "lease/release me", "released", "",          "free"),
        // The first live waiter gets it.
        ("me:200 | ann",            "release me",     "released", "granted ann", "ann:100"),
        ("me:200 | ann bob",        "release me",     "released", "granted ann", "ann:100 | bob"),
        ("me:200 | ann! bob",       "release me",     "released", "granted bob", "bob:100"),
        ("me:200 | ann *",          "release me",     "released", "changed, granted ann", "ann:100 *"),
        ("me:200 | ann!",           "release me",     "released", "",            "free"),
        ("me:200 | ann~ bob",       "release me",     "released", "",            "free | ann~ bob"),
        ("me:200 | ann~! bob",      "release me",     "released", "granted bob", "bob:100"),
        ("me:200 | ann",            "row/release me", "locked",   "",            "me:200 | ann"),
        ("me:200 | ann",            "lease/release me", "locked", "",            "me:200 | ann"),
        ("me:200 | ann.r bob.r carl", "release me",   "released", "granted ann, granted bob", "r ann:100 bob:100 | carl"),
        ("me:200 | ann.1 bob.1 carl.3", "release me", "released", "granted ann, granted carl", "p ann/1:100 carl/3:100 | bob.1"),
        ("me:0 | ann",              "release me",     "lost",     "granted ann", "ann:100"),
        // A share.
        ("r me:200",                "release me",     "released", "",            "free"),
        ("r me:200 ann:200",        "release me",     "released", "",            "r ann:200"),
        ("r me:200 ann:0 | bob",    "release me",     "released", "granted bob", "bob:100"),
        ("r me:200 ann:200 | bob",  "release me",     "released", "",            "r ann:200 | bob"),
        ("r me:0 ann:200",          "release me",     "lost",     "",            "r ann:200"),
        ("r ann:200",               "release me",     "lost",     "",            "r ann:200"),
        ("r me:200",                "row/release me", "locked",   "",            "r me:200"),
        ("r me:200",                "share/release me", "locked", "",            "r me:200"),
        ("p me/2:200 ann/2:200 | bob.2", "release me", "released", "granted bob", "p ann/2:200 bob/2:100"),
        // A queue entry.
        ("ann:200 | me bob",        "release me",     "lost",     "",            "ann:200 | bob"),
        ("ann:200 | me",            "row/release me", "locked",   "",            "ann:200 | me"),
        ("free | me~ ann",          "release me",     "lost",     "granted ann", "ann:100"),
        ("r ann:200 | me bob.r",    "release me",     "lost",     "granted bob", "r ann:200 bob:100"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn extend_and_holds() {
    Bench::new().await.check(&[
        ("none",              "extend me",       "{0,0}",  "", "none"),
        ("free",              "extend me",       "{0,0}",  "", "free"),
        ("me:200",            "extend me",       "{1,0}",  "", "me:300"),
        ("me:200 | ann *",    "extend me",       "{1,0}",  "", "me:300 | ann *"),
        ("me:0",              "extend me",       "{0,0}",  "", "me:0"),
        ("ann:200",           "extend me",       "{0,0}",  "", "ann:200"),
        // An open fenced transaction does not stop it.
        ("me:200",            "row/extend me",   "{1,0}",  "", "me:300"),
        ("me:200",            "lease/extend me", "{-1,0}", "", "me:200"),
        ("ann:200",           "lease/extend me", "{0,0}",  "", "ann:200"),
        ("r me:200 ann:100",  "extend me",       "{1,0}",  "", "r ann:100 me:300"),
        ("p me/2:200",        "row/extend me",   "{1,0}",  "", "p me/2:300"),
        ("r me:200",          "share/extend me", "{-1,0}", "", "r me:200"),
        ("r me:0",            "extend me",       "{0,0}",  "", "r me:0"),
        ("free | me",         "extend me",       "{0,0}",  "", "free | me"),
        // A longer one is left alone, unless it is to be shortened.
        ("me:400",            "extend me",       "{1,0}",  "", "me:400"),
        ("me:400",            "shorten me",      "{1,0}",  "", "me:300"),
        ("me:200",            "shorten me",      "{1,0}",  "", "me:300"),
        ("r me:400 ann:100",  "extend me",       "{1,0}",  "", "r ann:100 me:400"),
        ("r me:400 ann:100",  "shorten me",      "{1,0}",  "", "r ann:100 me:300"),
        ("p me/2:400",        "extend me",       "{1,0}",  "", "p me/2:400"),
        ("p me/2:400",        "shorten me",      "{1,0}",  "", "p me/2:300"),
        ("me:200",            "row/holds me",    "true",   "", "me:200"),
        ("me:0",              "holds me",        "false",  "", "me:0"),
        ("ann:200",           "holds me",        "false",  "", "ann:200"),
        ("r me:200",          "holds me",        "true",   "", "r me:200"),
        ("r me:0",            "holds me",        "false",  "", "r me:0"),
        ("none",              "holds me",        "false",  "", "none"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn hand_over_downgrade_and_raise() {
    Bench::new().await.check(&[
        ("me:200",              "hand_over me ann",     "granted", "",        "ann:300"),
        ("me:200 | bob",        "hand_over me ann",     "granted", "",        "ann:300 | bob"),
        ("me:200 *",            "hand_over me ann",     "granted", "changed", "ann:300 *"),
        ("me:0",                "hand_over me ann",     "lost",    "",        "me:0"),
        ("bob:200",             "hand_over me ann",     "lost",    "",        "bob:200"),
        ("r me:200",            "hand_over me ann",     "locked",  "",        "r me:200"),
        ("none",                "hand_over me ann",     "lost",    "",        "none"),
        ("me:200",              "row/hand_over me ann", "locked",  "",        "me:200"),
        ("me:200",              "lease/hand_over me ann", "locked", "",       "me:200"),

        ("me:200",              "downgrade me",         "shared",  "",        "r me:300"),
        ("me:400",              "downgrade me",         "shared",  "",        "r me:400"),
        ("me:200 | ann.r bob carl.r", "downgrade me",   "shared",  "granted ann", "r me:300 ann:100 | bob carl.r"),
        ("me:200 | ann bob.r",  "downgrade me",         "shared",  "",        "r me:300 | ann bob.r"),
        ("me:0",                "downgrade me",         "lost",    "",        "free"),
        ("ann:200",             "downgrade me",         "lost",    "",        "ann:200"),
        ("none",                "downgrade me",         "lost",    "",        "none"),
        ("me:200",              "row/downgrade me",     "locked",  "",        "me:300"),
        ("me:200",              "lease/downgrade me",   "locked",  "",        "me:200"),
        // When it is sent again.
        ("r me:200 ann:200",    "downgrade me",         "shared",  "",        "r ann:200 me:300"),
        ("r me:400",            "downgrade me",         "shared",  "",        "r me:400"),
        ("r me:200",            "share/downgrade me",   "locked",  "",        "r me:200"),

        ("me:200",              "raise me 5000",        "raised",  "",        "me:200"),
        ("me:200",              "raise me 5",           "raised",  "",        "me:200"),
        ("r me:200",            "raise me 5000",        "raised",  "",        "r me:200"),
        ("me:0",                "raise me 5000",        "lost",    "",        "me:0"),
        ("ann:200",             "raise me 5000",        "lost",    "",        "ann:200"),
        ("none",                "raise me 5000",        "lost",    "",        "none"),
        ("me:200",              "row/raise me 5000",    "locked",  "",        "me:200"),
        ("me:200",              "lease/raise me 5000",  "raised",  "",        "me:200"),
        ("me:200",              "raise me 4611686018427387904", "raised", "", "me:200"),
        ("me:200",              "raise me 4611686018427387905", "22003", "",  "me:200"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn break_the_lock() {
    Bench::new().await.check(&[
        ("none",                "break 1700",         "free",   "",            "none"),
        ("free",                "break 1700",         "free",   "",            "free"),
        ("free | ann~",         "break 1700",         "free",   "",            "free | ann~"),
        ("ann:200",             "break 1700",         "broken", "",            "free"),
        ("ann:0",               "break 1700",         "free",   "",            "free"),
        ("ann:200 | bob",       "break 1700",         "broken", "granted bob", "bob:100"),
        ("ann:200 *",           "break 1700",         "broken", "changed",     "free *"),
        ("ann:200",             "row/break 1700",     "locked", "",            "ann:200"),
        ("ann:200",             "lease/break 1700",   "locked", "",            "ann:200"),
        ("r ann:200 bob:100",   "break 1700",         "broken", "",            "free"),
        ("r ann:200 bob:100",   "share/break 1700",   "locked", "",            "r ann:200 bob:100"),
        ("p ann/2:200 | carl",  "break 1700",         "broken", "granted carl", "carl:100"),
        // Who was granted it later than it was looked at.
        ("ann:200",             "break 1615",         "broken", "",            "free"),
        ("ann:200",             "break 1599",         "free",   "",            "ann:200"),
        ("ann:200 | bob",       "break 1599",         "free",   "",            "ann:200 | bob"),
        ("r ann:200 bob:100",   "break 1599",         "free",   "",            "r ann:200 bob:100"),
        // Any token of the block.
        ("ann:200",             "break_if 1600",      "broken", "",            "free"),
        ("ann:200",             "break_if 1615",      "broken", "",            "free"),
        ("ann:200",             "break_if 1616",      "free",   "",            "ann:200"),
        ("ann:200",             "break_if 1599",      "free",   "",            "ann:200"),
        ("r ann:200",           "break_if 1601",      "broken", "",            "free"),
        ("r ann:200",           "break_if 1701",      "free",   "",            "r ann:200"),
        ("r ann:200",           "share/break_if 1600", "locked", "",           "r ann:200"),
        ("none",                "break_if 1600",      "free",   "",            "none"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn observe_and_list() {
    Bench::new().await.check(&[
        ("none",             "observe",       "observed", "", "free *"),
        ("free",             "observe",       "observed", "", "free *"),
        ("free *",           "observe",       "observed", "", "free *"),
        ("ann:200 | bob",    "observe",       "observed", "", "ann:200 | bob *"),
        ("ann:200",          "row/observe",   "locked",   "", "ann:200"),
        ("ann:200",          "lease/observe", "observed", "", "ann:200 *"),
        ("ann:200 *",        "unobserve",     "done",     "", "ann:200"),
        ("ann:200",          "unobserve",     "done",     "", "ann:200"),
        ("none",             "unobserve",     "done",     "", "none"),
        ("ann:200 *",        "row/unobserve", "locked",   "", "ann:200 *"),
    ]).await;
    for (state, is_listed) in [("free", false), ("me:200", true), ("me:0", false), ("free | ann", true),
                               ("r me:200", true), ("p me/1:0", false), ("free *", false)] {
        let mut bench = Bench::new().await;
        let name = bench.name(state).await;
        assert_eq!(bench.call(&name, "list").await, if is_listed { name.as_str() } else { "" }, "{state}");
        assert_eq!(bench.call("a name 1x", "list").await, "", "{state}");
    }
}

/// A call that took long before it had the row: the grace period does not count from its beginning.
#[tokio::test]
async fn a_hand_over_counts_from_when_the_row_is_locked() {
    let mut bench = Bench::new().await;
    // Time: the dead waiter is removed slowly, before the row is read.
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.3); RETURN old; END'";
    bench.client.batch_execute(slow).await.unwrap();
    let trigger = "CREATE TRIGGER slow BEFORE DELETE ON waiter FOR EACH ROW WHEN (old.listener = 1) EXECUTE FUNCTION slow()";
    bench.client.batch_execute(trigger).await.unwrap();
    let name = bench.name("me:200 | bob! ann").await;
    let start = bench.client.query_one("SELECT clock_timestamp()::text", &[]).await.unwrap();
    assert_eq!(bench.call(&name, "release me").await, "released");
    let sql = "SELECT expires_at >= $2::text::timestamptz + interval '100.3 s' FROM lease WHERE name = $1";
    let row = bench.client.query_one(sql, &[&name, &start.get::<_, String>(0)]).await.unwrap();
    assert!(row.get::<_, bool>(0), "it ends before its grace period");
}

/// The client that released it has gone before it could tell the waiter.
#[tokio::test]
async fn a_release_that_is_repeated_tells_again_until_the_waiter_has_confirmed() {
    for (state, gets) in [("me:200 | ann", "ann:100"), ("me:200 | ann.r bob.r", "r ann:100 bob:100")] {
        let mut bench = Bench::new().await;
        let name = bench.name(state).await;
        let release = async |bench: &Bench| {
            let sql =
                format!("SELECT coalesce(tell, false) FROM release('{name}', '{}', 'off')", owner("me"));
            bench.client.query_one(&sql, &[]).await.unwrap().get::<_, bool>(0)
        };
        assert!(release(&bench).await && release(&bench).await, "{state}");
        assert_eq!(read(&bench.client, &name, bench.listener).await, gets);
        for who in ["ann", "bob"] {
            bench.call(&name, &format!("extend {who}")).await;
        }
        assert!(!release(&bench).await, "{state}");
    }
}

/// An entry from before the clock was set back.
#[tokio::test]
async fn a_waiter_from_the_future_is_dead() {
    let mut bench = Bench::new().await;
    let name = bench.name("free | ann~").await;
    let ahead = "UPDATE waiter SET renewed = renewed + interval '1 hour' WHERE name = $1";
    bench.client.execute(ahead, &[&name]).await.unwrap();
    assert_eq!(bench.call(&name, "ask me 0").await, "granted");
}

/// Each grant takes longer than the one before in one transaction: so there is an end to it.
#[tokio::test]
async fn many_readers_are_granted_in_parts() {
    let mut bench = Bench::new().await;
    let name = bench.name("me:200").await;
    let readers = "WITH queued AS (UPDATE lock SET queued = true WHERE name = $1)
        INSERT INTO waiter (name, owner, mode, grace, inbox, listener, key, since, renewed)
        SELECT $1, gen_random_uuid(), -1, 100000, application, pid, lpad(i::text, 48, '0'), now(), clock_timestamp()
        FROM generate_series(1, 600) i, (SELECT pid, substr(application_name, 10) AS application FROM pg_stat_activity
          WHERE pid = $2) AS listener";
    assert_eq!(bench.client.execute(readers, &[&name, &bench.listener]).await.unwrap(), 600);
    let count = async |bench: &Bench| -> i64 {
        bench.client.query_one("SELECT count(*) FROM sharer WHERE name = $1", &[&name]).await.unwrap().get(0)
    };
    assert_eq!(bench.call(&name, "release me").await, "released");
    assert_eq!(count(&bench).await, 500);
    assert_eq!(bench.call(&name, "ask ann -1").await, "granted");
    assert_eq!(count(&bench).await, 601);
}

/// Whatever the planner takes the table for: here, for one in which most leases have expired.
#[tokio::test]
#[ignore = "full: thousands of leases"]
async fn leases_are_extended_by_their_names() {
    let bench = Bench::new().await;
    let held = |from, to, ttl| {
        format!(
            "SELECT ask('held ' || i, lpad(i::text, 32, '0')::uuid, 0, {ttl}, '', 'off', NULL, NULL, NULL, NULL)
             FROM generate_series({from}, {to}) i;"
        )
    };
    let sql = [&held(1, 100, 1), "ANALYZE lock, lease;", &held(101, 2000, 300_000)].concat();
    bench.client.batch_execute(&sql).await.unwrap();
    let extended = "SELECT sum(answer) FROM (SELECT extend(array_agg('held ' || i), array_agg(lpad(i::text, 32, '0')::uuid),
             array_agg(300000::bigint), array_agg(false), 'off') FROM generate_series(101, 200) i) AS all_of, unnest(all_of.extend) AS answer";
    // Counted since the session last reported to the server, which it does once a second.
    let counted = "SELECT idx_tup_fetch FROM pg_stat_xact_all_tables WHERE relid = 'lease'::regclass";
    bench.client.batch_execute("BEGIN").await.unwrap();
    let before: i64 = bench.client.query_one(counted, &[]).await.unwrap().get(0);
    assert_eq!(bench.client.query_one(extended, &[]).await.unwrap().get::<_, i64>(0), 100);
    let read = bench.client.query_one(counted, &[]).await.unwrap().get::<_, i64>(0) - before;
    assert!(read < 1000, "{read} rows were read for 100 leases of 2 000");
}
