//! A store in memory, and the links of its clients.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use lock_testkit::fake::{Dice, Faults};
use polylock::backend::engine::{
    self, Answer, Changed, Engine, EngineOptions, Extension, Hold, LeaseStore, Mailbox, Message, Order,
    Release,
};
use polylock::backend::record::{self, Changes, Now, Record, Shown, Turn, Waiting};
use polylock::backend::{Locks, Support, TokenBlock};
use polylock::{
    BootInstant, Capabilities, Clock, Error, ErrorKind, LeaseKind, LockName, LockState, Outcome, OwnerId,
    OwnerInfo, Result, Token,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::{Mode, Scenario};

const NAME: &str = "simulated";
/// A waiter that polls and has not asked for so long has gone.
const GONE: Duration = Duration::from_secs(5);

/// A client over this link.
pub(super) fn connect(scenario: &Scenario, table: &Arc<Table>, link: &Arc<Link>, clock: &Clock) -> Locks {
    let mut capabilities = Capabilities::new(NAME, LeaseKind::ttl(scenario.ttl, Duration::from_millis(10)));
    (capabilities.fifo, capabilities.counts_waiters, capabilities.names_sharers) = (true, true, true);
    (capabilities.shared, capabilities.permits) = (Support::Yes, Support::Yes);
    capabilities.breaks_one = Support::Yes;
    let mut options = EngineOptions::new(scenario.timeout);
    (options.local_handovers, options.clock) = (scenario.local_handovers, clock.clone());
    let client = Client {
        table: Arc::clone(table),
        link: Arc::clone(link),
        timeout: scenario.timeout,
        notifies: scenario.notifies,
        connection: Mutex::default(),
        is_closed: AtomicBool::new(false),
    };
    Locks::new(Engine::new(client, capabilities, options).expect("the ttl is long enough"))
}

/// The locks of the store.
#[derive(Debug)]
pub(super) struct Table {
    clock: Clock,
    mode: Mode,
    records: Mutex<BTreeMap<LockName, Record<Party>>>,
}

/// The way from one client to the store.
#[derive(Debug)]
pub(super) struct Link(Mutex<(Dice, Faults)>);

#[derive(Debug)]
struct Client {
    table: Arc<Table>,
    link: Arc<Link>,
    timeout: Duration,
    notifies: bool,
    connection: Mutex<Option<Connection>>,
    is_closed: AtomicBool,
}

/// A connection: its requests are executed one after the other.
#[derive(Clone, Debug)]
struct Connection {
    jobs: mpsc::UnboundedSender<Job>,
    is_open: Arc<AtomicBool>,
}

/// A request, which returns how it is answered.
type Job = Box<dyn FnOnce(&Table) -> Box<dyn FnOnce() + Send> + Send>;

#[derive(Debug)]
struct Party {
    info: OwnerInfo,
    asked: BootInstant,
    told: Option<Told>,
}

/// Where a waiter is told of its grant.
#[derive(Clone, Debug)]
struct Told {
    link: Arc<Link>,
    messages: mpsc::UnboundedSender<Message>,
}

#[derive(Debug)]
struct Inbox {
    told: Told,
    messages: mpsc::UnboundedReceiver<Message>,
}

struct Moment(BootInstant);

impl Now<Party> for Moment {
    fn time(&self) -> BootInstant {
        self.0
    }

    fn lives(&self, waiter: &Waiting<Party>) -> bool {
        match &waiter.party.told {
            Some(told) => !told.messages.is_closed(),
            None => self.0 < waiter.party.asked + GONE,
        }
    }

    fn mint(&mut self, last: Token) -> Token {
        Token::new(TokenBlock::start(last.get()) + TokenBlock::SIZE)
    }
}

impl Shown for Party {
    fn info(&self) -> &OwnerInfo {
        &self.info
    }

    fn since(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }
}

impl Table {
    pub(super) fn new(clock: &Clock, mode: Mode) -> Self {
        Self { clock: clock.clone(), mode, records: Mutex::default() }
    }

    /// How many have the lock, or wait for it.
    pub(super) fn left(&self, lock: &str) -> usize {
        let name = LockName::new(lock).expect("the name is valid");
        let state = self.change(&name, |record, now| {
            let changes = record.settle(now);
            (record.state(now), changes)
        });
        state.holders.len() + state.waiters
    }

    fn change<T>(
        &self,
        name: &LockName,
        change: impl FnOnce(&mut Record<Party>, &mut Moment) -> (T, Changes<Party>),
    ) -> T {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let record = records.entry(name.clone()).or_default();
        let (answer, changes) = change(record, &mut Moment(self.time()));
        for holder in record.holders().iter().filter(|holder| changes.granted.contains(&holder.owner)) {
            holder.party.told.iter().for_each(|told| told.grant(holder.token));
        }
        answer
    }

    fn time(&self) -> BootInstant {
        let now = self.clock.now();
        match self.mode {
            Mode::FastClock => BootInstant::from_boot(now.since_boot().mul_f64(1.3)),
            Mode::Sound => now,
        }
    }
}

impl Link {
    pub(super) fn new(seed: u64, faults: &Faults) -> Arc<Self> {
        Arc::new(Self(Mutex::new((Dice::new(seed), faults.clone()))))
    }

    pub(super) fn set_faults(&self, faults: Faults) {
        self.state().1 = faults;
    }

    fn delay(&self) -> Duration {
        let (dice, faults) = &mut *self.state();
        let stall =
            if dice.chance(faults.stall) { dice.millis(faults.stall_ms.clone()) } else { Duration::ZERO };
        stall + dice.millis(faults.delay_ms.clone())
    }

    fn chance(&self, of: impl Fn(&Faults) -> f64) -> bool {
        let (dice, faults) = &mut *self.state();
        dice.chance(of(faults))
    }

    fn state(&self) -> MutexGuard<'_, (Dice, Faults)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    /// Tells it later, or never.
    fn grant(&self, token: Token) {
        let Self { link, messages } = self.clone();
        if link.chance(|faults| faults.lose_reply * 5.0) {
            return;
        }
        drop(tokio::spawn(async move {
            sleep(link.delay()).await;
            let _ = messages.send(Message::Granted(token));
        }));
    }
}

impl Mailbox for Inbox {
    fn listens(&mut self, _: Option<usize>) -> Option<Duration> {
        Some(Duration::from_secs(1))
    }

    async fn next(&mut self) -> Message {
        match self.messages.recv().await {
            Some(message) => message,
            None => pending().await,
        }
    }
}

impl Order for Connection {
    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }
}

