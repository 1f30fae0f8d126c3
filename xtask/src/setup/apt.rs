//! Installs packages of Debian.
//!
//! The packaged services of Redis, PostgreSQL, PgBouncer and etcd must not run, as the tests start their own servers. Without systemd (a
//! container) Debian does not start them; under systemd a unit is masked while its package is installed and disabled
//! afterwards. The package `zookeeper` has no service.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::command::{in_path, output_of, succeeds};
use super::instructions::instructions;
use super::part::{Part, are};
use crate::failure::Failure;
use crate::interrupt;

/// Installs these parts; with a limit, each command of apt-get is ended when it takes longer.
///
/// # Errors
///
/// When they cannot be installed: the message has the commands to type.
pub(super) fn install(missing: &[Part], limit: Option<Duration>) -> Result<(), Failure> {
    let why_not = match privilege() {
        _ if in_path("apt-get").is_none() => "this system has no apt-get",
        None => "this is not root, and sudo is missing or asks for a password",
        Some(prefix) => return install_with_apt(missing, prefix, limit),
    };
    Err(Failure::new(format!(
        "{} missing, and cannot be installed: {why_not}\n\n{}",
        are(missing),
        instructions(missing)
    )))
}

fn install_with_apt(missing: &[Part], prefix: &[&str], limit: Option<Duration>) -> Result<(), Failure> {
    eprintln!("    set-up: {} missing: installing with apt-get", are(missing));
    let systemd = Path::new("/run/systemd/system").is_dir();
    let units = missing.iter().filter_map(|part| part.unit()).filter(|_| systemd).collect::<Vec<_>>();
    for unit in &units {
        attempt(prefix, &["systemctl", "--quiet", "mask", "--runtime", unit]);
    }
    let installed = apt(prefix, missing, limit);
    for unit in &units {
        attempt(prefix, &["systemctl", "--quiet", "unmask", "--runtime", unit]);
        if installed.is_ok() {
            attempt(prefix, &["systemctl", "--quiet", "disable", unit]);
        }
    }
    installed
}

fn apt(prefix: &[&str], missing: &[Part], limit: Option<Duration>) -> Result<(), Failure> {
    // Behind sudo only root can end it, which `timeout` does. Debian has it.
    let seconds = limit.unwrap_or_default().as_secs().to_string();
    let timed: &[&str] = if limit.is_some() { &["timeout", "--foreground", &seconds] } else { &[] };
    let apt = [timed, &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"], APT_OPTIONS].concat();
    // An unreachable package source fails the update, but need not fail the installation.
    attempt(prefix, &[&apt[..], &["update"]].concat());
    interrupt::check()?;
    let packages: Vec<&str> = missing.iter().map(|part| part.names().debian).collect();
    let install = [&apt[..], &["install", "-y", "--no-install-recommends"], &packages].concat();
    let line = [prefix, &install].concat().join(" ");
    let done = attempt(prefix, &install);
    interrupt::check()?;
    if done { Ok(()) } else { Err(Failure::new(format!("`{line}` failed; its output is above"))) }
}

fn attempt(prefix: &[&str], words: &[&str]) -> bool {
    let words = [prefix, words].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    succeeds(&mut command)
}

/// The prefix of a command that must run as root, if that is possible without a password.
fn privilege() -> Option<&'static [&'static str]> {
    let root = output_of(Command::new("id").arg("-u")).is_ok_and(|id| id.stdout.trim_ascii() == b"0");
    if root {
        return Some(&[]);
    }
    in_path("sudo")?;
    let allowed = output_of(Command::new("sudo").args(["-n", "true"])).ok()?.status.success();
    allowed.then_some(&["sudo", "-n"])
}

/// Another apt-get may be running, above all on a new machine.
const APT_OPTIONS: &[&str] = &["-q", "-o", "DPkg::Lock::Timeout=300"];
