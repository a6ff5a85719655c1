//! The part of a stream that arrives over TCP: its bytes before the switch marker.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};

use crate::lock::lock;
use crate::migration::homing::Record;
use crate::transport::switch_marker::{Scan, scan, scan_for_either};
use crate::wire::SwitchMarker;

/// The TCP socket of a stream, and the bytes that the library has read from the socket and that the
/// program has not read yet. Only a `Record` or the end of the connection may follow the switch
/// marker. After a record, the kernel handles the connection.
#[derive(Debug)]
pub(crate) struct TcpPart {
    socket: Mutex<Arc<OwnedFd>>,
    /// The switch marker that the peer writes after its last byte.
    expected: SwitchMarker,
    /// The switch marker that this side writes. If the link group is lost before the peer learns
    /// `expected`, the peer cannot write `expected`. It then writes this marker, as an echo.
    echo: Option<SwitchMarker>,
    /// True if the program has read all bytes before the switch marker. The next bytes are in the
    /// ring.
    has_ended: AtomicBool,
    prefix: Mutex<Prefix>,
}

#[derive(Debug, Default)]
struct Prefix {
    shown: VecDeque<u8>,
    /// The last bytes received, fewer than the length of a switch marker. They may be the beginning
    /// of a switch marker.
    held: Vec<u8>,
    switched_by: Option<SwitchedBy>,
    /// True if this end never reads bytes from the ring.
    has_no_ring: bool,
    /// The bytes of the peer's record that have arrived so far.
    record: Vec<u8>,
}

/// The event that ended the program's bytes in TCP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SwitchedBy {
    /// The switch marker that this side expects.
    Marker,
    /// The echo: the marker that the peer itself expects. The peer writes it because it does not
    /// know the marker that this side expects.
    Echo,
    /// The end of TCP, which counts as an echo.
    End,
}

/// Result of reading the TCP socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Pumped {
    /// All bytes that TCP had were read.
    All,
    /// The maximum number of bytes is stored. The library reads more from TCP after the program has
    /// read.
    Full,
    /// The peer has closed TCP, or its process has ended.
    Closed,
    /// TCP was reset.
    Reset,
    /// TCP failed with this error, because the kernel has given up reaching the peer's host.
    Failed(Errno),
    /// The peer's whole record has arrived, so the peer returns to TCP. Later bytes stay in TCP.
    Record(Record),
    /// The bytes after the switch marker are not a record.
    BehindMarker,
    /// Nothing was read, because the peer's record or the end of TCP has arrived before. Bytes
    /// after it stay in TCP.
    Complete,
}

impl TcpPart {
    pub(crate) fn new(socket: OwnedFd, expected: SwitchMarker, echo: Option<SwitchMarker>) -> Self {
        let (socket, has_ended) = (Mutex::new(Arc::new(socket)), AtomicBool::new(false));
        Self { socket, expected, echo, has_ended, prefix: Mutex::default() }
    }

