//! The record of an injected fault.

use crate::data::FaultKind;
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    /// The servers or workers, in words.
    pub(super) whom: String,
    /// Whether it is the end of a pause: the limit counts from there again.
    pub(super) resumes: bool,
    /// Whether no worker may lose a lock by it, but for the thread that computes.
    pub(super) keeps_locks: bool,
    /// When it began, on the clock of the histories.
    pub(super) from_ns: u64,
    /// When it ended. For a worker that was killed or stopped: when that happened, as its lease runs out from then on.
    pub(super) until_ns: u64,
    /// The process and its runtime whose thread computes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) computes: Option<(u32, usize)>,
}
