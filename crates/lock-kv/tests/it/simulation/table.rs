//! Registers in memory, and what goes wrong on the way to them.

use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Outcome, OwnerId, Result};
use lock_kv::{About, Exchanged, Notice, Notified, Registers, Version, Versioned};
use lock_testkit::fake::{Dice, Faults};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

const NAME: &str = "simulated";
/// How many keys it lists at a time.
const PAGE: usize = 10;
/// How often a client sends a swap that gets no answer, if it sends it again.
const ATTEMPTS: usize = 3;

/// The new version, or what is there instead.
type Swapped = std::result::Result<Version, Option<Versioned>>;

/// What the versions of a store are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Versions {
    Numbers,
    /// Of the value: what was written twice has the same version.
    Hashes,
}

/// Which conditions of swaps are ignored.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ignored {
    Nothing,
    /// Those that the version is an old one; keys that exist are not created.
    Versions,
    All,
}

/// The values of the store.
#[derive(Debug)]
pub(crate) struct Table {
    versions: Versions,
    ignored: Mutex<Ignored>,
    /// A key that somebody always changes before a swap.
    contended: Mutex<Option<String>>,
    /// All values that each key has had.
    values: Mutex<BTreeMap<String, Vec<Versioned>>>,
    /// All notices that there were: whether they are there still, and the values that they carry.
    notices: Mutex<HashMap<OwnerId, (bool, Option<Versioned>)>>,
    reads: AtomicUsize,
}

/// The way from one client to the store.
#[derive(Debug)]
pub(crate) struct Link(Mutex<Trouble>);

#[derive(Debug)]
struct Trouble {
    dice: Dice,
    faults: Faults,
    stale: f64,
    /// By how much a swap may be late that was given up.
    late: Duration,
    /// After how long a client sends a swap again that got no answer, if it does.
    settles: Option<Duration>,
}

/// The registers of one client.
#[derive(Debug)]
pub(crate) struct Client {
    table: Arc<Table>,
    link: Arc<Link>,
    longest_key: usize,
    poll: Duration,
    notifies: bool,
}

impl Table {
    pub(crate) fn new(versions: Versions) -> Self {
        Self {
            versions,
            ignored: Mutex::new(Ignored::Nothing),
            contended: Mutex::default(),
            values: Mutex::default(),
            notices: Mutex::default(),
            reads: AtomicUsize::new(0),
        }
    }

    pub(crate) fn ignore(&self, ignored: Ignored) {
        *self.ignored() = ignored;
    }

    pub(crate) fn contend(&self, lock: &str) {
        *self.contended.lock().unwrap() = Some(format!("lock/{lock}"));
    }

    /// How many have the lock, or wait for it.
    pub(crate) fn left(&self, lock: &str) -> usize {
        let values = self.values();
        let Some(value) = values.get(&format!("lock/{lock}")).and_then(|values| values.last()) else {
            return 0;
        };
        let record: Value = serde_json::from_slice(&value.value).expect("the value is a record");
        ["holders", "queue"].into_iter().filter_map(|list| record[list].as_array()).map(Vec::len).sum()
    }

    /// Tells the first waiter of a lock that it has it, with a value that is no record.
    pub(crate) fn tell_the_first(&self, lock: &str) {
        let value = self.read(&format!("lock/{lock}"), 0).expect("somebody waits");
        let record: Value = serde_json::from_slice(&value.value).expect("the value is a record");
        let waiter = serde_json::from_value(record["queue"][0]["owner"].clone()).expect("it is an owner id");
        let carried = Versioned::new(value.version, b"no record".to_vec());
        self.notices.lock().unwrap().insert(waiter, (true, Some(carried)));
    }

