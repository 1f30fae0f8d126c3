//! Counterexamples in plain words, and the page that has them.

use std::fmt::Debug;
use std::fs::{read_to_string, write};
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use stateright::{Checker, HasDiscoveries, Model};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/SAFETY.md");

/// A model whose counterexample can be written as a story. Its states are searched in one order only; a story has to follow
/// each master and each client.
pub(crate) trait Tale:
    Model<
        State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
        Action: Copy + Debug + PartialEq + Send + Sync + 'static,
    > + Clone
    + Debug
    + Send
    + Sync
    + 'static
{
    /// The successor of a state, with masters and clients where they were.
    fn step(&self, last: &Self::State, action: Self::Action) -> Self::State;
    /// The one that is searched of the states that differ only in the order of masters and clients.
    fn representative(state: &Self::State) -> Self::State;
    /// What an action was.
    fn tell(&self, last: &Self::State, action: Self::Action, next: &Self::State) -> Line;
}

/// One line of a story. Those that differ only in the master become one.
#[derive(Debug)]
pub(crate) struct Line {
    text: String,
    masters: Vec<usize>,
    /// What is to be known of the masters.
    remark: &'static str,
}

impl Line {
    pub(crate) fn new(text: String) -> Self {
        Self { text, masters: Vec::new(), remark: "" }
    }

    /// A text that ends where the master is named.
    pub(crate) fn at(master: usize, text: String) -> Self {
        Self { text, masters: vec![master], remark: "" }
    }

    pub(crate) fn with(self, remark: &'static str) -> Self {
        Self { remark, ..self }
    }
}

/// What a client is called.
pub(crate) fn name(client: usize) -> char {
    ['A', 'B', 'C'][client]
}

/// The shortest way to break a property, as a numbered list.
pub(crate) fn counterexample<M: Tale>(model: M, property: &'static str) -> String {
    // One thread, so that it is the same one every time.
    let search =
        model.clone().checker().threads(1).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let path = search.discovery(property).unwrap_or_else(|| panic!("nothing breaks it: {property}"));
    let states: Vec<M::State> = path.into_states();
    let (mut state, mut lines) = (model.init_states().remove(0), Vec::<Line>::new());
    for searched in &states[1..] {
        let mut actions = Vec::new();
        model.actions(&state, &mut actions);
        let leads_there = |action: &M::Action| M::representative(&model.step(&state, *action)) == *searched;
        let action = actions.into_iter().find(leads_there).expect("a story follows its path");
        let next = model.step(&state, action);
        let line = model.tell(&state, action, &next);
        state = next;
        match lines.last_mut() {
            Some(last) if (&last.text, last.remark) == (&line.text, line.remark) => {
                last.masters.extend(line.masters);
            }
            _ => lines.push(line),
        }
    }
    let lines = lines.iter().enumerate();
    lines.map(|(at, line)| format!("{}. {}.\n", at + 1, shown(line))).collect()
}

/// Whether the page tells this story between the marks of its name; with `UPDATE=1` it does from now on.
pub(crate) fn check_page(story: &str, text: &str) {
    // Those of several tests are on one page.
    static PAGE_IN_USE: Mutex<()> = Mutex::new(());
    let _in_use = PAGE_IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    let (begin, end) = (format!("<!-- {story}: told by tests/models.rs -->\n\n"), "\n<!-- end -->");
    let page = read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("no mark for {story} in {PAGE}"));
    let (old, after) = rest.split_once(end).unwrap_or_else(|| panic!("no end of {story} in {PAGE}"));
    if std::env::var_os("UPDATE").is_some() {
        write(PAGE, [before, &begin, text, end, after].concat()).unwrap();
    } else {
        assert!(old == text, "docs/SAFETY.md tells another story: set UPDATE=1 if it is this one\n\n{text}");
    }
}

fn shown(line: &Line) -> String {
    let numbers: Vec<_> = line.masters.iter().map(|master| (master + 1).to_string()).collect();
    let masters = match numbers.as_slice() {
        [] => String::new(),
        [one] => format!(" master {one}"),
        [most @ .., last] => format!(" masters {} and {last}", most.join(", ")),
    };
    let (first, rest) = line.text.split_at(1);
    format!("{}{rest}{masters}{}", first.to_uppercase(), line.remark)
}
