//! Locks inside one process: `cargo run --example memory`

use polylock::{Locks, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let locks = Locks::connect("memory://").await?;

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
