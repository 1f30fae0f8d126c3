//! The programs and packages that the commands need, and their names.

/// A required program or package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Redis,
    Java,
    ZooKeeper,
    /// A store of locks, and a resource that checks fencing tokens.
    Postgres,
    /// A pooler between clients and PostgreSQL.
    PgBouncer,
    /// Ends a server with the test that started it.
    Setpriv,
    /// With its modules for virtual environments, a separate package of Debian.
    Python,
    Node,
    Npm,
    /// The compiler, a separate package of Debian.
    Javac,
    Curator,
    Go,
    Etcd,
    Maven,
    /// For the report's tests and screenshots, which do without it.
    Chromium,
}

/// The names of a part, for people and for package managers. Without a package it is missing there, or comes with another.
pub(super) struct Names {
    pub(super) name: &'static str,
    pub(super) debian: &'static str,
    /// `dnf` accepts a file in place of a name, which fits Redis and Valkey, and any npm.
    pub(super) fedora: Option<&'static str>,
    pub(super) arch: Option<&'static str>,
    pub(super) brew: Option<&'static str>,
}

impl Part {
    pub(super) fn names(self) -> Names {
        let (name, debian, [fedora, arch, brew]) = match self {
            Self::Redis => (
                "redis-server",
                "redis-server",
                [Some("/usr/bin/redis-server"), Some("valkey"), Some("redis")],
            ),
            Self::Java => (
                "java",
                "default-jre-headless",
                [Some("java-headless"), Some("jre-openjdk-headless"), Some("openjdk")],
            ),
            Self::ZooKeeper => ("ZooKeeper", "zookeeper", [None, None, Some("zookeeper")]),
            Self::Postgres => (
                "PostgreSQL",
                "postgresql",
                [Some("postgresql-server"), Some("postgresql"), Some("postgresql")],
            ),
            Self::PgBouncer => {
                ("pgbouncer", "pgbouncer", [Some("pgbouncer"), Some("pgbouncer"), Some("pgbouncer")])
            }
            Self::Setpriv => ("setpriv", "util-linux", [Some("util-linux"), Some("util-linux"), None]),
            Self::Python => {
                ("python3 with venv", "python3-venv", [Some("python3"), Some("python"), Some("python")])
            }
            Self::Node => ("node", "nodejs", [Some("nodejs"), Some("nodejs"), Some("node")]),
            Self::Npm => ("npm", "npm", [Some("/usr/bin/npm"), Some("npm"), None]),
            Self::Javac => {
                ("javac", "default-jdk-headless", [Some("java-devel"), Some("jdk-openjdk"), Some("openjdk")])
            }
            Self::Curator => ("Curator", "libcurator-recipes-java", [None, None, None]),
            Self::Go => ("go", "golang-go", [Some("golang"), Some("go"), Some("go")]),
            Self::Maven => ("mvn", "maven", [Some("maven"), Some("maven"), Some("maven")]),
            Self::Chromium => ("Chromium", "chromium", [Some("chromium"), Some("chromium"), None]),
            Self::Etcd => ("etcd", "etcd-server", [Some("etcd"), None, Some("etcd")]),
        };
        Names { name, debian, fedora, arch, brew }
    }

    /// The service in its package of Debian.
    pub(super) fn unit(self) -> Option<&'static str> {
        match self {
            Self::Redis => Some("redis-server.service"),
            Self::Postgres => Some("postgresql.service"),
            Self::PgBouncer => Some("pgbouncer.service"),
            Self::Etcd => Some("etcd.service"),
            _ => None,
        }
    }
}

/// The names of these parts, with the verb that follows.
pub(super) fn are(parts: &[Part]) -> String {
    let names: Vec<&str> = parts.iter().map(|part| part.names().name).collect();
    format!("{} {}", names.join(", "), if parts.len() == 1 { "is" } else { "are" })
}
