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
}

// SAFETY: the frames live as long as the process, and this type accesses them by atomics alone.
unsafe impl Send for Local {}

impl Local {
    /// # Safety
    /// `frames` must point to `bytes` mapped bytes, which stay mapped, and begin at a page.
    pub(crate) unsafe fn new(frames: *mut u8, bytes: usize, control: Arc<Buffer>) -> Self {
        Self { frames, bytes: bytes as u64, control }
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
        // A page that lands in its own frame is there already.
        if landing == Landing::Buffer {
            let mut bytes = vec![0; length as usize];
            match area {
                Area::Control => self.control.try_read(address, &mut bytes).ok()?,
                Area::Frames => {
                    let page = self.page(address)?;
                    let mut whole = [0; PAGE_BYTES];
                    // SAFETY: `page` returns pages of the mapping.
                    unsafe { words::load_page(page, &mut whole) };
                    bytes.copy_from_slice(whole.get(..length as usize)?);
                }
                Area::Masters => return None,
            }
            found.extend(bytes);
        }
        Some(Answer::Done)
    }

    fn write(&self, area: Area, address: u64, bytes: &[u8]) -> Option<Answer> {
        match area {
            Area::Control => self.control.try_write(address, bytes).ok()?,
            Area::Frames => {
                let start = address - address % PAGE_BYTES as u64;
                let page = self.page(start)?;
                let first = (address - start) as usize / 4;
                for (index, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
                    store_word(page, first + index, *word)?;
                }
            }
            Area::Masters => return None,
        }
        Some(Answer::Done)
    }

    fn patch(&self, area: Area, address: u64, payload: &[u8]) -> Option<Answer> {
        let page = self.page(address).filter(|_| area == Area::Frames)?;
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
            Area::Frames if address + 8 <= self.bytes => self.frames,
            _ => return None,
        };
        // SAFETY: the 8 bytes are mapped and aligned, as was checked; peers change them by atomics.
        let word = unsafe { AtomicU64::from_ptr(base.add(address as usize).cast()) };
        let old = match word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change) {
            Ok(old) | Err(old) => old,
        };
        Some(Answer::Value(old))
    }

    /// Returns the frame that begins at `address`.
    fn page(&self, address: u64) -> Option<*mut u8> {
        let is_page = address.is_multiple_of(PAGE_BYTES as u64) && address < self.bytes;
        is_page.then(|| self.frames.wrapping_add(address as usize))
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
