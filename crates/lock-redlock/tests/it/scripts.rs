//! What scripts and plain commands of a master answer where the tables do not say it.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ErrorKind, LockMode, LockName, Outcome, OwnerId, Token, TokenBlock};
use lock_redlock::ballot::{self, Claim, Proposal, Request, Vacated, Voter, Wanted};
use lock_redlock::redis::{Client, ConnectionInfo, IntoConnectionInfo};
use lock_testkit::RedisServer;
use redis_link::client::RedisClient;
use redis_link::inspection::Inspection;
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use redis_link::message::Secret;

const TTL: Duration = Duration::from_secs(20);
/// How long a master keeps a lock that it has handed over, and the token that a release proposes.
const GRACE: Duration = Duration::from_secs(5);
const PROPOSED: u64 = 5_000;
/// When the owner asked, by its clock.
const SINCE: u64 = 1_500_000_000_000_000;

struct Bench {
    redis: RedisServer,
    voter: Voter,
    keys: Keys,
}

impl Bench {
    async fn new() -> Self {
        let redis = RedisServer::start().await.unwrap();
        let info = redis.url().into_connection_info().unwrap();
        Self::of(redis, info)
    }

    /// By a user that may not use this command.
    async fn without(command: &str) -> Self {
        let rights = format!("on nopass ~* &* +@all -{command}");
        let redis = RedisServer::builder().user("ann", &rights).start().await.unwrap();
        let ann = format!("redis://ann:x@{}", redis.addr()).into_connection_info().unwrap();
        Self::of(redis, ann)
    }

    fn of(redis: RedisServer, info: ConnectionInfo) -> Self {
        let voter = Voter::new(Arc::new(RedisClient::new(Voter::options(info)).unwrap()));
        Self { redis, voter, keys: Keys::new("lock:", &LockName::new("a").unwrap()) }
    }

    async fn claim(&self, owner: OwnerId, proposal: Option<u64>) -> LockAnswer {
        self.voter
            .claim(&self.claim_of(owner, proposal).request(None), &self.voter.client.dispatch())
            .await
            .unwrap()
    }

    /// `None` when it is unclear.
    async fn claim_fast(&self, owner: OwnerId, proposal: u64) -> Option<LockAnswer> {
        let claim = self.claim_of(owner, Some(proposal)).fast().unwrap();
        self.voter.claim_fast(&claim, &self.voter.client.dispatch()).await.unwrap()
    }

    async fn granted(&self, owner: OwnerId) -> Token {
        match self.claim(owner, None).await {
            LockAnswer::Granted(token) => token,
            busy => panic!("{busy:?}"),
        }
    }

    fn claim_of(&self, owner: OwnerId, proposal: Option<u64>) -> Claim<'_> {
        let proposal = proposal.map(|token| Proposal { token: Token::new(token), since: SINCE });
        Claim { keys: &self.keys, owner, ttl: TTL, info: "me", proposal }
    }

    async fn extend(&self, owner: OwnerId, ttl: Duration) -> bool {
        self.extend_by(owner, ttl, true).await
    }

    async fn extend_by(&self, owner: OwnerId, ttl: Duration, shortens: bool) -> bool {
        let lease = ballot::Extension { keys: &self.keys, owner, ttl, shortens };
        self.voter.extend(&[lease]).await.unwrap().remove(0).unwrap()
    }

    /// The entry of a waiter, of which those with a smaller number have waited for longer.
    fn entry(owner: OwnerId, inbox: &str, since: u64) -> ballot::Entry {
        let secret = &Secret::new(owner);
        ballot::Entry::new(&Wanted { owner, secret, inbox, since, grace: GRACE, ttl: TTL, info: "me" })
    }

    /// Asks as a waiter, and says whether it is granted.
    async fn queue_up(&self, owner: OwnerId, entry: &ballot::Entry) -> bool {
        let claim = Claim { keys: &self.keys, owner, ttl: TTL, info: "me", proposal: None };
        matches!(
            self.voter.claim(&claim.request(Some(entry)), &self.voter.client.dispatch()).await.unwrap(),
            LockAnswer::Granted(_)
        )
    }

    async fn vacate(&self, owner: OwnerId) -> bool {
        self.vacated(owner, None).await.was_ours == Some(true)
    }

    async fn vacated(&self, owner: OwnerId, entry: Option<&ballot::Entry>) -> Vacated {
        let request = Request::vacate(&self.keys, owner, Token::new(PROPOSED), entry);
        self.voter.vacate(&request, &self.voter.client.dispatch()).await.unwrap()
    }

    async fn redis(&self, words: &[&str]) -> String {
        self.redis.text(words).await
    }

    async fn pttl(&self, key: &str) -> i64 {
        self.redis.command(&["PTTL", key]).await.unwrap().int().unwrap()
    }

    async fn look(&self) -> Inspection {
        self.voter.inspect(&self.keys).await.unwrap()
    }
}

