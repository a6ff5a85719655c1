//! Calls of the program while the route of a connection is undecided. These calls use TCP. They
//! never block in the kernel, because the connection may move during the call.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recvmsg, sendmsg};

use crate::calls::connection::{Connection, Route};
use crate::calls::flags::{ReceiveFlags, SendFlags};
use crate::calls::slices::{behind, rest_of};
use crate::calls::tcp::{Reading, Watched, receive_awaited, receive_before, receive_watched};
use crate::calls::waiting::{Waited, Waiting};
use crate::lock::lock;
use crate::transport::held::HoldsBytes;

impl Connection {
    /// Calls `call` if the connection is undecided. `call` may make a kernel call on the program's
    /// descriptor that does not transfer bytes and does not wait. While `call` runs, the program's
    /// descriptor number refers to the TCP socket. If this method returns `None` and the connection
    /// has moved, the number already refers to the new descriptor.
    pub fn while_undecided<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        // A connection moves only under this lock.
        let _writing = lock(&self.writing);
        (self.route() == Route::Undecided).then(call)
    }

    /// Receives bytes by TCP. Returns `EAGAIN` if TCP has no bytes, or if the connection has moved.
    pub(crate) fn receive_undecided(
        &self,
        fd: BorrowedFd<'_>,
        into: &mut [IoSliceMut<'_>],
        done: usize,
        peek: bool,
    ) -> Result<usize, Errno> {
        let mut reading = lock(&self.reading);
        if self.is_closing() {
            return Err(Errno::EBADF);
        }
        if self.moved().is_some() {
            // The caller handles `EAGAIN` by a retry, and the retry reads the stream.
            return Err(Errno::EAGAIN);
        }
        let flags = MsgFlags::MSG_DONTWAIT;
        let flags = if peek { flags | MsgFlags::MSG_PEEK } else { flags };
        let mut rest = behind(into, done);
        match &mut *reading {
            Reading::Plain => {
                let count = recvmsg::<()>(fd.as_raw_fd(), &mut rest, None, flags)?.bytes;
                if count > 0 {
                    self.on_bytes(true);
                }
                Ok(count)
            }
            Reading::Watching(watch) => {
                receive_watched(fd, &mut rest, watch, peek).map_err(|watched| match watched {
                    Watched::Marker(_) => Errno::ECONNRESET,
                    Watched::Failed(error) => error,
                })
            }
            Reading::Awaiting(watch, _) => {
                let (result, has_marker) = receive_awaited(fd, &mut rest, watch, peek);
                drop(reading);
                if has_marker {
                    self.on_marker_seen();
                }
                result
            }
            Reading::Expecting(marker, _) => {
                let (result, has_marker) = receive_before(fd, &mut rest, *marker, peek);
                drop(reading);
                if has_marker {
                    self.on_marker_seen();
                }
                result
            }
        }
    }

    pub(crate) fn send_undecided(
        &self,
        fd: BorrowedFd<'_>,
        from: &[IoSlice<'_>],
        done: usize,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        let _writing = lock(&self.writing);
        if self.writes_no_more() {
            return Err(Errno::EPIPE);
        }
        if self.is_closing() {
            return Err(Errno::EBADF);
        }
        if self.is_held() || self.moved().is_some() {
            return Err(Errno::EAGAIN);
        }
        let mut how = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        if flags.more {
            how |= MsgFlags::from_bits_retain(libc::MSG_MORE);
        }
        let rest = rest_of(from, done);
        let sent = sendmsg::<()>(fd.as_raw_fd(), &rest, &[], how, None);
        if sent.is_ok() {
            self.on_bytes(false);
        }
        sent
    }

    /// Waits as long as the program allows. The caller then retries.
    #[cold]
    pub(super) fn wait(
        &self,
        fd: BorrowedFd<'_>,
        what: Waiting,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<(), Errno> {
        self.endpoint.held().push_all();
        if let Some(stream) = self.moved() {
            stream.push();
            let limit = what.limit(stream.socket().as_fd());
            return match self.endpoint.wait_beside(&self.mark, &mut [], limit, ready)? {
                Waited::Ready | Waited::Others => Ok(()),
                Waited::TimedOut => Err(Errno::EAGAIN),
            };
        }
        self.wait_undecided(fd, what)
    }

    /// Waits until TCP is ready or the connection has moved.
    pub(crate) fn wait_undecided(&self, fd: BorrowedFd<'_>, what: Waiting) -> Result<(), Errno> {
        let limit = what.limit(fd);
        // If the connection was left to TCP before the wait, its route cannot change any more, so
        // only readiness ends the wait. Otherwise a decision about the route also ends the wait.
        let was_left = self.is_left();
        let is_decided = || self.moved().is_some() || (self.is_left() && !was_left);
        let mut ready = || self.is_closing() || is_decided();
        let is_held = match what {
            Waiting::ToReceive => self.has_only_marker(fd),
            Waiting::ToSend => self.is_held(),
        };
        if is_held {
            // The kernel reports the beginning of the switch marker as readable all the time.
            // Therefore wait in short steps for the rest of the marker, which is in flight.
            let limit = Some(HELD_LOOK);
            return self.endpoint.wait_beside(&self.mark, &mut [], limit, &mut ready).map(drop);
        }
        let mut others = [what.entry(fd)];
        match self.endpoint.wait_beside(&self.mark, &mut others, limit, &mut ready)? {
            Waited::Ready | Waited::Others => Ok(()),
            Waited::TimedOut => Err(Errno::EAGAIN),
        }
    }
}

/// Kernel calls on a relayed connection.
impl Connection {
    pub(crate) fn receive_relayed(
        fd: BorrowedFd<'_>,
        into: &mut [IoSliceMut<'_>],
        flags: ReceiveFlags,
    ) -> Result<usize, Errno> {
        let mut how = MsgFlags::empty();
        how.set(MsgFlags::MSG_PEEK, flags.peek);
        how.set(MsgFlags::MSG_WAITALL, flags.wait_all);
        how.set(MsgFlags::MSG_DONTWAIT, flags.dont_wait);
        Ok(recvmsg::<()>(fd.as_raw_fd(), into, None, how)?.bytes)
    }

    pub(crate) fn send_relayed(
        fd: BorrowedFd<'_>,
        from: &[IoSlice<'_>],
        done: usize,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        let mut how = MsgFlags::MSG_NOSIGNAL;
        how.set(MsgFlags::MSG_DONTWAIT, flags.dont_wait);
        let sent = sendmsg::<()>(fd.as_raw_fd(), &rest_of(from, done), &[], how, None);
        match sent {
            Ok(count) => Ok(done + count),
            Err(_) if done > 0 => Ok(done),
            Err(error) => Err(error),
        }
    }
}

/// The interval at which a thread checks whether the rest of a possible switch marker has arrived.
const HELD_LOOK: Duration = Duration::from_millis(1);
