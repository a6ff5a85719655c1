//! Calls that receive.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nix::errno::Errno;

use crate::calls::connection::{Connection, returned};
use crate::calls::flags::ReceiveFlags;
use crate::calls::peeking::Peeking;
use crate::calls::waiting::{Blocking, Waiting};
use crate::transport::stream::Stream;

impl Connection {
    /// Receives bytes from `fd`, the program's descriptor, like `recvmsg`.
    ///
    /// # Errors
    /// Returns the errors of `recvmsg`.
    pub fn receive(
        &self,
        fd: BorrowedFd<'_>,
        into: &mut [IoSliceMut<'_>],
        flags: ReceiveFlags,
    ) -> Result<usize, Errno> {
        if flags.discard && !flags.peek {
            return self.discard(fd, into, flags);
        }
        let total: usize = into.iter().map(|slice| slice.len()).sum();
        let mut blocking = Blocking::new(flags.dont_wait);
        let mut peeking = Peeking::default();
        let mut done = 0;
        loop {
            let result = match self.moved() {
                Some(stream) if stream.relay.is_on() => {
                    return Self::receive_relayed(fd, into, flags);
                }
                Some(stream) => {
                    returned(fd, self.receive_moved(stream, fd, into, done, flags.peek))
                }
                None => match self.receive_undecided(fd, into, done, flags.peek) {
                    // The connection moved before this thread read TCP. The stream now has the
                    // bytes.
                    Err(Errno::EAGAIN) if self.moved().is_some() => continue,
                    result => result,
                },
            };
            match result {
                Ok(0) => return Ok(done),
                Ok(count) if flags.peek => {
                    // A later peek returns these bytes together with the next bytes.
                    let waits = flags.wait_all && count < total && blocking.may_wait(fd);
                    if !waits || !self.wait_for_more(fd, count, &mut peeking) {
                        return Ok(count);
                    }
                }
                Ok(count) => {
                    done += count;
                    if done >= total || !flags.wait_all {
                        return Ok(done);
                    }
                }
                Err(Errno::EAGAIN) if blocking.may_wait(fd) => {
                    match self.wait(fd, Waiting::ToReceive, &mut || self.can_receive()) {
                        Ok(()) => {}
                        Err(_) if done > 0 => return Ok(done),
                        Err(error) => return Err(error),
                    }
                }
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }

    #[inline]
    fn receive_moved(
        &self,
        stream: &Arc<Stream>,
        fd: BorrowedFd<'_>,
        into: &mut [IoSliceMut<'_>],
        done: usize,
        peek: bool,
    ) -> Result<usize, Errno> {
        let is_by_tcp = !stream.tcp.has_ended();
        let mut result = stream.read(into, done, peek);
        if result == Err(Errno::EAGAIN) {
            // Drive the engine, because bytes may have arrived on a link.
            self.endpoint.drive();
            result = stream.read(into, done, peek);
        }
        if !peek {
            stream.end.on_read(fd, || stream.is_readable());
            if stream.receiving.is_credit_due() {
                stream.doorbell.ring();
            }
            if is_by_tcp {
                self.on_read_by_tcp(stream);
            }
        }
        result
    }

    /// Notifies the engine and other threads of the program after a read that took bytes out of
    /// TCP. The engine does not notice such a read.
    #[cold]
    fn on_read_by_tcp(&self, stream: &Stream) {
        if stream.is_service_due() {
            stream.doorbell.ring();
        }
        // Other threads may wait for bytes that this read took out of TCP and left.
        if stream.is_readable() {
            self.endpoint.raise(&self.mark);
        }
    }

    #[inline]
    fn can_receive(&self) -> bool {
        self.moved().is_none_or(|stream| stream.is_readable() || stream.relay.is_on())
    }

    fn discard(
        &self,
        fd: BorrowedFd<'_>,
        into: &mut [IoSliceMut<'_>],
        flags: ReceiveFlags,
    ) -> Result<usize, Errno> {
        let total: usize = into.iter().map(|slice| slice.len()).sum();
        let mut scratch = vec![0; total.min(SCRATCH_BYTES)];
        let mut slices = [IoSliceMut::new(&mut scratch)];
        self.receive(fd, &mut slices, ReceiveFlags { discard: false, ..flags })
    }
}

/// Number of bytes that one read discards.
const SCRATCH_BYTES: usize = 64 * 1024;
