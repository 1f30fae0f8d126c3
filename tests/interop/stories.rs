//! What holds wherever a client of another library and ours meet, both ways.

use std::mem;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use lock_testkit::PATIENCE;
use polylock::Token;
use tokio::task::JoinSet;

use crate::meeting::{LEASE, Meeting, NOW, Ours, SHORT, are_kept_out, release, wait};
use crate::peers::servers::Site;
use crate::peers::{LONG, Peer};
use crate::runtime;

pub(crate) async fn their_lock_excludes_us(at: impl Meeting) {
    let (ours, mut theirs) = at.both().await;
    assert!(theirs.acquire(NOW).await);
    ours.is_kept_out().await;
    ours.sees_a_foreign_holder().await;
    at.until_there_are(1).await;
    assert_ne!(theirs.release().await, Some(false));
    // What waited above may leave the queue a moment later.
    release(ours.hold().await).await;
    at.is_free(&ours, &mut *theirs).await;
}

pub(crate) async fn our_lock_excludes_them(at: impl Meeting) {
    let (ours, mut theirs) = at.both().await;
    let guard = ours.acquire(NOW).await.expect("nobody has it");
    are_kept_out(&mut *theirs).await;
    at.until_there_are(1).await;
    at.is_untouched(&guard).await;
    release(guard).await;
    at.is_free(&ours, &mut *theirs).await;
}

pub(crate) async fn we_get_the_lock_when_they_release_it(at: impl Meeting) {
    let (ours, mut theirs) = at.both().await;
    assert!(theirs.acquire(NOW).await);
    let waiter = ours.waits().await;
    at.until_there_are(2).await;
    assert_ne!(theirs.release().await, Some(false));
    let guard = waiter.await.unwrap();
    at.is_untouched(&guard).await;
    release(guard).await;
    at.until_there_are(0).await;
}

pub(crate) async fn they_get_the_lock_when_we_release_it(at: impl Meeting) {
    let (ours, theirs) = at.both().await;
    let guard = ours.acquire(NOW).await.expect("nobody has it");
    let waiter = wait(theirs).await;
    at.until_there_are(2).await;
    release(guard).await;
    let mut theirs = waiter.await.unwrap();
    assert!(ours.acquire(NOW).await.is_none());
    assert_ne!(theirs.release().await, Some(false));
    at.until_there_are(0).await;
}

pub(crate) async fn they_get_the_lock_of_a_process_of_ours_that_is_gone(at: impl Meeting) {
    let (mut theirs, there) = (at.theirs().await, at.clone());
    let asked = Instant::now();
    // With its runtime goes all that would renew or release the lock.
    let gone = thread::spawn(move || {
        runtime().block_on(async { mem::forget(there.ours_for(SHORT).await.hold().await) });
    });
    gone.join().unwrap();
    assert!(!theirs.acquire(NOW).await);
    assert!(theirs.acquire(PATIENCE).await);
    assert!(asked.elapsed() >= SHORT, "{:?}", asked.elapsed());
    assert_ne!(theirs.release().await, Some(false));
    at.until_there_are(0).await;
}

pub(crate) async fn our_renewal_keeps_them_out(at: impl Meeting) {
    let (ours, mut theirs) = (at.ours_for(SHORT).await, at.theirs().await);
    let guard = ours.hold().await;
    assert!(!theirs.acquire(SHORT * 3 / 2).await);
    at.is_untouched(&guard).await;
    release(guard).await;
}

pub(crate) async fn they_cannot_touch_the_lock_that_replaced_theirs(at: impl Meeting) {
    let (ours, mut theirs) = at.both().await;
    assert!(theirs.acquire(NOW).await);
    at.takes_from_them(&ours).await;
    let guard = ours.hold().await;
    // They do not know yet, so it is sent.
    let _ = theirs.release().await;
    at.is_untouched(&guard).await;
    release(guard).await;
    at.until_there_are(0).await;
}

/// Clients that update a counter under one lock.
pub(crate) struct Fleet {
    pub(crate) site: Site,
    pub(crate) name: String,
    pub(crate) tokens: Mutex<Vec<Token>>,
}

/// Of each client.
pub(crate) const UPDATES: usize = 4;

impl Fleet {
    pub(crate) fn new(site: &Site, name: &str) -> Arc<Self> {
        Arc::new(Self { site: site.clone(), name: name.to_owned(), tokens: Mutex::default() })
    }

    /// Lets them work side by side, and returns how often they did. Theirs end earlier once the lock is gone for them.
    pub(crate) async fn work(
        self: &Arc<Self>,
        at: &impl Meeting,
        ours: Vec<Ours>,
        theirs: Vec<Box<dyn Peer>>,
    ) -> usize {
        let mut members = JoinSet::new();
        for ours in ours {
            members.spawn_local(Arc::clone(self).we_update(ours));
        }
        for theirs in theirs {
            members.spawn_local(Arc::clone(self).they_update(theirs, at.clone()));
        }
        members.join_all().await.into_iter().sum()
    }

    async fn we_update(self: Arc<Self>, ours: Ours) -> usize {
        for _ in 0..UPDATES {
            let guard = ours.acquire(LONG).await.expect("we were not kept out");
            self.tokens.lock().unwrap().push(guard.token());
            self.site.update_counter(&self.name).await;
            release(guard).await;
        }
        UPDATES
    }

    async fn they_update(self: Arc<Self>, mut theirs: Box<dyn Peer>, at: impl Meeting) -> usize {
        let began = Instant::now();
        let mut done = 0;
        while done < UPDATES {
            if theirs.acquire(SHORT).await {
                self.site.update_counter(&self.name).await;
                assert_ne!(theirs.release().await, Some(false));
                done += 1;
            } else if at.has_moved().await {
                break;
            }
            assert!(began.elapsed() < 4 * LEASE, "they were kept out");
        }
        done
    }

    /// No update was lost, and tokens grew.
    pub(crate) async fn is_right(&self, updates: usize) {
        assert_eq!(self.site.read_counter(&self.name).await, updates, "updates were lost");
        let tokens = self.tokens.lock().unwrap();
        assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "tokens do not grow: {tokens:?}");
    }
}
