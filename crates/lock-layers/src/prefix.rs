//! All names under a prefix.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::Layer;
use lock_core::{
    AcquireRequest, Acquired, Backend, BootInstant, Capabilities, DoctorReport, Error, ErrorKind, GuardState,
    HandOver, Lease, LockName, LockState, Locks, OwnerId, Released, Result, Revocation, Token, Validity,
};

/// Puts all names under a prefix: the lock `orders/42` is the lock `shop/orders/42` of the store.
///
/// For services that share a store, where the backend has no option for it or the URL is not theirs. Several prefixes nest.
///
/// * All operations go by the short names: acquisitions, [`inspect`](lock_core::Locks::inspect),
///   [`list`](lock_core::Locks::list), [`break_lock`](lock_core::Locks::break_lock), elections. An error of the store may show
///   the whole name.
/// * End the prefix with a separator: `list` with the prefix `shop` also shows the locks of `shop-test/`.
/// * It separates names, not rights: a client without the layer can use every lock.
/// * A name that is too long with its prefix is refused at its first use, as [`InvalidName`](ErrorKind::InvalidName).
///
/// # Examples
///
/// ```
/// # use lock_core::MemoryConfig;
/// # use lock_layers::PrefixLayer;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// let store = MemoryConfig::new().connect()?;
/// let shop = store.clone().layer(PrefixLayer::new("shop/")?);
/// let guard = shop.mutex("orders/42").acquire().await?;
/// assert!(store.mutex("shop/orders/42").try_acquire().await?.is_none());
/// assert_eq!(shop.list("").await?[0].as_str(), "orders/42");
/// # guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PrefixLayer {
    prefix: Arc<str>,
}

impl PrefixLayer {
    /// A layer with this prefix.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) when it is empty, or leaves no room for a name
    /// ([`LockName::MAX_BYTES`]).
    pub fn new(prefix: impl AsRef<str>) -> Result<Self> {
        let prefix = prefix.as_ref();
        if (1..LockName::MAX_BYTES).contains(&prefix.len()) {
            return Ok(Self { prefix: prefix.into() });
        }
        Err(Error::new(ErrorKind::InvalidConfig, "polylock")
            .with_message(format!("a prefix of lock names has {} bytes", prefix.len()))
            .with_hint(format!("use 1 to {} bytes, such as \"shop/\"", LockName::MAX_BYTES - 1)))
    }

    fn below(&self, name: &LockName, backend: &'static str) -> Result<LockName> {
        LockName::new(format!("{}{name}", self.prefix)).map_err(|error| {
            let most = LockName::MAX_BYTES - self.prefix.len();
            Error::new(ErrorKind::InvalidName, backend)
                .with_message(format!("{} with its prefix", error.message()))
                .with_hint(format!("use at most {most} bytes, for instance a hash of the long part"))
        })
    }

    /// The name without the prefix; `None` for a name without it, or with nothing behind it.
    fn above(&self, name: &LockName) -> Option<LockName> {
        LockName::new(name.as_str().strip_prefix(&*self.prefix)?).ok()
    }

    fn request_below(&self, request: &AcquireRequest, backend: &'static str) -> Result<AcquireRequest> {
        let mut below = request.clone();
        below.name = self.below(&request.name, backend)?;
        Ok(below)
    }

    fn state_above(&self, mut state: LockState) -> LockState {
        if let Some(moved) = &mut state.moved
            && let Some(name) = self.above(&moved.lock)
        {
            moved.lock = name;
        }
        state
    }

    fn state_below(&self, state: &LockState, backend: &'static str) -> Result<LockState> {
        let mut state = state.clone();
        if let Some(moved) = &mut state.moved {
            moved.lock = self.below(&moved.lock, backend)?;
        }
        Ok(state)
    }
}

impl Layer for PrefixLayer {
    fn layer(self, locks: Locks) -> Locks {
        locks.over(|inner| Prefixed { inner, layer: self })
    }
}

/// A backend whose names have a prefix.
#[derive(Debug)]
struct Prefixed {
    inner: Arc<dyn Backend>,
    layer: PrefixLayer,
}

impl Prefixed {
    fn below(&self, name: &LockName) -> Result<LockName> {
        self.layer.below(name, self.backend())
    }

    fn backend(&self) -> &'static str {
        self.inner.capabilities().backend
    }
}

/// Everything but migrations, which concern all locks of a store.
#[async_trait]
impl Backend for Prefixed {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn connect(&self) -> Result<()> {
        self.inner.connect().await
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        let request = self.layer.request_below(&request, self.backend())?;
        Ok(match self.inner.acquire(request).await? {
            Acquired::Held(inner) => {
                let (layer, backend) = (self.layer.clone(), self.backend());
                Acquired::Held(Box::new(PrefixedLease { inner, layer, backend }))
            }
            other => other,
        })
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        Ok(self.layer.state_above(self.inner.inspect(&self.below(name)?).await?))
    }

    async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        let seen = self.layer.state_below(seen, self.backend())?;
        Ok(self.layer.state_above(self.inner.await_change(&self.below(name)?, &seen).await?))
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        self.inner.break_lock(&self.below(name)?).await
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        self.inner.break_lock_if(&self.below(name)?, token).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let listed = self.inner.list(&format!("{}{prefix}", self.layer.prefix)).await?;
        Ok(listed.iter().filter_map(|name| self.layer.above(name)).collect())
    }

    async fn request_revocation(&self, name: &LockName) -> Result<bool> {
        self.inner.request_revocation(&self.below(name)?).await
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        self.inner.doctor().await
    }

    async fn settle(&self) {
        self.inner.settle().await;
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

/// A lease that gives the next holder its whole name, and forwards everything.
struct PrefixedLease {
    inner: Box<dyn Lease>,
    layer: PrefixLayer,
    backend: &'static str,
}

#[async_trait]
impl Lease for PrefixedLease {
    fn token(&self) -> Token {
        self.inner.token()
    }

    fn owner(&self) -> OwnerId {
        self.inner.owner()
    }

    fn validity(&self) -> &Validity {
        self.inner.validity()
    }

    fn revocation(&self) -> Option<&Revocation> {
        self.inner.revocation()
    }

    fn backend_specific(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.inner.backend_specific()
    }

    #[cfg(unix)]
    fn locked_file(&self) -> Option<std::os::fd::OwnedFd> {
        self.inner.locked_file()
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        self.inner.extend(ttl).await
    }

    async fn leave(&self, ttl: Duration) -> Result<BootInstant> {
        self.inner.leave(ttl).await
    }

    async fn verify(&self) -> Result<GuardState> {
        self.inner.verify().await
    }

    async fn release(&mut self) -> Result<Released> {
        self.inner.release().await
    }

    async fn hand_over(&mut self, next: &AcquireRequest) -> Result<HandOver> {
        let below = self.layer.request_below(next, self.backend)?;
        Ok(match self.inner.hand_over(&below).await? {
            HandOver::HandedOver(inner) => {
                let (layer, backend) = (self.layer.clone(), self.backend);
                HandOver::HandedOver(Box::new(Self { inner, layer, backend }))
            }
            released => released,
        })
    }

    fn pass_on(&mut self, is_token_known: bool) -> bool {
        self.inner.pass_on(is_token_known)
    }

    async fn downgrade(&mut self) -> Result<()> {
        self.inner.downgrade().await
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        self.inner.raise_token(floor).await
    }
}

/// Without the owner id.
impl fmt::Debug for PrefixedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixedLease").field("token", &self.token()).finish_non_exhaustive()
    }
}
