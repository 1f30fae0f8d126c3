//! A lock that is held on one server.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::renewal::{Renew, Renewal, Renewed};
use lock_core::{
    AcquireRequest, BootInstant, Error, ErrorKind, GuardState, HandOver, Lease, LossReason, Mode, Outcome,
    OwnerId, Released, Result, Token, Validity, ValidityCell,
};

use crate::backend::{BACKEND, Shared};
use crate::server::{Ask, Extension, Hold, Rotated};
use crate::undo::Undo;
use crate::unwanted::Registration;
use crate::{Keys, Server};

/// A lock that is held.
#[derive(Debug)]
pub(crate) struct RedisLease {
    backend: Arc<Shared>,
    held: Arc<Held>,
    token: Token,
    cell: ValidityCell,
    validity: Validity,
    renewal: Renewal,
    releasing: Option<Releasing>,
    /// How often the lock was passed on inside this process before it came here.
    handovers: u32,
    /// Whether it had to be waited for, so that others most likely wait for it too.
    contended: bool,
    /// For how long its release leaves the lock free for clients that stand in no queue, if it does.
    leaves_free: Option<Duration>,
    /// As one that has waited in the queue: a grant that it is notified of is its own.
    _registration: Option<Registration>,
}

/// A release that was sent and is not answered yet.
#[derive(Clone, Copy, Debug)]
struct Releasing {
    was_valid: bool,
    /// From then on the key has ended by itself.
    over: BootInstant,
    /// Whether an earlier request may have removed the key.
    maybe_done: bool,
}

impl RedisLease {
    /// Has the server keep the lock for the whole time to live, soon and in the background.
    pub(crate) fn confirm(&self) {
        self.held.form().calls_first = true;
        self.renewal.hasten();
    }

    pub(crate) fn new(
        backend: Arc<Shared>,
        held: Arc<Held>,
        token: Token,
        cell: ValidityCell,
        renewal: Renewal,
    ) -> Self {
        let validity = cell.validity();
        Self {
            backend,
            held,
            token,
            cell,
            validity,
            renewal,
            releasing: None,
            handovers: 0,
            contended: false,
            leaves_free: None,
            _registration: None,
        }
    }

    /// Has the registration of its acquisition from now on.
    pub(crate) fn registered(self, registration: Option<Registration>) -> Self {
        if let Some(registration) = &registration {
            registration.holds(self.validity.clone());
        }
        Self { _registration: registration, ..self }
    }

    pub(crate) fn contended(self, contended: bool) -> Self {
        Self { contended, ..self }
    }

    pub(crate) fn leaves_free(self, leaves_free: Option<Duration>) -> Self {
        Self { leaves_free, ..self }
    }
}

#[async_trait]
impl Lease for RedisLease {
    fn token(&self) -> Token {
        self.token
    }

    fn owner(&self) -> OwnerId {
        self.held.owner
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        let ttl = self.backend.believed(ttl)?;
        self.renewal.extend(ttl).await.deadline(BACKEND)
    }

    async fn verify(&self) -> Result<GuardState> {
        if !self.backend.server.look(&self.held.keys, Some(self.held.owner)).await?.is_ours {
            self.cell.lose(LossReason::Removed);
        }
        Ok(self.validity.state())
    }

    async fn downgrade(&mut self) -> Result<()> {
        // As a renewal: none that knows only of the other form of the lock is on its way beside it.
        let downgrading = Downgrading::begin(&self.held);
        let renewed = self.renewal.renew().await;
        let sharing = downgrading.end();
        match renewed.deadline(BACKEND) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Lost => Err(error),
            // A renewal by itself may have done it meanwhile.
            Err(error) => Err(error.with_outcome(match sharing {
                Sharing::No => Outcome::NotApplied,
                Sharing::Asked | Sharing::Perhaps => Outcome::Unknown,
            })),
        }
    }

    async fn release(&mut self) -> Result<Released> {
        self.renewal.stop().await;
        let sent = match self.begin_release() {
            Ok(sent) => sent,
            Err(known) => return Ok(known),
        };
        let (server, keys, owner) = (&self.backend.server, &self.held.keys, self.held.owner);
        let ours = match (self.leaves_free, self.contended) {
            // Boxed, as what is rare here would make each release large.
            (Some(moment), _) => Box::pin(server.release_and_leave_free(keys, owner, moment)).await?,
            (None, true) => server.release_to_next(keys, owner).await?,
            (None, false) => server.release(keys, owner, None).await?,
        };
        self.cell.lose(LossReason::Released);
        let known_lost = ours == Some(false) && !sent.maybe_done;
        Ok(if known_lost { Released::AlreadyLost } else { sent.in_time() })
    }

    async fn hand_over(&mut self, next: &AcquireRequest) -> Result<HandOver> {
        self.renewal.stop().await;
        if self.can_pass_to(next)
            && let Some(handed_over) = self.pass_to(next).await?
        {
            return Ok(handed_over);
        }
        Ok(HandOver::Released(self.release().await?))
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        let ttl = self.renewal.longest_ttl();
        match self.backend.server.raise(&self.held.keys, self.held.owner, floor, ttl).await? {
            true => Ok(()),
            false => {
                self.cell.lose(LossReason::Removed);
                Err(Error::lost(BACKEND))
            }
        }
    }
}

