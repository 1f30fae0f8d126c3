//! One acquisition on a quorum: requests to masters, their votes, and what each may have left.

pub(crate) mod attempt;
pub mod ballot;
pub(crate) mod claims;
pub(crate) mod contention;
pub(crate) mod live_votes;
pub(crate) mod quorum;
pub(crate) mod unanswered;
pub(crate) mod votes;
