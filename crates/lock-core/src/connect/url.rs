//! The URLs that choose a backend.

use std::fmt;
use std::mem;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::values::error::NO_BACKEND;
use crate::{Error, ErrorKind, Password, Result};

/// A URL of the form `scheme://[user[:password]@]hosts[/path][?option=value&...]`, where `hosts` may
/// be a list with commas. In a user name, a password, the path or an option, the characters `/ ? @ & = %` are
/// percent-encoded: `%2F` and so on.
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
    /// The part between the credentials and the path, such as `a:2181,b:2181`.
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
    /// [`ErrorKind::InvalidConfig`], with the expected form and without what may be a password.
    pub fn parse(url: &str) -> Result<Self> {
        // With the line break at the end of a file, it would name another directory or prefix: other locks.
        if url.trim() != url || url.contains(char::is_control) {
            return Err(blank());
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(|| malformed(url, "it has no ://"))?;
        if scheme.is_empty()
            || !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        {
            return Err(malformed(url, "its scheme is not one word"));
        }
        let decode = |text| decode(text).ok_or_else(|| malformed(url, "what it has as %XX is not UTF-8"));
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        let behind = &rest[authority.len()..];
        // Else a part of a password would be parsed as a path or an option, and show in errors.
        let is_moved = || {
            let first = behind.trim_start_matches('/').split('/').next().unwrap_or_default();
            first.rsplit_once('@').is_some_and(|(credentials, _)| credentials.contains(':'))
        };
        if behind.contains('@') && (!authority.is_empty() || is_moved()) {
            return Err(unescaped());
        }
        let (path, query) = behind.split_once('?').unwrap_or((behind, ""));
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
            let key = decode(key)?;
            // The end of a password in a nested URL, which had an & in it.
            if key.contains('@') {
                return Err(unescaped());
            }
            Ok((key, decode(value)?))
        });
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            user,
            password,
            hosts: hosts.to_owned(),
            path: decode(path)?,
            options: options.collect::<Result<_>>()?,
        })
    }

    /// Refuses a scheme of another backend.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`], with the schemes of this backend.
    pub fn check_scheme(&self, backend: &'static str, known: &[&str]) -> Result<()> {
        if known.contains(&self.scheme.as_str()) {
            return Ok(());
        }
        let known: Vec<_> = known.iter().map(|scheme| format!("{scheme}://")).collect();
        Err(Error::new(ErrorKind::InvalidConfig, backend)
            .with_message(format!("the URL scheme {}:// is not one of this backend", self.scheme))
            .with_hint(format!("use {}", known.join(" or "))))
    }

    /// The password of the URL, or else the one in this file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] when both are given.
    pub fn password_or_file(&self, backend: &'static str, file: Option<&str>) -> Result<Option<Password>> {
        match (&self.password, file) {
            (Some(_), Some(_)) => Err(Error::new(ErrorKind::InvalidConfig, backend)
                .with_message("the URL has a password and a password_file")
                .with_hint("leave one of them out")),
            (Some(text), None) => Ok(Some(Password::from(text.as_str()))),
            (None, file) => Ok(file.map(Password::file)),
        }
    }

    /// Calls `set` for every option.
    ///
    /// # Errors
    ///
    /// Those of `set`; [`ErrorKind::InvalidConfig`] for an option that is not `known`, and for a duplicate.
    pub fn options(
        &self,
        backend: &'static str,
        known: &[&str],
        mut set: impl FnMut(&str, OptionValue<'_>) -> Result<()>,
    ) -> Result<()> {
        for (at, (key, value)) in self.options.iter().enumerate() {
            let problem = if !known.contains(&key.as_str()) {
                let meant = similar(key, known.iter().copied());
                let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
                format!("the URL option {key:?} is unknown{meant}")
            } else if self.options[..at].iter().any(|(earlier, _)| earlier == key) {
                format!("the URL option {key:?} is given twice")
            } else {
                set(key, OptionValue { backend, key, value })?;
                continue;
            };
            return Err(Error::new(ErrorKind::InvalidConfig, backend)
                .with_message(problem)
                .with_hint(format!("the options are: {}", known.join(", "))));
        }
        Ok(())
    }
}