fn owners() -> (OwnerId, OwnerId) {
    (OwnerId::random(), OwnerId::random())
}

fn granted(token: u64) -> LockAnswer {
    LockAnswer::Granted(Token::new(token))
}

#[tokio::test]
async fn an_extension_that_is_executed_late_leaves_a_longer_lease_alone() {
    let (bench, me) = (Bench::new().await, OwnerId::random());
    bench.granted(me).await;
    for (ttl, shortens, lasts) in
        [(TTL * 10, false, TTL * 10), (TTL, false, TTL * 10), (TTL / 2, true, TTL / 2)]
    {
        assert!(bench.extend_by(me, ttl, shortens).await);
        let left = bench.redis.command(&["PTTL", "lock:a"]).await.unwrap().int().unwrap();
        let left = Duration::from_millis(left.try_into().unwrap());
        assert!(left <= lasts && left > lasts * 3 / 4, "{left:?} after {ttl:?}");
    }
}

#[tokio::test]
async fn a_value_that_only_looks_like_ours_is_not_ours() {
    let (bench, (me, _)) = (Bench::new().await, owners());
    let (id, upper) = (me.to_string(), me.to_string().to_uppercase());
    for value in [
        String::new(),
        " ".into(),
        "theirs".into(),
        id.clone(),
        format!("{id}0 {SINCE} me"),
        format!("0{id} {SINCE} me"),
        format!(" {id} {SINCE} me"),
        format!("{} {SINCE} me", &id[..31]),
        format!("{upper}- {SINCE} me"),
        format!("{id}\n {SINCE} me"),
        format!("{id}-{SINCE} me"),
    ] {
        bench.redis(&["SET", "lock:a", &value]).await;
        bench.redis(&["ZADD", bench.keys.tokens(), "1000", "last"]).await;
        assert!(
            matches!(bench.claim(me, Some(2000)).await, LockAnswer::Busy { ends_in: None, .. }),
            "{value:?}"
        );
        assert!(!bench.vacate(me).await, "{value:?}");
        assert!(!bench.extend(me, TTL).await, "{value:?}");
        assert!(!bench.voter.raise(&bench.keys, me, Token::new(3000), TTL).await.unwrap(), "{value:?}");
        assert_eq!(bench.redis(&["ZSCORE", bench.keys.tokens(), "last"]).await, "1000", "{value:?}");
        assert_eq!(bench.claim_fast(me, 1).await, None, "{value:?}");
        assert_eq!((bench.redis(&["GET", "lock:a"]).await, bench.pttl("lock:a").await), (value, -1));
    }
    // What a release has handed over is, though it was written with another start.
    bench.redis(&["SET", "lock:a", &format!("{id} 1900 me")]).await;
    assert_eq!(bench.claim(me, Some(2000)).await, granted(2000));
    assert!(bench.vacate(me).await);
    assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(0)");
}

