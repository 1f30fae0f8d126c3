//! What scripts and plain commands answer where the tables do not say it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use lock_core::engine::{Extension, Hold};
use lock_core::{ErrorKind, LockName, Mode, Outcome, OwnerId, Result, Token};
use lock_redis::redis::{Client, IntoConnectionInfo};
use lock_redis::request::{Ask, Claimed, Entry, ReleaseKind};
use lock_redis::server::Server;
use lock_testkit::{RedisServer, until};
use redis_link::inspection::Inspection;
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use redis_link::proof::Secret;
use redis_link::take_back::{Sent, TakeBack};
use redis_link::wire::TokenTtl;

use crate::common::{extended, url_without};

const TTL: Duration = Duration::from_secs(20);

struct Bench {
    redis: RedisServer,
    server: Server,
    keys: Arc<Keys>,
}

impl Bench {
    async fn new() -> Self {
        let redis = RedisServer::start().await.unwrap();
        let server = Server::single(redis.url().into_connection_info().unwrap(), false).unwrap();
        Self { redis, server, keys: Arc::new(Keys::new("lock:", &LockName::new("a").unwrap())) }
    }

    /// Of a single server.
    async fn ask(&self, owner: OwnerId) -> LockAnswer {
        let (keys, info, mode) = (&self.keys, "me", Mode::Exclusive);
        let ask = Ask { keys, owner, mode, ttl: TTL, info, entry: None, is_confirmation: false };
        self.server.ask(self.server.moment(), &ask, &self.server.client.dispatch()).await.unwrap()
    }

    /// The same by plain commands.
    async fn outright(&self, owner: OwnerId) -> Claimed {
        let (keys, info, mode) = (&self.keys, "me", Mode::Exclusive);
        let ask = Ask { keys, owner, mode, ttl: TTL, info, entry: None, is_confirmation: false };
        self.server.claim(&ask, true, &self.server.client.dispatch()).await.unwrap()
    }

    async fn asked(&self, owner: OwnerId) -> Token {
        match self.ask(owner).await {
            LockAnswer::Granted(token) => token,
            busy => panic!("{busy:?}"),
        }
    }

