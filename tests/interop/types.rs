//! Locks of other libraries that are no strings on Redis, by the commands of their clients.

use libtest_mimic::Trial;
use lock_testkit::redis::Reply;

use crate::meeting::{LEASE, NOW, Ours, release};
use crate::peers::servers::Site;
use crate::redis::connect;
use crate::{Story, trials_of};

pub(crate) fn trials(one: &Site, five: &Site) -> Vec<Trial> {
    let mut trials = Vec::new();
    for kind in &TYPES {
        for (store, site) in STORES.map(|store| (store, if store == "redlock" { five } else { one })) {
            let at = |name: &str| At {
                name: format!("{}/{store}/{name}", kind.name),
                kind,
                store,
                site: site.clone(),
            };
            trials.extend(trials_of(&format!("{}::{store}", kind.name), STORIES, at));
        }
    }
    trials
}

const STORES: [&str; 5] = ["queue", "notify", "poll", "redlock", "setnx-timestamp"];

const STORIES: &[Story<At>] =
    stories![a_lock_of_another_type_excludes_us, our_lock_is_the_wrong_type_for_them];

/// A lock that is no string, as its own clients make it.
struct Type {
    name: &'static str,
    /// Takes the lock, with `KEY` for the key.
    take: &'static str,
    /// What a client sends first, whoever holds the lock.
    ask: &'static str,
}

const TYPES: [Type; 2] = [
    // The owner is the id of a client and of a thread in it, the value says how often it holds the lock.
    Type {
        name: "redisson",
        take: "HINCRBY KEY 8743c9c0-0795-4907-87fd-6c719a6b4586:1 1",
        ask: "HEXISTS KEY 8743c9c0-0795-4907-87fd-6c719a6b4586:1",
    },
    // The score is the time in ms at which the lock ends; a writer has a member of its own beside it.
    Type {
        name: "symfony",
        take: "ZADD KEY 4102444800000 __write__ 4102444800000 2xVYJhVJqoeuS1AKo2PZYGgPmbEMyaC9",
        ask: "ZREMRANGEBYSCORE KEY -inf 1",
    },
];

struct At {
    name: String,
    kind: &'static Type,
    store: &'static str,
    site: Site,
}

impl At {
    async fn ours(&self) -> Ours {
        connect(self.store, &self.site, "", LEASE, &self.name).await
    }

    async fn replies(&self, command: &str) -> Vec<Reply> {
        let words: Vec<_> =
            command.split(' ').map(|word| if word == "KEY" { &*self.name } else { word }).collect();
        self.site.everywhere(&words).await
    }
}

async fn a_lock_of_another_type_excludes_us(at: At) {
    let ours = at.ours().await;
    for command in [at.kind.take, "PEXPIRE KEY 60000"] {
        assert!(at.replies(command).await.iter().all(|reply| !reply.is_error()), "{command}");
    }
    ours.is_kept_out().await;
    ours.sees_a_foreign_holder().await;
    let waiter = ours.waits().await;
    assert!(at.replies(at.kind.ask).await.iter().all(|reply| !reply.is_error()), "we have touched it");
    at.site.does(&["DEL", &at.name]).await;
    release(waiter.await.unwrap()).await;
}

async fn our_lock_is_the_wrong_type_for_them(at: At) {
    let guard = at.ours().await.acquire(NOW).await.expect("nobody has it");
    for command in [at.kind.ask, at.kind.take] {
        for reply in at.replies(command).await {
            assert!(matches!(&reply, Reply::Error(text) if text.starts_with("WRONGTYPE")), "{reply:?}");
        }
    }
    release(guard).await;
}
