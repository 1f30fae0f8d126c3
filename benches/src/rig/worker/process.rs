//! The worker's side: reads its job and orders, does the work and reports.

use std::future::ready;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use polylock::backend::{Backend, LockUrl};
use polylock::{Locks, Redlock, RedlockConfig, Votes};
use tokio::runtime::Builder;
use tokio::sync::mpsc;

use super::bare_hand_over::{InRing, OnEtcd, OnPostgres, OnRedis, OnZk, Turns};
use super::client_runtimes::{ClientRuntimes, with_client_runtimes};
use super::clients::{ClientProgram, Signals, obey, use_locks};
use super::contend::contend;
use super::forked_child::ForkedChild;
use super::held_locks::HeldLocks;
use super::orders::{Orders, send};
use super::ping::Pinger;
use super::{Job, Order, Task, WorkerReport, throughput};
use crate::data::window::nanos;
use crate::data::{EventLog, Outcome, Peer};
use crate::rig::measured_lock::{MeasuredLock, hold_through};
use crate::rig::peers::{
    AsyncRedisLock, Distkit, DriverLock, EtcdLock, GetLock, Library, Rlock, Rslock, Sqlx, Subprocess,
};
use crate::rig::url;

pub(crate) fn main() -> ExitCode {
    match done() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Without a parent the report is lost.
            let _ = send(&WorkerReport::Failed(failure.to_string()));
            ExitCode::FAILURE
        }
    }
}

fn done() -> Outcome<()> {
    let mut line = String::new();
    // Of the same buffer as tokio's standard input.
    if std::io::stdin().read_line(&mut line)? == 0 {
        return Ok(());
    }
    let job: Job = serde_json::from_str(&line)?;
    // Before any thread is started: a child has only the one that forked.
    let child = ForkedChild::of(&job)?;
    super::log::start(job.process);
    if let Task::Clients(_) = job.task {
        return with_client_runtimes(|runtimes| clients(job, runtimes, child))?;
    }
    let runtime = match job.task {
        // As a service has them.
        Task::Throughput { .. } => Builder::new_multi_thread().worker_threads(2).enable_all().build()?,
        // A client needs no more than one thread, and a machine that runs many has none to spare.
        _ => Builder::new_current_thread().enable_all().build()?,
    };
    let done = runtime.block_on(work(job));
    // The thread that reads standard input may be blocked.
    runtime.shutdown_background();
    done
}

async fn work(job: Job) -> Outcome<()> {
    let mut orders = Orders::read();
    match job.task {
        Task::Throughput { subject, tasks } => {
            throughput::serve(&job, subject, tasks, &mut orders).await?;
        }
        Task::Ping => ping(&job, &mut orders).await?,
        Task::Contend { hold, peer: Some(peer) } => contend_as(peer, &job, hold, &mut orders).await?,
        Task::BareHandOver { hold, of } => match LockUrl::parse(&job.url)?.scheme.as_str() {
            "zk" => hand_over::<OnZk>(&job, of, hold, &mut orders).await?,
            "postgres" => hand_over::<OnPostgres>(&job, of, hold, &mut orders).await?,
            "etcd" => hand_over::<OnEtcd>(&job, of, hold, &mut orders).await?,
            _ => hand_over::<OnRedis>(&job, of, hold, &mut orders).await?,
        },
        _ => use_our_lock(&job, &mut orders).await?,
    }
    orders.end().await
}

/// Contends for, holds or waits for a lock of ours.
async fn use_our_lock(job: &Job, orders: &mut Orders) -> Outcome<()> {
    let (locks, redlock) = connect(&job.url).await?;
    let lease = locks.capabilities().lease.default_ttl();
    send(&WorkerReport::Ready { lease })?;
    let mut log = EventLog::new(job.process, 0, &job.recorded_as);
    let mutex = locks.mutex(&job.lock);
    match job.task {
        Task::Contend { hold, .. } => {
            contend_with(&mutex, job, hold, orders).await?;
            if let Some(redlock) = redlock {
                let Votes { won, won_at_once, split, .. } = redlock.votes();
                send(&WorkerReport::Votes { won, won_at_once, split })?;
            }
        }
        Task::Hold => {
            log.acquire_called();
            let _guard = mutex.acquire().await?;
            log.acquired(&_guard);
            send(&WorkerReport::Events(log.into_events()))?;
            // Released and closed after it, as by a process that exits in good order.
            orders.next::<Order>().await?;
        }
        Task::Wait => {
            let Some(Order::Go) = orders.next().await? else { return Ok(()) };
            hold_through(&mutex, &mut log, ready(Ok(()))).await?;
            send(&WorkerReport::Events(log.into_events()))?;
        }
        Task::Many { count, watch, ref servers } => {
            let mut held = HeldLocks::acquire(&locks, job, count).await?;
            send(&WorkerReport::Cost(held.measure(watch, servers).await?))?;
            let Some(Order::Go) = orders.next().await? else { return Ok(()) };
            held.challenge(job).await?;
            send(&WorkerReport::Events(held.release().await?))?;
        }
        Task::Ping | Task::BareHandOver { .. } | Task::Throughput { .. } | Task::Clients(_) => {}
    }
    Ok(locks.close().await?)
}

