//! Finds the master through its sentinels, and follows its changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lock_core::{Error, ErrorKind, Result};
use redis::aio::{PubSubSink, PubSubStream};
use redis::{ConnectionInfo, RedisError, RedisResult, Value};
use tokio::time::{sleep, timeout};

use crate::connect::connection::Connection;
use crate::connect::dial::{Dial, Settings};
use crate::connect::topology::{SentinelInfo, at};
use crate::error::{Endpoint, is_unknown_command};

/// How often the sentinels are asked for the master, and the followed sentinel is pinged.
const LOOK_UP: Duration = Duration::from_secs(5);
/// The pause before the next sentinel is tried; it grows with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

type Address = (String, u16);

/// Asks the sentinels for the master, all at once, as some may be down or partitioned.
///
/// Returns the candidates, the one with most votes first, as soon as more than half of the sentinels agree. The caller
/// has to check the role: a partitioned sentinel names the old master.
pub(crate) async fn masters(
    sentinels: &SentinelInfo,
    dialer: &dyn Dial,
    limit: Duration,
    endpoint: &Endpoint,
) -> Result<Vec<ConnectionInfo>> {
    let mut poll = Poll::of(sentinels, dialer, limit).await;
    if poll.votes.is_empty() {
        return Err(poll.failure(&sentinels.name, endpoint));
    }
    poll.votes.sort_by_key(|(_, votes)| std::cmp::Reverse(*votes));
    Ok(poll.votes.iter().map(|((host, port), _)| at(&sentinels.master, host, *port)).collect())
}

/// A connection to the master that sentinels name.
pub(crate) trait SentinelLink: Send + Sync + 'static {
    /// The sentinels, until the link is closed.
    fn sentinels(&self) -> Option<(SentinelInfo, Settings)>;

    /// Whether a task follows the sentinels.
    fn is_following(&self) -> &AtomicBool;

    /// The generation of the connection that is in use.
    fn generation(&self) -> Option<u64>;

    /// Drops a connection that does not lead to the master that a sentinel has just announced.
    fn leave_for(&self, master: ConnectionInfo);

    /// Drops this connection if it does not lead to the master that most sentinels name, unless a sentinel announced
    /// another master a moment ago.
    fn leave_if_elsewhere(&self, generation: u64, master: &ConnectionInfo);
}

/// The task that follows one of the sentinels while its link exists. After a failover the old master may accept writes
/// for many seconds before it becomes a replica, and these writes are lost.
pub(crate) struct Following<L: SentinelLink> {
    link: Weak<L>,
}

impl<L: SentinelLink> Following<L> {
    /// Starts the task for this link, unless it runs or the link has no sentinels.
    pub(crate) fn begin(link: &Arc<L>) {
        if link.is_following().load(Ordering::Relaxed) {
            return;
        }
        let Some((_, settings)) = link.sentinels() else { return };
        if !link.is_following().swap(true, Ordering::Relaxed) {
            let following = Self { link: Arc::downgrade(link) };
            drop(settings.home.driver().spawn(following.run()));
        }
    }

    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        for round in 0.. {
            let Some((sentinels, settings)) = self.sentinels() else { return };
            let sentinel = &sentinels.sentinels[round % sentinels.sentinels.len()];
            let listening =
                timeout(settings.connect_timeout, listen(&*settings.sentinel_dialer, sentinel)).await;
            match listening {
                Ok(Ok((sink, messages))) => {
                    pause = FIRST_PAUSE;
                    tokio::select! {
                        () = self.follow(&sentinels, messages) => {}
                        () = self.look_up(&sentinels, &settings, sink) => {}
                    }
                }
                _ => self.compare(&sentinels, &settings).await,
            }
            sleep(pause).await;
            pause = (pause * 2).min(LOOK_UP);
        }
    }

    /// Follows the announcements of the sentinel until the connection to it ends.
    async fn follow(&self, sentinels: &SentinelInfo, mut messages: PubSubStream) {
        while let Some(message) = messages.next().await {
            let Some(link) = self.link.upgrade() else { return };
            let message = message.get_payload::<String>().unwrap_or_default();
            if let Some((host, port)) = switched(&message, &sentinels.name) {
                link.leave_for(at(&sentinels.master, &host, port));
            }
        }
    }

    /// Asks for the master periodically, until the link is closed or the sentinel stops answering.
    async fn look_up(&self, sentinels: &SentinelInfo, settings: &Settings, mut sink: PubSubSink) {
        while self.sentinels().is_some() {
            // Announcements from before the subscription, or to a partitioned sentinel, are not repeated.
            self.compare(sentinels, settings).await;
            sleep(LOOK_UP).await;
            // An error reply counts as an answer.
            match timeout(settings.command_timeout, sink.ping::<Value>()).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) if error.code().is_some() => {}
                _ => return,
            }
        }
    }

    async fn compare(&self, sentinels: &SentinelInfo, settings: &Settings) {
        // Read before the poll: a connection that is opened meanwhile may be newer than the answers.
        let Some(connection) = self.link.upgrade().and_then(|link| link.generation()) else { return };
        let poll = Poll::of(sentinels, &*settings.sentinel_dialer, settings.connect_timeout / 2).await;
        let Some((host, port)) = poll.decision(sentinels.sentinels.len()) else { return };
        if let Some(link) = self.link.upgrade() {
            link.leave_if_elsewhere(connection, &at(&sentinels.master, host, *port));
        }
    }

    fn sentinels(&self) -> Option<(SentinelInfo, Settings)> {
        self.link.upgrade()?.sentinels()
    }
}

