//! The backends, in one table: what each is called in URLs, features, crates and pages.

/// A backend that a URL can name.
#[allow(dead_code, reason = "lists elsewhere are compared with it")]
struct BackendRow {
    /// Its schemes, each with the features that it needs: none for a backend that is always there.
    schemes: &'static [(&'static str, Option<&'static str>)],
    /// The crate, whose name is its target in logs as well.
    package: &'static str,
    /// The page of its design, in `docs/design`.
    page: &'static str,
    /// What it does in a migration.
    migrates: Migrates,
}

#[allow(dead_code, reason = "lists elsewhere are compared with it")]
#[derive(Clone, Copy, Debug, PartialEq)]
enum Migrates {
    /// Locks move from it.
    From,
    /// Locks move to it.
    To,
    No,
}

/// All of them. Lists elsewhere are made from it, or compared with it below.
const BACKENDS: &[BackendRow] = &[
    BackendRow {
        schemes: &[("memory", None)],
        package: "lock-core",
        page: "core.md",
        migrates: Migrates::No,
    },
    BackendRow {
        schemes: &[("flock", Some("flock"))],
        package: "lock-flock",
        page: "../NEW-BACKEND.md",
        migrates: Migrates::No,
    },
    BackendRow {
        schemes: &[
            ("redis", Some("redis")),
            ("rediss", Some("redis,tls")),
            ("redis+unix", Some("redis")),
            ("redis+sentinel", Some("redis")),
            ("rediss+sentinel", Some("redis,tls")),
            ("redis+cluster", Some("redis")),
            ("rediss+cluster", Some("redis,tls")),
        ],
        package: "lock-redis",
        page: "redis.md",
        migrates: Migrates::From,
    },
    BackendRow {
        schemes: &[("redlock", Some("redlock")), ("redlocks", Some("redlock,tls"))],
        package: "lock-redlock",
        page: "redlock.md",
        migrates: Migrates::From,
    },
    BackendRow {
        schemes: &[("zk", Some("zk")), ("zks", Some("zk,tls"))],
        package: "lock-zk",
        page: "zookeeper.md",
        migrates: Migrates::To,
    },
    BackendRow {
        schemes: &[("postgres", Some("postgres")), ("postgresql", Some("postgres"))],
        package: "lock-postgres",
        page: "postgres.md",
        migrates: Migrates::No,
    },
    BackendRow {
        schemes: &[("etcd", Some("etcd")), ("etcds", Some("etcd,tls"))],
        package: "lock-kv",
        page: "kv.md",
        migrates: Migrates::No,
    },
    BackendRow { schemes: &[("s3", Some("s3"))], package: "lock-kv", page: "kv.md", migrates: Migrates::No },
    BackendRow {
        schemes: &[("mysql", Some("mysql")), ("mysqls", Some("mysql,tls"))],
        package: "lock-kv",
        page: "kv.md",
        migrates: Migrates::No,
    },
    BackendRow {
        schemes: &[("sqlite", Some("sqlite"))],
        package: "lock-kv",
        page: "kv.md",
        migrates: Migrates::No,
    },
    BackendRow {
        schemes: &[("migrate", Some("redis,zk"))],
        package: "lock-migrate",
        page: "../MIGRATION.md",
        migrates: Migrates::No,
    },
];

