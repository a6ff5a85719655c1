//! The folder of the results, with one document per item.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use papers::document::Document;
use papers::reading;

use crate::Failure;
use crate::output::explained;

/// A folder of documents.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

/// The contents of results folders.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// One document per item and machine.
    pub(super) documents: Vec<Document>,
    /// Notes about refused files, and about items with several documents.
    pub(super) notes: Vec<String>,
}

impl Folder {
    /// Makes the folder, and checks that files can be written to it. If an earlier run was killed,
    /// removes its incomplete files.
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| -> Failure {
            format!("the results folder: {}", explained(path, &error)).into()
        };
        fs::create_dir_all(path).map_err(failed)?;
        let folder = Self { path: path.to_owned() };
        for entry in fs::read_dir(path).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            if is_abandoned(&file) {
                // If this fails, the next run tries again.
                let _ = fs::remove_file(file);
            }
        }
        let probe = folder.scratch("probe");
        fs::write(&probe, "").map_err(failed)?;
        fs::remove_file(&probe).map_err(failed)?;
        Ok(folder)
    }

    /// Returns a name for a temporary file of this process.
    pub(super) fn scratch(&self, what: &str) -> PathBuf {
        self.path.join(format!(".{what}-{}", process::id()))
    }

    /// Writes a document atomically.
    pub(super) fn write(&self, document: &Document) -> Result<(), Failure> {
        let path = self.path.join(format!("{}-{}.json", document.paper, document.item));
        let text = document.to_text()?;
        let half = self.scratch("document");
        let written = fs::write(&half, text).and_then(|()| fs::rename(&half, &path));
        written.map_err(|error| explained(&path, &error).into())
    }
}

/// Reads the documents of folders. Adds a note for each refused document and continues.
pub(super) fn read(folders: &[PathBuf]) -> Found {
    let mut found = Found::default();
    for folder in folders {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => {
                found
                    .notes
                    .push(format!("read {}: {error}; name a results folder", folder.display()));
                continue;
            }
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let is_document =
            |path: &PathBuf| path.extension().is_some_and(|end| end == "json") && !is_hidden(path);
        let mut paths: Vec<PathBuf> = paths.filter(is_document).collect();
        paths.sort();
        for path in paths {
            let text = fs::read_to_string(&path).map_err(|error| error.to_string());
            match text.and_then(|text| reading::read(&text).map_err(|error| error.to_string())) {
                Ok(document) => found.take(document),
                Err(error) => {
                    let path = path.display().to_string();
                    found.notes.push(format!("{} is refused: {error}", path.escape_debug()));
                }
            }
        }
    }
    found
}

impl Found {
    /// Adds a document. Of two documents for one item and machine, keeps the newer.
    fn take(&mut self, document: Document) {
        let is_same =
            |one: &&mut Document| one.name() == document.name() && one.machine == document.machine;
        let Some(known) = self.documents.iter_mut().find(is_same) else {
            self.documents.push(document);
            return;
        };
        self.notes.push(format!("{} has two results; the newer result counts", document.name()));
        if document.unix_seconds > known.unix_seconds {
            *known = document;
        }
    }
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with('.'))
}

/// Returns whether the process that wrote this file has ended.
fn is_abandoned(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some((what, number)) = name.rsplit_once('-') else { return false };
    let is_ours = [".probe", ".document", ".bench"].contains(&what);
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_ours && is_number && !Path::new("/proc").join(number).exists()
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    #[test]
    fn results_are_stored_atomically_and_broken_ones_are_refused_by_name() {
        let path = env::temp_dir().join(format!("ethernot-papers-{}", process::id()));
        let folder = Folder::create(&path).unwrap();
        let mut document = Document::new("sandia1999", "table1");
        folder.write(&document).unwrap();
        fs::write(path.join("toe2005-17.json"), "{\"format\": \"ethernot-paper/1\"").unwrap();
        // No process has this number, because the kernel's highest possible limit for process ids
        // is 4194304.
        fs::write(path.join(".bench-4194305"), "").unwrap();
        let other = path.join("newer");
        document.unix_seconds = 7;
        Folder::create(&other).unwrap().write(&document).unwrap();

        let found = read(&[path.clone(), other]);
        assert_eq!(found.documents, [document]);
        assert_eq!(found.notes.len(), 2, "{:?}", found.notes);
        assert!(found.notes.iter().any(|note| note.contains("toe2005-17.json is refused")));
        assert!(found.notes.iter().any(|note| note.contains("two results")));
        Folder::create(&path).unwrap();
        assert!(!path.join(".bench-4194305").exists());
        fs::remove_dir_all(path).unwrap();
    }
}
