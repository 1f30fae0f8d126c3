//! Servers that refuse, lose or delay something.

mod answers;
mod bad_input;
mod faults;
mod hidden_nodes;
mod lost_answers;
