//! What a worker hears from its parent, and what it says.

use std::io::Write;

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};

use super::{Order, WorkerReport};
use crate::data::{Failure, Outcome, Window};

pub(super) struct Orders {
    lines: Lines<BufReader<Stdin>>,
}

impl Orders {
    pub(super) fn read() -> Self {
        Self { lines: BufReader::new(tokio::io::stdin()).lines() }
    }

    /// The next one; `None` when the parent has ended.
    pub(super) async fn next<T: for<'de> Deserialize<'de>>(&mut self) -> Outcome<Option<T>> {
        match self.lines.next_line().await? {
            Some(line) => Ok(Some(serde_json::from_str(&line)?)),
            None => Ok(None),
        }
    }

    /// The next window to contend in; `None` at the first order that has none, and when the parent has ended.
    pub(super) async fn window(&mut self) -> Outcome<Option<Window>> {
        match self.next().await? {
            Some(Order::Contend(window)) => Ok(Some(window)),
            _ => Ok(None),
        }
    }

    /// Waits until the parent closes the input.
    pub(super) async fn end(&mut self) -> Outcome<()> {
        while self.lines.next_line().await?.is_some() {}
        Ok(())
    }
}

pub(super) fn send(report: &WorkerReport) -> Outcome<()> {
    let mut line = serde_json::to_vec(report).map_err(Failure::from)?;
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&line)?;
    Ok(stdout.flush()?)
}
