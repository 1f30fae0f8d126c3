//! What every script answers, on a real server.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ErrorKind, LockMode, LockName, Mode, Outcome, OwnerId, Token, TokenBlock};
use lock_redis::redis::{Client, ConnectionInfo, IntoConnectionInfo};
use lock_redis::request::{Ask, Claimed, Entry, Extension, Hold, Release};
use lock_redis::server::Server;
use lock_redlock::ballot::{self, Claim, Proposal, Request, Vacated, Voter, Wanted};
use lock_testkit::RedisServer;
use redis_link::client::RedisClient;
use redis_link::inspection::Inspection;
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use redis_link::take_back::{Sent, TakeBack};
use redis_link::wire::TokenTtl;

const TTL: Duration = Duration::from_secs(20);
/// When the owner asked, by its clock.
/// How long a master keeps a lock that it has handed over, and the token that a release proposes.
const VOTE_GRACE: Duration = Duration::from_secs(5);
const PROPOSED: u64 = 5_000;
const SINCE: u64 = 1_500_000_000_000_000;

struct Bench {
    redis: RedisServer,
    server: Server,
    voter: Voter,
    keys: Keys,
}

impl Bench {
    async fn new() -> Self {
        let redis = RedisServer::start().await.unwrap();
        let info = redis.url().into_connection_info().unwrap();
        Self::of(redis, info)
    }

    fn of(redis: RedisServer, info: ConnectionInfo) -> Self {
        let voter = Voter::new(Arc::new(RedisClient::new(Voter::options(info.clone())).unwrap()));
        let server = Server::single(info, false).unwrap();
        Self { redis, server, voter, keys: Keys::new("lock:", &LockName::new("a").unwrap()) }
    }

    /// Of a single server.
    async fn ask(&self, owner: OwnerId) -> LockAnswer {
        let (keys, info, mode) = (&self.keys, "me", Mode::Exclusive);
        let ask = Ask { keys, owner, mode, ttl: TTL, info, entry: None, is_confirmation: false };
        self.server.ask(self.server.moment(), &ask).await.unwrap()
    }

    /// The same by plain commands.
    async fn outright(&self, owner: OwnerId) -> Claimed {
        let (keys, info, mode) = (&self.keys, "me", Mode::Exclusive);
        let ask = Ask { keys, owner, mode, ttl: TTL, info, entry: None, is_confirmation: false };
        self.server.claim(&ask, true).await.unwrap()
    }

    async fn asked(&self, owner: OwnerId) -> Token {
        match self.ask(owner).await {
            LockAnswer::Granted(token) => token,
            busy => panic!("{busy:?}"),
        }
    }

    /// Of one of several masters.
    async fn claim(&self, owner: OwnerId, proposal: Option<u64>) -> LockAnswer {
        self.voter.claim(&self.claim_of(owner, proposal).request(None)).await.unwrap()
    }

