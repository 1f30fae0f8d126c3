//! Finds the servers and interpreters that tests and measurements need, installs what is missing, or prints instructions.
//!
//! Installs only with Debian's own packages.

mod apt;
mod command;
mod curator;
mod failure_note;
mod instructions;
mod part;
mod version;

use std::path::Path;
use std::time::Duration;

pub(crate) use self::command::{in_path, output_of, run_within};
pub(crate) use self::curator::class_path as curator_class_path;
pub(crate) use self::failure_note::FailureNote;
use self::instructions::instructions;
pub(crate) use self::part::Part;
use self::part::are;
use self::version::{look, missing};
use crate::failure::Failure;
use crate::interrupt;
use crate::steps::target_folder;

/// Finds what the servers need, installs what is missing, and prints the versions.
///
/// # Errors
///
/// When something is missing and cannot be installed: the message has the commands to type.
pub(crate) fn ensure() -> Result<(), Failure> {
    ensure_parts(&servers())
}

/// As [`ensure`], for other parts.
///
/// # Errors
///
/// As for [`ensure`].
pub(crate) fn ensure_parts(parts: &[Part]) -> Result<(), Failure> {
    find_or_install(parts, None)
}

/// As [`ensure_parts`], for what is optional: nobody waits for long.
///
/// # Errors
///
/// As for [`ensure`], or when it takes longer than [`LIMIT`].
pub(crate) fn try_parts(parts: &[Part]) -> Result<(), Failure> {
    find_or_install(parts, Some(LIMIT))
}

/// Installs what the harness and its tests do without: where apt has it, and not twice on a day when it failed.
///
/// # Errors
///
/// After Ctrl-C, and when cargo does not know its own target directory.
pub(crate) fn offer_optional() -> Result<(), Failure> {
    let target = target_folder()?;
    for &(part, without) in OPTIONAL {
        if !missing(&look(&[part])?).is_empty() {
            offer(part, without, &note_of(&target, part))?;
        }
    }
    Ok(())
}

/// Forgets what could not be installed.
///
/// # Errors
///
/// When cargo does not know its own target directory.
pub(crate) fn forget_failures() -> Result<(), Failure> {
    let target = target_folder()?;
    OPTIONAL.iter().for_each(|(part, _)| note_of(&target, *part).remove());
    Ok(())
}

/// The stores of locks, and what starts them.
fn servers() -> Vec<Part> {
    let linux = cfg!(target_os = "linux").then_some(Part::Setpriv);
    let all = [Part::Redis, Part::Java, Part::ZooKeeper, Part::Postgres, Part::PgBouncer];
    all.into_iter().chain(linux).collect()
}

fn offer(part: Part, without: &str, note: &FailureNote) -> Result<(), Failure> {
    let why = match note.of_today() {
        Some(why) => format!("{why} ({AGAIN})"),
        None => {
            let Err(failure) = try_parts(&[part]) else { return Ok(()) };
            interrupt::check()?;
            note.write(&failure);
            failure.to_string().lines().next().unwrap_or_default().to_owned()
        }
    };
    eprintln!("    set-up: {without}: {why}");
    Ok(())
}

fn note_of(target: &Path, part: Part) -> FailureNote {
    FailureNote::new(target.join(format!("setup/no-{}", part.names().debian)))
}

fn find_or_install(parts: &[Part], limit: Option<Duration>) -> Result<(), Failure> {
    let mut found = look(parts)?;
    let absent = missing(&found);
    if !absent.is_empty() {
        apt::install(&absent, limit)?;
        found = look(parts)?;
    }
    let still: Vec<Part> = missing(&found);
    if !still.is_empty() {
        return Err(Failure::new(format!(
            "the packages are installed, but {} not found\n\n{}",
            are(&still),
            instructions(&still)
        )));
    }
    let line: Vec<String> = found
        .iter()
        .filter_map(|(part, version)| Some(format!("{} {}", part.names().name, version.as_ref()?)))
        .collect();
    eprintln!("    set-up: {}", line.join(", "));
    Ok(())
}

/// Parts, and what is left out without them.
const OPTIONAL: &[(Part, &str)] = &[
    (Part::Chromium, "no screenshots of the report, and its tests in a browser are left out"),
    (Part::Etcd, "etcd is not measured"),
];
/// How long a command may take that installs something optional.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);
/// Of what failed on the same day.
pub(crate) const AGAIN: &str = "not tried again today, but by `cargo xtask setup`";
