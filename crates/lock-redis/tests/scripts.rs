//! What every script answers, on a real server.

use std::time::Duration;

use lock_core::{ErrorKind, LockName, Outcome, OwnerId, Token};
use lock_redis::redis::IntoConnectionInfo;
use lock_redis::server::{
    Claim, Extension, Hold, Proposal, Request, Sent, ServerOptions, Sight, Verdict, Waiter,
};
use lock_redis::{Keys, Server};
use lock_testkit::RedisServer;

const TTL: Duration = Duration::from_secs(20);
/// When the owner asked, by its clock.
const SINCE: u64 = 1_500_000_000_000_000;

struct Bench {
    redis: RedisServer,
    server: Server,
    keys: Keys,
}

impl Bench {
    async fn new() -> Self {
        let redis = RedisServer::start().await.unwrap();
        let info = redis.url().into_connection_info().unwrap();
        let server = Server::new(ServerOptions::new("redis", info));
        Self { redis, server: server.unwrap(), keys: Keys::new("lock:", &LockName::new("a").unwrap()) }
    }

    async fn claim(&self, owner: OwnerId, proposal: Option<Token>) -> Verdict {
        let proposal = proposal.map(|token| Proposal { token, since: SINCE });
        let claim = Claim { keys: &self.keys, owner, ttl: TTL, info: "me", proposal };
        self.server.claim(&claim.request(None)).await.unwrap()
    }

    async fn granted(&self, owner: OwnerId) -> Token {
        match self.claim(owner, None).await {
            Verdict::Granted(token) => token,
            busy => panic!("{busy:?}"),
        }
    }

    /// Asks as one who waits, and says whether it is granted.
    async fn queue_up(&self, owner: OwnerId, waiter: &Waiter<'_>) -> bool {
        let claim = Claim { keys: &self.keys, owner, ttl: TTL, info: "", proposal: None };
        matches!(self.server.claim(&claim.request(Some(waiter))).await.unwrap(), Verdict::Granted(_))
    }

    async fn vacate(&self, owner: OwnerId, waiter: Option<&Waiter<'_>>, calls: bool) -> bool {
        let turn = calls.then_some(Duration::from_millis(100));
        self.server.vacate(&Request::vacate(&self.keys, owner, waiter, turn)).await.unwrap() == Some(true)
    }

    async fn redis(&self, words: &[&str]) -> String {
        let reply = self.redis.command(words).await.unwrap();
        reply.text().map_or_else(|| format!("{reply:?}"), ToOwned::to_owned)
    }

    async fn pttl(&self) -> i64 {
        self.redis.command(&["PTTL", "lock:a"]).await.unwrap().int().unwrap()
    }

    async fn look(&self) -> Sight {
        self.server.look(&self.keys, None).await.unwrap()
    }
}

fn owners() -> (OwnerId, OwnerId) {
    (OwnerId::random(), OwnerId::random())
}

#[tokio::test]
async fn a_free_lock_is_a_plain_string_with_a_ttl() {
    let (bench, (me, _)) = (Bench::new().await, owners());
    bench.granted(me).await;
    assert_eq!(bench.redis(&["GET", "lock:a"]).await, me.to_string());
    assert!((15_000..=20_000).contains(&bench.pttl().await));
}

#[tokio::test]
async fn the_same_claim_again_is_answered_alike_and_another_is_refused() {
    let (bench, (me, other)) = (Bench::new().await, owners());
    let token = bench.granted(me).await;
    assert_eq!(bench.granted(me).await, token);
    let Verdict::Busy { ends_in: Some(left), foreign_type: None, .. } = bench.claim(other, None).await else {
        panic!("granted twice")
    };
    assert!(left <= TTL && left > TTL / 2, "{left:?}");
}

#[tokio::test]
async fn what_was_done_is_told_also_when_the_script_of_another_call_cannot_be_loaded() {
    let (bench, (me, other)) = (Bench::new().await, owners());
    bench.granted(me).await;
    assert_eq!(bench.redis(&["ACL", "SETUSER", "default", "-script"]).await, "OK");
    let extension = |owner, hold, ttl| Extension { keys: &bench.keys, owner, hold, ttl };
    // Nobody has made a reader of a writer on this server yet.
    let leases = [extension(me, Hold::Alone, TTL / 2), extension(other, Hold::Downgrading, TTL)];
    let [first, second] = bench.server.extend(&leases).await.unwrap().try_into().unwrap();
    assert!(first.unwrap());
    assert!(bench.pttl().await <= 10_000);
    let error = second.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Denied, Outcome::NotApplied), "{error}");
}

