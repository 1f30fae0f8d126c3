//! Serves commands: finds, admits and runs them.

use super::commands;
use super::commands::command::{Command, Kind};
use super::reply::{Answer, Bytes, Reply};
use super::server::{Call, Server, shown, text};

impl Server {
    /// Runs a command of a connection, and puts the reply into its outbox.
    pub(super) fn serve(&mut self, id: u64, words: &[Bytes]) {
        let Some(session) = self.sessions.get(&id) else { return };
        let label = session.label.clone();
        let reply = self.run(id, words);
        self.note(|| format!("{label}/{id}: {} -> {}", commands::show(words), shown(&reply)));
        self.send(id, &reply);
        self.notify_trackers(id);
    }

    /// Runs a command for the test.
    pub(super) fn serve_test(&mut self, words: &[Bytes]) -> Reply {
        let reply = self.run(0, words);
        self.notify_trackers(0);
        reply
    }

    fn run(&mut self, id: u64, words: &[Bytes]) -> Reply {
        self.tick();
        let mut call = Call { server: self, session: id, in_script: false };
        call.run(words).unwrap_or_else(Reply::Error)
    }
}

impl Call<'_> {
    /// Runs one command.
    pub(super) fn run(&mut self, words: &[Bytes]) -> Answer {
        let command = self.find(words)?;
        self.admit(command)?;
        self.find_memory(command)?;
        let reply = (command.run)(self, words);
        if let Kind::Read(keys) = command.kind {
            for key in keys.of(words) {
                self.server.watch(self.session, key);
            }
        }
        reply
    }

    fn find(&self, words: &[Bytes]) -> Result<&'static Command, String> {
        let name = words.first().map(|word| String::from_utf8_lossy(word).to_lowercase()).unwrap_or_default();
        let Some(command) = commands::named(&name) else {
            return Err(match self.in_script {
                true => "ERR Unknown Redis command called from script".to_owned(),
                false => {
                    let args: Vec<_> =
                        words.iter().skip(1).map(|word| format!("'{}' ", text(word))).collect();
                    format!(
                        "ERR unknown command '{}', with args beginning with: {}",
                        text(&words[0]),
                        args.concat()
                    )
                }
            });
        };
        let given = words.len() as i64;
        if if command.arity >= 0 { given == command.arity } else { given >= -command.arity } {
            return Ok(command);
        }
        Err(match self.in_script {
            true => "ERR Wrong number of args calling Redis command from script".to_owned(),
            false => format!("ERR wrong number of arguments for '{name}' command"),
        })
    }

    /// Refuses what may need memory if there is none, but not in the middle of what a script writes.
    fn find_memory(&mut self, command: &Command) -> Result<(), String> {
        let needs_memory = NEED_MEMORY.contains(&command.name);
        if needs_memory && self.server.is_full() && !(self.in_script && self.server.script_wrote) {
            return Err("OOM command not allowed when used memory > 'maxmemory'.".to_owned());
        }
        self.server.script_wrote |= self.in_script && (needs_memory || NEED_NONE.contains(&command.name));
        Ok(())
    }

    fn admit(&self, command: &Command) -> Result<(), String> {
        if self.in_script {
            return match command.kind {
                Kind::Connection => Err("ERR This Redis command is not allowed from script".to_owned()),
                _ => Ok(()),
            };
        }
        let Some(session) = self.server.sessions.get(&self.session) else { return Ok(()) };
        if !session.known && !["auth", "hello"].contains(&command.name) {
            return Err("NOAUTH Authentication required.".to_owned());
        }
        let listens = !(session.channels.is_empty() && session.shard_channels.is_empty());
        if listens && !session.resp3 && !WHILE_LISTENING.contains(&command.name) {
            return Err(format!(
                "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed \
                 in this context",
                command.name
            ));
        }
        Ok(())
    }
}

/// The commands that a server whose memory is full refuses.
const NEED_MEMORY: [&str; 4] = ["lpush", "rpush", "set", "zadd"];
/// The other commands that write.
const NEED_NONE: [&str; 9] =
    ["del", "flushall", "lpop", "lrem", "pexpire", "pexpireat", "zpopmin", "zrem", "zremrangebyscore"];

const WHILE_LISTENING: [&str; 5] = ["subscribe", "unsubscribe", "ssubscribe", "sunsubscribe", "ping"];
