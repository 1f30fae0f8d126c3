//! A store in memory, and the links of its clients.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use lock_testkit::fake::{Dice, Faults};
use polylock::backend::engine::{
    self, Answer, Answered, Changed, Engine, EngineOptions, Extension, Hold, LeaseStore, Mailbox, Message,
    Order, Release,
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
        confirms: scenario.confirms,
        says_when: scenario.notifies && scenario.says_when,
        claims: scenario.claims,
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
    confirms: bool,
    says_when: bool,
    claims: bool,
    connection: Mutex<Option<Connection>>,
    is_closed: AtomicBool,
}

/// A connection: its requests are executed one after the other.
#[derive(Clone, Debug)]
struct Connection {
    jobs: mpsc::UnboundedSender<Job>,
    is_open: Arc<AtomicBool>,
}

/// The connection of one request of the engine, and what became of the requests that ask for a lock.
#[derive(Clone, Debug)]
struct OnConnection {
    connection: Connection,
    sent: Arc<AtomicUsize>,
    is_withdrawn: Arc<AtomicBool>,
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
    confirms: bool,
    says_when: bool,
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
        let ends = record.holders().iter().map(|holder| holder.until).max();
        if let (Some(ends), Some(told)) =
            (ends, record.queue().front().and_then(|waiter| waiter.party.told.as_ref()))
        {
            told.next(ends.saturating_duration_since(self.time()));
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
        if !self.link.chance(|faults| faults.lose_reply * 5.0) {
            self.send(if self.confirms { Message::Confirm } else { Message::Granted(token) });
        }
    }

    /// Tells the first waiter when the lock may be free, if the answers do not say it.
    fn next(&self, ends_in: Duration) {
        if self.says_when {
            self.send(Message::AskIn(ends_in));
        }
    }

    fn send(&self, message: Message) {
        let Self { link, messages, .. } = self.clone();
        drop(tokio::spawn(async move {
            sleep(link.delay()).await;
            let _ = messages.send(message);
        }));
    }
}

impl Mailbox for Inbox {
    /// Only the first is told when to ask again.
    fn listens(&mut self, ahead: Option<usize>) -> Option<Duration> {
        let is_told = self.told.says_when && ahead == Some(0);
        Some(Duration::from_secs(if is_told { 60 } else { 1 }))
    }

    async fn next(&mut self) -> Message {
        match self.messages.recv().await {
            Some(message) => message,
            None => pending().await,
        }
    }

    /// The store takes the waiter for gone.
    fn given_up(&mut self, _: bool) {
        self.messages.close();
    }
}

impl Order for OnConnection {
    fn is_open(&self) -> bool {
        self.connection.is_open.load(Ordering::Relaxed)
    }

    fn requests(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    fn withdraw(&self) {
        self.is_withdrawn.store(true, Ordering::Relaxed);
    }
}

impl OnConnection {
    fn new(connection: Connection) -> Self {
        let (sent, is_withdrawn) = Default::default();
        Self { connection, sent, is_withdrawn }
    }

    /// Waits for the turn of a request that asks for a lock, also when its caller is dropped; and notes that it is sent, if
    /// somebody still waits for it.
    fn send(&self, job: Job, turn: Duration) {
        let on = self.clone();
        drop(tokio::spawn(async move {
            sleep(turn).await;
            if !on.is_withdrawn.load(Ordering::Relaxed) {
                on.sent.fetch_add(1, Ordering::Relaxed);
                let _ = on.connection.jobs.send(job);
            }
        }));
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
        on: &OnConnection,
        turn: Option<Duration>,
        execute: impl FnOnce(&Table) -> T + Send + 'static,
    ) -> Result<T> {
        let (sender, answered) = oneshot::channel();
        let job: Job = Box::new(move |table| {
            let answer = execute(table);
            Box::new(move || drop(sender.send(answer)))
        });
        let unanswered = |code| {
            on.connection.is_open.store(false, Ordering::Relaxed);
            Error::new(ErrorKind::Unavailable, NAME).with_code(code).with_outcome(Outcome::Unknown)
        };
        match turn {
            Some(turn) => on.send(job, turn),
            None => on.connection.jobs.send(job).map_err(|_| unanswered("broken"))?,
        }
        match timeout(self.timeout, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(unanswered("broken")),
            Err(_) => Err(unanswered("silent")),
        }
    }

    async fn change<T: Send + 'static>(
        &self,
        on: &OnConnection,
        turn: Option<Duration>,
        name: &LockName,
        change: impl FnOnce(&mut Record<Party>, &mut Moment) -> (T, Changes<Party>) + Send + 'static,
    ) -> Result<T> {
        let name = name.clone();
        self.request(on, turn, move |table| table.change(&name, change)).await
    }

