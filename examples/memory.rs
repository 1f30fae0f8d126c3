//! Locks inside one process, or among many: `cargo run --example memory [URL]`

use polylock::{Locks, Result};

#[tokio::main]
async fn main() -> Result<()> {
    run(&std::env::args().nth(1).unwrap_or_else(|| String::from("memory://"))).await
}

/// The same program for every backend.
pub async fn run(url: &str) -> Result<()> {
    let locks = Locks::connect(url).await?;

    let workers = (1..=3).map(|worker| {
        let counter = locks.mutex("counter");
        tokio::spawn(async move {
            let guard = counter.acquire().await?;
            println!("worker {worker} holds {:?} with token {}", guard.name(), guard.token());
            guard.release().await
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.expect("no worker panics")?;
    }
    Ok(())
}
