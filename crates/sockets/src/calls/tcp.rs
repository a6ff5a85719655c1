//! Reading and writing TCP while the route of a connection is undecided and a switch marker may come.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, getsockopt, recv, send, setsockopt, sockopt};

use crate::calls::expected::Expects;
use crate::transport::switch_marker::{Scan, Watch, scan};
use crate::transport::tcp_part::is_dead;
use crate::wire::SwitchMarker;

/// How TCP is read.
#[derive(Debug)]
pub(crate) enum Reading {
    /// As usual.
    Plain,
    /// The switch marker may come. Bytes that may be its beginning stay in the kernel, so that nothing is buffered here
    /// for a connection that does not move after all.
    Expecting(SwitchMarker, Expects),
    /// The switch marker may come or may not, so no byte is held back for it. A switch marker that comes is answered.
    Awaiting(Watch, Expects),
    /// The switch marker must not come any more. If it does, the peer has moved and this side cannot.
    Watching(Watch),
}

/// How TCP is written.
#[derive(Debug, Default)]
pub(crate) struct Writing {
    /// How many bytes of the switch marker are written.
    marker_bytes_written: usize,
}

impl Reading {
    /// The peer's answer is late or never comes. Its switch marker may still come.
    pub(crate) fn await_marker(&mut self) {
        if let Self::Expecting(marker, _) = *self {
            *self = Self::Awaiting(Watch::new(marker), Expects::new());
        }
    }

    /// A switch marker that comes cannot be answered any more.
    pub(crate) fn watch(&mut self) {
        match std::mem::replace(self, Self::Plain) {
            Self::Expecting(marker, _) => *self = Self::Watching(Watch::new(marker)),
            Self::Awaiting(watch, _) => *self = Self::Watching(watch),
            other => *self = other,
        }
    }
}

impl Writing {
    pub(crate) const fn has_begun(&self) -> bool {
        self.marker_bytes_written > 0
    }

    /// Writes the switch marker and flushes it; otherwise it would wait for the acknowledgement of earlier bytes.
    /// Returns false if there is no room for all of it.
    pub(crate) fn write_marker(
        &mut self,
        tcp: BorrowedFd<'_>,
        marker: SwitchMarker,
    ) -> Result<bool, Errno> {
        let result = self.write_unwritten(tcp, marker);
        // Setting `TCP_NODELAY` flushes the queue, even under a cork. The program's own setting is restored.
        let is_gathered = !getsockopt(&tcp, sockopt::TcpNoDelay)?;
        setsockopt(&tcp, sockopt::TcpNoDelay, &true)?;
        if is_gathered {
            setsockopt(&tcp, sockopt::TcpNoDelay, &false)?;
        }
        result
    }

