//! The floor of ZooKeeper: create an ephemeral sequential node, list the children, delete the node.

use futures_util::future::join;
use zookeeper_client::{Acls, Client, CreateMode, CreateSequence};

use super::Floor;
use crate::data::{Failure, Outcome};

pub(crate) const SESSIONS: usize = 16;

/// Sends create and get children at once, as neither depends on the other.
///
/// Whether the driver sends both in one packet, which is faster, differs from session to session: its order of sending
/// depends on memory addresses. So several sessions take turns.
#[derive(Debug)]
pub(crate) struct BareZk {
    sessions: Vec<Client>,
    operations: usize,
    directory: String,
    node: Option<CreateSequence>,
}

impl BareZk {
    /// Uses these sessions, which others may share, and creates a directory for the nodes.
    pub(crate) async fn on(sessions: Vec<Client>, name: &str) -> Outcome<Self> {
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

/// Consecutive operations of one session, so that its data stays in the CPU cache.
const IN_A_ROW: usize = 32;
