//! What scripts and plain commands of a master answer where the tables do not say it.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ErrorKind, LockMode, LockName, Outcome, OwnerId, Result, Token, TokenBlock};
use lock_redlock::ballot::{Claim, Entry, Extension, Proposal, Request, Voter, Wanted};
use lock_redlock::redis::{Client, IntoConnectionInfo};
use lock_testkit::RedisServer;
use redis_link::client::RedisClient;
use redis_link::inspection::Inspection;
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use redis_link::proof::Secret;

use crate::common::run;

const TTL: Duration = Duration::from_secs(20);
/// How long a master keeps a lock that it has handed over, and the token that a release proposes.
const GRACE: Duration = Duration::from_secs(5);
const PROPOSED: u64 = 5_000;
/// When the owner asked, by its clock.
const SINCE: u64 = 1_500_000_000_000_000;
const TOKENS: &str = "polylock:tokens:{lock:a}";
const LINE: &str = "polylock:line:{lock:a}";

/// A master, and the owner of a lock on it.
struct Bench {
    master: RedisServer,
    voter: Voter,
    keys: Keys,
    me: OwnerId,
}

impl Bench {
    async fn new() -> Self {
        Self::without("quit").await
    }

    /// By a user that may not use this command.
    async fn without(command: &str) -> Self {
        let rights = format!("on nopass ~* &* +@all -{command}");
        let master = RedisServer::builder().user("ann", &rights).start().await.unwrap();
        let ann = format!("redis://ann:x@{}", master.addr()).into_connection_info().unwrap();
        let voter = Voter::new(Arc::new(RedisClient::new(Voter::options(ann)).unwrap()));
        Self { master, voter, keys: Keys::new("lock:", &LockName::new("a").unwrap()), me: OwnerId::random() }
    }

    fn claim_of(&self, proposal: Option<u64>) -> Claim<'_> {
        let proposal = proposal.map(|token| Proposal { token: Token::new(token), since: SINCE });
        Claim { keys: &self.keys, owner: self.me, ttl: TTL, info: "me", proposal }
    }

    async fn claim(&self, proposal: Option<u64>) -> Result<LockAnswer> {
        let request = self.claim_of(proposal).request(None);
        self.voter.claim(&request, &self.voter.client.dispatch()).await
    }

    /// `None` when it is unclear.
    async fn claim_fast(&self, proposal: u64) -> Option<LockAnswer> {
        let claim = self.claim_of(Some(proposal)).fast().unwrap();
        self.voter.claim_fast(&claim, &self.voter.client.dispatch()).await.unwrap()
    }

    /// Asks as a waiter, and says whether it is granted.
    async fn queue_up(&self, owner: OwnerId) -> bool {
        let request = Claim { owner, ..self.claim_of(None) }.request(Some(&entry(owner)));
        let answer = self.voter.claim(&request, &self.voter.client.dispatch()).await.unwrap();
        matches!(answer, LockAnswer::Granted(_))
    }

    async fn extend(&self) -> bool {
        let lease = Extension { keys: &self.keys, owner: self.me, ttl: TTL, shortens: true };
        self.voter.extend(&[lease]).await.unwrap().remove(0).unwrap()
    }

    /// Whether the lock was ours.
    async fn vacate(&self) -> bool {
        let (token, entry) = (Token::new(PROPOSED), entry(self.me));
        let request = Request::vacate(&self.keys, self.me, token, Some(&entry));
        self.voter.vacate(&request, &self.voter.client.dispatch()).await.unwrap().was_ours == Some(true)
    }

    async fn inspect(&self) -> Inspection {
        self.voter.inspect(&self.keys).await.unwrap()
    }

    async fn int(&self, line: &str) -> i64 {
        run(&self.master, line).await.int().unwrap()
    }

    async fn last_token(&self) -> String {
        self.master.text(&["ZSCORE", TOKENS, "last"]).await
    }
}

fn entry(owner: OwnerId) -> Entry {
    let (secret, inbox) = (&Secret::new(owner), "inbox:1");
    Entry::new(&Wanted { owner, secret, inbox, since: 1, grace: GRACE, ttl: TTL, info: "me" })
}