/// Returns the Redlock backend as well: it counts its votes.
async fn connect(url: &str) -> Outcome<(Locks, Option<Arc<Redlock>>)> {
    if !LockUrl::parse(url)?.scheme.starts_with("redlock") {
        return Ok((Locks::connect(url).await?, None));
    }
    let redlock = Arc::new(Redlock::connect(RedlockConfig::from_url(url)?).await?);
    let backend: Arc<dyn Backend> = Arc::<Redlock>::clone(&redlock);
    Ok((Locks::from(backend), Some(redlock)))
}

async fn contend_as(peer: Peer, job: &Job, hold: Duration, orders: &mut Orders) -> Outcome<()> {
    match peer {
        Peer::Rslock => contend_by::<Rslock>(job, hold, orders).await,
        Peer::Rlock => contend_by::<Rlock>(job, hold, orders).await,
        Peer::AsyncRedisLock => contend_by::<AsyncRedisLock>(job, hold, orders).await,
        Peer::Distkit => contend_by::<Distkit>(job, hold, orders).await,
        Peer::LockClient => contend_by::<DriverLock>(job, hold, orders).await,
        Peer::Sqlx => contend_by::<Sqlx>(job, hold, orders).await,
        Peer::EtcdLock => contend_by::<EtcdLock>(job, hold, orders).await,
        Peer::GetLock => contend_by::<GetLock>(job, hold, orders).await,
        _ => {
            let lock = if peer.is_on_zookeeper() { format!("/{}", job.lock) } else { job.lock.clone() };
            let program = Subprocess::of(peer, url::without_options(&job.url), &lock).await?;
            direct(program, job, hold, orders).await
        }
    }
}

async fn hand_over<P: InRing>(job: &Job, of: u32, hold: Duration, orders: &mut Orders) -> Outcome<()> {
    let turns = Turns::<P>::connect(&job.url, &job.lock, job.process, of).await?;
    contend_as_ready(&turns, job, hold, orders).await
}

async fn contend_by<L: Library>(job: &Job, hold: Duration, orders: &mut Orders) -> Outcome<()> {
    let lock = L::open(url::without_options(&job.url), &job.lock).await?;
    contend_as_ready(&lock, job, hold, orders).await
}

async fn direct(mut program: Subprocess, job: &Job, hold: Duration, orders: &mut Orders) -> Outcome<()> {
    send(&WorkerReport::Ready { lease: Duration::ZERO })?;
    let Some(window) = orders.window().await? else { return Ok(()) };
    let mut log = EventLog::new(job.process, 0, &job.recorded_as);
    program.contend(window.until_ns, nanos(hold), &mut log).await?;
    send(&WorkerReport::Events(log.into_events()))
}

async fn contend_as_ready(
    peer: &impl MeasuredLock,
    job: &Job,
    hold: Duration,
    orders: &mut Orders,
) -> Outcome<()> {
    send(&WorkerReport::Ready { lease: Duration::ZERO })?;
    contend_with(peer, job, hold, orders).await
}

async fn contend_with(
    lock: &impl MeasuredLock,
    job: &Job,
    hold: Duration,
    orders: &mut Orders,
) -> Outcome<()> {
    while let Some(window) = orders.window().await? {
        let mut log = EventLog::new(job.process, 0, &job.recorded_as);
        contend(lock, &mut log, window, hold).await?;
        send(&WorkerReport::Events(log.into_events()))?;
    }
    Ok(())
}

async fn clients(job: Job, runtimes: ClientRuntimes, child: Option<ForkedChild>) -> Outcome<()> {
    let Task::Clients(task) = &job.task else { return Ok(()) };
    let (mut orders, signals) = (Orders::read(), Signals::default());
    if let ClientProgram::Random { .. } = task.program {
        // Not yet connected: servers may be down while it starts.
        send(&WorkerReport::Ready { lease: Duration::ZERO })?;
    }
    let (pass_on, passed) = mpsc::unbounded_channel();
    let using = use_locks(&job, task, &runtimes, &signals, passed);
    let (mut stuck, ()) = tokio::try_join!(using, obey(&mut orders, &signals, &runtimes, pass_on))?;
    if let Some(child) = child {
        stuck.extend(child.end().await);
    }
    send(&WorkerReport::Stuck(stuck))?;
    orders.end().await
}

async fn ping(job: &Job, orders: &mut Orders) -> Outcome<()> {
    let mut pinger = Pinger::connect(&job.url, &format!("{}-ping", job.lock)).await?;
    send(&WorkerReport::Ready { lease: Duration::ZERO })?;
    while let Some(window) = orders.window().await? {
        send(&WorkerReport::Pings(pinger.measure(window).await?))?;
    }
    Ok(())
}
