//! Servers that refuse, lose or delay something.

mod answers;
mod bad_input;
mod faults;
mod lost_answers;
