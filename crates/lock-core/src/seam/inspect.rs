//! The state of a lock: its holders, its waiters, its last token.

use std::fmt;
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};

use crate::seam::migration::Tombstone;
use crate::{Mode, OwnerId, OwnerInfo, Token, one_line};

/// The state of a lock, as [`Locks::inspect`](crate::Locks::inspect) shows it.
///
/// It may have changed by the time that you read it. To break the lock of a holder that it shows, and of no later one, use
/// [`Locks::break_lock_if`](crate::Locks::break_lock_if) with the token of that holder.
///
/// What a store does not keep is `None` or absent:
///
/// | | memory, postgres, etcd, mysql, sqlite, s3 | redis | redlock | zk | flock |
/// |---|---|---|---|---|---|
/// | holders | all | all | one | all | all |
/// | their identity | yes | of several sharers only the last one granted; of the others mode and expiry | yes | yes | of this library |
/// | [`token`](HolderInfo::token) | yes | as above | may differ a little | yes | as above |
/// | [`since`](HolderInfo::since) | yes | as above | yes | only when it [asked](HolderInfo::asked); yes with `recipe=ephemeral` | as above |
/// | [`remaining`](HolderInfo::remaining) | yes; from the first look on, without a clock of the store | yes | yes | no: a session keeps the lock | no: the kernel keeps it |
/// | the maximum of a semaphore | yes | waiters only | no semaphores | yes | no semaphores |
/// | [`queue`](Self::queue) | yes | with `wait=queue` | since when, without identity | yes; not with `recipe=ephemeral` | no |
///
/// [`Display`](fmt::Display) prints it in a few lines. It serializes with serde.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let reader = locks.rw("cfg").read().await?;
/// let state = locks.inspect("cfg").await?;
/// for holder in &state.holders {
///     println!("{holder}"); // pid 4242 on web-1, shared, token 1, since ..., 29s left
/// }
/// assert_eq!(state.holders[0].token, Some(reader.token()));
/// assert_eq!(state.holders[0].owner().map(|owner| owner.pid), Some(std::process::id()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LockState {
    /// The holders; empty when the lock is free. Several only if they share it.
    pub holders: Vec<HolderInfo>,
    /// The first waiters of the store in queue order, at most [`MAX_QUEUE`](Self::MAX_QUEUE): one per process,
    /// as the other tasks of a process wait in that process.
    pub queue: Vec<WaiterInfo>,
    /// The number of waiters: those of the store, and the tasks of this process.
    pub waiters: usize,
    /// The last fencing token that the store knows: of a holder, or of an earlier one.
    pub token: Option<Token>,
    /// What keeps everybody from being granted the lock, whether it is held or not: on PostgreSQL an open transaction that is fenced.
    pub blocker: Option<String>,
    /// Where the lock went, if it has moved to another store: no client gets it here.
    #[serde(serialize_with = "text")]
    pub moved: Option<Tombstone>,
    /// The view of each server, where a quorum of independent servers keeps the lock; else empty.
    pub servers: Vec<ServerView>,
}

/// A holder of a lock.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// for holder in &locks.inspect("orders/42").await?.holders {
///     println!("{}, {}: {:?} left", holder.holder, holder.mode, holder.remaining);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HolderInfo {
    /// Its identity.
    pub holder: Holder,
    /// The mode in which it holds the lock. A client of another library holds it exclusively.
    pub mode: LockMode,
    /// Its fencing token. On Redlock the proposed one: where the clocks of clients differ, the granted one may be larger.
    /// After the tokens were [raised](crate::Guard::raise_token), it may be the floor.
    pub token: Option<Token>,
    /// When it got the lock: by the server's clock, or by the holder's where there are several servers.
    #[serde(serialize_with = "rfc3339")]
    pub since: Option<SystemTime>,
    /// When it asked for the lock, where the store keeps that instead of [`since`](Self::since): on ZooKeeper, where a
    /// waiter and the holder that it becomes are the same node.
    #[serde(serialize_with = "rfc3339")]
    pub asked: Option<SystemTime>,
    /// The time until its lease expires, unless it is renewed. `None` for a session, and for a key without expiry.
    #[serde(rename = "remaining_ms", serialize_with = "millis")]
    pub remaining: Option<Duration>,
    /// The identity of its acquisition, which [`Guard::owner`](crate::Guard::owner) is, where the store keeps that.
    #[serde(skip)]
    pub id: Option<OwnerId>,
}

