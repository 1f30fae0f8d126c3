//! The options of locks in a bucket, in code and from a URL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::url::LockUrl;
use lock_core::{Error, ErrorKind, Lazy, Locks, Result, runtime};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::{ClientConfigKey, RetryConfig};

use super::{Bucket, NAME, POLL, about, parse_prefix};
use crate::adapters::options::{KvOptions, kv_setters};
use crate::backend::{Kv, KvConfig};

/// Before the names of locks, unless the URL has another one.
const PREFIX: &str = "polylock";
const TTL: Duration = Duration::from_secs(30);
const OPTIONS: [&str; 8] = [
    "ttl",
    "command_timeout",
    "poll",
    "region",
    "endpoint",
    "allow_http",
    "virtual_hosted_style_request",
    "skip_signature",
];

/// The configuration of locks in a bucket of Amazon S3, or of a store that answers as it does and honours `If-Match`: MinIO, Ceph,
/// Cloudflare R2. [Connecting](crate::Kv::connect) tries it, and refuses a store that does not.
///
/// For locks that are held for minutes by programs that have a bucket and nothing else. By arithmetic, not by measurement, these defaults
/// cost two writes for a pair, a write each ten seconds for a held lock, and a read a second for a waiter.
///
/// URL: `s3://[key_id:secret@]bucket[/prefix][?option=value&...]`. Locks are the objects `prefix/lock/NAME`; the prefix is `polylock`
/// unless the URL has one. They stay: let no rule of the bucket delete or archive them, or tokens begin anew. Where the bucket keeps
/// old versions, each write leaves one, some three million a year for a held lock: let a rule delete the *noncurrent* ones. A user needs
/// `s3:GetObject`, `s3:PutObject` and `s3:ListBucket`.
///
/// Keys come from the URL, from [`option`](Self::option), from the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`,
/// ..), or from the role of the machine or of the container.
///
/// | URL option | default | |
/// |---|---|---|
/// | `ttl` | `30s` | how long a lock lasts without its holder: ten polls at least |
/// | `command_timeout` | `5s` | after this time a request ends without an answer |
/// | `poll` | `1s` | how often the first waiter looks |
/// | `region` | `us-east-1` | that of the bucket |
/// | `endpoint` | Amazon's | of another store, as `https://minio.example:9000` |
/// | `allow_http` | `false` | an endpoint without TLS |
/// | `virtual_hosted_style_request` | `false` | the name of the bucket is a part of the host |
/// | `skip_signature` | `false` | requests without a user |
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use lock_kv::S3Config;
/// # fn main() -> lock_core::Result<()> {
/// // As s3://my-bucket/app?region=eu-central-1&ttl=60s
/// let config = S3Config::new("my-bucket").prefix("app").option("region", "eu-central-1").ttl(Duration::from_secs(60));
/// let locks = config.connect_lazy()?;
/// # let _ = locks;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct S3Config {
    bucket: String,
    prefix: String,
    poll: Duration,
    /// Some of their values are secret.
    options: Vec<(String, String)>,
    kv: KvConfig,
}

impl S3Config {
    /// Locks in this bucket.
    #[must_use]
    pub fn new(bucket: impl Into<String>) -> Self {
        let (bucket, prefix, kv) = (bucket.into(), PREFIX.to_owned(), KvConfig::new().ttl(TTL));
        Self { bucket, prefix, poll: POLL, options: Vec::new(), kv }
    }

    /// Parses a URL such as `s3://my-bucket/app?region=eu-central-1`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a URL that names no bucket, or one key of the two, and for an unknown option.
    pub fn from_url(url: &str) -> Result<Self> {
        let url = LockUrl::parse(url)?;
        url.check_scheme(NAME, &["s3"])?;
        if url.hosts.is_empty() || url.user.is_empty() != url.password.is_none() {
            return Err(Error::new(ErrorKind::InvalidConfig, NAME)
                .with_message("the URL names no bucket, or one of the two keys alone")
                .with_hint("write it as s3://bucket/prefix or s3://KEY_ID:SECRET@bucket/prefix"));
        }
        let mut config = Self::new(&url.hosts);
        if let Some(secret) = &url.password {
            config = config.option("access_key_id", &url.user).option("secret_access_key", secret);
        }
        let prefix = url.path.trim_matches('/');
        if !prefix.is_empty() {
            config = config.prefix(prefix);
        }
        let kv = KvOptions::of(&url, NAME, &OPTIONS, config.kv.clone(), |key, value| {
            match key {
                "poll" => config.poll = value.duration()?,
                _ => config.options.push((key.to_owned(), value.text().to_owned())),
            }
            Ok(())
        });
        config.kv = kv?.kv;
        config.build()?;
        Ok(config)
    }

