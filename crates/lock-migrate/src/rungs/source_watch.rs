//! Looks which servers the old store has, and whether it answers.
//!
//! Behind sentinels and in a cluster, no URL names all servers. And what an operator cannot reach, a process may.

use std::sync::Weak;
use std::time::{Duration, Instant};

use lock_core::ErrorKind;
use tokio::time::sleep;

use crate::context::Context;
use crate::rungs::source_seen::SourceSeen;

/// Looks every few seconds, until the seal.
pub(crate) async fn watch(context: Weak<Context>) {
    loop {
        let Some(context) = context.upgrade() else { return };
        if context.process.is_sealed() {
            return context.process.note_source(|seen| *seen = SourceSeen::default());
        }
        // A store that was not connected yet has no source.
        if let Ok(source) = context.source() {
            match source.servers().await {
                Ok(servers) => context.process.note_source(|seen| seen.found(servers, Instant::now())),
                Err(error) if error.kind() == ErrorKind::Closed => return,
                // One that refuses runs.
                Err(error) => {
                    let answers = error.kind() != ErrorKind::Unavailable;
                    context.process.note_source(|seen| seen.found_none(answers));
                }
            }
        }
        drop(context);
        sleep(LOOK).await;
    }
}

/// How often a process looks.
const LOOK: Duration = Duration::from_secs(10);
