//! Commands on the connection, and on the server as a whole.

use super::super::reply::{Answer, Bytes, Reply};
use super::super::server::{Call, USED_MEMORY, text};
use super::command::{Command, connection, fits, integer, is, ok, other, syntax};

pub(super) const COMMANDS: &[Command] = &[
    connection("hello", -1, hello),
    connection("auth", -2, auth),
    connection("client", -2, client),
    other("ping", -1, ping),
    other("select", 2, |_, words| match integer(&words[1])? {
        0 => ok(),
        _ => Err("ERR DB index is out of range".to_owned()),
    }),
    other("time", 1, |call, _| {
        let now = call.server.now_us;
        Ok(Reply::bulks([(now / 1_000_000).to_string(), (now % 1_000_000).to_string()]))
    }),
    other("config", -2, config),
    other("info", -1, |call, words| Ok(Reply::bulk(info(call, &words[1..])))),
    other("role", 1, |_, _| {
        Ok(Reply::Array(vec![Reply::bulk("master"), Reply::Int(0), Reply::Array(Vec::new())]))
    }),
    // There are no replicas to wait for.
    other("wait", 3, |_, _| Ok(Reply::Int(0))),
];

const VERSION: &str = "7.2.4";

fn hello(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let mut rest = words[1..].iter();
    let resp3 = match rest.next() {
        None => call.client()?.resp3,
        Some(word) => match integer(word) {
            Ok(version @ 2..=3) => version == 3,
            Ok(_) => return Err("NOPROTO unsupported protocol version".to_owned()),
            Err(_) => return Err("ERR Protocol version is not an integer or out of range".to_owned()),
        },
    };
    while let Some(word) = rest.next() {
        match () {
            () if is(word, "AUTH") => {
                let (Some(user), Some(password)) = (rest.next(), rest.next()) else { return syntax() };
                log_in(call, user, password)?;
            }
            () if is(word, "SETNAME") => {
                let Some(name) = rest.next() else { return syntax() };
                call.client()?.name.clone_from(name);
            }
            () => return Err(format!("ERR Syntax error in HELLO option '{}'", text(word))),
        }
    }
    let id = call.session;
    let client = call.client()?;
    if !client.known {
        return Err("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> \
                    AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol \
                    version at the same time"
            .to_owned());
    }
    client.resp3 = resp3;
    let about = [
        ("server", Reply::bulk("redis")),
        ("version", Reply::bulk(VERSION)),
        ("proto", Reply::Int(if resp3 { 3 } else { 2 })),
        ("id", Reply::Int(id as i64)),
        ("mode", Reply::bulk("standalone")),
        ("role", Reply::bulk("master")),
        ("modules", Reply::Array(Vec::new())),
    ];
    Ok(Reply::Map(about.map(|(name, value)| (Reply::bulk(name), value)).into()))
}

fn auth(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    match &words[1..] {
        [_] if call.server.password.is_none() => Err(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                 your configuration is correct?"
                .to_owned(),
        ),
        [password] => log_in(call, b"default", password),
        [user, password] => log_in(call, user, password),
        _ => syntax(),
    }
}

fn log_in(call: &mut Call<'_>, user: &[u8], password: &[u8]) -> Answer {
    let right = call.server.password.as_ref().is_none_or(|wanted| wanted.as_bytes() == password);
    if user != b"default" || !right {
        return Err("WRONGPASS invalid username-password pair or user is disabled.".to_owned());
    }
    call.client()?.known = true;
    ok()
}

