//! A file with a password, which a test changes.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

/// A file with a password, in a temporary directory. `Display` is its path.
#[derive(Debug)]
pub struct SecretFile {
    dir: TempDir,
}

impl SecretFile {
    /// Makes a file with this password.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    #[must_use]
    pub fn new(password: &str) -> Self {
        let file =
            Self { dir: TempDir::with_prefix("lock-testkit-secret-").expect("make a temporary directory") };
        file.change(password);
        file
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("password")
    }

    /// Replaces the password.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn change(&self, password: &str) {
        fs::write(self.path(), format!("{password}\n")).expect("write the password");
    }

    /// Removes the file.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn remove(&self) {
        fs::remove_file(self.path()).expect("remove the password");
    }
}

impl fmt::Display for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path().display().fmt(f)
    }
}
