//! Which stores the command works on, and the connection to them.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
#[cfg(unix)]
use polylock::FlockConfig;
use polylock::backend::LockUrl;
use polylock::zk::unreachable;
use polylock::{Locks, MigrationConfig, Operator};
use tokio::time::sleep;

use crate::failure::Failure;
use crate::output::{Output, printable};

/// The store of the locks.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LocksOptions {
    /// The store, such as redis://host or zk://host:2181: the URL that services use [env: POLYLOCK_URL]. (The environment
    /// hides a password from other users, the command line does not)
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

/// Connects to the store.
pub(crate) async fn locks(options: LocksOptions, output: Output) -> Result<Locks, Failure> {
    let url = options.url()?;
    Ok(mentioning(&url, output, Box::pin(Locks::connect(&url))).await?)
}

/// Makes a connection, and mentions if that takes more than a moment.
pub(crate) async fn mentioning<T>(
    url: &str,
    output: Output,
    mut connect: impl Future<Output = T> + Unpin,
) -> T {
    #[cfg(unix)]
    mention_missing_directory(url, output);
    let mention = async {
        sleep(SILENT_WAIT).await;
        if !output.is_quiet() {
            output.note(&format!("the store does not answer yet{}; still trying", reasons(url).await));
        }
    };
    tokio::select! {
        connected = &mut connect => connected,
        () = mention => connect.await,
    }
}

/// Why the servers cannot be reached, of a store whose client retries without an error. Other clients report it at once.
pub(crate) async fn reasons(url: &str) -> String {
    match LockUrl::parse(url) {
        Ok(url) if ["zk", "zks"].contains(&&*url.scheme) => {
            let reasons = unreachable(&url.hosts).await;
            reasons.iter().map(|reason| format!(": {}", printable(reason))).collect()
        }
        _ => String::new(),
    }
}

/// A longer wait is mentioned.
pub(crate) const SILENT_WAIT: Duration = Duration::from_secs(1);

/// Says that the directory of `flock://` does not exist: its name may be wrong.
#[cfg(unix)]
fn mention_missing_directory(url: &str, output: Output) {
    let config = FlockConfig::from_url(url).ok().filter(|_| url.starts_with("flock:"));
    if let Some(config) = config.filter(|config| !config.dir().exists()) {
        let dir = printable(&config.dir().display().to_string());
        output
            .say(&format!("polylock: the directory {dir} does not exist: `polylock run` and `hold` make it"));
    }
}

impl LocksOptions {
    /// The URL of the store. The command line takes precedence over the environment.
    pub(crate) fn url(&self) -> Result<String, Failure> {
        self.url_or(|name| env::var(name).ok())
    }

    fn url_or(&self, variable: impl Fn(&str) -> Option<String>) -> Result<String, Failure> {
        let url = self.url.clone().or_else(|| variable(LOCKS_VARIABLE)).filter(|url| !url.is_empty());
        let Some(url) = url else {
            let hint = "use --url, such as redis://host or zk://host:2181, or set POLYLOCK_URL";
            let below =
                "; polylock run removes it from the environment of its command, unless --keep-url is there";
            let is_below = variable(TOKEN_VARIABLE).is_some();
            return Err(Failure::usage(
                "no store is named",
                format!("{hint}{}", if is_below { below } else { "" }),
            ));
        };
        // Inside this process nobody else could take part.
        if url.starts_with("memory:") {
            return Err(Failure::usage(
                "the locks of memory:// end with this process",
                "name a store that others share, such as redis://host or zk://host:2181",
            ));
        }
        Ok(url)
    }
}

const LOCKS_VARIABLE: &str = "POLYLOCK_URL";
/// The token of the lock under which this process runs.
pub(crate) const TOKEN_VARIABLE: &str = "POLYLOCK_TOKEN";

/// The stores of a migration.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Stores")]
pub(crate) struct StoreOptions {
    /// The migration, by the URL that its processes use: migrate://NAMESPACE?from=URL&to=URL, both URLs percent-encoded [env:
    /// POLYLOCK_MIGRATE_URL, or POLYLOCK_URL]
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,

    /// The namespace of the migration, with --from and --to instead of --url
    #[arg(long, global = true, value_name = "NAME")]
    namespace: Option<String>,

    /// The store that locks move from, such as redis://user@host. (The environment hides a password from other users, the
    /// command line does not)
    #[arg(long, global = true, value_name = "URL")]
    from: Option<String>,

    /// The store that locks move to, such as zk://host:2181
    #[arg(long, global = true, value_name = "URL")]
    to: Option<String>,
}

/// Connects to the new store, and to the old one when it is first needed.
pub(crate) async fn operator(options: StoreOptions, output: Output) -> Result<Operator, Failure> {
    let (config, from, to) = options.stores(|name| env::var(name).ok())?;
    let (old, new) = (Locks::connect_lazy(&from)?, Locks::connect_lazy(&to)?);
    let operate = config.operate(Arc::clone(old.backend()), Arc::clone(new.backend()));
    Ok(mentioning(&to, output, Box::pin(operate)).await?)
}

