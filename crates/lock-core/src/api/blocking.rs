//! The same locks for code without a runtime: every method blocks its thread until it has an answer.
//!
//! The types have the names of the asynchronous ones, and are thin wrappers over them: same errors, same options, same
//! promises. One multi-threaded tokio runtime of two threads, started by the first call and shared by the whole process,
//! drives the connections. So leases are renewed while the caller computes, sleeps or waits for something else.
//!
//! ```
//! use lock_core::MemoryConfig;
//! use lock_core::blocking::Locks;
//!
//! # fn main() -> lock_core::Result<()> {
//! let locks = Locks::from(MemoryConfig::new().connect()?);
//! let guard = locks.mutex("orders/42").acquire()?;
//! guard.run(|| println!("writing under token {}", guard.token()))?;
//! guard.release()?;
//! locks.close()
//! # }
//! ```
//!
//! # What differs from the asynchronous types
//!
//! | asynchronous | blocking |
//! |---|---|
//! | drop the future to give up a wait | give up by a deadline: `try_acquire_for`, `try_acquire_until` |
//! | `guard.lost().await` | [`guard.lost_within(patience)`](Guard::lost_within), and [`guard.is_valid()`](Guard::is_valid) at no cost |
//! | `guard.run(future)` drops the future when the lock is lost | [`guard.run(closure)`](Guard::run): nothing stops a closure, so a long one checks `guard.is_valid()` |
//! | `Observer` is a stream | [`Observer`] is an iterator |
//! | `try_acquire_until` takes an instant of tokio | it takes a [`std::time::Instant`] |
//!
//! # Inside of a runtime
//!
//! A task that blocks its thread stops the other tasks of that thread, perhaps those that it waits for. So a method that
//! blocks fails with [`Unsupported`](crate::ErrorKind::Unsupported) inside of a tokio task or `block_on`: use the
//! asynchronous types there, or `tokio::task::spawn_blocking`, which is allowed. A task in `tokio::task::unconstrained` is not recognized,
//! and blocks its thread. Nothing panics. Dropping a guard never
//! blocks, and is allowed everywhere.
//!
//! # The end of a process
//!
//! A dropped guard is released by the threads of the runtime, which end with `main`. Call [`Locks::close`] before, which waits
//! for them. After `fork` without `exec` these threads do not exist in the child, so a call there on locks of the parent fails
//! at once: connect in the child, which gets threads of its own.
//!
//! Source of the idea: `reqwest::blocking`, and the crate `postgres` over `tokio-postgres`.

mod election;
mod guard;
mod locks;
mod multi;
mod mutex;
mod reentrant;
mod runtime;
mod rw;
mod semaphore;

pub use self::election::{Election, Leadership, Observer};
pub use self::guard::Guard;
pub use self::locks::Locks;
pub use self::multi::{Multi, MultiGuard};
pub use self::mutex::Mutex;
pub use self::reentrant::{Reentrant, ReentrantGuard};
pub use self::rw::RwLock;
pub use self::semaphore::Semaphore;