/// A waiter for a lock.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// for (waiter, position) in locks.inspect("orders/42").await?.queue.iter().zip(1..) {
///     println!("{position}. {waiter}"); // 1. pid 4243 on web-2, exclusive, since ...
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// Its identity.
    pub waiter: Holder,
    /// The mode that it waits for.
    pub mode: LockMode,
    /// When its wait began, where the store keeps that.
    #[serde(serialize_with = "rfc3339")]
    pub since: Option<SystemTime>,
}

/// The identity of a holder or a waiter.
///
/// # Examples
///
/// ```
/// # use lock_core::Holder;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// # let guard = locks.mutex("orders/42").acquire().await?;
/// match locks.inspect("orders/42").await?.holder() {
///     Some(Holder::Known(owner)) => println!("process {} on {}", owner.pid, owner.host),
///     Some(other) => println!("another client: {other}"),
///     None => println!("free"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Holder {
    /// A process that uses this library.
    Known(OwnerInfo),
    /// A client of another library, with the text in the store.
    Foreign(String),
    /// A client of which the store keeps only this text, such as a random id.
    Unknown(String),
}

/// The mode in which a lock is held or waited for, as far as the store shows it.
///
/// # Examples
///
/// ```
/// # use lock_core::LockMode;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let reader = locks.rw("cfg").read().await?;
/// assert_eq!(locks.inspect("cfg").await?.holders[0].mode, LockMode::Shared);
/// # drop(reader);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LockMode {
    /// A mutex, or the write side of a read/write lock.
    Exclusive,
    /// The read side of a read/write lock.
    Shared,
    /// A permit of a semaphore. Made by [`LockMode::permit`].
    #[non_exhaustive]
    Permit {
        /// The maximum number of holders that this client requested, where the store keeps that.
        max: Option<NonZeroU32>,
    },
}

/// The state of a lock on one of several servers.
///
/// # Examples
///
/// ```
/// # async fn show(locks: &lock_core::Locks) -> lock_core::Result<()> {
/// for server in locks.inspect("orders/42").await?.servers {
///     println!("{}: {}", server.server, server.view); // h1:6379: held by ...
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ServerView {
    /// The server, as host and port.
    pub server: String,
    /// The state of the lock there.
    pub view: ServerLockState,
}

/// Whether one server has a lock; see [`ServerView`].
///
/// # Examples
///
/// ```
/// # use lock_core::{LockState, ServerLockState};
/// fn votes(state: &LockState) -> usize {
///     state.servers.iter().filter(|server| matches!(server.view, ServerLockState::Held(_))).count()
/// }
/// # assert_eq!(votes(&LockState::free()), 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ServerLockState {
    /// The lock is free.
    Free,
    /// The lock is held.
    Held(Holder),
    /// The server did not answer, for this reason.
    Unknown(String),
}

impl LockState {
    /// The maximum length of [`queue`](Self::queue).
    pub const MAX_QUEUE: usize = 100;

    /// A free lock.
    #[must_use]
    pub fn free() -> Self {
        Self::default()
    }

    /// A lock with these holders.
    #[must_use]
    pub fn held(holders: impl IntoIterator<Item = HolderInfo>) -> Self {
        let holders = Vec::from_iter(holders);
        Self { token: holders.iter().filter_map(|holder| holder.token).max(), holders, ..Self::default() }
    }

    /// Whether the lock is held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }

    /// The token of the last grant, as far as it is known.
    #[must_use]
    pub fn last_token(&self) -> Option<Token> {
        self.token.or_else(|| self.holders.iter().filter_map(|holder| holder.token).max())
    }

