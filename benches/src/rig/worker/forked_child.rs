//! The child of a worker of a soak: forked before the worker starts anything, it uses locks as its parent does.

use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::exit;

use fork::{Fork, fork};
use polylock::OwnerId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::client_runtimes::with_client_runtimes;
use super::clients::{ClientProgram, Signals, use_locks};
use super::{Job, Task};
use crate::data::Outcome;

/// A child, seen from its parent. It ends when this is dropped, and when the parent dies.
#[derive(Debug)]
pub(super) struct ForkedChild {
    process: u32,
    socket: StdUnixStream,
}

impl ForkedChild {
    /// Forks if the job says so. Returns in the parent alone.
    pub(super) fn of(job: &Job) -> Outcome<Option<Self>> {
        let Task::Clients(task) = &job.task else { return Ok(None) };
        let ClientProgram::Random { child: Some(process), .. } = task.program else { return Ok(None) };
        let (socket, of_child) = StdUnixStream::pair()?;
        // Ids from a generator in memory would repeat in the child.
        let _ = OwnerId::random();
        match fork()? {
            Fork::Parent(_) => Ok(Some(Self { process, socket })),
            Fork::Child => {
                drop(socket);
                exit(i32::from(serve(Job { process, ..job.clone() }, of_child).is_err()))
            }
        }
    }

    pub(super) async fn end(self) -> Vec<String> {
        let process = self.process;
        let complaints = self.complaints().await;
        let complaints = complaints.unwrap_or_else(|failure| vec![format!("no report: {failure}")]);
        complaints.into_iter().map(|complaint| format!("its child {process}: {complaint}")).collect()
    }

    async fn complaints(self) -> Outcome<Vec<String>> {
        let (mut socket, mut complaints) = (asynchronous(self.socket)?, Vec::new());
        socket.shutdown().await?;
        socket.read_to_end(&mut complaints).await?;
        Ok(serde_json::from_slice(&complaints)?)
    }
}

/// The child uses locks until the parent shuts the socket down, and writes its complaints to it.
fn serve(job: Job, socket: StdUnixStream) -> Outcome<()> {
    with_client_runtimes(|runtimes| async move {
        let Task::Clients(task) = &job.task else { return Ok(()) };
        let (mut end, mut complaints) = asynchronous(socket)?.into_split();
        let signals = Signals::default();
        let ending = async {
            let read = end.read_to_end(&mut Vec::new()).await;
            signals.end_all();
            read
        };
        let (_, no_orders) = tokio::sync::mpsc::unbounded_channel();
        let (stuck, _) = tokio::join!(use_locks(&job, task, &runtimes, &signals, no_orders), ending);
        let stuck = stuck.unwrap_or_else(|failure| vec![failure.to_string()]);
        Ok(complaints.write_all(&serde_json::to_vec(&stuck)?).await?)
    })?
}

fn asynchronous(socket: StdUnixStream) -> Outcome<UnixStream> {
    socket.set_nonblocking(true)?;
    Ok(UnixStream::from_std(socket)?)
}
