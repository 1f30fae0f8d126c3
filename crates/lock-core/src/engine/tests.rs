//! What the engine asks of a store, whose answers each test sets.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::mpsc;

use super::*;
use crate::{Holder, HolderInfo, LeaseKind, LockMode, OwnerInfo, Released, Wait};

/// Longer than the requests of a test are repeated.
const TTL: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(10);

/// A store that answers what it is told to. Without more answers, it grants and does everything.
#[derive(Debug, Default)]
struct Scripted(Arc<Mutex<Script>>);

#[derive(Debug, Default)]
struct Script {
    answers: VecDeque<Answer>,
    /// How long it takes to answer.
    takes: Duration,
    /// How many requests it sends for one that asks for the lock, if not one.
    requests: Option<usize>,
    messages: Option<mpsc::UnboundedReceiver<Message>>,
    /// How long a downgrade takes.
    downgrades_for: Duration,
    /// The hold of extensions that are blocked.
    blocks: Option<Hold>,
    /// How many more requests that break the lock are blocked.
    blocks_breaks: usize,
    /// The errors of the next releases.
    refuses_releases: VecDeque<Error>,
    state: LockState,
    seen: Seen,
}

/// What it was asked for.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Who asked, and whether that was a confirmation.
    asked: Vec<(OwnerId, bool)>,
    graces: Vec<Duration>,
    released: usize,
    extended: Vec<Hold>,
    broken: Vec<Option<Token>>,
    withdrawn: usize,
    /// Whether each acquisition that was given up was in doubt.
    given_up: Vec<bool>,
}

#[derive(Debug)]
struct Messages(mpsc::UnboundedReceiver<Message>, Arc<Mutex<Script>>);

impl Mailbox for Messages {
    fn listens(&mut self, _: Option<usize>) -> Option<Duration> {
        Some(TTL)
    }

    async fn next(&mut self) -> Message {
        match self.0.recv().await {
            Some(message) => message,
            None => std::future::pending().await,
        }
    }

    fn given_up(&mut self, in_doubt: bool) {
        self.1.lock().unwrap().seen.given_up.push(in_doubt);
    }
}

/// An order of which nothing is known.
#[derive(Clone, Debug)]
struct Line(Arc<Mutex<Script>>);

impl Order for Line {
    fn is_open(&self) -> bool {
        false
    }

    fn requests(&self) -> usize {
        self.0.lock().unwrap().requests.unwrap_or(1)
    }

    fn withdraw(&self) {
        self.0.lock().unwrap().seen.withdrawn += 1;
    }
}

impl Scripted {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap()
    }
}

impl LeaseStore for Scripted {
    type Place = ();
    type Order = Line;
    type Mailbox = Messages;

    fn place(&self, _: &LockName) -> Result<()> {
        Ok(())
    }

    async fn order(&self, (): &()) -> Result<Line> {
        Ok(Line(Arc::clone(&self.0)))
    }

    async fn ask(&self, _: &Line, (): &(), ask: &Ask<'_, Messages>) -> Result<Answer> {
        let takes = {
            let mut script = self.script();
            script.seen.asked.push((ask.owner, ask.is_confirmation));
            script.seen.graces.extend(ask.queue.as_ref().map(|queue| queue.grace));
            script.takes
        };
        sleep(takes).await;
        let mut script = self.script();
        Ok(script.answers.pop_front().unwrap_or(Answer::Granted(Token::new(1 << 10))))
    }

    async fn release(&self, _: &Line, (): &(), _: OwnerId, _: Release<'_, Messages>) -> Result<Changed> {
        let mut script = self.script();
        script.seen.released += 1;
        script.refuses_releases.pop_front().map_or(Ok(Changed::Done(())), Err)
    }

