//! Relays bytes between a stream and the program's descriptor, so that the kernel can handle the
//! program's calls.
//!
//! The program's descriptor is one end of a socket pair. Other processes read and write this end,
//! and so do functions of this process that the library does not interpose. The relay carries bytes
//! between the other end of the pair and the rings.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, Shutdown, recv, send, shutdown};
use runtime::Readiness;

use crate::lock::lock;
use crate::transport::receiving::Taking;
use crate::transport::relay::Carried;
use crate::transport::state::Bit;
use crate::transport::stream::Stream;
use crate::transport::stream_doorbell::StreamDescriptor;

impl Stream {
    /// Starts the relay.
    pub(crate) fn start_relay(&self, program: BorrowedFd<'_>) {
        // While this thread holds both locks, no other thread of this process reads or writes the
        // stream.
        let _writers = lock(&self.writers);
        let _readers = lock(&self.readers);
        if !self.relay.is_on() && !self.leaves_edge() && self.end.relay(program) {
            self.relay.turn_on();
            self.carry();
        }
    }

    /// Carries bytes if the relay is on. Called when bytes have arrived or room is free, in the
    /// rings or in the socket pair.
    #[inline]
    pub(super) fn on_relay_change(&self) {
        if self.relay.is_on() {
            self.carry();
        }
    }

    /// Returns true if the socket pair may still deliver bytes from the program.
    pub(crate) fn has_more_to_relay(&self) -> bool {
        let relay = &self.relay;
        relay.is_on() && !lock(&relay.carried).is_input_closed && !self.state.is_broken()
    }

    #[cold]
    fn carry(&self) {
        let Some(end) = self.end.socket() else { return };
        let end = end.as_fd();
        let mut carried = lock(&self.relay.carried);
        carried.take_from(self, end);
        carried.give_to(self, end);
        carried.watch(self, end);
    }
}

impl Carried {
    /// Carries bytes from the socket pair to the send ring.
    fn take_from(&mut self, stream: &Stream, end: BorrowedFd<'_>) {
        let mut bytes = [0; CARRIED_BYTES];
        let mut has_written = false;
        while !self.is_input_closed && !stream.state.is_broken() {
            let room = bytes.len().min(stream.sending.room() as usize);
            if room == 0 {
                break;
            }
            match recv(end.as_raw_fd(), &mut bytes[..room], MsgFlags::MSG_DONTWAIT) {
                Ok(count @ 1..) => {
                    let taken = stream.sending.write(&bytes[..count]);
                    assert_eq!(taken, count, "only the relay writes to a relayed stream");
                    has_written = true;
                }
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                // All copies of the program's descriptor are closed, or were shut down for writing.
                Ok(_) | Err(_) => {
                    self.is_input_closed = true;
                    if stream.end.is_abandoned() {
                        stream.unwatch_end();
                        self.is_output_closed = true;
                        stream.abandon();
                    } else {
                        stream.state.set(Bit::WriteShut);
                    }
                    has_written = true;
                }
            }
        }
        if has_written {
            stream.sending.push();
            stream.doorbell.mark();
        }
    }

    /// Carries bytes of the stream to the socket pair.
    fn give_to(&mut self, stream: &Stream, end: BorrowedFd<'_>) {
        while !self.is_output_closed {
            if self.left.is_empty() {
                self.left.resize(CARRIED_BYTES, 0);
                let count = stream.take(&mut self.left, Taking::Take);
                self.left.truncate(count);
                if count == 0 {
                    break;
                }
            }
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match send(end.as_raw_fd(), &self.left, flags) {
                Ok(count) => drop(self.left.drain(..count)),
                Err(Errno::EAGAIN | Errno::EINTR) => return,
                Err(_) => self.is_output_closed = true,
            }
        }
        if stream.receiving.is_credit_due() {
            stream.doorbell.mark();
        }
        if !self.is_output_closed && stream.is_at_end() {
            self.is_output_closed = true;
            let _closed = shutdown(end.as_raw_fd(), Shutdown::Write);
        }
    }

    /// Watches the library's end of the pair for the events that the relay is waiting for.
    fn watch(&mut self, stream: &Stream, end: BorrowedFd<'_>) {
        let wanted = Readiness {
            readable: !self.is_input_closed
                && stream.sending.room() > 0
                && !stream.state.is_broken(),
            writable: !self.is_output_closed && !self.left.is_empty(),
        };
        // If the peer ended its direction before it was lost, continue to relay the bytes that
        // arrived earlier.
        if self.watched != wanted && !stream.state.has_any(&[Bit::Broken, Bit::Released]) {
            self.watched = wanted;
            if stream.doorbell.watch(StreamDescriptor::End, end, wanted).is_err() {
                stream.reset();
            }
        }
    }
}

/// Number of bytes that the relay carries at a time.
const CARRIED_BYTES: usize = 16 * 1024;
