//! Moves the locks of a running fleet from Redis to ZooKeeper, and back, without a moment of double locking.
#![cfg_attr(docsrs, feature(doc_cfg))]
