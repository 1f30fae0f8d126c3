//! Ensembles whose servers fall silent or lag behind.

mod ghost;
mod quorum;
