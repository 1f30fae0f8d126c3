//! The example programs run on every backend: only the URL differs.
#![allow(dead_code, unreachable_pub, reason = "the programs have a main of their own")]

#[path = "../../examples/memory.rs"]
mod memory;
#[path = "../../examples/own_registers.rs"]
mod own_registers;
#[path = "../../examples/redis.rs"]
mod redis;
#[path = "../../examples/redlock.rs"]
mod redlock;
#[path = "../../examples/zk.rs"]
mod zk;

use lock_testkit::{RedisFive, RedisServer, ZooKeeper};

#[test]
fn the_store_of_ones_own_runs() {
    own_registers::main().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_runs_on_every_backend() {
    let (one, five) = (RedisServer::start().await.unwrap(), RedisFive::start().await.unwrap());
    let ensemble = ZooKeeper::start().await.unwrap();
    for url in ["memory://".to_owned(), one.url(), five.url(), ensemble.url()] {
        let failed = |error| panic!("{url}: {error}");
        memory::run(&url).await.unwrap_or_else(failed);
        redis::run(&url).await.unwrap_or_else(failed);
        redlock::run(&url).await.unwrap_or_else(failed);
        zk::run(&url).await.unwrap_or_else(failed);
    }
}