    /// `None` when it is unclear.
    async fn claim_fast(&self, owner: OwnerId, proposal: u64) -> Option<LockAnswer> {
        let claim = self.claim_of(owner, Some(proposal)).fast().unwrap();
        self.voter.claim_fast(&claim).await.unwrap()
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

    async fn extend_vote(&self, owner: OwnerId, ttl: Duration) -> bool {
        let lease = ballot::Extension { keys: &self.keys, owner, ttl };
        self.voter.extend(&[lease]).await.unwrap().remove(0).unwrap()
    }

    /// The entry of a waiter, of which those with a smaller number have waited for longer.
    fn entry(owner: OwnerId, inbox: &str, since: u64) -> ballot::Entry {
        ballot::Entry::new(&Wanted { owner, inbox, since, grace: VOTE_GRACE, ttl: TTL, info: "me" })
    }

    /// Asks as a waiter, and says whether it is granted.
    async fn queue_up(&self, owner: OwnerId, entry: &ballot::Entry) -> bool {
        let claim = Claim { keys: &self.keys, owner, ttl: TTL, info: "me", proposal: None };
        matches!(self.voter.claim(&claim.request(Some(entry))).await.unwrap(), LockAnswer::Granted(_))
    }

    async fn vacate(&self, owner: OwnerId) -> bool {
        self.vacated(owner, None).await.was_ours == Some(true)
    }

    async fn vacated(&self, owner: OwnerId, entry: Option<&ballot::Entry>) -> Vacated {
        let request = Request::vacate(&self.keys, owner, Token::new(PROPOSED), entry);
        self.voter.vacate(&request).await.unwrap()
    }

    /// Who has the lock.
    async fn holder(&self) -> Option<OwnerId> {
        OwnerId::decode(self.redis(&["GET", "lock:a"]).await.split(' ').next()?)
    }

    async fn redis(&self, words: &[&str]) -> String {
        let reply = self.redis.command(words).await.unwrap();
        reply.text().map_or_else(|| format!("{reply:?}"), ToOwned::to_owned)
    }

    async fn pttl(&self) -> i64 {
        self.redis.command(&["PTTL", "lock:a"]).await.unwrap().int().unwrap()
    }

    async fn look(&self) -> Inspection {
        self.server.inspect(&self.keys, None).await.unwrap()
    }

    async fn look_at_vote(&self) -> Inspection {
        self.voter.inspect(&self.keys).await.unwrap()
    }

    async fn raise_vote(&self, owner: OwnerId, floor: u64) -> bool {
        self.voter.raise(&self.keys, owner, Token::new(floor), TTL).await.unwrap()
    }
}

fn owners() -> (OwnerId, OwnerId) {
    (OwnerId::random(), OwnerId::random())
}

fn granted(token: u64) -> LockAnswer {
    LockAnswer::Granted(Token::new(token))
}

const MOMENT: Duration = Duration::from_secs(1);

/// What a release does that leaves the lock free for clients that have no queue entry.
#[tokio::test]
async fn a_lock_that_is_left_free_is_for_others_for_a_moment() {
    let bench = Bench::new().await;
    let (me, other) = owners();
    let free =
        async |owner| bench.server.release(&bench.keys, owner, Release::LeaveFree(MOMENT)).await.unwrap();
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
    tokio::time::sleep(ends_in().await + Duration::from_millis(5)).await;
    bench.asked(other).await;
    // When nobody takes it, it is ours again after the moment.
    assert_eq!(free(other).await, Some(true));
    assert!(bench.redis.command(&["PTTL", QUEUE]).await.unwrap().int().unwrap() <= 1000);
    tokio::time::sleep(ends_in().await + Duration::from_millis(5)).await;
    bench.asked(other).await;
    // A moment that never ends, as after the clock was set back, is none.
    bench.redis(&["DEL", "lock:a"]).await;
    bench.redis(&["LPUSH", QUEUE, "free 99999999999999"]).await;
    bench.asked(me).await;
    assert_eq!(bench.redis(&["EXISTS", QUEUE]).await, "Int(0)");
}

/// The first waiter learns when it may ask, and has the lock then; holders of a shared lock release it as ever.
#[tokio::test]
async fn waiters_learn_how_long_a_lock_is_left_free() {
    let bench = Bench::new().await;
    let (me, waiter) = owners();
    let mut inbox = Client::open(bench.redis.url()).unwrap().get_async_pubsub().await.unwrap();
    inbox.subscribe("polylock:inbox:here").await.unwrap();
    let (keys, info, mode, ttl) = (&bench.keys, "me", Mode::Exclusive, TTL);
    let (grace, inbox_name) = (Duration::from_secs(1), "polylock:inbox:here");
    let entry =
        Entry { owner: waiter, mode, grace, ttl, token_ttl: TokenTtl::USUAL, inbox: inbox_name, info }
            .to_string();
    let queue_up = async || {
        let ask = Ask { keys, owner: waiter, mode, ttl, info, entry: Some(&entry), is_confirmation: false };
        bench.server.ask(bench.server.moment(), &ask).await.unwrap()
    };
    bench.asked(me).await;
    assert!(matches!(queue_up().await, LockAnswer::Busy { position: Some(0), .. }));
    let free = bench.server.release(keys, me, Release::LeaveFree(MOMENT)).await.unwrap();
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
    let behind =
        |owner, inbox| Entry { owner, mode, grace, ttl, token_ttl: TokenTtl::USUAL, inbox, info }.to_string();
    for entry in [behind(OwnerId::random(), "polylock:inbox:gone"), behind(next, inbox_name)] {
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
    bench.server.release(keys, next, Some(&*behind(next, inbox_name))).await.unwrap();
    let LockAnswer::Busy { ends_in: Some(left), .. } = queue_up().await else { panic!("it is not free") };
    tokio::time::sleep(left + Duration::from_millis(5)).await;
    assert!(matches!(queue_up().await, LockAnswer::Granted(_)));
    assert_eq!(bench.server.release(keys, waiter, None).await.unwrap(), Some(true));

    let ask = Ask { keys, owner: me, mode: Mode::Shared, ttl, info, entry: None, is_confirmation: false };
    assert!(matches!(bench.server.ask(bench.server.moment(), &ask).await.unwrap(), LockAnswer::Granted(_)));
    assert_eq!(bench.server.release(keys, me, Release::LeaveFree(MOMENT)).await.unwrap(), Some(true));
    bench.asked(me).await;
}

#[tokio::test]
async fn a_lock_that_is_handed_over_to_one_that_has_left_goes_to_the_next_waiter() {
    let bench = Bench::new().await;
    let (me, ghost) = owners();
    let next = OwnerId::random();
    let _inbox = listen(&bench, &["inbox:1"]).await;
    bench.granted(me).await;
    assert!(!bench.queue_up(ghost, &Bench::entry(ghost, "inbox:1", 1)).await);
    assert!(!bench.queue_up(next, &Bench::entry(next, "inbox:1", 2)).await);
    assert!(bench.vacate(me).await);
    assert_eq!(bench.holder().await, Some(ghost));
    assert!(bench.vacate(ghost).await);
    assert_eq!(bench.holder().await, Some(next));
    assert!(!bench.vacate(ghost).await, "it is another's by now");
    assert_eq!(bench.holder().await, Some(next));
}

#[tokio::test]
async fn a_free_lock_is_a_plain_string_with_a_ttl() {
    let (bench, (me, other)) = (Bench::new().await, owners());
    let token = bench.asked(me).await;
    let value = bench.redis(&["GET", "lock:a"]).await;
    let since = value.strip_prefix(&format!("{me} {token} ")).and_then(|rest| rest.strip_suffix(" me"));
    assert_eq!(
        since.and_then(|since| since.parse().ok()).map(TokenBlock::start),
        Some(token.get()),
        "{value}"
    );
    assert!((15_000..=20_000).contains(&bench.pttl().await));
    // On one of several masters it tells more, as the last token does not.
    for fast in [false, true] {
        bench.redis(&["FLUSHALL"]).await;
        let claimed = match fast {
            true => bench.claim_fast(other, 1000).await.unwrap(),
            false => bench.claim(other, Some(1000)).await,
        };
        assert_eq!(claimed, granted(1000));
        assert_eq!(bench.redis(&["GET", "lock:a"]).await, format!("{other} {SINCE} me"));
        assert!((15_000..=20_000).contains(&bench.pttl().await));
        assert_eq!(bench.redis(&["ZSCORE", bench.keys.tokens(), "last"]).await, "1000");
        assert_eq!(bench.redis(&["ZCARD", bench.keys.tokens()]).await, "Int(1)");
        assert_eq!(bench.redis(&["EXISTS", &bench.keys.fence()]).await, "Int(0)");
    }
}

#[tokio::test]
async fn what_was_done_is_confirmation_also_when_the_script_of_another_call_cannot_be_loaded() {
    let (bench, (me, other)) = (Bench::new().await, owners());
    bench.asked(me).await;
    assert_eq!(bench.redis(&["ACL", "SETUSER", "default", "-script", "-eval"]).await, "OK");
    let extension = |owner, hold, ttl| Extension { keys: &bench.keys, owner, hold, ttl };
    // Nobody has made a reader of a writer on this server yet.
    let leases = [extension(me, Hold::Alone, TTL / 2), extension(other, Hold::Downgrading, TTL)];
    let [first, second] =
        bench.server.extend(bench.server.moment(), &leases).await.unwrap().try_into().unwrap();
    assert!(first.unwrap());
    assert!(bench.pttl().await <= 10_000);
    let error = second.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Denied, Outcome::NotApplied), "{error}");
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
        assert!(!bench.extend_vote(me, TTL).await, "{value:?}");
        assert!(!bench.raise_vote(me, 3000).await, "{value:?}");
        assert_eq!(bench.redis(&["ZSCORE", bench.keys.tokens(), "last"]).await, "1000", "{value:?}");
        assert_eq!(bench.claim_fast(me, 1).await, None, "{value:?}");
        assert_eq!((bench.redis(&["GET", "lock:a"]).await, bench.pttl().await), (value, -1));
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
        assert_eq!(bench.voter.claim(&claim.request(None)).await.unwrap(), granted(5000));
        let sight = bench.look_at_vote().await;
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
        assert!(matches!(bench.voter.claim(&claim.request(None)).await.unwrap(), LockAnswer::Granted(_)));
        assert!(bench.extend_vote(me, TTL).await && bench.vacate(me).await);
        let sight = bench.look_at_vote().await;
        let token = Some(Token::new(5008));
        let free = Inspection { kind: "none".into(), token, mode: sight.mode, ..Inspection::default() };
        assert_eq!(sight, free);
    }
}