/// Executes the requests of a connection, in their order, with what goes wrong.
async fn serve(
    table: Arc<Table>,
    link: Arc<Link>,
    mut jobs: mpsc::UnboundedReceiver<Job>,
    is_open: Arc<AtomicBool>,
) {
    while let Some(job) = jobs.recv().await {
        sleep(link.delay()).await;
        if link.chance(|faults| faults.lose_request) {
            // Nothing answers on it any more.
            while jobs.recv().await.is_some() {}
            break;
        }
        if link.chance(|faults| faults.reset_before) {
            break;
        }
        let answer = job(&table);
        if link.chance(|faults| faults.reset_after) {
            break;
        }
        if !link.chance(|faults| faults.lose_reply) {
            let delay = link.delay();
            drop(tokio::spawn(async move {
                sleep(delay).await;
                answer();
            }));
        }
    }
    is_open.store(false, Ordering::Relaxed);
}

impl Client {
    fn connection(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a request executed on this connection, and waits for its answer.
    async fn request<T: Send + 'static>(
        &self,
        on: &Connection,
        execute: impl FnOnce(&Table) -> T + Send + 'static,
    ) -> Result<T> {
        let (sender, answered) = oneshot::channel();
        let job: Job = Box::new(move |table| {
            let answer = execute(table);
            Box::new(move || drop(sender.send(answer)))
        });
        let unanswered = |code| {
            on.is_open.store(false, Ordering::Relaxed);
            Error::new(ErrorKind::Unavailable, NAME).with_code(code).with_outcome(Outcome::Unknown)
        };
        on.jobs.send(job).map_err(|_| unanswered("broken"))?;
        match timeout(self.timeout, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(unanswered("broken")),
            Err(_) => Err(unanswered("silent")),
        }
    }

    async fn change<T: Send + 'static>(
        &self,
        on: &Connection,
        name: &LockName,
        change: impl FnOnce(&mut Record<Party>, &mut Moment) -> (T, Changes<Party>) + Send + 'static,
    ) -> Result<T> {
        let name = name.clone();
        self.request(on, move |table| table.change(&name, change)).await
    }

    fn record_of(&self, ask: &engine::Ask<'_, Inbox>) -> record::Ask<Party> {
        let told = ask.queue.as_ref().and_then(|queue| queue.mailbox).map(|inbox| inbox.told.clone());
        let waits = ask.queue.as_ref().map(|queue| match told {
            Some(_) => Turn::Granted(queue.grace),
            None => Turn::Asks,
        });
        let party = Party { info: OwnerInfo::clone(ask.info), asked: self.table.time(), told };
        record::Ask { owner: ask.owner, mode: ask.mode, ttl: ask.ttl, waits, party }
    }
}

impl LeaseStore for Client {
    type Place = LockName;
    type Order = Connection;
    type Mailbox = Inbox;

