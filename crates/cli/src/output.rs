//! Writes the results of a command.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use console::Term;

use crate::Failure;

/// Prints `text` to standard output, and writes `json` to `json_path` if there is one. If the path
/// is `-`, prints `json` to standard output instead of `text`.
pub(crate) fn write_results(
    json_path: Option<&Path>,
    json: impl FnOnce() -> Result<String, serde_json::Error>,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let Some(path) = json_path else { return print(&text()) };
    let mut json = json()?;
    json.push('\n');
    if is_standard_output(path) {
        return print(&json);
    }
    write_text(path, &json)?;
    print(&text())
}

/// Returns whether this path means standard output.
pub(crate) fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Prints to standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// Returns the width of the terminal, or `default` if there is no terminal.
pub(crate) fn terminal_columns(default: u16) -> u16 {
    Term::stdout().size_checked().map_or(default, |(_, columns)| columns)
}

/// Checks that these files can be written, because an error after minutes of measuring would be too
/// late.
pub(crate) fn check_writable<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
    for path in paths.into_iter().filter(|path| !is_standard_output(path)) {
        let is_new = !path.exists();
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|error| explained(path, &error))?;
        if is_new {
            // If this fails, at most an empty file remains.
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

/// Writes a text to a file.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<(), Failure> {
    writing(path, |file| file.write_all(text.as_bytes()))
}

/// Writes a file. An error names the file and, if there is one, a remedy. Removes the file if it
/// was not written completely.
pub(crate) fn writing<T>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<T>,
) -> Result<T, Failure> {
    let written = File::create(path).and_then(|file| {
        let mut file = BufWriter::new(file);
        let result = write(&mut file)?;
        file.flush()?;
        Ok(result)
    });
    written.map_err(|error| {
        let is_half_written = fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
            && !matches!(error.kind(), io::ErrorKind::PermissionDenied);
        if is_half_written {
            // If this fails too, nothing more can be done.
            let _ = fs::remove_file(path);
        }
        explained(path, &error).into()
    })
}

/// Returns the text of a write error, with a remedy.
pub(crate) fn explained(path: &Path, error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space or name a file on another disk"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; name a file in a folder to which you can write"
        }
        io::ErrorKind::NotFound => "; make its folder first",
        _ => "",
    };
    format!("write {}: {error}{remedy}", path.display())
}
