//! S3 compares entity tags, and a client compares tokens by them.

use polylock::Locks;

use super::python;

/// The server is moto's, which compares tags as S3 does.
#[tokio::test]
#[ignore = "full: needs Python packages"]
async fn a_late_write_is_refused() {
    let locks = Locks::connect("memory://").await.unwrap();
    let stale = locks.mutex("account").acquire().await.unwrap();
    assert!(locks.break_lock("account").await.unwrap());
    let current = locks.mutex("account").acquire().await.unwrap();

    python("s3", "s3.py", &[&stale.token().to_string(), &current.token().to_string()]).await;
}
