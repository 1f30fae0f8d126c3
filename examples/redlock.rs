//! Five independent Redis servers, or any other backend:
//! `cargo run --example redlock --features redlock [redlock://h1:6379,h2:6379,h3:6379,h4:6379,h5:6379]`

use polylock::{Locks, Result, Token};

const LOCAL: &str = "redlock://127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003,127.0.0.1:7004,127.0.0.1:7005";

/// A resource that checks fencing tokens, and so is safe from a paused holder.
#[derive(Default)]
struct Account {
    cents: i64,
    last: Option<Token>,
}

impl Account {
    /// Refuses a token that is smaller than the last one.
    fn pay_in(&mut self, cents: i64, token: Token) -> bool {
        let accepted = self.last.is_none_or(|last| token >= last);
        if accepted {
            (self.cents, self.last) = (self.cents + cents, Some(token));
        }
        accepted
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    run(&std::env::args().nth(1).unwrap_or_else(|| String::from(LOCAL))).await
}

/// The same program for every backend.
pub async fn run(url: &str) -> Result<()> {
    let locks = Locks::connect(url).await?;
    let mut account = Account::default();

    let first = locks.mutex("account/7").acquire().await?;
    let stale = first.token();
    assert!(account.pay_in(100, stale));
    first.release().await?;

    let second = locks.mutex("account/7").acquire().await?;
    assert!(account.pay_in(20, second.token()));
    assert!(!account.pay_in(100, stale), "a late write of the first holder is refused");
    println!("{} cents, last written under token {}", account.cents, second.token());
    second.release().await?;
    Ok(())
}
