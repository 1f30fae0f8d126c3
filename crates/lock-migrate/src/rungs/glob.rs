//! Patterns of lock names: `*` stands for any text, also an empty one, and every other character for itself.

/// Whether a name matches a pattern.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    // A pattern without `*` is one part, which is the first and the last.
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_text() {
        for (pattern, yes, no) in [
            ("*", &["", "a", "a/b"][..], &[][..]),
            ("a", &["a"], &["", "aa", "b"]),
            ("reports/*", &["reports/", "reports/1"], &["reports", "x/reports/1"]),
            ("*/42", &["orders/42", "/42"], &["orders/421", "42"]),
            ("a*b*c", &["abc", "axbxc", "abbc"], &["ac", "abcx", "xabc", "acb"]),
            ("a*a", &["aa", "aba"], &["a"]),
            ("**", &["", "x"], &[]),
        ] {
            for name in yes {
                assert!(matches(pattern, name), "{pattern} {name}");
            }
            for name in no {
                assert!(!matches(pattern, name), "{pattern} {name}");
            }
        }
    }
}
