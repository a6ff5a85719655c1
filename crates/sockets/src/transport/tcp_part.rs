//! The part of a stream that comes by TCP: its bytes up to the seal.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};

use crate::lock::lock;
use crate::migration::homing::Record;
use crate::transport::seal::{Scan, scan};
use crate::wire::Seal;

/// The TCP socket of a stream, and what was read of it that the program has not. After the seal nothing may come
/// but a record, after which the connection is the kernel's, and the end of the connection.
#[derive(Debug)]
pub(crate) struct TcpPart {
    socket: Mutex<Arc<OwnedFd>>,
    expected: Seal,
    /// The seal was read, and all before it.
    is_over: AtomicBool,
    prefix: Mutex<Prefix>,
}

#[derive(Debug, Default)]
struct Prefix {
    shown: VecDeque<u8>,
    /// May be the beginning of the seal: fewer bytes than it has.
    held: Vec<u8>,
    is_sealed: bool,
    /// What has come of the peer's record.
    record: Vec<u8>,
}

/// What reading the TCP socket has brought.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Pumped {
    /// Nothing, or no more than that.
    All,
    /// As much as is kept: the program is to read first.
    Full,
    /// The peer has closed, or its process is gone.
    Closed,
    /// The kernel has given the peer's host up.
    Failed(Errno),
    /// The peer's record. What follows stays in TCP.
    Record(Record),
    /// Bytes behind the seal that are no record.
    BehindSeal,
}

impl TcpPart {
    pub(crate) fn new(socket: OwnedFd, expected: Seal) -> Self {
        let (socket, is_over) = (Mutex::new(Arc::new(socket)), AtomicBool::new(false));
        Self { socket, expected, is_over, prefix: Mutex::default() }
    }

    pub(crate) fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&lock(&self.socket))
    }

    /// The connection is the kernel's: another socket takes the place of this one, as TCP ends when the last descriptor is
    /// closed.
    pub(crate) fn let_go(&self, other: Arc<OwnedFd>) {
        *lock(&self.socket) = other;
    }

    /// The seal was read, and all before it: what follows is in the ring.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The seal was read: the peer is who it says.
    pub(crate) fn is_sealed(&self) -> bool {
        self.is_over() || lock(&self.prefix).is_sealed
    }

    /// Bytes that the program can read before those of the ring.
    #[inline]
    pub(crate) fn available(&self) -> u64 {
        if self.is_over() { 0 } else { lock(&self.prefix).shown.len() as u64 }
    }

    /// Whether the seal is among the bytes that TCP has, which stay there. Only those are looked at that are kept at most.
    pub(crate) fn is_seal_there(&self) -> bool {
        self.look(PREFIX_BYTES + Seal::BYTES).is_sealed
    }

    /// Whether TCP has bytes for the program.
    pub(crate) fn has_unread(&self) -> bool {
        self.look(Seal::BYTES).shown > 0
    }

    /// Whether the peer has closed TCP, and nothing waits to be read.
    pub(crate) fn is_at_end(&self) -> bool {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
        recv(self.socket().as_raw_fd(), &mut [0], flags) == Ok(0)
    }

    fn look(&self, bytes: usize) -> Scan {
        let mut bytes = vec![0; bytes];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
        let count = recv(self.socket().as_raw_fd(), &mut bytes, flags).unwrap_or(0);
        scan(&bytes[..count], &self.expected)
    }

    /// Reads what TCP has.
    pub(crate) fn pump(&self) -> Pumped {
        let socket = self.socket();
        let mut prefix = lock(&self.prefix);
        let mut bytes = [0; READ_BYTES];
        loop {
            let room = if prefix.is_sealed {
                Record::BYTES - prefix.record.len()
            } else if prefix.shown.len() >= PREFIX_BYTES {
                return Pumped::Full;
            } else {
                READ_BYTES
            };
            if room == 0 {
                return Pumped::All;
            }
            let read = recv(socket.as_raw_fd(), &mut bytes[..room], MsgFlags::MSG_DONTWAIT);
            match read {
                Ok(0) => return Pumped::Closed,
                Ok(count) => {
                    prefix.take(&bytes[..count], &self.expected);
                    if prefix.is_sealed && prefix.shown.is_empty() {
                        self.is_over.store(true, Ordering::Release);
                    }
                    match prefix.record() {
                        Ok(None) => {}
                        Ok(Some(record)) => return Pumped::Record(record),
                        Err(NoRecord) => return Pumped::BehindSeal,
                    }
                }
                Err(Errno::EAGAIN) => return Pumped::All,
                Err(Errno::EINTR) => {}
                Err(error @ (Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH)) => {
                    return Pumped::Failed(error);
                }
                Err(_) => return Pumped::Closed,
            }
        }
    }

    /// Reads bytes before the seal, as far as they fit. `passed` of those that are peeked at are passed over.
    pub(crate) fn read(&self, out: &mut [u8], peek: Option<u64>) -> usize {
        let mut prefix = lock(&self.prefix);
        let passed = peek.map_or(0, |passed| passed.min(prefix.shown.len() as u64) as usize);
        let length = out.len().min(prefix.shown.len() - passed);
        for (to, from) in out.iter_mut().zip(prefix.shown.iter().skip(passed)) {
            *to = *from;
        }
        if peek.is_none() {
            prefix.shown.drain(..length);
            if prefix.is_sealed && prefix.shown.is_empty() {
                self.is_over.store(true, Ordering::Release);
            }
        }
        length
    }
}

