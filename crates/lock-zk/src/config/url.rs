//! The options of a URL.

use lock_core::Result;
use lock_core::tls::TlsFiles;
use lock_core::url::LockUrl;

use super::{ZkConfig, invalid};
use crate::error::BACKEND;
use crate::nodes::acl::NodeAcl;
use crate::nodes::node_name::ZkLayout;
use crate::recipes::recipe::{ZkRecipe, ZkWait};
use crate::wire::login::Auth;

impl ZkConfig {
    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](lock_core::ErrorKind::InvalidConfig).
    pub fn from_url(url: &str) -> Result<Self> {
        let url = LockUrl::parse(url)?;
        url.check_scheme(BACKEND, &["zk", "zks"])?;
        let mut config = Self::new(&url.hosts).chroot(url.path.trim_end_matches('/'));
        let (mut tls, mut wait, mut password_file) = (TlsFiles::default(), None, None);
        url.options(BACKEND, &OPTIONS, |key, value| {
            match key {
                "session_timeout" => config.session_timeout = value.duration()?,
                "connect_timeout" => config.connect_timeout = Some(value.duration()?),
                "create_chroot" => config.create_chroot = value.parse("use true or false")?,
                "dir" => value.text().clone_into(&mut config.dir),
                "layout" => {
                    use ZkLayout::{Curator, Kazoo, Plain};
                    config.layout =
                        value.one_of([("curator", Curator), ("plain", Plain), ("kazoo", Kazoo)])?;
                }
                "local_handovers" => {
                    config.local_handovers = value.parse("give a number, such as 16")?;
                }
                "recipe" => {
                    let ephemeral = ZkRecipe::Ephemeral(ZkWait::default());
                    config.recipe = value.one_of([("queue", ZkRecipe::Queue), ("ephemeral", ephemeral)])?;
                }
                "wait" => wait = Some(value.one_of([("watch", ZkWait::Watch), ("poll", ZkWait::Poll)])?),
                "password_file" => password_file = Some(value.text().to_owned()),
                "auth" => {
                    config.login.auth = value.one_of([("digest", Auth::Digest), ("sasl", Auth::Sasl)])?;
                }
                "acl" => {
                    use NodeAcl::{Creator, CreatorAndReaders, Open};
                    let acls =
                        [("creator", Creator), ("creator-and-readers", CreatorAndReaders), ("open", Open)];
                    config.acl = Some(value.one_of(acls)?);
                }
                "session" => config.private = value.one_of([("shared", false), ("private", true)])?,
                "locks_per_session" => config.locks_per_session = value.parse("give a number")?,
                "jute_maxbuffer" => config.jute_maxbuffer = value.parse("give a number of bytes")?,
                _ => {
                    tls.set(key, value.text());
                }
            }
            Ok(())
        })?;
        config.login.credentials = match url.password_or_file(BACKEND, password_file.as_deref())? {
            Some(_) if url.user.is_empty() && url.password.is_none() => {
                return Err(invalid(
                    "the URL has a password_file but no user",
                    "write user@ before the hosts",
                ));
            }
            Some(password) => Some((url.user.clone(), password)),
            None if url.user.is_empty() => None,
            None => {
                let hint = "write user:password@, or user@ and password_file=";
                return Err(invalid("the URL has a user but no password", hint));
            }
        };
        if url.scheme == "zks" {
            config.login.tls = Some(tls);
        } else if tls != TlsFiles::default() {
            return Err(invalid("tls options need TLS", "write zks:// instead of zk://"));
        }
        match (wait, &mut config.recipe) {
            (Some(wait), ZkRecipe::Ephemeral(by)) => *by = wait,
            (Some(_), ZkRecipe::Queue) => {
                return Err(invalid(
                    "the option wait has no meaning for recipe=queue",
                    "leave it out, or add recipe=ephemeral if an older fleet runs that recipe",
                ));
            }
            (None, _) => {}
        }
        config.check()?;
        Ok(config)
    }
}

const OPTIONS: [&str; 17] = [
    "session_timeout",
    "connect_timeout",
    "create_chroot",
    "dir",
    "layout",
    "local_handovers",
    "recipe",
    "wait",
    "password_file",
    "auth",
    "acl",
    "session",
    "locks_per_session",
    "jute_maxbuffer",
    "tls_ca",
    "tls_cert",
    "tls_key",
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lock_core::ErrorKind;

    use super::*;

    #[test]
    fn urls() {
        let url = "zk://me:p%40ss@a:2181,[::1]:2182,c/app/x?session_timeout=4s&connect_timeout=1s&dir=/l&layout=kazoo";
        let config = ZkConfig::from_url(url).unwrap();
        assert_eq!((&*config.hosts, config.chroot_path()), ("a:2181,[::1]:2182,c", "/app/x"));
        assert_eq!(config.login.credentials, Some(("me".into(), "p@ss".into())));
        assert_eq!(
            (config.session_timeout, config.connect_limit()),
            (Duration::from_secs(4), Duration::from_secs(1))
        );
        assert_eq!((&*config.dir, config.layout), ("/l", ZkLayout::Kazoo));
        assert!(!format!("{config:?}").contains("p@ss"), "{config:?}");
        let config = ZkConfig::from_url("zk://a/?wait=poll&recipe=ephemeral").unwrap();
        assert_eq!(config.recipe, ZkRecipe::Ephemeral(ZkWait::Poll));
        let config = ZkConfig::from_url("zk://a/").unwrap();
        assert_eq!(config.recipe, ZkRecipe::Queue);
        assert_eq!((&*config.hosts, config.chroot_path(), &*config.dir), ("a", "/", "/locks"));
    }

    #[test]
    fn bad_urls_are_reported_without_the_password() {
        for (url, text) in [
            ("zk://", "hosts"),
            ("zk:///app", "hosts"),
            ("zk://me:secret@a,,b", "hosts"),
            ("zk://me:secret@a:0", "hosts"),
            ("zk://a:99999", "hosts"),
            ("zk://me@a", "no password"),
            ("zk://me:secret@a?password_file=/x", "password_file"),
            ("zk://a?password_file=/x", "no user"),
            ("zk://me:secret@a//x", "chroot"),
            ("zk://a/x/../y", "chroot"),
            ("zk://a?dir=locks", "dir"),
            ("zk://a?dir=/locks/", "dir"),
            ("zk://a?dir=/zookeeper/locks", "ZooKeeper keeps"),
            ("zk://a?session_timeout=0s", "session_timeout"),
            ("zk://a?session_timeout=1ms", "session_timeout"),
            ("zk://a?session_timeout=90days", "session_timeout"),
            ("zk://a?connect_timeout=0s", "connect_timeout"),
            ("zk://a?layout=maven", "curator, plain or kazoo"),
            ("zk://a?recipe=persistent", "queue or ephemeral"),
            ("zk://a?recipe=ephemeral&wait=queue", "watch or poll"),
            ("zk://a?wait=poll", "recipe=ephemeral"),
            ("zk://a?ttl=3s", "session_timeout"),
            ("zk://a?create_chroot=maybe", "true or false"),
            ("zk://a?auth=kerberos", "digest or sasl"),
            #[cfg(feature = "sasl")]
            ("zk://a?auth=sasl", "sasl"),
            ("zk://a?acl=creator", "credentials"),
            ("zk://me:secret@a?acl=nobody", "creator"),
            ("zk://a?session=mine", "shared or private"),
            ("zk://a?locks_per_session=0", "locks_per_session"),
            ("zk://a?tls_ca=/x", "zks://"),
        ] {
            let error = ZkConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(error.to_string().contains(text), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{url}: {error}");
        }
    }
}