    /// How long a request for a lock waits before it is sent: it is sent before its answer is given up.
    fn turn(&self) -> Option<Duration> {
        Some(self.link.delay().min(self.timeout / 4))
    }

    async fn asked(&self, on: &OnConnection, name: &LockName, ask: record::Ask<Party>) -> Result<Answer> {
        let asked = |record: &mut Record<_>, now: &mut Moment| {
            let (answer, changes) = record.ask(now, ask);
            (answer.at(now.time()), changes)
        };
        self.change(on, self.turn(), name, asked).await
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
    type Order = OnConnection;
    type Mailbox = Inbox;

    fn place(&self, name: &LockName) -> Result<LockName> {
        Ok(name.clone())
    }

    async fn order(&self, _: &LockName) -> Result<OnConnection> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Error::closed(NAME));
        }
        let open = self.connection().clone().filter(|present| present.is_open.load(Ordering::Relaxed));
        if let Some(open) = open {
            return Ok(OnConnection::new(open));
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
        Ok(OnConnection::new(self.connection().insert(Connection { jobs, is_open }).clone()))
    }

    async fn ask(&self, on: &OnConnection, name: &LockName, ask: &engine::Ask<'_, Inbox>) -> Result<Answer> {
        if self.claims && ask.is_first {
            let claim = record::Ask { waits: None, ..self.record_of(ask) };
            if let granted @ Answer::Granted(_) = self.asked(on, name, claim).await? {
                return Ok(granted);
            }
        }
        let answer = self.asked(on, name, self.record_of(ask)).await?;
        Ok(match answer {
            Answer::Busy { ahead: ahead @ Some(_), .. } if self.says_when => {
                Answer::Busy { ahead, ends_in: None }
            }
            answer => answer,
        })
    }

    async fn release(
        &self,
        on: &OnConnection,
        name: &LockName,
        owner: OwnerId,
        _: Release<'_, Inbox>,
    ) -> Result<Changed> {
        let released = move |record: &mut Record<_>, now: &mut Moment| changed(record.release(now, owner));
        self.change(on, None, name, released).await
    }

    async fn extend(&self, leases: &[Extension<'_, LockName>], answered: impl Answered<Result<Changed>>) {
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
        let answers = async { self.request(&self.order(leases[0].place).await?, None, extended).await };
        match answers.await {
            Ok(answers) => answers.into_iter().enumerate().for_each(|(at, answer)| answered(at, Ok(answer))),
            Err(error) => (0..leases.len()).for_each(|at| answered(at, Err(error.clone()))),
        }
    }

    async fn holds(&self, name: &LockName, owner: OwnerId) -> Result<bool> {
        let holds = move |record: &mut Record<_>, now: &mut Moment| {
            (record.is_held_by(now, owner), Changes::default())
        };
        self.change(&self.order(name).await?, None, name, holds).await
    }

    async fn raise(&self, name: &LockName, owner: OwnerId, floor: Token) -> Result<Changed> {
        let raised = move |record: &mut Record<_>, now: &mut Moment| {
            changed((record.raise(now, owner, floor), Changes::default()))
        };
        self.change(&self.order(name).await?, None, name, raised).await
    }

    async fn hand_over(
        &self,
        on: &OnConnection,
        name: &LockName,
        from: OwnerId,
        to: &engine::Ask<'_, Inbox>,
    ) -> Result<Changed<Token>> {
        let to = self.record_of(to);
        let handed_over = move |record: &mut Record<_>, now: &mut Moment| {
            let token = record.hand_over(now, from, to);
            (token.map_or(Changed::NotHeld, Changed::Done), Changes::default())
        };
        self.change(on, self.turn(), name, handed_over).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let seen = |record: &mut Record<_>, now: &mut Moment| (record.state(now), Changes::default());
        self.change(&self.order(name).await?, None, name, seen).await
    }

    async fn break_lock(&self, name: &LockName, only: Option<Token>) -> Result<Changed> {
        let last = self.inspect(name).await?.last_token();
        let is_one = move |token| match only {
            Some(only) => token == only,
            None => Some(token) <= last,
        };
        let broken = move |record: &mut Record<_>, now: &mut Moment| changed(record.break_lock(now, is_one));
        self.change(&self.order(name).await?, None, name, broken).await
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        *self.connection() = None;
    }

    fn mailbox(&self, _: &LockName) -> Option<Inbox> {
        let (messages, inbox) = mpsc::unbounded_channel();
        let told = Told {
            link: Arc::clone(&self.link),
            confirms: self.confirms,
            says_when: self.says_when,
            messages,
        };
        self.notifies.then_some(Inbox { told, messages: inbox })
    }
}

fn changed((is_changed, changes): (bool, Changes<Party>)) -> (Changed, Changes<Party>) {
    (if is_changed { Changed::Done(()) } else { Changed::NotHeld }, changes)
}
