//! Opens sessions, and proves one before its first use if its opening took long.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use lock_core::{BootInstant, Error, ErrorKind, Outcome, Result};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use zookeeper_client as zk;

use crate::config::ZkConfig;
use crate::error::{Fault, Right, denied, error, no_chroot, too_old, unavailable};
use crate::recipes::unpolled;
use crate::sessions::ensemble::SessionClient;
use crate::sessions::proof::{Proofs, pass_quorum};
use crate::sessions::renew;
use crate::sessions::session::{PAUSE, Session, parent};
use crate::wire::four_letter::first_version;
use crate::wire::reachability::unreachable;

/// Opens a session on this runtime. Repeats that for as long as connecting may take, as a server that refuses at once may
/// be restarting.
///
/// A session whose opening took long is returned once it is [proven](UnprovenSession::prove), which may take half of its
/// timeout longer.
pub(crate) async fn open(config: &ZkConfig, runtime: Handle) -> Result<Arc<Session>> {
    match open_within(config, runtime).await {
        Err(error) if error.kind() == ErrorKind::Unavailable && config.has_driver() => {
            Err(with_reasons(error, &config.hosts).await)
        }
        opened => opened,
    }
}

async fn open_within(config: &ZkConfig, runtime: Handle) -> Result<Arc<Session>> {
    let until = Instant::now() + config.connect_limit();
    let (mut pause, mut last) = (PAUSE, None);
    loop {
        let opened = match timeout_at(until, UnprovenSession::connect(config)).await {
            Ok(Ok(mut session)) => session.prove(config).await.map(|()| session),
            Ok(Err(error)) => Err(error),
            Err(_) => return Err(last.unwrap_or_else(|| no_session(config))),
        };
        match opened {
            Err(error) if error.kind() == ErrorKind::Unavailable && Instant::now() + pause < until => {
                tracing::debug!(%error, "opening a ZooKeeper session failed; trying again");
                last = Some(error);
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            opened => {
                let UnprovenSession { client, proofs, until } = opened?;
                let session = Session::new(client, proofs, until, config, runtime);
                renew::start(&session);
                unpolled::start(&session);
                return Ok(session);
            }
        }
    }
}

/// A session that was just opened, and has no locks yet.
struct UnprovenSession {
    client: Arc<dyn SessionClient>,
    proofs: Proofs,
    until: BootInstant,
}

impl UnprovenSession {
    async fn connect(config: &ZkConfig) -> Result<Self> {
        let clock = &config.clock;
        let began = clock.now();
        let client = match config.opener().open(config.session_timeout).await {
            Ok(client) => client,
            Err(zk::Error::Unimplemented) => {
                return Err(too_old(first_version(&config.hosts).await.as_deref()));
            }
            Err(error) => return Err(not_open(error, config)),
        };
        let sent = clock.now();
        let (passed, root) = join(pass_quorum(&*client, "/"), async { client.stat("/").await }).await;
        passed.map_err(|error| not_open(error, config))?;
        if matches!(root, Ok(None)) {
            return Err(no_chroot(config.chroot_path()));
        }
        let mut proofs = Proofs::opened(began, client.timeout());
        let until = proofs.answered(sent, clock.now());
        Ok(Self { client, proofs, until })
    }

    /// Waits for a proof if less than half of the timeout is left.
    ///
    /// The opening counts from its beginning, which may be long ago: silent hosts came first, or the servers granted
    /// another timeout. The rest may then be over before the heartbeats prove more. So two requests prove the session
    /// here: the answer to the second proves the first.
    async fn prove(&mut self, config: &ZkConfig) -> Result<()> {
        let (clock, session_timeout) = (&config.clock, self.client.timeout());
        if self.until >= clock.now() + session_timeout / 2 {
            return Ok(());
        }
        clock.sleep_until(self.proofs.next_proof()).await;
        let proof = async {
            loop {
                let sent = clock.now();
                match pass_quorum(&*self.client, "/").await {
                    Ok(()) => return Ok(sent),
                    Err(error) if matches!(Fault::of(error.clone()), Fault::Unknown(_)) => sleep(PAUSE).await,
                    Err(error) => return Err(not_open(error, config)),
                }
            }
        };
        let sent = timeout(session_timeout / 4, proof).await.map_err(|_| no_session(config))??;
        self.until = self.proofs.answered(sent, clock.now());
        Ok(())
    }
}

fn not_open(cause: zk::Error, config: &ZkConfig) -> Error {
    match cause {
        zk::Error::AuthFailed => {
            let (message, hint) = ("the servers refuse the credentials", "correct user:password@ in the URL");
            let refused = error(ErrorKind::Denied, message, hint);
            match &config.login.credentials {
                Some((_, password)) => password.refused(refused),
                None => refused,
            }
        }
        // The only request so far that an ACL can refuse is the creation of the chroot.
        zk::Error::NoAuth => denied(Right::Create, parent(config.chroot_path())),
        zk::Error::BadArguments(what) => error(
            ErrorKind::InvalidConfig,
            format!("cannot open a session at {}{}: {what}", config.hosts, config.chroot_path()),
            "write host:port[,host:port...][/chroot], with servers that vote",
        ),
        // As of a file that could not be read.
        zk::Error::UnexpectedError(what) => error(
            ErrorKind::Unavailable,
            format!("cannot open a session at {}: {what}", config.hosts),
            "try again; a file that it names is read again",
        ),
        cause => no_session(config).caused_by(cause),
    }
}

fn no_session(config: &ZkConfig) -> Error {
    let limit = config.connect_limit();
    unavailable(&format!("no server opened a session at {} within {limit:?}", config.hosts))
        .with_outcome(Outcome::NotApplied)
}

async fn with_reasons(error: Error, hosts: &str) -> Error {
    let reasons = unreachable(hosts).await;
    if reasons.is_empty() {
        return error;
    }
    let message = format!("{}: {}", error.message(), reasons.join("; "));
    error.with_message(message)
}

/// The longest pause before another attempt.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
