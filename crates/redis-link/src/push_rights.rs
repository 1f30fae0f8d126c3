//! What a server allows those who wait, found out before anybody does.

use std::sync::Arc;

use lock_core::{Finding, FindingLevel};

use crate::client::RedisClient;
use crate::error::{LISTEN_RIGHTS, SHARD_RIGHTS, TRACK_RIGHTS};
use crate::push_connection::{PushConnection, is_refusal};

/// Channels on which nobody is told anything.
const INBOX: &str = "polylock:inbox:doctor";
const FREE: &str = "polylock:free:doctor";

/// What became of all that those need who wait in this way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PushRights {
    /// Whether they stand in a queue; otherwise they are notified all at once.
    queues: bool,
    speaks_resp3: bool,
    tracks: bool,
    subscribes: bool,
    publishes: bool,
    sharded: bool,
}

impl PushRights {
    /// Tries it on a connection that is closed afterwards; `None` when the server does not tell.
    pub(crate) async fn of(client: &RedisClient, node: &str, queues: bool) -> Option<Self> {
        // All nodes hear of a lock that is free; an inbox is in the slot of the lock.
        let (channel, sharded) = if queues { (INBOX, client.is_cluster()) } else { (FREE, false) };
        let mut connection = PushConnection::connect(client, node, Arc::new(Some)).await.ok()?;
        let speaks_resp3 = matches!(connection, PushConnection::Resp3 { .. });
        let tracks = queues && connection.track().await.ok()?.is_some();
        let subscribes = match connection.subscribe(channel, sharded).await {
            Ok(()) => true,
            // Another node has the slot of this channel: rights are looked at before that.
            Err(error) if error.is_cluster_error() => true,
            Err(error) if is_refusal(&error) => false,
            Err(_) => return None,
        };
        let publishes = connection.may_publish(channel, sharded).await;
        Some(Self { queues, speaks_resp3, tracks, subscribes, publishes, sharded })
    }

    /// Whether those who wait cannot be told.
    pub(crate) fn has_to_poll(&self) -> bool {
        !self.subscribes || self.queues && !self.publishes
    }

    /// What is done less well at this server.
    pub(crate) fn findings(&self, server: &str) -> Vec<Finding> {
        let [subscribe, publish] =
            if self.sharded { ["SSUBSCRIBE", "SPUBLISH"] } else { ["SUBSCRIBE", "PUBLISH"] };
        let give = format!("give the user the rights: ACL SETUSER ... +publish {}", self.rights());
        let polls = "who waits for a lock has to poll";
        let late = "a lock that another client gives back is noticed seconds later";
        let untold = if self.queues { polls } else { "a lock that is given back is noticed seconds later" };
        let lacks_tracking = self.queues && self.speaks_resp3 && !self.tracks;
        let lacks = [
            (
                self.queues && !self.speaks_resp3,
                format!("RESP3 is refused: {late}"),
                "allow HELLO 3".to_owned(),
            ),
            (lacks_tracking, format!("CLIENT TRACKING is refused: {late}"), give.clone()),
            (!self.subscribes, format!("{subscribe} is refused: {polls}"), give.clone()),
            (!self.publishes, format!("{publish} is refused: {untold}"), give),
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

/// Of a process that polls since the server refused what it needs.
pub(crate) fn gave_up(server: &str) -> Finding {
    warning(
        server,
        String::from("SUBSCRIBE or PUBLISH was refused to this process, which polls since then"),
        String::from("nothing is left to do: it tries again within a minute"),
    )
}

fn warning(server: &str, what: String, advice: String) -> Finding {
    Finding::new(FindingLevel::Warning, server, what, advice)
}
