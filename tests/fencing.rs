//! Resources that check fencing tokens: what `docs/FENCING.md` shows runs here, on real servers.

#[path = "fencing/page.rs"]
mod page;
#[path = "fencing/postgres.rs"]
mod postgres;
#[path = "fencing/redis.rs"]
mod redis;
#[path = "fencing/s3.rs"]
mod s3;
#[path = "fencing/zookeeper.rs"]
mod zookeeper;