/// The value of a URL option.
///
/// `Debug` does not show it: it may be a password.
#[derive(Clone, Copy)]
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

    /// The value as a duration, such as `500ms` or `10s`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`].
    pub fn duration(self) -> Result<Duration> {
        humantime::parse_duration(self.value).map_err(|error| {
            let is_number = !self.value.is_empty() && self.value.bytes().all(|byte| byte.is_ascii_digit());
            let expected = match is_number {
                true => format!("add a unit: {0}s for seconds, {0}ms for milliseconds", self.value),
                false => "give a time, such as 500ms or 10s".to_owned(),
            };
            self.invalid(&expected).caused_by(error)
        })
    }

    /// The value as any type that parses from text.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`], with `expected` as the hint.
    pub fn parse<T: FromStr>(self, expected: &str) -> Result<T> {
        self.value.parse().map_err(|_| self.invalid(expected))
    }

    /// What the value stands for, which is one of these words.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`], with the words as the hint.
    pub fn one_of<T, const N: usize>(self, words: [(&str, T); N]) -> Result<T> {
        let names = words.each_ref().map(|(name, _)| *name);
        let (others, last) = names.split_at(N - 1);
        let found = words.into_iter().find(|(name, _)| *name == self.value);
        found
            .map(|(_, meaning)| meaning)
            .ok_or_else(|| self.invalid(&format!("use {} or {}", others.join(", "), last.concat())))
    }

    /// The error for an invalid value, with `expected` as the hint.
    #[must_use]
    pub fn invalid(self, expected: &str) -> Error {
        Error::new(ErrorKind::InvalidConfig, self.backend)
            .with_message(format!("the URL option {}={:?} is not valid", self.key, self.value))
            .with_hint(expected)
    }
}

impl fmt::Debug for OptionValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OptionValue").field("key", &self.key).finish_non_exhaustive()
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

fn decode(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

fn malformed(url: &str, why: &str) -> Error {
    let shown = without_secrets(url).map(|url| format!(" {url:?}")).unwrap_or_default();
    Error::new(ErrorKind::InvalidConfig, NO_BACKEND)
        .with_message(format!("the URL{shown} is malformed: {why}"))
        .with_hint("write it as scheme://[user:password@]host:port[,host:port...][/path][?option=value]")
}

/// What may be shown of a malformed URL: its scheme, or `host:port[,host:port...]`. Anything else may have a password.
fn without_secrets(url: &str) -> Option<String> {
    let is_word = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    };
    let is_host = |text: &str| {
        text.rsplit_once(':').is_some_and(|(host, port)| is_word(host) && port.parse::<u16>().is_ok())
    };
    match url.split_once("://") {
        Some((scheme, _)) => Some(format!("{scheme}://...")).filter(|_| is_word(scheme)),
        None => Some(url.to_owned()).filter(|url| url.split(',').all(is_host)),
    }
}

/// The known word that a user may have meant: one that differs in at most two characters.
///
/// ```
/// use lock_core::url::similar;
///
/// assert_eq!(similar("redsi", ["redis", "redlock", "zk"]), Some("redis"));
/// assert_eq!(similar("postgres", ["redis", "redlock", "zk"]), None);
/// ```
#[must_use]
pub fn similar<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distances = known.into_iter().map(|known| (distance(word, known), known));
    distances
        .filter(|(distance, known)| *distance <= 2 && *distance < known.len())
        .min()
        .map(|(_, known)| known)
}

