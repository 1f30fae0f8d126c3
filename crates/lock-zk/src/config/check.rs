//! Refuses options that cannot work.

use lock_core::Result;

use super::{ZkConfig, invalid};

impl ZkConfig {
    pub(crate) fn check(&self) -> Result<()> {
        if self.hosts.is_empty() || self.hosts.split(',').any(|host| !is_host(host)) {
            return Err(invalid("the list of hosts is not valid", "write host:port[,host:port...]"));
        }
        self.check_security()?;
        if self.locks_per_session == 0 {
            return Err(invalid("locks_per_session is zero", "use at least 1, or leave it out"));
        }
        if self.jute_maxbuffer < LEAST_BUFFER {
            return Err(invalid(
                &format!("a jute_maxbuffer of {} bytes is too small", self.jute_maxbuffer),
                &format!("use at least {LEAST_BUFFER}; servers read {} by default", Self::JUTE_MAXBUFFER),
            ));
        }
        for (what, path) in [("chroot", &self.chroot), ("dir", &self.dir)] {
            let empty = path.is_empty() && what == "chroot" || path == "/";
            if !empty && !is_path(path) {
                return Err(invalid(
                    &format!("the {what} {path:?} is not a path"),
                    "start it with a slash, end it without one, and leave out . and .. and control characters",
                ));
            }
        }
        if self.chroot.is_empty() && (self.dir == "/zookeeper" || self.dir.starts_with("/zookeeper/")) {
            return Err(invalid(
                "the dir is below /zookeeper, which ZooKeeper keeps for itself",
                "choose another dir",
            ));
        }
        if self.session_timeout < Self::MIN_SESSION_TIMEOUT {
            return Err(invalid(
                &format!("a session_timeout of {:?} is too short", self.session_timeout),
                &format!("use at least {:?}; servers grant 4s or more by default", Self::MIN_SESSION_TIMEOUT),
            ));
        }
        if self.session_timeout.as_millis() > i32::MAX.unsigned_abs().into() {
            return Err(invalid("the session_timeout is too long", "use at most 24 days"));
        }
        if self.connect_timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(invalid("the connect_timeout is zero", "give a longer time or leave it out"));
        }
        Ok(())
    }
}

/// The node of a lock with a long name and the longest label fits into it.
const LEAST_BUFFER: usize = 512 * 1024;

fn is_host(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, "")) => (name, None),
        Some((name, port)) => (name, Some(port.strip_prefix(':').unwrap_or("?"))),
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    let port_is_fine = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"/?#@[]".contains(&byte);
    !name.is_empty() && name.bytes().all(plain) && port_is_fine
}

fn is_path(path: &str) -> bool {
    let levels = path.strip_prefix('/').map(|path| path.split('/'));
    levels.is_some_and(|mut levels| {
        levels.all(|level| {
            let plain = |c: char| {
                !c.is_control() && !matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{10ffff}')
            };
            !matches!(level, "" | "." | "..") && level.chars().all(plain)
        })
    })
}
