//! Reads a watched node, unless what it holds is known.

use std::mem;
use std::time::Duration;

use futures_util::future::join;
use tokio::time::timeout;

use crate::error::Fault;
use crate::nodes::watched_node::{Content, WatchedNode};
use crate::nodes::watches::{Need, Watch};
use crate::sessions::session::Session;

impl WatchedNode {
    /// What the node holds, and watches it first unless that is known; nothing if it does not exist.
    pub(crate) async fn content(&self, session: &Session) -> Result<Option<Content>, Fault> {
        if let Some(content) = self.newest() {
            return Ok(content);
        }
        // The task that reads may be paused. So others wait for a limited time, and then read too.
        let _turn = timeout(TURN, self.reading.lock()).await;
        if let Some(content) = self.newest() {
            return Ok(content);
        }
        let (watch, content) = session.retry_until_definite(|| self.read_newest(session)).await?;
        let mut known = self.known();
        (known.content, known.watch) = (content.clone(), watch);
        Ok(content)
    }

    /// Reads and watches the node; from the second time on, as the quorum knows it.
    async fn read_newest(&self, session: &Session) -> Result<(Option<Watch>, Option<Content>), Fault> {
        if !mem::replace(&mut self.known().was_read, true) {
            return self.read_and_watch(session).await;
        }
        let (passed, read) = join(session.pass_quorum(&self.path), self.read_and_watch(session)).await;
        passed.and(read)
    }

    /// There is no watch if the session has no room for it; the next acquisition then reads the node again.
    async fn read_and_watch(&self, session: &Session) -> Result<(Option<Watch>, Option<Content>), Fault> {
        let room = || self.claim.room(&self.path, Need::Must);
        loop {
            let read = match room() {
                Some(room) => session
                    .watch_in(room, &self.path)
                    .await
                    .map(|(watch, data, stat)| (Some(watch), data, stat)),
                None => session.data(&self.path).await.map(|(data, stat)| (None, data, stat)),
            };
            match read {
                Ok((watch, data, stat)) => return Ok((watch, Some(Content { data: data.into(), stat }))),
                Err(fault) if fault.is_no_node() => {}
                Err(fault) => return Err(fault),
            }
            let (stat, watch) = match room() {
                Some(room) => {
                    let (stat, watch) = session.watch_absence_in(room, &self.path).await?;
                    (stat, Some(watch))
                }
                None => (session.stat(&self.path).await?, None),
            };
            if stat.is_none() {
                return Ok((watch, None));
            }
        }
    }
}

/// How long a task waits for another one that reads.
const TURN: Duration = Duration::from_millis(200);
