//! Calls that send.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nix::errno::Errno;

use crate::calls::connection::{Connection, returned};
use crate::calls::flags::SendFlags;
use crate::calls::waiting::{Blocking, Waiting};
use crate::transport::held::HoldsBytes;
use crate::transport::state::Bit;
use crate::transport::stream::Stream;

impl Connection {
    /// Sends bytes, like `sendmsg`.
    ///
    /// # Errors
    /// Returns the errors of `sendmsg`. On `EPIPE` the caller must raise `SIGPIPE`.
    pub fn send(
        &self,
        fd: BorrowedFd<'_>,
        from: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        let total: usize = from.iter().map(|slice| slice.len()).sum();
        let mut blocking = Blocking::new(flags.dont_wait);
        let mut done = 0;
        loop {
            let result = match self.moved() {
                Some(stream) if stream.relay.is_on() => {
                    return Self::send_relayed(fd, from, done, flags);
                }
                Some(stream) => returned(fd, self.send_moved(stream, from, done, flags.more)),
                None => match self.send_undecided(fd, from, done, flags) {
                    Err(Errno::EAGAIN) if self.moved().is_some() => continue,
                    result => result,
                },
            };
            match result {
                Ok(count) => {
                    done += count;
                    if done >= total {
                        return Ok(done);
                    }
                }
                Err(Errno::EAGAIN) => {
                    if !blocking.may_wait(fd) {
                        self.note_full(fd);
                        return if done > 0 { Ok(done) } else { Err(Errno::EAGAIN) };
                    }
                    if let Err(error) = self.wait(fd, Waiting::ToSend, &mut || self.can_send()) {
                        // The call has timed out before there was room for its bytes.
                        self.note_full(fd);
                        return if done > 0 { Ok(done) } else { Err(error) };
                    }
                }
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }

    /// Copies bytes to the send ring. Returns `EAGAIN` if the ring has no room.
    #[inline]
    fn send_moved(
        &self,
        stream: &Arc<Stream>,
        from: &[IoSlice<'_>],
        done: usize,
        more: bool,
    ) -> Result<usize, Errno> {
        stream.sending.set_more(more);
        let mut count = stream.write(from, done)?;
        if count == 0 && from.iter().any(|slice| !slice.is_empty()) {
            stream.push();
            self.endpoint.drive();
            count = stream.write(from, done)?;
            if count == 0 {
                return Err(Errno::EAGAIN);
            }
        }
        stream.on_written(self.endpoint.held());
        Ok(count)
    }

    /// Makes the program's descriptor unwritable, because a write found no room in the send ring.
    #[cold]
    fn note_full(&self, fd: BorrowedFd<'_>) {
        if let Some(stream) = self.moved() {
            stream.end.on_full(fd, || stream.has_room());
        }
    }

    fn can_send(&self) -> bool {
        self.moved().is_none_or(|stream| {
            stream.has_room()
                || stream.relay.is_on()
                || stream.state.is_broken()
                || stream.state.has(Bit::WriteShut)
        })
    }
}
