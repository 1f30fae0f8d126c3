//! A disk of a server's own, which can be filled: one in memory, which ends with the server. Needs root.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Command;

use crate::error::{Error, Result};
use crate::servers::process::locate;

/// The id of the user and of its group. Their names differ among distributions.
pub(crate) const NOBODY: &str = "65534";

/// The command that mounts a disk of so many megabytes here, has it prepared, and becomes the server. Nobody else sees the disk.
pub(crate) fn mounted(folder: &Path, megabytes: u32, prepare: &Command, server: &Command) -> Result<Command> {
    fs::create_dir_all(folder).map_err(|error| Error::io(format!("make {}", folder.display()), error))?;
    let script = format!(
        "mount -t tmpfs -o size={megabytes}m,mode=0700,uid={NOBODY},gid={NOBODY} tmpfs '{}' && {} && exec {}",
        folder.display(),
        words(prepare),
        words(server)
    );
    let mut command = Command::new(locate("unshare", "apt-get install util-linux")?);
    command.args(["--mount", "sh", "-c", &script]);
    Ok(command)
}

/// Fills the disk that a server has mounted here, or gives it room again. Returns whether it is full.
pub(crate) fn fill(pid: u32, folder: &Path, full: bool) -> Result<bool> {
    let path = format!("/proc/{pid}/root{}/ballast", folder.display());
    let failed = |error| Error::io(format!("fill the disk with {path}"), error);
    if !full {
        return fs::remove_file(&path).map(|()| false).map_err(failed);
    }
    let mut ballast = File::create(&path).map_err(failed)?;
    // The last part may be larger than what is left.
    let mut part = vec![0; 1 << 16];
    loop {
        match ballast.write_all(&part) {
            Ok(()) => {}
            Err(error) if error.kind() != ErrorKind::StorageFull => return Err(failed(error)),
            Err(_) if part.len() == 1 => return Ok(true),
            Err(_) => part.truncate(part.len() / 2),
        }
    }
}

/// A command for a shell. Its words have no quotes.
fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| format!("'{}'", word.display())).collect::<Vec<_>>().join(" ")
}
