//! The project's own commands, run as `cargo xtask <command>`.

mod ci;
mod command;
mod compare;
mod interrupt;
mod peers;
mod setup;
mod steps;
mod test;
mod time_in_tests;

use std::ffi::OsString;
use std::process::ExitCode;

use command::Result;

const HELP: &str = "\
The project's commands. Each one first installs what is missing (redis-server, ZooKeeper, Java, PostgreSQL,
PgBouncer), where permitted. `test --full`, `ci` and `setup` also install Python, Node.js, a Java compiler, Maven and Curator, and
the lock clients that tests/peers/ pins into the folder peers/ of the target directory.

Usage: cargo xtask <COMMAND> [ARGS...]

Commands:
  compare [ARGS...]  Measure the backends side by side; see `compare --help`
  soak [ARGS...]     Use the locks under faults, and check their histories; see `soak --help`
  test [ARGS...]     Run the first tier of the tests, all with --full, or those of a name, or on other servers; see `test --help`
  ci                 Everything that a commit must pass: format, lints, features, docs, minimum Rust, test, compare --quick
  features           Lint the library with each feature alone
  setup              Install what is missing, and nothing else
  help               Print this text

Environment:
  REDIS_SERVER         The program of a Redis that is not the one in PATH, for tests
  ZOOKEEPER_CLASSPATH  Java class path of a ZooKeeper that is not at /usr/share/java/zookeeper.jar
  CURATOR_CLASSPATH    Java class path of a Curator that is not at /usr/share/java/curator-recipes.jar
";

fn main() -> ExitCode {
    match run(&std::env::args_os().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[OsString]) -> Result {
    interrupt::defer()?;
    let (command, args) = args.split_first().ok_or_else(|| format!("missing command\n\n{HELP}"))?;
    match (command.to_str().unwrap_or_default(), args) {
        ("compare", args) => compare::run(args),
        ("soak", args) => compare::soak(args),
        ("test", args) => test::run(args),
        ("ci", []) => ci::run(),
        ("features", []) => ci::features(),
        ("setup", []) => {
            peers::forget_failures()?;
            setup::forget_failures()?;
            setup::ensure()?;
            peers::ensure()?;
            setup::offer_optional()
        }
        ("help" | "--help" | "-h", _) => {
            print!("{HELP}");
            Ok(())
        }
        ("ci" | "features" | "setup", [arg, ..]) => {
            Err(format!("{command:?} takes no arguments, but got {arg:?}"))
        }
        _ => Err(format!("unknown command {command:?}\n\n{HELP}")),
    }
}