#[tokio::test]
async fn owner_info_is_shown_unchanged() {
    let (bench, (me, _)) = (Bench::new().await, owners());
    for info in ["", " ", "me and you", "{\"host\":\"a b\"}", "1 2 3", "%x+", "grüße\n"] {
        let claim = Claim { info, ..bench.claim_of(me, Some(5000)) };
        bench.redis(&["FLUSHALL"]).await;
        assert_eq!(
            bench.voter.claim(&claim.request(None), &bench.voter.client.dispatch()).await.unwrap(),
            granted(5000)
        );
        let sight = bench.look().await;
        let wanted = Inspection {
            kind: "string".into(),
            value: me.to_string(),
            token: Some(Token::new(5000)),
            owner: me.to_string(),
            info: info.into(),
            since: Some(SINCE),
            mode: Some(LockMode::Exclusive),
            ends_in: sight.ends_in,
            ..Inspection::default()
        };
        assert_eq!(sight, wanted);
        assert!(sight.ends_in.is_some_and(|left| left > TTL / 4 && left <= TTL), "{sight:?}");
        assert!(matches!(
            bench.voter.claim(&claim.request(None), &bench.voter.client.dispatch()).await.unwrap(),
            LockAnswer::Granted(_)
        ));
        assert!(bench.extend(me, TTL).await && bench.vacate(me).await);
        let sight = bench.look().await;
        let token = Some(Token::new(5008));
        let free = Inspection { kind: "none".into(), token, mode: sight.mode, ..Inspection::default() };
        assert_eq!(sight, free);
    }
}

#[tokio::test]
async fn a_last_token_that_makes_no_sense_is_an_error_and_leaves_no_lock() {
    let (bench, (me, _)) = (Bench::new().await, owners());
    for last in ["1.5", "-5", "1e300", "inf", "-inf", "1e17", "9007199254740992", "9007199254740991"] {
        bench.redis(&["FLUSHALL"]).await;
        bench.redis(&["ZADD", bench.keys.tokens(), last, "last"]).await;
        let before = bench.redis(&["ZSCORE", bench.keys.tokens(), "last"]).await;
        for proposal in [None, Some(1000), Some(u64::MAX >> 1)] {
            let claim = bench.claim_of(me, proposal).request(None);
            let error = bench.voter.claim(&claim, &bench.voter.client.dispatch()).await.unwrap_err();
            assert_eq!(
                (error.kind(), error.outcome()),
                (ErrorKind::Unexpected, Outcome::NotApplied),
                "{last}: {error}"
            );
            assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(0)", "{last}");
        }
        assert_eq!(bench.redis(&["ZSCORE", bench.keys.tokens(), "last"]).await, before);
        assert_eq!(bench.look().await.kind, "none", "{last}");
    }
}

#[tokio::test]
async fn only_a_token_that_a_score_can_hold_is_proposed_fast() {
    let (bench, (me, _)) = (Bench::new().await, owners());
    assert!(bench.claim_of(me, None).fast().is_none());
    let exact = 1 << 53;
    for too_large in [exact, exact + 1, u64::MAX >> 1] {
        assert!(bench.claim_of(me, Some(too_large)).fast().is_none());
        let claim = bench.claim_of(me, Some(too_large)).request(None);
        let error = bench.voter.claim(&claim, &bench.voter.client.dispatch()).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::NotApplied, "{error}");
        assert!(error.to_string().contains("centuries"), "{error}");
        assert_eq!(bench.redis(&["EXISTS", "lock:a", bench.keys.tokens()]).await, "Int(0)");
    }
    assert_eq!(bench.claim_fast(me, exact - 1).await, Some(granted(exact - 1)));
    assert_eq!(bench.redis(&["ZSCORE", bench.keys.tokens(), "last"]).await, (exact - 1).to_string());
}

