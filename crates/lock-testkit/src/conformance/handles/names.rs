//! Any text is a valid name.

use std::collections::BTreeSet;

use lock_core::{ErrorKind, LockName, LockOptions};

use crate::conformance::Harness;
use crate::conformance::helpers::{client, give_back, must_be_busy, nothing_left, take};

pub(crate) async fn odd_names_are_distinct_locks(harness: &dyn Harness) {
    // Some of these names would meet those of other cases.
    let store = harness.private().await;
    let (one, two) = (client(&*store).await, client(&*store).await);
    let names = odd_names(harness.longest_name());
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "the names are distinct");
    let mut guards = Vec::new();
    for name in &names {
        // The same client would wait for itself where two names meet.
        let guard = two.mutex(name).try_acquire().await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} meets another name")));
    }
    for name in &names {
        must_be_busy(&one, name).await;
        let state = one.inspect(name).await.unwrap_or_else(|error| panic!("inspect {name:?}: {error}"));
        assert!(state.is_held(), "{name:?} is held, and inspect says {state:?}");
    }
    for guard in guards {
        give_back(guard).await;
    }
    nothing_left(&*store, "").await;
    for name in &names {
        give_back(take(&one, name).await).await;
    }
    nothing_left(&*store, "").await;
}

pub(crate) async fn bad_names_are_refused(harness: &dyn Harness) {
    let locks = client(harness).await;
    for name in [String::new(), "x".repeat(LockName::MAX_BYTES + 1), "ö".repeat(LockName::MAX_BYTES)] {
        let errors = [
            locks.mutex(&name).acquire().await.map(drop).unwrap_err(),
            locks.mutex(&name).try_acquire().await.map(drop).unwrap_err(),
            locks.mutex_with(&name, LockOptions::new()).map(drop).unwrap_err(),
            locks.inspect(&name).await.map(drop).unwrap_err(),
            locks.break_lock(&name).await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
            assert!(!error.is_retryable());
            assert!(error.to_string().len() < 300, "the text repeats the whole name: {error}");
        }
    }
}

fn odd_names(longest: usize) -> Vec<String> {
    let odd = [
        // Paths, and what a path would make of them.
        "/",
        "//",
        ".",
        "..",
        "...",
        "a",
        "a/",
        "/a",
        "//a",
        "a//b",
        "a/b",
        "a/./b",
        "a/../b",
        "b",
        "../a",
        "./a",
        "a/..",
        // Case, and escapes that an encoding may use.
        "A",
        "a%2Fb",
        "a%2fb",
        "%",
        "%%",
        "%00",
        "%2E",
        "%2e",
        "a_b",
        "a__b",
        "a-b",
        "a+b",
        "a b",
        "\\",
        "a\\b",
        "~",
        "=",
        // Space and controls.
        "\0",
        "\0\0",
        "a\0",
        "\0a",
        "a\0b",
        " ",
        "  ",
        " a",
        "a ",
        "\t",
        "\n",
        "\r\n",
        "a\n",
        "\u{1}",
        "\u{1f}",
        "\u{7f}",
        "\u{80}",
        "\u{9f}",
        // Beyond ASCII; the same letter in two forms; what ZooKeeper takes no paths with.
        "🔒",
        "🔒🔒",
        "🔑",
        "\u{e9}",
        "e\u{301}",
        "ß",
        "ss",
        "ÄÖÜ",
        "äöü",
        "İ",
        "ı",
        "\u{200d}",
        "\u{d7ff}",
        "\u{e000}",
        "\u{f8ff}",
        "\u{fff0}",
        "\u{ffff}",
        "\u{10ffff}",
        "\u{feff}",
        // Names that backends use themselves.
        "a-lock-0000000000",
        "_c_00000000-0000-0000-0000-000000000000-lock-0000000001",
        "lock-0000000002",
        "0000000003",
        "lock:a",
        "polylock:fence:{lock:a}",
        "polylock:tokens:{lock:a}",
        "polylock:free:{lock:a}",
        "{a}",
        "{a}b",
        "a{b}",
        "{}",
        "{",
        "}",
        "{}a",
        "*",
        "?",
        "[a]",
        "a*",
        "zookeeper",
        "/zookeeper",
        "quota",
        "null",
        "nil",
    ];
    let many = longest.min(1000);
    let long = [
        "x".repeat(many),
        format!("{}y", "x".repeat(many - 1)),
        "X".repeat(many),
        "/".repeat(many),
        ".".repeat(many),
        "\0".repeat(many),
        "🔒".repeat(many / 4),
        "ö".repeat(longest / 2),
        "a/".repeat(longest / 2),
    ];
    odd.map(str::to_owned).into_iter().chain(long).collect()
}
