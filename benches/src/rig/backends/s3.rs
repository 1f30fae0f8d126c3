//! A client of a bucket beside those of the locks: set as ours, without their code.

use std::sync::Arc;

use futures_util::TryStreamExt as _;
use polylock::backend::LockUrl;
use polylock::kv::object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use polylock::kv::object_store::path::Path;
use polylock::kv::object_store::{
    ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions, RetryConfig, UpdateVersion,
};

use crate::data::Outcome;
use crate::rig::url;

/// The version of an object.
pub(crate) type Tag = UpdateVersion;

#[derive(Clone, Debug)]
pub(crate) struct Bucket(Arc<AmazonS3>);

impl Bucket {
    pub(crate) fn connect(url: &str) -> Outcome<Self> {
        let parsed = LockUrl::parse(url)?;
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&parsed.hosts)
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .with_conditional_put(S3ConditionalPut::ETagMatch);
        for name in ["region", "endpoint", "allow_http", "virtual_hosted_style_request", "skip_signature"] {
            if let Some(value) = url::option(url, name) {
                builder = builder.with_config(name.parse()?, value);
            }
        }
        if let Some(secret) = &parsed.password {
            builder = builder.with_access_key_id(&parsed.user).with_secret_access_key(&**secret);
        }
        Ok(Self(Arc::new(builder.build()?)))
    }

    /// Writes if the object has this version, or does not exist, and returns the new one.
    pub(crate) async fn swap(&self, key: &str, old: Option<Tag>, value: &[u8]) -> Outcome<Tag> {
        let mode = old.map_or(PutMode::Create, PutMode::Update);
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = self.0.put_opts(&Path::from(key), value.to_vec().into(), options).await?;
        Ok(Tag { e_tag: put.e_tag, version: put.version })
    }

    /// Removes the objects of this run.
    pub(super) async fn clean(&self, run: &str) -> Outcome<()> {
        let objects: Vec<_> = self.0.list(None).try_collect().await?;
        for object in objects.iter().filter(|object| object.location.as_ref().contains(run)) {
            self.0.delete(&object.location).await?;
        }
        Ok(())
    }
}
