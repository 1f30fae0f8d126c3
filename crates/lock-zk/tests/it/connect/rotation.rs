//! A password of the scheme digest that changes while a lock is held.

use lock_core::{ErrorKind, Guard, GuardState, Password};
use lock_testkit::SecretFile;
use lock_zk::NodeAcl;
use lock_zk::zookeeper_client::{Acl, AuthId, Permission};

use crate::common::*;

/// The user `me` with the password `one`, and with `two`.
const ONE: &str = "me:GI1kdP8BarIfvjgSTISj2cDHomg=";
const TWO: &str = "me:aHNtON+NCRZpXDf9xXrUVtfVZes=";

/// Waits until the session answers over another connection; the lock is still held.
async fn goes_on(guard: Guard) {
    until("it is confirmed", async || match guard.verify().await {
        Ok(state) => {
            assert_eq!(state, GuardState::Valid);
            true
        }
        Err(error) => {
            assert!(error.is_retryable(), "{error}");
            false
        }
    })
    .await;
    give_back(guard).await;
}

/// A new password is a new user, to whom the nodes of the old one have to belong as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_password_of_digest_is_read_at_each_connect() {
    let server = server().await;
    let (other, proxy, secret) = (client(&server).await, proxy(&server), SecretFile::new("one"));
    mkdir(&other, "/locks").await;
    let user = |digest: &str| Acl::new(Permission::ALL, AuthId::new("digest", digest));
    let both = NodeAcl::Custom(vec![user(ONE), user(TWO)]);
    let password = Password::file(secret.path());
    let locks = opened(&through(&proxy).credentials("me", password).acl(both.clone())).await;
    let guard = take(&locks, "a").await;
    secret.change("two");
    proxy.rst();
    goes_on(guard).await;
    // From now on the old user may create nothing here.
    other.set_acl("/locks", &[user(TWO)], None).await.unwrap();
    let stale = opened(&config(&server).credentials("me", "one").acl(both)).await;
    assert_eq!(stale.mutex("b").acquire().await.unwrap_err().kind(), ErrorKind::Denied);
    give_back(take(&locks, "b").await).await;
}
