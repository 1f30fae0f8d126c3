//! The parent's side of the workers.

use std::process::Command;
use std::time::Duration;

use lock_testkit::{Event, Worker};

use crate::failure::{Failure, Outcome};
use crate::worker::{Job, News, Order};

/// One worker process. It is killed when this is dropped, and when this process dies.
#[derive(Debug)]
pub(crate) struct Hand {
    worker: Worker,
    process: u32,
    /// The ttl or the session timeout of its locks.
    pub(crate) lease: Duration,
}

impl Hand {
    /// Starts a worker for each job, all at once, and waits until all of them are connected.
    ///
    /// # Errors
    ///
    /// When one of them cannot connect.
    pub(crate) async fn hire(jobs: impl IntoIterator<Item = Job>) -> Outcome<Vec<Self>> {
        let mut workers = Vec::new();
        for job in jobs {
            let process = job.process;
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("worker");
            let worker = Worker::spawn(&command)?;
            worker.send(&serde_json::to_value(job)?).await?;
            workers.push((worker, process));
        }
        let mut hands = Vec::new();
        for (worker, process) in workers {
            let mut hand = Self { worker, process, lease: Duration::ZERO };
            hand.lease = match hand.hear(CONNECT_DEADLINE).await? {
                News::Ready { lease } => lease,
                other => return Err(unexpected(&other)),
            };
            hands.push(hand);
        }
        Ok(hands)
    }

    /// Starts one worker.
    ///
    /// # Errors
    ///
    /// As for [`hire`](Self::hire).
    pub(crate) async fn hire_one(job: Job) -> Outcome<Self> {
        Self::hire([job]).await?.pop().ok_or_else(|| Failure::new("no worker came"))
    }

    /// The number of the worker in the history.
    pub(crate) const fn process(&self) -> u32 {
        self.process
    }

    /// Says something to the worker.
    ///
    /// # Errors
    ///
    /// When the worker has ended; what it said last tells why.
    pub(crate) async fn order(&self, order: Order) -> Outcome<()> {
        if let Err(error) = self.worker.send(&serde_json::to_value(order)?).await {
            self.hear(Duration::from_secs(1)).await?;
            return Err(error.into());
        }
        Ok(())
    }

    /// What the worker says next.
    ///
    /// # Errors
    ///
    /// When it failed, ended, or says nothing for so long.
    pub(crate) async fn hear(&self, patience: Duration) -> Outcome<News> {
        let news = serde_json::from_value(self.worker.recv_deadline(patience).await?)?;
        match news {
            News::Failed(why) => Err(Failure::new(why).during("in a worker process")),
            news => Ok(news),
        }
    }

    /// The events that the worker tells next.
    ///
    /// # Errors
    ///
    /// As for [`hear`](Self::hear).
    pub(crate) async fn events(&self, patience: Duration) -> Outcome<Vec<Event>> {
        match self.hear(patience).await? {
            News::Events(events) => Ok(events),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends the process by SIGKILL.
    pub(crate) fn kill(&self) {
        self.worker.kill();
    }

    /// Freezes the process by SIGSTOP.
    pub(crate) fn stop(&self) {
        self.worker.stop();
    }

    /// Lets a frozen process go on.
    pub(crate) fn cont(&self) {
        self.worker.cont();
    }
}

/// The failure of a worker that says something else than it should.
pub(crate) fn unexpected(news: &News) -> Failure {
    Failure::new(format!("a worker said something unexpected: {news:?}"))
}

/// Generous: many processes start at once on a small machine.
const CONNECT_DEADLINE: Duration = Duration::from_secs(60);
