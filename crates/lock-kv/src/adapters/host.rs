//! The address of a server.

use std::fmt;

use lock_core::Result;

use crate::adapters::options::invalid;

/// A host, and the port of its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// Without the brackets of an IPv6 address.
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl Host {
    /// Parses `host[:port][,host[:port]...]`.
    pub(crate) fn list(
        store: &'static str,
        text: &str,
        default_port: u16,
        form: &'static str,
    ) -> Result<Vec<Self>> {
        let hosts = text.split(',').map(|text| Self::parse(text, default_port)).collect::<Option<_>>();
        // What is in the place of one may be a password.
        hosts.ok_or_else(|| invalid(store, "the URL does not name the servers", form))
    }

    fn parse(text: &str, default_port: u16) -> Option<Self> {
        let (name, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((name, "")) => (name, default_port),
            Some((name, port)) => (name, port.strip_prefix(':')?.parse().ok()?),
            None => match text.split_once(':') {
                Some((name, port)) => (name, port.parse().ok()?),
                None => (text, default_port),
            },
        };
        let is_name = !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte));
        is_name.then(|| Self { name: name.to_owned(), port })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_a_host_and_a_port() {
        for (text, name, port) in
            [("h", "h", 2_379), ("h:7", "h", 7), ("[::1]:7", "::1", 7), ("[::1]", "::1", 2_379)]
        {
            assert_eq!(Host::parse(text, 2_379), Some(Host { name: name.to_owned(), port }), "{text}");
        }
        for text in ["", ":7", "h:", "h:x", "h:70000", "h/a", "h h", "::1", "[[h", "[h", "[::1]7"] {
            assert_eq!(Host::parse(text, 2_379), None, "{text}");
        }
    }
}
