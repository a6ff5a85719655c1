//! A TCP connection that sends and receives registered memory.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use libc::iovec;
use mem::{PayloadSink, PayloadSlice};
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use super::silence::silence;

/// A TCP connection. No function blocks.
#[derive(Debug)]
pub struct TcpStream {
    socket: Socket,
}

impl TcpStream {
    /// Starts to connect to `to`, from the address `from` if there is one. The socket becomes
    /// writable when the attempt has ended; then ask [`TcpStream::take_error`].
    ///
    /// # Errors
    /// Returns the error of the system call that failed, for example `ENETUNREACH`, or
    /// `ECONNREFUSED` if the peer is this host and answers at once.
    pub fn connect(from: Option<SocketAddr>, to: SocketAddr) -> io::Result<Self> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(to), kind, Some(Protocol::TCP))?;
        if let Some(from) = from {
            socket.bind(&from.into())?;
        }
        match socket.connect(&to.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        Self::adopt(socket)
    }

    /// Makes a stream of a connected or connecting socket that does not block.
    pub(super) fn adopt(socket: Socket) -> io::Result<Self> {
        socket.set_tcp_nodelay(true)?;
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_QUESTIONS);
        socket.set_tcp_keepalive(&keepalive)?;
        Ok(Self { socket })
    }

    /// Returns the error with which the connection or the attempt to connect has ended, and clears
    /// it.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }

    /// Returns the address of this side.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        ip_address(&self.socket.local_addr()?)
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// Returns `ENOTCONN` if the stream is not connected.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        ip_address(&self.socket.peer_addr()?)
    }

    /// Returns the most bytes of the stream that one segment carries.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn segment_bytes(&self) -> io::Result<u32> {
        self.socket.tcp_mss()
    }

    /// Reads bytes of the stream. Returns `Some(0)` at the end of the stream, and `None` if no byte
    /// has arrived.
    ///
    /// # Errors
    /// Returns the error of the connection, for example `ECONNRESET`.
    pub fn read(&self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        (&self.socket).read(bytes).map(Some).or_else(none_if_not_ready)
    }

    /// Reads bytes of the stream into registered memory first, and the bytes behind into `rest`.
    /// Returns the number of all bytes, `Some(0)` at the end of the stream, and `None` if no byte
    /// has arrived.
    ///
    /// # Errors
    /// Returns the error of the connection, or `EFAULT` if the registered memory is not mapped.
    pub fn read_into(&self, sink: &PayloadSink<'_>, rest: &mut [u8]) -> io::Result<Option<usize>> {
        let vectors = [
            iovec { iov_base: sink.start().cast(), iov_len: sink.len() as usize },
            iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
        ];
        // SAFETY: the memory of the sink is registered during the access that lent it, and `rest`
        // is borrowed exclusively. The kernel checks that the memory is mapped.
        let read = unsafe { libc::readv(self.socket.as_raw_fd(), vectors.as_ptr(), 2) };
        counted(read).map(Some).or_else(none_if_not_ready)
    }

    /// Announces that this side sends nothing more. The peer reads the end of the stream behind the
    /// bytes that were written.
    ///
    /// # Errors
    /// Returns `ENOTCONN` if the connection has ended already.
    pub fn end_sending(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    /// Makes the end of this object reset the connection, instead of sending what was written.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn reset_at_end(&self) -> io::Result<()> {
        self.socket.set_linger(Some(Duration::ZERO))
    }

    /// Returns for how long the peer's host has been silent, although it owes an acknowledgement.
    /// Returns `None` if it owes none. A peer whose program is stopped or slow is not silent,
    /// because its kernel answers.
    ///
    /// On a connection without traffic, the kernel asks the peer's host after 10 s and then every
    /// 5 s, and ends the connection with `ETIMEDOUT` after four questions without answer.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn silence(&self) -> io::Result<Option<Duration>> {
        silence(self.socket.as_fd())
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A part of the bytes to write.
#[derive(Clone, Copy, Debug)]
pub enum StreamPart<'a> {
    /// Bytes of this process.
    Own(&'a [u8]),
    /// Bytes in registered memory. The kernel reads them.
    Registered(PayloadSlice<'a>),
}

impl StreamPart<'_> {
    /// Appends the bytes to `out`, for a capture. If registered memory cannot be read, returns
    /// false and appends nothing.
    #[must_use]
    pub fn append_to(&self, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Own(bytes) => {
                out.extend_from_slice(bytes);
                true
            }
            Self::Registered(slice) => crate::payload::append(*slice, out),
        }
    }
}

