//! Distributed locks on a ZooKeeper ensemble.
//!
//! A lock is a directory; an ephemeral sequential node in it is a position in the wait queue. The lowest node holds the lock,
//! and every other waiter watches the one ahead (the "Locks" recipe of ZooKeeper's documentation, with the node names of
//! Apache Curator's `InterProcessMutex`). The servers delete the nodes of a client with its session, so a lock outlives a
//! holder that died by one session timeout. [`ZkConfig`] is the entry.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acl;
mod acquire;
mod backend;
mod break_lock;
mod capabilities;
mod config;
mod connect;
mod connection;
mod doctor;
mod downgrade;
mod driver;
mod driver_process;
mod driver_task;
mod empty_directories;
mod ensemble;
mod ephemeral;
mod error;
mod fenced;
mod fenced_writes;
mod four_letter;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod held_node;
mod holders_watch;
mod inspect;
mod lease;
mod link;
mod lock_path;
mod login;
mod lost_answer;
mod membership;
mod migration;
mod moved_names;
mod node;
mod node_data;
mod node_name;
mod node_owners;
mod observers;
mod own_node;
mod owned_change;
mod owned_requests;
mod paused_runtime;
mod poison;
mod pool_share;
mod proof;
mod queue;
mod reachability;
mod recipe;
mod reconnect;
mod release;
mod renew;
mod requests;
mod revoke;
mod rollback;
mod session;
mod session_open;
mod session_pool;
mod shared_task;
mod tls;
mod token;
mod token_base;
mod token_ranges;
mod turns;
mod unpolled;
mod wait;
mod watched_node;
mod watches;

pub use acl::NodeAcl;
pub use backend::Zk;
pub use config::ZkConfig;
pub use driver::DriverSession;
pub use ensemble::{Answer, Change, Ensemble, SessionClient, States, Watching};
pub use error::BACKEND;
pub use fenced::{Committed, FencedExt, FencedWriter};
pub use node_name::ZkLayout;
pub use reachability::unreachable;
pub use recipe::{ZkRecipe, ZkWait};
pub use zookeeper_client;