fn granted(token: u64) -> LockAnswer {
    LockAnswer::Granted(Token::new(token))
}

#[tokio::test]
async fn a_value_that_only_looks_like_ours_is_not_ours() {
    let bench = Bench::new().await;
    let id = bench.me.to_string();
    for value in [
        String::new(),
        " ".into(),
        "theirs".into(),
        id.clone(),
        format!("{id}0 {SINCE} me"),
        format!("0{id} {SINCE} me"),
        format!(" {id} {SINCE} me"),
        format!("{} {SINCE} me", &id[..31]),
        format!("{}- {SINCE} me", id.to_uppercase()),
        format!("{id}\n {SINCE} me"),
        format!("{id}-{SINCE} me"),
    ] {
        bench.master.call(&["SET", "lock:a", &value]).await;
        run(&bench.master, &format!("ZADD {TOKENS} 1000 last")).await;
        let answer = bench.claim(Some(2000)).await.unwrap();
        assert!(matches!(answer, LockAnswer::Busy { ends_in: None, .. }), "{value:?}: {answer:?}");
        assert!(!bench.vacate().await && !bench.extend().await, "{value:?}");
        assert!(!bench.voter.raise(&bench.keys, bench.me, Token::new(3000), TTL).await.unwrap(), "{value:?}");
        assert_eq!(bench.last_token().await, "1000", "{value:?}");
        assert_eq!(bench.claim_fast(1).await, None, "{value:?}");
        assert_eq!(
            (bench.master.text(&["GET", "lock:a"]).await, bench.int("PTTL lock:a").await),
            (value, -1)
        );
    }
    // What a release has handed over is, though it was written with another start.
    bench.master.call(&["SET", "lock:a", &format!("{id} 1900 me")]).await;
    assert_eq!(bench.claim(Some(2000)).await.unwrap(), granted(2000));
    assert!(bench.vacate().await && !bench.master.has_key("lock:a").await);
}

#[tokio::test]
async fn owner_info_is_shown_unchanged() {
    let bench = Bench::new().await;
    for info in ["", " ", "me and you", "{\"host\":\"a b\"}", "1 2 3", "%x+", "grüße\n"] {
        run(&bench.master, "FLUSHALL").await;
        let request = Claim { info, ..bench.claim_of(Some(5000)) }.request(None);
        let answer = bench.voter.claim(&request, &bench.voter.client.dispatch()).await.unwrap();
        assert_eq!(answer, granted(5000));
        let seen = bench.inspect().await;
        let wanted = Inspection {
            kind: "string".into(),
            value: bench.me.to_string(),
            token: Some(Token::new(5000)),
            owner: bench.me.to_string(),
            info: info.into(),
            since: Some(SINCE),
            mode: Some(LockMode::Exclusive),
            ends_in: seen.ends_in,
            ..Inspection::default()
        };
        assert_eq!(seen, wanted);
        assert!(bench.extend().await && bench.vacate().await, "{info:?}");
    }
}

#[tokio::test]
async fn a_last_token_that_makes_no_sense_is_an_error_and_leaves_no_lock() {
    let bench = Bench::new().await;
    for last in ["1.5", "-5", "1e300", "inf", "-inf", "1e17", "9007199254740992", "9007199254740991"] {
        run(&bench.master, "FLUSHALL").await;
        run(&bench.master, &format!("ZADD {TOKENS} {last} last")).await;
        let before = bench.last_token().await;
        for proposal in [None, Some(1000), Some(u64::MAX >> 1)] {
            let error = bench.claim(proposal).await.unwrap_err();
            let what = (error.kind(), error.outcome());
            assert_eq!(what, (ErrorKind::Unexpected, Outcome::NotApplied), "{last}: {error}");
            assert!(!bench.master.has_key("lock:a").await, "{last}");
        }
        assert_eq!(bench.last_token().await, before);
        assert_eq!(bench.inspect().await.kind, "none", "{last}");
    }
}

