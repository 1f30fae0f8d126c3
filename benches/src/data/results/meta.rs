//! Where, when and how a run was made.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::numbers::quantity;

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Meta {
    pub(crate) date: String,
    pub(crate) version: String,
    pub(crate) cores: usize,
    pub(crate) cpu: String,
    pub(crate) kernel: String,
    pub(crate) redis: Option<String>,
    pub(crate) zookeeper: Option<String>,
    #[serde(default)]
    pub(crate) postgres: Option<String>,
    /// The versions of other servers, by their backends.
    #[serde(default)]
    pub(crate) others: BTreeMap<String, String>,
    pub(crate) mode: Mode,
    pub(crate) command: String,
    pub(crate) duration_s: f64,
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) note: String,
    #[serde(default)]
    pub(crate) interrupted: Option<String>,
    #[serde(default = "once")]
    pub(crate) repeats: u32,
}

impl Meta {
    /// What is known at the start; servers, settings and duration are filled in later.
    pub(crate) fn of_this_run(mode: Mode) -> Self {
        Self {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            cpu: cpu_model(),
            kernel: kernel(),
            redis: None,
            zookeeper: None,
            postgres: None,
            others: BTreeMap::new(),
            mode,
            command: command_line(std::env::args().skip(1)),
            duration_s: 0.0,
            settings: BTreeMap::new(),
            note: NOTE.to_owned(),
            interrupted: None,
            repeats: once(),
        }
    }
}

impl Meta {
    /// `polylock 0.1.0, quick run of 31.4 s on 2026-11-20, 2 cores (...), Linux 6.1.0`
    pub(crate) fn machine(&self) -> String {
        let Self { version, mode, cores, cpu, kernel, .. } = self;
        let (took, day) = (quantity(self.duration_s, "s"), self.date.get(..10).unwrap_or(&self.date));
        format!("polylock {version}, {mode} run of {took} on {day}, {cores} cores ({cpu}), {kernel}")
    }

    /// The servers that ran, with their versions.
    pub(crate) fn servers(&self) -> String {
        let known = [("Redis", &self.redis), ("ZooKeeper", &self.zookeeper), ("PostgreSQL", &self.postgres)];
        let known = known.into_iter().filter_map(|(name, version)| Some((name, version.as_ref()?)));
        let all = known.chain(self.others.iter().map(|(name, version)| (&**name, version)));
        all.map(|(name, version)| format!("{name} {version}")).collect::<Vec<_>>().join(", ")
    }
}

/// How long the scenarios run.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Seconds: enough to see that everything works.
    Quick,
    /// Minutes: enough to compare.
    Full,
}

impl Mode {
    /// What fits this mode.
    pub(crate) fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quick => "quick",
            Self::Full => "full",
        })
    }
}

const fn once() -> u32 {
    1
}

fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| matches!(key.trim(), "model name" | "Model" | "Hardware"))
        .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.trim().to_owned())
}

fn kernel() -> String {
    let part = |name: &str| std::fs::read_to_string(Path::new("/proc/sys/kernel").join(name)).ok();
    match (part("ostype"), part("osrelease")) {
        (Some(name), Some(release)) => format!("{} {}", name.trim(), release.trim()),
        _ => std::env::consts::OS.to_owned(),
    }
}

fn command_line(args: impl Iterator<Item = String>) -> String {
    let words = args.map(|arg| {
        let arg = without_secrets(&arg);
        if arg.is_empty() || arg.contains(char::is_whitespace) { format!("'{arg}'") } else { arg }
    });
    ["cargo xtask compare".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// Removes credentials and the values of secret options from an argument that may be a URL.
///
/// Removes everything up to the last `@`, hosts of a list included, so that no odd password remains.
fn without_secrets(arg: &str) -> String {
    let Some((scheme, rest)) = arg.split_once("://") else { return arg.to_owned() };
    let rest = rest.rsplit_once('@').map_or_else(|| rest.to_owned(), |(_, host)| format!("***@{host}"));
    let Some((place, query)) = rest.split_once('?') else { return format!("{scheme}://{rest}") };
    let options = query.split('&').map(|option| match option.split_once('=') {
        Some((name, _)) if SECRETS.iter().any(|word| name.to_lowercase().contains(word)) => {
            format!("{name}=***")
        }
        _ => option.to_owned(),
    });
    format!("{scheme}://{place}?{}", options.collect::<Vec<_>>().join("&"))
}

const SECRETS: &[&str] = &["auth", "digest", "pass", "secret", "token"];
const NOTE: &str = "Machines are noisy, shared ones above all. Compare numbers of one run with each other; \
                    the ratios to the floor, which is measured in turn with the lock, compare best between machines.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_keeps_no_password() {
        let args = ["--url", "redis=redis://me:p@ss/w?rd@host:1/0", "--quick", "a b"].map(str::to_owned);
        let line = command_line(args.into_iter());
        assert_eq!(line, "cargo xtask compare --url redis=redis://***@host:1/0 --quick 'a b'");
        assert_eq!(without_secrets("zk://a:1,b:2/app?auth=me:secret&x=1"), "zk://a:1,b:2/app?auth=***&x=1");
        assert_eq!(without_secrets("redlock://:p1@a:1,:p2@b:2"), "redlock://***@b:2");
        assert_eq!(without_secrets("zk=zk://a:1/x"), "zk=zk://a:1/x");
    }

    #[test]
    fn this_run_knows_its_machine() {
        let meta = Meta::of_this_run(Mode::Full);
        assert!(meta.cores > 0 && !meta.cpu.is_empty() && !meta.kernel.is_empty());
        assert!(meta.date.ends_with('Z') && meta.date.len() == 20, "{}", meta.date);
        assert!(meta.command.starts_with("cargo xtask compare"), "{}", meta.command);
    }
}
