//! Acquires and releases a lock of the memory backend through a layer, so that a profiler can count the instructions:
//!
//! ```text
//! cargo bench -p lock-layers --all-features --bench cost --no-run
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/deps/cost-* tracing 10000
//! ```
//!
//! The cost of one lock is the difference between two numbers of rounds, divided by that of the rounds.

use lock_core::{Locks, MemoryConfig, Result};
use lock_layers::{ChaosLayer, MetricsLayer, PrefixLayer, TracingLayer};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let layer = arguments.next().unwrap_or_else(|| "none".into());
    let rounds: u32 = arguments.next().and_then(|rounds| rounds.parse().ok()).unwrap_or(1000);
    let mutex = through(&layer, MemoryConfig::new().connect()?)?.mutex("orders/42");
    for _ in 0..rounds {
        mutex.acquire().await?.release().await?;
    }
    Ok(())
}

fn through(layer: &str, locks: Locks) -> Result<Locks> {
    Ok(match layer {
        "none" => locks,
        "tracing" => locks.layer(TracingLayer::new()),
        "metrics" => locks.layer(MetricsLayer::new()),
        "prefix" => locks.layer(PrefixLayer::new("shop/")?),
        "chaos" => locks.layer(ChaosLayer::new(0)),
        other => panic!("{other} is none of none, tracing, metrics, prefix, chaos"),
    })
}
