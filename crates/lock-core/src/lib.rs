//! The lock API of polylock: locks, guards, the backend traits, and all that backends have in common.
//!
//! Users get [`Locks`], [`Mutex`], [`RwLock`], [`Semaphore`] and [`Guard`]; backends implement [`Backend`] and [`Lease`].
//! The crate depends on no driver. It has one backend, [`memory`], the default and the reference for the others.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod api;
mod connect;
pub mod engine;
pub mod memory;
mod process;
pub mod record;
pub mod renewal;
mod seam;
mod values;

#[cfg(feature = "blocking")]
pub use api::blocking;
pub use api::{guard, locks, mutex, options, rw, semaphore};
pub use connect::url;
#[doc(hidden)]
pub use connect::{dial, lookup, secret, timeouts, tls};
#[doc(hidden)]
pub use process::tasks::{background, runtime, single_flight, unpolled};
pub use process::time::clock;
#[doc(hidden)]
pub use process::time::drift;
#[doc(hidden)]
pub use process::{poison, random, waiting};
#[doc(hidden)]
pub use seam::lazy;
pub use seam::{backend, doctor, inspect, lease, migration, observe, revocation};
pub use values::{error, name, owner, token};

pub use api::election::{Election, Leader, Leadership, Observer};
pub use api::guard::Guard;
pub use api::guard_view::GuardView;
pub use api::locks::Locks;
pub use api::multi::{Multi, MultiGuard};
pub use api::mutex::Mutex;
pub use api::options::LockOptions;
pub use api::reentrant::{Reentrant, ReentrantGuard};
pub use api::run_error::RunError;
pub use api::rw::RwLock;
pub use api::semaphore::Semaphore;
pub use connect::secret::Password;
pub use memory::{Memory, MemoryConfig};
pub use process::persistence::Persistence;
pub use process::time::clock::{BootInstant, Clock};
pub use process::time::expiry::Expiry;
pub use process::time::validity::{GuardState, LossReason, Validity, ValidityCell};
pub use seam::backend::{
    AcquireRequest, Acquired, Backend, Capabilities, LeaseKind, LeasePolicy, Mode, OnQueued, Wait,
};
pub use seam::doctor::{DoctorReport, Finding, FindingLevel};
pub use seam::inspect::{
    Holder, HolderInfo, LockMode, LockState, ServerLockState, ServerView, WaiterInfo, stored_time,
};
pub use seam::lazy::Lazy;
pub use seam::lease::{HandOver, Lease, Released};
pub use seam::revocation::{Revocation, RevocationCell};
/// The type of [`Guard::cancellation_token`], from `tokio-util`.
#[doc(no_inline)]
pub use tokio_util::sync::CancellationToken;
pub use values::error::{Error, ErrorKind, Outcome, Result};
pub use values::name::LockName;
pub use values::one_line::one_line;
pub use values::owner::{OwnerId, OwnerInfo};
pub use values::token::Token;
pub use values::token_block::TokenBlock;