    async fn extend(&self, leases: &[Extension<'_, ()>], answered: impl Answered<Result<Changed>>) {
        let is_downgrade = leases.iter().any(|lease| lease.hold == Hold::Downgrading);
        let takes = if is_downgrade { self.script().downgrades_for } else { Duration::ZERO };
        sleep(takes).await;
        let mut script = self.script();
        for (at, lease) in leases.iter().enumerate() {
            script.seen.extended.push(lease.hold);
            let is_blocked = script.blocks == Some(lease.hold);
            answered(at, Ok(if is_blocked { Changed::Blocked } else { Changed::Done(()) }));
        }
    }

    async fn holds(&self, (): &(), _: OwnerId) -> Result<bool> {
        Ok(true)
    }

    async fn raise(&self, (): &(), _: OwnerId, _: Token) -> Result<Changed> {
        Ok(Changed::Done(()))
    }

    async fn hand_over(
        &self,
        _: &Line,
        (): &(),
        _: OwnerId,
        _: &Ask<'_, Messages>,
    ) -> Result<Changed<Token>> {
        Ok(Changed::Blocked)
    }

    async fn inspect(&self, (): &()) -> Result<LockState> {
        Ok(self.script().state.clone())
    }

    async fn break_lock(&self, (): &(), only: Option<Token>) -> Result<Changed> {
        let mut script = self.script();
        script.seen.broken.push(only);
        if script.blocks_breaks == 0 {
            return Ok(Changed::Done(()));
        }
        script.blocks_breaks -= 1;
        Ok(Changed::Blocked)
    }

    fn close(&self) {}

    fn mailbox(&self, (): &()) -> Option<Messages> {
        let messages = self.script().messages.take()?;
        Some(Messages(messages, Arc::clone(&self.0)))
    }
}

fn engine(script: Script) -> (Engine<Scripted>, Arc<Mutex<Script>>) {
    let capabilities = Capabilities::new("scripted", LeaseKind::ttl(TTL, Duration::from_millis(10)));
    let mut options = EngineOptions::new(TIMEOUT);
    options.clock = Clock::tokio();
    let script = Arc::new(Mutex::new(script));
    (Engine::new(Scripted(Arc::clone(&script)), capabilities, options).unwrap(), script)
}

fn request(wait: Wait, ttl: Duration) -> AcquireRequest {
    let lease = LeasePolicy { ttl: Some(ttl), ..LeasePolicy::default() };
    AcquireRequest::exclusive(name(), wait, lease, Arc::new(OwnerInfo::this_process()))
}

fn name() -> LockName {
    LockName::new("orders/42").unwrap()
}

fn held_with(tokens: &[u64]) -> LockState {
    LockState::held(tokens.iter().map(|token| {
        let mut holder = HolderInfo::new(Holder::Unknown(String::new()), LockMode::Shared);
        holder.token = Some(Token::new(*token));
        holder
    }))
}

fn seen(script: &Mutex<Script>) -> Seen {
    script.lock().unwrap().seen.clone()
}

#[tokio::test(start_paused = true)]
async fn a_break_that_is_repeated_breaks_no_later_holder() {
    let (engine, script) =
        engine(Script { blocks_breaks: 3, state: held_with(&[1024, 1040]), ..Script::default() });
    assert!(engine.break_lock(&name()).await.unwrap());
    // All that had it then, and their tokens were read once.
    let repeated = [None, Some(1024), Some(1024), Some(1024), Some(1040)].map(|only| only.map(Token::new));
    assert_eq!(seen(&script).broken, repeated);
}

#[tokio::test(start_paused = true)]
async fn a_release_in_doubt_stays_so_whatever_the_next_answer_is() {
    let unknown = Error::new(ErrorKind::Unavailable, "scripted").with_outcome(Outcome::Unknown);
    let refuses_releases = [unknown, Error::closed("scripted")].into();
    let (engine, _) = engine(Script { refuses_releases, ..Script::default() });
    let Acquired::Held(mut lease) = engine.acquire(request(Wait::Never, TTL)).await.unwrap() else {
        panic!("it is free")
    };
    for kind in [ErrorKind::Unavailable, ErrorKind::Closed] {
        let error = lease.release().await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (kind, Outcome::Unknown), "{error}");
    }
    assert_eq!(lease.release().await.unwrap(), Released::Released);
}

/// A fence keeps the row of the lock from a downgrade, and not that of the lease.
#[tokio::test(start_paused = true)]
async fn a_lease_whose_downgrade_is_blocked_is_extended() {
    let (engine, script) = engine(Script { blocks: Some(Hold::Downgrading), ..Script::default() });
    // Time: it ends while the downgrade is repeated, unless it is extended.
    let ttl = TIMEOUT / 5;
    let mut lease = held(engine.acquire(request(Wait::Never, ttl)).await);
    let error = lease.downgrade().await.unwrap_err();
    assert_eq!((error.code(), error.outcome()), ("locked", Outcome::NotApplied), "{error}");
    assert!(lease.validity().is_valid());
    let extended = seen(&script).extended;
    for (at, hold) in extended.iter().enumerate() {
        // Nothing was changed: it is still held alone.
        assert_eq!(*hold, if at % 2 == 0 { Hold::Downgrading } else { Hold::Alone }, "{at}");
    }
    assert!(extended.len() > 4, "{extended:?}");

    script.lock().unwrap().blocks = None;
    lease.downgrade().await.unwrap();
    assert_eq!(seen(&script).extended.last(), Some(&Hold::Downgrading));
}

