//! Finds out who may still acquire locks.

use std::collections::BTreeMap;
use std::sync::Arc;

use lock_core::migration::Writer;
use lock_core::{Error, ErrorKind, Finding, FindingLevel, Result};
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};

use crate::connect::greeting::info_field;
use crate::connect::link::Link;
use crate::error::{Cause, code};
use crate::route::client::RedisClient;
use crate::scripts::wire::text;

/// Commands by which clients of all libraries acquire locks, on a key that is appended.
const ACQUIRING: [(&str, &[&str], &[&str]); 10] = [
    ("SET", &[], &["v"]),
    ("SETNX", &[], &["v"]),
    ("GETSET", &[], &["v"]),
    ("MSETNX", &[], &["v"]),
    ("EVAL", &["return 1", "1"], &[]),
    ("EVALSHA", &["0123456789abcdef0123456789abcdef01234567", "1"], &[]),
    ("FCALL", &["f", "1"], &[]),
    ("RESTORE", &[], &["0", "v"]),
    ("RENAME", &["source"], &[]),
    ("RENAMENX", &["source"], &[]),
];

impl RedisClient {
    /// The users of each master who may acquire a lock under this prefix, in the order of servers and names. A disabled user
    /// counts while it is connected: its connections go on.
    ///
    /// A user counts if one of its key patterns for writing may match a lock, and one of its commands can acquire one, even
    /// if both are rights of different selectors. Before Redis 7, which has no `ACL DRYRUN`, every command counts.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Denied`] if the user of this connection may not see that; when a master cannot be reached, or is one
    /// no more.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn writers(&self, prefix: &str) -> Result<Vec<Writer>> {
        let mut writers = Vec::new();
        for link in self.masters().await? {
            writers.extend(self.writers_on(&link, prefix).await?);
        }
        writers.sort();
        Ok(writers)
    }

    /// Notes who may acquire locks under this prefix, or which rights are missing to see that. They are needed at the end of
    /// a migration only.
    ///
    /// # Errors
    ///
    /// When a master cannot be reached.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn examine_writers(&self, prefix: &str) -> Result<Vec<Finding>> {
        let note =
            |server: &str, what: String, advice: &str| Finding::new(FindingLevel::Note, server, what, advice);
        match self.writers(prefix).await {
            Ok(writers) => Ok(writers
                .into_iter()
                .map(|Writer { server, user, connections, .. }| {
                    let what = format!(
                        "the user {user:?} may acquire these locks, and has {connections} connections"
                    );
                    note(&server, what, "")
                })
                .collect()),
            Err(error) if error.kind() == ErrorKind::Unavailable => Err(error),
            Err(error) => {
                Ok(vec![note(self.address(), error.message().to_owned(), error.hint().unwrap_or_default())])
            }
        }
    }

    async fn writers_on(&self, link: &Arc<Link>, prefix: &str) -> Result<Vec<Writer>> {
        let mut commands = Pipeline::new();
        commands.cmd("INFO").arg("replication").cmd("ACL").arg("LIST").cmd("CLIENT").arg("LIST");
        let answers = self.query_each(link, &commands).await?;
        let mut answers = answers.into_iter().map(|answer| answer.map_err(|error| refused(link, &error)));
        let mut next = || answers.next().unwrap_or_else(|| Err(link.endpoint.dropped()));
        let (info, users, clients) = (next()?, next()?, next()?);
        let unexpected = |answer: &Value| link.endpoint.unexpected(answer);
        let info = text(&info).ok_or_else(|| unexpected(&info))?;
        if info_field(&info, "role") != Some("master") {
            // A failover may have just ended: another server decides.
            return Err(link.endpoint.is_replica());
        }
        let clients = text(&clients).ok_or_else(|| unexpected(&clients))?;
        let connections = connections(&clients);
        let users: Vec<String> = redis::from_redis_value_ref(&users).map_err(|_| unexpected(&users))?;
        let counted = |user: User| {
            let connections = connections.get(user.name.as_str()).copied().unwrap_or_default();
            (user, connections)
        };
        let may_act = |(user, connections): &(User, usize)| user.is_enabled || *connections > 0;
        let users = users.iter().filter_map(|line| User::parse(line)).map(counted).filter(may_act);
        let users: Vec<_> = users.filter(|(user, _)| user.may_write(prefix)).collect();
        let may_acquire = self.may_acquire(link, &users, prefix).await?;
        let server = link.at().await?.addr().to_string();
        let writers = users.into_iter().zip(may_acquire).filter(|(_, may)| *may);
        Ok(writers.map(|((user, connections), _)| Writer::new(&server, user.name, connections)).collect())
    }

    /// For each user, whether it has a command that acquires locks.
    async fn may_acquire(
        &self,
        link: &Arc<Link>,
        users: &[(User, usize)],
        prefix: &str,
    ) -> Result<Vec<bool>> {
        if users.is_empty() {
            return Ok(Vec::new());
        }
        let mut commands = Pipeline::new();
        for (user, _) in users {
            for (command, before, after) in ACQUIRING {
                let mut try_out = Cmd::new();
                try_out.arg("ACL").arg("DRYRUN").arg(&user.name).arg(command).arg(before);
                commands.add_command(try_out.arg(format!("{prefix}a")).arg(after).clone());
            }
        }
        let answers = self.query_each(link, &commands).await?;
        users
            .iter()
            .zip(answers.chunks(ACQUIRING.len()))
            .map(|((user, _), answers)| {
                let mut may = false;
                for answer in answers {
                    may |= is_permitted(answer)
                        .map_err(|error| refused(link, error))?
                        .unwrap_or(user.has_commands);
                }
                Ok(may)
            })
            .collect()
    }
}

