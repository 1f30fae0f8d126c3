//! Locks in a bucket: in memory, and on a server that answers as S3 does.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use lock_core::{ErrorKind, Locks, Outcome};
use lock_kv::object_store::memory::InMemory;
use lock_kv::object_store::path::Path;
use lock_kv::object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use lock_kv::{Bucket, KvConfig, Registers, S3Config};
use lock_testkit::proxy::{Direction, FaultProxy, Protocol};
use lock_testkit::{PATIENCE, S3Server, come, give_back, queue_up, take, until};

/// Time: a server on this host is asked often.
const POLL: Duration = Duration::from_millis(20);

fn target() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
}

async fn connect(addr: SocketAddr, options: &str) -> lock_core::Result<Locks> {
    let url = format!("{}&ttl=5s&{options}", S3Server::url(addr, "app"));
    S3Config::from_url(&url).unwrap().poll(POLL).connect().await
}

fn in_memory(prefix: &str) -> Bucket {
    Bucket::over(Arc::new(InMemory::new()), prefix, POLL).unwrap()
}

#[tokio::test]
async fn every_name_is_an_object_of_its_own() {
    let bucket = in_memory("app");
    let keys = [
        "lock/a",
        "lock//a",
        "lock/a/",
        "lock/./a",
        "lock/../a",
        "lock/%2E/a",
        "lock/%/a",
        "lock/a\0",
        "lock/ö b",
        "lock/%",
    ];
    for key in keys {
        assert!(bucket.swap(key, None, key.as_bytes()).await.unwrap().is_some(), "{key:?} is new");
    }
    for key in keys {
        assert_eq!(bucket.read(key).await.unwrap().unwrap().value, key.as_bytes());
    }
    let mut listed: Vec<String> = Vec::new();
    loop {
        let after = listed.last().cloned().unwrap_or_default();
        let page = bucket.list("lock/", &after).await.unwrap();
        if page.is_empty() {
            break;
        }
        // As if a page had one key.
        listed.extend(page.into_iter().take(1));
    }
    listed.sort();
    let mut keys = keys.map(ToOwned::to_owned);
    keys.sort();
    assert_eq!(listed, keys);
    assert_eq!(bucket.list("lock/a", "").await.unwrap().len(), 3);
    let long = bucket.read(&format!("lock/{}", "%".repeat(400))).await.unwrap_err();
    assert_eq!(long.kind(), ErrorKind::InvalidName, "{long}");
}

#[tokio::test]
async fn prefixes_that_are_no_path_are_refused() {
    let long = "x".repeat(2_000);
    for prefix in ["a//b", "a/../b", ".", &long] {
        let error = Bucket::over(Arc::new(InMemory::new()), prefix, POLL).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
}

/// It has another order than that of the names: the object of the last one begins with %7F, and so comes first.
#[tokio::test]
async fn a_list_follows_the_order_of_the_bucket() {
    let locks = KvConfig::new().connect(in_memory("app")).await.unwrap();
    take(&locks, "\u{7f}").await.release().await.unwrap();
    // More than a page.
    for at in 0..1_100 {
        take(&locks, &format!("a{at}")).await.release().await.unwrap();
    }
    let _guard = take(&locks, "b").await;
    let names = locks.list("").await.unwrap();
    assert_eq!(names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["b"]);
}

#[tokio::test]
async fn locks_of_one_bucket_exclude_each_other() {
    let store = Arc::new(InMemory::new());
    let connect = async || {
        let bucket = Bucket::over(Arc::clone(&store) as _, "app", POLL).unwrap();
        KvConfig::new().connect(bucket).await.unwrap()
    };
    let (one, other) = (connect().await, connect().await);
    let guard = take(&one, "a").await;
    assert!(other.mutex("a").try_acquire().await.unwrap().is_none());
    let (token, waiter) = (guard.token(), queue_up(&other, "a").await);
    give_back(guard).await;
    assert!(come(waiter).await.token() > token);
}

#[tokio::test]
#[ignore = "full: needs Python packages"]
async fn a_bucket_that_cannot_be_used_says_why() {
    if S3Server::is_missing(target()) {
        return;
    }
    let careless = S3Server::start_careless(target()).await.unwrap();
    let error = connect(careless.addr(), "").await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unsupported, "unconditional"), "{error}");

    let server = S3Server::start(target()).await.unwrap();
    let url = S3Server::url(server.addr(), "app").replace("@locks/", "@nobodys/");
    let error = S3Config::from_url(&url).unwrap().connect().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::InvalidConfig, Outcome::NotApplied), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("create it")), "{error}");

    let locks = connect(server.addr(), "").await.unwrap();
    let guard = take(&locks, "a").await;
    assert_eq!(locks.list("").await.unwrap().len(), 1);
    give_back(guard).await;
    server.kill();
    let error = connect(server.addr(), "").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// Sends each write twice, as a gateway does that takes a lost connection for a reason to try again.
#[derive(Debug, Default)]
struct Twice(InMemory);

impl fmt::Display for Twice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Twice {
    async fn put_opts(&self, at: &Path, value: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        drop(self.0.put_opts(at, value.clone(), options.clone()).await);
        self.0.put_opts(at, value, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.0.get_opts(at, options).await
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        self.0.delete_stream(all)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.0.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn a_swap_that_was_repeated_on_the_way_was_executed() {
    let bucket = Bucket::over(Arc::new(Twice::default()), "app", POLL).unwrap();
    let first = bucket.swap("a", None, b"1").await.unwrap().expect("it is new");
    let second = bucket.swap("a", Some(&first), b"2").await.unwrap().expect("it has this version");
    assert_eq!(bucket.swap("a", Some(&first), b"3").await.unwrap(), None);
    assert_eq!(bucket.read("a").await.unwrap().unwrap().version, second);
}

#[tokio::test]
#[ignore = "full: needs Python packages"]
async fn a_swap_whose_answer_is_lost_is_settled() {
    if S3Server::is_missing(target()) {
        return;
    }
    let server = S3Server::start(target()).await.unwrap();
    let proxy = FaultProxy::start(server.addr(), Protocol::Opaque).unwrap();
    let locks = connect(proxy.addr(), "").await.unwrap();
    let direct = connect(server.addr(), "").await.unwrap();
    take(&locks, "a").await.release().await.unwrap();
    proxy.hold(Direction::ToClient);
    let acquiring = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("a").try_acquire_for(PATIENCE / 10).await }
    });
    until("the swap has arrived", async || direct.inspect("a").await.unwrap().is_held()).await;
    proxy.deliver();
    match acquiring.await.unwrap() {
        Ok(Some(guard)) => give_back(guard).await,
        outcome => drop(outcome),
    }
    // Whatever the answer was, nothing is left.
    give_back(take(&direct, "a").await).await;
}