impl RedisLease {
    /// Notes that a request leaves that may release the lock; or what is known without one.
    fn begin_release(&mut self) -> std::result::Result<Releasing, Released> {
        let standing = self.validity.state();
        if standing == GuardState::Lost(LossReason::Removed) {
            return Err(Released::AlreadyLost);
        }
        let now = self.backend.clock.now();
        let over = now + self.renewal.longest_ttl() + self.backend.server.command_timeout();
        let was_valid = !matches!(standing, GuardState::Lost(_));
        let sent = *self.releasing.get_or_insert(Releasing { was_valid, over, maybe_done: false });
        if now >= sent.over {
            return Err(sent.in_time());
        }
        self.releasing = Some(Releasing { maybe_done: true, ..sent });
        Ok(sent)
    }

    /// Only what is surely held is passed on, and it is tried once. After so many in a row the server
    /// decides who is next: others may wait there, in its queue or in ways of their own.
    fn can_pass_to(&self, next: &AcquireRequest) -> bool {
        next.mode == Mode::Exclusive
            && self.held.hold() == Hold::Alone
            && self.handovers + 1 < self.backend.local_handovers
            && self.leaves_free.is_none()
            && self.releasing.is_none()
            && self.validity.is_valid()
    }

    /// Passes the lock on in one request; `None` when a release has to find out what became of it.
    async fn pass_to(&mut self, next: &AcquireRequest) -> Result<Option<HandOver>> {
        let Ok(releasing) = self.begin_release() else { return Ok(None) };
        let (backend, keys) = (Arc::clone(&self.backend), Arc::clone(&self.held.keys));
        let ttl = backend.ttl_of(&next.lease);
        let info = backend.infos.of(&next.owner);
        let mut undo = Undo::new(&backend.server, &keys, ttl);
        undo.arm();
        let sent = backend.server.moment();
        let ask = Ask {
            keys: &keys,
            owner: undo.owner,
            mode: next.mode,
            ttl,
            info: &info,
            entry: None,
            is_told: false,
        };
        match backend.server.rotate(self.held.owner, &ask).await {
            Ok(Rotated::Passed(token)) => {
                self.cell.lose(LossReason::Released);
                let until = backend.server.trusted_until(sent, ttl);
                let lease = Extension { keys: &keys, owner: undo.owner, hold: Hold::Alone, ttl };
                let replicated = backend.server.await_replicas(&lease).await;
                if replicated.is_err() || backend.clock.now() >= until {
                    // It is of no use to the next: it is taken back.
                    undo.now().await;
                    return Ok(Some(HandOver::Released(releasing.in_time())));
                }
                let lease = backend.lease(&keys, next, (undo.owner, token), (sent.at, until));
                let mut lease = lease.contended(self.contended).registered(undo.disarm());
                lease.handovers = self.handovers.saturating_add(1);
                Ok(Some(HandOver::Passed(Box::new(lease))))
            }
            Ok(Rotated::NotOurs) => {
                undo.answered();
                self.cell.lose(LossReason::Removed);
                Ok(Some(HandOver::Released(Released::AlreadyLost)))
            }
            Err(error) => {
                if error.outcome() == Outcome::NotApplied {
                    undo.answered();
                    self.releasing = Some(releasing);
                }
                tracing::debug!(%error, "the lock is not passed on");
                Ok(None)
            }
        }
    }
}

impl Releasing {
    /// What a release that was in time answers.
    fn in_time(self) -> Released {
        if self.was_valid { Released::Released } else { Released::AlreadyLost }
    }
}

/// What leases are renewed by: those of one server that are due go out in one pipeline.
#[derive(Debug)]
pub(crate) struct RenewOnServer {
    pub(crate) server: Arc<Server>,
}

/// What a lease is known by.
#[derive(Debug)]
pub(crate) struct Held {
    keys: Arc<Keys>,
    owner: OwnerId,
    form: Mutex<Form>,
}

/// How a lock is held, as far as is known.
#[derive(Debug)]
struct Form {
    sharing: Sharing,
    /// Whether every renewal is a downgrade.
    downgrading: bool,
    /// Whether the next renewal tells the first of those who wait that it is.
    calls_first: bool,
}

/// Whether a lock may be held with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    No,
    /// A downgrade is on its way, the first one.
    Asked,
    /// It is so, or a downgrade was sent of which nobody knows that it was not carried out.
    Perhaps,
}

