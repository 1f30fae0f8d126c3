//! One connection over which a server pushes notifications.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use lock_core::Result;
use redis::aio::{MultiplexedConnection, PubSubSink, PubSubStream};
use redis::{Cmd, PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::connect::greeting::Greeting;
use crate::error::{Cause, Failure, is_refusal};
use crate::route::client::RedisClient;

/// The message that tests the right to publish on an inbox. It says nothing.
pub(crate) const RIGHTS_TEST: &str = "";

/// A push connection: over RESP3, or RESP2 if the server refuses RESP3.
pub(crate) enum PushConnection {
    Resp3 { connection: MultiplexedConnection, events: UnboundedReceiver<Option<Event>> },
    Resp2 { sink: PubSubSink, messages: PubSubStream, on_event: Arc<OnEvent> },
}

/// The handler of events, called as soon as each arrives; an event that it returns is passed on by [`PushConnection::next`].
pub(crate) type OnEvent = dyn Fn(Event) -> Option<Event> + Send + Sync;

/// A channel to subscribe.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    pub(crate) name: String,
    pub(crate) sharded: bool,
}

/// An event that a server pushes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A message on a channel.
    Message { channel: String, text: String },
    /// A watched key has changed; with `None`, all of them may have.
    Changed(Option<String>),
    /// The node has given a sharded channel away.
    Unsubscribed { channel: String },
}

impl PushConnection {
    /// Opens the connection.
    pub(crate) async fn connect(client: &RedisClient, node: &str, on_event: Arc<OnEvent>) -> Result<Self> {
        let node = client.node_named(node).await?;
        let (left, events) = unbounded_channel();
        let on_push = {
            let on_event = Arc::clone(&on_event);
            move |push: PushInfo| match event(&push) {
                Some(event) => on_event(event).map_or(Ok(()), |event| left.send(Some(event))),
                None if push.kind == PushKind::Disconnection => left.send(None),
                None => Ok(()),
            }
        };
        match client.pushes(&node, Arc::new(on_push)).await {
            Ok(Some(connection)) => Ok(Self::Resp3 { connection, events }),
            Err(error) => Err(error),
            // The server, or a proxy before it, does not speak RESP3.
            Ok(None) => {
                let (sink, messages) = client.messages(&node).await?.split();
                Ok(Self::Resp2 { sink, messages, on_event })
            }
        }
    }

    /// Whether the server user may publish on these channels; true if that cannot be tested.
    pub(crate) async fn may_publish(
        &self,
        client: &RedisClient,
        channels: impl Iterator<Item = &Channel>,
    ) -> bool {
        let each = channels.map(|channel| {
            let mut publish = redis::cmd(if channel.sharded { "SPUBLISH" } else { "PUBLISH" });
            publish.arg(&channel.name).arg(RIGHTS_TEST);
            async move { self.is_refused(client, publish).await }
        });
        !join_all(each).await.contains(&true)
    }

    /// Whether the server refuses the command. A RESP2 connection with subscriptions takes no other command: there, the connection
    /// of the requests does.
    async fn is_refused(&self, client: &RedisClient, command: Cmd) -> bool {
        match self {
            Self::Resp3 { connection, .. } => {
                let answer = command.query_async::<Value>(&mut connection.clone()).await;
                answer.is_err_and(|error| is_refusal(&error))
            }
            Self::Resp2 { .. } => {
                let mut commands = redis::pipe();
                commands.add_command(command);
                let answer = client.send_each(&commands, &client.dispatch()).await;
                matches!(answer, Some(Err(Failure::Refused(error))) if is_refusal(&error))
            }
        }
    }

    /// Enables client tracking: the server reports changes of keys that were read over this connection. Returns the
    /// connection to read them over, or `None` if tracking is not available; and whether the server is a replica, if it says so.
    pub(crate) async fn begin(&mut self) -> RedisResult<(Option<MultiplexedConnection>, bool)> {
        let Self::Resp3 { connection, .. } = self else { return Ok((None, false)) };
        let mut commands = redis::pipe();
        commands.ignore_errors().cmd("CLIENT").arg("TRACKING").arg("ON").cmd("HELLO");
        let answers = commands.query_async::<Vec<RedisResult<Value>>>(connection).await?;
        let [tracks, hello] = <[_; 2]>::try_from(answers)
            .map_err(|_| RedisError::from((redis::ErrorKind::Parse, "an answer is missing")))?;
        let tracking = match tracks {
            Ok(_) => Some(connection.clone()),
            Err(error) if is_refusal(&error) => {
                let error = Cause::of(&error);
                tracing::debug!(%error, "client tracking is refused: releases by other clients are noticed later");
                None
            }
            Err(error) => return Err(error),
        };
        Ok((tracking, hello.is_ok_and(|hello| Greeting::of_hello(&hello).is_replica())))
    }

