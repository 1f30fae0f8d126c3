//! The parsers of what nodes hold, for the targets of `fuzz/`.

use crate::nodes::node_data::NodeData;
use crate::nodes::token_ranges::TokenRanges;
use crate::operate::observers::Members;
use crate::recipes::queue::Queue;

/// Reads these bytes as the data of a node of each kind, which this transaction wrote, and as a listing.
pub fn read(data: &[u8], written: u64) {
    let _ = NodeData::parse(data).and_then(|node| node.writer?.time());
    let _ = Members::parse(data).observe(1);
    if let Some(mut ranges) = TokenRanges::parse(data, written) {
        let again = TokenRanges::parse(ranges.to_string().as_bytes(), 0);
        ranges.join(&again.unwrap_or_else(|| panic!("{ranges} is written as it was read")));
        let _ = (ranges.token(written), ranges.reach(written));
    }
    let listing = String::from_utf8_lossy(data).lines().map(str::to_owned).collect();
    let queue = Queue::parse(listing);
    let _ = (queue.holders_and_waiters(), queue.exhausted_by());
}