impl Prefix {
    /// Takes bytes from TCP.
    fn take(&mut self, bytes: &[u8], expected: &Seal) {
        if self.is_sealed {
            return self.record.extend_from_slice(bytes);
        }
        self.held.extend_from_slice(bytes);
        let Scan { shown, is_sealed } = scan(&self.held, expected);
        self.shown.extend(self.held.drain(..shown));
        if is_sealed {
            self.is_sealed = true;
            self.held.drain(..Seal::BYTES);
            self.record = std::mem::take(&mut self.held);
        }
    }

    //= sockets-protocol.md: seal.2
    /// The record, if it has come whole. More than that comes only when this side has written its own.
    fn record(&self) -> Result<Option<Record>, NoRecord> {
        match <[u8; Record::BYTES]>::try_from(self.record.as_slice()) {
            Ok(bytes) => Record::decode(bytes).map(Some).ok_or(NoRecord),
            Err(_) if Record::may_begin_with(&self.record) => Ok(None),
            Err(_) => Err(NoRecord),
        }
    }
}

/// What came behind the seal is something else.
struct NoRecord;

/// Bytes before the seal that are kept for a program that does not read: as many as a ring holds. TCP keeps the rest.
const PREFIX_BYTES: usize = 256 * 1024;

/// Bytes read at a time.
const READ_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn part() -> (UnixStream, TcpPart) {
        let (peer, socket) = UnixStream::pair().expect("a pair");
        (peer, TcpPart::new(socket.into(), Seal(*b"0123456789abcdef")))
    }

    #[test]
    fn bytes_before_the_seal_are_shown_and_the_seal_is_not() {
        let (mut peer, part) = part();
        peer.write_all(b"hello012").expect("room");
        assert_eq!(part.pump(), Pumped::All);
        assert_eq!(part.available(), 5);
        let mut out = [0; 16];
        assert_eq!(part.read(&mut out, Some(1)), 4);
        assert_eq!(&out[..4], b"ello");
        peer.write_all(b"3456789abcdef").expect("room");
        assert_eq!(part.pump(), Pumped::All);
        assert!(part.is_sealed() && !part.is_over());
        assert_eq!(part.read(&mut out[..2], None), 2);
        assert_eq!(part.read(&mut out, None), 3);
        assert_eq!(&out[..3], b"llo");
        assert!(part.is_over());
        drop(peer);
        assert_eq!(part.pump(), Pumped::Closed);
    }

    #[test]
    fn the_seal_is_seen_where_it_is() {
        let (mut peer, part) = part();
        peer.write_all(b"hello012").expect("room");
        assert!(!part.is_seal_there());
        peer.write_all(b"3456789abcdef").expect("room");
        assert!(part.is_seal_there() && part.has_unread());
        assert_eq!(part.pump(), Pumped::All);
        assert_eq!(part.available(), 5);
    }

    //= sockets-protocol.md: seal.2
    #[test]
    fn nothing_but_a_record_may_follow_the_seal() {
        let (mut peer, part) = part();
        peer.write_all(b"x0123456789abcdefthis is none").expect("room");
        assert_eq!(part.pump(), Pumped::BehindSeal);
        let (mut peer, part) = self::part();
        peer.write_all(b"0123456789abcdef").expect("room");
        assert_eq!(part.pump(), Pumped::All);
        assert!(part.is_over());
        peer.write_all(b"H").expect("room");
        assert_eq!(part.pump(), Pumped::All);
        peer.write_all(b"u").expect("room");
        assert_eq!(part.pump(), Pumped::BehindSeal);
    }

    //= sockets-protocol.md: home.1
    #[test]
    fn what_follows_a_record_stays_in_tcp() {
        let record = Record { taken: 77 };
        for cut in 0..=Record::BYTES {
            let (mut peer, part) = part();
            peer.write_all(b"x0123456789abcdef").expect("room");
            assert_eq!(part.pump(), Pumped::All);
            let bytes = record.encode();
            peer.write_all(&bytes[..cut]).expect("room");
            let first = part.pump();
            peer.write_all(&bytes[cut..]).expect("room");
            peer.write_all(b"rest").expect("room");
            let second = part.pump();
            let whole = [first, second].into_iter().filter(|seen| *seen != Pumped::All);
            assert_eq!(whole.collect::<Vec<_>>(), [Pumped::Record(record)]);
            let mut rest = [0; 8];
            let count = recv(part.socket().as_raw_fd(), &mut rest, MsgFlags::MSG_DONTWAIT);
            assert_eq!(&rest[..count.expect("bytes")], b"rest");
        }
    }

    #[test]
    fn no_more_is_kept_than_a_ring_holds() {
        let (mut peer, part) = part();
        peer.set_nonblocking(true).expect("a socket");
        let mut sent = 0;
        while sent < 4 * PREFIX_BYTES {
            sent += peer.write(&[7; 8192]).unwrap_or(0);
            if part.pump() == Pumped::Full {
                break;
            }
        }
        let kept = part.available() as usize;
        assert!((PREFIX_BYTES..PREFIX_BYTES + READ_BYTES).contains(&kept), "{kept}");
    }
}
