//! The Redis, or the server that is compatible with it, that the tests run on.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use super::RedisServer;
use crate::error::Result;
use crate::servers::process::locate;
use crate::servers::server_version::{is_before, leave_out};

impl RedisServer {
    /// The name and version of all servers that are started, such as `Redis 7.0.15` and `Valkey 9.1.2`.
    pub fn version() -> &'static str {
        &VERSION
    }

    /// Reports that the test that calls this is left out, as the servers have nothing of the kind. The test has to end then.
    pub fn leave_out(what: &str) {
        leave_out(Self::version(), what);
    }

    /// Whether the servers are older than the version that brought `what`, for which the test is [left out](Self::leave_out) then.
    pub fn lacks(what: &str, since: (u32, u32)) -> bool {
        let lacks = is_before(Self::version(), since);
        if lacks {
            Self::leave_out(what);
        }
        lacks
    }

    /// Whether the servers were built without TLS, for which the test is [left out](Self::leave_out) then.
    pub fn lacks_tls() -> bool {
        static LACKS: LazyLock<bool> =
            LazyLock::new(|| !output_of(&["--port", "0", "--tls-port", "1"]).contains("tls-cert-file"));
        if *LACKS {
            Self::leave_out("TLS");
        }
        *LACKS
    }
}

/// The server in `REDIS_SERVER`, or else the installed one.
pub(super) fn program() -> Result<PathBuf> {
    match env::var_os("REDIS_SERVER").filter(|path| !path.is_empty()) {
        Some(path) => Ok(path.into()),
        None => locate("redis-server", "apt-get install redis-server"),
    }
}

static VERSION: LazyLock<String> = LazyLock::new(|| read(&output_of(&["--version"])));

/// Reads `Redis server v=7.0.15 sha=...`.
fn read(output: &str) -> String {
    let words = || output.split_whitespace();
    let version = words().find_map(|word| word.strip_prefix("v="));
    format!("{} {}", words().next().unwrap_or("unknown"), version.unwrap_or("unknown"))
}

/// The output of the server, which ends at once with these options.
fn output_of(options: &[&str]) -> String {
    let run = |path| Command::new(path).args(options).stdin(Stdio::null()).output().ok();
    let output = program().ok().and_then(run);
    output.map_or_else(String::new, |output| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_called_by_its_name() {
        assert_eq!(read("Valkey server v=9.1.2 sha=00000000:1 malloc=libc"), "Valkey 9.1.2");
        let version = RedisServer::version();
        assert!(version.split_whitespace().count() == 2 && !version.contains("unknown"), "{version}");
        assert!(!RedisServer::lacks("the command GET", (1, 0)));
    }
}
