//! The memory of a simulated node.

use std::collections::BTreeSet;

use crate::diff::{self, Bitmap, PAGE_BYTES, PAGE_WORDS, PageBytes, WORD_BYTES};
use crate::identity::PageNumber;
use crate::memory::Access;
use crate::transport::Area;

/// Frames, twins, protections, master copies, control memory.
pub(super) struct Memory {
    frames: Vec<u8>,
    masters: Vec<u8>,
    control: Vec<u8>,
    twins: Vec<Option<Box<PageBytes>>>,
    access: Vec<Access>,
    /// Whether writes to readable pages are noted, and which pages have them.
    pub(super) notes_writes: bool,
    /// Whether writes are noted as by synchronous write protection before Linux 6.4: a page that
    /// becomes readable counts as written until the next scan, and after it a write is a fault.
    pub(super) notes_once: bool,
    written: BTreeSet<PageNumber>,
}

impl Memory {
    pub(super) fn new(pages: u32, control_bytes: u64, has_masters: bool) -> Self {
        let bytes = pages as usize * PAGE_BYTES;
        Self {
            frames: vec![0; bytes],
            masters: vec![0; if has_masters { bytes } else { 0 }],
            control: vec![0; control_bytes as usize],
            twins: vec![None; pages as usize],
            access: vec![Access::None; pages as usize],
            notes_writes: false,
            notes_once: false,
            written: BTreeSet::new(),
        }
    }

    pub(super) fn access(&self, page: PageNumber) -> Access {
        self.access[page.index()]
    }

    /// Returns the bytes of an area, or `None` if it does not have them all.
    pub(super) fn bytes(&mut self, area: Area, address: u64, length: usize) -> Option<&mut [u8]> {
        let area = match area {
            Area::Frames => &mut self.frames,
            Area::Masters => &mut self.masters,
            Area::Control => &mut self.control,
        };
        let start = usize::try_from(address).ok()?;
        area.get_mut(start..start.checked_add(length)?)
    }

    /// Returns a word of 8 bytes of an area.
    pub(super) fn word(&mut self, area: Area, address: u64) -> Option<&mut [u8; 8]> {
        self.bytes(area, address, 8).filter(|_| address.is_multiple_of(8))?.try_into().ok()
    }

    /// Returns a word of the control memory.
    pub(super) fn load(&self, address: u64) -> u64 {
        let bytes = &self.control[address as usize..][..8];
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    pub(super) fn frame(&mut self, page: PageNumber) -> &mut PageBytes {
        let start = page.index() * PAGE_BYTES;
        (&mut self.frames[start..start + PAGE_BYTES]).try_into().unwrap()
    }

    /// Reads a word as the application does.
    pub(super) fn read(&self, word: usize) -> u32 {
        let bytes = &self.frames[word * WORD_BYTES..][..WORD_BYTES];
        u32::from_le_bytes(bytes.try_into().unwrap())
    }

    /// Writes a word as the application does.
    pub(super) fn write(&mut self, word: usize, value: u32) {
        let page = PageNumber((word / PAGE_WORDS) as u32);
        if self.notes_writes && !(self.notes_once && self.access(page) == Access::Write) {
            self.written.insert(page);
        }
        self.frames[word * WORD_BYTES..][..WORD_BYTES].copy_from_slice(&value.to_le_bytes());
    }

    /// Returns whether a write to a readable page is a fault.
    pub(super) fn is_fault(&self, page: PageNumber) -> bool {
        !self.notes_writes || self.notes_once && !self.written.contains(&page)
    }

    /// Permits writes again, which a scan has made faults although the machine permits them.
    pub(super) fn map_again(&mut self, page: PageNumber) {
        self.access[page.index()] = Access::Write;
    }

    /// Returns the pages that were written and are accessible still, and makes them readable.
    pub(super) fn take_written(&mut self, pages: &mut Vec<PageNumber>) {
        for page in std::mem::take(&mut self.written) {
            self.access[page.index()] = Access::Read;
            pages.push(page);
        }
    }

    pub(super) fn protect(&mut self, page: PageNumber, access: Access) {
        // Only pages that become writable again, or stay readable, keep their notes.
        if access == Access::None || access == Access::Read && self.access(page) == Access::Write {
            self.written.remove(&page);
        }
        let is_new = access == Access::Read && self.access(page) == Access::None;
        let counts_as_written =
            if self.notes_once { is_new } else { access == Access::Write && self.notes_writes };
        if counts_as_written {
            self.written.insert(page);
        } else if self.notes_once && access == Access::Write {
            // A scan leaves writable pages out.
            self.written.remove(&page);
        }
        self.access[page.index()] = access;
    }

    pub(super) fn make_twin(&mut self, page: PageNumber) {
        let twin = Box::new(*self.frame(page));
        self.twins[page.index()] = Some(twin);
    }

    pub(super) fn diff(&mut self, page: PageNumber, words: &mut Vec<u8>) -> Bitmap {
        let frame = *self.frame(page);
        let twin = self.twins[page.index()].as_mut().expect("a dirty page has a twin");
        let bitmap = diff::compare(&frame, twin, words);
        **twin = frame;
        bitmap
    }

    pub(super) fn drop_twin(&mut self, page: PageNumber) {
        self.twins[page.index()] = None;
    }

    pub(super) fn merge(&mut self, page: PageNumber, bytes: &PageBytes) {
        let Some(mut twin) = self.twins[page.index()].take() else {
            *self.frame(page) = *bytes;
            return;
        };
        let frame = self.frame(page);
        let words = frame.as_chunks_mut::<4>().0.iter_mut();
        for ((frame, twin), new) in words.zip(twin.as_chunks::<4>().0).zip(bytes.as_chunks::<4>().0)
        {
            if frame == twin {
                *frame = *new;
            }
        }
        *twin = *bytes;
        self.twins[page.index()] = Some(twin);
    }
}