    async fn extend(&self, leases: &[Extension<'_, Arc<Keys>>]) -> Vec<Result<bool>> {
        extended(&self.server, leases).await
    }

    /// The last extension of a lease, by a guard that is gone.
    async fn leave(&self, owner: OwnerId, hold: Hold, ttl: Duration) -> bool {
        let mut lease = Extension::new(&self.keys, owner, ttl);
        (lease.hold, lease.leaves) = (hold, true);
        self.extend(&[lease]).await.remove(0).unwrap()
    }

    async fn redis(&self, words: &[&str]) -> String {
        self.redis.text(words).await
    }

    async fn pttl(&self) -> i64 {
        self.redis.command(&["PTTL", "lock:a"]).await.unwrap().int().unwrap()
    }

    async fn look(&self) -> Inspection {
        self.server.inspect(&self.keys, None).await.unwrap()
    }
}

fn owners() -> (OwnerId, OwnerId) {
    (OwnerId::random(), OwnerId::random())
}

fn granted(token: u64) -> LockAnswer {
    LockAnswer::Granted(Token::new(token))
}

/// Until this moment is over, by the clock of the server.
async fn is_over(left: Duration) {
    // Time: the lock is others' for so long.
    tokio::time::sleep(left + Duration::from_millis(5)).await;
}

/// How long a lock is left free.
// Time: that it ends is the subject.
const MOMENT: Duration = Duration::from_secs(1);

/// What a release does that leaves the lock free for clients that have no queue entry.
#[tokio::test]
async fn a_lock_that_is_left_free_is_for_others_for_a_moment() {
    let bench = Bench::new().await;
    let (me, other) = owners();
    let free =
        async |owner| bench.server.release(&bench.keys, owner, ReleaseKind::LeaveFree(MOMENT)).await.unwrap();
    let ends_in = async || match bench.ask(other).await {
        LockAnswer::Busy { ends_in: Some(left), position: None, foreign_type: None } => left,
        answer => panic!("{answer:?}"),
    };
    const QUEUE: &str = "polylock:queue:{lock:a}";

    // Of one who does not hold it, nothing.
    assert_eq!(free(me).await, Some(false));
    bench.asked(other).await;
    assert_eq!(free(me).await, Some(false));
    assert_eq!(bench.redis(&["EXISTS", QUEUE]).await, "Int(0)");
    assert_eq!(free(other).await, Some(true));
    assert_eq!(free(other).await, Some(false), "a second release takes nothing away, and adds nothing");
    // Ours hold back, and nobody is told of a waiter.
    assert!(ends_in().await <= MOMENT);
    assert_eq!(bench.look().await.waiters, 0);
    // A client of another library takes it, and then it is an ordinary lock.
    assert_eq!(bench.redis(&["SET", "lock:a", "other", "NX", "PX", "5000"]).await, "OK");
    assert!(ends_in().await > MOMENT);
    // The moment lasts as long as it was meant to.
    bench.redis(&["DEL", "lock:a"]).await;
    is_over(ends_in().await).await;
    bench.asked(other).await;
    // When nobody takes it, it is ours again after the moment.
    assert_eq!(free(other).await, Some(true));
    assert!(bench.redis.command(&["PTTL", QUEUE]).await.unwrap().int().unwrap() <= 1000);
    is_over(ends_in().await).await;
    bench.asked(other).await;
    // A moment that never ends, as after the clock was set back, is none.
    bench.redis(&["DEL", "lock:a"]).await;
    bench.redis(&["LPUSH", QUEUE, "free 99999999999999"]).await;
    bench.asked(me).await;
    assert_eq!(bench.redis(&["EXISTS", QUEUE]).await, "Int(0)");
}

/// As after a holder was paused for longer than its lease: the moment is none of the last token.
#[tokio::test]
async fn a_lock_that_cannot_be_left_free_any_more_leaves_the_last_token_its_life() {
    const TOKENS: &str = "polylock:tokens:{lock:a}";
    let bench = Bench::new().await;
    bench.redis(&["ZADD", TOKENS, "16", "last"]).await;
    let free = ReleaseKind::LeaveFree(MOMENT);
    assert_eq!(bench.server.release(&bench.keys, OwnerId::random(), free).await.unwrap(), Some(false));
    let left = bench.redis.command(&["PTTL", TOKENS]).await.unwrap().int().unwrap();
    assert!(left > 6 * 24 * 3_600_000, "{left}");
}

/// The first waiter learns when it may ask, and has the lock then; holders of a shared lock release it as ever.
#[tokio::test]
async fn waiters_learn_how_long_a_lock_is_left_free() {
    let bench = Bench::new().await;
    let (me, waiter) = owners();
    let mut inbox = Client::open(bench.redis.url()).unwrap().get_async_pubsub().await.unwrap();
    inbox.subscribe("polylock:inbox:here").await.unwrap();
    let (keys, info, mode, ttl) = (&bench.keys, "me", Mode::Exclusive, TTL);
    let (grace, inbox_name) = (MOMENT, "polylock:inbox:here");
    let entry_of = |owner, inbox| {
        let (secret, token_ttl) = (&Secret::new(owner), TokenTtl::USUAL);
        Entry { owner, secret, mode, grace, ttl, token_ttl, inbox, info }.to_string()
    };
    let entry = entry_of(waiter, inbox_name);
    let queue_up = async || {
        let ask = Ask { keys, owner: waiter, mode, ttl, info, entry: Some(&*entry), is_confirmation: false };
        bench.server.ask(bench.server.moment(), &ask, &bench.server.client.dispatch()).await.unwrap()
    };
    bench.asked(me).await;
    assert!(matches!(queue_up().await, LockAnswer::Busy { position: Some(0), .. }));
    let free = bench.server.release(keys, me, ReleaseKind::LeaveFree(MOMENT)).await.unwrap();
    assert_eq!(free, Some(true));
    let told = futures_util::StreamExt::next(&mut inbox.on_message()).await.unwrap();
    assert_eq!(told.get_payload::<String>().unwrap(), format!("next {waiter} 1000"));
    let LockAnswer::Busy { ends_in: Some(left), position: Some(0), .. } = queue_up().await else {
        panic!("it is not free")
    };
    assert!(left <= MOMENT);
    assert_eq!(bench.look().await.waiters, 1);
    // Who comes up in the moment learns of it, though processes that are gone stand between.
    let next = OwnerId::random();
    for entry in [entry_of(OwnerId::random(), "polylock:inbox:gone"), entry_of(next, inbox_name)] {
        bench.redis(&["RPUSH", "polylock:queue:{lock:a}", &entry]).await;
    }
    assert_eq!(bench.server.release(keys, waiter, Some(&*entry)).await.unwrap(), Some(false));
    let mut messages = inbox.on_message();
    let told = futures_util::StreamExt::next(&mut messages);
    let told = tokio::time::timeout(TTL / 2, told).await.expect("it is told").unwrap();
    let told = told.get_payload::<String>().unwrap();
    drop(messages);
    assert!(told.starts_with(&format!("next {next} ")), "{told}");
    assert_eq!(bench.look().await.waiters, 1);
    bench.server.release(keys, next, Some(&*entry_of(next, inbox_name))).await.unwrap();
    let LockAnswer::Busy { ends_in: Some(left), .. } = queue_up().await else { panic!("it is not free") };
    is_over(left).await;
    assert!(matches!(queue_up().await, LockAnswer::Granted(_)));
    assert_eq!(bench.server.release(keys, waiter, None).await.unwrap(), Some(true));

    let ask = Ask { keys, owner: me, mode: Mode::Shared, ttl, info, entry: None, is_confirmation: false };
    assert!(matches!(
        bench.server.ask(bench.server.moment(), &ask, &bench.server.client.dispatch()).await.unwrap(),
        LockAnswer::Granted(_)
    ));
    assert_eq!(bench.server.release(keys, me, ReleaseKind::LeaveFree(MOMENT)).await.unwrap(), Some(true));
    bench.asked(me).await;
}

#[tokio::test]
async fn what_was_done_is_confirmation_also_when_the_script_of_another_call_cannot_be_loaded() {
    let (bench, (me, other)) = (Bench::new().await, owners());
    bench.asked(me).await;
    assert_eq!(bench.redis(&["ACL", "SETUSER", "default", "-script", "-eval"]).await, "OK");
    // Nobody has made a reader of a writer on this server yet.
    let mut leases = [Extension::new(&bench.keys, me, TTL / 2), Extension::new(&bench.keys, other, TTL)];
    (leases[0].shortens, leases[1].hold) = (true, Hold::Downgrading);
    let [first, second] = bench.extend(&leases).await.try_into().unwrap();
    assert!(first.unwrap());
    assert!(bench.pttl().await <= 10_000);
    let error = second.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Denied, Outcome::NotApplied), "{error}");
}

