//! Layers for the locks of polylock: tracing, metrics, a prefix of all names, and faults for tests.
//!
//! A layer is put on by [`Locks::layer`](lock_core::Locks::layer). Each has a feature of its own:
//!
//! | layer | feature | what it does |
//! |---|---|---|
//! | `TracingLayer` | `tracing` | a span for each wait and each hold, and events for what happens to a lock |
//! | `MetricsLayer` | `metrics` | counters and histograms |
//! | `PrefixLayer` | `prefix` | all names under a prefix |
//! | `ChaosLayer` | `chaos` | faults by probability and seed, for tests |
//!
//! The first two are [observers](lock_core::observe): they see the names that the program uses, and all that happens, wherever they
//! stand among the layers. The others are backends over the backend:
//!
//! * **They forward everything**, but for [migrations](lock_core::migration): put them over a migration, not over one of its
//!   stores. Capabilities, errors and the names of backends are those of the backend below.
//! * **What one backend alone can do works through them**: `fenced` of ZooKeeper, and `fence` of PostgreSQL. Chaos adds no
//!   faults to it.
//!
//! No layer shows an owner id or a URL.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "chaos")]
mod chaos;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "prefix")]
mod prefix;
#[cfg(feature = "tracing")]
mod tracing;

#[cfg(feature = "chaos")]
#[cfg_attr(docsrs, doc(cfg(feature = "chaos")))]
pub use self::chaos::ChaosLayer;
#[cfg(feature = "metrics")]
#[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
pub use self::metrics::MetricsLayer;
#[cfg(feature = "prefix")]
#[cfg_attr(docsrs, doc(cfg(feature = "prefix")))]
pub use self::prefix::PrefixLayer;
#[cfg(feature = "tracing")]
#[cfg_attr(docsrs, doc(cfg(feature = "tracing")))]
pub use self::tracing::TracingLayer;

/// The mode as a word for logs and metrics.
#[cfg(any(feature = "metrics", feature = "tracing"))]
fn mode_code(mode: lock_core::Mode) -> &'static str {
    match mode {
        lock_core::Mode::Shared => "shared",
        lock_core::Mode::Permit { .. } => "permit",
        _ => "exclusive",
    }
}

/// The reason of a loss as a word for logs and metrics.
#[cfg(any(feature = "metrics", feature = "tracing"))]
fn reason_code(reason: lock_core::LossReason) -> &'static str {
    use lock_core::LossReason;
    match reason {
        LossReason::DeadlinePassed => "deadline_passed",
        LossReason::Removed => "removed",
        LossReason::SessionEnded => "session_ended",
        LossReason::MaxHold => "max_hold",
        _ => "other",
    }
}
