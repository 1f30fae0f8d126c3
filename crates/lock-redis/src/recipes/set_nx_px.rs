//! The default recipe, `SET key owner NX PX ttl`: its scripts and their calls.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use lock_core::engine::{Extension, Hold};
use lock_core::migration::{Removal, Tombstone};
use lock_core::{Mode, OwnerId, Token};
use redis_link::commands::Commands;
use redis_link::keys::Keys;
use redis_link::script;
use redis_link::script::{Call, Script, ScriptList};
use redis_link::wire::{LARGEST_TOKEN, TokenTtl, USUAL_FENCE_TTL, millis};

use crate::recipes::recipe::{KeyState, Recipe};
use crate::recipes::request::{Ask, EXCLUSIVE, Moment, ReleaseKind, mode_name};

/// The scripts that are loaded with every connection.
pub(crate) static SCRIPTS: ScriptList =
    &[&ASK, &CONFIRM, &RELEASE_FREE, &RELEASE, &ROTATE, &KEEP, &EXTEND, &RAISE, &INSPECT, &BREAK];
/// Those that are loaded at their first use.
pub(crate) static RARE_SCRIPTS: ScriptList =
    &[&LEAVE_FREE, &LEAVE, &DOWNGRADE, &SWAP, &READ_TOMBSTONE, &REMOVE_TOMBSTONE];

static ASK: LazyLock<Script> = script!(clock ask_fast mint value ours waiter confirm lock ask_held queue ask);
/// Does the same as [`ASK`], faster if the owner holds the lock already.
static CONFIRM: LazyLock<Script> =
    script!(clock mint value ours waiter confirm ask_fast lock ask_held queue ask);
static RELEASE_FREE: LazyLock<Script> = script!(release_free);
static RELEASE: LazyLock<Script> =
    script!(value ours release_fast clock mint pass_on lock waiter queue release);
static LEAVE_FREE: LazyLock<Script> = script!(value ours clock mint lock waiter queue leave_free release);
static ROTATE: LazyLock<Script> = script!(value ours clock mint rotate);
static EXTEND: LazyLock<Script> = script!(value ours extend_fast lock clock mint waiter queue extend);
static KEEP: LazyLock<Script> = script!(value ours waiter keep extend_fast);
static LEAVE: LazyLock<Script> = script!(value lock clock mint waiter queue leave);
static DOWNGRADE: LazyLock<Script> = script!(value ours lock clock mint waiter queue downgrade extend);
static RAISE: LazyLock<Script> = script!(value lock clock mint raise_last waiter queue raise);
static INSPECT: LazyLock<Script> = script!(value lock clock mint waiter queue inspect);
static BREAK: LazyLock<Script> = script!(value lock clock mint waiter queue break);
static SWAP: LazyLock<Script> = script!(value ours waiter swap);
static READ_TOMBSTONE: LazyLock<Script> = script!(value lock tombstone);
static REMOVE_TOMBSTONE: LazyLock<Script> = script!(value clock mint raise_last remove_tombstone);

/// How many words and commands a claim has at most, and the length of the words beside keys and value.
const WORDS: usize = 30;
const OTHER_WORDS: usize = 128;

/// The recipe of [`RedisRecipe::SetNxPx`](crate::RedisRecipe::SetNxPx).
#[derive(Debug)]
pub(crate) struct SetNxPx {
    /// Whether a release is published on the [channel](Keys::channel) of the lock.
    pub(crate) publishes_free: bool,
    /// How long last tokens are kept.
    pub(crate) token_ttl: TokenTtl,
}

impl SetNxPx {
    /// The channel on which a release is published, if it is.
    fn channel(&self, keys: &Keys) -> String {
        if self.publishes_free { keys.channel() } else { String::new() }
    }
}