impl<L: SentinelLink> Drop for Following<L> {
    /// Ends with the task, even if its runtime was shut down: the next connection starts another.
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.is_following().store(false, Ordering::Relaxed);
        }
    }
}

async fn listen(dialer: &dyn Dial, sentinel: &ConnectionInfo) -> RedisResult<(PubSubSink, PubSubStream)> {
    let mut connection = dialer.messages(sentinel).await?;
    connection.subscribe("+switch-master").await?;
    Ok(connection.split())
}

/// Parses `name old-host old-port new-host new-port`; the new master, if the name is this one.
fn switched(message: &str, name: &str) -> Option<Address> {
    let words: Vec<_> = message.split(' ').collect();
    match words[..] {
        [about, _, _, host, port] if about == name => Some((host.to_owned(), port.parse().ok()?)),
        _ => None,
    }
}

/// The answers of the sentinels so far.
#[derive(Default)]
struct Poll {
    votes: Vec<(Address, usize)>,
    /// The number of sentinels that know no master of this name.
    unknown: usize,
    failed: Option<RedisError>,
}

impl Poll {
    /// Asks all sentinels, until more than half agree or the limit.
    async fn of(sentinels: &SentinelInfo, dialer: &dyn Dial, limit: Duration) -> Self {
        let all = &sentinels.sentinels;
        let asked = all.iter().map(|sentinel| ask(dialer, sentinel, &sentinels.name, limit));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut poll = Self::default();
        while let Some(answer) = asked.next().await {
            poll.count(answer);
            if poll.decision(all.len()).is_some() {
                break;
            }
        }
        poll
    }

    fn count(&mut self, answer: RedisResult<Option<Address>>) {
        match answer {
            Ok(Some(master)) => match self.votes.iter_mut().find(|(known, _)| *known == master) {
                Some((_, votes)) => *votes += 1,
                None => self.votes.push((master, 1)),
            },
            Ok(None) => self.unknown += 1,
            Err(error) => self.failed = Some(error),
        }
    }

    /// The master that more than half of all sentinels name.
    fn decision(&self, sentinels: usize) -> Option<&Address> {
        self.votes.iter().find(|(_, votes)| *votes > sentinels / 2).map(|(master, _)| master)
    }

    fn failure(self, name: &str, endpoint: &Endpoint) -> Error {
        match self.failed {
            Some(error) if self.unknown == 0 && is_unknown_command(&error) => endpoint.is_no_sentinel(&error),
            Some(error) if self.unknown == 0 => {
                let error = endpoint.unreachable(&error);
                if error.kind() != ErrorKind::Denied {
                    return error;
                }
                error.with_hint(
                    "check sentinel_user and sentinel_password in the URL, and give that user the rights: \
                     ACL SETUSER ... +sentinel|get-master-addr-by-name +subscribe +ping &+switch-master",
                )
            }
            _ => endpoint
                .error(ErrorKind::InvalidConfig, &format!("the sentinels know no master named {name:?}"))
                .with_hint("check the name after the hosts: redis+sentinel://host:port/name"),
        }
    }
}

async fn ask(
    dialer: &dyn Dial,
    sentinel: &ConnectionInfo,
    name: &str,
    limit: Duration,
) -> RedisResult<Option<Address>> {
    let answer = async {
        let mut connection: Connection = dialer.commands(sentinel).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(name).query_async(&mut connection).await
    };
    match timeout(limit, answer).await {
        Ok(answer) => answer,
        Err(_) => Err((redis::ErrorKind::Io, "a sentinel did not answer in time").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_majority_decides() {
        let (old, new) = (("a".to_owned(), 1), ("b".to_owned(), 1));
        let mut poll = Poll::default();
        poll.count(Ok(Some(old)));
        poll.count(Ok(Some(new.clone())));
        assert_eq!(poll.decision(3), None);
        poll.count(Ok(Some(new.clone())));
        assert_eq!(poll.decision(3), Some(&new));
    }

    #[test]
    fn switches() {
        let new = Some(("127.0.0.1".to_owned(), 7001));
        assert_eq!(switched("main 127.0.0.1 7000 127.0.0.1 7001", "main"), new);
        assert_eq!(switched("other 127.0.0.1 7000 127.0.0.1 7001", "main"), None);
        assert_eq!(switched("main", "main"), None);
    }

    #[test]
    fn an_unknown_name_is_reported_before_a_sentinel_that_is_down() {
        let endpoint = Endpoint::of_test("h");
        let mut poll = Poll::default();
        poll.count(Err((redis::ErrorKind::Io, "down").into()));
        poll.count(Ok(None));
        assert_eq!(poll.failure("main", &endpoint).kind(), ErrorKind::InvalidConfig);
    }
}
