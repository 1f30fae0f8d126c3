//! The gate to the rung `new`: the seal.

use std::collections::BTreeSet;
use std::time::Duration;

use lock_core::migration::Writer;
use lock_core::{Error, ErrorKind, LockName, Result, Token};
use tokio::time::{Instant, sleep, sleep_until};

use super::answering::{answering, named};
use super::clean::BATCH;
use super::rules::refused;
use super::{Gate, Obstacle, Operator, PREFIX, Progress};
use crate::error::BACKEND;
use crate::rungs::member::SessionInfo;
use crate::rungs::record::{Phase, Record};
use crate::rungs::rung::Rung;
use crate::rungs::time::{HOUR, micros, wall_clock};

/// On which terms a migration is [finished](Operator::finish).
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use lock_migrate::FinishTerms;
/// let terms = FinishTerms::new().source_is_gone().longest_ttl(Duration::from_secs(120));
/// # drop(terms);
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "terms do nothing by themselves"]
pub struct FinishTerms {
    source_is_gone: bool,
    servers: BTreeSet<String>,
    longest_ttl: Option<Duration>,
}

impl FinishTerms {
    /// The old store is closed to all users, and this connection can check that.
    pub fn new() -> Self {
        Self::default()
    }

    /// The old store is gone for good: nobody can reach it any more. It is refused while this connection or a process can, or one
    /// of its servers accepts a connection.
    pub const fn source_is_gone(mut self) -> Self {
        self.source_is_gone = true;
        self
    }

    /// All masters and replicas that the old store had, each as `host:port`, in the place of those that processes have registered.
    /// They have to be named if it is gone, none is registered, and they are behind sentinels or in a cluster.
    pub fn servers(mut self, servers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.servers = servers.into_iter().map(Into::into).collect();
        self
    }

    /// The longest time to live of a lease of any client of the old store, other libraries included. It counts where the
    /// leases cannot be read.
    pub const fn longest_ttl(mut self, ttl: Duration) -> Self {
        self.longest_ttl = Some(ttl);
        self
    }
}

impl Operator {
    /// Finishes the migration: writes the seal, with which `dual` and `move` act as `new`.
    ///
    /// The old store must be closed to all users, so that no lease on it is granted or renewed any more, and no process may be
    /// below the last rung. Then this call waits until every lease has ended, raises the tokens of the new store above all of
    /// the old one, and writes the seal. There is no way back from it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] on the way back, and for a migration that nobody has begun; when a store is unavailable.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, nothing has changed, but the seal may be written. Call it again.
    pub async fn finish(
        &self,
        terms: &FinishTerms,
        on_progress: impl Fn(Progress) + Send + Sync,
    ) -> Result<Gate> {
        let Some((record, version)) = self.stored().await? else {
            return refused(
                "nobody has begun this migration",
                "check the namespace and the dir of the new store",
            );
        };
        match record.phase {
            Phase::Open => {}
            Phase::Sealed => return Ok(Gate::Passed(Box::new(record))),
            Phase::Returning => {
                return refused("the way back has begun", "finish it by `polylock migrate clean` first");
            }
        }
        let floor = match self.prepare(&record, version, terms, &on_progress).await? {
            Ok(floor) => floor,
            Err(obstacles) => return Ok(Gate::Blocked(obstacles)),
        };
        let mut sealed = record;
        (sealed.phase, sealed.floor) = (Phase::Sealed, floor);
        sealed.set(Rung::New, "*");
        if self.write(&sealed, version).await? {
            // Which names have moved matters no more. What fails is only left behind.
            if let Ok(noted) = self.target()?.moved().await {
                for names in noted.chunks(BATCH) {
                    let _ = self.target()?.forget_moved(names).await;
                }
            }
            return Ok(Gate::Passed(Box::new(sealed)));
        }
        let changed = Obstacle::new("the record changed meanwhile", "look at the status, and finish again");
        Ok(Gate::Blocked(vec![changed]))
    }

    /// Waits for the leases of the old store, and raises the tokens of the new one. Returns their floor, or what is against the seal.
    async fn prepare(
        &self,
        record: &Record,
        version: i32,
        terms: &FinishTerms,
        on_progress: &(impl Fn(Progress) + Sync),
    ) -> Result<std::result::Result<u64, Vec<Obstacle>>> {
        let look = || self.before_the_seal(record, version, terms);
        loop {
            let mut obstacles = look().await?;
            if obstacles.is_empty() {
                obstacles = self.await_leases(record, terms, on_progress).await?;
            }
            // Meanwhile somebody may have opened the store again, or started an old binary.
            if obstacles.is_empty() {
                obstacles = look().await?;
            }
            if !obstacles.is_empty() {
                return Ok(Err(obstacles));
            }
            let floor = self.raise_above_all(terms).await?;
            // That was a walk over all tokens, and this is one over all leases: the seal counts on the look after both.
            if self.has_leases(terms).await? {
                continue;
            }
            let looked = self.clock.now();
            let obstacles = look().await?;
            if !obstacles.is_empty() {
                return Ok(Err(obstacles));
            }
            // Servers that are gone answer late.
            let took = self.clock.now().saturating_duration_since(looked);
            if took > LOOK_LIMIT && !terms.source_is_gone {
                let late =
                    format!("it took {took:.0?} to look who may write locks, and {LOOK_LIMIT:?} is the most");
                return Ok(Err(vec![Obstacle::new(late, "finish again, from a host near the servers")]));
            }
            return Ok(Ok(floor));
        }
    }

