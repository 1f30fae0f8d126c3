//! Curator: jars of the system, or of a class path of the environment.

use std::path::Path;

/// Compiling the program that uses it shows whether it is usable.
pub(super) fn version() -> Option<String> {
    if chosen().is_some() {
        return Some("of an unknown version".into());
    }
    let jars = Path::new(DEBIAN_JARS).read_dir().ok()?;
    let names = jars.filter_map(|jar| jar.ok()?.file_name().into_string().ok());
    names
        .filter_map(|name| Some(name.strip_prefix("curator-recipes-")?.strip_suffix(".jar")?.to_owned()))
        .next()
}

/// The class path of Curator and its dependencies.
pub(crate) fn class_path() -> String {
    // The manifest of the first jar names its dependencies, except for a logger.
    chosen().unwrap_or_else(|| {
        ["curator-recipes", "slf4j-simple"].map(|jar| format!("{DEBIAN_JARS}/{jar}.jar")).join(":")
    })
}

fn chosen() -> Option<String> {
    std::env::var(CURATOR_CLASSPATH).ok().filter(|path| !path.is_empty())
}

/// The variable for a Curator that is not a Debian package.
const CURATOR_CLASSPATH: &str = "CURATOR_CLASSPATH";
const DEBIAN_JARS: &str = "/usr/share/java";
