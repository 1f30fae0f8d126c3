//! The lock of redlock-rb, by the commands that it sends.

use std::fs::File;
use std::io::Read as _;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lock_testkit::redis::Reply;
use tokio::time::sleep;

use super::{Peer, Site};

/// redlock-rb asks its servers one after the other, and releases what it got when it was no quorum.
pub struct RedlockRb {
    site: Site,
    key: String,
    value: String,
}

impl RedlockRb {
    pub fn new(site: &Site, key: &str) -> Self {
        Self { site: site.clone(), key: key.to_owned(), value: String::new() }
    }

    async fn once(&mut self, ttl: &str) -> bool {
        self.value = random::<20>().iter().map(|&byte| in_base_32(byte)).collect();
        let command = ["SET", &self.key, &self.value, "NX", "PX", ttl];
        let taken = self.is_done(&command, |reply| reply.text() == Some("OK")).await;
        if !taken {
            self.release().await;
        }
        taken
    }

    async fn script(&self, script: &str, argument: &str) -> bool {
        let command = ["EVAL", script, "1", &self.key, &self.value, argument];
        self.is_done(&command, |reply| reply.int() == Some(1)).await
    }

    async fn is_done(&self, command: &[&str], done: fn(&Reply) -> bool) -> bool {
        let replies = self.site.everywhere(command).await;
        self.site.is_quorum(replies.iter().filter(|reply| done(reply)).count())
    }
}

#[async_trait]
impl Peer for RedlockRb {
    async fn acquire_for(&mut self, ttl: Option<Duration>, wait: Duration) -> bool {
        let ttl = ttl.expect("redlock-rb has no lock without a time to live").as_millis().to_string();
        let end = Instant::now() + wait;
        while !self.once(&ttl).await {
            if Instant::now() >= end {
                return false;
            }
            // Time: it polls.
            sleep(LONGEST_PAUSE * u32::from(random::<1>()[0]) / 255).await;
        }
        true
    }

    async fn extend(&mut self, ttl: Duration) -> bool {
        self.script(EXTEND, &ttl.as_millis().to_string()).await
    }

    async fn release(&mut self) -> Option<bool> {
        Some(self.script(RELEASE, "").await)
    }
}

/// As Ruby writes a number in base 32: a byte has one digit or two.
fn in_base_32(byte: u8) -> String {
    let digit = |number: u8| char::from_digit(u32::from(number), 32);
    let high = Some(byte / 32).filter(|&high| high > 0).and_then(digit);
    high.into_iter().chain(digit(byte % 32)).collect()
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let read = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.expect("the system has random bytes");
    bytes
}

// Time: as in its sources.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0";
