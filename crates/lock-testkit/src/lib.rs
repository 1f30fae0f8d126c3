//! Real servers, a TCP fault proxy, a conformance suite and history checks for distributed locks.
//!
//! A lock is only as good as the faults that it was tested under. This crate has what such tests need, for the backends of
//! polylock and for others:
//!
//! * [`redis`] and [`zookeeper`]: real servers as child processes, on their own ports and in their own directories. They can
//!   be killed, restarted with or without their data, and stopped. They start in milliseconds (Redis) or half a second
//!   (ZooKeeper), so that every test can have its own, and end with the test whatever happens to it.
//! * [`etcd`]: a real etcd in the same way, of one member or of three.
//! * [`mariadb`]: a real MariaDB server.
//! * [`postgres`]: a real PostgreSQL server, alone or with a standby.
//! * `fake`, with the feature of that name: a Redis in memory, on tokio's clock, over links with faults by seed.
//! * `simulation`, with the same feature: backends in virtual time.
//! * `stories`, with the feature `models`: models that are searched exhaustively, and their counterexamples in the docs.
//! * [`proxy`]: a TCP proxy that delays, holds, loses, resets, and swallows the reply to a chosen request; and one by which
//!   clients share a connection.
//! * [`Worker`]: processes that speak JSON lines and can be stopped and killed, for tests across processes.
//! * [`conformance`]: the test suite of all backends.
//! * [`history`] and [`checker`]: the events of all processes on one clock, and whether they are correct.
//! * [`LogCapture`]: the log lines of the locks.
//! * [`by_tier`]: how much a test tries.
//! * [`cancel`]: drops a future after every number of polls.
//! * [`take`], [`queue_up`], [`hand_over`], [`until`], [`soon`] and others: the small steps of many tests.
//!
//! A server that is not installed is an error that names the package; no test is skipped silently. `REDIS_SERVER` and
//! `ZOOKEEPER_CLASSPATH` name other releases of servers, and [`RedisServer::lacks`] leaves out tests of what a release lacks.
//! The crate depends on no lock driver and runs on Linux.

pub mod checker;
pub mod conformance;
mod error;
#[cfg(feature = "fake")]
pub mod fake;
mod helpers;
pub mod history;
pub mod proxy;
mod servers;
#[cfg(feature = "fake")]
pub mod simulation;
#[cfg(feature = "models")]
pub mod stories;
#[cfg(test)]
mod tests;
mod worker;

pub use helpers::cancel;
pub use servers::{etcd, mariadb, postgres, process, redis, zookeeper};

pub use checker::check;
pub use error::{Error, Result};
#[cfg(feature = "fake")]
pub use fake::FakeRedis;
pub use helpers::cancel::{cancel_after, for_each_poll_count};
pub use helpers::log_capture::LogCapture;
pub use helpers::migration::migration_url;
pub use helpers::steps::{
    PATIENCE, acquiring, come, crowd, ended, give_back, hand_over, is_renewed, queue_up, soon, take, until,
};
pub use helpers::tier::by_tier;
pub use history::{EventKind, History, Recorder, now_ns};
pub use proxy::{FaultProxy, Multiplexer};
#[cfg(feature = "tls")]
pub use servers::certificates::Certificates;
pub use servers::etcd::{EtcdCluster, EtcdOptions, EtcdServer};
pub use servers::mariadb::{MariadbOptions, MariadbPair, MariadbServer};
pub use servers::pgbouncer::PgBouncer;
pub use servers::postgres::{PostgresOptions, PostgresPair, PostgresServer};
pub use servers::redis::{RedisCluster, RedisFive, RedisSentinel, RedisServer};
pub use servers::s3::S3Server;
pub use servers::secret_file::SecretFile;
pub use servers::zookeeper::{ZkEnsemble, ZooKeeper};
pub use worker::Worker;
