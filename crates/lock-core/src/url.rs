//! The URLs that backends are chosen by.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::{Error, ErrorKind, Result};

/// A URL of the form `scheme://[user[:password]@]hosts[/path][?option=value&...]`, where `hosts` may
/// be a list with commas.
///
/// `Debug` and `Display` never show the password.
#[derive(Clone, PartialEq, Eq)]
pub struct LockUrl {
    /// The scheme, in lower case.
    pub scheme: String,
    /// The user name, empty if there is none.
    pub user: String,
    /// The password, `None` if there is none.
    pub password: Option<String>,
    /// What stands between the credentials and the path, such as `a:2181,b:2181`.
    pub hosts: String,
    /// The path with its first slash, or empty.
    pub path: String,
    options: Vec<(String, String)>,
}

impl LockUrl {
    /// Parses a URL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`], with the form that is expected and without the text, which may
    /// hold a password.
    pub fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(malformed)?;
        if scheme.is_empty()
            || !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        {
            return Err(malformed());
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (Some(credentials), hosts),
            None => (None, authority),
        };
        let (user, password) = match credentials {
            Some(credentials) => match credentials.split_once(':') {
                Some((user, password)) => (decode(user)?, Some(decode(password)?)),
                None => (decode(credentials)?, None),
            },
            None => (String::new(), None),
        };
        let options = query.split('&').filter(|option| !option.is_empty()).map(|option| {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            Ok((decode(key)?, decode(value)?))
        });
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            user,
            password,
            hosts: hosts.to_owned(),
            path: path.to_owned(),
            options: options.collect::<Result<_>>()?,
        })
    }

    /// Hands every option to `set`, which answers `Ok(false)` for a name that it does not know.
    ///
    /// # Errors
    ///
    /// What `set` answers; [`ErrorKind::InvalidConfig`] for an unknown option, naming the `known` ones,
    /// and for one that is given twice.
    pub fn options(
        &self,
        backend: &'static str,
        known: &[&str],
        mut set: impl FnMut(&str, OptionValue<'_>) -> Result<()>,
    ) -> Result<()> {
        for (at, (key, value)) in self.options.iter().enumerate() {
            let problem = if !known.contains(&key.as_str()) {
                format!("the URL option {key:?} is not known")
            } else if self.options[..at].iter().any(|(earlier, _)| earlier == key) {
                format!("the URL option {key:?} is given twice")
            } else {
                set(key, OptionValue { backend, key, value })?;
                continue;
            };
            return Err(Error::new(ErrorKind::InvalidConfig, backend)
                .message(problem)
                .hint(format!("the options are: {}", known.join(", "))));
        }
        Ok(())
    }
}

/// The value of a URL option.
#[derive(Clone, Copy, Debug)]
pub struct OptionValue<'a> {
    backend: &'static str,
    key: &'a str,
    value: &'a str,
}

impl<'a> OptionValue<'a> {
    /// The value as text.
    #[must_use]
    pub const fn text(self) -> &'a str {
        self.value
    }

    /// The value as a time, such as `500ms` or `10s`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`].
    pub fn duration(self) -> Result<Duration> {
        humantime::parse_duration(self.value)
            .map_err(|error| self.invalid("give a time, such as 500ms or 10s").caused_by(error))
    }

    /// The value as any type that parses from text.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`], with `expected` as the way out.
    pub fn parse<T: FromStr>(self, expected: &str) -> Result<T> {
        self.value.parse().map_err(|_| self.invalid(expected))
    }

    /// The error for a value that is not one of the expected.
    #[must_use]
    pub fn invalid(self, expected: &str) -> Error {
        Error::new(ErrorKind::InvalidConfig, self.backend)
            .message(format!("the URL option {}={:?} is not valid", self.key, self.value))
            .hint(expected)
    }
}

impl fmt::Display for LockUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        if self.password.is_some() || !self.user.is_empty() {
            write!(f, "{}{}@", self.user, if self.password.is_some() { ":***" } else { "" })?;
        }
        write!(f, "{}{}", self.hosts, self.path)
    }
}

impl fmt::Debug for LockUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn decode(text: &str) -> Result<String> {
    percent_decode_str(text).decode_utf8().map(Into::into).map_err(|_| malformed())
}

fn malformed() -> Error {
    Error::new(ErrorKind::InvalidConfig, "polylock")
        .message("the URL is malformed")
        .hint("write it as scheme://[user:password@]host:port[,host:port...][/path][?option=value]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts() {
        let url = LockUrl::parse("ZK://me:p%40ss@a:1,b:2/app/locks?session_timeout=10s&x=").unwrap();
        assert_eq!(
            (url.scheme.as_str(), url.user.as_str(), url.password.as_deref()),
            ("zk", "me", Some("p@ss"))
        );
        assert_eq!((url.hosts.as_str(), url.path.as_str()), ("a:1,b:2", "/app/locks"));
        assert_eq!(url.to_string(), "zk://me:***@a:1,b:2/app/locks");
        assert!(!format!("{url:?}").contains("p@ss"));
        let mut seen = Vec::new();
        url.options("zk", &["session_timeout", "x"], |key, value| {
            seen.push((key.to_owned(), value.text().to_owned()));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [("session_timeout".into(), "10s".into()), ("x".into(), String::new())]);
    }

    #[test]
    fn bad_urls_and_options_are_told() {
        for url in ["", "redis", "redis:/x", "://x", "re dis://x", "redis://me:secret%ff@host"] {
            let error = LockUrl::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let url = LockUrl::parse("redis://h?tll=10s").unwrap();
        let error = url.options("redis", &["ttl", "wait"], |_, _| Ok(())).unwrap_err();
        assert!(error.to_string().contains("\"tll\"") && error.to_string().contains("ttl, wait"), "{error}");
        let url = LockUrl::parse("redis://h?ttl=10s&ttl=5s").unwrap();
        assert!(url.options("redis", &["ttl"], |_, _| Ok(())).unwrap_err().to_string().contains("twice"));
        let url = LockUrl::parse("redis://h?ttl=ten").unwrap();
        assert!(url.options("redis", &["ttl"], |_, value| value.duration().map(drop)).is_err());
    }

    proptest! {
        #[test]
        fn never_panics(text in ".{0,64}") {
            let _ = LockUrl::parse(&text);
        }
    }
}
