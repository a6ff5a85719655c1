//! How TCP is read and written while it is undecided which way a connection takes: with an eye on switch markers.

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
    /// As ever.
    Plain,
    /// The switch marker may come. Bytes that may be its beginning stay with the kernel, so that nothing is kept here
    /// of a connection that does not move after all.
    Expecting(SwitchMarker, Expects),
    /// The switch marker may come, or never does: no byte waits for it. A switch marker that comes is answered.
    Awaiting(Watch, Expects),
    /// The switch marker must not come any more, but may: then the peer has moved, and this side cannot.
    Watching(Watch),
}

/// How TCP is written to.
#[derive(Debug, Default)]
pub(crate) struct Writing {
    /// Bytes of the switch marker that are written.
    marker_bytes_written: usize,
}

impl Reading {
    /// The peer's answer is late or never comes, and its switch marker may still come.
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

    /// Writes the switch marker, which goes at once: it would wait for an acknowledgement of what the program has
    /// written before. False if there is no room for all of it.
    pub(crate) fn write_marker(
        &mut self,
        tcp: BorrowedFd<'_>,
        marker: SwitchMarker,
    ) -> Result<bool, Errno> {
        let result = self.write_unwritten(tcp, marker);
        // Setting it sends what is queued, even under a cork. What the program has asked for is as it was afterwards.
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

/// Receives what comes before the switch marker, and whether that follows: looks, and takes no more than that.
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

/// Receives bytes among which the switch marker may come, and whether it has come. A program gets no byte of a switch
/// marker that has come whole, however few bytes it asks for.
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

/// Whether what has come of a switch marker cannot be answered, as TCP has ended behind it.
pub(crate) fn is_ended(fd: BorrowedFd<'_>, is_whole: bool) -> bool {
    let mut entries = [PollFd::new(fd, PollFlags::from_bits_retain(libc::POLLRDHUP))];
    is_dead(fd) || !is_whole && poll(&mut entries, PollTimeout::ZERO) == Ok(1)
}

/// Why a program is shown no bytes in which a switch marker may come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Watched {
    /// A switch marker has come, whole or in part.
    Marker(bool),
    /// TCP has failed, or a part of the switch marker was shown before the rest came.
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

/// Bytes that TCP has, which stay there: so many as are wanted, and a switch marker behind them.
fn looked_at(fd: BorrowedFd<'_>, wanted: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; (wanted + SwitchMarker::BYTES).min(LOOKED_AT_BYTES)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
    let count = recv(fd.as_raw_fd(), &mut bytes, flags)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Hands out bytes that the kernel has first, and has it forget them if they are not only peeked at.
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
        // They are there, and nobody else reads.
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

/// Bytes stay in the socket that may be the beginning of the switch marker: what follows must come, however large the
/// buffer is in which they are.
pub(crate) fn make_room_behind(fd: BorrowedFd<'_>) {
    let size = || getsockopt(&fd, sockopt::RcvBuf).ok().filter(|&size| size < ROOM_BYTES as usize);
    if size().is_none() {
        return;
    }
    // It may not be allowed: then it is as it was.
    let _as_it_was = link::make_room(fd, ROOM_BYTES);
    if let Some(size) = size() {
        // The program has set it. The kernel takes twice as much as it is told, as far as the host allows.
        let _as_it_was = setsockopt(&fd, sockopt::RcvBuf, &size);
    }
}

/// Bytes that are looked at before they are taken.
const LOOKED_AT_BYTES: usize = 64 * 1024;

/// Bytes for which the kernel has room behind those that wait: more than a buffer of it keeps.
const ROOM_BYTES: u32 = 1 << 20;
