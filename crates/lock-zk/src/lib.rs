//! Distributed locks on a ZooKeeper ensemble.
//!
//! A lock is a directory; an ephemeral sequential node in it is a position in the wait queue. The lowest node holds the lock,
//! and every other waiter watches the one ahead (the "Locks" recipe of ZooKeeper's documentation, with the node names of
//! Apache Curator's `InterProcessMutex`). The servers delete the nodes of a client with its session, so a lock outlives a
//! holder that died by one session timeout. [`ZkConfig`] is the entry.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod capabilities;
mod config;
mod connect;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod nodes;
mod operate;
mod recipes;
mod sessions;
mod wire;

use lock_core::poison;

pub use backend::Zk;
pub use config::ZkConfig;
pub use error::BACKEND;
pub use nodes::acl::NodeAcl;
pub use nodes::node_name::ZkLayout;
pub use operate::fenced::{Committed, FencedExt, FencedWriter};
pub use recipes::recipe::{ZkRecipe, ZkWait};
pub use sessions::ensemble::{Answer, Change, Ensemble, SessionClient, States, Watching};
pub use wire::driver::DriverSession;
pub use wire::reachability::unreachable;
pub use zookeeper_client;
