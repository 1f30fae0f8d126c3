//! Pages that show code show that of the crates, and pages that name tests name those that exist.

use std::fs;
use std::path::{Path, PathBuf};

/// The programs and packages whose tests a page names as `program::module::test`, and where their modules are.
const PROGRAMS: [(&str, &str); 11] = [
    ("cli", "crates/lock-cli/tests/it"),
    ("conformance", "crates/lock-testkit/src/conformance"),
    ("facade", "tests/it"),
    ("flock", "crates/lock-flock/tests/conformance"),
    ("layers", "crates/lock-layers/tests/it"),
    ("lock_zk", "crates/lock-zk/src"),
    ("migrate", "crates/lock-migrate/tests/it"),
    ("redis", "crates/lock-redis/tests/it"),
    ("redis_link", "crates/redis-link/src"),
    ("redlock", "crates/lock-redlock/tests/it"),
    ("zk", "crates/lock-zk/tests/it"),
];

#[test]
fn every_piece_of_code_on_the_page_is_in_the_crate() {
    let page = read("docs/NEW-BACKEND.md");
    let mut code = String::new();
    for folder in ["src", "tests/conformance"] {
        for entry in fs::read_dir(root().join("crates/lock-flock").join(folder)).unwrap() {
            code += &fs::read_to_string(entry.unwrap().path()).unwrap();
        }
    }
    let pieces: Vec<_> =
        page.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(pieces.len() > 5, "the page has code");
    for piece in pieces {
        assert!(code.contains(piece), "it is not in the crate:\n{piece}");
    }
}

#[test]
fn every_statement_for_operators_has_a_test_that_exists() {
    let page = read("docs/OPERATIONS.md");
    let statements = statements(&page);
    assert!(statements.len() > 30, "the page has {} statements", statements.len());
    for statement in statements {
        let named = tests_in(&statement);
        assert!(!named.is_empty(), "it names no test:\n{statement}");
        for test in named {
            assert!(exists(test), "there is no test {test}:\n{statement}");
        }
    }
}

#[test]
fn a_test_that_does_not_exist_is_found() {
    let [bullet, row] = &statements("Words.\n\n* One, as\n  `redis::queue::no_test`.\n| a | `x::y` |\n")[..]
    else {
        panic!("a bullet and a row");
    };
    assert_eq!(tests_in(bullet), ["redis::queue::no_test"]);
    assert!(!exists("redis::queue::no_test") && exists("facade::pages::a_test_that_does_not_exist_is_found"));
    assert!(tests_in(row).is_empty());
}

/// The bullets and the rows of tables, without the heads of tables.
fn statements(page: &str) -> Vec<String> {
    let mut statements = Vec::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let is_head = lines.peek().is_some_and(|next| next.starts_with("|--"));
        if line.starts_with('|') && !line.starts_with("|--") && !is_head {
            statements.push(line.to_owned());
        } else if line.starts_with("* ") {
            let mut bullet = line.to_owned();
            while let Some(next) = lines.next_if(|next| next.starts_with("  ")) {
                bullet += next;
            }
            statements.push(bullet);
        }
    }
    statements
}

/// What is named as a test is in these words.
fn tests_in(statement: &str) -> Vec<&str> {
    let quoted = statement.split('`').skip(1).step_by(2);
    quoted.filter(|word| PROGRAMS.iter().any(|(program, _)| is_of(word, program))).collect()
}

fn is_of(word: &str, program: &str) -> bool {
    word.strip_prefix(program).is_some_and(|rest| rest.starts_with("::"))
}

fn exists(test: &str) -> bool {
    let [program, module, name] = test.split("::").collect::<Vec<_>>()[..] else { return false };
    let folder = PROGRAMS.iter().find(|(known, _)| *known == program).map(|(_, folder)| folder);
    let path = folder.map(|folder| root().join(folder).join(format!("{module}.rs")));
    let code = path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    code.contains(&format!("fn {name}("))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
