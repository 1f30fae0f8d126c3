//! Scripts.

use std::cell::RefCell;
use std::collections::HashMap;

use super::super::reply::{Answer, Bytes, Reply};
use super::super::script;
use super::super::server::{Call, text};
use super::command::{Command, connection, integer, is, ok};

pub(super) const COMMANDS: &[Command] = &[
    connection("eval", -3, |call, words| {
        let hash = load(call, &words[1])?;
        run(call, &hash, words)
    }),
    connection("evalsha", -3, |call, words| {
        let hash = text(&words[1]).to_lowercase();
        match call.server.scripts.contains_key(&hash) {
            true => run(call, &hash, words),
            false => Err("NOSCRIPT No matching script. Please use EVAL.".to_owned()),
        }
    }),
    connection("script", -2, |call, words| match &words[2..] {
        [source] if is(&words[1], "LOAD") => load(call, source).map(Reply::bulk),
        hashes if is(&words[1], "EXISTS") => {
            let known = |hash: &Bytes| call.server.scripts.contains_key(&text(hash).to_lowercase());
            Ok(Reply::Array(hashes.iter().map(|hash| Reply::flag(known(hash))).collect()))
        }
        _ if is(&words[1], "FLUSH") => {
            call.server.scripts.clear();
            ok()
        }
        _ => Err("ERR the fake knows SCRIPT LOAD, EXISTS and FLUSH only".to_owned()),
    }),
];

fn load(call: &mut Call<'_>, source: &Bytes) -> Result<String, String> {
    let hash = hash(source);
    script::compile(&hash, source)?;
    call.server.scripts.entry(hash.clone()).or_insert_with(|| source.as_slice().into());
    Ok(hash)
}

/// Every new connection loads the same scripts, and simulations make many: each is hashed once.
fn hash(source: &Bytes) -> String {
    thread_local! {
        static KNOWN: RefCell<HashMap<Bytes, String>> = RefCell::default();
    }
    KNOWN.with_borrow_mut(|known| {
        if let Some(hash) = known.get(source) {
            return hash.clone();
        }
        let hash = sha1_smol::Sha1::from(source).digest().to_string();
        known.insert(source.clone(), hash.clone());
        hash
    })
}

fn run(call: &mut Call<'_>, hash: &str, words: &[Bytes]) -> Answer {
    let keys = integer(&words[2])?;
    let Ok(keys) = usize::try_from(keys) else {
        return Err("ERR Number of keys can't be negative".to_owned());
    };
    let rest = &words[3..];
    if keys > rest.len() {
        return Err("ERR Number of keys can't be greater than number of args".to_owned());
    }
    let source = call.server.scripts.get(hash).cloned().unwrap_or_default();
    call.server.script_wrote = false;
    let (keys, args) = rest.split_at(keys);
    script::run(call, hash, &source, keys, args)
}
