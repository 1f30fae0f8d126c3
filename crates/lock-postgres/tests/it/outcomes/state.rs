//! States as text, written to the tables and read from them.
//!
//! | text | the lock |
//! |---|---|
//! | `none` | has no row |
//! | `free` | has no holder |
//! | `me:200` | is held exclusively; the lease lasts 200 s, or has expired with `me:0` |
//! | `r me:200 ann:300` | is held by readers |
//! | `p me/2:200 ann/3:200` | is held by owners of one of 2 and one of 3 permits |
//!
//! After a `|` come the waiters: `ann` for the lock alone, `ann.r` as a reader, `ann.2` for one of 2 permits. `~` marks a waiter
//! that polls, `!` a dead one. A `*` at the end is an observer, and `*!` a dead one.

use tokio_postgres::{Client, Row};

/// The key of the observer.
pub(super) const OBSERVER: &str = "0b5e0b5e0b5e0b5e";

/// The id of an owner.
pub(super) fn owner(who: &str) -> String {
    format!("{:x<32}", who.bytes().fold(String::new(), |id, byte| format!("{id}{byte:02x}")))
        .replace('x', "0")
}

/// The key of a waiter: what everybody may hear of it, and its secret.
pub(super) fn key(who: &str) -> String {
    format!("{}{}", &owner(who)[..16], owner(&format!("secret {who}")))
}

fn who(id: &str) -> String {
    let digits = id.replace('-', "");
    let bytes = (0..16).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap());
    bytes.take_while(|byte| *byte != 0).map(char::from).collect()
}

/// Makes the state of a new name; all last tokens are 1 600.
pub(super) async fn write(client: &Client, name: &str, state: &str, (inbox, listener): (&str, i32)) {
    if state == "none" {
        return;
    }
    let mut sql = String::new();
    let (state, observer) = [(" *", listener), (" *!", 1)]
        .into_iter()
        .find_map(|(mark, listener)| Some((state.strip_suffix(mark)?, Some(listener))))
        .unwrap_or((state, None));
    let (holders, queue) = state.split_once(" | ").unwrap_or((state, ""));
    let (shared, holders) = match holders.split_at(2) {
        ("r ", sharers) => (-1, sharers),
        ("p ", sharers) => (1, sharers),
        _ => (0, holders),
    };
    let exclusive = holders.split_once(':').filter(|_| shared == 0);
    let alone = exclusive.map_or_else(|| "NULL".to_owned(), |(who, _)| format!("'{}'", owner(who)));
    sql += &format!(
        "INSERT INTO lock (name, owner, token, last, since, info, shared, queued, observed)
         VALUES ('{name}', {alone}, 1600, 1600, now(), 'info', {shared}, {}, {});",
        !queue.is_empty(),
        observer.is_some()
    );
    let seconds = exclusive.map_or("0", |(_, seconds)| seconds);
    sql += &format!(
        "INSERT INTO lease VALUES ('{name}', {alone}, clock_timestamp() + '{seconds} s'::interval);"
    );
    for sharer in holders.split(' ').filter(|_| shared != 0) {
        let (who, seconds) = sharer.split_once(':').unwrap();
        let (who, mode) = who.split_once('/').unwrap_or((who, "-1"));
        sql += &format!(
            "INSERT INTO sharer VALUES ('{name}', '{}', {mode}, 1600, now(), 'info',
             clock_timestamp() + '{seconds} s'::interval);",
            owner(who)
        );
    }
    for waiter in queue.split(' ').filter(|waiter| !waiter.is_empty()) {
        let (waiter, is_dead) = waiter.strip_suffix('!').map_or((waiter, false), |rest| (rest, true));
        let (waiter, polls) = waiter.strip_suffix('~').map_or((waiter, false), |rest| (rest, true));
        let (who, mode) = waiter.split_once('.').unwrap_or((waiter, "0"));
        let listens = if polls {
            "NULL, NULL, NULL".to_owned()
        } else {
            format!("'{inbox}', {}, '{}'", if is_dead { 1 } else { listener }, key(who))
        };
        sql += &format!(
            "INSERT INTO waiter (name, owner, mode, grace, inbox, listener, key, info, since, renewed)
             VALUES ('{name}', '{}', {}, 100000, {listens}, 'info', now(), clock_timestamp() - '{} s'::interval);",
            owner(who),
            mode.replace('r', "-1"),
            if is_dead { 6 } else { 0 }
        );
    }
    if let Some(listener) = observer {
        sql += &format!("INSERT INTO observer VALUES ('{name}', '{inbox}', '{OBSERVER}', {listener});");
    }
    client.batch_execute(&sql).await.unwrap();
}

