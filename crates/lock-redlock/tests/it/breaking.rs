//! Breaking locks: a request that a master carries out late breaks no later holder.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_core::GuardState;
use lock_testkit::proxy::{Direction, redis_command};
use lock_testkit::{FaultProxy, RedisFive, give_back, until};
use tokio::time::timeout;

use crate::common::{connect, proxied};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_break_that_masters_carry_out_late_leaves_the_next_holder_its_lock() {
    let three = RedisFive::start_n(3).await.unwrap();
    let (proxies, url) = proxied(&three);
    let operator = connect(&format!("{url}?ttl=30s&master_timeout=2s")).await.unwrap();
    let direct = connect(&format!("{}?ttl=30s&master_timeout=20s", three.url())).await.unwrap();
    let broken = direct.mutex("a").acquire().await.unwrap();
    // Its scripts are loaded by that.
    assert!(!operator.break_lock("free").await.unwrap());
    // All masters answer two looks; what breaks the lock on two of them is on its way for long.
    for proxy in &proxies[1..] {
        proxy.hold_after({
            let (is_script, looks) = (redis_command("EVALSHA"), AtomicU32::new(0));
            move |request: &[u8]| is_script(request) && looks.fetch_add(1, Ordering::SeqCst) == 1
        });
    }
    drop(timeout(PATIENCE, operator.break_lock("a")).await.unwrap());
    for proxy in &proxies[1..] {
        assert!(proxy.queued(Direction::ToServer) > 0, "nothing is late");
    }
    drop(broken.release().await);
    let next = timeout(PATIENCE, direct.mutex("a").acquire()).await.unwrap().unwrap();
    let on_all = async || {
        let owner = next.owner().to_string();
        let mut on_all = true;
        for master in three.servers() {
            on_all &=
                master.call(&["GET", "lock:a"]).await.text().is_some_and(|value| value.starts_with(&owner));
        }
        on_all
    };
    until("all masters grant it", on_all).await;
    let mut before = Vec::new();
    for master in three.servers() {
        before.push(master.calls_of("evalsha").await);
    }
    proxies.iter().for_each(FaultProxy::deliver);
    for number in [1, 2] {
        until("it is carried out", async || {
            three.servers()[number].calls_of("evalsha").await > before[number]
        })
        .await;
    }
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
    assert!(on_all().await, "another holder was broken");
    give_back(next).await;
}