    /// What the names of objects begin with, before a slash. Default `polylock`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// An option of the client: any key of [`AmazonS3ConfigKey`], such as `access_key_id` and `secret_access_key`.
    #[must_use]
    pub fn option(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.push((key.into(), value.into()));
        self
    }

    /// How often the first waiter looks; those behind it do so up to four times more rarely.
    #[must_use]
    pub const fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// Connects, and tries whether the bucket honours conditional writes.
    ///
    /// # Errors
    ///
    /// As [`Kv::connect`]; [`ErrorKind::InvalidConfig`] for an option that cannot be used, and for a bucket that does not exist;
    /// [`ErrorKind::Denied`] for a user without rights.
    ///
    /// # Cancel safety
    ///
    /// As [`Kv::connect`].
    pub async fn connect(self) -> Result<Locks> {
        Ok(Locks::new(self.open().await?))
    }

    /// The same locks, connected at their first use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for an option, a prefix, a ttl or a timeout that cannot be used.
    pub fn connect_lazy(self) -> Result<Locks> {
        self.build()?;
        let expected = self.kv.capabilities(&about(&parse_prefix(&self.prefix)?, self.poll))?;
        Ok(Locks::new(Lazy::new(expected, move || self.clone().open())))
    }

    async fn open(self) -> Result<Kv<Bucket>> {
        runtime::current(NAME)?;
        let bucket = Bucket::over(Arc::new(self.build()?), &self.prefix, self.poll)?;
        Kv::connect(bucket, self.kv).await
    }

    fn build(&self) -> Result<AmazonS3> {
        let limit = self.kv.timeout();
        let once = RetryConfig { max_retries: 0, retry_timeout: limit, ..RetryConfig::default() };
        // In place of the client's whole options, which those of the environment are a part of.
        let limit_in_ms = format!("{}ms", limit.as_millis());
        let mut builder = AmazonS3Builder::from_env();
        for (key, value) in &self.options {
            let known: AmazonS3ConfigKey = key.parse().map_err(|error| invalid(key, error))?;
            builder = builder.with_config(known, value);
        }
        builder
            .with_bucket_name(&self.bucket)
            .with_retry(once)
            .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), &limit_in_ms)
            .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout), &limit_in_ms)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .build()
            .map_err(|error| invalid(&self.bucket, error))
    }
}

kv_setters!(S3Config);

/// Without the values of options.
impl fmt::Debug for S3Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options: Vec<_> = self.options.iter().map(|(key, _)| key).collect();
        f.debug_struct("S3Config")
            .field("bucket", &self.bucket)
            .field("prefix", &self.prefix)
            .field("options", &options)
            .field("kv", &self.kv)
            .finish_non_exhaustive()
    }
}

fn invalid(what: &str, error: object_store::Error) -> Error {
    Error::new(ErrorKind::InvalidConfig, NAME)
        .with_message(format!("the bucket, or its option {what}, cannot be used"))
        .with_hint("the options are those of the crate object_store for S3")
        .caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_bucket_and_options() {
        let config =
            S3Config::from_url("s3://b/my%20app?ttl=60s&endpoint=http://h:9&allow_http=true").unwrap();
        assert_eq!((&*config.bucket, &*config.prefix), ("b", "my app"));
        let secret = config.option("secret_access_key", "hush");
        assert!(!format!("{secret:?}").contains("hush"));
        for url in [
            "s3://",
            "s3:///a",
            "s3://me@b/a",
            "s3://b?tll=5s",
            "s3://b?ttl=1s",
            "s3://b?allow_http=maybe",
            "s3://b/a//b",
            "s3://b?poll=18446744073709551615s",
        ] {
            let error = S3Config::from_url(url).and_then(S3Config::connect_lazy).unwrap_err();
            assert_eq!((error.kind(), error.backend()), (ErrorKind::InvalidConfig, NAME), "{url}: {error}");
        }
        let unknown = S3Config::new("b").option("secret", "hush").connect_lazy().unwrap_err();
        assert!(
            !format!("{unknown:?}").contains("hush") && unknown.to_string().contains("secret"),
            "{unknown}"
        );
    }
}