/// How many characters have to be inserted, removed or replaced.
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (removed, one) in from.chars().enumerate() {
        let mut diagonal = mem::replace(&mut row[0], removed + 1);
        for (at, other) in to.chars().enumerate() {
            let replaced = diagonal + usize::from(one != other);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

fn blank() -> Error {
    Error::new(ErrorKind::InvalidConfig, NO_BACKEND)
        .with_message("the URL has a blank at an end, a line break or another control character")
        .with_hint("remove it; what belongs to a name is written as %20, %0A and so on")
}

fn unescaped() -> Error {
    Error::new(ErrorKind::InvalidConfig, NO_BACKEND)
        .with_message("the URL has an @ after the hosts")
        .with_hint(
            "write / and ? in a user name or a password as %2F and %3F, and @ in a path or an option as %40; \
             in a URL in an option, & and % as well",
        )
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
    fn bad_urls_and_options_are_refused() {
        for url in ["", "redis", "redis:/x", "://x", "re dis://x", "redis://me:secret%ff@host"] {
            let error = LockUrl::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        for (url, shown) in [
            ("localhost:6379", "the URL \"localhost:6379\" is malformed: it has no ://"),
            ("h1:2181,h2:2181", "the URL \"h1:2181,h2:2181\" is malformed: it has no ://"),
            ("redis://me:s3cret%ff@host/0", "the URL \"redis://...\" is malformed: what"),
            ("redis:/h?password=s3cret", "the URL is malformed"),
            ("redis:/:s3cret%40h", "the URL is malformed"),
            ("me:s3cret@host", "the URL is malformed"),
            ("me:s3cret", "the URL is malformed"),
            ("me:s3cret://x@h", "the URL is malformed"),
            ("redis:/h?password=a@s3cret", "the URL is malformed"),
            ("localhost:6379,password=s3cret", "the URL is malformed"),
            ("s3cret", "the URL is malformed"),
        ] {
            let error = LockUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains(shown) && !error.contains("s3cret"), "{error}");
        }
        for url in [
            "redis://:pw/s3cret@h:6379",
            "redis://me:pa?s3cret@h",
            "redis://me:p@a/s3cret@h/0",
            "redis+unix://:1/s3cret@/run/redis.sock",
            "redis:///me:s3cret@h",
            "redis+unix:///:s3cret@/run/redis.sock",
            "migrate://shop?from=redis%3A%2F%2Fme%3Apw&s3cret%40h&to=zk%3A%2F%2Fh",
            "migrate://shop?from=redis%3A%2F%2Fme%3Apw&s3cret&pw%40h&to=zk%3A%2F%2Fh",
        ] {
            let error = LockUrl::parse(url).unwrap_err();
            assert!(error.to_string().contains("%2F") && !error.to_string().contains("s3cret"), "{error}");
        }
        for url in
            ["flock:///d\n", " flock:///d", "flock:///d ", "flock:///d\u{a0}", "redis://h/\t0", "redis://h\0"]
        {
            assert!(LockUrl::parse(url).unwrap_err().to_string().contains("a blank at an end"), "{url:?}");
        }
        let url = LockUrl::parse("redis+unix:///run/redis@1/redis%20a.sock?prefix=a%40b").unwrap();
        assert_eq!((url.path.as_str(), url.hosts.as_str()), ("/run/redis@1/redis a.sock", ""));
        let value = OptionValue { backend: "redis", key: "sentinel_password", value: "s3cret" };
        assert!(!format!("{value:?}").contains("s3cret"));
        let url = LockUrl::parse("redis://h").unwrap();
        let error = url.check_scheme("zk", &["zk", "zks"]).unwrap_err().to_string();
        assert!(error.contains("redis://") && error.contains("zk:// or zks://"), "{error}");
        let url = LockUrl::parse("redis://h?tll=10s").unwrap();
        let error = url.options("redis", &["ttl", "wait"], |_, _| Ok(())).unwrap_err();
        assert!(error.to_string().contains("\"tll\"") && error.to_string().contains("ttl, wait"), "{error}");
        assert!(error.to_string().contains("did you mean ttl?"), "{error}");
        let url = LockUrl::parse("redis://h?ttl=10").unwrap();
        let error = url.options("redis", &["ttl"], |_, value| value.duration().map(drop)).unwrap_err();
        assert!(error.to_string().contains("10s for seconds"), "{error}");
        let url = LockUrl::parse("redis://h?ttl=10s&ttl=5s").unwrap();
        assert!(url.options("redis", &["ttl"], |_, _| Ok(())).unwrap_err().to_string().contains("twice"));
        let url = LockUrl::parse("redis://h?ttl=ten").unwrap();
        assert!(url.options("redis", &["ttl"], |_, value| value.duration().map(drop)).is_err());
    }

    #[test]
    fn a_similar_word_is_found() {
        let known = ["redis", "rediss", "redlock", "zk", "zks", "flock"];
        for (word, meant) in [
            ("redsi", Some("redis")),
            ("redis", Some("redis")),
            ("reddiss", Some("rediss")),
            ("zkk", Some("zk")),
            ("postgres", None),
            ("", None),
        ] {
            assert_eq!(similar(word, known), meant, "{word}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in ".{0,64}") {
            let _ = LockUrl::parse(&text);
        }
    }
}
