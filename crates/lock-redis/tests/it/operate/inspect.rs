//! Looking at locks, breaking the one that was seen, and listing them.

use lock_core::migration::MigrationSource;
use lock_core::{ErrorKind, GuardState, LockMode, Locks, Token};
use lock_testkit::proxy::{Direction, Then, redis_command};
use lock_testkit::{RedisServer, give_back, soon, take};

use crate::common::{Link, RECIPES, backend, client, connect, url_without};

async fn names(locks: &Locks, prefix: &str) -> Vec<String> {
    let names = soon(locks.list(prefix)).await.unwrap();
    names.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_permit_and_foreign_keys_are_shown_as_what_they_are() {
    let redis = RedisServer::start().await.unwrap();
    let locks = connect(&redis.url()).await;
    let _permit = locks.semaphore("a", 3).acquire().await.unwrap();
    let state = locks.inspect("a").await.unwrap();
    assert_eq!(state.holders[0].mode, LockMode::permit(None), "{state:?}");
    for (command, end) in [
        (&["SET", "lock:theirs", "x", "PX", "9000"][..], Some(9)),
        (&["SET", "lock:theirs", "x"], None),
        (&["HSET", "lock:hash", "x", "y"], None),
    ] {
        redis.call(command).await;
        let state = locks.inspect(command[1].trim_start_matches("lock:")).await.unwrap();
        let [holder] = &state.holders[..] else { panic!("{state:?}") };
        assert!(holder.owner().is_none() && holder.token.is_none(), "{state:?}");
        let remaining = holder.remaining.map(|left| left.as_secs_f64().round() as u64);
        assert_eq!((holder.mode, remaining), (LockMode::Exclusive, end), "{state:?}");
    }
    assert!(!locks.break_lock_if("theirs", Token::new(1)).await.unwrap(), "it has no token");
    let error = locks.break_lock_if("hash", Token::new(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn a_list_has_all_names_with_the_prefix_and_no_helper_keys() {
    let redis = RedisServer::start().await.unwrap();
    let all = connect(&format!("{}?prefix=", redis.url())).await;
    let locks = connect(&redis.url()).await;
    let _held = take(&locks, "held").await;
    let _shared = locks.rw("shared").read().await.unwrap();
    let script = "for i = 1, 3000 do redis.call('SET', 'lock:many/' .. i, 'x') end redis.call('SET', 'lock:\\255', 'x')
        redis.call('SET', 'lock:' .. string.rep('x', 1025), 'x')  redis.call('HSET', 'lock:hash', 'x', 'y')";
    redis.call(&["EVAL", script, "0"]).await;
    let mut many: Vec<_> = (1..=3_000).map(|number| format!("many/{number}")).collect();
    many.sort_unstable();
    assert_eq!(names(&locks, "many/").await, many);
    let others: Vec<_> =
        names(&locks, "").await.into_iter().filter(|name| !name.starts_with("many/")).collect();
    assert_eq!(others, ["hash", "held", "shared"], "no name is longer than 1024 bytes, or not UTF-8");
    let all = names(&all, "").await;
    assert!(all.contains(&"lock:held".into()) && all.iter().all(|name| name.starts_with("lock:")), "{all:?}");
}

#[tokio::test]
async fn a_list_that_is_too_long_is_refused() {
    let redis = RedisServer::start().await.unwrap();
    let locks = connect(&redis.url()).await;
    for from in ["0", "50001"] {
        let script = "for i = ARGV[1], ARGV[1] + 50000 do redis.call('SET', 'lock:' .. i, 'x') end";
        redis.call(&["EVAL", script, "0", from]).await;
    }
    let error = soon(locks.list("")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("longer prefix"), "{error}");
    assert_eq!(names(&locks, "9999").await.len(), 11);
}

/// What stands beside a lock stays for a week after it.
#[tokio::test]
async fn helper_keys_do_not_count_towards_the_limit_of_a_list() {
    let redis = RedisServer::start().await.unwrap();
    let locks = connect(&format!("{}?prefix=", redis.url())).await;
    let script = "for i = 1, 22000 do redis.call('SET', 'polylock:fence:{' .. ARGV[1] .. i .. '}', '1') end
        redis.call('SET', 'held/' .. ARGV[1], 'x')";
    for part in ["a", "b", "c", "d", "e"] {
        redis.call(&["EVAL", script, "0", part]).await;
    }
    assert_eq!(names(&locks, "").await.len(), 5);
}

#[tokio::test]
async fn a_list_begins_anew_when_its_connection_breaks_and_not_for_ever() {
    // Time: it is not answered.
    let link = Link::with("command_timeout=1s").await;
    let script = "for i = 1, 5000 do redis.call('SET', 'lock:' .. i, 'x') end";
    link.redis.call(&["EVAL", script, "0"]).await;
    link.proxy.swallow_when(redis_command("SCAN"), Then::Reset);
    assert_eq!(names(&link.locks, "").await.len(), 5_000);
    link.proxy.black_hole(Direction::ToClient, true);
    let error = soon(link.locks.list("")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.operation(), Some("list"));
}

#[tokio::test]
async fn without_the_right_to_scan_the_error_says_so() {
    let redis = RedisServer::start().await.unwrap();
    let locks = connect(&url_without(&redis, &["-scan"]).await).await;
    let error = locks.list("").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("+scan"), "{error}");
}

/// A reply of that size would end the connection of all locks.
#[tokio::test]
async fn a_value_of_a_neighbour_of_any_size_is_no_trouble() {
    let redis = RedisServer::start().await.unwrap();
    for recipe in RECIPES {
        let locks = client(&redis, &format!("ttl=60s&command_timeout=20s&{recipe}")).await;
        let guard = take(&locks, "a").await;
        let connections = redis.text(&["INFO", "stats"]).await;
        let made =
            |stats: &str| stats.lines().find(|line| line.starts_with("total_connections")).map(str::to_owned);
        redis.call(&["SETRANGE", "lock:huge", "68157440", "x"]).await;
        assert!(locks.inspect("huge").await.unwrap().is_held());
        // It claims to be the tombstone of a lock that has moved.
        redis.call(&["SETRANGE", "lock:huge", "0", "polylock:moved "]).await;
        drop(soon(locks.mutex("huge").try_acquire()).await);
        drop(locks.inspect("huge").await);
        let (backend, _) = backend(&format!("{}?command_timeout=20s&{recipe}", redis.url())).await;
        drop(soon(MigrationSource::tombstones(&*backend, "")).await);
        soon(backend.longest_lease()).await.unwrap();
        assert!(guard.is_valid());
        drop(backend);
        // Those of the look itself, and of the other client.
        let now = redis.text(&["INFO", "stats"]).await;
        let [before, now] = [connections, now].map(|stats| {
            made(&stats).and_then(|line| line.trim().split(':').nth(1)?.parse::<u32>().ok()).unwrap()
        });
        assert!(now <= before + 12, "{recipe}: the connections were lost: {before} before, {now} now");
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        give_back(guard).await;
        redis.call(&["FLUSHALL"]).await;
    }
}
