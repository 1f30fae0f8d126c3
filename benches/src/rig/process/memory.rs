//! The memory of processes.

use super::children;
use crate::data::{Failure, Outcome};

/// The anonymous memory of this process that is resident, in bytes.
pub(crate) fn of_this_process() -> Outcome<u64> {
    of_one(std::process::id())
}

/// The sum of the anonymous memory of these servers that is resident, in bytes, with that of the processes that they have started.
pub(crate) fn of(servers: &[u32]) -> Outcome<u64> {
    let mut bytes = 0;
    for &pid in servers {
        // A child may have ended meanwhile.
        let of_children: u64 = children(pid).into_iter().filter_map(|child| of_one(child).ok()).sum();
        bytes += of_one(pid)? + of_children;
    }
    Ok(bytes)
}

fn of_one(pid: u32) -> Outcome<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kilobytes =
        anonymous(&status).ok_or_else(|| Failure::new(format!("/proc/{pid}/status has no RssAnon")))?;
    Ok(kilobytes * 1024)
}

fn anonymous(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_in_use_is_resident() {
        let before = of_this_process().unwrap();
        let used = vec![1_u8; 16 << 20];
        assert!(of_this_process().unwrap() >= before + (8 << 20), "{}", used.len());
        assert_eq!(of(&[]).unwrap(), 0);
        assert_eq!(anonymous("VmRSS:  12 kB\nRssAnon:\t  34 kB\n"), Some(34));
    }
}
