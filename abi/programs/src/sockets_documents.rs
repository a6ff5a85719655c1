//! Documents that servers serve and clients fetch.

use std::fs;
use std::path::{Path, PathBuf};

use crate::sockets::Stage;

/// The documents of a server, in the folder of a [`Stage`].
#[derive(Debug)]
pub struct Documents {
    folder: PathBuf,
    fetched: PathBuf,
    all: Vec<Document>,
}

/// A document: its name and its bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Document {
    /// Name of the file, and last part of its URL.
    pub name: String,
    /// Content of the file.
    pub bytes: Vec<u8>,
}

impl Documents {
    /// Writes documents of these sizes, each with different content.
    ///
    /// # Panics
    /// Panics if a document cannot be written.
    pub fn of_sizes(stage: &Stage<'_>, sizes: &[usize]) -> Self {
        let [folder, fetched] = ["documents", "fetched"].map(|name| stage.folder().join(name));
        crate::sockets::make_open_folder(&folder);
        crate::sockets::make_open_folder(&fetched);
        let all = sizes.iter().map(|&bytes| Document::of_size(bytes)).collect();
        let documents = Self { folder, fetched, all };
        for document in &documents.all {
            let written = fs::write(documents.folder.join(&document.name), &document.bytes);
            written.expect("a file in a folder of our own");
        }
        documents
    }

    /// Returns the folder of the documents.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder in which clients store fetched documents, under the same names.
    pub fn fetched(&self) -> &Path {
        &self.fetched
    }

    /// Returns the documents.
    pub fn all(&self) -> &[Document] {
        &self.all
    }

    /// Checks that each document was fetched unchanged, then removes the fetched copies.
    ///
    /// # Panics
    /// Panics if a document is missing or differs.
    #[track_caller]
    pub fn expect_fetched(&self, said: &dyn std::fmt::Display) {
        for document in &self.all {
            let path = self.fetched.join(&document.name);
            let bytes = fs::read(&path).unwrap_or_else(|error| {
                panic!("{} was not fetched: {error}\n{said}", document.name)
            });
            expect_equal(&document.name, &bytes, &document.bytes);
            let _ = fs::remove_file(path);
        }
    }
}

impl Document {
    /// Creates a document of `bytes` pseudo-random bytes. No long sequence of bytes occurs twice in
    /// this document, or in two documents.
    fn of_size(bytes: usize) -> Self {
        let mut state = bytes as u64 ^ 0x9e37_79b9_7f4a_7c15;
        let mut next = || {
            // xorshift64 does not repeat sequences, so the test detects a lost or repeated part.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        let bytes: Vec<u8> = (0..bytes).map(|_| next()).collect();
        Self { name: format!("size-{}", bytes.len()), bytes }
    }
}

/// Checks that bytes are as expected.
///
/// # Panics
/// Panics if the bytes differ. The message contains the position of the first difference. It does
/// not contain the bytes, because there may be megabytes of them.
#[track_caller]
fn expect_equal(name: &str, bytes: &[u8], expected: &[u8]) {
    let place = bytes.iter().zip(expected).position(|(one, other)| one != other);
    let place = place.unwrap_or(bytes.len().min(expected.len()));
    assert!(
        bytes == expected,
        "{name}: {} bytes instead of {}, different from byte {place} on",
        bytes.len(),
        expected.len()
    );
}
