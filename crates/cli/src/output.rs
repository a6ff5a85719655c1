//! Where a command writes what it found.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use console::Term;

use crate::Failure;

/// Writes `json` to the file that was named for it, if one was, and `text` to standard output; the name
/// `-` has the JSON go there, and the text nowhere.
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

/// Whether this name means standard output.
pub(crate) fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Prints to standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// The width of the terminal, or `default` where there is none.
pub(crate) fn terminal_columns(default: u16) -> u16 {
    Term::stdout().size_checked().map_or(default, |(_, columns)| columns)
}

/// Makes sure that these files can be written, which is to be known before minutes of measuring.
pub(crate) fn check_writable<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
    for path in paths.into_iter().filter(|path| !is_standard_output(path)) {
        let is_new = !path.exists();
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|error| explained(path, &error))?;
        if is_new {
            // An empty file is all that can be left.
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

/// Writes a text to a file.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<(), Failure> {
    writing(path, |file| file.write_all(text.as_bytes()))
}

/// Writes a file; an error names the file and, if there is one, a remedy. A file that could
/// not be written as a whole is removed.
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
            // Nothing more can be done if this fails, too.
            let _ = fs::remove_file(path);
        }
        explained(path, &error).into()
    })
}

/// An error of writing a file, with a remedy.
pub(crate) fn explained(path: &Path, error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space or name a file on another disk"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; name a file in a folder that you may write to"
        }
        io::ErrorKind::NotFound => "; make its folder first",
        _ => "",
    };
    format!("write {}: {error}{remedy}", path.display())
}
