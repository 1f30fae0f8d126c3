//! Models that are searched exhaustively, and their counterexamples in plain words, on the page that shows them.

use std::collections::HashSet;
use std::fmt::Debug;
use std::fs::{read_to_string, write};
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use foldhash::fast::FixedState;
use stateright::{Checker, Model};

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

/// A model whose counterexample can be written as a story. Its states are searched in one order only; a story has to follow
/// each master and each client.
pub trait Tale:
    Model<
        State: Clone + Debug + Hash + Eq + Send + Sync + 'static,
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
pub struct Line {
    text: String,
    masters: Vec<usize>,
    /// What is to be known of the masters.
    remark: &'static str,
}

impl Line {
    /// A whole sentence, without its full stop.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self { text, masters: Vec::new(), remark: "" }
    }

    /// A text that ends where the master is named.
    #[must_use]
    pub fn at(master: usize, text: String) -> Self {
        Self { text, masters: vec![master], remark: "" }
    }

    /// The line with a remark at its end.
    #[must_use]
    pub fn with(self, remark: &'static str) -> Self {
        Self { remark, ..self }
    }
}

/// What a client is called.
///
/// # Panics
///
/// For the fourth client.
#[must_use]
pub fn name(client: usize) -> char {
    ['A', 'B', 'C'][client]
}

/// All orders of two or three clients.
pub fn orders<const CLIENTS: usize>() -> impl Iterator<Item = [usize; CLIENTS]> {
    const ALL: [[usize; 3]; 6] = [[0, 1, 2], [1, 0, 2], [0, 2, 1], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    // The first two leave the third where it is.
    let count = if CLIENTS == 2 { 2 } else { ALL.len() };
    ALL[..count].iter().map(|order| std::array::from_fn(|place| order[place]))
}

/// Searches all states: what must always hold does, and what must be possible is.
///
/// # Panics
///
/// When a property does not hold.
pub fn assert_holds<M: Tale>(model: M) {
    let (start, what) = (Instant::now(), format!("{model:?}"));
    let search = model.checker().threads(2).spawn_bfs().join();
    assert!(search.is_done());
    search.assert_properties();
    println!("{what}: {} states in {:?}", search.unique_state_count(), start.elapsed());
}

/// The shortest way to break a property, as a numbered list.
///
/// The search is our own: that of the checker may return a longer way.
///
/// # Panics
///
/// When nothing breaks it.
pub fn counterexample<M: Tale>(model: M, property: &'static str) -> String {
    let path = shortest_path(&model, property).unwrap_or_else(|| panic!("nothing breaks it: {property}"));
    let (mut state, mut lines) = (model.init_states().remove(0), Vec::<Line>::new());
    for searched in &path[1..] {
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

/// The states of a shortest way that breaks a property.
fn shortest_path<M: Tale>(model: &M, property: &'static str) -> Option<Vec<M::State>> {
    let holds = model.property(property).condition;
    let mut seen = HashSet::with_hasher(FixedState::default());
    // Each state with the place of the one before it.
    let mut found: Vec<(M::State, usize)> = model.init_states().into_iter().map(|state| (state, 0)).collect();
    let (mut at, mut actions) = (0, Vec::new());
    while let Some((state, _)) = found.get(at) {
        if !holds(model, state) {
            break;
        }
        let state = state.clone();
        model.actions(&state, &mut actions);
        for action in actions.drain(..) {
            let next = model.next_state(&state, action).filter(|next| model.within_boundary(next));
            found.extend(next.filter(|next| seen.insert(next.clone())).map(|next| (next, at)));
        }
        at += 1;
    }
    let mut path = vec![found.get(at)?.0.clone()];
    while at > 0 {
        at = found[at].1;
        path.push(found[at].0.clone());
    }
    path.reverse();
    Some(path)
}

/// Checks that a page of `docs/` tells this story between the marks of its name; with `UPDATE=1` it does from now on.
///
/// # Panics
///
/// When it tells another one, or has no marks for it.
pub fn check_page(page: &str, story: &str, text: &str) {
    // Those of several tests are on one page.
    static PAGE_IN_USE: Mutex<()> = Mutex::new(());
    let _in_use = PAGE_IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = format!("{DOCS}/{page}");
    let (begin, end) = (format!("<!-- {story}: told by tests/it/models.rs -->\n\n"), "\n<!-- end -->");
    let whole = read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let (before, rest) = whole.split_once(&begin).unwrap_or_else(|| panic!("no mark for {story} in {page}"));
    let (old, after) = rest.split_once(end).unwrap_or_else(|| panic!("no end of {story} in {page}"));
    if std::env::var_os("UPDATE").is_some() {
        write(&path, [before, &begin, text, end, after].concat())
            .unwrap_or_else(|error| panic!("{path}: {error}"));
    } else {
        assert!(old == text, "docs/{page} tells another story: set UPDATE=1 if it is this one\n\n{text}");
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
