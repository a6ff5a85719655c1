//! Documents that servers serve and clients fetch.

use std::fs;
use std::path::{Path, PathBuf};

use crate::sockets::Stage;

/// What a server serves, in a folder of a stage.
#[derive(Debug)]
pub struct Documents {
    folder: PathBuf,
    fetched: PathBuf,
    all: Vec<Document>,
}

/// A document: its name and its bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Document {
    /// Of the file, and last in its address.
    pub name: String,
    /// What is in it.
    pub bytes: Vec<u8>,
}

impl Documents {
    /// Writes documents of these sizes, each with bytes of its own.
    ///
    /// # Panics
    /// If they cannot be written.
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

    /// Returns the folder in which clients put what they have fetched, under the same names.
    pub fn fetched(&self) -> &Path {
        &self.fetched
    }

    /// Returns the documents.
    pub fn all(&self) -> &[Document] {
        &self.all
    }

    /// Checks that each was fetched as it is. What was fetched is removed.
    ///
    /// # Panics
    /// If one was not.
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
    /// Bytes that no other place of the document and no other document has in this order.
    fn of_size(bytes: usize) -> Self {
        let mut state = bytes as u64 ^ 0x9e37_79b9_7f4a_7c15;
        let mut next = || {
            // xorshift64: what is lost or repeated does not look like what should be there.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        let bytes: Vec<u8> = (0..bytes).map(|_| next()).collect();
        Self { name: format!("size-{}", bytes.len()), bytes }
    }
}

/// Bytes are as they should be.
///
/// # Panics
/// If they are not: says where they begin to differ, as megabytes of them say nothing.
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
