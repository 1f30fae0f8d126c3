//! The colours of backends, as classes of the style sheet. The pictures have them from the page.

use std::collections::BTreeMap;

use crate::data::Results;

const OWN: [&str; 5] = ["memory", "redis", "redlock", "zk", "postgres"];

/// The colour of a backend, of all its subjects and loads: the same whichever others are measured.
pub(super) fn colour(results: &Results, backend: &str) -> String {
    colours(results).remove(first(backend)).unwrap_or_default()
}

/// The colours by the first word of a row's name. Peers and what else there is share three.
pub(super) fn colours(results: &Results) -> BTreeMap<&str, String> {
    let mut colours: BTreeMap<_, _> =
        OWN.iter().enumerate().map(|(at, own)| (*own, format!("b{at}"))).collect();
    for row in &results.rows {
        let next = OWN.len() + (colours.len() - OWN.len()) % 3;
        colours.entry(first(&row.backend)).or_insert_with(|| format!("b{next}"));
    }
    colours
}

fn first(backend: &str) -> &str {
    backend.split(' ').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::results::sample;

    #[test]
    fn every_subject_has_the_colour_of_its_backend() {
        let results = sample();
        assert_eq!(colour(&results, "redis"), "b1");
        assert_eq!(colour(&results, "redis 256 tasks"), "b1");
        assert!(results.rows.iter().all(|row| colour(&results, &row.backend).starts_with('b')));
    }
}
