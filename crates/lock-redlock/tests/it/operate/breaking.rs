//! Breaking locks: a request that a master carries out late breaks no later holder.

use std::sync::atomic::{AtomicU32, Ordering};

use lock_core::GuardState;
use lock_testkit::proxy::{Direction, redis_command};
use lock_testkit::{RedisFive, give_back, soon, take, until};

use crate::common::{PATIENT, client, connect, holder, proxied};

#[tokio::test(flavor = "multi_thread")]
async fn a_break_that_masters_carry_out_late_leaves_the_next_holder_its_lock() {
    let three = RedisFive::start_n(3).await.unwrap();
    let (proxies, url) = proxied(&three);
    // Time: it gives its request up.
    let operator = connect(&format!("{url}?ttl=60s&master_timeout=2s")).await.unwrap();
    let direct = client(&three, &format!("ttl=60s&{PATIENT}")).await;
    let broken = take(&direct, "a").await;
    // Its scripts are loaded by that.
    assert!(!operator.break_lock("free").await.unwrap());
    // All masters answer two looks; what breaks the lock on two of them is on its way for long.
    for proxy in &proxies[1..] {
        let (is_script, looks) = (redis_command("EVALSHA"), AtomicU32::new(0));
        proxy.hold_after(move |request| is_script(request) && looks.fetch_add(1, Ordering::SeqCst) == 1);
    }
    drop(soon(operator.break_lock("a")).await);
    for proxy in &proxies[1..] {
        assert!(proxy.queued(Direction::ToServer) > 0, "nothing is late");
    }
    drop(broken.release().await);
    let next = take(&direct, "a").await;
    let owner = Some(next.owner().to_string());
    for master in three.servers() {
        until("all masters grant it", async || holder(master).await == owner).await;
    }
    for (master, proxy) in three.servers().iter().zip(&proxies).skip(1) {
        let before = master.calls_of("evalsha").await;
        proxy.deliver();
        until("it is carried out", async || master.calls_of("evalsha").await > before).await;
    }
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
    for master in three.servers() {
        assert_eq!(holder(master).await, owner, "another holder was broken");
    }
    give_back(next).await;
}