impl Recipe for SetNxPx {
    fn ask(&self, ask: &Ask<'_>, _: Moment) -> Call {
        let script: &'static Script = if ask.is_confirmation { &CONFIRM } else { &ASK };
        let (mode, fence_ttl) = (mode_name(ask.mode), self.token_ttl.of(ask.ttl));
        script
            .on(&ask.keys.all())
            .arg(ask.owner.encode(&mut [0; 32]))
            .arg(millis(ask.ttl))
            .arg(ask.info)
            .unless_usual(
                [ask.entry.unwrap_or_default(), &*mode, &*fence_ttl],
                ["", EXCLUSIVE, USUAL_FENCE_TTL],
            )
    }

    fn claim(&self, ask: &Ask<'_>, token: u64, keeps: bool) -> Option<Commands> {
        if ask.mode != Mode::Exclusive || token > LARGEST_TOKEN || !ask.keys.share_a_slot() {
            return None;
        }
        let (lock, tokens, queue) = (ask.keys.lock(), ask.keys.tokens(), ask.keys.queue());
        let (token, ttl, fence_ttl) =
            (token.to_string(), millis(ask.ttl).to_string(), self.token_ttl.of(ask.ttl));
        let value = [ask.owner.encode(&mut [0; 32]), " ", &token, " ", &token, " ", ask.info].concat();
        let length = lock.len() + value.len() + queue.len() + 5 * tokens.len();
        let mut commands = Commands::with_capacity(WORDS, length + OTHER_WORDS);
        // In this order: a token that is written before the lock may be older than that of a holder in between.
        commands.add(&["SET", lock, &value, "NX", "PX", &ttl]);
        if keeps {
            commands.add(&["EXISTS", queue]);
        } else {
            // The server may have lost it since its ttl was noted. Twice, to tell it from the queue.
            commands.add(&["EXISTS", queue, tokens, tokens]);
        }
        commands.add(&["ZADD", tokens, "GT", "CH", &token, "last"]);
        if keeps {
            // A new key has no ttl, and the token of a name that was idle is about to expire. A longer ttl stays. Also for a lock that
            // turns out to be busy. Redis 6.2 has neither option, and refuses them: see `claims_keep`.
            for option in ["NX", "GT"] {
                commands.add(&["PEXPIRE", tokens, &fence_ttl, option]);
            }
        }
        Some(commands)
    }

    fn release(&self, keys: &Keys, owner: OwnerId, how: ReleaseKind<'_>) -> Call {
        let (id, mut buffer) = (owner, [0; 32]);
        let owner = id.encode(&mut buffer);
        let entry = match how {
            ReleaseKind::Unwanted if !self.publishes_free => {
                return RELEASE_FREE.on(&[keys.lock(), keys.queue()]).arg(owner);
            }
            ReleaseKind::LeaveFree(moment) => {
                let call = LEAVE_FREE.on(&keys.all()).arg(owner).arg(self.channel(keys)).arg("");
                return call.arg(&*self.token_ttl.of(Duration::ZERO)).arg(millis(moment));
            }
            ReleaseKind::ToNext => return self.release(keys, id, ReleaseKind::WANTED).answered_last(),
            ReleaseKind::Unwanted => None,
            ReleaseKind::Wanted { entry } => entry,
        };
        let call = RELEASE.on(&keys.all()).arg(owner);
        // That of a lock with a long ttl is longer by then, and stays.
        let fence_ttl = self.token_ttl.of(Duration::ZERO);
        call.unless_usual(
            [&*self.channel(keys), entry.unwrap_or_default(), &*fence_ttl],
            ["", "", USUAL_FENCE_TTL],
        )
    }

    fn extend(&self, lease: &Extension<'_, Arc<Keys>>, _: Moment) -> Call {
        // Only keys that exist, except for the queue: a cluster refuses others while their slot migrates.
        let [lock, last, queue, holders] = lease.place.all();
        let call = match lease.hold {
            // A confirmation would notify the next waiter. That asks by itself within two seconds.
            Hold::Alone | Hold::Granted if lease.leaves => LEAVE.on(&[lock, last]),
            Hold::Shared | Hold::Downgrading if lease.leaves => LEAVE.on(&[lock, last, holders]),
            Hold::Alone => EXTEND.on(&[lock, last]),
            Hold::Granted => KEEP.on(&[lock, last, queue]),
            Hold::Shared => EXTEND.on(&[lock, last, holders]),
            Hold::Downgrading => DOWNGRADE.on(&lease.place.all()),
        };
        let call = call.arg(lease.owner.encode(&mut [0; 32])).arg(millis(lease.ttl));
        let fence_ttl = self.token_ttl.of(lease.ttl);
        let channel = if lease.hold == Hold::Downgrading { self.channel(lease.place) } else { String::new() };
        let shortens = if lease.shortens { "shortens" } else { "" };
        call.unless_usual([&*fence_ttl, &*channel, shortens], [USUAL_FENCE_TTL, "", ""])
    }