/// Such as a renewal over a connection that was given up.
#[tokio::test]
async fn an_extension_that_is_executed_late_leaves_a_longer_lease_alone() {
    for (mode, hold) in [
        (Mode::Exclusive, Hold::Alone),
        (Mode::Exclusive, Hold::Granted),
        (Mode::Exclusive, Hold::Downgrading),
        (Mode::Shared, Hold::Shared),
        (Mode::Permit { max: NonZeroU32::MAX }, Hold::Shared),
    ] {
        let (bench, (me, other)) = (Bench::new().await, owners());
        let keys = &bench.keys;
        for owner in [me, other] {
            let ask = Ask { keys, owner, mode, ttl: TTL, info: "me", entry: None, is_confirmation: false };
            let answer =
                bench.server.ask(bench.server.moment(), &ask, &bench.server.client.dispatch()).await.unwrap();
            assert_eq!(matches!(answer, LockAnswer::Granted(_)), owner == me || mode != Mode::Exclusive);
        }
        let extend = async |hold, ttl, shortens| {
            let mut lease = Extension::new(keys, me, ttl);
            (lease.hold, lease.shortens) = (hold, shortens);
            assert!(bench.extend(&[lease]).await.remove(0).unwrap(), "{hold:?}");
            // A shared lock lasts as long as its longest share.
            let share = bench.redis(&["ZSCORE", keys.all()[3], &me.to_string()]).await;
            match share.parse::<f64>() {
                Ok(ends) => {
                    let now = bench.server.client.time_of(keys).await.unwrap();
                    // Time: as the server says.
                    Duration::from_millis(ends as u64).saturating_sub(now)
                }
                // Time: as the server says.
                Err(_) => Duration::from_millis(bench.pttl().await.try_into().unwrap()),
            }
        };
        let usual = if hold == Hold::Shared { hold } else { Hold::Alone };
        let longer = extend(usual, TTL * 10, false).await;
        assert!(longer > TTL * 9, "{hold:?}: {longer:?}");
        let late = extend(hold, TTL, false).await;
        assert!(late > TTL * 9, "{hold:?}: {late:?}");
        let shorter = extend(if hold == usual { hold } else { Hold::Shared }, TTL / 2, true).await;
        assert!(shorter <= TTL / 2, "{hold:?}: {shorter:?}");
    }
}

