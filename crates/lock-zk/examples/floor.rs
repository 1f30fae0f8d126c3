//! Measures an uncontended acquisition and release against the three bare requests that they are made of.
//!
//! `cargo run --release -p lock-zk --example floor [rounds]`. It starts a server of its own. Both are measured in
//! turns, each on a session of its own, so that the machine's noise falls on both alike.

use std::error::Error;
use std::time::{Duration, Instant};

use lock_testkit::ZooKeeper;
use lock_zk::ZkConfig;
use lock_zk::zookeeper_client::{Acls, Client, CreateMode};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(5000), |rounds| rounds.parse())?;
    let server = ZooKeeper::start().await?;
    let locks = ZkConfig::new(server.connect_string()).connect().await?;
    let mutex = locks.mutex("ours");
    let client = Client::connector().with_session_timeout(Duration::from_secs(10));
    let client = client.connect(&server.connect_string()).await?;
    client.mkdir("/floor/bare", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;

    let (mut ours, mut sequential, mut together) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds + rounds / 10 {
        let start = Instant::now();
        mutex.acquire().await?.release().await?;
        let lock = start.elapsed();

        let start = Instant::now();
        bare(&client, false).await?;
        let one_by_one = start.elapsed();

        let start = Instant::now();
        bare(&client, true).await?;
        let at_once = start.elapsed();

        // The first tenth warms up the server.
        if round >= rounds / 10 {
            ours.push(lock);
            sequential.push(one_by_one);
            together.push(at_once);
        }
    }
    let (ours, sequential, together) = (quantiles(ours), quantiles(sequential), quantiles(together));
    println!("{rounds} rounds              p50          p90          p99");
    println!("acquire + release    {ours:?}");
    println!("bare, one by one     {sequential:?}");
    println!("bare, two at once    {together:?}");
    println!(
        "p50 ratio: {:.3} of one by one, {:.3} of two at once",
        ratio(&ours, &sequential),
        ratio(&ours, &together)
    );
    locks.close().await?;
    Ok(())
}

/// Create, list, delete; the first two one after the other or sent together.
async fn bare(client: &Client, at_once: bool) -> Result<(), Box<dyn Error>> {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let prefix = "/floor/bare/_c_0f8fad5b-d9cb-469f-a165-70867728950e-lock-";
    let data = br#"{"host":"localhost","pid":12345,"owner":"0f8fad5bd9cb469fa16570867728950e"}"#;
    let create = client.create(prefix, data, &options);
    let sequence = if at_once {
        let (created, children) = tokio::join!(create, client.list_children("/floor/bare"));
        children?;
        created?.1
    } else {
        let created = create.await?;
        client.list_children("/floor/bare").await?;
        created.1
    };
    client.delete(&format!("{prefix}{sequence}"), None).await?;
    Ok(())
}

fn quantiles(mut times: Vec<Duration>) -> [Duration; 3] {
    times.sort_unstable();
    [50, 90, 99].map(|percent| times[times.len() * percent / 100])
}

fn ratio(one: &[Duration; 3], two: &[Duration; 3]) -> f64 {
    one[0].as_secs_f64() / two[0].as_secs_f64()
}
