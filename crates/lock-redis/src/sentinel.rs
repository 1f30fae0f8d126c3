//! The sentinels, which say who the master is.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lock_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, RedisError, RedisResult};
use tokio::time::timeout;

use crate::dial::Dial;
use crate::error::Place;
use crate::topology::{SentinelInfo, at};

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
    fn an_unknown_name_is_told_before_a_sentinel_that_is_down() {
        let place = Place { backend: "redis", address: "h".into() };
        let mut poll = Poll::default();
        poll.count(Err((redis::ErrorKind::Io, "down").into()));
        poll.count(Ok(None));
        assert_eq!(poll.failure("main", &place).kind(), ErrorKind::InvalidConfig);
    }
}