/// As after `hold_at_least`: nobody holds it, and a renewal may still be on its way over a connection that was given up.
#[tokio::test]
async fn a_lock_that_was_left_is_not_lengthened_by_a_late_renewal() {
    for (mode, hold) in [
        (Mode::Exclusive, Hold::Alone),
        (Mode::Exclusive, Hold::Granted),
        // It may be shared.
        (Mode::Exclusive, Hold::Shared),
        (Mode::Shared, Hold::Shared),
        (Mode::Permit { max: NonZeroU32::MAX }, Hold::Shared),
    ] {
        let (bench, me) = (Bench::new().await, OwnerId::random());
        let keys = &bench.keys;
        let ask = Ask { keys, owner: me, mode, ttl: TTL, info: "me", entry: None, is_confirmation: false };
        bench.server.ask(bench.server.moment(), &ask, &bench.server.client.dispatch()).await.unwrap();
        let before = bench.look().await;
        assert!(bench.leave(me, hold, TTL / 2).await, "{hold:?}");
        for late in [Hold::Alone, Hold::Granted, Hold::Shared, Hold::Downgrading] {
            let mut lease = Extension::new(keys, me, TTL);
            lease.hold = late;
            assert!(!bench.extend(&[lease]).await.remove(0).unwrap(), "{hold:?}: {late:?}");
        }
        // The request itself may be sent twice, and late.
        assert!(bench.leave(me, hold, TTL).await, "{hold:?}");
        assert!(bench.pttl().await <= 10_000, "{hold:?}");
        assert!(bench.leave(me, hold, TTL / 4).await, "{hold:?}");
        assert!(bench.pttl().await <= 5_000, "{hold:?}");
        let after = bench.look().await;
        assert_eq!((before.token, before.since, before.info), (after.token, after.since, after.info));
        assert_ne!(before.owner, after.owner);
        assert_eq!(after.shares.len(), before.shares.len());
        assert_eq!(bench.server.release(keys, me, None).await.unwrap(), Some(false));
        let nobody = OwnerId::decode(&after.owner).unwrap();
        assert_eq!(bench.server.release(keys, nobody, None).await.unwrap(), Some(true));
        assert_eq!(bench.redis(&["EXISTS", "lock:a", keys.all()[3]]).await, "Int(0)");
        assert!(!bench.leave(me, hold, TTL).await, "{hold:?}");
    }
}