#[tokio::test]
async fn only_a_token_that_a_score_can_hold_is_proposed_fast() {
    let bench = Bench::new().await;
    assert!(bench.claim_of(None).fast().is_none());
    let exact = 1 << 53;
    for too_large in [exact, exact + 1, u64::MAX >> 1] {
        assert!(bench.claim_of(Some(too_large)).fast().is_none());
        let error = bench.claim(Some(too_large)).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::NotApplied, "{error}");
        assert!(error.to_string().contains("centuries"), "{error}");
        assert_eq!(bench.int(&format!("EXISTS lock:a {TOKENS}")).await, 0);
    }
    assert_eq!(bench.claim_fast(exact - 1).await, Some(granted(exact - 1)));
    assert_eq!(bench.last_token().await, (exact - 1).to_string());
}

#[tokio::test]
async fn a_user_without_one_of_the_rights_is_refused_and_leaves_nothing() {
    for command in ["set", "zadd", "pexpire"] {
        let bench = Bench::without(command).await;
        assert_eq!(bench.claim_fast(1000).await, None, "{command}");
        let error = bench.claim(Some(1000)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{command}: {error}");
        assert!(!bench.master.has_key("lock:a").await, "{command}");
    }
}

#[tokio::test]
async fn masters_that_know_the_same_tokens_hand_over_with_the_same() {
    let (bench, waiter) = (Bench::new().await, OwnerId::random());
    let mut inbox = Client::open(bench.master.url()).unwrap().get_async_pubsub().await.unwrap();
    inbox.subscribe("inbox:1").await.unwrap();
    let after = |token| TokenBlock::end(token) + 1;
    for (last, minted) in [(1, PROPOSED), (PROPOSED, after(PROPOSED)), (PROPOSED + 23, after(PROPOSED + 23))]
    {
        run(&bench.master, "FLUSHALL").await;
        assert_eq!(bench.claim(Some(last)).await.unwrap(), granted(last));
        assert!(!bench.queue_up(waiter).await);
        assert!(bench.vacate().await);
        assert_eq!(bench.last_token().await, minted.to_string());
        assert_eq!(bench.master.text(&["GET", "lock:a"]).await, format!("{waiter} {PROPOSED} me"));
    }
}

#[tokio::test]
async fn a_queue_key_of_another_type_blocks_no_client() {
    let (bench, other) = (Bench::new().await, OwnerId::random());
    run(&bench.master, &format!("SET {LINE} something")).await;
    assert!(bench.queue_up(bench.me).await && !bench.queue_up(other).await);
    assert!(bench.vacate().await);
    assert!(bench.queue_up(other).await);
    assert_eq!(bench.int(&format!("PTTL {LINE}")).await, -1, "it is not ours to end");
}

#[tokio::test]
async fn a_holder_without_the_right_to_publish_leaves_the_wait_queue_unchanged() {
    let bench = Bench::without("publish").await;
    bench.claim(None).await.unwrap();
    assert!(!bench.queue_up(OwnerId::random()).await);
    assert!(bench.vacate().await);
    assert_eq!(bench.int(&format!("ZCARD {LINE}")).await, 1);
    assert!(!bench.master.has_key("lock:a").await, "it is handed over to none");
    let left = bench.int(&format!("PTTL {LINE}")).await;
    assert!((1..=5_000).contains(&left), "{left}");
}

/// As when the connection is cut between the two commands.
#[tokio::test]
async fn the_rollback_of_a_claim_gives_the_last_token_its_ttl() {
    let bench = Bench::new().await;
    for holder in [bench.me, OwnerId::random()] {
        bench.master.call(&["SET", "lock:a", &format!("{holder} 16 me"), "PX", "20000"]).await;
        run(&bench.master, &format!("ZADD {TOKENS} 16 last")).await;
        assert_eq!(bench.vacate().await, holder == bench.me);
        assert!(bench.int(&format!("PTTL {TOKENS}")).await > 6 * 24 * 3_600_000);
        run(&bench.master, "FLUSHALL").await;
    }
}
