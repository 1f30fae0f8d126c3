//! Create a node of the lock's kind, see who is first, delete it.

use std::time::Duration;

use futures_util::future::join;
use polylock::backend::LockUrl;
use zookeeper_client::{Acls, Client, CreateMode, CreateSequence};

use super::Floor;
use crate::failure::{Failure, Outcome};

/// One session; create and get children are sent at once, as they need not wait for each other.
#[derive(Debug)]
pub(crate) struct BareZk {
    client: Client,
    directory: String,
    node: Option<CreateSequence>,
}

impl BareZk {
    /// Opens a session with the servers of this URL, and makes a directory for the nodes.
    ///
    /// # Errors
    ///
    /// When the servers do not let us in.
    pub(crate) async fn connect(url: &str, name: &str, session_timeout: Duration) -> Outcome<Self> {
        let client = connect(url, session_timeout).await?;
        let directory = format!("/{name}");
        client.create(&directory, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
        Ok(Self { client, directory, node: None })
    }

    fn path(&self, sequence: CreateSequence) -> String {
        format!("{}/n-{sequence}", self.directory)
    }
}

impl Floor for BareZk {
    async fn acquire(&mut self) -> Outcome<()> {
        let prefix = format!("{}/n-", self.directory);
        let mode = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (created, children) =
            join(self.client.create(&prefix, b"", &mode), self.client.list_children(&self.directory)).await;
        self.node = Some(created?.1);
        let children = children?;
        if children.len() == 1 {
            return Ok(());
        }
        Err(Failure::new(format!("the bare commands failed: {} nodes instead of one", children.len())))
    }

    async fn release(&mut self) -> Outcome<()> {
        let Some(sequence) = self.node.take() else { return Ok(()) };
        Ok(self.client.delete(&self.path(sequence), None).await?)
    }

    async fn clean(self) -> Outcome<()> {
        Ok(self.client.delete(&self.directory, None).await?)
    }
}

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
