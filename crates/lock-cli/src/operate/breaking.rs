//! `polylock break`: removes a lock from a holder.

use clap::Args;
use polylock::{HolderInfo, LockState, Locks, Token};
use serde_json::json;

use crate::connect::{self, LocksOptions};
use crate::failure::{Exit, Failure};
use crate::output::{Output, printable};
use crate::terminal::Question;
use crate::under_lock::session;

/// The options of `polylock break`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BreakOptions {
    #[command(flatten)]
    store: LocksOptions,

    /// The token of the holder, as `holders` shows it
    #[arg(long, value_name = "TOKEN", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    token: Option<u64>,

    /// Break it for all its holders, also those that get it meanwhile
    #[arg(long, conflicts_with = "token")]
    all: bool,

    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,

    /// The name of the lock
    name: String,
}

const EXAMPLES: &str = "\
Only the holder that was shown loses the lock, and no later one, unless --all is there. It learns of that by its next renewal or its \
watch, and works on until then: stop it first if you can.

Examples:
  polylock holders nightly-report
  polylock break nightly-report --token 17
  polylock break nightly-report --yes --json";

pub(crate) async fn run(options: BreakOptions, output: Output) -> Result<Exit, Failure> {
    let BreakOptions { store, token, all, yes, name } = options;
    let question = Question::new(yes)?;
    let work = async |locks: &Locks| {
        let breaking = Break { locks, name: &name, output };
        if all { breaking.run_for_all(question).await } else { breaking.run(token, question).await }
    };
    session::work_with(connect::locks(store, output), work, || Err(Failure::interrupted(true))).await
}

struct Break<'a> {
    locks: &'a Locks,
    name: &'a str,
    output: Output,
}

impl Break<'_> {
    async fn run(&self, token: Option<u64>, question: Question) -> Result<Exit, Failure> {
        let state = self.locks.inspect(self.name).await?;
        let Some(holder) = self.choose(&state, token.map(Token::new))? else {
            let text = if state.is_held() {
                "nothing was broken: another one holds the lock"
            } else {
                "the lock is free"
            };
            return self.report(false, text);
        };
        self.output.say(&format!("the lock {:?} is held by {}", self.name, printable(&holder.to_string())));
        if holder.token.is_none() {
            self.output.say("the store keeps no token of it: whoever holds the lock at that moment loses it");
        }
        if !question.ask("Break its lock?").await? {
            return self.report(false, "nothing was changed");
        }
        let is_broken = match holder.token {
            Some(token) => self.locks.break_lock_if(self.name, token).await?,
            None => self.locks.break_lock(self.name).await?,
        };
        let text = match is_broken {
            true => BROKEN,
            false => "nothing was broken: that holder has released or lost the lock",
        };
        self.report(is_broken, text)
    }

    async fn run_for_all(&self, question: Question) -> Result<Exit, Failure> {
        for holder in &self.locks.inspect(self.name).await?.holders {
            self.output.say(&format!(
                "the lock {:?} is held by {}",
                self.name,
                printable(&holder.to_string())
            ));
        }
        if !question.ask("Break it for whoever holds it?").await? {
            return self.report(false, "nothing was changed");
        }
        let is_broken = self.locks.break_lock(self.name).await?;
        self.report(is_broken, if is_broken { BROKEN } else { "the lock is free" })
    }

    /// The holder to break; none if it does not hold the lock.
    fn choose<'s>(
        &self,
        state: &'s LockState,
        token: Option<Token>,
    ) -> Result<Option<&'s HolderInfo>, Failure> {
        match (token, &*state.holders) {
            (Some(token), holders) => Ok(holders.iter().find(|holder| holder.token == Some(token))),
            (None, [] | [_]) => Ok(state.holders.first()),
            (None, holders) => Err(Failure::usage(
                format!("{} holders share the lock {:?}", holders.len(), self.name),
                format!(
                    "choose one by --token, as `polylock holders {}` shows them, or break it for --all",
                    printable(self.name)
                ),
            )),
        }
    }

    fn report(&self, is_broken: bool, text: &str) -> Result<Exit, Failure> {
        self.output.result(text, &json!({ "name": self.name, "broken": is_broken }))?;
        Ok(if is_broken { Exit::Done } else { Exit::Blocked })
    }
}

const BROKEN: &str = "the lock is broken; its holder learns of it by its next renewal or its watch";
