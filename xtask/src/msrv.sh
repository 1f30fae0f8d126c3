# sh msrv.sh VERSION: checks the library by this Rust from a package of its own, as a user would.
#
# The workspace's lock file is of no use: peers of the harness need a newer Rust, and newer versions of what the library depends on.
mkdir -p target/msrv && cd target/msrv && : > lib.rs && cat > Cargo.toml << END
[package]
name = "msrv"
edition = "2024"
rust-version = "$1"
[lib]
path = "lib.rs"
[dependencies]
polylock = { path = "../..", features = ["blocking", "etcd", "flock", "kv", "layers-metrics", "layers-prefix", "layers-tracing", "mysql", "postgres", "redis", "redlock", "s3", "sasl", "sqlite", "tls", "zk"] }
[workspace]
resolver = "3"
END
# Cargo sets these for the compiler that runs this program.
unset CARGO RUSTC RUSTDOC RUSTUP_TOOLCHAIN
rustup run "$(rustup toolchain list | grep -o "^$1[.-][^ ]*")" cargo check --target-dir target