#[tokio::test]
async fn release_and_extend_touch_only_our_own() {
    let (bench, (me, other)) = (Bench::new().await, owners());
    bench.granted(me).await;
    assert_eq!(bench.server.release(&bench.keys, other, None).await.unwrap(), Some(false));
    let extend = |owner, ttl| {
        let (server, keys) = (&bench.server, &bench.keys);
        async move {
            server
                .extend(&[Extension { keys, owner, hold: Hold::Alone, ttl }])
                .await
                .unwrap()
                .remove(0)
                .unwrap()
        }
    };
    assert!(!extend(other, TTL * 9).await);
    assert!(extend(me, TTL * 2).await);
    assert!((35_000..=40_000).contains(&bench.pttl().await));
    assert_eq!(bench.server.release(&bench.keys, me, None).await.unwrap(), Some(true));
    assert_eq!(bench.server.release(&bench.keys, me, None).await.unwrap(), Some(false));
    assert!(!extend(me, TTL).await, "an extension never creates the key");
    assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(0)");
}

#[tokio::test]
async fn tokens_grow_through_release_script_flush_and_the_loss_of_the_fence() {
    let bench = Bench::new().await;
    let mut last = Token::new(0);
    for round in 0..6 {
        match round {
            2 => drop(bench.redis(&["SCRIPT", "FLUSH"]).await),
            3 => drop(bench.redis(&["DEL", bench.keys.fence()]).await),
            4 => drop(bench.redis(&["FLUSHALL"]).await),
            _ => {}
        }
        let owner = OwnerId::random();
        let token = bench.granted(owner).await;
        assert!(token > last, "round {round}: {token} after {last}");
        last = token;
        bench.server.release(&bench.keys, owner, None).await.unwrap();
    }
}

#[tokio::test]
async fn a_proposal_counts_if_it_is_larger_and_a_floor_lifts_the_next() {
    let (bench, (me, other)) = (Bench::new().await, owners());
    assert_eq!(bench.claim(me, Some(Token::new(1000))).await, Verdict::Granted(Token::new(1000)));
    assert_eq!((bench.look().await.since, bench.look().await.owner), (Some(SINCE), me.to_string()));
    assert!(!bench.server.raise(&bench.keys, other, Token::new(9000), TTL).await.unwrap());
    assert!(bench.server.raise(&bench.keys, me, Token::new(5000), TTL).await.unwrap());
    assert!(bench.server.raise(&bench.keys, me, Token::new(2000), TTL).await.unwrap());
    let lasts = bench.redis.command(&["PTTL", bench.keys.fence()]).await.unwrap().int().unwrap();
    assert!(lasts > 0, "a fence that was lifted stays forever: {lasts}");
    bench.server.release(&bench.keys, me, None).await.unwrap();
    assert_eq!(bench.claim(other, Some(Token::new(1000))).await, Verdict::Granted(Token::new(5001)));
    assert_eq!((bench.look().await.since, bench.look().await.owner), (Some(SINCE), other.to_string()));
    bench.server.release(&bench.keys, other, None).await.unwrap();
    assert!(bench.granted(me).await > Token::new(5001));
    // A token that is ahead of the clock does not end: the clock could not carry on from there.
    let far = Token::new(5_000_000_000_000_000);
    assert!(bench.server.raise(&bench.keys, me, far, TTL).await.unwrap());
    assert_eq!(bench.redis(&["PTTL", bench.keys.fence()]).await, "Int(-1)");
    bench.server.release(&bench.keys, me, None).await.unwrap();
    assert!(bench.granted(other).await > far);
    assert_eq!(bench.redis(&["PTTL", bench.keys.fence()]).await, "Int(-1)");
}