impl Held {
    pub(crate) fn new(keys: &Arc<Keys>, owner: OwnerId, hold: Hold) -> Arc<Self> {
        let sharing = if hold == Hold::Alone { Sharing::No } else { Sharing::Perhaps };
        let form = Mutex::new(Form { sharing, downgrading: false, calls_first: false });
        Arc::new(Self { keys: Arc::clone(keys), owner, form })
    }

    fn hold(&self) -> Hold {
        self.form().hold()
    }

    /// Notes that a renewal is about to leave, and says of what it is one. None other is on its way.
    fn sends(&self) -> Hold {
        let mut form = self.form();
        form.sharing = match form.sharing {
            Sharing::No if form.downgrading => Sharing::Asked,
            Sharing::No => Sharing::No,
            // The one before was never answered.
            Sharing::Asked | Sharing::Perhaps => Sharing::Perhaps,
        };
        match form.hold() {
            Hold::Alone if mem::take(&mut form.calls_first) => Hold::Passed,
            hold => hold,
        }
    }

    /// Notes what became of that renewal.
    fn answered(&self, renewed: &Renewed) {
        let mut form = self.form();
        if form.sharing == Sharing::Asked {
            form.sharing = match renewed {
                Renewed::Unknown(error) if surely_not_begun(error) => Sharing::No,
                _ => Sharing::Perhaps,
            };
        }
    }

    fn form(&self) -> MutexGuard<'_, Form> {
        self.form.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Form {
    fn hold(&self) -> Hold {
        match self.sharing {
            _ if self.downgrading => Hold::Downgrading,
            Sharing::No => Hold::Alone,
            Sharing::Asked | Sharing::Perhaps => Hold::Shared,
        }
    }
}

/// While it lasts, every renewal is a downgrade.
struct Downgrading<'a>(&'a Held);

impl<'a> Downgrading<'a> {
    fn begin(held: &'a Held) -> Self {
        held.form().downgrading = true;
        Self(held)
    }

    /// From here on no renewal is one, and what is said of the lock by now stays so.
    fn end(self) -> Sharing {
        let mut form = self.0.form();
        form.downgrading = false;
        form.sharing
    }
}

impl Drop for Downgrading<'_> {
    fn drop(&mut self) {
        self.0.form().downgrading = false;
    }
}

/// Whether a script that changes several keys has changed none: a server that lacks a right or memory in the middle keeps
/// what was done until then.
pub(crate) fn surely_not_begun(error: &Error) -> bool {
    error.outcome() == Outcome::NotApplied && error.kind() == ErrorKind::Unavailable
}

#[async_trait]
impl Renew for RenewOnServer {
    type Key = Arc<Held>;

    async fn renew(&self, batch: &[(Self::Key, Duration)]) -> Vec<Renewed> {
        let leases: Vec<_> = batch
            .iter()
            .map(|(held, ttl)| Extension {
                keys: &held.keys,
                owner: held.owner,
                hold: held.sends(),
                ttl: *ttl,
            })
            .collect();
        let mut renewed = self.extend(&leases).await;
        // One that also tells the next needs more keys than any other, and the rights to them: it is not to fail for that.
        let is_refused = |number: &usize| {
            let is_refused = |error: &Error| error.outcome() == Outcome::NotApplied;
            leases[*number].hold == Hold::Passed
                && matches!(&renewed[*number], Renewed::Unknown(error) if is_refused(error))
        };
        let refused: Vec<usize> = (0..leases.len()).filter(is_refused).collect();
        if !refused.is_empty() {
            let alone = |number: &usize| Extension { hold: Hold::Alone, ..leases[*number] };
            let alone: Vec<_> = refused.iter().map(alone).collect();
            let again = Box::pin(self.extend(&alone)).await;
            refused.into_iter().zip(again).for_each(|(number, again)| renewed[number] = again);
        }
        for ((held, _), renewed) in batch.iter().zip(&renewed) {
            held.answered(renewed);
        }
        renewed
    }
}

impl RenewOnServer {
    async fn extend(&self, leases: &[Extension<'_>]) -> Vec<Renewed> {
        let sent = self.server.moment();
        let renewed = |(ours, lease): (Result<bool>, &Extension<'_>)| match ours {
            Ok(true) => Renewed::Until(self.server.trusted_until(sent, lease.ttl)),
            Ok(false) => Renewed::NotOurs,
            Err(error) => Renewed::Unknown(error),
        };
        match self.server.extend_at(sent, leases).await {
            Ok(ours) => ours.into_iter().zip(leases).map(renewed).collect(),
            Err(error) => leases.iter().map(|_| Renewed::Unknown(error.clone())).collect(),
        }
    }
}

/// How long a lease that was asked for at `sent` can be believed in: the server's clock may run
/// faster than ours by 1 %, and it counts in milliseconds.
///
/// Source: the drift of the Redlock algorithm, Redis documentation, "Distributed Locks with Redis".
#[must_use]
pub fn trusted_until(sent: BootInstant, ttl: Duration) -> BootInstant {
    sent + ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
}
