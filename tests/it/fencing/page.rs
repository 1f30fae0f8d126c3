//! The page shows code that runs here.

/// Each block of code in `docs/FENCING.md` is a part of one of these files.
#[test]
fn the_page_shows_what_runs_here() {
    let sources = [
        include_str!("../../../benches/tests/it/sqlx.rs"),
        include_str!("postgres.rs"),
        include_str!("postgres.py"),
        include_str!("redis.rs"),
        include_str!("s3.py"),
        include_str!("write.lua"),
        include_str!("zookeeper.rs"),
    ];
    let blocks = blocks(include_str!("../../../docs/FENCING.md"));
    for language in ["lua", "python", "rust", "sql"] {
        assert!(blocks.iter().any(|block| block.language == language), "the page has no {language}");
    }
    for block in blocks.iter().filter(|block| block.language != "text") {
        assert!(
            sources.iter().any(|source| source.contains(block.code)),
            "no test runs this:\n{}",
            block.code
        );
    }
}

struct Block<'a> {
    language: &'a str,
    code: &'a str,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    // Between the fences: prose, a block, prose, a block, ...
    let blocks = page.split("```").skip(1).step_by(2);
    blocks
        .filter_map(|block| block.split_once('\n'))
        .map(|(language, code)| Block { language, code })
        .collect()
}
