//! Reads the tombstones again that guards rely on.

use std::sync::Weak;

use futures_util::stream::{self, StreamExt};
use lock_core::{LockName, LossReason};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::context::Context;
use crate::leases::tombstones::LOOK;

/// Reads the tombstones again that guards rely on, once a minute: so they are refreshed from half of their lives on, and a
/// guard whose tombstone is gone is lost.
pub(crate) async fn watch(context: Weak<Context>) {
    loop {
        sleep(LOOK).await;
        let Some(context) = context.upgrade() else { return };
        if context.process.is_sealed() {
            context.tombstones.let_go();
            continue;
        }
        let names = context.tombstones.to_read();
        stream::iter(names).for_each_concurrent(AT_ONCE, |name| read_again(&context, name)).await;
    }
}

async fn read_again(context: &Context, name: LockName) {
    let Ok(source) = context.source() else { return };
    match source.read_tombstone(&name).await {
        Ok(Some(reading)) if context.check(&reading.tombstone, &name).is_ok() => {
            let _ = context.tombstones.found(&name, Some(&reading));
        }
        // After the seal nobody keeps them.
        Ok(_) if !context.process.is_sealed() => {
            tracing::warn!(
                lock = name.as_str(),
                "the tombstone of a lock that is held is gone: the guard is lost"
            );
            let lost = context.tombstones.found(&name, None);
            context.tombstones.forget(&name);
            for halves in lost.iter().filter_map(Weak::upgrade) {
                // A release that has begun may take long, and other tombstones do not wait for it.
                let end = async move { halves.end(LossReason::Removed).await };
                context.cleanup.spawn(&Handle::current(), end);
            }
        }
        Ok(_) => {}
        Err(error) => tracing::debug!(%error, lock = name.as_str(), "a tombstone cannot be read now"),
    }
}

const AT_ONCE: usize = 32;
