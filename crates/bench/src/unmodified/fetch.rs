//! Fetches files with `curl`, and compares them with the served files.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::folder::Folder;
use super::running::{ProgramError, ProgramPlace, Running, find};
use super::way::{PathTaken, Side, Way};

/// The results of fetching.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Names of the files whose bytes were wrong.
    pub wrong: Vec<String>,
    /// The counters of the library in the process of `curl`.
    pub path: PathTaken,
}

/// Fetches each of `files` in `folder`/`documents` once, over one persistent connection, and
/// compares them byte by byte.
///
/// # Errors
/// Returns [`ProgramError`]; each variant names one cause.
pub fn verify(
    place: &ProgramPlace<'_>,
    way: Way,
    server: SocketAddr,
    folder: &Folder,
    documents: &str,
    files: &[String],
) -> Result<Fetched, ProgramError> {
    let failed = |source| ProgramError::Io { program: NAME.to_string(), source };
    let counters = folder.counters().map_err(failed)?;
    let target = folder.path().join(format!("fetched-{}", way.name()));
    fs::create_dir_all(&target).map_err(failed)?;
    let mut list = String::new();
    for file in files {
        // Writing to a string cannot fail.
        let _ = writeln!(list, "url = \"http://{server}/{file}\"");
        let _ = writeln!(list, "output = \"{}\"", target.join(file).display());
    }
    let list = folder.write("curl.list", list).map_err(failed)?;
    let words = [find(NAME, NAME)?, "--silent".into(), "--show-error".into(), "--fail".into()];
    let words = words.into_iter().chain(["--config".into(), list.display().to_string()]);
    let words = way.words(Side::Client, place.own_program, &counters, words.collect());
    Running::start(place, NAME, words)?.finish(LIMIT)?;
    let original = folder.path().join(documents);
    let mut found =
        Fetched { path: PathTaken::read(&counters).map_err(failed)?, wrong: Vec::new() };
    for file in files {
        let came = fs::read(target.join(file));
        let is_equal = came.and_then(|came| Ok(came == fs::read(original.join(file))?));
        if !is_equal.unwrap_or(false) {
            found.wrong.push(file.clone());
        }
    }
    // The fetched files are no longer needed, and may be large.
    fs::remove_dir_all(&target).map_err(failed)?;
    Ok(found)
}

/// Creates files of these sizes, whose bytes differ between files and between positions. Returns
/// the names of the files.
///
/// # Errors
/// Returns the error of the system call that failed.
pub fn make_files(
    folder: &Folder,
    documents: &str,
    prefix: &str,
    sizes: impl IntoIterator<Item = u64>,
) -> io::Result<Vec<String>> {
    let make = |(index, bytes): (usize, u64)| {
        let name = format!("{prefix}{index}");
        let step = index as u64 * 2 + 1;
        let byte = |at: u64| (at.wrapping_mul(step) ^ (at >> 8)) as u8;
        folder.write(&format!("{documents}/{name}"), (0..bytes).map(byte).collect::<Vec<_>>())?;
        Ok(name)
    };
    sizes.into_iter().enumerate().map(make).collect()
}

const NAME: &str = "curl";

/// Time limit to fetch a few dozen MiB.
const LIMIT: Duration = Duration::from_mins(1);
