//! Distributed locks on a ZooKeeper ensemble.
//!
//! An ephemeral sequential node in the directory of the lock is a place in its queue; the lowest holds the lock, and
//! every other watches the one before it (the "Locks" recipe of ZooKeeper's documentation, in the layout of Apache
//! Curator's `InterProcessMutex`). The node goes with the session of its client, so a lock outlives a holder that
//! died by one session timeout. [`ZkConfig`] is the entry.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acl;
mod acquire;
mod backend;
mod capabilities;
mod config;
mod connect;
mod deadline;
mod directories;
mod doctor;
mod downgrade;
mod driver;
mod ensemble;
mod ephemeral;
mod error;
mod fenced;
mod four_letter;
mod inspect;
mod layout;
mod lease;
mod members;
mod node;
mod queue;
mod recipe;
mod session;
mod session_pool;
mod shutdown_gate;
mod tls;
mod token;
mod watches;

pub use acl::NodeAcl;
pub use backend::Zk;
pub use config::ZkConfig;
pub use driver::DriverSession;
pub use ensemble::{Answer, Change, Ensemble, SessionClient, States, Watching};
pub use error::BACKEND;
pub use fenced::{Committed, FencedExt, FencedWriter};
pub use layout::ZkLayout;
pub use recipe::{ZkRecipe, ZkWait};
pub use zookeeper_client;
