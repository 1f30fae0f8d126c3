//! The recipes: how a lock is represented in the tree.

/// How a lock is represented in the tree. All clients that share a lock need the same recipe.
///
/// # Examples
///
/// ```
/// # use lock_zk::{ZkConfig, ZkRecipe, ZkWait};
/// let config = ZkConfig::from_url("zk://a:2181?recipe=ephemeral")?;
/// let same = ZkConfig::new("a:2181").recipe(ZkRecipe::Ephemeral(ZkWait::Watch));
/// # assert_eq!(format!("{config:?}"), format!("{same:?}"));
/// # Ok::<_, lock_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ZkRecipe {
    /// A queue of ephemeral sequential nodes in a directory of the lock: fair, and a release wakes one or two waiters.
    #[default]
    Queue,
    /// One ephemeral node of a fixed name; the client that creates it holds the lock. Symfony's `ZookeeperStore` and many
    /// homemade locks do it so. For fleets that run it already, and for comparison.
    ///
    /// **It is not fair**: a waiter may never get its turn. There are no read/write locks and no semaphores, and waiters
    /// are not counted. Where nodes of both recipes meet under one name, one of the clients is refused or waits; they
    /// never both hold the lock.
    ///
    /// The server deletes by name alone, so a release looks first whether the node is still its own, by a round trip
    /// through the quorum. Between that look and the deletion, another client's lock can be deleted:
    ///
    /// * By a release, if in that gap the lock is [broken](lock_core::Locks::break_lock) or an operator deletes the node,
    ///   and another client takes the lock. The end of the holder's own session opens no such gap, as the servers refuse
    ///   its later requests.
    /// * By `break_lock`, if in that gap the holder releases the lock or its session expires, and another client takes it.
    Ephemeral(ZkWait),
}

/// How the recipe [`Ephemeral`](ZkRecipe::Ephemeral) waits.
///
/// # Examples
///
/// ```
/// # use lock_zk::{ZkConfig, ZkRecipe, ZkWait};
/// let config = ZkConfig::new("a:2181").recipe(ZkRecipe::Ephemeral(ZkWait::Poll));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ZkWait {
    /// All waiters watch the node, and try to create it when it is deleted (the herd effect).
    #[default]
    Watch,
    /// Each waiter polls the node, at random intervals of 50 to 150 ms.
    Poll,
}
