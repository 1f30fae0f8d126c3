//! ZooKeeper compares tokens, or the lock itself.

use lock_testkit::{RedisServer, ZooKeeper};
use polylock::{Committed, ErrorKind, FencedExt, Guard, Locks, Token};
use zookeeper_client::{Acls, Client, CreateMode, Error};

/// Writes while the lock is held, or not at all. For a `zk://` lock and nodes of the same ensemble.
async fn write_while_held(guard: &Guard, path: &str, value: &str) -> polylock::Result<bool> {
    let writes = guard.fenced()?.set(path, value, None);
    Ok(matches!(writes.commit().await?, Committed::Applied(_)))
}

/// Changes the value of a node, and refuses all smaller tokens from then on. `None`: a later holder was here, and nothing was
/// written. Else the new value. For a lock of any backend.
async fn update(
    client: &Client,
    path: &str,
    token: Token,
    change: impl Fn(&str) -> String,
) -> Result<Option<String>, Error> {
    loop {
        let (data, stat) = client.get_data(path).await?;
        let data = String::from_utf8_lossy(&data);
        let (last, value) = token_and_value(&data);
        if last > token.get() {
            return Ok(None);
        }
        let value = change(value);
        let written = client.set_data(path, format!("{token} {value}").as_bytes(), Some(stat.version)).await;
        match written {
            Ok(_) => return Ok(Some(value)),
            Err(Error::BadVersion) => {} // somebody wrote in between: compare again
            Err(error) => return Err(error),
        }
    }
}

/// The parts of `34 paid`. A node without a token has the token 0.
fn token_and_value(data: &str) -> (u64, &str) {
    let parts = data.split_once(' ');
    parts.and_then(|(token, value)| Some((token.parse().ok()?, value))).unwrap_or((0, data))
}

#[tokio::test]
async fn a_write_after_the_lock_was_lost_is_refused() {
    let server = ZooKeeper::start().await.unwrap();
    let client = Client::connect(&server.connect_string()).await.unwrap();
    create(&client, "/order", "open").await;
    let locks = Locks::connect(&server.url()).await.unwrap();

    let stale = locks.mutex("order").acquire().await.unwrap();
    assert!(write_while_held(&stale, "/order", "paid").await.unwrap());
    assert!(write_while_held(&stale, "/order", "packed").await.unwrap());
    assert!(locks.break_lock("order").await.unwrap());
    let current = locks.mutex("order").acquire().await.unwrap();
    let error = write_while_held(&stale, "/order", "open").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(write_while_held(&current, "/order", "sent").await.unwrap());
    assert_eq!(client.get_data("/order").await.unwrap().0, b"sent");
}

#[tokio::test]
async fn a_late_write_is_refused() {
    let (server, redis) = tokio::join!(ZooKeeper::start(), RedisServer::start());
    let (server, redis) = (server.unwrap(), redis.unwrap());
    let client = Client::connect(&server.connect_string()).await.unwrap();
    create(&client, "/order", "new since Monday").await;
    let locks = Locks::connect(&redis.url()).await.unwrap();

    let stale = locks.mutex("order").acquire().await.unwrap();
    assert!(locks.break_lock("order").await.unwrap());
    let current = locks.mutex("order").acquire().await.unwrap();
    let set =
        async |token, value: &str| update(&client, "/order", token, |_| value.to_owned()).await.unwrap();
    let claim = async |token| update(&client, "/order", token, str::to_owned).await.unwrap();
    assert_eq!(claim(stale.token()).await.as_deref(), Some("new since Monday"));
    assert_eq!(set(stale.token(), "paid").await.as_deref(), Some("paid"));
    assert_eq!(claim(current.token()).await.as_deref(), Some("paid"));
    assert_eq!(set(stale.token(), "late").await, None);
    assert_eq!(claim(stale.token()).await, None);
    assert_eq!(set(current.token(), "packed").await.as_deref(), Some("packed"));
    assert_eq!(set(current.token(), "sent").await.as_deref(), Some("sent"));
    let expected = format!("{} sent", current.token());
    assert_eq!(client.get_data("/order").await.unwrap().0, expected.as_bytes());
}

/// Both read the node before either writes it: an update is lost if the version is not checked.
#[tokio::test]
async fn no_update_of_one_holder_is_lost() {
    let server = ZooKeeper::start().await.unwrap();
    let servers = server.connect_string();
    let (one, other) = (Client::connect(&servers).await.unwrap(), Client::connect(&servers).await.unwrap());
    create(&one, "/count", "0").await;
    let count = async |client: &Client| {
        for _ in 0..50 {
            let add = |value: &str| (value.parse::<u32>().unwrap() + 1).to_string();
            update(client, "/count", Token::new(7), add).await.unwrap().unwrap();
        }
    };
    tokio::join!(count(&one), count(&other));
    assert_eq!(one.get_data("/count").await.unwrap().0, b"7 100");
}

/// Both read the node before either writes it.
#[tokio::test]
async fn of_two_writes_at_once_the_larger_token_stays() {
    let server = ZooKeeper::start().await.unwrap();
    let servers = server.connect_string();
    let (one, other) = (Client::connect(&servers).await.unwrap(), Client::connect(&servers).await.unwrap());
    for round in 0..50 {
        let path = format!("/order-{round}");
        create(&one, &path, "").await;
        let (small, large) = tokio::join!(
            update(&one, &path, Token::new(1), |_| "small".to_owned()),
            update(&other, &path, Token::new(2), |_| "large".to_owned())
        );
        small.unwrap();
        assert_eq!(large.unwrap().as_deref(), Some("large"));
        assert_eq!(one.get_data(&path).await.unwrap().0, b"2 large");
    }
}

async fn create(client: &Client, path: &str, data: &str) {
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create(path, data.as_bytes(), &options).await.unwrap();
}