#[tokio::test]
async fn a_share_that_is_left_leaves_the_others_alone() {
    let (bench, (me, latest)) = (Bench::new().await, owners());
    let keys = &bench.keys;
    for owner in [me, latest] {
        let mode = Mode::Shared;
        let ask = Ask { keys, owner, mode, ttl: TTL, info: "me", entry: None, is_confirmation: false };
        bench.server.ask(bench.server.moment(), &ask, &bench.server.client.dispatch()).await.unwrap();
    }
    assert!(bench.leave(me, Hold::Shared, TTL / 2).await);
    let look = bench.look().await;
    assert_eq!((look.owner, look.shares.len()), (latest.to_string(), 2));
    assert_eq!(bench.server.release(keys, latest, None).await.unwrap(), Some(true));
    assert!(bench.pttl().await <= 10_000);
}

/// The rights to notify it, and to see whether it lives, were withdrawn while it waited.
#[tokio::test]
async fn a_waiter_that_may_be_dead_keeps_no_free_lock_from_others() {
    for mode in [Mode::Exclusive, Mode::Shared] {
        let bench = Bench::new().await;
        let (keys, info, ttl, me) = (&bench.keys, "me", TTL, OwnerId::random());
        let url = url_without(&bench.redis, &["-publish", "-pubsub"]).await;
        let server = Server::single(url.into_connection_info().unwrap(), false).unwrap();
        let entry_of = |owner, inbox| {
            let (secret, token_ttl, grace) = (&Secret::new(owner), TokenTtl::USUAL, MOMENT);
            Entry { owner, secret, mode, grace, ttl, token_ttl, inbox, info }.to_string()
        };
        if mode == Mode::Shared {
            let ask =
                Ask { keys, owner: OwnerId::random(), mode, ttl, info, entry: None, is_confirmation: false };
            server.ask(server.moment(), &ask, &server.client.dispatch()).await.unwrap();
        }
        bench.redis(&["RPUSH", keys.queue(), &entry_of(OwnerId::random(), "polylock:inbox:dead")]).await;
        // Time: that it ends is the subject.
        bench.redis(&["PEXPIRE", keys.queue(), "1000"]).await;
        let entry = entry_of(me, "polylock:inbox:here");
        let entry = Some(&*entry);
        let ask = Ask { keys, owner: me, mode, ttl, info, entry, is_confirmation: false };
        let ask = async || server.ask(server.moment(), &ask, &server.client.dispatch()).await.unwrap();
        assert!(matches!(ask().await, LockAnswer::Busy { position: Some(1), .. }));
        // Whoever asks meanwhile does not keep it.
        until("the queue ends", async || matches!(ask().await, LockAnswer::Granted(_))).await;
    }
}

#[tokio::test]
async fn a_free_lock_is_claimed_by_plain_commands_with_a_token_that_is_not_ahead_of_the_server() {
    let (bench, (me, other)) = (Bench::new().await, owners());
    assert_eq!(bench.outright(me).await, Claimed::NotGranted, "nothing is known of the clock yet");
    bench.server.client.connect().await.unwrap();
    let mut last = Token::new(0);
    for round in 0..200 {
        let Claimed::Granted(token) = bench.outright(me).await else {
            panic!("round {round}: the lock is free")
        };
        let now = bench.server.client.time_of(&bench.keys).await.unwrap().as_micros() as u64;
        assert!(token > last && token.get() <= now, "round {round}: {token} after {last}, at {now}");
        assert!(now - token.get() < 60_000_000, "round {round}: {token} at {now}");
        last = token;
        assert_eq!(bench.redis(&["GET", "lock:a"]).await, format!("{me} {token} {token} me"));
        assert_eq!(bench.redis(&["ZSCORE", bench.keys.tokens(), "last"]).await, token.to_string());
        assert!((15_000..=20_000).contains(&bench.pttl().await));
        assert_eq!(bench.outright(other).await, Claimed::NotGranted, "it is held");
        assert_eq!(bench.server.release(&bench.keys, me, None).await.unwrap(), Some(true));
        let lasts = bench.redis.command(&["PTTL", bench.keys.tokens()]).await.unwrap().int().unwrap();
        assert!(lasts > 6 * 24 * 3_600_000, "{lasts}");
    }
}