    /// What blocks [`finish`](Self::finish) now, apart from leases that have not ended yet. There is nothing to block while
    /// nobody has begun the migration, and after the seal.
    ///
    /// # Errors
    ///
    /// When a store is unavailable. What the old store refuses is an obstacle.
    pub async fn obstacles_to_finish(&self, terms: &FinishTerms) -> Result<Vec<Obstacle>> {
        match self.stored().await? {
            Some((record, version)) if record.phase != Phase::Sealed => {
                self.before_the_seal(&record, version, terms).await
            }
            _ => Ok(Vec::new()),
        }
    }

    /// What is against the seal now.
    pub(super) async fn before_the_seal(
        &self,
        record: &Record,
        version: i32,
        terms: &FinishTerms,
    ) -> Result<Vec<Obstacle>> {
        let last = match self.last_rung().await {
            Ok(last) => last,
            // Of a store that is gone, it is only known what the rules say.
            Err(error) if is_silent(&error) => record.lowest().max(Rung::Dual),
            Err(error) => return Err(error),
        };
        let mut obstacles = Vec::new();
        if record.lowest() < last {
            obstacles.push(Obstacle::new(
                format!("some names are on {}", record.lowest()),
                format!("use `polylock migrate set {last}`, and let it run for a while"),
            ));
        }
        obstacles
            .extend(self.sessions().await?.iter().filter_map(|session| not_ready(session, version, last)));
        obstacles.extend(self.still_open(record, terms).await?);
        Ok(obstacles)
    }

    /// Who may still acquire locks of the old store.
    async fn still_open(&self, record: &Record, terms: &FinishTerms) -> Result<Vec<Obstacle>> {
        let writers = match self.source().await {
            Ok(source) => source.writers().await,
            Err(error) => Err(error),
        };
        if terms.source_is_gone {
            return match writers {
                Err(error) if is_silent(&error) => self.signs_of_life(record, terms).await,
                // Whatever it answers.
                _ => Ok(vec![not_gone("this connection reaches it")]),
            };
        }
        match writers {
            Ok(writers) => Ok(writers.iter().map(may_acquire).collect()),
            Err(error) if is_silent(&error) => Ok(vec![Obstacle::new(
                format!("it is unknown whether the old store is closed: {error}"),
                "if it is gone for good, and nobody can reach it, use --gone",
            )]),
            Err(error) => Ok(vec![Obstacle::new(
                format!("it is unknown whether the old store is closed: {error}"),
                "use a user in `from` that may read keys and ACLs, and nothing else",
            )]),
        }
    }

    /// What says that the old store is not gone, though this connection does not reach it.
    async fn signs_of_life(&self, record: &Record, terms: &FinishTerms) -> Result<Vec<Obstacle>> {
        let sessions = self.sessions().await?;
        let members = || sessions.iter().filter_map(|session| Some((session, session.member.as_ref()?)));
        let mut others = terms.servers.clone();
        if others.is_empty() {
            others.extend(members().flat_map(|(_, member)| member.old_servers.iter().cloned()));
        }
        let (servers, has_others) = named(&record.from)?;
        let mut obstacles = Vec::new();
        if has_others && others.is_empty() {
            obstacles.push(Obstacle::new(
                "it is unknown which masters and replicas the old store had: no process that runs has registered them",
                "name them all: --servers HOST:PORT,...",
            ));
        }
        // A process may have several sessions.
        let reaching: BTreeSet<_> =
            members().filter(|(_, member)| member.reaches_old).map(|(session, _)| session.who()).collect();
        obstacles.extend(reaching.iter().map(|who| not_gone(&format!("{who} reached it some seconds ago"))));
        let answering = answering(servers.into_iter().chain(others).collect()).await?;
        obstacles.extend(answering.iter().map(|at| not_gone(&format!("{at} accepts connections"))));
        Ok(obstacles)
    }