#[tokio::test]
async fn a_user_without_one_of_the_rights_is_refused_and_leaves_nothing() {
    for command in ["set", "zadd", "pexpire"] {
        let (bench, (me, _)) = (Bench::without(command).await, owners());
        let fast = bench.claim_of(me, Some(1000)).fast().unwrap();
        assert_eq!(
            bench.voter.claim_fast(&fast, &bench.voter.client.dispatch()).await.unwrap(),
            None,
            "{command}"
        );
        let claim = bench.claim_of(me, Some(1000)).request(None);
        let error = bench.voter.claim(&claim, &bench.voter.client.dispatch()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{command}: {error}");
        assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(0)", "{command}");
    }
}

#[tokio::test]
async fn masters_that_know_the_same_tokens_hand_over_with_the_same() {
    let (bench, (holder, waiter)) = (Bench::new().await, owners());
    let mut inbox = Client::open(bench.redis.url()).unwrap().get_async_pubsub().await.unwrap();
    inbox.subscribe("inbox:1").await.unwrap();
    let entry = Bench::entry(waiter, "inbox:1", 1);
    let after = |token| TokenBlock::end(token) + 1;
    for (last, minted) in [(1, PROPOSED), (PROPOSED, after(PROPOSED)), (PROPOSED + 23, after(PROPOSED + 23))]
    {
        bench.redis(&["FLUSHALL"]).await;
        assert_eq!(bench.claim(holder, Some(last)).await, granted(last));
        assert!(!bench.queue_up(waiter, &entry).await);
        assert!(bench.vacate(holder).await);
        assert_eq!(bench.redis(&["ZSCORE", bench.keys.tokens(), "last"]).await, minted.to_string());
        assert_eq!(bench.redis(&["GET", "lock:a"]).await, format!("{waiter} {PROPOSED} me"));
    }
}

#[tokio::test]
async fn a_queue_key_of_another_type_blocks_no_client() {
    let (bench, (me, other)) = (Bench::new().await, owners());
    let [mine, others] = [me, other].map(|owner| Bench::entry(owner, "inbox:1", 1));
    bench.redis(&["SET", &bench.keys.line(), "something"]).await;
    assert!(bench.queue_up(me, &mine).await);
    assert!(!bench.queue_up(other, &others).await);
    assert_eq!(bench.vacated(me, Some(&mine)).await.was_ours, Some(true));
    assert!(bench.queue_up(other, &others).await);
    assert_eq!(bench.redis(&["PTTL", &bench.keys.line()]).await, "Int(-1)", "it is not ours to end");
}

#[tokio::test]
async fn a_holder_without_the_right_to_publish_leaves_the_wait_queue_unchanged() {
    let (bench, (holder, waiter)) = (Bench::without("publish").await, owners());
    bench.granted(holder).await;
    assert!(!bench.queue_up(waiter, &Bench::entry(waiter, "inbox:1", 1)).await);
    assert!(bench.vacate(holder).await);
    assert_eq!(bench.redis(&["ZCARD", &bench.keys.line()]).await, "Int(1)");
    assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(0)", "it is handed over to none");
    let left = bench.pttl(&bench.keys.line()).await;
    assert!((1..=5_000).contains(&left), "{left}");
}

/// As when the connection is cut between the two commands.
#[tokio::test]
async fn the_rollback_of_a_claim_gives_the_last_token_its_ttl() {
    let bench = Bench::new().await;
    let me = OwnerId::random();
    for holder in [me, OwnerId::random()] {
        bench.redis(&["SET", "lock:a", &format!("{holder} 16 me"), "PX", "20000"]).await;
        bench.redis(&["ZADD", bench.keys.tokens(), "16", "last"]).await;
        assert_eq!(bench.vacate(me).await, holder == me);
        assert!(bench.pttl(bench.keys.tokens()).await > 6 * 24 * 3_600_000);
        bench.redis(&["FLUSHALL"]).await;
    }
}