#[tokio::test]
async fn a_claim_by_plain_commands_without_a_larger_token_is_completed_by_the_script() {
    let (bench, (me, other)) = (Bench::new().await, owners());
    bench.server.client.connect().await.unwrap();
    let far = 4_000_000_000_000_000_u64;
    bench.redis(&["ZADD", bench.keys.tokens(), &far.to_string(), "last"]).await;
    assert_eq!(bench.outright(me).await, Claimed::Untokened);
    assert!(matches!(bench.ask(other).await, LockAnswer::Busy { .. }), "it has the lock");
    assert_eq!(bench.ask(me).await, granted(far + 16));
    assert!(bench.redis(&["GET", "lock:a"]).await.starts_with(&format!("{me} {} ", far + 16)));
    assert_eq!(bench.look().await.token, Some(Token::new(far + 16)));
    bench.server.release(&bench.keys, me, None).await.unwrap();
    bench.redis(&["DEL", bench.keys.tokens()]).await;
    bench.redis(&["HSET", bench.keys.tokens(), "some", "data"]).await;
    assert_eq!(bench.outright(me).await, Claimed::Untokened);
}

#[tokio::test]
async fn a_claim_leaves_no_token_for_ever_at_a_lock_that_somebody_else_holds() {
    if RedisServer::lacks("PEXPIRE NX", (7, 0)) {
        return;
    }
    let (bench, (me, _)) = (Bench::new().await, owners());
    bench.server.client.connect().await.unwrap();
    bench.redis(&["SET", "lock:a", "theirs"]).await;
    assert_eq!(bench.outright(me).await, Claimed::NotGranted);
    let lasts = bench.redis.command(&["PTTL", bench.keys.tokens()]).await.unwrap().int().unwrap();
    assert!(lasts > 6 * 24 * 3_600_000, "{lasts}");
}

#[tokio::test]
async fn a_claim_by_plain_commands_sees_that_others_wait() {
    let (bench, (me, _)) = (Bench::new().await, owners());
    bench.server.client.connect().await.unwrap();
    bench.redis(&["RPUSH", bench.keys.queue(), "somebody"]).await;
    assert_eq!(bench.outright(me).await, Claimed::OutOfTurn);
    assert_eq!(bench.server.release(&bench.keys, me, None).await.unwrap(), Some(true));
}

#[tokio::test]
async fn a_claim_that_arrives_after_it_was_undone_is_undone_again() {
    let (bench, (me, _)) = (Bench::new().await, owners());
    let terms = TakeBack::new(&bench.keys, TTL, Sent::InDoubt { connection: None });
    let undo = bench.server.client.take_back(terms, || bench.server.release(&bench.keys, me, None));
    let late = async {
        // Time: the first try of the roll-back finds nothing.
        tokio::time::sleep(Duration::from_millis(200)).await;
        bench.redis(&["SET", "lock:a", &format!("{me} 5 5 me"), "NX", "PX", "20000"]).await
    };
    let (found, _) = tokio::time::timeout(TTL / 2, async { tokio::join!(undo, late) }).await.unwrap();
    assert_eq!(found, Some(true));
    assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(0)");
}

/// As when the connection is cut between the two commands.
#[tokio::test]
async fn the_rollback_of_a_claim_gives_the_last_token_its_ttl() {
    let (bench, (me, other)) = (Bench::new().await, owners());
    for holder in [me, other] {
        bench.redis(&["SET", "lock:a", &format!("{holder} 16 16 me"), "PX", "20000"]).await;
        bench.redis(&["ZADD", bench.keys.tokens(), "16", "last"]).await;
        assert_eq!(bench.server.release(&bench.keys, me, None).await.unwrap(), Some(holder == me));
        let lasts = bench.redis.command(&["PTTL", bench.keys.tokens()]).await.unwrap().int().unwrap();
        assert!(lasts > 6 * 24 * 3_600_000, "{lasts}");
        bench.redis(&["FLUSHALL"]).await;
    }
}
