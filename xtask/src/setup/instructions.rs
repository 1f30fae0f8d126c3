//! What to type where the set-up cannot install.

use std::fmt::Write as _;

use super::part::{Names, Part};

/// The commands that install these parts on each system.
pub(super) fn instructions(missing: &[Part]) -> String {
    let debian: Vec<&str> = missing.iter().map(|part| part.names().debian).collect();
    let debian = format!(
        "sudo apt-get update && sudo apt-get install -y --no-install-recommends {}",
        debian.join(" ")
    );
    let lines = |part, lines: &'static [&'static str]| if missing.contains(&part) { lines } else { &[] };
    let curator = lines(Part::Curator, DOWNLOAD_CURATOR);
    let by_hand = [lines(Part::ZooKeeper, DOWNLOAD), curator].concat();
    let from_brew = [lines(Part::ZooKeeper, FROM_BREW), curator].concat();
    let packages = |command: &str, of: fn(Names) -> Option<&'static str>| {
        let names: Vec<&str> = missing.iter().filter_map(|part| of(part.names())).collect();
        (!names.is_empty()).then(|| format!("{command} {}", names.join(" ")))
    };
    let mut text = String::from("Install what is missing, then run the same command again.\n");
    section(&mut text, "Debian, Ubuntu:", Some(debian), &[]);
    section(&mut text, "Fedora, RHEL:", packages("sudo dnf install -y", |names| names.fedora), &by_hand);
    section(&mut text, "Arch:", packages("sudo pacman -S --needed", |names| names.arch), &by_hand);
    section(&mut text, "macOS:", packages("brew install", |names| names.brew), &from_brew);
    text
}

fn section(text: &mut String, title: &str, install: Option<String>, more: &[&str]) {
    let lines: Vec<&str> = install.as_deref().into_iter().chain(more.iter().copied()).collect();
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{title}");
    for line in lines {
        let _ = writeln!(text, "    {line}");
    }
}

const DOWNLOAD: &[&str] = &[
    "curl -fsSL https://archive.apache.org/dist/zookeeper/zookeeper-3.8.4/apache-zookeeper-3.8.4-bin.tar.gz | tar xz",
    "export ZOOKEEPER_CLASSPATH=\"$PWD/apache-zookeeper-3.8.4-bin/lib/*\"",
];
const FROM_BREW: &[&str] = &["export ZOOKEEPER_CLASSPATH=\"$(brew --prefix zookeeper)/libexec/lib/*\""];
const DOWNLOAD_CURATOR: &[&str] = &[
    "mvn() { curl -fsSL --create-dirs --output-dir curator -O https://repo1.maven.org/maven2/$1/$2/$3/$2-$3.jar; }",
    "for part in client framework recipes; do mvn org/apache/curator curator-$part 5.4.0; done",
    "mvn com/google/guava guava 31.1-jre; mvn com/google/guava failureaccess 1.0.1",
    "export CURATOR_CLASSPATH=\"$PWD/curator/*:$ZOOKEEPER_CLASSPATH\"",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_name_only_what_is_missing() {
        let text = instructions(&[Part::Redis]);
        assert!(text.contains("apt-get install -y --no-install-recommends redis-server\n"), "{text}");
        assert!(text.contains("sudo dnf install -y /usr/bin/redis-server\n"), "{text}");
        assert!(text.contains("sudo pacman -S --needed valkey\n"), "{text}");
        assert!(text.contains("brew install redis\n"), "{text}");
        assert!(!text.to_lowercase().contains("zookeeper"), "{text}");
    }

    #[test]
    fn instructions_for_zookeeper_are_complete_where_it_is_not_packaged() {
        let text = instructions(&[Part::ZooKeeper]);
        assert_eq!(text.matches("apache-zookeeper-3.8.4-bin.tar.gz").count(), 2, "{text}");
        assert_eq!(text.matches("export ZOOKEEPER_CLASSPATH=").count(), 3, "{text}");
        assert!(!text.contains("dnf install"), "{text}");
    }

    #[test]
    fn instructions_for_interpreters_name_each_package_once() {
        let text = instructions(&[Part::Python, Part::Node, Part::Npm]);
        assert!(text.contains("--no-install-recommends python3-venv nodejs npm\n"), "{text}");
        assert!(text.contains("sudo dnf install -y python3 nodejs /usr/bin/npm\n"), "{text}");
        assert!(text.contains("brew install python node\n"), "{text}");
    }

    #[test]
    fn instructions_for_curator_are_complete_where_it_is_not_packaged() {
        let text = instructions(&[Part::Javac, Part::Curator]);
        assert!(text.contains("default-jdk-headless libcurator-recipes-java\n"), "{text}");
        assert_eq!(text.matches("export CURATOR_CLASSPATH=").count(), 3, "{text}");
        assert!(!text.contains("export ZOOKEEPER_CLASSPATH="), "{text}");
    }
}
