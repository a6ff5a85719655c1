//! A memory that all ranks have mapped: what a word must be at each time.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

use dsm_protocol::diff::PAGE_WORDS;

/// The words of the region, and how often atomics have found each former value.
pub(super) struct Oracle {
    words: &'static [AtomicU32],
    former: &'static [AtomicU32],
}

impl Oracle {
    /// Maps the file, which is made if it does not exist.
    pub(super) fn open(path: &Path, pages: usize) -> io::Result<Self> {
        let count = pages * PAGE_WORDS;
        let bytes = 2 * count * size_of::<AtomicU32>();
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(bytes as u64)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address of a new mapping.
        let start = unsafe {
            libc::mmap(ptr::null_mut(), bytes, rights, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping has so many words, stays until the process ends, and is accessed by
        // atomics alone.
        let all = unsafe { slice::from_raw_parts(start.cast::<AtomicU32>(), 2 * count) };
        let (words, former) = all.split_at(count);
        Ok(Self { words, former })
    }

    pub(super) fn load(&self, word: usize) -> u32 {
        self.words[word].load(Ordering::SeqCst)
    }

    pub(super) fn store(&self, word: usize, value: u32) {
        self.words[word].store(value, Ordering::SeqCst);
    }

    /// Notes an atomic that has added 1, and what it found.
    pub(super) fn add(&self, word: usize, former: u64) -> Result<(), String> {
        self.words[word].fetch_add(1, Ordering::SeqCst);
        let slots = self.former_values(word);
        let slot = usize::try_from(former).ok().and_then(|former| slots.get(former));
        match slot.map(|slot| slot.fetch_add(1, Ordering::SeqCst)) {
            Some(0) => Ok(()),
            Some(_) => Err(format!("two atomics of word {word} have found {former}")),
            None => Err(format!("an atomic of word {word} has found {former}")),
        }
    }

    /// Checks that the atomics of each word have found all values from 0 on. Each page has at most
    /// one word with atomics.
    pub(super) fn check_atomics(&self) -> Result<(), String> {
        for page in self.former.chunks(PAGE_WORDS) {
            let found = page.iter().map(|slot| slot.load(Ordering::SeqCst));
            if !found.is_sorted_by(|one, other| one >= other) {
                return Err("the atomics of a word have left a value out".into());
            }
        }
        Ok(())
    }

    fn former_values(&self, word: usize) -> &[AtomicU32] {
        let page = word / PAGE_WORDS;
        &self.former[page * PAGE_WORDS..][..PAGE_WORDS]
    }
}
