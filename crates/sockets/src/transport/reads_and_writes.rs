//! Reads and writes of a stream by threads of the program.

use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Weak};

use nix::errno::Errno;

use crate::lock::lock;
use crate::transport::held::{HeldStreams, HoldsBytes};
use crate::transport::receiving::Taking;
use crate::transport::state::Bit;
use crate::transport::stream::Stream;

impl Stream {
    /// Copies bytes from `from` to the send ring, without the first `done` bytes. Copies as many as
    /// the ring has room for, but at most [`WRITTEN_BYTES_MAX`]. Returns the number of bytes
    /// copied; 0 if the ring has no room.
    ///
    /// # Errors
    /// Returns the error that TCP would return if the connection was reset or shut down.
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

    /// Returns the error for a call on a broken connection that has already transferred `done`
    /// bytes. If `done` is not 0, returns `EPIPE` and keeps the connection's own error: the caller
    /// then returns the number of bytes to the program, and the program's next call gets the
    /// connection's error. Returns `None` if the connection's error was already returned.
    #[cold]
    fn error_for(&self, done: usize) -> Option<Errno> {
        if done > 0 { Some(Errno::EPIPE) } else { self.take_error() }
    }

    /// Sends the written bytes, or holds them back until more are written. Called by the program's
    /// thread after a write.
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

    /// Reads bytes that have arrived, as many as fit in `into`. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// Returns `EAGAIN` if no bytes have arrived. Returns the error that TCP would return if the
    /// connection was reset.
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
        // If another thread closes the descriptor during this call, the ring may already belong to
        // another stream. In that case read nothing.
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
    /// Reads the bytes that came by TCP, and then the bytes of the ring. The caller must ensure
    /// that only one thread reads at a time.
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
        // After the switch marker, no more bytes arrive before those of the ring.
        let is_complete = self.tcp.precedes_ring();
        let (count, rest) = match taking {
            Taking::Take => {
                let count = self.tcp.read(out, None);
                self.on_prefix_read();
                (count, Taking::Take)
            }
            Taking::Peek(passed) => {
                let in_ring = passed.saturating_sub(self.tcp.available());
                (self.tcp.read(out, Some(passed)), Taking::Peek(in_ring))
            }
        };
        if is_complete && count < out.len() {
            return count + self.receiving.read(&mut out[count..], rest);
        }
        count
    }

    /// Returns true if the program has read all bytes and the peer has ended the stream.
    #[inline]
    pub(crate) fn is_at_end(&self) -> bool {
        self.tcp.has_ended() && self.receiving.is_at_end()
    }

    /// Returns the number of bytes that the program can read now.
    pub(crate) fn received(&self) -> u64 {
        let ring = if self.tcp.precedes_ring() { self.receiving.available() } else { 0 };
        self.tcp.available() + ring
    }
}

/// Maximum number of bytes copied before this thread notifies the engine. The link then transmits
/// these bytes while the thread copies the next ones.
const WRITTEN_BYTES_MAX: usize = 32 * 1024;
