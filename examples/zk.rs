//! A ZooKeeper ensemble, or any other backend: `cargo run --example zk --features zk [zk://127.0.0.1:2181]`

use polylock::{Locks, Result};

#[tokio::main]
async fn main() -> Result<()> {
    run(&std::env::args().nth(1).unwrap_or_else(|| String::from("zk://127.0.0.1:2181"))).await
}

/// The same program for every backend.
pub async fn run(url: &str) -> Result<()> {
    let locks = Locks::connect(url).await?;

    let guard = locks.mutex("leader of the shop").acquire().await?;
    println!("holding it under token {}, valid for {:?} more", guard.token(), guard.remaining());

    // Stop when the lock is lost: its node was removed, or the servers did not answer for too long.
    tokio::select! {
        reason = guard.lost() => println!("lost: {reason}"),
        () = lead() => println!("done: {:?}", guard.release().await?),
    }
    locks.close().await
}

async fn lead() {
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
}
