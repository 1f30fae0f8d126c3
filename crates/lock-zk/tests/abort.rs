//! A program that is built with `panic = "abort"`, in which every panic is the end: sessions end, and it goes on.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lock_testkit::proxy::Direction;

/// Builds the program, as a package of its own: a profile says what becomes of a panic, and it concerns all dependencies.
fn build() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = package.parent().unwrap();
    let project = Path::new(env!("CARGO_TARGET_TMPDIR")).join("abort");
    fs::create_dir_all(&project).unwrap();
    let crate_at = |name: &str| format!("{name} = {{ path = {:?} }}\n", crates.join(name));
    let manifest = format!(
        "[package]\nname = \"abort\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [[bin]]\nname = \"abort\"\npath = {:?}\n\n\
         [dependencies]\n{}{}tokio = {{ version = \"1\", features = [\"rt-multi-thread\"] }}\n\n\
         [profile.dev]\npanic = \"abort\"\ndebug = false\n\n[workspace]\n",
        package.join("tests/abort/program.rs"),
        crate_at("lock-core"),
        crate_at("lock-zk"),
    );
    fs::write(project.join("Cargo.toml"), manifest).unwrap();
    fs::copy(crates.parent().unwrap().join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
    let target = project.join("target");
    let built = Command::new(env!("CARGO"))
        // Build scripts would run anew for it.
        .env_remove("RUSTC_BOOTSTRAP")
        .args(["build", "--quiet", "--offline", "--manifest-path"])
        .arg(project.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .status();
    assert!(built.unwrap().success());
    target.join("debug/abort")
}

/// Ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: builds a program of its own"]
async fn a_program_that_aborts_on_panics_outlives_its_sessions() {
    let program = build();
    let server = common::server().await;
    let proxy = common::proxy(&server);
    let mut program = Program(
        Command::new(program)
            .args([server.connect_string(), proxy.addr().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut input = program.0.stdin.take().unwrap();
    let mut output = BufReader::new(program.0.stdout.take().unwrap()).lines();
    let mut next_line = move || output.next().transpose().unwrap().unwrap_or_default();
    assert_eq!(next_line(), "held");
    proxy.black_hole(Direction::ToServer, true);
    proxy.black_hole(Direction::ToClient, true);
    writeln!(input).unwrap();
    assert_eq!(next_line(), "lost");
    proxy.heal();
    writeln!(input).unwrap();
    assert_eq!(next_line(), "done");
    assert!(program.0.wait().unwrap().success());
}
