//! What threads of the program do with a stream: reads and writes.

use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Weak};

use nix::errno::Errno;

use crate::lock::lock;
use crate::transport::held::{HeldStreams, HoldsBytes};
use crate::transport::receiving::Taking;
use crate::transport::state::Bit;
use crate::transport::stream::Stream;

impl Stream {
    /// Copies bytes of `from`, behind the first `done` of them, to the send ring: at most [`WRITTEN_BYTES_MAX`], and as
    /// many as there is room for. Returns 0 if there is no room.
    ///
    /// # Errors
    /// As TCP for a connection that was reset or shut down.
    #[inline]
    pub(crate) fn write(
        self: &Arc<Self>,
        from: &[IoSlice<'_>],
        done: usize,
    ) -> Result<usize, Errno> {
        let _writers = lock(&self.writers);
        if self.state.has_any(&[Bit::WriteShut, Bit::ResetDue, Bit::PeerReset, Bit::Lost]) {
            return Err(self.error_for(done).unwrap_or(Errno::EPIPE));
        }
        if self.leaves_edge() {
            return Ok(0);
        }
        let (mut skipped, mut taken) = (done, 0);
        for slice in from {
            let Some(bytes) = slice.get(skipped..) else {
                skipped -= slice.len();
                continue;
            };
            skipped = 0;
            let wanted = bytes.len().min(WRITTEN_BYTES_MAX - taken);
            let written = self.sending.write(&bytes[..wanted]);
            taken += written;
            if written < bytes.len() {
                break;
            }
        }
        Ok(taken)
    }

    /// Returns the error of a broken connection for a call that has transferred `done` bytes. A call that has
    /// transferred some returns their number, and the next call gets the error.
    #[cold]
    fn error_for(&self, done: usize) -> Option<Errno> {
        if done > 0 { Some(Errno::EPIPE) } else { self.take_error() }
    }

    /// Bytes were written: sends them, or holds them back for more.
    #[inline]
    pub(crate) fn on_written(self: &Arc<Self>, held: &HeldStreams) {
        if self.sending.is_due() {
            self.doorbell.ring();
        } else {
            held.add(self.is_held(), self.sending.is_corked(), || {
                let stream: Weak<Self> = Arc::downgrade(self);
                stream
            });
        }
    }

    /// Reads what has come, as far as it fits. Returns 0 at the end.
    ///
    /// # Errors
    /// `EAGAIN` if nothing has come. Otherwise as TCP for a connection that was reset.
    #[inline]
    pub(crate) fn read(
        &self,
        into: &mut [IoSliceMut<'_>],
        done: usize,
        peek: bool,
    ) -> Result<usize, Errno> {
        let _readers = lock(&self.readers);
        if self.leaves_edge() {
            return Err(Errno::EAGAIN);
        }
        let (mut skipped, mut taken) = (done, 0);
        // The call may be late: another thread has closed the descriptor, and the ring belongs to another stream.
        let is_retired = self.state.has(Bit::Retired);
        for slice in into.iter_mut().filter(|_| !is_retired) {
            let length = slice.len();
            let Some(bytes) = slice.get_mut(skipped..) else {
                skipped -= length;
                continue;
            };
            skipped = 0;
            let wanted = bytes.len();
            let taking = if peek { Taking::Peek(taken as u64) } else { Taking::Take };
            let count = self.take(bytes, taking);
            taken += count;
            if count < wanted {
                break;
            }
        }
        if taken > 0 {
            return Ok(taken);
        }
        if self.is_at_end() || self.state.has(Bit::ReadShut) {
            return Ok(0);
        }
        if self.state.is_broken_off() {
            return self.error_for(done).map_or(Ok(0), Err);
        }
        Err(Errno::EAGAIN)
    }

    //= sockets-protocol.md: marker.1
    /// Takes bytes of the TCP part, and of the ring after that. One thread at a time.
    #[inline]
    pub(crate) fn take(&self, out: &mut [u8], taking: Taking) -> usize {
        if self.tcp.has_ended() {
            self.receiving.read(out, taking)
        } else {
            self.take_prefix(out, taking)
        }
    }

    #[cold]
    fn take_prefix(&self, out: &mut [u8], taking: Taking) -> usize {
        let peek = match taking {
            Taking::Take => None,
            Taking::Peek(passed) => Some(passed),
        };
        let count = self.tcp.read(out, peek);
        if peek.is_none() {
            self.on_prefix_read();
        }
        if self.tcp.has_ended() && count < out.len() {
            return count + self.receiving.read(&mut out[count..], taking);
        }
        count
    }

    /// Returns whether everything that the peer will ever send was read.
    #[inline]
    pub(crate) fn is_at_end(&self) -> bool {
        self.tcp.has_ended() && self.receiving.is_at_end()
    }

    /// Returns how many bytes can be read.
    pub(crate) fn received(&self) -> u64 {
        let has_ring = self.tcp.is_switched() && !self.tcp.has_no_ring();
        let ring = if has_ring { self.receiving.available() } else { 0 };
        self.tcp.available() + ring
    }
}

/// The most bytes that are copied before the engine is notified. The wire is busy with them while the next ones are
/// copied.
const WRITTEN_BYTES_MAX: usize = 32 * 1024;
