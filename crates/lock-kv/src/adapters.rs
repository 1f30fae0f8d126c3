//! Registers in each store, and their options.

#[cfg(feature = "s3")]
pub(crate) mod bucket;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
#[cfg(any(feature = "etcd", feature = "mysql"))]
mod host;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
mod options;
#[cfg(any(feature = "mysql", feature = "s3", feature = "sqlite"))]
mod own_thread;
#[cfg(any(feature = "etcd", feature = "mysql", feature = "sqlite"))]
mod records;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
