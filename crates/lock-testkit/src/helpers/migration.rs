//! The URLs of migrations.

use std::fmt::Write;

/// The URL of a migration between the stores of two URLs, with further options such as `&rung=dual`.
///
/// ```
/// let url = lock_testkit::migration_url("shop", "redis://a?ttl=1s", "zk://b", "&rung=dual");
/// assert_eq!(url, "migrate://shop?from=redis%3A%2F%2Fa%3Fttl%3D1s&to=zk%3A%2F%2Fb&rung=dual");
/// ```
pub fn migration_url(namespace: &str, from: &str, to: &str, options: &str) -> String {
    format!("migrate://{namespace}?from={}&to={}{options}", escaped(from), escaped(to))
}

fn escaped(url: &str) -> String {
    url.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(byte.into());
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
        escaped
    })
}
