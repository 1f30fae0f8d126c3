//! What `migration` measures: the rungs of the way from Redis to ZooKeeper, the plain backends, and the whole.

/// Redis alone.
pub(crate) const REDIS: &str = "redis";
/// ZooKeeper alone.
pub(crate) const ZK: &str = "zk";
/// What is about all rungs.
pub(crate) const MIGRATE: &str = "migrate";
pub(crate) const OLD: &str = "migrate old";
pub(crate) const SHADOW: &str = "migrate shadow";
pub(crate) const DUAL: &str = "migrate dual";
/// Where other names have moved: their tokens are ahead of the clock of Redis, and each acquisition raises that of Redis.
pub(crate) const DUAL_BESIDE_MOVE: &str = "migrate dual beside move";
pub(crate) const MOVE: &str = "migrate move";
pub(crate) const NEW: &str = "migrate new";

/// The rungs and the whole, in the order of the results.
pub(crate) const ALL: [&str; 7] = [MIGRATE, OLD, SHADOW, DUAL, DUAL_BESIDE_MOVE, MOVE, NEW];
