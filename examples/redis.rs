//! One Redis server, or any other backend: `cargo run --example redis --features redis [redis://127.0.0.1:6379]`

use std::time::Duration;

use polylock::{LockOptions, Locks, Result};

#[tokio::main]
async fn main() -> Result<()> {
    run(&std::env::args().nth(1).unwrap_or_else(|| String::from("redis://127.0.0.1:6379"))).await
}

/// The same program for every backend.
pub async fn run(url: &str) -> Result<()> {
    let locks = Locks::connect(url).await?;
    // If this process dies, the lock expires within 10 s. On ZooKeeper the session timeout, 10 s by default, must not be
    // longer.
    let options = LockOptions::new().ttl(Duration::from_secs(10)).label("nightly report");
    let report = locks.mutex_with("report", options)?;

    let Some(guard) = report.try_acquire_for(Duration::from_secs(5)).await? else {
        let state = locks.inspect("report").await?;
        println!("busy: {state}");
        return Ok(());
    };

    // The lock is renewed meanwhile. If it is lost nevertheless, the work is dropped.
    let written = guard.run(async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        "the report"
    });
    println!("wrote {} under token {}", written.await?, guard.token());
    println!("{:?}", guard.release().await?);
    Ok(())
}
