//! Real servers, a TCP fault proxy, a conformance suite and history checks for distributed locks.
//!
//! A lock is only as good as the faults that it was tested under. This crate has what such tests need, for the
//! backends of polylock and for anybody else's:
//!
//! * [`redis`] and [`zookeeper`]: real servers as child processes (also behind sentinels and in a cluster), on ports and in directories of their own, that can
//!   be killed, restarted with or without their data, and frozen. They are up in milliseconds (Redis) or about half
//!   a second (ZooKeeper), so every test can have its own, and they die with the test whatever happens to it.
//! * `fake`, with the feature of that name: a Redis in memory, on tokio's clock, over links with faults by seed.
//! * `simulation`, with the same feature: what runs in virtual time have in common, whatever the backend.
//! * [`proxy`]: a TCP proxy that delays, holds, loses, resets, and swallows the reply to a chosen request.
//! * [`process`]: worker processes that speak JSON lines and can be frozen and killed, for tests across processes.
//! * [`history`] and [`check`](mod@check): what happened in all processes on one clock, and whether it was right.
//! * [`Log`]: what the locks log.
//! * [`cancel`]: dropping a future after every number of polls.
//!
//! A server that is not installed is an error that names the package; nothing is skipped in silence.
//! The crate knows no lock driver and runs on Linux.

pub mod cancel;
#[cfg(feature = "tls")]
mod certificates;
pub mod check;
mod cluster;
pub mod conformance;
mod error;
#[cfg(feature = "fake")]
pub mod fake;
pub mod history;
mod launch;
mod log;
mod port;
pub mod process;
pub mod proxy;
pub mod redis;
mod resp;
mod sentinel;
#[cfg(feature = "fake")]
pub mod simulation;
pub mod zookeeper;

pub use cancel::{cancel_after, for_each_poll_count};
#[cfg(feature = "tls")]
pub use certificates::Certificates;
pub use check::check;
pub use cluster::RedisCluster;
pub use error::{Error, Result};
#[cfg(feature = "fake")]
pub use fake::FakeRedis;
pub use history::{Event, EventKind, History, Recorder, now_ns};
pub use log::Log;
pub use process::{Child, Worker};
pub use proxy::FaultProxy;
pub use redis::{RedisFive, RedisServer};
pub use sentinel::RedisSentinel;
pub use zookeeper::{ZkEnsemble, ZooKeeper};
