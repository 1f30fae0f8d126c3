//! What the pages show and name is there: code, tests, files, links.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The programs and packages whose tests a page names as `program::module::test`, and where their modules are.
const PROGRAMS: [(&str, &str); 13] = [
    ("cli", "crates/lock-cli/tests/it"),
    ("conformance", "crates/lock-testkit/src/conformance"),
    ("facade", "tests/it"),
    ("flock", "crates/lock-flock/tests/conformance"),
    ("kv", "crates/lock-kv/tests/it"),
    ("layers", "crates/lock-layers/tests/it"),
    ("lock_zk", "crates/lock-zk/src"),
    ("migrate", "crates/lock-migrate/tests/it"),
    ("postgres", "crates/lock-postgres/tests/it"),
    ("redis", "crates/lock-redis/tests/it"),
    ("redis_link", "crates/redis-link/src"),
    ("redlock", "crates/lock-redlock/tests/it"),
    ("zk", "crates/lock-zk/tests/it"),
];

/// Pages that show code, and the folders and files that have it.
const SHOWN: [(&str, &[&str]); 2] = [
    ("docs/NEW-BACKEND.md", &["crates/lock-flock/src", "crates/lock-flock/tests/conformance"]),
    ("docs/FENCING.md", &["tests/it/fencing", "benches/tests/it/sqlx.rs"]),
];