    /// Whether a lease of the old store is seen now.
    async fn has_leases(&self, terms: &FinishTerms) -> Result<bool> {
        if terms.source_is_gone {
            return Ok(false);
        }
        match self.source().await?.longest_lease().await {
            Ok(lease) => Ok(lease.is_some()),
            // The user may not look at keys.
            Err(error) if error.kind() == ErrorKind::Denied => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until every lease of the old store has ended: where they cannot be read, for the longest ttl. Returns who may acquire locks of
    /// the old store, if it was opened again meanwhile.
    async fn await_leases(
        &self,
        record: &Record,
        terms: &FinishTerms,
        on_progress: &(impl Fn(Progress) + Sync),
    ) -> Result<Vec<Obstacle>> {
        let longest = terms.longest_ttl.unwrap_or_default().max(self.longest_ttl(&self.sessions().await?));
        // Nothing is renewed any more.
        let end = Instant::now() + longest;
        let source = if terms.source_is_gone { None } else { Some(self.source().await?) };
        loop {
            let left = match source {
                None => end.saturating_duration_since(Instant::now()),
                Some(source) => match source.longest_lease().await {
                    Ok(None) => return Ok(Vec::new()),
                    Ok(Some(Duration::MAX)) => {
                        return refused(
                            "a lock of the old store never expires",
                            "find out whether its holder still works, and delete its key",
                        );
                    }
                    Ok(Some(left)) => left,
                    // The user may not look at keys.
                    Err(error) if error.kind() == ErrorKind::Denied => {
                        end.saturating_duration_since(Instant::now())
                    }
                    Err(error) => return Err(error),
                },
            };
            if left.is_zero() {
                return Ok(Vec::new());
            }
            on_progress(Progress::Leases(left));
            sleep(left.min(LOOK)).await;
            let obstacles = self.still_open(record, terms).await?;
            if !obstacles.is_empty() {
                return Ok(obstacles);
            }
        }
    }

    /// Raises the tokens of the new store above all of the old one, and returns their floor.
    async fn raise_above_all(&self, terms: &FinishTerms) -> Result<u64> {
        let name = LockName::new(format!("{PREFIX}seal"))?;
        // Before the lock is acquired: the walk may take long, and may fail.
        let old = if terms.source_is_gone { 0 } else { self.tokens_of_the_source(&name).await? };
        let sessions = self.sessions().await?;
        let seen = sessions.iter().filter_map(|session| Some(session.member.as_ref()?.largest_token)).max();
        let Some(mut lease) = self.lock(&name).await? else {
            return Err(Error::new(ErrorKind::Unavailable, BACKEND)
                .with_message("another operator holds the lock of the seal")
                .with_hint("wait until it has finished")
                .on(&name));
        };
        // The clock of this host may be wrong. Holders of both have raised the new store to half an hour below the old one.
        let largest = old.max(micros(wall_clock())).max(seen.unwrap_or_default()).max(lease.token().get());
        let floor = largest.saturating_add(micros(SEAL_LEAD));
        let raised = match i64::try_from(floor) {
            Ok(_) => lease.raise_token(Token::new(floor)).await,
            Err(_) => refused(
                "the old store remembers a token that leaves no room for larger ones",
                "find the key with it, below polylock:tokens, and delete that key",
            ),
        };
        let _ = lease.release().await;
        raised.map(|()| floor)
    }

    /// The largest token that the old store has handed out, at most: its clock, or what somebody raised a token to.
    async fn tokens_of_the_source(&self, name: &LockName) -> Result<u64> {
        let source = self.source().await?;
        let largest = source.largest_token().await.map_err(|error| match error.kind() {
            ErrorKind::Denied => error.with_hint("use a user in `from` that may read all keys (ACL: %R~*)"),
            _ => error,
        })?;
        Ok(source.time(name).await?.max(largest.map_or(0, Token::get)))
    }

    /// Waits until this time.
    pub(super) async fn wait_until(&self, until: Instant, on_progress: &(impl Fn(Progress) + Sync)) {
        while Instant::now() < until {
            on_progress(Progress::Leases(until - Instant::now()));
            sleep_until(until.min(Instant::now() + LOOK)).await;
        }
    }
}

/// Why a session is not ready for the seal, if it is not.
fn not_ready(session: &SessionInfo, version: i32, last: Rung) -> Option<Obstacle> {
    let who = session.who();
    let Some(member) = &session.member else {
        return Some(Obstacle::new(who, "update or stop that process"));
    };
    if member.record != Some(version) {
        return Some(Obstacle::new(
            format!("{who} has not seen the present record"),
            "wait a moment; if that does not help, restart it",
        ));
    }
    if member.lowest() >= last {
        return None;
    }
    let advice = match (member.pinned, member.behind) {
        (Some(_), _) => "it is pinned by its URL: restart it without rung=".to_owned(),
        (None, Some(_)) => "wait until it has released the guards of that rung".to_owned(),
        _ => format!("use `polylock migrate set {last}`"),
    };
    Some(Obstacle::new(format!("{who} is on {}", member.lowest()), advice))
}

fn may_acquire(writer: &Writer) -> Obstacle {
    let Writer { server, user, connections, .. } = writer;
    Obstacle::new(
        format!("the user {user:?} may still acquire locks on {server} ({connections} connections)"),
        format!("take the right away: ACL SETUSER {user} resetkeys, or off; then ACL SAVE"),
    )
}

fn not_gone(why: &str) -> Obstacle {
    Obstacle::new(
        format!("the old store is not gone: {why}"),
        "close it to all users, and leave out --gone; or switch it off",
    )
}

fn is_silent(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable
}

/// How far the seal raises the tokens of the new store: further than a token of the old one that nobody has told of.
const SEAL_LEAD: Duration = Duration::from_secs(2 * HOUR.as_secs());
/// How long the look may take that the seal counts on.
const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// How often it is looked again.
const LOOK: Duration = Duration::from_secs(1);
