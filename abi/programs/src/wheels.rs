//! Programs from Python wheels, which do not depend on a distribution. `./x` installs each program
//! in its own virtual environment below the target folder.

use std::fs;
use std::path::PathBuf;

use testbed::built::target_folder;

/// Returns the folder of the virtual environment with this wheel. Returns `None` and prints the
/// reason if the wheel is missing or has a different version.
pub fn wheel(name: &str) -> Option<PathBuf> {
    let line = WHEELS.lines().find(|line| line.starts_with(&format!("{name}==")))?;
    let wanted = line.split(' ').next()?;
    let folder = target_folder().join("wheels").join(name);
    let is_there = fs::read_to_string(folder.join("made-of")).is_ok_and(|is| is.trim() == wanted);
    if !is_there {
        println!("skipped: {wanted} is not in {} (`./x test` brings it by pip)", folder.display());
    }
    is_there.then_some(folder)
}

/// The required wheels with their versions, one per line, in pip's format. Further options for pip
/// follow the version.
const WHEELS: &str = include_str!("../wheels.txt");