    /// Whether both states show the same holders. The time that is left to them does not count, nor do waiters.
    #[must_use]
    pub fn has_holders_of(&self, other: &Self) -> bool {
        let holders = |state: &Self| {
            let timeless = |holder: &HolderInfo| HolderInfo { remaining: None, ..holder.clone() };
            state.holders.iter().map(timeless).collect::<Vec<_>>()
        };
        holders(self) == holders(other) && self.moved == other.moved
    }

    /// The identity of the holder, `None` for a free lock. Of several sharers, the first of [`holders`](Self::holders).
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.first().map(|first| &first.holder)
    }

    /// When that holder got the lock, where the store keeps that. ZooKeeper keeps when it [asked](HolderInfo::asked).
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        self.holders.first()?.since
    }
}

impl HolderInfo {
    /// A holder without further information.
    #[must_use]
    pub const fn new(holder: Holder, mode: LockMode) -> Self {
        Self { holder, mode, token: None, since: None, asked: None, remaining: None, id: None }
    }

    /// The process that holds the lock, if it uses this library and the store keeps its identity.
    #[must_use]
    pub const fn owner(&self) -> Option<&OwnerInfo> {
        self.holder.owner()
    }

    /// Whether this acquisition is the holder. Where the store does not keep its identity, the process and the token count.
    pub(crate) fn is(&self, id: OwnerId, token: Token) -> bool {
        let is_ours = |owner: &OwnerInfo| {
            let ours = OwnerInfo::this_process();
            (owner.pid, &owner.host) == (ours.pid, &ours.host)
        };
        match self.id {
            Some(holder) => holder == id,
            None => self.token == Some(token) && self.owner().is_some_and(is_ours),
        }
    }
}

impl WaiterInfo {
    /// A waiter without further information.
    #[must_use]
    pub const fn new(waiter: Holder, mode: LockMode) -> Self {
        Self { waiter, mode, since: None }
    }

    /// The process that waits, if it uses this library and the store keeps its identity.
    #[must_use]
    pub const fn owner(&self) -> Option<&OwnerInfo> {
        self.waiter.owner()
    }
}

impl Holder {
    /// The process, if it uses this library and the store keeps its identity.
    #[must_use]
    pub const fn owner(&self) -> Option<&OwnerInfo> {
        match self {
            Self::Known(owner) => Some(owner),
            Self::Foreign(_) | Self::Unknown(_) => None,
        }
    }
}

impl ServerView {
    /// The state of the lock on this server.
    #[must_use]
    pub fn new(server: impl Into<String>, view: ServerLockState) -> Self {
        Self { server: server.into(), view }
    }
}

impl LockMode {
    /// A permit of a semaphore, with its maximum where the store keeps that.
    #[must_use]
    pub const fn permit(max: Option<NonZeroU32>) -> Self {
        Self::Permit { max }
    }
}

impl From<Mode> for LockMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared => Self::Shared,
            Mode::Permit { max } => Self::Permit { max: Some(max) },
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(owner) => owner.fmt(f),
            Self::Foreign(text) | Self::Unknown(text) => f.write_str(&one_line(text)),
        }
    }
}

impl fmt::Display for LockMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Permit { max: Some(max) } => write!(f, "one of {max} permits"),
            Self::Permit { max: None } => f.write_str("a permit"),
        }
    }
}

impl fmt::Display for HolderInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.holder, self.mode)?;
        if let Some(token) = self.token {
            write!(f, ", token {token}")?;
        }
        if let Some(since) = self.since {
            write!(f, ", since {}", time(since))?;
        }
        if let Some(asked) = self.asked {
            write!(f, ", asked at {}", time(asked))?;
        }
        if let Some(remaining) = self.remaining {
            write!(f, ", {} left", span(remaining))?;
        }
        Ok(())
    }
}

impl fmt::Display for WaiterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.waiter, self.mode)?;
        self.since.map_or(Ok(()), |since| write!(f, ", since {}", time(since)))
    }
}

impl fmt::Display for ServerLockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free => f.write_str("free"),
            Self::Held(holder) => write!(f, "held by {holder}"),
            Self::Unknown(why) => write!(f, "unknown: {}", one_line(why)),
        }
    }
}

