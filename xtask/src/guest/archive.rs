//! A cpio archive in the format `newc`, which Linux takes as its first file system
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::error::GuestError;

/// An archive under construction. All files belong to root.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    paths: BTreeSet<String>,
}

impl Archive {
    /// Adds a folder and the folders above it. Does nothing if it is in the archive.
    pub(crate) fn add_folder(&mut self, path: &str) {
        for (index, _) in path.match_indices('/').chain([(path.len(), "")]) {
            let folder = path.get(..index).unwrap_or_default();
            if !folder.is_empty() && !self.contains(folder) {
                self.add(folder, FOLDER | 0o755, &[]);
            }
        }
    }

    /// Adds a file with the given permission bits.
    pub(crate) fn add_file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.add_parents(path);
        self.add(path, FILE | (mode & 0o7777), content);
    }

    /// Adds a symbolic link.
    pub(crate) fn add_link(&mut self, path: &str, target: &str) {
        self.add_parents(path);
        self.add(path, LINK | 0o777, target.as_bytes());
    }

    /// Adds a file or symbolic link of the host.
    pub(crate) fn copy(&mut self, source: &Path, path: &str) -> Result<(), GuestError> {
        let read = || GuestError::read(source);
        let metadata = fs::symlink_metadata(source).map_err(read())?;
        if metadata.is_symlink() {
            let target = fs::read_link(source).map_err(read())?;
            self.add_link(path, &target.to_string_lossy());
        } else {
            let content = fs::read(source).map_err(read())?;
            self.add_file(path, metadata.permissions().mode(), &content);
        }
        Ok(())
    }

    /// Whether the archive contains this path.
    pub(crate) fn contains(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// Returns the bytes of the archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn add_parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.add_folder(parent);
        }
    }

    fn add(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let links = 1;
        // inode, mode, user, group, links, time, bytes, device (2), special device (2), bytes of
        // the name with its zero, checksum.
        let fields = [
            self.entries as usize,
            mode as usize,
            0,
            0,
            links,
            0,
            content.len(),
            0,
            0,
            0,
            0,
            path.len() + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
        self.paths.insert(path.into());
    }

    /// Appends zeros up to a multiple of four bytes.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns path, mode and content of every entry.
    fn entries(bytes: &[u8]) -> Vec<(String, usize, Vec<u8>)> {
        let mut found = Vec::new();
        let mut offset = 0;
        while offset < bytes.len() {
            let field = |index: usize| {
                let start = offset + 6 + 8 * index;
                let digits = std::str::from_utf8(&bytes[start..start + 8]).expect("digits");
                usize::from_str_radix(digits, 16).expect("hexadecimal")
            };
            assert_eq!(&bytes[offset..offset + 6], b"070701");
            let (mode, length, name_length) = (field(1), field(6), field(11));
            let name = offset + 110;
            let content = (name + name_length).next_multiple_of(4);
            let text = String::from_utf8(bytes[name..name + name_length - 1].to_vec());
            found.push((text.expect("a name"), mode, bytes[content..content + length].to_vec()));
            offset = (content + length).next_multiple_of(4);
        }
        found
    }

    #[test]
    fn an_archive_contains_each_folder_once_and_before_its_files() {
        let mut archive = Archive::default();
        archive.add_file("usr/bin/a", 0o755, b"first");
        archive.add_file("usr/bin/bc", 0o644, b"");
        archive.add_link("bin", "usr/bin");
        archive.add_folder("usr");
        assert!(archive.contains("usr/bin") && !archive.contains("usr/lib"));
        let entries = entries(&archive.finish());
        let shown: Vec<_> = entries.iter().map(|(name, mode, _)| (name.as_str(), *mode)).collect();
        let wanted = [
            ("usr", 0o040_755),
            ("usr/bin", 0o040_755),
            ("usr/bin/a", 0o100_755),
            ("usr/bin/bc", 0o100_644),
            ("bin", 0o120_777),
            ("TRAILER!!!", 0),
        ];
        assert_eq!(shown, wanted);
        assert_eq!(entries[2].2, b"first");
        assert_eq!(entries[4].2, b"usr/bin");
    }

    #[test]
    fn content_of_every_length_is_padded() {
        for length in 0..9 {
            let mut archive = Archive::default();
            archive.add_file("f", 0o644, &vec![7; length]);
            let bytes = archive.finish();
            assert_eq!(bytes.len() % 4, 0);
            assert_eq!(entries(&bytes)[0].2.len(), length);
        }
    }
}
