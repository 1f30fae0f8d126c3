//! Distributed locks in PostgreSQL: one database, and its failover.
//!
//! The locks are rows of a schema of their own, behind functions: a request is one call, in a transaction of its own. Data in the same
//! database is protected by [`Fence`] in the caller's transactions, whatever becomes of holders and clocks.
//!
//! | file | role |
//! |---|---|
//! | `config` | options, in code and from a URL |
//! | `backend` | `Backend`: connect, close, and the calls of the others |
//! | `acquire`, `attempt` | one request for a lock, its owner id |
//! | `wait` | the wait for a busy lock |
//! | `rollback` | removes what an acquisition may have left |
//! | `lease`, `renew` | `Lease`: verify, extend, downgrade, release; renewals, many in one call |
//! | `inspect`, `change` | holders, names, breaking; observers |
//! | `doctor` | what endangers the locks |
//! | `error` | errors of the server, for users |
//! | `fence` | the fence in transactions of the caller |
//! | `schema`, `sql/` | tables and functions |
//! | `server` | the calls of the functions |
//! | `libpq` | options of URLs by which providers tune libpq |
//! | `link`, `hosts`, `tls` | connections |
//! | `inbox` | the connection on which the server notifies us |
//! | `notification` | what it says there, and what of that is believed |
//! | `locked_row` | pauses while another transaction has the row of a lock |
//! | `stored_name` | lock names as the database stores them |
//! | `sweep` | removes rows of unused names |
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod attempt;
mod backend;
mod change;
mod config;
mod context;
mod doctor;
mod error;
mod fence;
mod hosts;
mod inbox;
mod inspect;
mod lease;
mod libpq;
mod link;
mod locked_row;
mod notification;
mod renew;
mod rollback;
pub mod schema;
mod server;
mod stored_name;
mod sweep;
mod tls;
mod wait;

pub use backend::Postgres;
pub use config::{PostgresConfig, PostgresSync};
pub use fence::Fence;
pub use tokio_postgres;
