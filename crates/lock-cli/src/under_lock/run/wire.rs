//! What `polylock run` and its [watchdog](super::watchdog) tell each other: the way out and the deadlines, the command and its
//! end.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use polylock::BootInstant;
use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, send, sendmsg,
};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

/// An order to the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// It kills the command at this time.
    Deadline(BootInstant),
    /// It kills what is left of the command now.
    Kill,
}

/// A report of the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The process id of the command, which is that of its group too.
    Started(i32),
    /// By this signal.
    Stopped(i32),
    Ended(Ending),
    /// The command was not started, for this error of the system.
    Failed(i32),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Code(u8),
    Signal(i32),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// One end of the connection. Both send words of a kind and a number.
pub(super) struct Wire {
    stream: UnixStream,
    word: [u8; LENGTH],
    /// How much of the next word has arrived.
    filled: usize,
}

const LENGTH: usize = 9;

impl Wire {
    pub(super) fn new(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream: UnixStream::from_std(stream)?, word: [0; LENGTH], filled: 0 })
    }

    pub(super) fn order(&self, order: Order) {
        send_word(
            &self.stream,
            match order {
                Order::Deadline(at) => (b'd', u64::try_from(at.since_boot().as_nanos()).unwrap_or(u64::MAX)),
                Order::Kill => (b'k', 0),
            },
        );
    }

    pub(super) fn report(&self, report: Report) {
        send_report(&self.stream, report);
    }

    /// The next order; `None` when the other end is closed. It is cancel safe.
    pub(super) async fn next_order(&mut self) -> Option<Order> {
        Some(match self.next().await? {
            (b'd', nanos) => Order::Deadline(BootInstant::from_boot(Duration::from_nanos(nanos))),
            _ => Order::Kill,
        })
    }

    /// The next report; `None` when the other end is closed. It is cancel safe.
    pub(super) async fn next_report(&mut self) -> Option<Report> {
        let (kind, number) = self.next().await?;
        let number = i32::try_from(number).ok()?;
        Some(match kind {
            b'p' => Report::Started(number),
            b's' => Report::Stopped(number),
            b'e' => Report::Ended(Ending::Code(u8::try_from(number).ok()?)),
            b'f' => Report::Failed(number),
            _ => Report::Ended(Ending::Signal(number)),
        })
    }

    async fn next(&mut self) -> Option<(u8, u64)> {
        while self.filled < LENGTH {
            match self.stream.read(&mut self.word[self.filled..]).await {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.filled += count,
            }
        }
        self.filled = 0;
        let [kind, number @ ..] = self.word;
        Some((kind, u64::from_le_bytes(number)))
    }
}

/// Sends a report, also of a watchdog without a runtime.
pub(super) fn send_report(socket: impl AsFd, report: Report) {
    let number = |number: i32| u64::from(number.unsigned_abs());
    send_word(
        socket,
        match report {
            Report::Started(pid) => (b'p', number(pid)),
            Report::Stopped(signal) => (b's', number(signal)),
            Report::Ended(Ending::Code(code)) => (b'e', code.into()),
            Report::Ended(Ending::Signal(signal)) => (b'x', number(signal)),
            Report::Failed(error) => (b'f', number(error)),
        },
    );
}

fn send_word(socket: impl AsFd, (kind, number): (u8, u64)) {
    let mut word = [kind; LENGTH];
    word[1..].copy_from_slice(&number.to_le_bytes());
    // An end that does not read blocks nobody. A watchdog that lacks a deadline kills at an earlier one. (The `try_write` of the
    // runtime would write nothing before the runtime has seen that the socket is writable.)
    let _ = send(socket, &word, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Sends descriptors, at most [`MOST_FILES`].
pub(super) fn send_files(socket: impl AsFd, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the descriptors of one [`send_files`].
pub(super) fn receive_files(socket: impl AsFd) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut buffers = [IoSliceMut::new(&mut byte)];
    retry_on_intr(|| recvmsg(&socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC))?;
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    Ok(files.flatten().collect())
}

/// The standard streams of the command, and the file of the lock.
const MOST_FILES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn words_arrive_as_they_were_sent_and_then_the_end() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (ours, mut theirs) = (Wire::new(ours).unwrap(), Wire::new(theirs).unwrap());
        let orders = [Order::Deadline(BootInstant::from_boot(Duration::from_nanos(u64::MAX))), Order::Kill];
        orders.into_iter().for_each(|order| ours.order(order));
        for order in orders {
            assert_eq!(theirs.next_order().await, Some(order));
        }
        let endings = [Ending::Code(255), Ending::Signal(9)].map(Report::Ended);
        let others = [Report::Started(i32::MAX), Report::Stopped(20), Report::Failed(11)];
        let reports: Vec<_> = others.into_iter().chain(endings).collect();
        reports.iter().for_each(|report| ours.report(*report));
        drop(ours);
        for report in reports {
            assert_eq!(theirs.next_report().await, Some(report));
        }
        assert_eq!(theirs.next_report().await, None);
    }

    #[test]
    fn descriptors_are_sent() {
        let (one, two) = std::os::unix::net::UnixStream::pair().unwrap();
        send_files(&one, &[one.as_fd(), two.as_fd()]).unwrap();
        assert_eq!(receive_files(&two).unwrap().len(), 2);
    }
}
