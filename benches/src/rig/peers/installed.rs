//! Where `cargo xtask setup` installs the peers that are no Rust crates.

use std::fs;
use std::path::{Path, PathBuf};

use crate::data::Peer;

pub(super) fn folder_of(language: &str) -> PathBuf {
    target().join("peers").join(language)
}

/// The target directory of this program.
pub(crate) fn target() -> PathBuf {
    let exe = std::env::current_exe().ok();
    exe.and_then(|exe| Some(exe.parent()?.parent()?.to_owned())).unwrap_or_default()
}

/// Why a peer cannot be measured, if its packages are not installed: the set-up notes what it has installed, or else why it could
/// not.
pub(crate) fn missing(peer: Peer) -> Option<String> {
    missing_in(&folder_of(peer.packages()?))
}

fn missing_in(folder: &Path) -> Option<String> {
    if folder.join(INSTALLED).is_file() {
        return None;
    }
    let why = fs::read_to_string(folder.join(MISSING)).ok();
    let why = why.as_deref().map(str::trim).filter(|why| !why.is_empty());
    Some(why.unwrap_or("not installed; `cargo xtask setup` installs it").to_owned())
}

const INSTALLED: &str = "installed";
const MISSING: &str = "missing";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_package_has_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let advice = "not installed; `cargo xtask setup` installs it";
        assert_eq!(missing_in(folder.path()).as_deref(), Some(advice));
        fs::write(folder.path().join(MISSING), "go is not installed\n").unwrap();
        assert_eq!(missing_in(folder.path()).as_deref(), Some("go is not installed"));
        fs::write(folder.path().join(INSTALLED), "redis==8").unwrap();
        assert_eq!(missing_in(folder.path()), None);
    }
}