    /// How often a key was read.
    pub(crate) fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }

    /// How many notices are there.
    pub(crate) fn notices(&self) -> usize {
        self.notices.lock().unwrap().values().filter(|(is_there, _)| *is_there).count()
    }

    /// How many values its record has had.
    pub(crate) fn written(&self, lock: &str) -> usize {
        self.values().get(&format!("lock/{lock}")).map_or(0, Vec::len)
    }

    fn read(&self, key: &str, age: usize) -> Option<Versioned> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let values = self.values();
        let values = values.get(key)?;
        values.get(values.len().checked_sub(1 + age)?).cloned()
    }

    fn swap(&self, key: &str, expected: Option<&Version>, value: Vec<u8>, notices: &[Notice]) -> Swapped {
        let is_contended = self.contended.lock().unwrap().as_deref() == Some(key);
        let mut values = self.values();
        let values = values.entry(key.to_owned()).or_default();
        let present = values.last().map(|value| &value.version);
        let is_ignored = match *self.ignored() {
            Ignored::Nothing => false,
            Ignored::Versions => expected.is_some(),
            Ignored::All => true,
        };
        if (present != expected && !is_ignored) || is_contended {
            return Err(values.last().cloned());
        }
        let version = match self.versions {
            Versions::Numbers => Version::from(values.len() as u64 + 1),
            Versions::Hashes => {
                let mut hasher = DefaultHasher::new();
                value.hash(&mut hasher);
                Version::new(format!("{:x}", hasher.finish()))
            }
        };
        let carried = Versioned::new(version.clone(), value);
        values.push(carried.clone());
        let mut all = self.notices.lock().unwrap();
        for notice in notices {
            match notice {
                Notice::Granted(waiter) => drop(all.insert(*waiter, (true, Some(carried.clone())))),
                Notice::Over(waiter) => all.get_mut(waiter).expect("it was published").0 = false,
            }
        }
        Ok(version)
    }

    fn ignored(&self) -> MutexGuard<'_, Ignored> {
        self.ignored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn values(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Versioned>>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// One on which nothing goes wrong yet.
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let (dice, faults) = (Dice::new(seed), Faults::default());
        let (stale, late, settles) = (0.0, Duration::ZERO, None);
        Arc::new(Self(Mutex::new(Trouble { dice, faults, stale, late, settles })))
    }

    pub(crate) fn set(&self, faults: Faults, stale: f64, late: Duration) {
        let trouble = &mut *self.trouble();
        (trouble.faults, trouble.stale, trouble.late) = (faults, stale, late);
    }

    /// Has the client send a swap again that got no answer for so long, and settle by the value what became of it: as that for etcd does.
    pub(crate) fn settle_swaps(&self, after: Option<Duration>) {
        self.trouble().settles = after;
    }

    fn delay(&self) -> Duration {
        let Trouble { dice, faults, .. } = &mut *self.trouble();
        let stall =
            if dice.chance(faults.stall) { dice.millis(faults.stall_ms.clone()) } else { Duration::ZERO };
        stall + dice.millis(faults.delay_ms.clone())
    }

    fn chance(&self, of: impl Fn(&Faults) -> f64) -> bool {
        let Trouble { dice, faults, .. } = &mut *self.trouble();
        dice.chance(of(faults))
    }

    /// How many values ago it was what a read returns.
    fn age(&self) -> usize {
        let Trouble { dice, stale, .. } = &mut *self.trouble();
        if dice.chance(*stale) { dice.within(1..=6) as usize } else { 0 }
    }

    /// How much later a request is executed than anybody waits for it.
    fn lateness(&self) -> Duration {
        let Trouble { dice, late, .. } = &mut *self.trouble();
        dice.millis(0..=u64::try_from(late.as_millis()).unwrap_or_default())
    }

    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    pub(crate) fn new(table: &Arc<Table>, link: &Arc<Link>) -> Self {
        let (table, link) = (Arc::clone(table), Arc::clone(link));
        Self { table, link, longest_key: 1_040, poll: Duration::from_millis(10), notifies: false }
    }

    pub(crate) fn with_longest_key(self, longest_key: usize) -> Self {
        Self { longest_key, ..self }
    }

    pub(crate) fn with_poll(self, poll: Duration) -> Self {
        Self { poll, ..self }
    }

    /// One whose waiters are notified.
    pub(crate) fn notifying(self, notifies: bool) -> Self {
        Self { notifies, ..self }
    }

    /// Sends a swap, which goes on when its future is dropped.
    fn send(
        &self,
        key: &str,
        expected: Option<&Version>,
        value: &[u8],
        notices: &[Notice],
    ) -> oneshot::Receiver<Swapped> {
        let notices = notices.to_vec();
        let (mut sender, answered) = oneshot::channel();
        let (table, link, key) = (Arc::clone(&self.table), Arc::clone(&self.link), key.to_owned());
        let (expected, value) = (expected.cloned(), value.to_vec());
        drop(tokio::spawn(async move {
            sleep(link.delay()).await;
            if link.chance(|faults| faults.reset_before) {
                return;
            }
            let mut is_answered = !link.chance(|faults| faults.lose_reply);
            if link.chance(|faults| faults.lose_request) {
                is_answered = false;
                sleep(link.lateness()).await;
            }
            let swapped = table.swap(&key, expected.as_ref(), value, &notices);
            drop(table);
            if link.chance(|faults| faults.reset_after) {
                return;
            }
            sleep(link.delay()).await;
            if is_answered {
                let _ = sender.send(swapped);
            } else {
                sender.closed().await;
            }
        }));
        answered
    }

    fn check_refused(&self) -> Result<()> {
        match self.link.chance(|faults| faults.refuse) {
            true => Err(Error::new(ErrorKind::Unavailable, NAME)),
            false => Ok(()),
        }
    }
}

