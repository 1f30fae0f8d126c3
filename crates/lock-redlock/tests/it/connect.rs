//! How a master is reached.

mod names;
