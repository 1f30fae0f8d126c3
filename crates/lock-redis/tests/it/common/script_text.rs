//! The texts of the scripts that the backends send.

use lock_redis::server::Server;
use lock_redlock::ballot;

/// The script of these parts, as its backend put it together.
pub fn source(parts: &str) -> &'static str {
    let of_master = || ballot::SCRIPTS.iter().find(|script| script.parts() == parts).map(|script| &***script);
    let script = Server::script(parts).or_else(of_master);
    script.unwrap_or_else(|| panic!("no backend has a script of {parts}")).source()
}
