//! What the layers do, in virtual time.

#[cfg(feature = "chaos")]
mod chaos;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "metrics")]
mod operations;
#[cfg(feature = "prefix")]
mod prefix;
#[cfg(feature = "tracing")]
mod tracing;
