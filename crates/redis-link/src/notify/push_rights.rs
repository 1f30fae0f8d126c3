//! The rights that waiters need, tested before the first wait.

use std::sync::Arc;

use lock_core::{Finding, FindingLevel};

use crate::error::{LISTEN_RIGHTS, SHARD_RIGHTS, TRACK_RIGHTS, is_refusal};
use crate::notify::push_connection::{Channel, PushConnection};
use crate::route::client::RedisClient;

/// Channels without listeners.
const INBOX: &str = "polylock:inbox:doctor";
const FREE: &str = "polylock:free:doctor";

/// The outcome of testing the rights of waiters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PushRights {
    /// Whether there is a wait queue; without one, all waiters are notified at once.
    queues: bool,
    speaks_resp3: bool,
    tracks: bool,
    subscribes: bool,
    publishes: bool,
    sharded: bool,
}

impl PushRights {
    /// Tests the rights on a connection that is closed afterwards; `None` if the test fails.
    pub(crate) async fn of(client: &RedisClient, node: &str, queues: bool) -> Option<Self> {
        // Releases are published to all nodes; an inbox is in the slot of the lock.
        let (name, sharded) = if queues { (INBOX, client.is_cluster()) } else { (FREE, false) };
        let channel = Channel { name: name.to_owned(), sharded };
        let mut connection = PushConnection::connect(client, node, Arc::new(Some)).await.ok()?;
        let speaks_resp3 = matches!(connection, PushConnection::Resp3 { .. });
        let tracks = queues && connection.begin().await.ok()?.0.is_some();
        let subscribes = match connection.subscribe(name, sharded).await {
            Ok(()) => true,
            // Another node has the slot of this channel: the rights were checked before that.
            Err(error) if error.is_cluster_error() => true,
            Err(error) if is_refusal(&error) => false,
            Err(_) => return None,
        };
        let publishes = connection.may_publish(client, [&channel].into_iter()).await;
        Some(Self { queues, speaks_resp3, tracks, subscribes, publishes, sharded })
    }

    /// Whether waiters cannot be notified.
    pub(crate) fn has_to_poll(&self) -> bool {
        !self.subscribes || self.queues && !self.publishes
    }

    /// The findings about this server.
    pub(crate) fn findings(&self, server: &str) -> Vec<Finding> {
        let [subscribe, publish] =
            if self.sharded { ["SSUBSCRIBE", "SPUBLISH"] } else { ["SUBSCRIBE", "PUBLISH"] };
        let give = format!("give the user the rights: ACL SETUSER ... +publish {}", self.rights());
        let polls = "waiters have to poll";
        let late = "a release by another client is noticed seconds later";
        let unpublished = if self.queues { polls } else { "a release is noticed seconds later" };
        let lacks_tracking = self.queues && self.speaks_resp3 && !self.tracks;
        let lacks = [
            (
                self.queues && !self.speaks_resp3,
                format!("RESP3 is refused: {late}"),
                "allow HELLO 3".to_owned(),
            ),
            (lacks_tracking, format!("CLIENT TRACKING is refused: {late}"), give.clone()),
            (!self.subscribes, format!("{subscribe} is refused: {polls}"), give.clone()),
            (!self.publishes, format!("{publish} is refused: {unpublished}"), give),
        ];
        let found = lacks.into_iter().filter(|(is_lacking, ..)| *is_lacking);
        found.map(|(_, what, advice)| warning(server, what, advice)).collect()
    }

    fn rights(&self) -> String {
        let mut rights = vec![LISTEN_RIGHTS];
        rights.extend(self.queues.then_some(TRACK_RIGHTS));
        rights.extend(self.sharded.then_some(SHARD_RIGHTS));
        rights.join(" ")
    }
}

/// The finding for a process that polls because the server refused pub/sub.
pub(crate) fn gave_up(server: &str) -> Finding {
    warning(
        server,
        String::from("the server refused SUBSCRIBE or PUBLISH, and waiters of this process poll since then"),
        String::from("wait: the process tries again within a minute"),
    )
}

fn warning(server: &str, what: String, advice: String) -> Finding {
    Finding::new(FindingLevel::Warning, server, what, advice)
}
