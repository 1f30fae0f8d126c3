//! When a waiter reads again: when the store says that the record has changed, or when it has to look, as for its beat.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::engine::{Mailbox, Message};
use lock_core::poison::lock;
use lock_core::waiting::longest_pause;
use lock_core::{BootInstant, Clock};
use tokio::time::sleep;

use crate::registers::{Registers, Version};

/// How much longer those pause that are not the first: so many times.
const BEHIND: u32 = 4;

/// Wakes one waiter.
#[derive(Debug)]
pub struct KvMailbox<R> {
    registers: Arc<R>,
    clock: Clock,
    key: Arc<str>,
    last: Mutex<Last>,
}

/// The last answer that the waiter got.
#[derive(Clone, Debug)]
struct Last {
    seen: Option<Version>,
    ahead: u32,
    look: BootInstant,
    /// Whether it was woken after it: its next request has failed, if it comes again.
    is_old: bool,
}

impl<R: Registers> KvMailbox<R> {
    pub(crate) fn new(registers: &Arc<R>, clock: &Clock, key: &Arc<str>) -> Self {
        let last = Last { seen: None, ahead: 0, look: BootInstant::NEVER, is_old: true };
        Self {
            registers: Arc::clone(registers),
            clock: clock.clone(),
            key: Arc::clone(key),
            last: Mutex::new(last),
        }
    }

    /// Notes that the lock was busy in this version, how many come before, and when the waiter looks again at the latest.
    pub(crate) fn busy(&self, seen: Option<Version>, ahead: Option<usize>, look: BootInstant) {
        let ahead = ahead.map_or(BEHIND, |ahead| u32::try_from(ahead).unwrap_or(BEHIND).min(BEHIND));
        *lock(&self.last) = Last { seen, ahead, look, is_old: false };
    }
}

impl<R: Registers> Mailbox for KvMailbox<R> {
    fn listens(&mut self, _: Option<usize>) -> Option<Duration> {
        Some(longest_pause())
    }

    async fn next(&mut self) -> Message {
        let last = lock(&self.last).clone();
        // One that asks in vain does so no sooner for that: a store that refuses at once would be asked without a pause.
        let (pauses, look) = if last.is_old { (BEHIND, BootInstant::NEVER) } else { (last.ahead, last.look) };
        let changed = async {
            if pauses > 0 {
                sleep(self.registers.about().poll * (pauses - 1)).await;
            }
            self.registers.changed(&self.key, last.seen.as_ref()).await;
        };
        tokio::select! {
            () = changed => {}
            () = self.clock.sleep_until(look) => {}
        }
        lock(&self.last).is_old = true;
        Message::Ask
    }
}