#[tokio::test]
async fn tokens_grow_through_release_script_flush_and_the_loss_of_the_fence() {
    let bench = Bench::new().await;
    let mut last = Token::new(0);
    for round in 0..6 {
        match round {
            2 => drop(bench.redis(&["SCRIPT", "FLUSH"]).await),
            3 => drop(bench.redis(&["DEL", bench.keys.tokens()]).await),
            4 => drop(bench.redis(&["FLUSHALL"]).await),
            _ => {}
        }
        let owner = OwnerId::random();
        let token = bench.asked(owner).await;
        assert!(token > last, "round {round}: {token} after {last}");
        bench.server.release(&bench.keys, owner, None).await.unwrap();
        last = bench.granted(owner).await;
        assert!(last > token, "round {round}: {last} after {token}");
        assert!(bench.vacate(owner).await);
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
async fn a_floor_lifts_the_next_token_of_a_single_server() {
    let (bench, (me, other)) = (Bench::new().await, owners());
    let token = bench.asked(me).await;
    let raise = |owner, floor| {
        let (server, keys) = (&bench.server, &bench.keys);
        async move { server.raise(keys, owner, floor, TTL).await.unwrap() }
    };
    assert_eq!(bench.look().await.owner, me.to_string());
    let near = Token::new(token.get() + 1_000_000);
    assert!(!raise(other, Token::new(near.get() + 9000)).await);
    assert!(raise(me, near).await && raise(me, Token::new(2000)).await);
    assert_eq!(bench.look().await.token, Some(token), "that of the holder");
    let lasts = async || bench.redis.command(&["PTTL", bench.keys.tokens()]).await.unwrap().int().unwrap();
    assert!(lasts().await > 0, "a last token that was lifted stays forever");
    bench.server.release(&bench.keys, me, None).await.unwrap();
    assert!(bench.asked(other).await > near);
    bench.server.release(&bench.keys, other, None).await.unwrap();
    // A token that is ahead of the clock lasts until the clock can go on from there.
    let far = Token::new(5_000_000_000_000_000);
    let ahead = (far.get() - token.get()) as i64 / 1000 - 60_000;
    bench.asked(me).await;
    assert!(raise(me, far).await);
    assert!(lasts().await > ahead, "{}", lasts().await);
    bench.server.release(&bench.keys, me, None).await.unwrap();
    assert!(bench.asked(other).await > far);
    assert!(lasts().await > ahead, "{}", lasts().await);
}

#[tokio::test]
async fn a_fence_of_another_type_fails_before_anything_is_written() {
    let (bench, (me, _)) = (Bench::new().await, owners());
    bench.redis(&["HSET", bench.keys.tokens(), "some", "data"]).await;
    let (keys, mode) = (&bench.keys, Mode::Exclusive);
    let ask = Ask { keys, owner: me, mode, ttl: TTL, info: "", entry: None, is_confirmation: false };
    let claim = bench.claim_of(me, None).request(None);
    for error in [
        bench.server.ask(bench.server.moment(), &ask).await.unwrap_err(),
        bench.voter.claim(&claim).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unexpected, Outcome::NotApplied));
        assert!(error.to_string().contains("prefix"), "{error}");
        assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(0)");
    }
    // Without a script there is a lock until it is claimed with one, or released.
    assert_eq!(bench.claim_fast(me, 1000).await, None);
    assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(1)");
    let claim = bench.claim_of(me, Some(1000)).request(None);
    assert_eq!(bench.voter.claim(&claim).await.unwrap_err().kind(), ErrorKind::Unexpected);
    assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(0)");
    assert_eq!(bench.redis(&["HGET", bench.keys.tokens(), "some"]).await, "data");
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
            let error = bench.voter.claim(&claim).await.unwrap_err();
            assert_eq!(
                (error.kind(), error.outcome()),
                (ErrorKind::Unexpected, Outcome::NotApplied),
                "{last}: {error}"
            );
            assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(0)", "{last}");
        }
        assert_eq!(bench.redis(&["ZSCORE", bench.keys.tokens(), "last"]).await, before);
        assert_eq!(bench.look_at_vote().await.kind, "none", "{last}");
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
        let error = bench.voter.claim(&claim).await.unwrap_err();
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
        let rights = format!("on nopass ~* &* +@all -{command}");
        let redis = RedisServer::builder().user("ann", &rights).start().await.unwrap();
        let ann = format!("redis://ann:x@{}", redis.addr()).into_connection_info().unwrap();
        let bench = Bench::of(redis, ann);
        let (me, _) = owners();
        let fast = bench.claim_of(me, Some(1000)).fast().unwrap();
        assert_eq!(bench.voter.claim_fast(&fast).await.unwrap(), None, "{command}");
        let claim = bench.claim_of(me, Some(1000)).request(None);
        let error = bench.voter.claim(&claim).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{command}: {error}");
        assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(0)", "{command}");
    }
}

