//! A fleet moves its locks from Redis to ZooKeeper, back, and there again, while it works:
//! `cargo run --example migrate --features redis,zk`
//!
//! It starts a Redis server and a ZooKeeper server of its own, and ends them.

mod clients;
mod counters;
mod story;
mod worker;

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    if let Some(client) = words.strip_prefix(&[worker::WORKER.to_owned()]) {
        return worker::run(client).await;
    }
    let report = story::tell().await;
    println!("{report}");
    if report.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