/// A line for each holder, waiter and server.
impl fmt::Display for LockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Tombstone { to, namespace, written, .. }) = &self.moved {
            let (to, since) = (one_line(to), time(*written));
            return write!(f, "moved to {to} in the migration {namespace:?}, since {since}");
        }
        match (&*self.holders, self.token) {
            ([], Some(token)) => write!(f, "free, last token {token}")?,
            ([], None) => f.write_str("free")?,
            ([holder], _) => write!(f, "held by {holder}")?,
            (holders, _) => {
                write!(f, "held by {}:", holders.len())?;
                holders.iter().try_for_each(|holder| write!(f, "\n  {holder}"))?;
            }
        }
        if let Some(blocker) = &self.blocker {
            write!(f, "\ngranted to nobody before the end of {}", one_line(blocker))?;
        }
        if self.waiters > 0 || !self.queue.is_empty() {
            let colon = if self.queue.is_empty() { "" } else { ":" };
            write!(f, "\nwaiters: {}{colon}", self.waiters)?;
            for (waiter, position) in self.queue.iter().zip(1..) {
                write!(f, "\n  {position}. {waiter}")?;
            }
        }
        self.servers.iter().try_for_each(|on| write!(f, "\n{}: {}", one_line(&on.server), on.view))
    }
}

/// The time that a store tells as a span since 1970; `None` from the year 10 000 on, which cannot be shown.
///
/// Whoever may write to the store may write any number.
#[must_use]
pub fn stored_time(since: Duration) -> Option<SystemTime> {
    (since < LATEST).then(|| SystemTime::UNIX_EPOCH + since)
}

const LATEST: Duration = Duration::from_secs(253_402_300_800);

fn time(at: SystemTime) -> impl fmt::Display {
    // humantime panics on others.
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    humantime::format_rfc3339_millis(SystemTime::UNIX_EPOCH + since.min(LATEST - Duration::from_millis(1)))
}

fn span(span: Duration) -> impl fmt::Display {
    humantime::format_duration(Duration::from_millis(to_millis(span)))
}

fn to_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[allow(clippy::ref_option, reason = "serde calls it so")]
fn rfc3339<S: Serializer>(at: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(|at| time(at).to_string()).serialize(serializer)
}

#[allow(clippy::ref_option, reason = "serde calls it so")]
fn text<S: Serializer>(moved: &Option<Tombstone>, serializer: S) -> Result<S::Ok, S::Error> {
    moved.as_ref().map(ToString::to_string).serialize(serializer)
}