#[tokio::test]
async fn plain_clients_exclude_us_and_are_excluded() {
    let (bench, (me, _)) = (Bench::new().await, owners());
    bench.redis(&["SET", "lock:a", "theirs", "NX"]).await;
    let busy = LockAnswer::Busy { ends_in: None, foreign_type: None, position: None };
    assert_eq!((bench.ask(me).await, bench.claim(me, None).await), (busy.clone(), busy));
    assert_eq!(bench.claim_fast(me, 1000).await, None);
    for sight in [bench.look().await, bench.look_at_vote().await] {
        assert_eq!((sight.kind.as_str(), sight.value.as_str()), ("string", "theirs"));
    }
    assert_eq!(bench.server.break_lock(&bench.keys).await.unwrap(), "string");
    bench.asked(me).await;
    assert_eq!(bench.redis(&["SET", "lock:a", "theirs", "NX", "PX", "1000"]).await, "Nil");
    assert_eq!(bench.server.break_lock(&bench.keys).await.unwrap(), "string");
    bench.granted(me).await;
    assert_eq!(bench.redis(&["SET", "lock:a", "theirs", "NX", "PX", "1000"]).await, "Nil");
    assert_eq!(bench.server.break_lock(&bench.keys).await.unwrap(), "string");
    assert_eq!(bench.claim_fast(me, u64::MAX >> 12).await, Some(granted(u64::MAX >> 12)));
    assert_eq!(bench.redis(&["SET", "lock:a", "theirs", "NX", "PX", "1000"]).await, "Nil");
}

