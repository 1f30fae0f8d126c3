//! Distributed locks in PostgreSQL: one database, and its failover.
//!
//! The locks are rows of a schema of their own, behind functions: a request is one call, in a transaction of its own. Data in the same
//! database is protected by [`Fence`] in the caller's transactions, whatever becomes of holders and clocks.
//!
//! | file | role |
//! |---|---|
//! | `config` | options, in code and from a URL |
//! | `backend` | connects, and creates the schema |
//! | `store` | what the database answers to one request of the engine, which has the rest |
//! | `inspect` | holders, waiters, names |
//! | `doctor` | what endangers the locks |
//! | `error` | errors of the server, for users |
//! | `fence` | the fence in transactions of the caller |
//! | `schema`, `sql/` | tables and functions |
//! | `server` | the calls of the functions |
//! | `requests/` | what asks and releases, alone or with others that wait for a connection, and the values of the calls |
//! | `libpq` | options of URLs by which providers tune libpq |
//! | `connection`, `link`, `hosts`, `tls` | connections |
//! | `turns` | whose turn it is to use a connection |
//! | `teller` | notifies waiters and observers |
//! | `inbox` | the connection on which the server notifies us |
//! | `message` | what it says there, and what of that is believed |
//! | `stored_name` | lock names as the database stores them |
//! | `sweep` | removes rows of unused names |
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod config;
mod connect;
mod error;
mod inbox;
mod message;
mod operate;
mod requests;
pub mod schema;
mod server;
mod store;
mod stored_name;
mod teller;

pub use backend::Postgres;
pub use config::{PostgresConfig, PostgresSync};
pub use operate::fence::Fence;
pub use tokio_postgres;
