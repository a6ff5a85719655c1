//! What the machine asks of the memory of its own node.

use crate::diff::{Bitmap, PageBytes};
use crate::identity::PageNumber;
use crate::transport::Transport;

/// What the application may do with a page without a fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    /// Neither reads nor writes.
    None,
    /// Reads.
    Read,
    /// Reads and writes.
    Write,
}

/// The frames of the pages of a node, and their twins.
///
/// Writes to pages that are only readable usually fault. Memory that *notes* them instead has no
/// faults for such writes: [`Pages::take_written`] reports them later.
pub trait Pages {
    /// Returns whether writes to readable pages may be noted instead of causing faults. The answer
    /// is always the same.
    fn notes_writes(&self) -> bool {
        false
    }

    /// Appends each page that the application may have written since it became readable, or since
    /// the last call. These pages become readable: later writes fault, or are noted. Called only if
    /// the memory notes writes.
    fn take_written(&mut self, pages: &mut Vec<PageNumber>) {
        let _ = pages;
    }

    /// Sets what the application may do with a page. When the call returns, accesses that are no
    /// longer permitted fault.
    fn protect(&mut self, page: PageNumber, access: Access);

    /// Makes the `count` pages from `first` on readable, which were absent and have been fetched. If
    /// the memory notes writes, the pages get twins, too. The memory may make a twin later, but
    /// before the first write to the page.
    fn permit_reads(&mut self, first: PageNumber, count: u32) {
        for page in (first.0..first.0.saturating_add(count)).map(PageNumber) {
            if self.notes_writes() {
                self.make_twin(page);
            }
            self.protect(page, Access::Read);
        }
    }

    /// Fills the frame of a page with zeros.
    fn clear(&mut self, page: PageNumber);

    /// Copies the frame of a page to its twin.
    fn make_twin(&mut self, page: PageNumber);

    /// Compares the frame with its twin as [`crate::diff::compare`] does. Then the twin has what
    /// was compared: a word that changes meanwhile is in this diff or in the next one.
    fn diff(&mut self, page: PageNumber, words: &mut Vec<u8>) -> Bitmap;

    /// Frees the twin of a page.
    fn drop_twin(&mut self, page: PageNumber);

    /// Replaces the words of a page that the application has not changed since the twin was made,
    /// and the whole twin. Without a twin, replaces the frame.
    fn merge(&mut self, page: PageNumber, bytes: &PageBytes);
}

/// The control memory of a node, which its peers read and write.
pub trait Control {
    /// Returns the 8 bytes at `address`, a multiple of 8, in one access; 0 outside of the memory.
    fn load(&self, address: u64) -> u64;

    /// Replaces the 8 bytes at `address`, a multiple of 8, in one access with release semantics.
    fn store(&mut self, address: u64, value: u64);
}

/// A node's memory and its connections.
pub trait Host: Transport + Pages + Control {}

impl<T: Transport + Pages + Control> Host for T {}