#[tokio::test]
async fn a_key_of_another_type_is_busy_and_left_alone() {
    let (bench, (me, _)) = (Bench::new().await, owners());
    bench.redis(&["HSET", "lock:a", "field", "1"]).await;
    let Verdict::Busy { ends_in: None, foreign_type: Some(kind), .. } = bench.claim(me, None).await else {
        panic!("a hash was taken for a lock")
    };
    assert_eq!(kind, "hash");
    assert_eq!(bench.server.release(&bench.keys, me, None).await.unwrap(), Some(false));
    assert!(
        !bench
            .server
            .extend(&[Extension { keys: &bench.keys, owner: me, hold: Hold::Alone, ttl: TTL }])
            .await
            .unwrap()
            .remove(0)
            .unwrap()
    );
    assert_eq!(bench.server.break_lock(&bench.keys).await.unwrap(), "hash");
    assert_eq!(bench.look().await.kind, "hash");
    assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(1)");
}

#[tokio::test]
async fn a_fence_of_another_type_fails_before_anything_is_written() {
    let (bench, (me, _)) = (Bench::new().await, owners());
    bench.redis(&["HSET", bench.keys.fence(), "some", "data"]).await;
    let claim = Claim { keys: &bench.keys, owner: me, ttl: TTL, info: "", proposal: None };
    let error = bench.server.claim(&claim.request(None)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected);
    assert!(error.to_string().contains("prefix"), "{error}");
    assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(0)");
}

#[tokio::test]
async fn plain_clients_exclude_us_and_are_excluded() {
    let (bench, (me, _)) = (Bench::new().await, owners());
    bench.redis(&["SET", "lock:a", "theirs", "NX"]).await;
    assert_eq!(bench.claim(me, None).await, Verdict::Busy { ends_in: None, foreign_type: None, place: None });
    assert_eq!((bench.look().await.kind.as_str(), bench.look().await.value.as_str()), ("string", "theirs"));
    assert_eq!(bench.server.break_lock(&bench.keys).await.unwrap(), "string");
    bench.granted(me).await;
    assert_eq!(bench.redis(&["SET", "lock:a", "theirs", "NX", "PX", "1000"]).await, "Nil");
}

#[tokio::test]
async fn a_claim_that_arrives_after_it_was_undone_is_undone_again() {
    let (bench, (me, _)) = (Bench::new().await, owners());
    let undo = bench.server.undo(&bench.keys, me, None, TTL, Sent::InDoubt { connection: None });
    let late = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        bench.redis(&["SET", "lock:a", &me.to_string(), "NX", "PX", "20000"]).await
    };
    let (found, _) = tokio::time::timeout(TTL / 2, async { tokio::join!(undo, late) }).await.unwrap();
    assert_eq!(found, Some(true));
    assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(0)");
}

/// Somebody listens on these channels.
async fn listen(bench: &Bench, channels: &[&str]) -> redis::aio::PubSub {
    let client = redis::Client::open(bench.redis.url()).unwrap();
    let mut connection = client.get_async_pubsub().await.unwrap();
    for channel in channels {
        connection.subscribe(channel).await.unwrap();
    }
    connection
}

