//! Resources that check fencing tokens: what `docs/FENCING.md` shows runs here, on real servers.

mod page;
mod postgres;
mod redis;
mod s3;
mod zookeeper;