fn client(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let rest = &words[2..];
    match (text(&words[1]).to_uppercase().as_str(), rest) {
        ("ID", []) => Ok(Reply::Int(call.session as i64)),
        ("SETNAME", [name]) if !name.iter().all(u8::is_ascii_graphic) => {
            Err("ERR Client names cannot contain spaces, newlines or special characters.".to_owned())
        }
        ("SETNAME", [name]) => {
            call.client()?.name.clone_from(name);
            ok()
        }
        ("GETNAME", []) => Ok(Some(call.client()?.name.clone())
            .filter(|name| !name.is_empty())
            .map_or(Reply::Nil, Reply::Bulk)),
        ("SETINFO", [_, _]) | ("NO-EVICT" | "NO-TOUCH", [_]) => ok(),
        ("KILL", [what, id]) if is(what, "ID") => {
            let id = integer(id)? as u64;
            let known = call.server.sessions.contains_key(&id);
            call.server.hang_up(id);
            Ok(Reply::flag(known))
        }
        ("TRACKING", [state, options @ ..]) => tracking(call, state, options),
        (what, _) => Err(format!("ERR the fake does not know CLIENT {what} like this")),
    }
}

/// The default mode only: a connection tracks the keys that it reads.
fn tracking(call: &mut Call<'_>, state: &[u8], options: &[Bytes]) -> Answer {
    let on = match () {
        () if is(state, "ON") => true,
        () if is(state, "OFF") => false,
        () => return syntax(),
    };
    if let Some(option) = options.iter().find(|option| !is(option, "NOLOOP")) {
        return Err(format!("ERR the fake does not know CLIENT TRACKING with {}", text(option)));
    }
    let client = call.client()?;
    // Keys that it has read stay tracked for when tracking is enabled again.
    (client.tracking, client.noloop) = (on, !options.is_empty());
    ok()
}

fn ping(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let listens = call.client().is_ok_and(|client| !client.resp3 && !client.channels.is_empty());
    match &words[1..] {
        [] if listens => Ok(Reply::bulks(["pong", ""])),
        [message] if listens => Ok(Reply::bulks([b"pong".as_slice(), message])),
        [] => Ok(Reply::Simple("PONG".to_owned())),
        [message] => Ok(Reply::bulk(message)),
        _ => Err("ERR wrong number of arguments for 'ping' command".to_owned()),
    }
}

fn config(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    match &words[2..] {
        patterns if is(&words[1], "GET") => {
            let wanted = |name: &str| {
                patterns.iter().any(|pattern| fits(&pattern.to_ascii_lowercase(), name.as_bytes()))
            };
            let found = call.server.config.iter().filter(|(name, _)| wanted(name));
            Ok(Reply::Map(found.map(|(name, value)| (Reply::bulk(name), Reply::bulk(value))).collect()))
        }
        [name, value] if is(&words[1], "SET") => {
            call.server.config.insert(text(name).to_lowercase(), text(value));
            ok()
        }
        _ => Err("ERR the fake knows CONFIG GET and CONFIG SET only".to_owned()),
    }
}

fn info(call: &Call<'_>, sections: &[Bytes]) -> String {
    let server = &*call.server;
    let [policy, limit] =
        ["maxmemory-policy", "maxmemory"].map(|name| server.config.get(name).map_or("", String::as_str));
    let all = [
        (
            "server",
            format!(
                "# Server\r\nredis_version:{VERSION}\r\nredis_mode:standalone\r\nrun_id:{}\r\nuptime_in_seconds:{}\r\n",
                server.run_id,
                (server.now_us - server.started_us) / 1_000_000
            ),
        ),
        ("clients", format!("# Clients\r\nconnected_clients:{}\r\n", server.sessions.len())),
        (
            "memory",
            format!(
                "# Memory\r\nused_memory:{USED_MEMORY}\r\nmaxmemory:{limit}\r\nmaxmemory_policy:{policy}\r\n"
            ),
        ),
        ("replication", "# Replication\r\nrole:master\r\nconnected_slaves:0\r\n".to_owned()),
    ];
    let wanted = |name: &str| {
        sections.is_empty() || sections.iter().any(|section| is(section, name) || is(section, "all"))
    };
    let found: Vec<_> = all.into_iter().filter(|(name, _)| wanted(name)).map(|(_, text)| text).collect();
    found.join("\r\n")
}
