//! Reads and writes TCP while the route of a connection is undecided. During this time a switch
//! marker may arrive.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, getsockopt, recv, send, setsockopt, sockopt};

use crate::calls::expected::Expects;
use crate::transport::switch_marker::{Scan, Watch, scan};
use crate::transport::tcp_part::is_dead;
use crate::wire::SwitchMarker;

/// The mode in which the library reads TCP.
#[derive(Debug)]
pub(crate) enum Reading {
    /// The library reads TCP like an ordinary socket.
    Plain,
    /// The switch marker is expected. Bytes that may be its beginning stay in the kernel. The
    /// library does not buffer them, because the connection may still stay on TCP.
    Expecting(SwitchMarker, Expects),
    /// The switch marker may never arrive, so the library holds no bytes back for it. If a switch
    /// marker does arrive, this side answers it.
    Awaiting(Watch, Expects),
    /// This side can no longer answer a switch marker. If one arrives, the peer has moved and this
    /// side cannot follow.
    Watching(Watch),
}

/// The progress of the switch marker that the library writes to TCP.
#[derive(Debug, Default)]
pub(crate) struct Writing {
    /// Number of bytes of the switch marker that are already written.
    marker_bytes_written: usize,
}

impl Reading {
    /// Stops holding bytes back, because the peer's answer is late or will never arrive. The peer's
    /// switch marker may still arrive.
    pub(crate) fn await_marker(&mut self) {
        if let Self::Expecting(marker, _) = *self {
            *self = Self::Awaiting(Watch::new(marker), Expects::new());
        }
    }

    /// Stops expecting the switch marker, because this side can no longer answer it.
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

    /// Writes the switch marker and flushes it. Without the flush, the marker would wait until the
    /// peer acknowledges earlier bytes. Returns false if TCP had no room for the whole marker.
    pub(crate) fn write_marker(
        &mut self,
        tcp: BorrowedFd<'_>,
        marker: SwitchMarker,
    ) -> Result<bool, Errno> {
        let result = self.write_unwritten(tcp, marker);
        // Setting `TCP_NODELAY` flushes the send queue, even under `TCP_CORK`. The code below
        // restores the program's setting.
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

/// Receives the bytes that precede the switch marker. Returns true if the marker follows them; the
/// marker stays in TCP.
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

/// Receives bytes that may contain the switch marker. Returns true if the whole marker has arrived.
/// In that case the program gets no byte of the marker, even if it requested fewer bytes than the
/// marker has.
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

/// Returns true if TCP has failed, or if TCP has ended and the switch marker before its end is
/// incomplete (`is_whole` is false). The marker then cannot be answered.
pub(crate) fn is_ended(fd: BorrowedFd<'_>, is_whole: bool) -> bool {
    let mut entries = [PollFd::new(fd, PollFlags::from_bits_retain(libc::POLLRDHUP))];
    is_dead(fd) || !is_whole && poll(&mut entries, PollTimeout::ZERO) == Ok(1)
}

/// The reason why the program gets no bytes while a switch marker may arrive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Watched {
    /// A switch marker has arrived: true for the whole marker, false for a part of it.
    Marker(bool),
    /// TCP has failed, or the program read a part of the switch marker before the rest arrived.
    Failed(Errno),
}

/// Receives bytes while a switch marker must not arrive, because this side can no longer answer a
/// marker. Returns an error if the program would otherwise get the end of a marker.
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

/// Peeks at the bytes in TCP: `wanted` bytes at most, plus the length of a switch marker, which may
/// follow them.
fn looked_at(fd: BorrowedFd<'_>, wanted: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; (wanted + SwitchMarker::BYTES).min(LOOKED_AT_BYTES)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
    let count = recv(fd.as_raw_fd(), &mut bytes, flags)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Copies peeked bytes to the program. If the program's call is not itself a peek, also consumes
/// the bytes in the kernel.
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
        // These bytes are in the receive queue, and no other thread reads, so `recv` returns all of
        // them.
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

/// Enlarges the receive buffer if it is small. Bytes that may be the beginning of the switch marker
/// stay in the socket. Without more room, they could fill the buffer, because the kernel charges
/// more memory for a small segment than the segment's bytes need. Then no later byte could arrive.
pub(crate) fn make_room_behind(fd: BorrowedFd<'_>) {
    let size = || getsockopt(&fd, sockopt::RcvBuf).ok().filter(|&size| size < ROOM_BYTES as usize);
    if size().is_none() {
        return;
    }
    // Without the permission to enlarge it, the buffer keeps its size.
    let _as_it_was = link::make_room(fd, ROOM_BYTES);
    if let Some(size) = size() {
        // Without privileges, set the size like a program. The kernel doubles the given value, up
        // to the limit of the host.
        let _as_it_was = setsockopt(&fd, sockopt::RcvBuf, &size);
    }
}

/// Maximum number of bytes that one peek copies before the library consumes them.
const LOOKED_AT_BYTES: usize = 64 * 1024;

/// Size in bytes below which a receive buffer is enlarged. A single segment cannot fill a buffer of
/// this size.
const ROOM_BYTES: u32 = 1 << 20;