/// Writes parts to streams. Keeps the list of parts for the next call, so that writing allocates
/// nothing.
#[derive(Debug, Default)]
pub struct StreamWriter {
    vectors: Vec<iovec>,
}

// SAFETY: between two calls, the list is empty.
unsafe impl Send for StreamWriter {}

impl StreamWriter {
    /// Creates a writer for up to [`StreamWriter::PARTS_MAX`] parts.
    pub fn new() -> Self {
        Self { vectors: Vec::with_capacity(Self::PARTS_MAX) }
    }

    /// Most parts that one call writes. The kernel takes at most 1024.
    pub const PARTS_MAX: usize = 1024;

    /// Writes the first [`StreamWriter::PARTS_MAX`] of the parts to the stream, in order. Returns
    /// the number of bytes that TCP has taken, or `None` if TCP has no room.
    ///
    /// Costs one system call, and no copy in this process.
    ///
    /// # Errors
    /// Returns the error of the connection, for example `EPIPE` or `ECONNRESET`, or `EFAULT` if
    /// the first bytes that TCP has not taken are in registered memory that is not mapped.
    pub fn write<'a>(
        &mut self,
        stream: &TcpStream,
        parts: impl Iterator<Item = StreamPart<'a>>,
    ) -> io::Result<Option<usize>> {
        self.write_at_most(stream, parts, usize::MAX)
    }

    /// Writes like [`StreamWriter::write`], but at most `bytes` bytes.
    ///
    /// # Errors
    /// Returns the errors of [`StreamWriter::write`].
    pub fn write_at_most<'a>(
        &mut self,
        stream: &TcpStream,
        parts: impl Iterator<Item = StreamPart<'a>>,
        bytes: usize,
    ) -> io::Result<Option<usize>> {
        self.vectors.clear();
        self.vectors.extend(parts.take(Self::PARTS_MAX).map(|part| match part {
            StreamPart::Own(bytes) => {
                iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
            }
            StreamPart::Registered(slice) => {
                iovec { iov_base: slice.start.cast_mut().cast(), iov_len: slice.len as usize }
            }
        }));
        if bytes < usize::MAX {
            let mut left = bytes;
            for vector in &mut self.vectors {
                vector.iov_len = vector.iov_len.min(left);
                left -= vector.iov_len;
            }
        }
        let message = libc::msghdr {
            msg_name: std::ptr::null_mut(),
            msg_namelen: 0,
            msg_iov: self.vectors.as_mut_ptr(),
            msg_iovlen: self.vectors.len(),
            msg_control: std::ptr::null_mut(),
            msg_controllen: 0,
            msg_flags: 0,
        };
        let (socket, flags) = (stream.socket.as_raw_fd(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
        // SAFETY: the kernel only reads the parts. Own bytes are borrowed for 'a, which outlives
        // the call; registered memory stays registered for 'a, and the kernel checks that it is
        // mapped.
        let written = unsafe { libc::sendmsg(socket, &raw const message, flags) };
        self.vectors.clear();
        counted(written).map(Some).or_else(none_if_not_ready)
    }
}

fn counted(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn none_if_not_ready(error: io::Error) -> io::Result<Option<usize>> {
    let is_later = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
    if is_later { Ok(None) } else { Err(error) }
}

pub(super) fn ip_address(address: &SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::Error::other("a TCP socket without an IP address"))
}

/// Time without traffic after which the kernel asks whether the peer's host is there. A host that
/// is cut off is thus noticed after 29 s, within the 30 s that adapters have by default for TCP.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(9);

/// Time between two questions.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Number of questions without answer after which the connection ends.
const KEEPALIVE_QUESTIONS: u32 = 4;

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use mem::{Buffer, MemoryTable, Rights, TableLimits};

    use super::super::port::TcpPort;
    use super::*;

    /// Returns two ends of a connection over loopback.
    fn pair() -> (TcpStream, TcpStream) {
        let port = TcpPort::reserve(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
        let port = port.expect("a free port");
        port.listen(1).expect("it is free");
        let ours = TcpStream::connect(None, port.address()).expect("it listens");
        let theirs = std::iter::repeat_with(|| port.accept().expect("it listens")).flatten().next();
        (ours, theirs.expect("a connection").0)
    }

    /// Reads exactly this number of bytes.
    fn read(stream: &TcpStream, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let mut there = 0;
        while there < count {
            if let Some(more) = stream.read(&mut bytes[there..]).expect("it is connected") {
                assert_ne!(more, 0, "the end of the stream after {there} bytes");
                there += more;
            }
        }
        bytes
    }

    #[test]
    fn registered_memory_is_sent_between_own_bytes_and_received_into_registered_memory() {
        let (ours, theirs) = pair();
        let table = MemoryTable::new(TableLimits::default(), [1, 2]);
        let domain = table.allocate_domain();
        let (source, sink) = (Buffer::new(64), Buffer::new(64));
        source.write(8, b"registered");
        let from = table.register(domain, source, Rights::LOCAL_WRITE).expect("it fits");
        let into = table.register(domain, sink.clone(), Rights::ALL).expect("it fits");
        let access = table.access();
        let slice = access.source(from.id, 8, 10).expect("it is there");
        let parts =
            [StreamPart::Own(b"<"), StreamPart::Registered(slice), StreamPart::Own(b"> end")];
        let written = StreamWriter::new().write(&ours, parts.into_iter()).expect("it is connected");
        assert_eq!(written, Some(16));
        assert_eq!(read(&theirs, 1), b"<");
        let target = access.resolve_local(into.id, 3, 10, Rights::LOCAL_WRITE).expect("it fits");
        let mut rest = [0; 16];
        let read = std::iter::repeat_with(|| {
            theirs.read_into(&access.sink(&target, 0, 10).expect("it is there"), &mut rest)
        });
        let count = read.map(|read| read.expect("it is connected")).find_map(|read| read);
        assert_eq!(count, Some(15));
        let mut bytes = [0; 16];
        sink.read(0, &mut bytes);
        assert_eq!(&bytes, b"\0\0\0registered\0\0\0");
        assert_eq!(&rest[..5], b"> end");
    }

    #[test]
    fn a_full_stream_takes_a_part_and_goes_on_where_it_stopped() {
        let (ours, theirs) = pair();
        let bytes: Vec<u8> = (0..32 << 20_u32).map(|at| (at % 251) as u8).collect();
        let mut writer = StreamWriter::new();
        let mut sent = 0;
        let mut write = |sent: usize| {
            let parts = bytes[sent..].chunks(100_000).map(StreamPart::Own);
            writer.write(&ours, parts).expect("it is connected")
        };
        while let Some(more) = write(sent) {
            sent += more;
            assert!(sent < bytes.len(), "no socket holds 32 MiB");
        }
        let mut got = read(&theirs, sent);
        while sent < bytes.len() {
            let more = write(sent).unwrap_or(0);
            sent += more;
            got.extend(read(&theirs, more));
        }
        assert!(got == bytes);
    }

    #[test]
    fn a_stream_that_ends_and_one_that_is_reset_differ() {
        let (ours, theirs) = pair();
        ours.end_sending().expect("it is connected");
        let end = std::iter::repeat_with(|| theirs.read(&mut [0]).expect("no reset")).flatten();
        assert_eq!(end.take(1).collect::<Vec<_>>(), [0]);
        theirs.reset_at_end().expect("it is connected");
        drop(theirs);
        let mut read = std::iter::repeat_with(|| ours.read(&mut [0]));
        let error = read.find_map(Result::err).expect("a reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn an_attempt_that_is_refused_says_so() {
        let port = TcpPort::reserve((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let error = match TcpStream::connect(None, port.address()) {
            Err(error) => error,
            Ok(stream) => {
                let ended = std::iter::repeat_with(|| stream.take_error().expect("a socket"));
                ended.flatten().next().expect("it is refused")
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_peer_that_owes_nothing_is_not_silent() {
        let (ours, theirs) = pair();
        StreamWriter::new()
            .write(&ours, [StreamPart::Own(b"x")].into_iter())
            .expect("it is connected");
        read(&theirs, 1);
        // The acknowledgement may take some milliseconds.
        while ours.silence().expect("a socket").is_some() {
            std::thread::yield_now();
        }
        assert!(ours.segment_bytes().expect("a socket") >= 500);
        assert_eq!(ours.peer_address().expect("connected"), theirs.local_address().expect("it is"));
    }
}
