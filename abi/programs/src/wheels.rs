//! Programs from wheels, as anybody can have them without a distribution: `./x` brings them, each in a virtual environment of
//! its own below what is built.

use std::fs;
use std::path::PathBuf;

use crate::libraries::target_folder;

/// Finds the folder of the virtual environment with this wheel. Returns `None` and prints the reason if it is not
/// there in the version that is wanted.
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

/// The versions that are wanted, a line for each, in the form of pip; further options for pip follow the version.
const WHEELS: &str = include_str!("../wheels.txt");
