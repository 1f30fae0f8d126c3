//! The colours of backends, as classes of the style sheet.

use crate::data::Results;

/// The colour of a backend, the same whichever others are measured.
pub(super) fn colour(results: &Results, backend: &str) -> String {
    const OWN: &[&str] = &["memory", "redis", "redlock", "zk", "postgres"];
    let index = OWN.iter().position(|own| *own == backend).unwrap_or_else(|| {
        let backends = results.backends();
        let others = backends.iter().filter(|other| !OWN.contains(other));
        OWN.len() + others.take_while(|other| **other != backend).count() % 3
    });
    format!("b{index}")
}
