//! `polylock migrate set`.

use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use polylock::migrate::{Obstacle, Phase, Status};
use polylock::{Finding, Operator, Rung};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::summary::{summary, who};
use crate::failure::{Exit, Failure};
use crate::operate::findings;
use crate::output::{Output, printable};
use crate::progress::ProgressLine;
use crate::terminal::Question;
use crate::text::count;

/// The options of `set`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct SetOptions {
    /// The rung: old, shadow, dual or move
    rung: Rung,

    /// The names, where * stands for any text. The pattern * replaces all earlier rules
    #[arg(long, value_name = "GLOB", default_value = "*", value_parser = NonEmptyStringValueParser::new())]
    names: String,

    /// Set it despite warnings of preflight
    #[arg(long)]
    force: bool,
}

const EXAMPLES: &str = "\
Before `dual` and `move`, `preflight` is run, and a warning stops the command.

Examples:
  polylock migrate set shadow
  polylock migrate set dual --names 'reports/*'    a canary first
  polylock migrate set move --yes                  without a question
  polylock migrate set dual                        down from move: names that have moved stay so";

impl SetOptions {
    pub(super) async fn run(
        &self,
        operator: &Operator,
        output: Output,
        question: Question,
    ) -> Result<Exit, Failure> {
        let before = operator.brief_status().await?;
        output.say(&summary(&before));
        let mut findings = Vec::new();
        if !self.is_refused(&before) {
            output.say(&self.plan(&before));
            if matches!(self.rung, Rung::Dual | Rung::Move) {
                findings = operator.preflight().await?;
                if findings::warnings(&findings) > 0 && !self.force {
                    return warned(&findings, output);
                }
                self.show(&findings, output);
            }
            if !question.ask("Set it?").await? {
                return super::declined(output);
            }
        }
        operator.set(self.rung, &self.names).await?;
        let after = follow(operator, output).await?;
        self.report(&after, &findings, output)
    }

    /// Whether the operator refuses this step anyway, so that there is nothing to ask.
    fn is_refused(&self, status: &Status) -> bool {
        match status.record.as_ref().map(|record| record.phase) {
            Some(Phase::Sealed) => true,
            Some(Phase::Returning) => self.rung >= Rung::Move,
            _ => self.rung == Rung::New,
        }
    }

    fn plan(&self, status: &Status) -> String {
        let begins = if status.record.is_none() { "begins the migration, and " } else { "" };
        let names = match &*self.names {
            "*" => "all names".to_owned(),
            names => format!("names like {}", printable(names)),
        };
        let means = match self.rung {
            Rung::Old => "the lock of the old store, as before the migration",
            Rung::Shadow => "the lock of the old store; that of the new one is only tried, and measured",
            Rung::Dual => "both locks, the new one first",
            _ => {
                "both locks the first time; then a tombstone stays on the old store, and the new one is enough"
            }
        };
        let stays = match status.record.as_ref().map(|record| record.highest()) {
            Some(Rung::Move) if self.rung < Rung::Move => {
                "\nNames that have moved stay on the new store; `polylock migrate back` brings them back."
            }
            _ => "",
        };
        format!(
            "This {begins}sets {names} to {}: {means}.\nProcesses follow within 2 s. Guards keep the rung on which \
             they were acquired.{stays}",
            self.rung
        )
    }

    fn show(&self, findings: &[Finding], output: Output) {
        let warnings = findings::warnings(findings);
        if warnings == 0 {
            output.say("Preflight: no warning.");
        } else {
            let warnings = count(warnings, "warning");
            output
                .say(&format!("Preflight: {warnings}, overruled by --force.\n{}", findings::text(findings)));
        }
    }

    fn report(&self, status: &Status, findings: &[Finding], output: Output) -> Result<Exit, Failure> {
        let unfollowed = status.unfollowed();
        let sessions = status.sessions.len();
        let followed = sessions - unfollowed.len();
        let mut text = format!("{} is set for {}.\n", self.rung, printable(&self.names));
        text.push_str(&match sessions {
            0 => "No process takes part now; those that start will follow.\n".to_owned(),
            _ => format!("{followed} of {sessions} sessions have followed.\n"),
        });
        for Obstacle { what, advice, .. } in &unfollowed {
            text.push_str(&format!("  - {}; {}\n", printable(what), printable(advice)));
        }
        for member in status.sessions.iter().filter_map(|session| session.member.as_ref()) {
            let who = printable(&who(member));
            if let Some(pinned) = member.pinned {
                text.push_str(&format!("  - {who} stays on {pinned}, as its URL says\n"));
            }
            if let Some(behind) = member.behind {
                text.push_str(&format!("  - {who} still holds a guard that it acquired on {behind}\n"));
            }
        }
        let document = json!({
            "passed": true,
            "record": status.record,
            "sessions": sessions,
            "followed": followed,
            "unfollowed": unfollowed,
            "findings": findings::documents(findings),
        });
        output.result(&text, &document)?;
        Ok(Exit::Done)
    }
}

/// Waits a few seconds for all sessions to see the record.
async fn follow(operator: &Operator, output: Output) -> Result<Status, Failure> {
    let progress = ProgressLine::new(output);
    let until = Instant::now() + FOLLOW_LIMIT;
    loop {
        let status = operator.brief_status().await?;
        let unfollowed = status.unfollowed().len();
        if unfollowed == 0 || Instant::now() >= until {
            return Ok(status);
        }
        progress.show(format!("waiting for {} to follow", count(unfollowed, "session")));
        sleep(LOOK).await;
    }
}

fn warned(findings: &[Finding], output: Output) -> Result<Exit, Failure> {
    let text = format!(
        "{}\nNothing was changed: repair the {} of preflight, or use --force.",
        findings::text(findings),
        count(findings::warnings(findings), "warning")
    );
    let document = json!({ "passed": false, "findings": findings::documents(findings) });
    output.result(&text, &document)?;
    Ok(Exit::Blocked)
}

const FOLLOW_LIMIT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(200);