/// Every scheme, with the features that it needs: the first of each backend come first.
pub(crate) fn schemes() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let first = BACKENDS.iter().filter_map(|backend| backend.schemes.first());
    let others = BACKENDS.iter().flat_map(|backend| &backend.schemes[1..]);
    first.chain(others).copied()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn file(path: &str) -> String {
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
            .unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// The features that backends are enabled by.
    fn features() -> BTreeSet<&'static str> {
        schemes().filter_map(|(_, features)| features).flat_map(|features| features.split(',')).collect()
    }

    fn name(backend: &BackendRow) -> &'static str {
        backend.schemes[0].0
    }

    #[test]
    fn readers_find_every_scheme() {
        for page in ["README.md", "src/connect.rs"] {
            let text = file(page);
            // With TLS, sentinels and clusters have the form that they have without.
            for (scheme, _) in schemes().filter(|(scheme, _)| !scheme.starts_with("rediss+")) {
                assert!(text.contains(&format!("{scheme}://")), "{page} does not name {scheme}://");
            }
        }
    }

    #[test]
    fn every_feature_is_listed_where_features_are() {
        let (manifest, readme) = (file("Cargo.toml"), file("README.md"));
        let (ci, msrv) = (file("xtask/src/ci.rs"), file("xtask/src/msrv.sh"));
        for feature in features() {
            assert!(manifest.contains(&format!("\n{feature} = [")), "Cargo.toml has no feature {feature}");
            assert!(readme.contains(&format!("\n| `{feature}` |")), "README.md has no row for {feature}");
            assert!(
                ci.contains(&format!("\n    (\"{feature}\", &[")),
                "xtask/src/ci.rs has no tree of {feature}"
            );
            assert!(msrv.contains(&format!("\"{feature}\"")), "xtask/src/msrv.sh does not check {feature}");
        }
        let platforms = ci.lines().find(|line| line.contains("let features = \"")).unwrap();
        // These need a C compiler for the platform.
        for feature in features().into_iter().filter(|feature| !["tls", "s3", "sqlite"].contains(feature)) {
            assert!(platforms.contains(feature), "the lints of other platforms leave {feature} out");
        }
    }

    #[test]
    fn every_backend_is_listed_where_backends_are() {
        let (bug, suite) = (file(".github/ISSUE_TEMPLATE/bug.md"), file("tests/conformance/sites.rs"));
        let map = file("CONTRIBUTING.md");
        for backend in BACKENDS {
            let (package, name) = (backend.package, name(backend));
            file(&format!("docs/design/{}", backend.page));
            assert!(
                map.contains(&format!("`crates/{package}`")),
                "CONTRIBUTING.md does not say what {package} has"
            );
            // Files have a test program of their own.
            if name != "flock" {
                let is_there =
                    suite.contains(&format!("\n    \"{name}")) && bug.contains(&package.replace('-', "_"));
                assert!(is_there, "{name} is not in the conformance suite, or its logs are not asked for");
            }
        }
    }

    #[test]
    fn crates_are_published_after_those_that_they_need() {
        let text = file("CONTRIBUTING.md");
        let (_, order) = text.split_once("`cargo publish` of ").expect("the order is there");
        let (order, _) = order.split_once(", in this order").expect("it ends");
        let order: Vec<_> = order.split('`').skip(1).step_by(2).collect();
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("crates")).unwrap() {
            let package = entry.unwrap().file_name().into_string().unwrap();
            let place = |name: &str| order.iter().position(|published| *published == name);
            let at = place(&package).unwrap_or_else(|| panic!("{package} is never published"));
            let manifest = file(&format!("crates/{package}/Cargo.toml"));
            let needed =
                manifest.lines().filter_map(|line| line.split_once([' ', '.', '='])).map(|(name, _)| name);
            for needed in needed.filter_map(place) {
                assert!(needed <= at, "{} is published before {}", order[at], order[needed]);
            }
        }
    }

    #[test]
    fn a_migration_goes_from_and_to_what_can() {
        // Without spaces and line breaks.
        let config: String = file("crates/lock-migrate/src/config.rs").split_whitespace().collect();
        let refused = |side: &str| {
            let (_, refused) = config.split_once(&format!("ifmatches!({side},")).unwrap();
            let (refused, _) = refused.split_once(')').unwrap();
            refused.split('"').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>()
        };
        for backend in BACKENDS.iter().filter(|backend| name(backend) != "migrate") {
            let (name, migrates) = (name(backend), backend.migrates);
            assert_eq!(refused("old").contains(name), migrates != Migrates::From, "from {name}");
            assert_eq!(refused("new").contains(name), migrates != Migrates::To, "to {name}");
        }
    }
}
