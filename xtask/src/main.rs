//! The project's own commands, run as `cargo xtask <command>`.

mod ci;
mod compare;
mod failure;
mod interrupt;
mod msrv;
mod peers;
mod servers;
mod setup;
mod soak;
mod steps;
mod test;

use std::ffi::OsString;
use std::process::ExitCode;

use failure::Failure;

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
  setup              Install what is missing, and nothing else
  help               Print this text

Environment:
  REDIS_SERVER         The program of a Redis that is not the one in PATH, for tests
  ZOOKEEPER_CLASSPATH  Java class path of a ZooKeeper that is not at /usr/share/java/zookeeper.jar
  CURATOR_CLASSPATH    Java class path of a Curator that is not at /usr/share/java/curator-recipes.jar
";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let command = args.next();
    match run(command.as_ref().and_then(|name| name.to_str()), args.collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            failure.exit_code()
        }
    }
}

fn run(command: Option<&str>, args: Vec<OsString>) -> Result<(), Failure> {
    interrupt::defer()?;
    match command {
        Some("compare") => compare::run(&args),
        Some("soak") => soak::run(&args),
        Some("test") => test::run(&args),
        Some("ci") => without_args("ci", &args).and_then(|()| ci::run()),
        Some("setup") => without_args("setup", &args)
            .and_then(|()| peers::forget_failures())
            .and_then(|()| setup::forget_failures())
            .and_then(|()| setup::ensure())
            .and_then(|()| peers::ensure())
            .and_then(|()| setup::offer_optional()),
        Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            Ok(())
        }
        Some(unknown) => Err(Failure::usage(format!("unknown command `{unknown}`\n\n{HELP}"))),
        None => Err(Failure::usage(format!("missing command\n\n{HELP}"))),
    }
}

fn without_args(command: &str, args: &[OsString]) -> Result<(), Failure> {
    match args.first() {
        None => Ok(()),
        Some(arg) => Err(Failure::usage(format!("`{command}` takes no arguments, but got {arg:?}"))),
    }
}