#[tokio::test]
async fn the_first_in_line_is_called_and_the_others_hold_back() {
    let (bench, (holder, _)) = (Bench::new().await, owners());
    let mut calls = listen(&bench, &["inbox:1", "inbox:2"]).await;
    let ids: Vec<_> = (0..3).map(|_| OwnerId::random()).collect();
    // Who came first counts, not who asked first; the one without a process is passed over.
    let dead = Waiter { id: ids[0], inbox: "inbox:dead", since: Some(1) };
    let first = Waiter { id: ids[1], inbox: "inbox:1", since: Some(2) };
    let second = Waiter { id: ids[2], inbox: "inbox:2", since: Some(3) };
    bench.granted(holder).await;
    for waiter in [&second, &first, &dead] {
        assert!(!bench.queue_up(OwnerId::random(), waiter).await);
        assert!(!bench.queue_up(OwnerId::random(), waiter).await, "it stands there once");
    }
    assert!(!bench.vacate(OwnerId::random(), None, true).await, "not the holder's");
    assert!(bench.vacate(holder, None, true).await);
    let message = { futures_util::StreamExt::next(&mut calls.on_message()).await.unwrap() };
    let told: String = message.get_payload().unwrap();
    assert_eq!((message.get_channel_name(), told), ("inbox:1", format!("turn {} lock:a", first.id)));
    assert!(!bench.queue_up(OwnerId::random(), &second).await, "it was not called");
    assert!(matches!(bench.claim(OwnerId::random(), None).await, Verdict::Busy { foreign_type: None, .. }));
    let owner = OwnerId::random();
    assert!(bench.queue_up(owner, &first).await);
    assert_eq!(bench.redis(&["EXISTS", bench.keys.turn()]).await, "Int(0)");

    // One that lost elsewhere stands in line again, in its place, and calls nobody.
    assert!(bench.vacate(owner, Some(&first), false).await);
    assert_eq!(bench.redis(&["ZCARD", bench.keys.line()]).await, "Int(2)");
    assert_eq!(bench.redis(&["EXISTS", bench.keys.turn()]).await, "Int(0)");
    bench.granted(holder).await;
    assert!(bench.vacate(holder, None, true).await);
    assert_eq!(bench.redis(&["GET", bench.keys.turn()]).await, first.id.to_string());
    // One that leaves when it was called passes the call on.
    let leaves = Waiter { since: None, ..first };
    assert!(!bench.vacate(OwnerId::random(), Some(&leaves), true).await);
    assert_eq!(bench.redis(&["GET", bench.keys.turn()]).await, second.id.to_string());
    assert!(bench.queue_up(owner, &second).await);
    assert_eq!(bench.redis(&["EXISTS", bench.keys.line(), bench.keys.turn()]).await, "Int(0)");
}

#[tokio::test]
async fn a_call_that_nobody_follows_keeps_the_lock_for_a_moment_only() {
    let (bench, (holder, other)) = (Bench::new().await, owners());
    let _calls = listen(&bench, &["inbox:1"]).await;
    let waiter = Waiter { id: OwnerId::random(), inbox: "inbox:1", since: Some(1) };
    bench.granted(holder).await;
    assert!(!bench.queue_up(OwnerId::random(), &waiter).await);
    assert!(bench.vacate(holder, None, true).await);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while matches!(bench.claim(other, None).await, Verdict::Busy { .. }) {
        assert!(tokio::time::Instant::now() < deadline, "it is kept for one that does not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_line_that_holds_something_else_is_in_nobodys_way() {
    let (bench, (me, other)) = (Bench::new().await, owners());
    let waiter = Waiter { id: OwnerId::random(), inbox: "inbox:1", since: Some(1) };
    bench.redis(&["SET", bench.keys.line(), "something"]).await;
    bench.redis(&["HSET", bench.keys.turn(), "some", "data"]).await;
    assert!(bench.queue_up(me, &waiter).await);
    assert!(!bench.queue_up(other, &waiter).await);
    assert!(bench.vacate(me, Some(&waiter), true).await);
    assert!(bench.queue_up(other, &waiter).await);
    assert_eq!(bench.redis(&["PTTL", bench.keys.line()]).await, "Int(-1)", "it is not ours to end");
}

#[tokio::test]
async fn a_holder_that_may_call_nobody_leaves_the_line_as_it_is() {
    let redis = RedisServer::builder().user("ann", "on nopass ~* &* +@all -publish").start().await.unwrap();
    let ann = format!("redis://ann:x@{}", redis.addr()).into_connection_info().unwrap();
    let server = Server::new(ServerOptions::new("redis", ann)).unwrap();
    let bench = Bench { redis, server, keys: Keys::new("lock:", &LockName::new("a").unwrap()) };
    let (holder, _) = owners();
    let waiter = Waiter { id: OwnerId::random(), inbox: "inbox:1", since: Some(1) };
    bench.granted(holder).await;
    assert!(!bench.queue_up(OwnerId::random(), &waiter).await);
    assert!(bench.vacate(holder, None, true).await);
    assert_eq!(bench.redis(&["ZCARD", bench.keys.line()]).await, "Int(1)");
    assert_eq!(bench.redis(&["EXISTS", bench.keys.turn()]).await, "Int(0)");
}
