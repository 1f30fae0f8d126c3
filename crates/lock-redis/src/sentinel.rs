//! The sentinels, which say who the master is.

use std::sync::Weak;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lock_core::{Error, ErrorKind, Result};
use redis::aio::{MultiplexedConnection, PubSubSink, PubSubStream};
use redis::{ConnectionInfo, RedisError, RedisResult, Value};
use tokio::time::{sleep, timeout};

use crate::dial::Dial;
use crate::error::Place;
use crate::link::Link;
use crate::topology::{SentinelInfo, at};

/// How often it is looked whether the sentinel is still there, and somebody to follow it for.
const LOOK_UP: Duration = Duration::from_secs(5);
/// The pause before the next sentinel is followed.
const PAUSE: Duration = Duration::from_millis(500);

type Address = (String, u16);

/// Asks the sentinels for the master: all at once, as some may be down or cut off.
///
/// The master that most of them name comes first, and as soon as more than half name it the rest is not
/// waited for. Who is named has yet to be asked for its role: a sentinel that was cut off names the old
/// master.
pub(crate) async fn masters(
    sentinels: &SentinelInfo,
    dialer: &dyn Dial,
    patience: Duration,
    place: &Place,
) -> Result<Vec<ConnectionInfo>> {
    let asked = sentinels.sentinels.iter().map(|sentinel| ask(dialer, sentinel, &sentinels.name, patience));
    let mut asked: FuturesUnordered<_> = asked.collect();
    let mut poll = Poll::default();
    while let Some(answer) = asked.next().await {
        poll.count(answer);
        if poll.is_decided(sentinels.sentinels.len()) {
            break;
        }
    }
    if poll.votes.is_empty() {
        return Err(poll.failure(&sentinels.name, place));
    }
    poll.votes.sort_by_key(|(_, votes)| std::cmp::Reverse(*votes));
    Ok(poll.votes.iter().map(|((host, port), _)| at(&sentinels.master, host, *port)).collect())
}

/// Follows one of the sentinels for as long as the link is there: after a failover the old master may
/// go on for many seconds before it is turned into a replica, and what it is told then is lost.
pub(crate) async fn follow(link: Weak<Link>) {
    for turn in 0.. {
        let Some((sentinels, settings)) = link.upgrade().and_then(|link| link.sentinels()) else { return };
        let sentinel = &sentinels.sentinels[turn % sentinels.sentinels.len()];
        let listening = timeout(settings.connect_timeout, listen(&*settings.dialer, sentinel)).await;
        if let Ok(Ok((mut questions, mut messages))) = listening {
            loop {
                match timeout(LOOK_UP, messages.next()).await {
                    Ok(Some(message)) => {
                        let Some(link) = link.upgrade() else { return };
                        let told = message.get_payload::<String>().unwrap_or_default();
                        if let Some((host, port)) = switched(&told, &sentinels.name) {
                            link.leave_for(at(&sentinels.master, &host, port));
                        }
                    }
                    Ok(None) => break,
                    Err(_) if link.upgrade().and_then(|link| link.sentinels()).is_none() => return,
                    // One that has died without a word is not followed any longer. An error is a sign of life.
                    Err(_) => match timeout(settings.command_timeout, questions.ping::<Value>()).await {
                        Ok(Ok(_)) => {}
                        Ok(Err(error)) if error.code().is_some() => {}
                        _ => break,
                    },
                }
            }
        }
        sleep(PAUSE).await;
    }
}

async fn listen(dialer: &dyn Dial, sentinel: &ConnectionInfo) -> RedisResult<(PubSubSink, PubSubStream)> {
    let mut connection = dialer.messages(sentinel).await?;
    connection.subscribe("+switch-master").await?;
    Ok(connection.split())
}

/// The new master, if the message is about the master of this name:
/// `name old-host old-port new-host new-port`.
fn switched(message: &str, name: &str) -> Option<Address> {
    let words: Vec<_> = message.split(' ').collect();
    match words[..] {
        [about, _, _, host, port] if about == name => Some((host.to_owned(), port.parse().ok()?)),
        _ => None,
    }
}

/// What the sentinels said so far.
#[derive(Default)]
struct Poll {
    votes: Vec<(Address, usize)>,
    /// How many know no master of this name.
    ignorant: usize,
    failed: Option<RedisError>,
}

impl Poll {
    fn count(&mut self, answer: RedisResult<Option<Address>>) {
        match answer {
            Ok(Some(master)) => match self.votes.iter_mut().find(|(known, _)| *known == master) {
                Some((_, votes)) => *votes += 1,
                None => self.votes.push((master, 1)),
            },
            Ok(None) => self.ignorant += 1,
            Err(error) => self.failed = Some(error),
        }
    }

    fn is_decided(&self, sentinels: usize) -> bool {
        self.votes.iter().any(|(_, votes)| *votes > sentinels / 2)
    }

    fn failure(self, name: &str, place: &Place) -> Error {
        match self.failed {
            Some(error) if self.ignorant == 0 => place.unreachable(&error),
            _ => place
                .error(ErrorKind::InvalidConfig, &format!("the sentinels know no master named {name:?}"))
                .hint("check the name after the hosts: redis+sentinel://host:port/name"),
        }
    }
}

async fn ask(
    dialer: &dyn Dial,
    sentinel: &ConnectionInfo,
    name: &str,
    patience: Duration,
) -> RedisResult<Option<Address>> {
    let answer = async {
        let mut connection: MultiplexedConnection = dialer.commands(sentinel).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(name).query_async(&mut connection).await
    };
    match timeout(patience, answer).await {
        Ok(answer) => answer,
        Err(_) => Err((redis::ErrorKind::Io, "a sentinel did not answer in time").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_decide() {
        let (old, new) = (("a".to_owned(), 1), ("b".to_owned(), 1));
        let mut poll = Poll::default();
        poll.count(Ok(Some(old)));
        poll.count(Ok(Some(new.clone())));
        assert!(!poll.is_decided(3));
        poll.count(Ok(Some(new)));
        assert!(poll.is_decided(3));
    }

    #[test]
    fn switches() {
        let new = Some(("127.0.0.1".to_owned(), 7001));
        assert_eq!(switched("main 127.0.0.1 7000 127.0.0.1 7001", "main"), new);
        assert_eq!(switched("other 127.0.0.1 7000 127.0.0.1 7001", "main"), None);
        assert_eq!(switched("main", "main"), None);
    }

    #[test]
    fn an_unknown_name_is_told_before_a_sentinel_that_is_down() {
        let place = Place { backend: "redis", address: "h".into() };
        let mut poll = Poll::default();
        poll.count(Err((redis::ErrorKind::Io, "down").into()));
        poll.count(Ok(None));
        assert_eq!(poll.failure("main", &place).kind(), ErrorKind::InvalidConfig);
    }
}