    pub(crate) fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&lock(&self.socket))
    }

    /// Replaces the TCP socket with `other`, because the kernel now handles the connection.
    /// Otherwise the descriptor in this part would keep TCP open after the program has closed it.
    pub(crate) fn let_go(&self, other: Arc<OwnedFd>) {
        *lock(&self.socket) = other;
    }

    /// Returns true if the program has read all bytes before the switch marker. The next bytes are
    /// in the ring.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Returns true if the switch marker has arrived, or an echo, or an end of TCP that counts as
    /// an echo. The marker proves that the process at the other end of the link group also has the
    /// TCP connection.
    pub(crate) fn is_switched(&self) -> bool {
        self.has_ended() || lock(&self.prefix).switched_by.is_some()
    }

    /// Returns true if the switch marker has arrived and the program has read all bytes before it.
    pub(crate) fn is_read(&self) -> bool {
        let is_read = || {
            let prefix = lock(&self.prefix);
            prefix.switched_by.is_some() && prefix.shown.is_empty()
        };
        self.has_ended() || is_read()
    }

    //= sockets-protocol.md: join.6, join.7
    /// Stops reading the ring. When this end returns to TCP, it then reports to the peer that the
    /// program has read no bytes of the ring.
    pub(crate) fn give_up_ring(&self) {
        lock(&self.prefix).has_no_ring = true;
    }

    /// Returns true if this end never reads bytes from the ring.
    pub(crate) fn has_no_ring(&self) -> bool {
        !self.has_ended() && lock(&self.prefix).has_no_ring
    }

    /// Returns true if the switch marker has arrived and the bytes of the ring follow the bytes
    /// that TCP brought before it.
    pub(crate) fn precedes_ring(&self) -> bool {
        let precedes = || {
            let prefix = lock(&self.prefix);
            prefix.switched_by.is_some() && !prefix.has_no_ring
        };
        self.has_ended() || precedes()
    }

    //= sockets-protocol.md: join.7
    /// Handles the end of TCP. Returns true if the end counts as an echo: the peer has moved no
    /// bytes, and has read nothing from its ring. Returns false if any part of a switch marker has
    /// arrived.
    pub(crate) fn end_without_marker(&self) -> bool {
        let mut prefix = lock(&self.prefix);
        let is_end = self.echo.is_some() && prefix.switched_by.is_none() && prefix.held.is_empty();
        if is_end {
            (prefix.switched_by, prefix.has_no_ring) = (Some(SwitchedBy::End), true);
        }
        is_end
    }

    /// Returns the number of bytes that the program can read before the bytes of the ring.
    #[inline]
    pub(crate) fn available(&self) -> u64 {
        if self.has_ended() { 0 } else { lock(&self.prefix).shown.len() as u64 }
    }

    /// Returns true if the maximum number of bytes is stored.
    pub(crate) fn is_full(&self) -> bool {
        lock(&self.prefix).shown.len() >= PREFIX_BYTES
    }

    /// Returns true if TCP's receive queue contains the switch marker. Leaves the bytes in the
    /// queue.
    pub(crate) fn is_marker_there(&self) -> bool {
        self.look_for_marker() == Awaited::There
    }

    /// Returns true if TCP has bytes for the program.
    pub(crate) fn has_unread(&self) -> bool {
        let mut bytes = [0; SwitchMarker::BYTES];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
        let count = recv(self.socket().as_raw_fd(), &mut bytes, flags).unwrap_or(0);
        scan(&bytes[..count], &self.expected).shown > 0
    }

    /// Returns true if the peer has closed TCP and all bytes were read.
    pub(crate) fn is_at_end(&self) -> bool {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
        recv(self.socket().as_raw_fd(), &mut [0], flags) == Ok(0)
    }

    /// Searches TCP's receive queue for the switch marker. Leaves all bytes in the queue, because
    /// the program still reads TCP. Searches at most [`PREFIX_BYTES`] bytes.
    pub(crate) fn look_for_marker(&self) -> Awaited {
        let socket = self.socket();
        if is_dead(socket.as_fd()) {
            // Do not peek, because a peek would consume the error that the program must get.
            return Awaited::Never;
        }
        let mut bytes = vec![0; PREFIX_BYTES + SwitchMarker::BYTES];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
        match recv(socket.as_raw_fd(), &mut bytes, flags) {
            Ok(0) => Awaited::Never,
            Ok(count) if scan(&bytes[..count], &self.expected).has_marker => Awaited::There,
            Ok(_) => Awaited::BehindBytes,
            Err(Errno::EAGAIN | Errno::EINTR) => Awaited::Nothing,
            Err(_) => Awaited::Never,
        }
    }

    /// Reads the bytes that TCP has.
    pub(crate) fn pump(&self) -> Pumped {
        let socket = self.socket();
        let mut prefix = lock(&self.prefix);
        let mut bytes = [0; READ_BYTES];
        loop {
            let room = if prefix.switched_by == Some(SwitchedBy::End) {
                0
            } else if prefix.switched_by.is_some() {
                Record::BYTES - prefix.record.len()
            } else if prefix.shown.len() >= PREFIX_BYTES {
                return Pumped::Full;
            } else {
                READ_BYTES
            };
            if room == 0 {
                return Pumped::Complete;
            }
            let read = recv(socket.as_raw_fd(), &mut bytes[..room], MsgFlags::MSG_DONTWAIT);
            match read {
                Ok(0) => return Pumped::Closed,
                Ok(count) => {
                    prefix.take(&bytes[..count], (&self.expected, self.echo.as_ref()));
                    if prefix.is_before_ring() {
                        self.has_ended.store(true, Ordering::Release);
                    }
                    match prefix.record() {
                        Ok(None) => {}
                        Ok(Some(record)) => return Pumped::Record(record),
                        Err(NoRecord) => return Pumped::BehindMarker,
                    }
                }
                Err(Errno::EAGAIN) => return Pumped::All,
                Err(Errno::EINTR) => {}
                Err(error @ (Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH)) => {
                    return Pumped::Failed(error);
                }
                Err(_) => return Pumped::Reset,
            }
        }
    }

    /// Reads bytes before the switch marker, as many as fit in `out`. If `peek` is a number, skips
    /// this number of bytes and consumes none.
    pub(crate) fn read(&self, out: &mut [u8], peek: Option<u64>) -> usize {
        let mut prefix = lock(&self.prefix);
        let passed = peek.map_or(0, |passed| passed.min(prefix.shown.len() as u64) as usize);
        let length = out.len().min(prefix.shown.len() - passed);
        for (to, from) in out.iter_mut().zip(prefix.shown.iter().skip(passed)) {
            *to = *from;
        }
        if peek.is_none() {
            prefix.shown.drain(..length);
            if prefix.is_before_ring() {
                self.has_ended.store(true, Ordering::Release);
            }
        }
        length
    }
}

