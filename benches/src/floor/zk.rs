//! Create a node of the lock's kind, see who is first, delete it.

use std::time::Duration;

use futures_util::future::join;
use polylock::backend::LockUrl;
use zookeeper_client::{Acls, Client, CreateMode, CreateSequence};

use super::Floor;
use crate::failure::{Failure, Outcome};

/// How many sessions take turns.
pub(crate) const SESSIONS: usize = 16;

/// Create and get children are sent at once, as they need not wait for each other.
///
/// Whether both leave in one packet, and are answered sooner, is the luck of a session: the driver sends in an order
/// that follows from the addresses of its own parts in memory. So several sessions take turns.
#[derive(Debug)]
pub(crate) struct BareZk {
    sessions: Vec<Client>,
    operations: usize,
    directory: String,
    node: Option<CreateSequence>,
}

impl BareZk {
    /// Opens sessions with the servers of this URL, and makes a directory for the nodes.
    ///
    /// # Errors
    ///
    /// When the servers do not let us in.
    pub(crate) async fn connect(url: &str, name: &str, session_timeout: Duration) -> Outcome<Self> {
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(connect(url, session_timeout).await?);
        }
        let floor = Self { sessions, operations: 0, directory: format!("/{name}"), node: None };
        let mode = CreateMode::Persistent.with_acls(Acls::anyone_all());
        floor.session().create(&floor.directory, b"", &mode).await?;
        Ok(floor)
    }

    fn session(&self) -> &Client {
        &self.sessions[self.operations / IN_A_ROW % self.sessions.len()]
    }

    fn path(&self, sequence: CreateSequence) -> String {
        format!("{}/n-{sequence}", self.directory)
    }
}

impl Floor for BareZk {
    async fn acquire(&mut self) -> Outcome<()> {
        let prefix = format!("{}/n-", self.directory);
        let mode = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let session = self.session();
        let (created, children) =
            join(session.create(&prefix, b"", &mode), session.list_children(&self.directory)).await;
        self.node = Some(created?.1);
        let children = children?;
        if children.len() == 1 {
            return Ok(());
        }
        Err(Failure::new(format!("the bare commands failed: {} nodes instead of one", children.len())))
    }

    async fn release(&mut self) -> Outcome<()> {
        let Some(sequence) = self.node.take() else { return Ok(()) };
        self.session().delete(&self.path(sequence), None).await?;
        self.operations += 1;
        Ok(())
    }

    async fn clean(self) -> Outcome<()> {
        Ok(self.session().delete(&self.directory, None).await?)
    }
}

/// Operations of one session, so that what it needs stays at hand.
const IN_A_ROW: usize = 32;

/// A session with the servers of this URL, with the URL's chroot and credentials.
///
/// # Errors
///
/// When the servers do not let us in.
pub(crate) async fn connect(url: &str, session_timeout: Duration) -> Outcome<Client> {
    let url = LockUrl::parse(url)?;
    let mut connector = Client::connector().with_session_timeout(session_timeout);
    if let Some(password) = &url.password {
        connector = connector.with_auth("digest", format!("{}:{password}", url.user).as_bytes());
    }
    Ok(connector.connect(&format!("{}{}", url.hosts, url.path.trim_end_matches('/'))).await?)
}