    fn place(&self, name: &LockName) -> Result<LockName> {
        Ok(name.clone())
    }

    async fn order(&self, _: &LockName) -> Result<Connection> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Error::closed(NAME));
        }
        let open = self.connection().clone().filter(|present| present.is_open.load(Ordering::Relaxed));
        if let Some(open) = open {
            return Ok(open);
        }
        sleep(self.link.delay().min(self.timeout)).await;
        if self.link.chance(|faults| faults.refuse) {
            return Err(Error::new(ErrorKind::Unavailable, NAME));
        }
        let ((jobs, requests), is_open) = (mpsc::unbounded_channel(), Arc::new(AtomicBool::new(true)));
        drop(tokio::spawn(serve(
            Arc::clone(&self.table),
            Arc::clone(&self.link),
            requests,
            Arc::clone(&is_open),
        )));
        Ok(self.connection().insert(Connection { jobs, is_open }).clone())
    }

    async fn ask(&self, on: &Connection, name: &LockName, ask: &engine::Ask<'_, Inbox>) -> Result<Answer> {
        let ask = self.record_of(ask);
        let asked = |record: &mut Record<_>, now: &mut Moment| {
            let (answer, changes) = record.ask(now, ask);
            (answer.at(now.time()), changes)
        };
        self.change(on, name, asked).await
    }

    async fn release(
        &self,
        on: &Connection,
        name: &LockName,
        owner: OwnerId,
        _: Release<'_, Inbox>,
    ) -> Result<Changed> {
        let released = move |record: &mut Record<_>, now: &mut Moment| changed(record.release(now, owner));
        self.change(on, name, released).await
    }

    async fn extend(&self, leases: &[Extension<'_, LockName>]) -> Vec<Result<Changed>> {
        let all: Vec<_> = leases
            .iter()
            .map(|lease| (lease.place.clone(), lease.owner, lease.ttl, lease.shortens, lease.hold))
            .collect();
        let extended = move |table: &Table| {
            let extend = |(name, owner, ttl, shortens, hold)| {
                table.change(&name, |record, now| match hold {
                    Hold::Downgrading => changed(record.downgrade(now, owner, ttl)),
                    _ => {
                        let is_held = record.extend(now, owner, ttl, shortens).is_some();
                        changed((is_held, Changes::default()))
                    }
                })
            };
            all.into_iter().map(extend).collect::<Vec<_>>()
        };
        let answers = async { self.request(&self.order(leases[0].place).await?, extended).await };
        match answers.await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(error) => leases.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn holds(&self, name: &LockName, owner: OwnerId) -> Result<bool> {
        let holds = move |record: &mut Record<_>, now: &mut Moment| {
            (record.is_held_by(now, owner), Changes::default())
        };
        self.change(&self.order(name).await?, name, holds).await
    }

    async fn raise(&self, name: &LockName, owner: OwnerId, floor: Token) -> Result<Changed> {
        let raised = move |record: &mut Record<_>, now: &mut Moment| {
            changed((record.raise(now, owner, floor), Changes::default()))
        };
        self.change(&self.order(name).await?, name, raised).await
    }

    async fn hand_over(
        &self,
        on: &Connection,
        name: &LockName,
        from: OwnerId,
        to: &engine::Ask<'_, Inbox>,
    ) -> Result<Changed<Token>> {
        let to = self.record_of(to);
        let handed_over = move |record: &mut Record<_>, now: &mut Moment| {
            let token = record.hand_over(now, from, to);
            (token.map_or(Changed::NotHeld, Changed::Done), Changes::default())
        };
        self.change(on, name, handed_over).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let seen = |record: &mut Record<_>, now: &mut Moment| (record.state(now), Changes::default());
        self.change(&self.order(name).await?, name, seen).await
    }

    async fn break_lock(&self, name: &LockName, only: Option<Token>) -> Result<Changed> {
        let last = self.inspect(name).await?.last_token();
        let is_one = move |token| match only {
            Some(only) => token == only,
            None => Some(token) <= last,
        };
        let broken = move |record: &mut Record<_>, now: &mut Moment| changed(record.break_lock(now, is_one));
        self.change(&self.order(name).await?, name, broken).await
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        *self.connection() = None;
    }

    fn mailbox(&self, _: &LockName) -> Option<Inbox> {
        let (messages, inbox) = mpsc::unbounded_channel();
        let told = Told { link: Arc::clone(&self.link), messages };
        self.notifies.then_some(Inbox { told, messages: inbox })
    }
}

fn changed((is_changed, changes): (bool, Changes<Party>)) -> (Changed, Changes<Party>) {
    (if is_changed { Changed::Done(()) } else { Changed::NotHeld }, changes)
}