impl Prefix {
    /// Stores bytes that came by TCP: bytes for the program, the switch marker, or the record.
    fn take(&mut self, bytes: &[u8], markers: (&SwitchMarker, Option<&SwitchMarker>)) {
        if self.switched_by.is_some() {
            return self.record.extend_from_slice(bytes);
        }
        self.held.extend_from_slice(bytes);
        let (Scan { shown, has_marker }, is_echo) = scan_for_either(&self.held, markers);
        self.shown.extend(self.held.drain(..shown));
        if has_marker {
            self.switched_by = Some(if is_echo { SwitchedBy::Echo } else { SwitchedBy::Marker });
            self.has_no_ring |= is_echo;
            self.held.drain(..SwitchMarker::BYTES);
            self.record = std::mem::take(&mut self.held);
        }
    }

    /// Returns true if the program has read all bytes before the switch marker and the ring
    /// follows.
    fn is_before_ring(&self) -> bool {
        self.switched_by == Some(SwitchedBy::Marker) && !self.has_no_ring && self.shown.is_empty()
    }

    //= sockets-protocol.md: marker.2
    /// Returns the peer's record if all of it has arrived, and `None` if only a part has arrived.
    /// Returns an error if the bytes cannot be a record, or if further bytes follow the record: the
    /// peer sends no byte after its record until it has read this side's record.
    fn record(&self) -> Result<Option<Record>, NoRecord> {
        match <[u8; Record::BYTES]>::try_from(self.record.as_slice()) {
            Ok(bytes) => Record::decode(bytes).map(Some).ok_or(NoRecord),
            Err(_) if Record::may_begin_with(&self.record) => Ok(None),
            Err(_) => Err(NoRecord),
        }
    }
}

/// Returns true if TCP was reset, or was shut down in both directions.
pub(crate) fn is_dead(tcp: BorrowedFd<'_>) -> bool {
    let mut entries = [PollFd::new(tcp, PollFlags::empty())];
    poll(&mut entries, PollTimeout::ZERO) == Ok(1)
}

/// The error for bytes after the switch marker that are not a record.
struct NoRecord;

/// The result of a search for the switch marker in TCP's receive queue. The program reads TCP at
/// the same time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Awaited {
    /// The marker has arrived.
    There,
    /// The marker may follow the bytes that TCP has.
    BehindBytes,
    /// TCP has no bytes.
    Nothing,
    /// TCP has ended, so the marker will never arrive.
    Never,
}

/// Maximum number of bytes before the switch marker that the library stores for the program: the
/// size of a ring. Further bytes stay in TCP until the program reads.
const PREFIX_BYTES: usize = 256 * 1024;

