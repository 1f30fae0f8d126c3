//! What there is to do on ZooKeeper servers beside locking.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zookeeper_client::{Client, Error};

use crate::address;
use crate::failure::{Failure, Outcome};
use crate::floor::zk_session;
use crate::options::BackendName;

/// The version of the server.
pub(super) async fn version(host: &str) -> Outcome<String> {
    let mut stream = TcpStream::connect(address::resolve(host, BackendName::Zk).await?).await?;
    stream.write_all(b"srvr").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let version = answer.lines().find_map(|line| line.strip_prefix("Zookeeper version: "));
    let version = version.ok_or_else(|| Failure::new("the server does not tell its version"))?;
    Ok(version.split(['-', ',']).next().unwrap_or(version).to_owned())
}

/// Removes every node with the name of this run in it, and what is below: those of the floor at the root, those of
/// the locks in their directory.
pub(super) async fn clean(url: &str, run: &str) -> Outcome<()> {
    let client = zk_session(url, SESSION).await?;
    let locks = address::option(url, "dir").unwrap_or(LOCKS).trim_end_matches('/');
    for parent in ["", locks] {
        let top = if parent.is_empty() { "/" } else { parent };
        let children = match client.list_children(top).await {
            Err(Error::NoNode) => continue,
            children => children?,
        };
        for child in children.iter().filter(|child| child.contains(run)) {
            let path = format!("{parent}/{child}");
            for grandchild in or_none(client.list_children(&path).await)?.unwrap_or_default() {
                delete(&client, &format!("{path}/{grandchild}")).await?;
            }
            delete(&client, &path).await?;
        }
    }
    Ok(())
}

async fn delete(client: &Client, path: &str) -> Outcome<()> {
    or_none(client.delete(path, None).await).map(drop)
}

/// Somebody else may have removed it: a session that ended, the server's own cleaning.
fn or_none<T>(result: Result<T, Error>) -> Outcome<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::NoNode) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Where the backend keeps its locks when the URL says nothing else.
const LOCKS: &str = "/locks";
const SESSION: Duration = Duration::from_secs(10);
