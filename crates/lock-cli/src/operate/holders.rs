//! `polylock holders`: who holds a lock, and who waits for it.

use std::time::{Duration, SystemTime};

use clap::{ArgGroup, Args};
use comfy_table::Table;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use polylock::{Error, ErrorKind, Holder, HolderInfo, LockName, LockState, Locks, WaiterInfo};
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::connect::{self, LocksOptions};
use crate::failure::{Exit, Failure};
use crate::output::{Output, printable};
use crate::text::{count, rough, rows, table};
use crate::under_lock::session;

/// The options of `polylock holders`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("which").args(["name", "all"]).required(true))]
pub(crate) struct HoldersOptions {
    #[command(flatten)]
    store: LocksOptions,

    /// Show all locks of the store that are held or waited for. Expensive: Redis scans all its keys
    #[arg(long)]
    all: bool,

    /// The name of the lock
    name: Option<String>,
}

const EXAMPLES: &str = "\
What a store does not keep is shown as a dash: the time that is left of a session, or when a holder on ZooKeeper was granted the \
lock (SINCE is then when it asked for it).

Examples:
  polylock holders nightly-report
  polylock holders --all
  polylock holders --all --json | jq '.locks[] | {name, pid: .holders[].holder.known.pid}'";

pub(crate) async fn run(options: HoldersOptions, output: Output) -> Result<Exit, Failure> {
    let HoldersOptions { store, name, .. } = options;
    let work = async |locks: &Locks| {
        let Seen { views, refused } = match &name {
            Some(name) => {
                let view = View { name: name.clone(), state: locks.inspect(name).await? };
                Seen { views: vec![view], refused: Vec::new() }
            }
            None => all(locks).await?,
        };
        let document = match &*refused {
            [] => json!({ "locks": views }),
            refused => json!({ "locks": views, "refused": refused }),
        };
        output.result(&(text(&views) + &text_of_refused(&refused)), &document)?;
        Ok(Exit::Done)
    };
    session::work_with(connect::locks(store, output), work, || Err(Failure::interrupted(false))).await
}

/// A lock and its state.
#[derive(Debug, Serialize)]
struct View {
    name: String,
    #[serde(flatten)]
    state: LockState,
}

/// A lock that the store does not show.
#[derive(Debug, Serialize)]
struct Refused {
    name: String,
    #[serde(serialize_with = "message")]
    error: Error,
}

fn message<S: Serializer>(error: &Error, serializer: S) -> Result<S::Ok, S::Error> {
    error.message().serialize(serializer)
}

/// What is known of several locks.
struct Seen {
    views: Vec<View>,
    refused: Vec<Refused>,
}

/// The locks that are held or waited for. One that the store refuses to show, by its name or for want of a right, hides no other one.
async fn all(locks: &Locks) -> Result<Seen, Failure> {
    let names = locks.list("").await?;
    let view = |name: LockName| async move {
        let (state, name) = (locks.inspect(&name).await, name.to_string());
        match state {
            Ok(state) => Ok(Ok(View { name, state })),
            Err(error) if is_of_one(&error) => Ok(Err(Refused { name, error })),
            Err(error) => Err(error),
        }
    };
    let seen: Vec<_> = stream::iter(names).map(view).buffered(AT_ONCE).try_collect().await?;
    let (mut views, mut refused) = (Vec::new(), Vec::new());
    for seen in seen {
        match seen {
            Ok(view) => views.push(view),
            Err(lock) => refused.push(lock),
        }
    }
    if views.is_empty()
        && let Some(Refused { error, .. }) = refused.first()
    {
        return Err(error.clone().into());
    }
    views.retain(|view: &View| view.state.is_held() || view.state.waiters > 0);
    Ok(Seen { views, refused })
}

/// Whether another lock may be shown all the same.
fn is_of_one(error: &Error) -> bool {
    use ErrorKind::{Denied, InvalidName, Moved, Unexpected};
    matches!(error.kind(), Denied | InvalidName | Moved | Unexpected)
}

fn text_of_refused(refused: &[Refused]) -> String {
    let line = |Refused { name, error }: &Refused| {
        format!("\nthe lock {name:?} cannot be shown: {}", error.message())
    };
    refused.iter().map(line).collect()
}

fn text(views: &[View]) -> String {
    let mut text = match views {
        [] => "no lock is held".to_owned(),
        [View { name, state }] if !state.is_held() && state.waiters == 0 => {
            format!("the lock {name:?} is free")
        }
        _ => locks(views).trim_fmt(),
    };
    for View { name, state } in views {
        if let Some(moved) = &state.moved {
            let to = printable(&moved.to);
            text.push_str(&format!("\nthe lock {name:?} has moved: look at {to}"));
        }
        if let Some(blocker) = &state.blocker {
            let blocker = printable(blocker);
            text.push_str(&format!("\nthe lock {name:?} is granted to nobody before the end of {blocker}"));
        }
        let unseen = state.waiters.saturating_sub(state.queue.len());
        if unseen > 0 {
            text.push_str(&format!("\n{name:?} has {} more", count(unseen, "waiter")));
        }
        if !state.servers.is_empty() {
            text.push_str(&format!("\n{}", servers(state).trim_fmt()));
        }
    }
    text
}

fn locks(views: &[View]) -> Table {
    let mut table = table(["LOCK", "WHO", "MODE", "HOST", "PID", "LABEL", "SINCE", "REMAINING", "TOKEN"]);
    for View { name, state } in views {
        for holder in &state.holders {
            add(&mut table, name, "holder", &holder_cells(holder));
        }
        for (waiter, position) in state.queue.iter().zip(1..) {
            add(&mut table, name, &format!("waiter {position}"), &waiter_cells(waiter));
        }
    }
    table
}

fn add(table: &mut Table, name: &str, who: &str, cells: &[String; 7]) {
    let cells = cells.iter().map(String::as_str);
    table.add_row([name, who].into_iter().chain(cells).map(printable));
}

fn holder_cells(holder: &HolderInfo) -> [String; 7] {
    let [host, pid, label] = identity(&holder.holder);
    let since = ago(holder.since.or(holder.asked));
    let remaining = holder.remaining.map_or_else(dash, left);
    let token = holder.token.map_or_else(dash, |token| token.to_string());
    [holder.mode.to_string(), host, pid, label, since, remaining, token]
}

fn waiter_cells(waiter: &WaiterInfo) -> [String; 7] {
    let [host, pid, label] = identity(&waiter.waiter);
    [waiter.mode.to_string(), host, pid, label, ago(waiter.since), dash(), dash()]
}

/// Host, pid and label.
fn identity(holder: &Holder) -> [String; 3] {
    match holder {
        Holder::Known(owner) => {
            [owner.host.clone(), owner.pid.to_string(), owner.label.clone().unwrap_or_else(dash)]
        }
        // A client of another library, or one of which the store keeps no more.
        other => [other.to_string(), dash(), dash()],
    }
}

fn ago(since: Option<SystemTime>) -> String {
    let age = |since| SystemTime::now().duration_since(since).unwrap_or_default();
    since.map_or_else(dash, |since| format!("{} ago", rough(age(since))))
}

fn left(remaining: Duration) -> String {
    // Not 0 s: the lock is still held.
    rough(Duration::from_secs(remaining.as_secs_f64().ceil() as u64))
}

fn servers(state: &LockState) -> Table {
    let mut table = rows();
    for server in &state.servers {
        table.add_row([server.server.clone(), server.view.to_string()].map(|text| printable(&text)));
    }
    table
}

fn dash() -> String {
    "-".to_owned()
}

/// How many locks are inspected at a time.
const AT_ONCE: usize = 32;
