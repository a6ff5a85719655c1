//! Peeks (`MSG_PEEK`) that wait until all requested bytes have arrived.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::calls::connection::Connection;
use crate::calls::waiting::{Waited, Waiting};
use crate::transport::held::HoldsBytes;
use crate::transport::state::Bit;
use crate::transport::stream::Stream;

/// The time for which one peek has waited for TCP.
#[derive(Debug, Default)]
pub(crate) struct Peeking {
    waited: Duration,
}

impl Connection {
    /// Waits until more than `seen` bytes have arrived. Returns false if the call must return the
    /// bytes that are there: no more can arrive, the time has run out, or a signal has arrived.
    #[cold]
    pub(crate) fn wait_for_more(
        &self,
        fd: BorrowedFd<'_>,
        seen: usize,
        peeking: &mut Peeking,
    ) -> bool {
        self.endpoint.held().push_all();
        let Some(stream) = self.moved() else {
            return self.wait_for_more_of_tcp(fd, peeking);
        };
        stream.push();
        let has_more = || stream.received() > seen as u64;
        let limit = Waiting::ToReceive.limit(stream.socket().as_fd());
        let is_kernels = || stream.relay.is_on() || self.is_left();
        let mut ready = || has_more() || stream.brings_no_more() || is_kernels();
        let waited = self.endpoint.wait_beside(&self.mark, &mut [], limit, &mut ready);
        waited == Ok(Waited::Ready) && (has_more() || is_kernels())
    }

    /// Waits for more bytes in TCP. TCP stays readable because of the peeked bytes, so the kernel
    /// cannot report that more bytes have arrived. Therefore the caller counts the bytes after each
    /// interval.
    fn wait_for_more_of_tcp(&self, fd: BorrowedFd<'_>, peeking: &mut Peeking) -> bool {
        let mut entries = [PollFd::new(fd, PollFlags::from_bits_retain(libc::POLLRDHUP))];
        let ended = poll(&mut entries, PollTimeout::ZERO);
        let limit = Waiting::ToReceive.limit(fd);
        if ended != Ok(0) || limit.is_some_and(|limit| peeking.waited >= limit) {
            // If the connection has moved, `fd` no longer refers to the TCP socket.
            return self.moved().is_some();
        }
        peeking.waited += STEP;
        let mut ready = || self.moved().is_some();
        self.endpoint.wait_beside(&self.mark, &mut [], Some(STEP), &mut ready).is_ok()
    }
}

impl Stream {
    /// Returns true if no more bytes can arrive before the program reads some.
    fn brings_no_more(&self) -> bool {
        (self.tcp.is_switched() && (self.receiving.has_end() || self.receiving.is_full()))
            || self.state.is_broken()
            || self.state.has(Bit::ReadShut)
    }
}

/// The interval at which a peek counts the bytes in TCP.
const STEP: Duration = Duration::from_millis(1);