    /// Subscribes to these channels in one round trip, and returns the answer to each.
    pub(crate) async fn subscribe_all(&mut self, channels: &[Channel]) -> Vec<RedisResult<()>> {
        if let Self::Resp3 { connection, .. } = self {
            let each = channels.iter().map(|channel| {
                let mut connection = connection.clone();
                async move {
                    match channel.sharded {
                        true => {
                            redis::cmd("SSUBSCRIBE").arg(&channel.name).query_async(&mut connection).await
                        }
                        false => connection.subscribe(&channel.name).await,
                    }
                }
            });
            return join_all(each).await;
        }
        let mut answers = Vec::with_capacity(channels.len());
        for Channel { name, sharded } in channels {
            answers.push(self.subscribe(name, *sharded).await);
        }
        answers
    }

    pub(crate) async fn subscribe(&mut self, channel: &str, sharded: bool) -> RedisResult<()> {
        match self {
            Self::Resp3 { connection, .. } if sharded => {
                redis::cmd("SSUBSCRIBE").arg(channel).query_async(connection).await
            }
            Self::Resp3 { connection, .. } => connection.subscribe(channel).await,
            // The driver's RESP2 connection does not support sharded pub/sub.
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

    /// Asks the server for a sign of life, and reports whether it is a replica, if it says so.
    pub(crate) async fn ping(&mut self) -> RedisResult<bool> {
        let answer: Value = match self {
            Self::Resp3 { connection, .. } => redis::cmd("HELLO").query_async(connection).await?,
            Self::Resp2 { sink, .. } => sink.ping().await?,
        };
        Ok(Greeting::of_hello(&answer).is_replica())
    }

    /// The next event that the handler returned; `None` when the connection has ended.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        match self {
            Self::Resp3 { events, .. } => events.recv().await?,
            Self::Resp2 { messages, on_event, .. } => loop {
                let message = messages.next().await?;
                let text = String::from_utf8_lossy(message.get_payload_bytes()).into_owned();
                let left = on_event(Event::Message { channel: message.get_channel_name().to_owned(), text });
                if left.is_some() {
                    return left;
                }
            },
        }
    }
}

fn event(push: &PushInfo) -> Option<Event> {
    match (&push.kind, push.data.as_slice()) {
        (PushKind::Message | PushKind::SMessage, [channel, text]) => {
            Some(Event::Message { channel: text_of(channel)?, text: text_of(text)? })
        }
        (PushKind::Invalidate, [Value::Array(keys)]) => {
            // Servers send one key at a time.
            Some(Event::Changed(keys.first().and_then(text_of)))
        }
        (PushKind::Invalidate, _) => Some(Event::Changed(None)),
        (PushKind::SUnsubscribe, [channel, ..]) => Some(Event::Unsubscribed { channel: text_of(channel)? }),
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

    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn pushes_are_parsed() {
        let on_push = |kind, data| event(&PushInfo { kind, data });
        let message = Event::Message { channel: "c".into(), text: "t".into() };
        assert_eq!(on_push(PushKind::Message, vec![bulk("c"), bulk("t")]), Some(message));
        let changed = on_push(PushKind::Invalidate, vec![Value::Array(vec![bulk("k")])]);
        assert_eq!(changed, Some(Event::Changed(Some("k".into()))));
        assert_eq!(on_push(PushKind::Invalidate, vec![Value::Nil]), Some(Event::Changed(None)));
        let gone = on_push(PushKind::SUnsubscribe, vec![bulk("c"), Value::Int(0)]);
        assert_eq!(gone, Some(Event::Unsubscribed { channel: "c".into() }));
        assert_eq!(on_push(PushKind::Subscribe, vec![bulk("c"), Value::Int(1)]), None);
    }
}
