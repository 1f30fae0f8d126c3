//! The page that walks through the crate lock-flock shows its code, not an earlier one.

use std::fs;
use std::path::Path;

#[test]
fn every_piece_of_code_on_the_page_is_in_the_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/NEW-BACKEND.md")).unwrap();
    let mut code = String::new();
    for folder in ["src", "tests/conformance"] {
        for entry in fs::read_dir(root.join("crates/lock-flock").join(folder)).unwrap() {
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
