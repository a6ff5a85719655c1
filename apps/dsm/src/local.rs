//! Operations of a rank at itself, which need no network.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dsm_protocol::diff::{self, PAGE_BYTES};
use dsm_protocol::{Answer, Area, Landing, Operation};
use ethernot::Buffer;

use crate::words;

/// The frames and the control memory of this rank.
#[derive(Debug)]
pub(crate) struct Local {
    frames: *mut u8,
    bytes: u64,
    control: Arc<Buffer>,
    /// The master copies of the pages, if races are detected: as many bytes as the frames.
    masters: Option<Arc<Buffer>>,
}

// SAFETY: the frames live as long as the process, and this type accesses them by atomics alone.
unsafe impl Send for Local {}

impl Local {
    /// # Safety
    /// `frames` must point to `bytes` mapped bytes, which stay mapped, and begin at a page.
    pub(crate) unsafe fn new(
        frames: *mut u8,
        bytes: usize,
        control: Arc<Buffer>,
        masters: Option<Arc<Buffer>>,
    ) -> Self {
        let bytes = bytes as u64;
        Self { frames, bytes, control, masters: masters.filter(|masters| masters.len() == bytes) }
    }

    /// Returns the word of 8 bytes of the control memory, or 0 outside of it.
    pub(crate) fn load(&self, address: u64) -> u64 {
        self.control.word::<u64>(address).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Replaces a word of the control memory.
    pub(crate) fn store(&self, address: u64, value: u64) {
        if let Ok(word) = self.control.word::<u64>(address) {
            word.store(value, Ordering::Release);
        }
    }

    /// Performs an operation. Appends the bytes of a read to `found`. Messages are not handled here.
    pub(crate) fn perform(&self, operation: &Operation<'_>, found: &mut Vec<u8>) -> Answer {
        let outcome = match *operation {
            Operation::Read { area, address, length, landing } => {
                self.read(area, address, length, landing, found)
            }
            Operation::Write { area, address, bytes, .. } => self.write(area, address, bytes),
            Operation::Patch { area, address, payload } => self.patch(area, address, payload),
            Operation::FetchAdd { area, address, operand } => {
                self.update(area, address, |old| Some(old.wrapping_add(operand)))
            }
            Operation::CompareSwap { area, address, expected, desired } => {
                self.update(area, address, |old| (old == expected).then_some(desired))
            }
            Operation::Swap { area, address, operand } => {
                self.update(area, address, |_| Some(operand))
            }
            Operation::Send { .. } => Some(Answer::Done),
        };
        outcome.unwrap_or(Answer::Refused)
    }

    fn read(
        &self,
        area: Area,
        address: u64,
        length: u32,
        landing: Landing,
        found: &mut Vec<u8>,
    ) -> Option<Answer> {
        if area == Area::Control {
            let mut bytes = vec![0; length as usize];
            self.control.try_read(address, &mut bytes).ok()?;
            found.extend(bytes);
            return Some(Answer::Done);
        }
        let page = self.page(area, address)?;
        let mut whole = [0; PAGE_BYTES];
        let into = match landing {
            Landing::Buffer => None,
            Landing::Frame(page) => Some((Area::Frames, page)),
            Landing::Master(page) => Some((Area::Masters, page)),
        };
        match into {
            // A page that lands in its own place is there already.
            Some((into, _)) if into == area => {}
            Some((into, number)) => {
                // SAFETY: `page` returns pages of the mapping.
                unsafe { words::load_page(page, &mut whole) };
                let into = self.page(into, number.index() as u64 * PAGE_BYTES as u64)?;
                for (word, bytes) in whole.as_chunks::<4>().0.iter().enumerate() {
                    store_word(into, word, *bytes)?;
                }
            }
            None => {
                // SAFETY: `page` returns pages of the mapping.
                unsafe { words::load_page(page, &mut whole) };
                found.extend(whole.get(..length as usize)?);
            }
        }
        Some(Answer::Done)
    }

    fn write(&self, area: Area, address: u64, bytes: &[u8]) -> Option<Answer> {
        match area {
            Area::Control => self.control.try_write(address, bytes).ok()?,
            Area::Frames | Area::Masters => {
                let start = address - address % PAGE_BYTES as u64;
                let page = self.page(area, start)?;
                let first = (address - start) as usize / 4;
                for (index, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
                    store_word(page, first + index, *word)?;
                }
            }
        }
        Some(Answer::Done)
    }

    fn patch(&self, area: Area, address: u64, payload: &[u8]) -> Option<Answer> {
        let page = self.page(area, address)?;
        for (word, bytes) in diff::decode(payload)? {
            store_word(page, word, bytes)?;
        }
        Some(Answer::Done)
    }

    /// Changes 8 bytes as the engine does for peers, in one step.
    fn update(
        &self,
        area: Area,
        address: u64,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Option<Answer> {
        if !address.is_multiple_of(8) {
            return None;
        }
        let base = match area {
            Area::Control if address + 8 <= self.control.len() => self.control.as_ptr(),
            Area::Frames | Area::Masters if address + 8 <= self.bytes => self.base(area)?,
            _ => return None,
        };
        // SAFETY: the 8 bytes are mapped and aligned, as was checked; peers change them by atomics.
        let word = unsafe { AtomicU64::from_ptr(base.add(address as usize).cast()) };
        let old = match word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change) {
            Ok(old) | Err(old) => old,
        };
        Some(Answer::Value(old))
    }

    /// Returns the first byte of the frames or of the master copies.
    fn base(&self, area: Area) -> Option<*mut u8> {
        match area {
            Area::Frames => Some(self.frames),
            Area::Masters => self.masters.as_ref().map(|masters| masters.as_ptr()),
            Area::Control => None,
        }
    }

    /// Returns the page that begins at `address`.
    fn page(&self, area: Area, address: u64) -> Option<*mut u8> {
        let is_page = address.is_multiple_of(PAGE_BYTES as u64) && address < self.bytes;
        let base = self.base(area).filter(|_| is_page)?;
        Some(base.wrapping_add(address as usize))
    }
}

/// Replaces a word of a page of the frames. Returns `None` if a page has no such word.
fn store_word(page: *mut u8, word: usize, bytes: [u8; 4]) -> Option<()> {
    if word >= PAGE_BYTES / 4 {
        return None;
    }
    // SAFETY: `page` is one of the mapping, and has the word.
    unsafe { words::store_word(page, word, bytes) };
    Some(())
}
