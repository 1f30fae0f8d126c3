//! A store of leases of one's own, and a lock in it: `cargo run --example own_store`.

mod store;

use std::time::Duration;

#[tokio::main]
async fn main() -> polylock::Result<()> {
    // It ends with the boot of the host, as the leases do.
    let directory = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, Into::into);
    let directory = directory.join("polylock-own-store");
    let locks = store::connect(&directory, Duration::from_secs(10))?;
    let guard = locks.mutex("orders/42").acquire().await?;
    println!("held with the token {}:\n{}", guard.token(), locks.inspect("orders/42").await?);
    guard.release().await?;
    locks.close().await
}
