//! Redis compares tokens.

use std::sync::LazyLock;

use lock_testkit::RedisServer;
use polylock::{Locks, Token};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Script};

static WRITE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("write.lua")));

/// Reads a value, and refuses all smaller tokens from then on. `None`: a later holder was here.
async fn claim(
    connection: &mut MultiplexedConnection,
    key: &str,
    token: Token,
) -> RedisResult<Option<Vec<Option<String>>>> {
    WRITE.key(key).arg(token.get()).invoke_async(connection).await
}

/// Writes a value. `false`: a later holder was here, and nothing was written.
async fn write(
    connection: &mut MultiplexedConnection,
    key: &str,
    value: &str,
    token: Token,
) -> RedisResult<bool> {
    let written: Option<Vec<String>> =
        WRITE.key(key).arg(token.get()).arg(value).invoke_async(connection).await?;
    Ok(written.is_some())
}

#[tokio::test]
async fn a_late_write_is_refused() {
    let server = RedisServer::start().await.unwrap();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let mut connection = connect(&server).await;

    let stale = locks.mutex("order/7").acquire().await.unwrap();
    assert_eq!(claim(&mut connection, "order/7", stale.token()).await.unwrap(), Some(vec![None]));
    assert!(locks.break_lock("order/7").await.unwrap());
    let current = locks.mutex("order/7").acquire().await.unwrap();
    assert!(write(&mut connection, "order/7", "paid", current.token()).await.unwrap());
    assert!(!write(&mut connection, "order/7", "open", stale.token()).await.unwrap());
    assert_eq!(claim(&mut connection, "order/7", stale.token()).await.unwrap(), None);
    assert!(write(&mut connection, "order/7", "sent", current.token()).await.unwrap());
    let value = claim(&mut connection, "order/7", current.token()).await.unwrap();
    assert_eq!(value, Some(vec![Some("sent".to_owned())]));
}

/// Tokens of a ZooKeeper lock have the epoch of the leader in their upper half.
#[tokio::test]
async fn tokens_of_any_size_are_compared_as_numbers() {
    let server = RedisServer::start().await.unwrap();
    let mut connection = connect(&server).await;
    let ascending = [1, 9, 10, 1 << 53, (1 << 53) + 1, i64::MAX as u64 - 1, i64::MAX as u64];
    for pair in ascending.windows(2) {
        let [smaller, larger] = [pair[0], pair[1]].map(Token::new);
        let key = larger.to_string();
        assert!(write(&mut connection, &key, "first", smaller).await.unwrap(), "{smaller}");
        assert!(write(&mut connection, &key, "second", larger).await.unwrap(), "{larger}");
        assert!(!write(&mut connection, &key, "late", smaller).await.unwrap(), "{smaller} after {larger}");
    }
}

async fn connect(server: &RedisServer) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}
