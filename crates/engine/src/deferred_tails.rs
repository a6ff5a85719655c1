//! Defers short last fragments of operations to the end of the batch.
//!
//! With segmentation offload, the driver passes many frames of equal size to the kernel in one
//! call, for the cost of one frame. Only the last of these frames may be shorter. A short frame at
//! the end of an operation would therefore end the call in the middle of a batch.
//!
//! For example, an operation of 64 KiB has 46 frames, a little more than one call accepts. If each
//! operation ended with its short frame, each operation would need two or three calls. Therefore
//! the engine sends the full frames of the next operation before the short frame. The peer accepts
//! this order, because on several links frames can overtake each other in any case.

use delivery::Instant;
use mem::MemoryAccess;
use semantics::{CarriedKind, Fragment, LocalFault};
use wire_edge::Flags;

use crate::connection::Connection;
use crate::parts::Parts;
use crate::spread::OFFLOADED_FRAMES;

impl Parts<'_> {
    /// Defers a fragment to the end of the batch if all these conditions hold:
    ///
    /// * the fragment ends an operation,
    /// * the next operation may overtake this one, and
    /// * batches of the link at `position` are long.
    ///
    /// Returns false if the fragment has to be sent now. `room` is the payload of a full frame, in
    /// bytes.
    #[inline]
    pub(crate) fn defers(
        &mut self,
        connection: &Connection,
        position: usize,
        fragment: &Fragment<'_>,
        room: u32,
    ) -> bool {
        let carried = &fragment.carried;
        let ends = carried.last && carried.offset > 0 && carried.kind == CarriedKind::Request;
        if !ends
            || fragment.flags.intersects(ORDERED)
            || self.scratch.tails.is_full()
            || !connection.outbound().is_next_independent(self.pools, room)
        {
            return false;
        }
        let path = &connection.paths()[position];
        let frame_bytes = u32::from(path.frame_bytes());
        if !self.offloads(path.link())
            || path.send().quantum_bytes() < OFFLOADED_FRAMES * frame_bytes
        {
            return false;
        }
        self.scratch.tails.push(*carried, frame_bytes);
        true
    }

    /// Appends the deferred fragments to the batch. Returns whether there were any fragments.
    ///
    /// # Errors
    /// Returns an error if the memory of a fragment does not exist any more. The engine sends the
    /// remaining fragments next.
    #[inline]
    pub(crate) fn push_tails(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        position: usize,
    ) -> Result<bool, LocalFault> {
        if self.scratch.tails.len() == 0 {
            return Ok(false);
        }
        let mut index = 0;
        while let Some(carried) = self.scratch.tails.get(index) {
            let fragment = connection.outbound().cut_again(memory, self.pools, &carried);
            let pushed = fragment.and_then(|fragment| match fragment {
                Some(fragment) => self.push_data(now, memory, connection, position, &fragment),
                None => Ok(0),
            });
            if let Err(fault) = pushed {
                self.return_tails(connection, index);
                return Err(fault);
            }
            index += 1;
        }
        self.scratch.tails.clear();
        Ok(true)
    }

    /// Queues the deferred fragments again, starting at `index`, for the next batch.
    #[cold]
    pub(crate) fn return_tails(&mut self, connection: &mut Connection, index: usize) {
        while let Some(carried) = self.scratch.tails.take_last(index) {
            connection.outbound_mut().on_returned(self.pools, carried);
        }
        self.scratch.tails.clear();
    }
}

/// Flags of operations whose last fragment must not be overtaken by later operations.
const ORDERED: Flags = Flags::STRICT.with(Flags::FENCE_BEFORE).with(Flags::FENCE_AFTER);
