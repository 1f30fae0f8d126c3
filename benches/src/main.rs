//! The comparison harness.

#[allow(dead_code, reason = "the scenarios that use it come next")]
mod report;
#[allow(dead_code, reason = "the scenarios that use it come next")]
mod results;
#[allow(dead_code, reason = "the scenarios that use it come next")]
mod table;

fn main() {}