/// Number of bytes that one call reads.
const READ_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use nix::sys::socket::{setsockopt, sockopt};

    use super::*;

    fn part() -> (UnixStream, TcpPart) {
        let (peer, socket) = UnixStream::pair().expect("a pair");
        let (expected, echo) =
            (SwitchMarker(*b"0123456789abcdef"), SwitchMarker(*b"fedcba9876543210"));
        (peer, TcpPart::new(socket.into(), expected, Some(echo)))
    }

    #[test]
    fn bytes_before_the_marker_are_readable_and_the_marker_is_not() {
        let (mut peer, part) = part();
        peer.write_all(b"hello012").expect("room");
        assert_eq!(part.pump(), Pumped::All);
        assert_eq!(part.available(), 5);
        let mut out = [0; 16];
        assert_eq!(part.read(&mut out, Some(1)), 4);
        assert_eq!(&out[..4], b"ello");
        peer.write_all(b"3456789abcdef").expect("room");
        assert_eq!(part.pump(), Pumped::All);
        assert!(part.is_switched() && !part.has_ended());
        assert_eq!(part.read(&mut out[..2], None), 2);
        assert_eq!(part.read(&mut out, None), 3);
        assert_eq!(&out[..3], b"llo");
        assert!(part.has_ended());
        drop(peer);
        assert_eq!(part.pump(), Pumped::Closed);
    }

    #[test]
    fn the_marker_is_found_at_its_position() {
        let (mut peer, part) = part();
        peer.write_all(b"hello012").expect("room");
        assert!(!part.is_marker_there());
        peer.write_all(b"3456789abcdef").expect("room");
        assert!(part.is_marker_there() && part.has_unread());
        assert_eq!(part.pump(), Pumped::All);
        assert_eq!(part.available(), 5);
    }

    //= sockets-protocol.md: marker.2
    #[test]
    fn only_a_record_may_follow_the_marker() {
        let (mut peer, part) = part();
        peer.write_all(b"x0123456789abcdefthis is none").expect("room");
        assert_eq!(part.pump(), Pumped::BehindMarker);
        let (mut peer, part) = self::part();
        peer.write_all(b"0123456789abcdef").expect("room");
        assert_eq!(part.pump(), Pumped::All);
        assert!(part.has_ended());
        peer.write_all(b"H").expect("room");
        assert_eq!(part.pump(), Pumped::All);
        peer.write_all(b"u").expect("room");
        assert_eq!(part.pump(), Pumped::BehindMarker);
    }

    //= sockets-protocol.md: join.7
    #[test]
    fn an_echo_or_an_end_means_that_no_ring_follows() {
        let (mut peer, part) = part();
        peer.write_all(b"xfedcba98").expect("room");
        assert_eq!((part.pump(), part.available()), (Pumped::All, 1));
        peer.write_all(b"76543210HO").expect("room");
        assert_eq!(part.pump(), Pumped::All);
        assert!(part.is_switched() && part.has_no_ring() && !part.is_read());
        assert_eq!(part.read(&mut [0; 9], None), 1);
        assert!(part.is_read() && !part.has_ended());
        assert!(!part.end_without_marker(), "the switch marker has come");

        for before in [&b""[..], b"x", b"xf", b"x01"] {
            let (mut peer, part) = self::part();
            peer.write_all(before).expect("room");
            drop(peer);
            assert_eq!(part.pump(), Pumped::Closed);
            let is_end = part.end_without_marker();
            assert_eq!(
                is_end,
                before.len() < 2,
                "a part of a switch marker does not count as an end"
            );
            assert_eq!((part.is_switched(), part.has_no_ring()), (is_end, is_end));
            assert_eq!(part.pump() == Pumped::Complete, is_end, "nothing else is read");
        }
    }

    //= sockets-protocol.md: join.7
    #[test]
    fn a_tcp_reset_does_not_count_as_an_end() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let peer = TcpStream::connect(listener.local_addr().expect("an address"));
        let (socket, _) = listener.accept().expect("a connection");
        let part = TcpPart::new(
            socket.into(),
            SwitchMarker([7; SwitchMarker::BYTES]),
            Some(SwitchMarker([8; 16])),
        );
        assert_eq!(part.look_for_marker(), Awaited::Nothing);
        let peer = peer.expect("it listens");
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&peer, sockopt::Linger, &at_once).expect("a socket");
        drop(peer);
        assert_eq!(part.look_for_marker(), Awaited::Never);
        // The search must not consume the error: the next read must still get it.
        assert_eq!(part.pump(), Pumped::Reset);
    }

    //= sockets-protocol.md: home.1
    #[test]
    fn bytes_after_a_record_stay_in_tcp() {
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
            let is_before = cut < Record::BYTES;
            let between = if is_before { Pumped::All } else { Pumped::Record(record) };
            let after = if is_before { Pumped::Record(record) } else { Pumped::Complete };
            assert_eq!([first, second], [between, after]);
            let mut rest = [0; 8];
            let count = recv(part.socket().as_raw_fd(), &mut rest, MsgFlags::MSG_DONTWAIT);
            assert_eq!(&rest[..count.expect("bytes")], b"rest");
        }
    }

    #[test]
    fn buffered_bytes_never_exceed_the_ring_size() {
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
