//! Real servers as child processes, and what they need: ports, directories, certificates.

#[cfg(feature = "tls")]
pub(crate) mod certificates;
pub(crate) mod disk;
pub mod etcd;
pub mod mariadb;
pub(crate) mod pgbouncer;
pub(crate) mod port;
pub mod postgres;
pub mod process;
pub mod redis;
pub(crate) mod s3;
pub(crate) mod secret_file;
pub(crate) mod server_process;
pub(crate) mod server_version;
pub mod zookeeper;
