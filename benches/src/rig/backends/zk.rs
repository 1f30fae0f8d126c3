//! Sessions with ZooKeeper servers beside those of the locks: version and clean-up.

use std::time::Duration;

use polylock::backend::LockUrl;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zookeeper_client::{Client, Error};

use crate::data::{Failure, Outcome};
use crate::rig::url;

pub(super) async fn version(host: &str) -> Outcome<String> {
    let answer = four_letter(host, "srvr").await?;
    let version = answer.lines().find_map(|line| line.strip_prefix("Zookeeper version: "));
    let version = version.ok_or_else(|| Failure::new("the answer to `srvr` has no version"))?;
    Ok(version.split(['-', ',']).next().unwrap_or(version).to_owned())
}

/// What the server answers to a command of four letters.
pub(crate) async fn four_letter(host: &str, word: &str) -> Outcome<String> {
    let mut stream = TcpStream::connect(url::resolve(host, "zk").await?).await?;
    stream.write_all(word.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

pub(crate) fn directory_of(url: &str) -> &str {
    url::option(url, "dir").unwrap_or(LOCKS).trim_end_matches('/')
}

/// Removes every node whose name contains the name of this run, with its children: at the root, where those of the floor
/// are, and in the directory of the locks.
pub(super) async fn clean(url: &str, run: &str) -> Outcome<()> {
    let client = connect(url, SESSION).await?;
    let locks = directory_of(url);
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

/// Treats a missing node as `None`: the end of a session or the server may have removed it.
pub(crate) fn or_none<T>(result: Result<T, Error>) -> Outcome<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::NoNode) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens a session with the servers of this URL, with the URL's chroot and credentials.
pub(crate) async fn connect(url: &str, session_timeout: Duration) -> Outcome<Client> {
    let url = LockUrl::parse(url)?;
    let mut connector = Client::connector().with_session_timeout(session_timeout);
    if let Some(password) = &url.password {
        connector = connector.with_auth("digest", format!("{}:{password}", url.user).as_bytes());
    }
    Ok(connector.connect(&format!("{}{}", url.hosts, url.path.trim_end_matches('/'))).await?)
}

const LOCKS: &str = "/locks";
const SESSION: Duration = Duration::from_secs(10);
