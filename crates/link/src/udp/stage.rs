//! A place where the pieces of a run are put together before they are sent.

use std::io;

use libc::iovec;
use mem::FaultGuard;

/// A buffer for one message.
///
/// A segmented send of 44 frames is 88 pieces, and the kernel checks and copies each of them in a step of its
/// own. The processor copies such pieces faster here, and the kernel then takes one. Where frames are large,
/// the second copy costs more than the pieces do.
#[derive(Debug)]
pub(super) struct Stage {
    /// Always empty: only its capacity is used.
    bytes: Vec<u8>,
}

impl Stage {
    /// With room for a message of so many bytes. Allocates.
    pub(super) fn new(message_bytes_max: usize) -> Self {
        Self { bytes: Vec::with_capacity(message_bytes_max) }
    }

    /// Whether a run of frames of this size, in so many pieces, is worth a copy.
    #[inline]
    pub(super) const fn is_worth(pieces: usize, segment_bytes: usize) -> bool {
        pieces >= PIECES_MIN && segment_bytes <= SEGMENT_BYTES_MAX
    }

    /// Copies pieces back to back and returns where they are. Returns `None` if only the kernel may read the
    /// payload, because faults are not caught on this thread or the program has offered memory of devices.
    ///
    /// # Errors
    /// `EFAULT`, as the kernel would report it, if a piece is no longer mapped.
    #[inline]
    pub(super) fn copy(&mut self, pieces: &[iovec]) -> Option<io::Result<iovec>> {
        let guard = mem::is_payload_promised().then(FaultGuard::acquire).flatten()?;
        let start = self.bytes.as_mut_ptr();
        let mut len = 0;
        for piece in pieces {
            assert!(piece.iov_len <= self.bytes.capacity() - len);
            // SAFETY: there is room for the piece behind what was copied before, and nothing else refers to
            // it. The source may be gone: then fewer bytes are copied.
            let copied = unsafe {
                guard.copy(start.add(len), piece.iov_base.cast::<u8>().cast_const(), piece.iov_len)
            };
            if copied < piece.iov_len {
                return Some(Err(io::Error::from_raw_os_error(libc::EFAULT)));
            }
            len += copied;
        }
        Some(Ok(iovec { iov_base: start.cast(), iov_len: len }))
    }
}

/// Fewest pieces that are worth a copy: two frames with outside payload, of which bare datagrams go out 7 %
/// faster.
const PIECES_MIN: usize = 4;

/// Largest frame that is worth a copy: full Ethernet frames go out 10 to 25 % faster, frames of 9000 bytes
/// 12 % slower.
const SEGMENT_BYTES_MAX: usize = 2048;