/// A user, as ACL LIST shows it.
#[derive(Debug, PartialEq, Eq)]
struct User {
    name: String,
    is_enabled: bool,
    has_commands: bool,
    /// The patterns of the keys that it may write, those of its selectors too.
    patterns: Vec<String>,
}

impl User {
    /// Parses `user NAME on #HASH ~PATTERN %R~PATTERN &CHANNEL -@all +COMMAND (~PATTERN +COMMAND)`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().filter(|word| *word == "user").and_then(|_| words.next())?.to_owned();
        let mut user = Self { name, is_enabled: false, has_commands: false, patterns: Vec::new() };
        for word in words {
            let word = word.strip_prefix('(').unwrap_or(word);
            match word {
                "on" => user.is_enabled = true,
                "allkeys" => user.patterns.push("*".into()),
                "allcommands" => user.has_commands = true,
                _ if word.starts_with('+') => user.has_commands = true,
                _ => {}
            }
            let pattern = match word.strip_prefix('%').and_then(|word| word.split_once('~')) {
                Some((rights, pattern)) => rights.contains(['W', 'w']).then_some(pattern),
                None => word.strip_prefix('~'),
            };
            // The closing bracket of a selector may follow.
            user.patterns.extend(pattern.map(|pattern| pattern.trim_end_matches(')').to_owned()));
        }
        Some(user)
    }

    /// Whether it may write a key that begins so, as far as the beginnings of its patterns tell.
    fn may_write(&self, prefix: &str) -> bool {
        self.patterns.iter().any(|pattern| {
            let literal = pattern.split(['*', '?', '[', '\\']).next().unwrap_or_default();
            let is_one_key = literal.len() == pattern.len();
            literal.starts_with(prefix) || (!is_one_key && prefix.starts_with(literal))
        })
    }
}

/// The number of connections of each user.
fn connections(clients: &str) -> BTreeMap<&str, usize> {
    let mut connections = BTreeMap::new();
    for client in clients.lines() {
        if let Some(user) = client.split(' ').find_map(|field| field.strip_prefix("user=")) {
            *connections.entry(user).or_default() += 1;
        }
    }
    connections
}

