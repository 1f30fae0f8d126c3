//! Locks between the processes of one host, by `flock(2)`: no server, and a lock is free as soon as its holder has ended.
//!
//! | file | role |
//! |---|---|
//! | `config` | options, in code and from a URL |
//! | `backend` | `Backend`: connect, close, and the calls of the others |
//! | `acquire` | one attempt, and the wait for the next |
//! | `delivery` | how a grant reaches a caller, or nobody |
//! | `lease` | `Lease`: verify, extend, downgrade, release; and the task that looks after it |
//! | `inspect` | holders, names, breaking |
//! | `doctor` | what endangers the locks |
//! | `error` | errors of the file system, for users |
//! | `directory` | the directory of the locks, and how files are made in it |
//! | `file_name` | lock names as file names |
//! | `lock_file` | a file and its `flock` |
//! | `ledger` | the tokens of a lock, and its last holder |
//! | `wake` | what wakes a waiter |
//! | `watches` | the files that waiters watch |
//!
//! Unix only: elsewhere the crate is empty. [How it came to be, step by step][page], as an example of a backend.
//!
//! [page]: https://github.com/polylock/polylock/blob/main/docs/NEW-BACKEND.md
#![cfg(unix)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod backend;
mod config;
mod delivery;
mod directory;
mod doctor;
mod error;
mod file_name;
mod inspect;
mod lease;
mod ledger;
mod lock_file;
mod wake;
mod watches;

pub use backend::Flock;
pub use config::FlockConfig;