#[tokio::test]
async fn a_claim_that_arrives_after_it_was_undone_is_undone_again() {
    let (bench, (me, _)) = (Bench::new().await, owners());
    let terms = TakeBack::new(&bench.keys, TTL, Sent::InDoubt { connection: None });
    let undo = bench.server.client.take_back(terms, || bench.server.release(&bench.keys, me, None));
    let late = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        bench.redis(&["SET", "lock:a", &format!("{me} 5 5 me"), "NX", "PX", "20000"]).await
    };
    let (found, _) = tokio::time::timeout(TTL / 2, async { tokio::join!(undo, late) }).await.unwrap();
    assert_eq!(found, Some(true));
    assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(0)");
}

/// Somebody listens on these channels.
async fn listen(bench: &Bench, channels: &[&str]) -> redis::aio::PubSub {
    let client = Client::open(bench.redis.url()).unwrap();
    let mut connection = client.get_async_pubsub().await.unwrap();
    for channel in channels {
        connection.subscribe(channel).await.unwrap();
    }
    connection
}

#[tokio::test]
async fn a_master_hands_the_lock_over_to_the_first_waiter_for_the_grace_period() {
    let (bench, (holder, other)) = (Bench::new().await, owners());
    let mut inboxes = listen(&bench, &["inbox:1", "inbox:2"]).await;
    let [dead, first, second] = [0; 3].map(|_| OwnerId::random());
    // Who came first counts, not who asked first; the one without a process is passed over.
    let waiters = [(second, "inbox:2", 3), (first, "inbox:1", 2), (dead, "inbox:dead", 1)]
        .map(|(owner, inbox, since)| (owner, Bench::entry(owner, inbox, since)));
    bench.granted(holder).await;
    for (owner, entry) in &waiters {
        assert!(!bench.queue_up(*owner, entry).await);
        assert!(!bench.queue_up(*owner, entry).await, "it stands there once");
    }
    assert!(!bench.vacate(OwnerId::random()).await, "not the holder's");
    assert_eq!(bench.holder().await, Some(holder));
    assert!(bench.vacate(holder).await);
    let message = { futures_util::StreamExt::next(&mut inboxes.on_message()).await.unwrap() };
    let told: String = message.get_payload().unwrap();
    let token = bench.redis(&["ZSCORE", bench.keys.tokens(), "last"]).await;
    assert_eq!((message.get_channel_name(), told), ("inbox:1", format!("passed {first} {token} lock:a")));
    assert_eq!(bench.redis(&["GET", "lock:a"]).await, format!("{first} {PROPOSED} me"));
    assert!((1..=VOTE_GRACE.as_millis() as i64).contains(&bench.pttl().await));
    assert!(matches!(bench.claim(other, None).await, LockAnswer::Busy { foreign_type: None, .. }));

    // It is the lock of that waiter as any other: it is confirmed, or asked for again, and released.
    assert!(bench.extend_vote(first, TTL).await);
    assert!(bench.pttl().await > VOTE_GRACE.as_millis() as i64);
    assert!(bench.vacate(first).await);
    assert_eq!(bench.holder().await, Some(second));
    assert!(bench.queue_up(second, &waiters[0].1).await);
    assert!(bench.pttl().await > VOTE_GRACE.as_millis() as i64);
    assert!(bench.vacate(second).await);
    assert_eq!(bench.redis(&["EXISTS", "lock:a", &bench.keys.line()]).await, "Int(0)");
}

