//! Clients in other languages.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::{Client, Peer, Site};
use crate::program::{Kind, Program, millis};

/// A client in a process of its own.
pub struct Remote {
    client: Client,
    servers: Vec<String>,
    program: Program,
}

impl Remote {
    pub async fn new(client: Client, site: &Arc<Site>) -> Self {
        let kind = if client == Client::NodeRedlock { Kind::RedisNode } else { Kind::RedisPython };
        let program = Program::start(kind, &site.idle).await;
        Self { client, servers: site.urls().await, program }
    }
}

#[async_trait]
impl Peer for Remote {
    async fn acquire(&mut self, name: &str, ttl: Option<Duration>, wait: Duration) -> bool {
        let request = json!({
            "call": "acquire",
            "client": self.client.to_string(),
            "servers": self.servers,
            "name": name,
            "ttl": ttl.map(millis),
            "wait": millis(wait),
        });
        self.program.call(request, wait).await
    }

    async fn extend(&mut self, ttl: Duration) -> bool {
        self.program.call(json!({ "call": "extend", "ttl": millis(ttl) }), Duration::ZERO).await
    }

    async fn release(&mut self) -> Option<bool> {
        Some(self.program.call(json!({ "call": "release" }), Duration::ZERO).await)
    }
}
