//! The page that shows the counterexamples.

use std::fs::{read_to_string, write};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/SAFETY.md");

/// Panics unless the page shows these steps under this name.
pub(crate) fn assert_page(name: &str, steps: &[String]) {
    let story: String = (1..).zip(steps).map(|(number, step)| format!("{number}. {step}\n")).collect();
    let page = read_to_string(PAGE).unwrap();
    let (begin, end) = (format!("<!-- {name}: written by a test -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("{PAGE} has no place for {name}"));
    let (written, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{PAGE} has no end of {name}"));
    if written.trim() == story.trim() {
        return;
    }
    assert!(std::env::var_os("UPDATE").is_some(), "{PAGE} tells of {name}:\n{written}\nbut it is:\n{story}");
    write(PAGE, format!("{before}{begin}\n{story}\n{end}{after}")).unwrap();
}
