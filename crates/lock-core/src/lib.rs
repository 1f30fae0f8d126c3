//! The lock API of polylock: locks, guards, the backend traits, and all that backends have in common.
//!
//! Users get [`Locks`], [`Mutex`], [`RwLock`], [`Semaphore`] and [`Guard`]; backends implement [`Backend`] and [`Lease`].
//! The crate depends on no driver. It has one backend, [`memory`], the default and the reference for the others.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
#[doc(hidden)]
pub mod background;
#[cfg(feature = "blocking")]
pub mod blocking;
mod capabilities;
pub mod clock;
mod connection;
#[doc(hidden)]
pub mod dial;
pub mod doctor;
#[doc(hidden)]
pub mod drift;
mod election;
pub mod engine;
pub mod error;
pub mod guard;
mod guard_view;
mod handle;
pub mod inspect;
#[doc(hidden)]
pub mod lazy;
pub mod lease;
mod local_queue;
mod lock_spec;
pub mod locks;
#[doc(hidden)]
pub mod lookup;
pub mod memory;
pub mod migration;
mod multi;
pub mod mutex;
pub mod name;
mod one_line;
pub mod options;
pub mod owner;
mod patience;
#[doc(hidden)]
pub mod pending_release;
mod persistence;
#[doc(hidden)]
pub mod random;
mod readers;
pub mod record;
mod reentrant;
pub mod renewal;
mod request;
pub mod revocation;
mod run;
mod run_error;
#[doc(hidden)]
pub mod runtime;
pub mod rw;
#[doc(hidden)]
pub mod secret;
pub mod semaphore;
#[doc(hidden)]
pub mod single_flight;
#[doc(hidden)]
pub mod timeouts;
#[doc(hidden)]
pub mod tls;
pub mod token;
mod token_block;
mod token_reads;
#[doc(hidden)]
pub mod unpolled;
pub mod url;
mod validity;
#[doc(hidden)]
pub mod waiting;

pub use backend::{
    AcquireRequest, Acquired, Backend, Capabilities, LeaseKind, LeasePolicy, Mode, OnQueued, Wait,
};
pub use clock::{BootInstant, Clock};
pub use doctor::{DoctorReport, Finding, FindingLevel};
pub use election::{Election, Leader, Leadership, Observer};
pub use error::{Error, ErrorKind, Outcome, Result};
pub use guard::Guard;
pub use guard_view::GuardView;
pub use inspect::{
    Holder, HolderInfo, LockMode, LockState, ServerLockState, ServerView, WaiterInfo, stored_time,
};
pub use lazy::Lazy;
pub use lease::{HandOver, Lease, Released};
pub use locks::Locks;
pub use memory::{Memory, MemoryConfig};
pub use multi::{Multi, MultiGuard};
pub use mutex::Mutex;
pub use name::LockName;
pub use one_line::one_line;
pub use options::LockOptions;
pub use owner::{OwnerId, OwnerInfo};
pub use persistence::Persistence;
pub use reentrant::{Reentrant, ReentrantGuard};
pub use revocation::{Revocation, RevocationCell};
pub use run_error::RunError;
pub use rw::RwLock;
pub use secret::Password;
pub use semaphore::Semaphore;
pub use token::Token;
pub use token_block::TokenBlock;
/// The type of [`Guard::cancellation_token`], from `tokio-util`.
#[doc(no_inline)]
pub use tokio_util::sync::CancellationToken;
pub use validity::{GuardState, LossReason, Validity, ValidityCell};
