//! The options that stores have in common.

#[cfg(any(feature = "etcd", feature = "mysql"))]
use lock_core::secret::Unreadable;
use lock_core::tls::{TlsFiles, no_tls};
use lock_core::url::{LockUrl, OptionValue};
use lock_core::{Error, ErrorKind, Password, Result};

use crate::backend::KvConfig;

/// What a URL says that those of other stores say, too.
#[cfg_attr(not(any(feature = "etcd", feature = "mysql")), allow(dead_code, reason = "no store has a login"))]
pub(crate) struct KvOptions {
    pub(crate) kv: KvConfig,
    pub(crate) password: Option<Password>,
    pub(crate) tls: Option<TlsFiles>,
}

impl KvOptions {
    /// The options of a URL that are `known`. `set` gets those that only this store has. With another scheme than the name of the store, it is
    /// reached by TLS.
    pub(crate) fn of(
        url: &LockUrl,
        store: &'static str,
        known: &[&str],
        mut kv: KvConfig,
        mut set: impl FnMut(&str, OptionValue<'_>) -> Result<()>,
    ) -> Result<Self> {
        let (mut password_file, mut files) = (None, TlsFiles::default());
        url.options(store, known, |key, value| {
            let text = || Some(value.text().to_owned());
            match key {
                "ttl" => kv = kv.clone().ttl(value.duration()?),
                "command_timeout" => kv = kv.clone().command_timeout(value.duration()?),
                "password_file" => password_file = text(),
                _ if files.set(key, value.text()) => {}
                _ => set(key, value)?,
            }
            Ok(())
        })?;
        let has_tls = url.scheme != store;
        if !has_tls && files != TlsFiles::default() {
            let what = format!("the files of TLS have no use with {store}://");
            return Err(invalid(store, &what, &format!("write it as {store}s://")));
        }
        if has_tls && !cfg!(feature = "tls") {
            return Err(no_tls(store));
        }
        files.check_pair(store, ["tls_cert", "tls_key"])?;
        let password = url.password_or_file(store, password_file.as_deref())?;
        Ok(Self { kv, password, tls: has_tls.then_some(files) })
    }
}

/// Files are read at each login and handshake. One that cannot be read now is a mistake.
#[cfg(any(feature = "etcd", feature = "mysql"))]
pub(crate) async fn check_files(
    store: &'static str,
    password: Option<&Password>,
    tls: Option<&TlsFiles>,
) -> Result<()> {
    let wrong = |unreadable: Unreadable| unreadable.error(ErrorKind::InvalidConfig, store);
    if let Some(password) = password {
        password.read().await.map_err(wrong)?;
    }
    #[cfg(feature = "tls")]
    if let Some(files) = tls {
        files.config(true).await.map_err(wrong)?;
    }
    #[cfg(not(feature = "tls"))]
    let _ = tls;
    Ok(())
}

pub(crate) fn invalid(store: &'static str, message: &str, hint: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, store).with_message(message).with_hint(hint)
}

/// The methods of a configuration that has a field `kv`.
macro_rules! kv_setters {
    ($config:ident) => {
        impl $config {
            /// How long a lock lasts without its holder: see [`KvConfig::ttl`].
            #[must_use]
            pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
                self.kv = self.kv.ttl(ttl);
                self
            }

            /// After this time a request ends without an answer.
            #[must_use]
            pub fn command_timeout(mut self, command_timeout: std::time::Duration) -> Self {
                self.kv = self.kv.command_timeout(command_timeout);
                self
            }
        }
    };
}

pub(crate) use kv_setters;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str) -> Result<KvOptions> {
        let known = ["tls_ca", "tls_cert", "tls_key"];
        KvOptions::of(&LockUrl::parse(url)?, "etcd", &known, KvConfig::new(), |_, _| Ok(()))
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_client_certificate_has_a_key() {
        for url in ["etcds://h?tls_cert=/x", "etcds://h?tls_key=/x"] {
            assert_eq!(of(url).err().unwrap().kind(), ErrorKind::InvalidConfig);
        }
        assert!(of("etcds://h?tls_ca=/x&tls_cert=/x&tls_key=/x").unwrap().tls.is_some());
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn without_the_feature_tls_names_it() {
        let error = of("etcds://h").err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.hint().is_some_and(|hint| hint.ends_with("etcd,tls")), "{error}");
    }
}