#[allow(clippy::ref_option, reason = "serde calls it so")]
fn millis<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    span.map(to_millis).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(label: &str) -> HolderInfo {
        let owner = OwnerInfo { host: "web-1".into(), pid: 7, label: Some(label.into()) };
        HolderInfo {
            token: Some(Token::new(3)),
            since: Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1_500)),
            remaining: Some(Duration::from_micros(29_500_123)),
            ..HolderInfo::new(Holder::Known(owner), LockMode::Shared)
        }
    }

    #[test]
    fn states_are_printed_in_lines() {
        assert_eq!(LockState::free().to_string(), "free");
        let one = "pid 7 on web-1 (job), shared, token 3, since 1970-01-01T00:00:01.500Z, 29s 500ms left";
        let mut state = LockState::held([holder("job")]);
        assert_eq!(state.to_string(), format!("held by {one}"));
        (state.waiters, state.blocker) = (2, Some("a transaction".into()));
        let end = "left\ngranted to nobody before the end of a transaction\nwaiters: 2";
        assert!(state.to_string().ends_with(end), "{state}");
        state.blocker = None;
        state.holders.push(HolderInfo::new(Holder::Unknown("a reader".into()), LockMode::Shared));
        state.queue.push(WaiterInfo::new(Holder::Foreign("node x".into()), Mode::Exclusive.into()));
        state.servers.push(ServerView::new("a:1", ServerLockState::Unknown("no answer".into())));
        assert_eq!(
            state.to_string(),
            format!(
                "held by 2:\n  {one}\n  a reader, shared\nwaiters: 2:\n  1. node x, exclusive\na:1: unknown: no answer"
            )
        );
        assert_eq!(LockMode::from(Mode::Permit { max: NonZeroU32::MIN }).to_string(), "one of 1 permits");
        let mut waited = HolderInfo::new(Holder::Unknown("x".into()), LockMode::Exclusive);
        waited.asked = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(2));
        assert_eq!(waited.to_string(), "x, exclusive, asked at 1970-01-01T00:00:02.000Z");
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(5);
        assert_eq!(time(before).to_string(), "1970-01-01T00:00:00.000Z");
        let after = SystemTime::UNIX_EPOCH + Duration::from_millis(i64::MAX as u64);
        assert_eq!(time(after).to_string(), "9999-12-31T23:59:59.999Z");
        assert_eq!(stored_time(LATEST), None);
    }

    #[test]
    fn stored_text_cannot_forge_a_line() {
        let owner =
            OwnerInfo { host: "web\u{202e}-1".into(), pid: 7, label: Some("bob's\nfree\u{1b}[2K".into()) };
        let state = LockState::held([HolderInfo::new(Holder::Known(owner), LockMode::Exclusive)]);
        assert_eq!(state.to_string(), r"held by pid 7 on web\u{202e}-1 (bob's\nfree\u{1b}[2K), exclusive");
    }

    #[test]
    fn no_text_of_others_forges_a_line() {
        const FORGED: &str = "x\nfree\u{1b}[2K\u{202e}\u{9b}2K";
        let holder = |holder| HolderInfo::new(holder, LockMode::Exclusive);
        let mut held =
            LockState::held([holder(Holder::Foreign(FORGED.into())), holder(Holder::Unknown(FORGED.into()))]);
        held.blocker = Some(FORGED.into());
        held.queue.push(WaiterInfo::new(Holder::Foreign(FORGED.into()), LockMode::Exclusive));
        held.servers.push(ServerView::new(FORGED, ServerLockState::Held(Holder::Foreign(FORGED.into()))));
        held.servers.push(ServerView::new("a:1", ServerLockState::Unknown(FORGED.into())));
        let tombstone = Tombstone {
            to: FORGED.into(),
            namespace: FORGED.into(),
            lock: crate::LockName::new(FORGED).unwrap(),
            written: SystemTime::UNIX_EPOCH,
            life: Duration::ZERO,
            newest: 0,
        };
        let moved = LockState { moved: Some(tombstone.clone()), ..LockState::free() };
        for (text, lines) in [
            (held.to_string(), 8),
            (moved.to_string(), 1),
            (tombstone.to_string(), 1),
            (tombstone.moved("redis").to_string(), 1),
            (format!("{:?}", tombstone.moved("redis")), 1),
            (format!("{held:?}{moved:?}"), 1),
        ] {
            assert_eq!(text.lines().count(), lines, "{text}");
            assert!(!text.contains(['\u{1b}', '\u{202e}', '\u{9b}']), "{text:?}");
        }
    }

    #[test]
    fn the_last_token_of_a_held_lock_is_the_largest() {
        let mut newer = holder("newer");
        newer.token = Some(Token::new(9));
        let unknown = HolderInfo::new(Holder::Unknown("x".into()), LockMode::Shared);
        assert_eq!(LockState::held([holder("older"), newer, unknown]).token, Some(Token::new(9)));
    }

    #[test]
    fn states_serialize() {
        let mut state = LockState::held([holder("job")]);
        let max = NonZeroU32::new(4);
        state.queue.push(WaiterInfo::new(Holder::Unknown("x".into()), LockMode::Permit { max }));
        let json = serde_json::to_value(&state).unwrap();
        assert_eq!(json["holders"][0]["holder"]["known"]["host"], "web-1");
        assert_eq!(json["holders"][0]["mode"], "shared");
        assert_eq!(json["holders"][0]["since"], "1970-01-01T00:00:01.500Z");
        assert_eq!(json["holders"][0]["remaining_ms"], 29_500);
        assert_eq!(json["queue"][0]["mode"]["permit"]["max"], 4);
        assert_eq!(json["token"], 3);
    }
}
