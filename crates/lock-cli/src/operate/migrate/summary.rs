//! What a step sees before it changes anything.

use std::collections::BTreeMap;

use polylock::Rung;
use polylock::migrate::{MemberInfo, Phase, Record, Status};

use crate::output::printable;
use crate::text::count;

/// The record and the sessions, in one or two sentences.
pub(super) fn summary(status: &Status) -> String {
    let Some(record) = &status.record else {
        return format!("Nobody has begun the migration {:?} yet.", status.namespace);
    };
    let Record { namespace, generation, .. } = record;
    let rules: Vec<_> =
        rules(record).into_iter().map(|(names, rung)| format!("{} on {rung}", printable(&names))).collect();
    format!(
        "The migration {namespace:?} is {} (generation {generation}), with {}.\n{}",
        phase(record.phase),
        rules.join(", "),
        sessions(status),
    )
}

/// How many sessions there are on which rungs.
fn sessions(status: &Status) -> String {
    let mut rungs = BTreeMap::<Rung, usize>::new();
    for member in status.sessions.iter().filter_map(|session| session.member.as_ref()) {
        *rungs.entry(member.rung).or_default() += 1;
    }
    let unreadable = status.sessions.iter().filter(|session| session.member.is_none()).count();
    let mut parts: Vec<_> = rungs.into_iter().map(|(rung, count)| format!("{count} on {rung}")).collect();
    if unreadable > 0 {
        parts.push(format!("{unreadable} of another version of the library"));
    }
    match parts.is_empty() {
        true => "No process takes part now.".to_owned(),
        false => format!("{}: {}.", count(status.sessions.len(), "session"), parts.join(", ")),
    }
}

/// The rules, with what is in force for the names that none of them matches.
pub(super) fn rules(record: &Record) -> Vec<(String, Rung)> {
    let mut rules: Vec<_> = record.rules.iter().map(|rule| (rule.names.clone(), rule.rung)).collect();
    if !rules.iter().any(|(names, _)| names == "*") {
        let names = if rules.is_empty() { "*" } else { "all others" };
        rules.push((names.to_owned(), Rung::Old));
    }
    rules
}

pub(super) const fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Open => "open",
        Phase::Returning => "on the way back",
        Phase::Sealed => "sealed",
        _ => "in a phase that this version does not know",
    }
}

pub(super) fn who(member: &MemberInfo) -> String {
    format!("{} (pid {})", member.host, member.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_rule_are_old() {
        let mut record = Record::new("shop", "redis://a", "zk://b");
        assert_eq!(rules(&record), [("*".to_owned(), Rung::Old)]);
        record.set(Rung::Dual, "a/*");
        assert_eq!(rules(&record)[1], ("all others".to_owned(), Rung::Old));
        record.set(Rung::Dual, "*");
        assert_eq!(rules(&record), [("*".to_owned(), Rung::Dual)]);
    }
}
