//! One server: what a URL may lead to, and what is refused.

use lock_core::{ErrorKind, Outcome};
use lock_redis::RedisConfig;
use lock_testkit::{RedisCluster, RedisServer, give_back, take};

use crate::common::pretend::{bulk, pretend};
use crate::common::{RECIPES, connect, try_connect, works};

#[tokio::test]
#[ignore = "full: several servers"]
async fn unix_sockets() {
    let server = RedisServer::builder().unix_socket().start().await.unwrap();
    let url = format!("redis+unix://{}", server.socket().display());
    works(&url).await;
    let guard = take(&connect(&format!("{url}?db=3")).await, "in3").await;
    assert!(server.text(&["INFO", "keyspace"]).await.contains("db3:"));
    give_back(guard).await;
    let error = try_connect("redis+unix:///no/such/socket").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("/no/such/socket"), "{error}");
}

#[tokio::test]
#[ignore = "full: several servers"]
async fn databases_are_apart() {
    let server = RedisServer::start().await.unwrap();
    let [five, six] = ["5", "6"].map(|database| format!("{}/{database}", server.url()));
    works(&five).await;
    let held = take(&connect(&five).await, "a").await;
    give_back(take(&connect(&six).await, "a").await).await;
    give_back(held).await;
    let error = try_connect(&format!("{}/99", server.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("databases"), "{error}");
}

#[tokio::test]
#[ignore = "full: several servers"]
async fn a_pool_leads_to_one_server_only() {
    let pool = deadpool_redis::Config::from_url("redis://h").create_pool(None).unwrap();
    for url in ["redis+cluster://a:1,b:2", "redis+sentinel://a:1/main"] {
        let error = RedisConfig::from_url(url).unwrap().pool(pool.clone()).connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("pool"), "{error}");
    }
}

#[tokio::test]
#[ignore = "full: several servers"]
async fn a_server_that_is_too_old_is_refused_with_its_version() {
    for (version, refused) in [("5.0.7", true), ("6.0.16", true), ("6.2.0", false)] {
        // It knows no HELLO.
        let info = format!("# Server\r\nredis_version:{version}\r\n");
        let addr = pretend(move |command| match command {
            "HELLO" => String::from("-ERR unknown command `HELLO`\r\n"),
            "INFO" => bulk(&info),
            _ => String::from("+OK\r\n"),
        });
        let connected = try_connect(&format!("redis://{}", addr.await)).await;
        assert_eq!(connected.is_err(), refused, "{version}");
        if let Err(error) = connected {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(version) && error.to_string().contains("6.2"), "{error}");
        }
    }
}

#[tokio::test]
#[ignore = "full: several servers"]
async fn a_server_without_its_replicas_is_to_be_tried_again() {
    if RedisServer::lacks("refusal of the writes of scripts while replicas are missing", (7, 0)) {
        return;
    }
    let server = RedisServer::builder().config("min-replicas-to-write", "1").start().await.unwrap();
    let locks = connect(&server.url()).await;
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error}");
    assert!(error.to_string().contains("NOREPLICAS") && error.to_string().contains("try again"), "{error}");
    server.call(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    give_back(take(&locks, "a").await).await;
}

#[tokio::test]
#[ignore = "full: several servers"]
async fn a_master_that_becomes_a_replica_is_reported_and_retried() {
    let (server, other) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let locks = connect(&server.url()).await;
    give_back(take(&locks, "a").await).await;
    server.call(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]).await;
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied));
    assert!(error.to_string().contains("replica"), "{error}");
    let error = try_connect(&server.url()).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("replica"), "{error}");
    server.call(&["REPLICAOF", "NO", "ONE"]).await;
    give_back(take(&locks, "a").await).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_node_of_a_cluster_is_no_server_of_its_own() {
    let cluster = RedisCluster::start().await.unwrap();
    let mut refused = 0;
    for master in cluster.masters() {
        if let Err(error) = connect(&master.url()).await.mutex("a").try_acquire().await {
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert!(error.to_string().contains("redis+cluster://"), "{error}");
            refused += 1;
        }
    }
    assert_eq!(refused, 2);
    // Nor is a server a cluster.
    let server = RedisServer::start().await.unwrap();
    let error = try_connect(&format!("redis+cluster://{}", server.addr())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("redis://"), "{error}");
}

/// A server that has all slots is reached by a URL of one server, too.
#[tokio::test]
async fn names_whose_helpers_would_be_elsewhere_are_refused_by_any_server_in_cluster_mode() {
    let cluster = RedisCluster::start_n(1, false).await.unwrap();
    let server = &cluster.masters()[0];
    for recipe in RECIPES {
        for url in [server.url(), cluster.url()] {
            let locks = connect(&format!("{url}?{recipe}")).await;
            // From now on a free lock is acquired without a script.
            for name in ["{a}b", "{a}b", "a{b}c", "{{a}}", "a{b"] {
                give_back(take(&locks, name).await).await;
            }
            for name in ["a}b", "{}a", "a{}b"] {
                for error in [
                    locks.mutex(name).try_acquire().await.map(drop).unwrap_err(),
                    locks.inspect(name).await.map(drop).unwrap_err(),
                ] {
                    assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
                    let text = error.to_string();
                    assert!(text.contains("slot") && text.contains("{orders}"), "{error}");
                }
                assert!(!server.has_key(&format!("lock:{name}")).await, "{recipe}: nothing is left");
            }
        }
    }
}