/// Whether ACL DRYRUN permits a command, on whatever keys; `None` if the server cannot tell.
fn is_permitted(answer: &RedisResult<Value>) -> Result<Option<bool>, &RedisError> {
    match answer {
        // The text is about the command, or about the keys.
        Ok(answer) => Ok(text(answer).map(|refusal| !refusal.contains("permissions to run"))),
        Err(error) if code(error) == "NOPERM" => Err(error),
        // There is no such command, or no such user any more.
        Err(error) if error.detail().is_some_and(|detail| detail.contains("not found")) => Ok(Some(false)),
        Err(_) => Ok(None),
    }
}

fn refused(link: &Link, error: &RedisError) -> Error {
    if code(error) == "NOPERM" {
        return link
            .endpoint
            .error(ErrorKind::Denied, "the server user may not see who may acquire locks")
            .with_hint("give the user the rights: ACL SETUSER ... +acl|list +acl|dryrun +client|list +info")
            .caused_by(Cause::of(error));
    }
    let error = link.endpoint.refused(error);
    match error.kind() {
        ErrorKind::Unexpected => link
            .endpoint
            .error(ErrorKind::Unsupported, "the server does not tell who may acquire locks")
            .with_hint("a server without the commands ACL and CLIENT LIST has to be switched off instead")
            .caused_by(error),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may_write(rules: &str, prefix: &str) -> bool {
        User::parse(&format!("user u {rules}")).unwrap().may_write(prefix)
    }

    #[test]
    fn only_patterns_for_writing_count_that_may_match_a_lock() {
        for rules in [
            "~*",
            "~lock:*",
            "~lo*",
            "~lock:a",
            "%RW~lock:*",
            "%W~*",
            "allkeys",
            "~cache:* (~lock:* +set)",
            "(%W~l*)",
        ] {
            assert!(may_write(rules, "lock:"), "{rules}");
        }
        for rules in ["", "~cache:*", "%R~*", "~lo", "&lock:*", "+set", "~lock", "(%R~lock:* +get)"] {
            assert!(!may_write(rules, "lock:"), "{rules}");
        }
        assert!(
            may_write("~l[oi]ck:*", "lock:") && may_write("~\\lock:*", "lock:"),
            "as far as it is literal"
        );
        assert!(may_write("~cache:*", ""));
    }

    #[test]
    fn a_trial_permits_what_is_not_refused_for_its_command() {
        let text = |text: &str| Ok(Value::BulkString(text.into()));
        let error = |detail: &str| Err(redis::make_extension_error("ERR".into(), Some(detail.into())));
        for (answer, permitted) in [
            (Ok(Value::Okay), Some(true)),
            (text("This user has no permissions to access the 'lock:a' key"), Some(true)),
            (text("User a has no permissions to run the 'set' command"), Some(false)),
            (error("Command 'FCALL' not found"), Some(false)),
            (error("Unknown subcommand or wrong number of arguments for 'DRYRUN'. Try ACL HELP."), None),
        ] {
            assert_eq!(is_permitted(&answer).unwrap(), permitted, "{answer:?}");
        }
        let denied = redis::make_extension_error("NOPERM".into(), Some("this user".into()));
        assert!(is_permitted(&Err(denied)).is_err());
    }

    #[test]
    fn users_are_read() {
        let user =
            User::parse("user ann off #12 %R~* resetchannels -@all +get (~a:* resetchannels -@all +set)");
        let patterns = vec!["a:*".to_owned()];
        let ann = User { name: "ann".into(), is_enabled: false, has_commands: true, patterns };
        assert_eq!(user, Some(ann));
        let default = User::parse("user default on nopass ~* &* +@all").unwrap();
        assert!(default.is_enabled && default.has_commands);
        assert!(!User::parse("user none on -@all").unwrap().has_commands);
        let clients = "id=1 name= user=ann redir=-1\nid=2 user=bob\nid=3 user=ann\n";
        assert_eq!(connections(clients), BTreeMap::from([("ann", 2), ("bob", 1)]));
    }
}
