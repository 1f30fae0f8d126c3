//! The status as text.

use std::time::SystemTime;

use polylock::Rung;
use polylock::migrate::{MemberInfo, Obstacle, Phase, Record, SessionInfo, Status, TombstoneCount};

use super::super::summary::{phase, rules};
use crate::output::{printable, printable_lines};
use crate::text::{count, rough, rows, table};

/// The status for people.
pub(super) fn text(status: &Status) -> String {
    let mut parts = vec![head(status)];
    if let Some(record) = &status.record {
        parts.push(rungs(record));
    }
    parts.push(sessions(status));
    parts.push(moved(status));
    parts.push(next(status));
    parts.join("\n\n")
}

fn head(status: &Status) -> String {
    let Some(record) = &status.record else {
        return format!("migration {}: nobody has begun it", printable(&status.namespace));
    };
    let Record { namespace, generation, from, to, .. } = record;
    format!(
        "migration {}: {}, generation {generation}\nfrom {}\nto   {}",
        printable(namespace),
        phase(record.phase),
        printable(from),
        printable(to)
    )
}

fn rungs(record: &Record) -> String {
    let mut table = table(["NAMES", "RUNG"]);
    for (names, rung) in rules(record) {
        table.add_row([printable(&names), rung.to_string()]);
    }
    table.trim_fmt()
}

fn sessions(status: &Status) -> String {
    if status.sessions.is_empty() {
        return "no process takes part now".to_owned();
    }
    let mut sessions: Vec<_> = status.sessions.iter().collect();
    sessions.sort_by_key(|session| session.member.as_ref().map(|member| (&member.host, member.pid)));
    let mut table = table(["HOST", "PID", "VERSION", "RUNG", "PINNED", "SINCE", "BEHIND", "RECORD"]);
    for session in sessions {
        table.add_row(row(session, status.version).map(|text| printable(&text)));
    }
    table.trim_fmt()
}

fn row(session: &SessionInfo, version: Option<i32>) -> [String; 8] {
    let Some(member) = &session.member else {
        let unknown = format!("session {}", session.session);
        return [&*unknown, "-", "other", "-", "-", "-", "-", "unknown"].map(ToOwned::to_owned);
    };
    let MemberInfo { host, pid, version: library, record, pinned, rung, since, behind, .. } = member;
    let name = |rung: &Option<Rung>| rung.map_or_else(|| "-".to_owned(), |rung| rung.to_string());
    // The clock of that host may be ahead.
    let age = SystemTime::now().duration_since(*since).unwrap_or_default();
    let seen = match record {
        record if *record == version => "seen",
        None => "not seen",
        Some(_) => "older seen",
    };
    [
        host.clone(),
        pid.to_string(),
        library.clone(),
        rung.to_string(),
        name(pinned),
        rough(age),
        name(behind),
        seen.to_owned(),
    ]
}

fn moved(status: &Status) -> String {
    let mut table = rows();
    let mut line = |what: &str, text: String| {
        table.add_row([what.to_owned(), printable_lines(&text)]);
    };
    line("moved names", status.moved.to_string());
    if let Some(tombstones) = &status.tombstones {
        line("tombstones", tombstones_text(tombstones));
        line("lost tombstones", list(&status.lost_tombstones));
        let stragglers: Vec<_> = status
            .stragglers
            .iter()
            .map(|straggler| format!("{} held by {}", straggler.lock, straggler.holder))
            .collect();
        line("only on the old store", list(&stragglers));
    }
    line("double grants", status.double_grants.to_string());
    if let Some(error) = &status.old_store {
        line("old store", error.clone());
    }
    table.trim_fmt()
}

fn tombstones_text(tombstones: &TombstoneCount) -> String {
    let TombstoneCount { count, shortest_life_s, nearly_expired, .. } = *tombstones;
    let mut text = count.to_string();
    if let Some(life) = shortest_life_s {
        text.push_str(&format!(", the shortest lives {} more", rough(std::time::Duration::from_secs(life))));
    }
    if nearly_expired > 0 {
        text.push_str(&format!("; {nearly_expired} have less than a quarter of their life left"));
    }
    text
}

/// The first of them, one per line.
fn list(items: &[String]) -> String {
    if items.is_empty() {
        return "0".to_owned();
    }
    let mut lines = vec![items.len().to_string()];
    lines.extend(items.iter().take(MOST_LISTED).map(|item| printable(item)));
    if items.len() > MOST_LISTED {
        lines.push(format!("and {} more: --json lists all", items.len() - MOST_LISTED));
    }
    lines.join("\n")
}

fn next(status: &Status) -> String {
    let step = match (&status.record, status.next) {
        (None, _) => "`polylock migrate set shadow`, or start a process with its migrate:// URL".to_owned(),
        (Some(record), _) if record.phase == Phase::Returning => "`polylock migrate clean`".to_owned(),
        (Some(record), None) if record.phase == Phase::Sealed => {
            return "next step: none, the migration is finished".to_owned();
        }
        (_, Some(Rung::New)) => "new, by `polylock migrate finish`".to_owned(),
        (_, Some(rung)) => format!("{rung}, by `polylock migrate set {rung}`"),
        (_, None) => return "next step: none".to_owned(),
    };
    let mut text = format!("next step: {step}");
    if status.record.is_none() {
        return text;
    }
    if status.obstacles.is_empty() {
        text.push_str("\nnothing blocks it");
        return text;
    }
    text.push_str(&format!("\n{} before that:", count(status.obstacles.len(), "obstacle")));
    let mut table = rows();
    for Obstacle { what, advice, .. } in &status.obstacles {
        table.add_row(["-".to_owned(), printable_lines(&format!("{what}\nway out: {advice}"))]);
    }
    text.push('\n');
    text.push_str(&table.trim_fmt());
    text
}

/// How many names of each kind are shown.
const MOST_LISTED: usize = 10;