/// Reads the state of a name.
pub(super) async fn read(client: &Client, name: &str, listener: i32) -> String {
    let rows = |sql: &'static str| async move { client.query(sql, &[&name]).await.unwrap() };
    let Some(lock) =
        rows("SELECT owner::text, shared::int, queued, observed FROM lock WHERE name = $1").await.pop()
    else {
        return "none".to_owned();
    };
    // Rounded up to tens, as the test takes some time.
    let left = |row: &Row| row.get::<_, i32>("tens").max(0) * 10;
    let sharers = rows(
        "SELECT owner::text, mode, ceil(extract(epoch FROM expires_at - clock_timestamp()) / 10)::int AS tens
         FROM sharer WHERE name = $1 ORDER BY token, owner",
    )
    .await;
    let mut text = match (lock.get::<_, Option<String>>("owner"), lock.get::<_, i32>("shared")) {
        (Some(owner), 0) => {
            let lease = rows(
                "SELECT owner::text, ceil(extract(epoch FROM expires_at - clock_timestamp()) / 10)::int AS tens
                 FROM lease WHERE name = $1",
            )
            .await;
            assert_eq!(lease[0].get::<_, Option<String>>("owner").as_ref(), Some(&owner));
            format!("{}:{}", who(&owner), left(&lease[0]))
        }
        (None, 0) => "free".to_owned(),
        (None, -1) => "r".to_owned(),
        (None, 1) => "p".to_owned(),
        other => panic!("{other:?}"),
    };
    assert!(sharers.is_empty() || text == "r" || text == "p", "{text}");
    for sharer in &sharers {
        let permits =
            if text.starts_with('p') { format!("/{}", sharer.get::<_, i32>("mode")) } else { String::new() };
        text += &format!(" {}{permits}:{}", who(sharer.get("owner")), left(sharer));
    }
    let waiters = rows(
        "SELECT owner::text, mode, inbox, listener, renewed < clock_timestamp() - interval '5 s' AS is_late
         FROM waiter WHERE name = $1 ORDER BY seq",
    )
    .await;
    assert!(waiters.is_empty() || lock.get("queued"), "{name} is not marked as queued");
    for (at, waiter) in waiters.iter().enumerate() {
        let mode = match waiter.get::<_, i32>("mode") {
            0 => String::new(),
            -1 => ".r".to_owned(),
            permits => format!(".{permits}"),
        };
        let polls = waiter.get::<_, Option<String>>("inbox").is_none();
        let is_dead = if polls {
            waiter.get("is_late")
        } else {
            waiter.get::<_, Option<i32>>("listener") != Some(listener)
        };
        let marks =
            [("~", polls), ("!", is_dead)].map(|(mark, is_set)| if is_set { mark } else { "" }).concat();
        text += &format!(" {}{}{mode}{marks}", if at == 0 { "| " } else { "" }, who(waiter.get("owner")));
    }
    let observers = rows("SELECT inbox FROM observer WHERE name = $1").await;
    assert!(observers.is_empty() || lock.get("observed"), "{name} is not marked as observed");
    text + if observers.is_empty() { "" } else { " *" }
}