#[test]
fn every_piece_of_code_on_a_page_runs_somewhere() {
    for (page, places) in SHOWN {
        let mut files = Vec::new();
        places.iter().for_each(|place| walk(&root().join(place), &mut files));
        let code: String = files.iter().map(|file| read(file)).collect();
        let text = read(page);
        // Between the fences: prose, a block, prose, a block, ...
        let blocks = text.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
        let pieces: Vec<_> = blocks.filter(|(language, _)| *language != "text").collect();
        assert!(pieces.len() > 5, "{page} has code");
        for (_, piece) in pieces {
            assert!(code.contains(piece), "what {page} shows is in none of {places:?}:\n{piece}");
        }
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
    let [bullet, row] = &statements("Words.\n\n* One, as\n  `redis::bugs::no_test`.\n| a | `x::y` |\n")[..]
    else {
        panic!("a bullet and a row");
    };
    assert_eq!(tests_in(bullet), ["redis::bugs::no_test"]);
    assert!(!exists("redis::bugs::no_test") && exists("facade::pages::a_test_that_does_not_exist_is_found"));
    assert!(tests_in(row).is_empty());
}

/// The names that are only examples here.
const HERE: &str = "tests/it/pages.rs";
/// What other projects have, and files that the harness writes.
const ELSEWHERE: [&str; 25] = [
    "Depot",
    "OneshotReceiver",
    "WatchManager",
    "handle_connect_response",
    "idle_in_transaction_session_timeout",
    "is_healthy",
    "last_zxid",
    "lease_state",
    "lost_token",
    "new_check_writer",
    "pending_operations",
    "pop_request",
    "push_request",
    "push_session",
    "report.md",
    "reset_all",
    "results.json",
    "send_authes",
    "serve_connecting",
    "session/watch.rs",
    "succeed_watch",
    "transaction_timeout",
    "validity_time",
    "wait_until_inactive",
    "watching_paths",
];

#[test]
fn whatever_a_page_names_exists() {
    let tree = Tree::read();
    let mut missing = Vec::new();
    for page in &tree.pages {
        let text = prose(&read(page));
        let words = text.split('`').skip(1).step_by(2).filter(|word| !ELSEWHERE.contains(word));
        let unknown = words.filter(|word| !tree.has_word(word)).map(str::to_owned);
        let broken = links(&text).filter(|link| !tree.has_link(page, link)).map(str::to_owned);
        missing.extend(unknown.chain(broken).map(|what| format!("{page}: {what}")));
    }
    assert!(missing.is_empty(), "the pages name what does not exist:\n{}", missing.join("\n"));
}

#[test]
fn what_does_not_exist_is_found() {
    let tree = Tree::read();
    let words = ["no_such_test", "Guard::no_such_method", "crates/lock-none/", "none.rs", "?no_option=3s"];
    assert_eq!(words.map(|word| tree.has_word(word)), [false; 5]);
    let words =
        ["what_does_not_exist", "Guard::release", "crates/lock-core/", "guard.rs", "polylock run", "500 ms"];
    assert_eq!(words.map(|word| tree.has_word(word)), [false, true, true, true, true, true]);
    let links = ["SAFETY.md", "NONE.md", "SAFETY.md#none", "https://none", "#bugs"];
    assert_eq!(links.map(|link| tree.has_link("docs/BUGS.md", link)), [true, false, false, true, false]);
}

/// The files of the project.
struct Tree {
    files: Vec<String>,
    pages: Vec<String>,
    /// The identifiers in the files that are no pages.
    identifiers: HashSet<String>,
}

impl Tree {
    fn read() -> Self {
        let mut files = Vec::new();
        walk(&root(), &mut files);
        let is_page = |file: &String| file.ends_with(".md");
        let pages = files.iter().filter(|file| is_page(file)).cloned().collect();
        let mut identifiers = HashSet::new();
        for file in files.iter().filter(|file| !is_page(file) && *file != HERE) {
            let text = fs::read(root().join(file)).unwrap();
            let text = String::from_utf8_lossy(&text);
            let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            identifiers.extend(words.map(str::to_owned));
        }
        Self { files, pages, identifiers }
    }

    /// Whether what is quoted on a page exists, if it looks like a name or a file of ours.
    fn has_word(&self, word: &str) -> bool {
        let is_name = |part: &str| {
            !part.is_empty() && part.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        };
        let path = word.split('(').next().unwrap_or_default();
        let is_path = path.contains("::") && path.split("::").all(is_name);
        let is_snake = is_name(word) && word.trim_matches('_').contains('_') && word.to_lowercase() == word;
        if is_path || is_snake {
            let is_elsewhere = path.split("::").any(|part| ELSEWHERE.contains(&part));
            return is_elsewhere || path.split("::").all(|part| self.has_name(part));
        }
        let option = word.trim_start_matches(['?', '&']).split_once('=').map(|(option, _)| option);
        if let Some(option) = option.filter(|option| is_name(option) && option.to_lowercase() == **option) {
            return self.has_name(option);
        }
        let is_file =
            !word.contains([' ', '*', '{', '<', ':']) && (is_in_a_folder(word) || has_known_ending(word));
        !is_file || self.has_file(word)
    }

    /// As it is written, or as the variant of an enum that is printed in another case.
    fn has_name(&self, name: &str) -> bool {
        let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
        let as_variant = || name.split('_').filter(|word| !word.is_empty()).map(capital).collect::<String>();
        self.identifiers.contains(name) || self.identifiers.contains(&as_variant())
    }

    fn has_file(&self, word: &str) -> bool {
        let word = word.trim_start_matches("./").trim_end_matches('/');
        self.files.iter().any(|file| {
            let file = format!("/{file}/");
            file.contains(&format!("/{word}/"))
        })
    }

    fn has_link(&self, page: &str, link: &str) -> bool {
        if link.contains("://") || link.starts_with("mailto:") {
            return true;
        }
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let folder = Path::new(page).parent().unwrap();
        let target = if path.is_empty() { root().join(page) } else { root().join(folder).join(path) };
        target.exists()
            && (anchor.is_empty() || anchors(&fs::read_to_string(target).unwrap()).contains(anchor))
    }
}

/// All files in this place, as paths from the root, without what is built.
fn walk(place: &Path, files: &mut Vec<String>) {
    if place.is_file() {
        return files.push(place.strip_prefix(root()).unwrap().to_string_lossy().into_owned());
    }
    for entry in fs::read_dir(place).unwrap() {
        let path = entry.unwrap().path();
        if !["target", ".git", "node_modules"].iter().any(|name| path.ends_with(name)) {
            walk(&path, files);
        }
    }
}

/// A page without its blocks of code.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// The anchors of the headings of a page.
fn anchors(page: &str) -> HashSet<String> {
    let headings =
        page.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |heading: &str| -> String {
        let kept = heading.to_lowercase();
        let kept = kept.chars().filter(|letter| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter));
        kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    };
    headings.map(kept).collect()
}

fn is_in_a_folder(word: &str) -> bool {
    ["crates/", "docs/", "tests/", "benches/", "xtask/", "examples/", ".ci/"]
        .iter()
        .any(|top| word.starts_with(top))
}

fn has_known_ending(word: &str) -> bool {
    ["rs", "md", "lua", "toml", "yml", "json", "svg", "txt"]
        .iter()
        .any(|ending| word.rsplit_once('.').is_some_and(|(name, end)| end == *ending && !name.is_empty()))
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
    let Some((program, (module, name))) =
        test.split_once("::").and_then(|(program, rest)| Some((program, rest.rsplit_once("::")?)))
    else {
        return false;
    };
    let folder = PROGRAMS.iter().find(|(known, _)| *known == program).map(|(_, folder)| folder);
    let path = folder.map(|folder| root().join(folder).join(format!("{}.rs", module.replace("::", "/"))));
    let code = path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    code.contains(&format!("fn {name}("))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