impl StoreOptions {
    /// The migration and the URLs of both stores. The command line takes precedence over the environment.
    fn stores(
        self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<(MigrationConfig, String, String), Failure> {
        let url = match self {
            Self { url: Some(url), namespace: None, from: None, to: None } => url,
            Self { url: Some(_), .. } => {
                return Err(Failure::usage(
                    "--url names the migration and both stores",
                    "leave out --namespace, --from and --to, or leave out --url",
                ));
            }
            Self { url: None, namespace: Some(namespace), from: Some(from), to: Some(to) } => {
                return Ok((MigrationConfig::new(namespace), from, to));
            }
            Self { url: None, namespace: None, from: None, to: None } => from_environment(variable)?,
            Self { namespace, from, to, .. } => {
                let given = [("--namespace", namespace), ("--from", from), ("--to", to)];
                let missing: Vec<_> =
                    given.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| *name).collect();
                return Err(Failure::usage(
                    format!("missing: {}", missing.join(" and ")),
                    "give --namespace, --from and --to together, or --url",
                ));
            }
        };
        Ok(MigrationConfig::from_url(&url)?)
    }
}

fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<String, Failure> {
    if let Some(url) = VARIABLES.into_iter().find_map(|name| variable(name).filter(|url| !url.is_empty())) {
        if url.starts_with("migrate://") {
            return Ok(url);
        }
        // It is not shown: it may have a password.
        return Err(Failure::usage(
            "the URL in the environment is not one of a migration",
            "set POLYLOCK_MIGRATE_URL to migrate://NAMESPACE?from=URL&to=URL, or use --url",
        ));
    }
    Err(Failure::usage(
        "no migration is named",
        "use --url migrate://NAMESPACE?from=URL&to=URL, or --namespace, --from and --to, or set POLYLOCK_MIGRATE_URL",
    ))
}

/// The second one is that of services, whose user of the old store may lack the rights of an operator.
pub(crate) const VARIABLES: [&str; 2] = ["POLYLOCK_MIGRATE_URL", LOCKS_VARIABLE];

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "migrate://shop?from=redis%3A%2F%2Fa&to=zk%3A%2F%2Fb";

    fn options(url: Option<&str>, parts: [Option<&str>; 3]) -> StoreOptions {
        let [namespace, from, to] = parts.map(|part| part.map(ToOwned::to_owned));
        StoreOptions { url: url.map(ToOwned::to_owned), namespace, from, to }
    }

    fn stores(options: StoreOptions, variables: [Option<&str>; 2]) -> Result<(String, String), String> {
        let read = |name: &str| {
            let at = VARIABLES.iter().position(|known| *known == name)?;
            variables[at].map(ToOwned::to_owned)
        };
        options.stores(read).map(|(_, from, to)| (from, to)).map_err(|failure| failure.message)
    }

    #[test]
    fn stores_are_named_by_one_url_or_by_three_options() {
        let both = Ok(("redis://a".to_owned(), "zk://b".to_owned()));
        assert_eq!(stores(options(Some(URL), [None; 3]), [None; 2]), both);
        let parts = [Some("shop"), Some("redis://a"), Some("zk://b")];
        assert_eq!(stores(options(None, parts), [Some("migrate://x"), None]), both);
        let error = stores(options(Some(URL), parts), [None; 2]).unwrap_err();
        assert!(error.contains("--url names"), "{error}");
        let error = stores(options(None, [None, Some("redis://a"), None]), [Some(URL), None]).unwrap_err();
        assert_eq!(error, "missing: --namespace and --to");
    }

    #[test]
    fn locks_are_named_by_the_command_line_or_the_environment() {
        let named = |url: Option<&str>, variable: Option<&str>| {
            let options = LocksOptions { url: url.map(ToOwned::to_owned) };
            options.url_or(|name| variable.filter(|_| name == "POLYLOCK_URL").map(ToOwned::to_owned))
        };
        assert_eq!(named(Some("zk://a"), Some("zk://b")).unwrap(), "zk://a");
        assert_eq!(named(None, Some("zk://b")).unwrap(), "zk://b");
        for nothing in [None, Some("")] {
            assert!(named(None, nothing).unwrap_err().message.contains("no store"));
        }
    }

    #[test]
    fn the_environment_counts_after_the_command_line_and_shows_no_password() {
        let both = Ok(("redis://a".to_owned(), "zk://b".to_owned()));
        let none = || options(None, [None; 3]);
        assert_eq!(stores(none(), [Some(URL), Some("migrate://x")]), both);
        assert_eq!(stores(none(), [None, Some(URL)]), both);
        assert_eq!(stores(options(Some(URL), [None; 3]), [Some("redis://x"), None]), both);
        let error = stores(none(), [None, Some("redis://:secret@a")]).unwrap_err();
        assert!(error.contains("not one of a migration") && !error.contains("secret"), "{error}");
        assert!(stores(none(), [None; 2]).unwrap_err().contains("no migration"));
    }
}
