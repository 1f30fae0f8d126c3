//! One connection over which a server pushes notifications.

use std::sync::Arc;

use futures_util::StreamExt as _;
use lock_core::Result;
use redis::aio::{MultiplexedConnection, PubSubSink, PubSubStream};
use redis::{PushInfo, PushKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::client::RedisClient;
use crate::error::{Cause, code};

/// A push connection: RESP3 where the server has it, RESP2 where not.
pub(crate) enum PushConnection {
    Resp3 { connection: MultiplexedConnection, rest: UnboundedReceiver<Option<Event>> },
    Resp2 { sink: PubSubSink, messages: PubSubStream, hear: Arc<OnEvent> },
}

/// Who hears what is pushed, in the moment in which it arrives; what it gives back is left to the one who reads the line.
pub(crate) type OnEvent = dyn Fn(Event) -> Option<Event> + Send + Sync;

/// What a server pushes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A message on a channel.
    Message { channel: String, text: String },
    /// A key that is watched has changed, or all of them when `None`.
    Changed(Option<String>),
    /// The node has given a channel of a shard away.
    Gone { channel: String },
}

impl PushConnection {
    /// Makes the connection.
    pub(crate) async fn connect(client: &RedisClient, node: &str, hear: Arc<OnEvent>) -> Result<Self> {
        let node = client.node_named(node).await?;
        let (left, rest) = unbounded_channel();
        let told = {
            let hear = Arc::clone(&hear);
            move |push: PushInfo| match event(&push) {
                Some(event) => hear(event).map_or(Ok(()), |event| left.send(Some(event))),
                None if push.kind == PushKind::Disconnection => left.send(None),
                None => Ok(()),
            }
        };
        match client.pushes(&node, Arc::new(told)).await {
            Ok(Some(connection)) => Ok(Self::Resp3 { connection, rest }),
            Err(error) => Err(error),
            // It speaks no RESP3, or a proxy before it does not.
            Ok(None) => {
                let (sink, messages) = client.messages(&node).await?.split();
                Ok(Self::Resp2 { sink, messages, hear })
            }
        }
    }

    /// Whether the server lets us publish on this channel, as scripts do; true when it cannot be asked.
    pub(crate) async fn may_publish(&mut self, channel: &str, sharded: bool) -> bool {
        let Self::Resp3 { connection, .. } = self else { return true };
        let mut publish = redis::cmd(if sharded { "SPUBLISH" } else { "PUBLISH" });
        let answer = publish.arg(channel).arg("").query_async::<i64>(connection).await;
        answer.err().is_none_or(|error| error.kind() != redis::ErrorKind::Server(ServerErrorKind::NoPerm))
    }

    /// Lets the server tell when keys change that were read over this connection; gives the connection to
    /// read them over, or `None` where that is not to be had.
    pub(crate) async fn track(&mut self) -> RedisResult<Option<MultiplexedConnection>> {
        let Self::Resp3 { connection, .. } = self else { return Ok(None) };
        let mut command = redis::cmd("CLIENT");
        match command.arg("TRACKING").arg("ON").query_async::<()>(connection).await {
            Ok(()) => Ok(Some(connection.clone())),
            Err(error) if is_refusal(&error) => {
                let error = Cause::of(&error);
                tracing::debug!(%error, "no client-side caching: what other clients do is seen later");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn subscribe(&mut self, channel: &str, sharded: bool) -> RedisResult<()> {
        match self {
            Self::Resp3 { connection, .. } if sharded => {
                redis::cmd("SSUBSCRIBE").arg(channel).query_async(connection).await
            }
            Self::Resp3 { connection, .. } => connection.subscribe(channel).await,
            // The driver's RESP2 connection knows no shards.
            Self::Resp2 { .. } if sharded => Err((redis::ErrorKind::Client, "no sharded pub/sub").into()),
            Self::Resp2 { sink, .. } => sink.subscribe(channel).await,
        }
    }

    pub(crate) async fn unsubscribe(&mut self, channel: &str, sharded: bool) -> RedisResult<()> {
        match self {
            Self::Resp3 { connection, .. } if sharded => {
                redis::cmd("SUNSUBSCRIBE").arg(channel).query_async(connection).await
            }
            Self::Resp3 { connection, .. } => connection.unsubscribe(channel).await,
            Self::Resp2 { sink, .. } => sink.unsubscribe(channel).await,
        }
    }

    pub(crate) async fn ping(&mut self) -> RedisResult<Value> {
        match self {
            Self::Resp3 { connection, .. } => redis::cmd("PING").query_async(connection).await,
            Self::Resp2 { sink, .. } => sink.ping().await,
        }
    }

    /// What is left to us of what is pushed; `None` when the connection has ended.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        match self {
            Self::Resp3 { rest, .. } => rest.recv().await?,
            Self::Resp2 { messages, hear, .. } => loop {
                let message = messages.next().await?;
                let text = String::from_utf8_lossy(message.get_payload_bytes()).into_owned();
                let left = hear(Event::Message { channel: message.get_channel_name().to_owned(), text });
                if left.is_some() {
                    return left;
                }
            },
        }
    }
}

/// Whether the server, or the driver for it, says that this is not allowed, or that it does not know it. What passes, as
/// while a password is changed or a server loads its data, is no refusal.
pub(crate) fn is_refusal(error: &RedisError) -> bool {
    matches!(code(error), "NOPERM" | "ERR") || error.kind() == redis::ErrorKind::Client
}

fn event(push: &PushInfo) -> Option<Event> {
    match (&push.kind, push.data.as_slice()) {
        (PushKind::Message | PushKind::SMessage, [channel, text]) => {
            Some(Event::Message { channel: text_of(channel)?, text: text_of(text)? })
        }
        (PushKind::Invalidate, [Value::Array(keys)]) => {
            // One at a time is what servers send.
            Some(Event::Changed(keys.first().and_then(text_of)))
        }
        (PushKind::Invalidate, _) => Some(Event::Changed(None)),
        (PushKind::SUnsubscribe, [channel, ..]) => Some(Event::Gone { channel: text_of(channel)? }),
        _ => None,
    }
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use redis::make_extension_error;

    use super::*;

    #[test]
    fn only_what_may_not_be_is_refused() {
        let refused =
            |code: &str, detail: &str| is_refusal(&make_extension_error(code.into(), Some(detail.into())));
        assert!(refused("NOPERM", "this user has no permissions to run the 'subscribe' command"));
        assert!(refused("ERR", "unknown command 'SUBSCRIBE'"));
        for passes in ["NOAUTH", "WRONGPASS", "LOADING", "MASTERDOWN", "BUSY", "CLUSTERDOWN"] {
            assert!(!refused(passes, "for now"), "{passes}");
        }
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn pushes_are_understood() {
        let told = |kind, data| event(&PushInfo { kind, data });
        let message = Event::Message { channel: "c".into(), text: "t".into() };
        assert_eq!(told(PushKind::Message, vec![bulk("c"), bulk("t")]), Some(message));
        let changed = told(PushKind::Invalidate, vec![Value::Array(vec![bulk("k")])]);
        assert_eq!(changed, Some(Event::Changed(Some("k".into()))));
        assert_eq!(told(PushKind::Invalidate, vec![Value::Nil]), Some(Event::Changed(None)));
        let gone = told(PushKind::SUnsubscribe, vec![bulk("c"), Value::Int(0)]);
        assert_eq!(gone, Some(Event::Gone { channel: "c".into() }));
        assert_eq!(told(PushKind::Subscribe, vec![bulk("c"), Value::Int(1)]), None);
    }
}
