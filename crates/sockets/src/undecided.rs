//! Calls of the program while it is undecided which way a connection takes: they are made of TCP, and never block in
//! it, as the connection may move meanwhile.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, getsockopt, recv, recvmsg, send, sendmsg, setsockopt, sockopt};

use crate::connection::Connection;
use crate::flags::{ReceiveFlags, SendFlags};
use crate::hidden::Expects;
use crate::seal::{Scan, Watch, scan};
use crate::waiting::{Waited, Waiting, lock};
use crate::wire::Seal;

/// How TCP is read.
#[derive(Debug)]
pub(crate) enum Reading {
    /// As ever.
    Plain,
    /// The seal may come. Bytes that may be its beginning stay with the kernel, so that nothing is kept here of a
    /// connection that does not move after all.
    Expecting(Seal, Expects),
    /// The seal must not come any more, but may: then the peer has moved, and this side cannot.
    Watching(Watch),
}

/// How TCP is written to.
#[derive(Debug, Default)]
pub(crate) struct Writing {
    /// Bytes of the seal that are written.
    sealed: usize,
}

impl Reading {
    /// The seal is not expected any more, but may come.
    pub(crate) fn watch(&mut self) {
        if let Self::Expecting(seal, _) = *self {
            *self = Self::Watching(Watch::new(seal));
        }
    }
}

impl Writing {
    pub(crate) const fn has_begun(&self) -> bool {
        self.sealed > 0
    }

    /// Writes the seal, which goes at once: it would wait for an acknowledgement of what the program has written before.
    /// False if there is no room for all of it.
    pub(crate) fn seal(&mut self, tcp: BorrowedFd<'_>, seal: Seal) -> Result<bool, Errno> {
        let result = self.write_seal(tcp, seal);
        // Setting it sends what is queued, even under a cork. What the program has asked for is as it was afterwards.
        let is_gathered = !getsockopt(&tcp, sockopt::TcpNoDelay)?;
        setsockopt(&tcp, sockopt::TcpNoDelay, &true)?;
        if is_gathered {
            setsockopt(&tcp, sockopt::TcpNoDelay, &false)?;
        }
        result
    }

    fn write_seal(&mut self, tcp: BorrowedFd<'_>, seal: Seal) -> Result<bool, Errno> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        while self.sealed < Seal::BYTES {
            match send(tcp.as_raw_fd(), &seal.0[self.sealed..], flags) {
                Ok(count) => self.sealed += count,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl Connection {
    /// `EAGAIN`, if there is nothing or the connection has moved.
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
            // The caller tries again, as it does after a wait.
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
            Reading::Watching(watch) => receive_watched(fd, &mut rest, watch, peek),
            Reading::Expecting(seal, _) => {
                let (result, is_sealed) = receive_before(fd, &mut rest, *seal, peek);
                drop(reading);
                if is_sealed {
                    self.on_seal_seen();
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

    /// Waits for TCP, or for the connection to move.
    pub(crate) fn wait_undecided(&self, fd: BorrowedFd<'_>, what: Waiting) -> Result<(), Errno> {
        let limit = what.limit(fd);
        // What was left to TCP before is no reason to look again.
        let was_left = self.is_left();
        let is_decided = || self.moved().is_some() || (self.is_left() && !was_left);
        let mut ready = || self.is_closing() || is_decided();
        let is_held = match what {
            Waiting::ToReceive => self.has_only_seal(fd),
            Waiting::ToSend => self.is_held(),
        };
        if is_held {
            // The kernel would say again and again that there is something: the rest of the seal is on its way.
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

/// Receives what comes before the seal, and whether that follows: looks, and takes no more than that.
fn receive_before(
    fd: BorrowedFd<'_>,
    into: &mut [IoSliceMut<'_>],
    seal: Seal,
    peek: bool,
) -> (Result<usize, Errno>, bool) {
    let wanted: usize = into.iter().map(|piece| piece.len()).sum();
    let mut bytes = match looked_at(fd, wanted) {
        Ok(bytes) if !bytes.is_empty() => bytes,
        ended => return (ended.map(|_| 0), false),
    };
    let Scan { shown, is_sealed } = scan(&bytes, &seal);
    (take_before(fd, into, &mut bytes[..shown.min(wanted)], peek), is_sealed)
}

/// Receives bytes among which the seal must not come. A program gets no byte of a seal that has come whole, however few
/// bytes it asks for.
fn receive_watched(
    fd: BorrowedFd<'_>,
    into: &mut [IoSliceMut<'_>],
    watch: &mut Watch,
    peek: bool,
) -> Result<usize, Errno> {
    let wanted: usize = into.iter().map(|piece| piece.len()).sum();
    let mut bytes = looked_at(fd, wanted)?;
    let Scan { shown, is_sealed } = watch.scan(&bytes);
    // Few bytes of a program may look like the beginning of a seal, and nothing may follow them.
    let is_seal = is_sealed || bytes.len() - shown > SEAL_BEGINS;
    let length = if is_seal { shown } else { bytes.len() }.min(wanted);
    if is_seal && length == 0 && wanted > 0 {
        return Err(Errno::ECONNRESET);
    }
    let bytes = &mut bytes[..length];
    if bytes.is_empty() || peek {
        scatter(into, bytes);
        return Ok(length);
    }
    let taken = take_before(fd, into, bytes, false)?;
    if watch.completes(bytes) { Err(Errno::ECONNRESET) } else { Ok(taken) }
}

/// Bytes that TCP has, which stay there: so many as are wanted, and a seal behind them.
fn looked_at(fd: BorrowedFd<'_>, wanted: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; (wanted + Seal::BYTES).min(LOOKED_AT_BYTES)];
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
        if into.iter().all(|piece| piece.is_empty()) {
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
    for piece in into {
        let (now, later) = from.split_at(from.len().min(piece.len()));
        piece[..now.len()].copy_from_slice(now);
        from = later;
    }
}

/// Bytes stay in the socket that may be the beginning of the seal: what follows must come, however large the buffer is in
/// which they are.
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

/// The pieces behind the first `done` bytes.
pub(crate) fn behind<'a>(into: &'a mut [IoSliceMut<'_>], done: usize) -> Vec<IoSliceMut<'a>> {
    let mut skipped = done;
    let rest = into.iter_mut().filter_map(|piece| {
        let passed = skipped.min(piece.len());
        skipped -= passed;
        let rest = &mut piece[passed..];
        (!rest.is_empty()).then(|| IoSliceMut::new(rest))
    });
    rest.collect()
}

/// The same of pieces that are sent.
pub(crate) fn rest_of<'a>(from: &'a [IoSlice<'_>], done: usize) -> Vec<IoSlice<'a>> {
    let mut skipped = done;
    let rest = from.iter().filter_map(|piece| {
        let passed = skipped.min(piece.len());
        skipped -= passed;
        let rest = &piece[passed..];
        (!rest.is_empty()).then(|| IoSlice::new(rest))
    });
    rest.collect()
}

/// Calls that the kernel makes for a relayed connection.
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

/// How long a thread waits for the rest of what may be the seal before it looks again.
const HELD_LOOK: Duration = Duration::from_millis(1);

/// More bytes than these that look like the beginning of a seal are one: a program's are by chance once in 2^72 times.
const SEAL_BEGINS: usize = 8;

/// Bytes that are looked at before they are taken.
const LOOKED_AT_BYTES: usize = 64 * 1024;

/// Bytes for which the kernel has room behind those that wait: more than a buffer of it keeps.
const ROOM_BYTES: u32 = 1 << 20;