/// It may let others in, notify them, and wait for a table.
#[tokio::test(start_paused = true)]
async fn a_slow_downgrade_delays_no_renewal_and_no_release_of_another_lease() {
    let (engine, _script) = engine(Script { downgrades_for: TIMEOUT, ..Script::default() });
    // Time: a lease ends while the other one is downgraded, unless it is extended.
    let ttl = TIMEOUT / 4;
    let mut writer = held(engine.acquire(request(Wait::Never, TTL)).await);
    let (mut other, kept) = (
        held(engine.acquire(request(Wait::Never, ttl)).await),
        held(engine.acquire(request(Wait::Never, ttl)).await),
    );
    let began = tokio::time::Instant::now();
    let goes_on = async {
        sleep(ttl * 2).await;
        assert!(other.validity().is_valid() && kept.validity().is_valid());
        assert_eq!(other.release().await.unwrap(), Released::Released);
        assert!(began.elapsed() < TIMEOUT);
    };
    let (downgraded, ()) = tokio::join!(writer.downgrade(), goes_on);
    downgraded.unwrap();
    assert!(began.elapsed() >= TIMEOUT && kept.validity().is_valid());
}

/// The clock of the leases goes on while a process is paused.
#[tokio::test(start_paused = true)]
async fn a_pause_while_a_request_is_answered_asks_for_no_longer_grace() {
    let busy = Answer::Busy { ahead: Some(0), ends_in: None };
    let (engine, script) = engine(Script { answers: [busy, busy].into(), ..Script::default() });
    // Time: a pause, which no request lasts.
    script.lock().unwrap().takes = TIMEOUT * 20;
    let ttl = TIMEOUT * 1000;
    held(engine.acquire(request(Wait::Forever, ttl)).await);
    script.lock().unwrap().takes = Duration::ZERO;
    held(engine.acquire(request(Wait::Forever, ttl)).await);
    // What the round trips of requests that end in time ask for.
    let Seen { graces, .. } = seen(&script);
    assert!(graces.iter().all(|grace| *grace <= TIMEOUT * 4), "{graces:?}");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_gives_up_leaves_the_queue_if_it_is_in_one() {
    for (ahead, released) in [(None, 0), (Some(1), 1)] {
        let answers = std::iter::repeat_n(Answer::Busy { ahead, ends_in: None }, 1000);
        let (engine, script) = engine(Script { answers: answers.collect(), ..Script::default() });
        let wait = Wait::Until(tokio::time::Instant::now() + TIMEOUT);
        assert!(matches!(engine.acquire(request(wait, TTL)).await.unwrap(), Acquired::Busy));
        engine.settle().await;
        let seen = seen(&script);
        assert!(seen.asked.len() > 1 && seen.released == released, "{ahead:?}: {seen:?}");
    }
}

/// One that came while the waiter asked again: the store has queued it up since.
#[tokio::test(start_paused = true)]
async fn a_late_message_of_a_grant_costs_no_place_in_the_queue() {
    for message in [Message::Confirm, Message::Granted(Token::new(16))] {
        for (ahead, stays) in [(Some(0), true), (None, false)] {
            let busy = |ahead| Answer::Busy { ahead, ends_in: None };
            let (sender, messages) = mpsc::unbounded_channel();
            let answers = VecDeque::from([busy(Some(0)), busy(ahead)]);
            let (engine, script) = engine(Script { answers, messages: Some(messages), ..Script::default() });
            // What is not renewed is not taken over, but confirmed first.
            let mut request = request(Wait::Forever, TTL);
            request.lease.renewed = false;
            sender.send(message).unwrap();
            let second = async {
                while seen(&script).asked.len() < 2 {
                    tokio::task::yield_now().await;
                }
                sender.send(Message::Ask)
            };
            let (acquired, _) = tokio::join!(engine.acquire(request), second);
            held(acquired);
            engine.settle().await;
            let Seen { asked, released, .. } = seen(&script);
            let [(first, false), (confirms, true), (last, false)] = asked[..] else { panic!("{asked:?}") };
            assert!(first == confirms && (first == last) == stays, "{ahead:?}: {asked:?}");
            assert_eq!(released, usize::from(!stays), "{ahead:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_taken_over_without_asking_again_and_confirmed_once() {
    let (sender, messages) = mpsc::unbounded_channel();
    let answers = [Answer::Busy { ahead: Some(0), ends_in: None }].into();
    let (engine, script) = engine(Script { answers, messages: Some(messages), ..Script::default() });
    let token = Token::new(16);
    sender.send(Message::Granted(token)).unwrap();
    let lease = held(engine.acquire(request(Wait::Forever, TTL)).await);
    sleep(TTL).await;
    assert!(lease.token() == token && lease.validity().is_valid());
    let Seen { asked, extended, .. } = seen(&script);
    assert!(asked.len() == 1 && extended.len() > 2, "{asked:?}, {extended:?}");
    assert!(
        extended[0] == Hold::Granted && extended[1..].iter().all(|hold| *hold == Hold::Alone),
        "{extended:?}"
    );
}

/// A grant would be over each time before such a store is asked to confirm it.
#[tokio::test(start_paused = true)]
async fn a_waiter_of_a_store_that_became_slow_queues_up_with_more_time_to_confirm() {
    let busy = Answer::Busy { ahead: Some(0), ends_in: None };
    let (sender, messages) = mpsc::unbounded_channel();
    let (engine, script) =
        engine(Script { answers: [busy, busy].into(), messages: Some(messages), ..Script::default() });
    // Time: four of these round trips are longer than the usual grace.
    script.lock().unwrap().takes = Duration::from_secs(2);
    sender.send(Message::Confirm).unwrap();
    held(engine.acquire(request(Wait::Forever, TTL)).await);
    let Seen { asked, graces, .. } = seen(&script);
    assert!(asked[0].0 == asked[1].0 && asked[1].0 != asked[2].0, "{asked:?}");
    assert!(graces[2] > graces[1], "{graces:?}");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_asks_again_when_it_is_told_to() {
    let (sender, messages) = mpsc::unbounded_channel();
    let answers = [Answer::Busy { ahead: Some(0), ends_in: None }].into();
    let (engine, _script) = engine(Script { answers, messages: Some(messages), ..Script::default() });
    let (began, after) = (tokio::time::Instant::now(), TTL / 10);
    sender.send(Message::AskIn(Duration::from_secs(1))).unwrap();
    sender.send(Message::AskIn(after)).unwrap();
    held(engine.acquire(request(Wait::Forever, TTL)).await);
    // The earlier of both.
    assert!(began.elapsed() < after / 2);
}

/// The answer has not come, or has not been waited for.
#[tokio::test(start_paused = true)]
async fn an_acquisition_that_is_dropped_is_rolled_back_as_far_as_it_was_sent() {
    for (requests, times, given_up) in [(0, 0..=0, None), (1, 1..=1, Some(true)), (2, 2..=1000, Some(true))] {
        let (_sender, messages) = mpsc::unbounded_channel();
        let script =
            Script { takes: TTL, requests: Some(requests), messages: Some(messages), ..Script::default() };
        let (engine, script) = engine(script);
        tokio::time::timeout(TIMEOUT, engine.acquire(request(Wait::Forever, TTL))).await.unwrap_err();
        sleep(TTL * 2).await;
        let seen = seen(&script);
        assert_eq!((seen.withdrawn, seen.asked.len()), (1, 1));
        // What was found once does not come again, unless there was another request.
        assert!(times.contains(&seen.released), "{requests}: {seen:?}");
        assert_eq!(seen.given_up, Vec::from_iter(given_up), "{requests}");
    }
    let (_sender, messages) = mpsc::unbounded_channel();
    let answers = [Answer::Busy { ahead: Some(0), ends_in: None }].into();
    let (engine, script) = engine(Script { answers, messages: Some(messages), ..Script::default() });
    tokio::time::timeout(TIMEOUT, engine.acquire(request(Wait::Forever, TTL))).await.unwrap_err();
    sleep(TTL).await;
    let seen = seen(&script);
    assert_eq!((seen.withdrawn, seen.released, seen.given_up), (0, 1, vec![false]));
}

fn held(acquired: Result<Acquired>) -> Box<dyn Lease> {
    match acquired.unwrap() {
        Acquired::Held(lease) => lease,
        other => panic!("{other:?}"),
    }
}
