//! The lock API of polylock: the backend traits, the guard, and all that is the same for every backend.
//!
//! Users meet [`Locks`], [`Mutex`], [`RwLock`], [`Semaphore`] and [`Guard`]; backends implement [`Backend`] and [`Lease`].
//! This crate knows no driver. It brings one backend, [`memory`], the embedded default and the
//! reference for the others.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
#[doc(hidden)]
pub mod background;
pub mod clock;
mod contender;
pub mod doctor;
pub mod error;
pub mod guard;
pub mod inspect;
#[doc(hidden)]
pub mod lazy;
pub mod lease;
pub mod locks;
pub mod memory;
pub mod mutex;
pub mod name;
pub mod options;
pub mod owner;
mod queue;
#[doc(hidden)]
pub mod random;
pub mod renewal;
pub mod revocation;
#[doc(hidden)]
pub mod runtime;
pub mod rw;
pub mod semaphore;
#[doc(hidden)]
pub mod single_flight;
pub mod token;
pub mod url;

pub use backend::{
    AcquireRequest, Acquired, Backend, Capabilities, LeaseKind, LeasePolicy, Mode, OnQueued, Wait,
};
pub use clock::{BootInstant, Clock};
pub use doctor::{DoctorReport, Finding, FindingLevel};
pub use error::{Error, ErrorKind, Outcome, Result};
pub use guard::{Guard, RunError};
pub use inspect::{Holder, HolderInfo, LockMode, LockState, ServerLockState, ServerView, WaiterInfo};
pub use lazy::Lazy;
pub use lease::{GuardState, HandOver, Lease, LossReason, Released, Validity, ValidityCell};
pub use locks::Locks;
pub use memory::{Memory, MemoryConfig};
pub use mutex::Mutex;
pub use name::LockName;
pub use options::LockOptions;
pub use owner::{OwnerId, OwnerInfo};
pub use revocation::{Revocation, RevocationCell};
pub use rw::RwLock;
pub use semaphore::Semaphore;
pub use token::Token;
/// What [`Guard::cancellation_token`] gives, of `tokio-util`.
#[doc(no_inline)]
pub use tokio_util::sync::CancellationToken;