#[tokio::test]
async fn masters_that_know_the_same_tokens_hand_over_with_the_same() {
    let (bench, (holder, waiter)) = (Bench::new().await, owners());
    let _inbox = listen(&bench, &["inbox:1"]).await;
    let entry = Bench::entry(waiter, "inbox:1", 1);
    let after = |token| TokenBlock::end(token) + 1;
    for (last, minted) in [(1, PROPOSED), (PROPOSED, after(PROPOSED)), (PROPOSED + 23, after(PROPOSED + 23))]
    {
        bench.redis(&["FLUSHALL"]).await;
        assert_eq!(bench.claim(holder, Some(last)).await, granted(last));
        assert!(!bench.queue_up(waiter, &entry).await);
        assert!(bench.vacate(holder).await);
        assert_eq!(bench.redis(&["ZSCORE", bench.keys.tokens(), "last"]).await, minted.to_string());
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
    let redis = RedisServer::builder().user("ann", "on nopass ~* &* +@all -publish").start().await.unwrap();
    let ann = format!("redis://ann:x@{}", redis.addr()).into_connection_info().unwrap();
    let bench = Bench::of(redis, ann);
    let (holder, waiter) = owners();
    bench.granted(holder).await;
    assert!(!bench.queue_up(waiter, &Bench::entry(waiter, "inbox:1", 1)).await);
    assert!(bench.vacate(holder).await);
    assert_eq!(bench.redis(&["ZCARD", &bench.keys.line()]).await, "Int(1)");
    assert_eq!(bench.redis(&["EXISTS", "lock:a"]).await, "Int(0)", "it is handed over to none");
    let left: i64 = bench
        .redis(&["PTTL", &bench.keys.line()])
        .await
        .trim_matches(|c: char| !c.is_ascii_digit())
        .parse()
        .unwrap();
    assert!((1..=5_000).contains(&left), "{left}");
}