impl Registers for Client {
    fn about(&self) -> About {
        let mut about = About::new(NAME, self.poll);
        (about.longest_key, about.one_host, about.notifies) = (self.longest_key, true, self.notifies);
        about
    }

    async fn read(&self, key: &str) -> Result<Option<Versioned>> {
        self.check_refused()?;
        sleep(self.link.delay()).await;
        if self.link.chance(|faults| faults.lose_request + faults.lose_reply) {
            pending::<()>().await;
        }
        let read = self.table.read(key, self.link.age());
        sleep(self.link.delay()).await;
        Ok(read)
    }

    async fn swap(&self, key: &str, expected: Option<&Version>, value: &[u8]) -> Result<Option<Version>> {
        Ok(match self.exchange(key, expected, value, &[]).await? {
            Exchanged::Written(version) => Some(version),
            Exchanged::Refused | Exchanged::Found(_) => None,
        })
    }

    async fn exchange(
        &self,
        key: &str,
        expected: Option<&Version>,
        value: &[u8],
        notices: &[Notice],
    ) -> Result<Exchanged> {
        self.check_refused()?;
        let refused = |found| if self.notifies { Exchanged::Found(found) } else { Exchanged::Refused };
        let settles = self.link.trouble().settles;
        let Some(patience) = settles else {
            let swapped = self.send(key, expected, value, notices).await.map_err(|_| broken())?;
            return Ok(swapped.map_or_else(refused, Exchanged::Written));
        };
        for attempt in 0..ATTEMPTS {
            match timeout(patience, self.send(key, expected, value, notices)).await {
                Ok(Ok(Ok(version))) => return Ok(Exchanged::Written(version)),
                Ok(Ok(Err(found))) if attempt == 0 => return Ok(refused(found)),
                Ok(Ok(Err(Some(found)))) if found.value == value => {
                    return Ok(Exchanged::Written(found.version));
                }
                Ok(Ok(Err(_))) => return Err(broken()),
                Ok(Err(_)) => sleep(patience / 8).await,
                Err(_) => {}
            }
        }
        Err(broken())
    }

    /// Late, or never, or what was published long ago.
    async fn notified(&self, waiter: OwnerId) -> Notified {
        if self.link.chance(|faults| faults.lose_reply) {
            pending::<()>().await;
        }
        if self.link.chance(|faults| faults.lose_request) {
            sleep(self.link.lateness()).await;
        }
        loop {
            sleep(self.link.delay() + Duration::from_millis(1)).await;
            if self.link.chance(|faults| faults.reset_after) {
                return Notified::Look;
            }
            let notice = self.table.notices.lock().unwrap().get(&waiter).cloned();
            if let Some((_, carried)) = notice {
                // It may have been too long.
                let is_read = self.link.chance(|faults| faults.reset_before);
                return Notified::Granted(carried.filter(|_| !is_read));
            }
        }
    }

    async fn list(&self, prefix: &str, after: &str) -> Result<Vec<String>> {
        let values = self.table.values();
        let keys = values.keys().filter(|key| key.starts_with(prefix) && key.as_str() > after);
        Ok(keys.take(PAGE).cloned().collect())
    }
}

fn broken() -> Error {
    Error::new(ErrorKind::Unavailable, NAME).with_code("broken").with_outcome(Outcome::Unknown)
}
