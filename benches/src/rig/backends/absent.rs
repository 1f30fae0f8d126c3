//! The stores of a build without the feature `stores`: there is no way to connect to them.

#![allow(
    clippy::needless_pass_by_ref_mut,
    clippy::unused_async,
    reason = "they are called as the others are"
)]

use crate::data::{Failure, Outcome};

fn absent<T>() -> Outcome<T> {
    Err(Failure::new("this build measures no etcd, MySQL, SQLite and S3: build it with the feature `stores`"))
}

/// A store that compares and swaps.
macro_rules! store {
    ($name:ident) => {
        #[derive(Clone, Debug)]
        pub(crate) enum $name {}

        impl $name {
            pub(crate) async fn connect(_: &str) -> Outcome<Self> {
                absent()
            }

            pub(crate) async fn swap(&self, _: &str, _: u64, _: &[u8]) -> Outcome<bool> {
                match *self {}
            }

            pub(crate) async fn version(&self) -> Outcome<String> {
                match *self {}
            }
        }
    };
}

pub(crate) mod etcd {
    use super::{Outcome, absent};

    store!(Etcd);

    pub(crate) enum KeyWatch {}

    impl Etcd {
        pub(crate) async fn watch(&self, _: &str) -> Outcome<KeyWatch> {
            match *self {}
        }

        pub(crate) async fn lease(&self, _: i64) -> Outcome<i64> {
            match *self {}
        }

        pub(crate) async fn lock(&self, _: &str, _: i64) -> Outcome<Vec<u8>> {
            match *self {}
        }

        pub(crate) async fn unlock(&self, _: Vec<u8>) -> Outcome<()> {
            match *self {}
        }
    }

    impl KeyWatch {
        pub(crate) async fn changed(&mut self) -> Outcome<()> {
            match *self {}
        }
    }

    pub(crate) async fn clean(_: &str, _: &str) -> Outcome<()> {
        absent()
    }
}

pub(crate) mod mysql {
    use super::{Outcome, absent};

    store!(Mysql);

    #[derive(Debug)]
    pub(crate) enum Session {}

    impl Mysql {
        pub(crate) async fn clean(&self, _: &str, _: &str) -> Outcome<()> {
            match *self {}
        }
    }

    impl Session {
        pub(crate) async fn open(_: &str) -> Outcome<Self> {
            absent()
        }

        pub(crate) async fn execute(&mut self, _: &str) -> Outcome<()> {
            match *self {}
        }

        pub(crate) async fn number(&mut self, _: &str, _: &[&str]) -> Outcome<Option<i64>> {
            match *self {}
        }
    }
}

pub(crate) mod s3 {
    use super::{Outcome, absent};

    #[derive(Debug)]
    pub(crate) enum Tag {}

    #[derive(Clone, Debug)]
    pub(crate) enum Bucket {}

    impl Bucket {
        pub(crate) fn connect(_: &str) -> Outcome<Self> {
            absent()
        }

        pub(crate) async fn swap(&self, _: &str, _: Option<Tag>, _: &[u8]) -> Outcome<Tag> {
            match *self {}
        }

        pub(crate) async fn clean(&self, _: &str) -> Outcome<()> {
            match *self {}
        }
    }
}

pub(crate) mod sqlite {
    use super::{Outcome, absent};

    store!(Sqlite);

    impl Sqlite {
        pub(crate) async fn clean(&self, _: &str) -> Outcome<()> {
            match *self {}
        }
    }
}
