//! Clients in other languages.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::{Client, Peer, Site};
use crate::peers::program::{Kind, Program, millis};

/// A client in a process of its own.
pub struct Remote {
    client: Client,
    servers: Vec<String>,
    program: Program,
}

impl Remote {
    pub async fn new(client: Client, site: &Arc<Site>) -> Self {
        let kind = match client {
            Client::NodeRedlock => Kind::RedisNode,
            Client::Redisson | Client::RedissonFair => Kind::Redisson,
            _ => Kind::RedisPython,
        };
        let (mut program, servers) = (Program::start(kind, &site.idle).await, site.urls().await);
        if kind == Kind::Redisson {
            // In a new process it takes seconds, which is more than some locks last.
            let request = json!({ "call": "connect", "servers": servers });
            assert!(program.call(request, Duration::ZERO).await);
        }
        Self { client, servers, program }
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

    async fn met_another_type(&mut self) -> bool {
        let asks = matches!(self.client, Client::Redisson | Client::RedissonFair);
        asks && self.program.call(json!({ "call": "met_another_type" }), Duration::ZERO).await
    }

    async fn release(&mut self) -> Option<bool> {
        Some(self.program.call(json!({ "call": "release" }), Duration::ZERO).await)
    }

    async fn reset(&mut self) -> bool {
        let resets = self.client == Client::PythonRedisLock;
        resets && self.program.call(json!({ "call": "reset" }), Duration::ZERO).await
    }
}