    fn write_unwritten(
        &mut self,
        tcp: BorrowedFd<'_>,
        marker: SwitchMarker,
    ) -> Result<bool, Errno> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        while self.marker_bytes_written < SwitchMarker::BYTES {
            match send(tcp.as_raw_fd(), &marker.0[self.marker_bytes_written..], flags) {
                Ok(count) => self.marker_bytes_written += count,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Receives bytes before the switch marker, and returns whether the marker follows. The marker stays in TCP.
pub(super) fn receive_before(
    fd: BorrowedFd<'_>,
    into: &mut [IoSliceMut<'_>],
    marker: SwitchMarker,
    peek: bool,
) -> (Result<usize, Errno>, bool) {
    let wanted: usize = into.iter().map(|slice| slice.len()).sum();
    let mut bytes = match looked_at(fd, wanted) {
        Ok(bytes) if !bytes.is_empty() => bytes,
        ended => return (ended.map(|_| 0), false),
    };
    let Scan { shown, has_marker } = scan(&bytes, &marker);
    (take_before(fd, into, &mut bytes[..shown.min(wanted)], peek), has_marker)
}

/// Receives bytes among which the switch marker may come, and returns whether it has come. A program gets no byte of a
/// switch marker that has come as a whole, however few bytes it asks for.
pub(super) fn receive_awaited(
    fd: BorrowedFd<'_>,
    into: &mut [IoSliceMut<'_>],
    watch: &mut Watch,
    peek: bool,
) -> (Result<usize, Errno>, bool) {
    match receive_watched(fd, into, watch, peek) {
        Err(Watched::Marker(is_whole)) if is_ended(fd, is_whole) => (Err(Errno::ECONNRESET), false),
        Err(Watched::Marker(is_whole)) => (Err(Errno::EAGAIN), is_whole),
        Err(Watched::Failed(error)) => (Err(error), false),
        Ok(count) => (Ok(count), false),
    }
}

/// Returns whether a switch marker that has come, as a whole or in part, cannot be answered because
/// TCP has ended behind it.
pub(crate) fn is_ended(fd: BorrowedFd<'_>, is_whole: bool) -> bool {
    let mut entries = [PollFd::new(fd, PollFlags::from_bits_retain(libc::POLLRDHUP))];
    is_dead(fd) || !is_whole && poll(&mut entries, PollTimeout::ZERO) == Ok(1)
}

/// Why a program gets no bytes while a switch marker may come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Watched {
    /// A switch marker has come: true for the whole marker, false for a part.
    Marker(bool),
    /// TCP has failed, or the program has read a part of the switch marker before the rest came.
    Failed(Errno),
}

/// Receives bytes among which the switch marker must not come.
pub(super) fn receive_watched(
    fd: BorrowedFd<'_>,
    into: &mut [IoSliceMut<'_>],
    watch: &mut Watch,
    peek: bool,
) -> Result<usize, Watched> {
    let wanted: usize = into.iter().map(|slice| slice.len()).sum();
    let mut bytes = looked_at(fd, wanted).map_err(Watched::Failed)?;
    let Scan { shown, has_marker } = watch.scan(&bytes);
    let length = shown.min(wanted);
    if shown < bytes.len() && length == 0 && wanted > 0 {
        return Err(Watched::Marker(has_marker));
    }
    let bytes = &mut bytes[..length];
    if bytes.is_empty() || peek {
        scatter(into, bytes);
        return Ok(length);
    }
    let taken = take_before(fd, into, bytes, false).map_err(Watched::Failed)?;
    if watch.completes(bytes) { Err(Watched::Failed(Errno::ECONNRESET)) } else { Ok(taken) }
}

/// Peeks at the bytes that TCP has: as many as are wanted, and a switch marker behind them.
fn looked_at(fd: BorrowedFd<'_>, wanted: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; (wanted + SwitchMarker::BYTES).min(LOOKED_AT_BYTES)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
    let count = recv(fd.as_raw_fd(), &mut bytes, flags)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Returns bytes that were peeked at, and takes them out of the kernel unless the program peeks too.
fn take_before(
    fd: BorrowedFd<'_>,
    into: &mut [IoSliceMut<'_>],
    bytes: &mut [u8],
    peek: bool,
) -> Result<usize, Errno> {
    if bytes.is_empty() {
        if into.iter().all(|slice| slice.is_empty()) {
            return Ok(0);
        }
        make_room_behind(fd);
        return Err(Errno::EAGAIN);
    }
    scatter(into, bytes);
    if !peek {
        // The bytes are there, and no other thread reads.
        recv(fd.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT)?;
    }
    Ok(bytes.len())
}

fn scatter(into: &mut [IoSliceMut<'_>], mut from: &[u8]) {
    for slice in into {
        let (now, later) = from.split_at(from.len().min(slice.len()));
        slice[..now.len()].copy_from_slice(now);
        from = later;
    }
}

/// Enlarges the receive buffer, if it is small. Bytes that may be the beginning of the switch marker stay in the
/// socket, and what follows must have room, however much memory the kernel counts for them.
pub(crate) fn make_room_behind(fd: BorrowedFd<'_>) {
    let size = || getsockopt(&fd, sockopt::RcvBuf).ok().filter(|&size| size < ROOM_BYTES as usize);
    if size().is_none() {
        return;
    }
    // Without permission the buffer stays as it is.
    let _as_it_was = link::make_room(fd, ROOM_BYTES);
    if let Some(size) = size() {
        // The program has set the size. The kernel takes twice the given value, as far as the host allows.
        let _as_it_was = setsockopt(&fd, sockopt::RcvBuf, &size);
    }
}

/// Bytes that are peeked at before they are taken.
const LOOKED_AT_BYTES: usize = 64 * 1024;

/// Room for bytes behind those that are held back: more than one kernel buffer holds.
const ROOM_BYTES: u32 = 1 << 20;
