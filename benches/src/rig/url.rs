//! Takes the URL of a backend apart as far as the harness needs it.

use std::net::SocketAddr;

use crate::data::{Failure, Outcome};

/// Adds an option, unless the URL has it already.
pub(crate) fn with_option(url: &str, name: &str, value: &str) -> String {
    if option(url, name).is_some() {
        return url.to_owned();
    }
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}{name}={value}")
}

/// The value of an option, without decoding.
pub(crate) fn option<'a>(url: &'a str, name: &str) -> Option<&'a str> {
    let (_, query) = url.split_once('?')?;
    query.split('&').find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
}

/// The URL for other libraries, which do not know our options.
pub(crate) fn without_options(url: &str) -> &str {
    url.split_once('?').map_or(url, |(url, _)| url)
}

/// The hosts, with their ports if given.
pub(crate) fn hosts(url: &str) -> Vec<&str> {
    parts(url).1.split(',').filter(|host| !host.is_empty()).collect()
}

pub(crate) fn first_host(url: &str) -> &str {
    hosts(url).first().copied().unwrap_or_default()
}

/// A single-server URL for each host, for libraries that take the masters one by one.
pub(crate) fn each(url: &str) -> Vec<String> {
    let (before, hosts, after) = parts(without_options(url));
    let before = before.replacen("redlock", "redis", 1);
    hosts.split(',').filter(|host| !host.is_empty()).map(|host| format!("{before}{host}{after}")).collect()
}

pub(crate) fn with_hosts(url: &str, hosts: &[SocketAddr]) -> String {
    let (before, _, after) = parts(url);
    let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    format!("{before}{}{after}", hosts.join(","))
}

/// Resolves a host; the port defaults to that of the backend.
pub(crate) async fn resolve(host: &str, scheme: &str) -> Outcome<SocketAddr> {
    let default = match scheme {
        "zk" => 2181,
        "postgres" => 5432,
        "etcd" => 2379,
        "mysql" => 3306,
        _ => 6379,
    };
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let host = if has_port { host.to_owned() } else { format!("{host}:{default}") };
    let mut found = tokio::net::lookup_host(&host)
        .await
        .map_err(|error| Failure::new(format!("cannot resolve {host}: {error}")))?;
    found.next().ok_or_else(|| Failure::new(format!("{host} has no address")))
}

/// The parts before the hosts, the hosts, and after them.
fn parts(url: &str) -> (&str, &str, &str) {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?']).map_or(url.len(), |at| start + at);
    let start = url[start..end].rfind('@').map_or(start, |at| start + at + 1);
    (&url[..start], &url[start..end], &url[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_and_replaced() {
        let url = "zk://me:p@a:1,[::1]:2,c/app?session_timeout=4s";
        assert_eq!(hosts(url), ["a:1", "[::1]:2", "c"]);
        let proxies: Vec<SocketAddr> = vec!["127.0.0.1:7".parse().unwrap(), "127.0.0.1:8".parse().unwrap()];
        assert_eq!(with_hosts(url, &proxies), "zk://me:p@127.0.0.1:7,127.0.0.1:8/app?session_timeout=4s");
        assert_eq!(with_hosts("redis://h", &proxies[..1]), "redis://127.0.0.1:7");
    }

    #[test]
    fn options_are_added_once() {
        assert_eq!(with_option("redis://h", "ttl", "1s"), "redis://h?ttl=1s");
        assert_eq!(with_option("redis://h?wait=poll", "ttl", "1s"), "redis://h?wait=poll&ttl=1s");
        assert_eq!(with_option("redis://h?x=1&ttl=9s", "ttl", "1s"), "redis://h?x=1&ttl=9s");
        assert_eq!(without_options("redis://me:p@h/1?ttl=1s"), "redis://me:p@h/1");
        assert_eq!(without_options("redis://h"), "redis://h");
    }

    #[tokio::test]
    async fn ports_have_defaults() {
        for (host, scheme, address) in [
            ("127.0.0.1", "redis", "127.0.0.1:6379"),
            ("127.0.0.1", "zk", "127.0.0.1:2181"),
            ("127.0.0.1", "postgres", "127.0.0.1:5432"),
            ("[::1]:7", "redlock", "[::1]:7"),
            ("[::1]", "redlock", "[::1]:6379"),
        ] {
            assert_eq!(resolve(host, scheme).await.unwrap(), address.parse().unwrap());
        }
    }
}