    fn raise(&self, keys: &Keys, owner: OwnerId, floor: Token, ttl: Duration) -> Call {
        RAISE.on(&keys.all()).arg(owner.to_string()).arg(floor.get()).arg(&*self.token_ttl.of(ttl))
    }

    fn inspect(&self, keys: &Keys, owner: &str) -> Call {
        INSPECT.on(&keys.all()).arg(keys.channel()).arg(owner)
    }

    fn break_lock(&self, keys: &Keys, seen: &str) -> Call {
        BREAK.on(&keys.all()).arg(seen).arg(self.channel(keys))
    }

    fn swap(&self, keys: &Keys, owner: OwnerId, tombstone: &Tombstone) -> Call {
        SWAP.on(&[keys.lock(), keys.tokens(), keys.queue()])
            .arg(owner.to_string())
            .arg(tombstone.to_string())
            .arg(millis(tombstone.life))
            .arg(self.channel(keys))
    }

    fn read_tombstone(&self, keys: &Keys) -> Call {
        READ_TOMBSTONE.on(&[keys.lock()])
    }

    fn remove_tombstone(&self, keys: &Keys, removal: &Removal<'_>) -> Call {
        REMOVE_TOMBSTONE
            .on(&[keys.lock(), keys.tokens()])
            .arg(removal.tombstone.to_string())
            .arg(removal.floor.get())
            .arg(removal.until)
            .arg(&*self.token_ttl.of(removal.ttl))
    }

    fn key_state(&self, value: String, _: Option<String>, left: Option<Duration>) -> KeyState {
        if Tombstone::is_one(&value) { KeyState::Moved(value) } else { KeyState::held(left) }
    }
}

/// Hands a lock over to another owner of this process, past the wait queue.
pub(crate) fn rotate(owner: OwnerId, next: &Ask<'_>, token_ttl: TokenTtl) -> Call {
    ROTATE
        .on(&[next.keys.lock(), next.keys.tokens()])
        .arg(owner.encode(&mut [0; 32]))
        .arg(next.owner.encode(&mut [0; 32]))
        .arg(millis(next.ttl))
        .arg(next.info)
        .unless_usual([&*token_ttl.of(next.ttl)], [USUAL_FENCE_TTL])
}

#[cfg(test)]
mod tests {
    use lock_core::ErrorKind;
    use redis::IntoConnectionInfo as _;
    use redis_link::client::{ClientOptions, RedisClient};

    use super::*;

    #[test]
    fn the_hint_names_the_rights_that_the_scripts_need() {
        let address = "redis://127.0.0.1:1".into_connection_info().unwrap();
        let client = RedisClient::new(ClientOptions::new("redis", SCRIPTS, address)).unwrap();
        let refused = redis::make_extension_error("NOPERM".into(), Some("no permissions".into()));
        let error = client.endpoint().refused(&refused);
        assert_eq!(error.kind(), ErrorKind::Denied);
        let rights = error.hint().unwrap();
        for right in ["+evalsha", "+script|load", "+set", "+get", "+del", "+pexpire", "+time", "+publish"] {
            assert!(rights.contains(right), "{right} is missing: {rights}");
        }
        // PUBLISH or SPUBLISH, depending on the inbox.
        for right in ["+spublish", "+ssubscribe", "+sunsubscribe", "+client|tracking"] {
            assert!(rights.contains(right), "{right} is missing: {rights}");
        }
    }
}
