//! Kernel TCP, the baseline, used like in a well-written application.
//!
//! The sockets have `TCP_NODELAY`. Each message is one `write` from an existing buffer. The receive
//! buffer of the application has the size of a message or [`RECEIVE_BUFFER_BYTES`], whichever is
//! larger. The sizes of socket buffers are not set, because setting them turns off the kernel's
//! autotuning.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;
use socket2::{Domain, Protocol, Socket, Type};

use super::idle_limit::{IdleLimit, timed_out};
use crate::transport::{
    self, Advertisement, ClientSide, Latencies, MESSAGE_BYTES_MAX, Observed, PHASE_TIME_MAX, Phase,
    ServerSide, Setup, Test, Transport, TransportError,
};
use testbed::clock::Stopwatch;

/// Kernel TCP, blocking or busy-polling, or MPTCP.
#[derive(Debug)]
pub struct Tcp {
    waiting: Waiting,
    is_multipath: bool,
}

impl Tcp {
    /// Makes the transport with blocking sockets.
    pub fn blocking() -> Self {
        Self { waiting: Waiting::Blocking, is_multipath: false }
    }

    /// Makes the transport with non-blocking sockets that the application polls without sleeping.
    pub fn polling() -> Self {
        Self { waiting: Waiting::Polling, is_multipath: false }
    }

    /// Makes the transport with blocking MPTCP sockets. Its connections use all paths that the
    /// kernel finds.
    pub fn multipath() -> Self {
        Self { waiting: Waiting::Blocking, is_multipath: true }
    }
}

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        match self.waiting {
            _ if self.is_multipath => super::MPTCP,
            Waiting::Blocking => super::BASELINE,
            Waiting::Polling => super::POLLING_BASELINE,
        }
    }

    fn description(&self) -> &'static str {
        match self.waiting {
            _ if self.is_multipath => "MPTCP of the kernel, blocking sockets",
            Waiting::Blocking => "kernel TCP, blocking sockets",
            Waiting::Polling => "kernel TCP, busy-polled non-blocking sockets",
        }
    }

    fn is_optional(&self) -> bool {
        self.is_multipath
    }

    fn link_counts(&self, available: u32) -> Vec<u32> {
        vec![if self.is_multipath { available } else { 1 }]
    }

    fn waitings(&self, _chosen: &[transport::Waiting]) -> Vec<transport::Waiting> {
        vec![match self.waiting {
            Waiting::Blocking => transport::Waiting::Interrupt,
            Waiting::Polling => transport::Waiting::Poll,
        }]
    }

    fn supports(&self, test: Test, message_bytes: u64, _mtu: Option<u32>) -> bool {
        let sets_up = test == Test::ConnectionSetup && self.is_multipath;
        !sets_up
            && !matches!(
                test,
                Test::ManyConnections | Test::VerifiedStream | Test::SmallBesideStream
            )
            && message_bytes <= MESSAGE_BYTES_MAX
    }

    fn listen(&self, setup: &Setup) -> Result<Box<dyn ServerSide>, TransportError> {
        let link = setup.links.first().ok_or(TransportError::Advertisement { what: "link" })?;
        let address = SocketAddr::new(link.server, 0);
        // Listen on all addresses, because the additional paths of MPTCP lead to other addresses of
        // this host.
        let unspecified = match address {
            SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        let bound = if self.is_multipath { SocketAddr::new(unspecified, 0) } else { address };
        let listener = bind(bound, self.is_multipath)
            .map_err(TransportError::io(format!("bind a TCP listener to {address}")))?;
        let bound = listener
            .local_addr()
            .map_err(TransportError::io("read the address of a TCP listener"))?;
        let address = SocketAddr::new(link.server, bound.port());
        self.waiting.prepare_listener(&listener)?;
        let (waiting, setup) = (self.waiting, setup.clone());
        Ok(Box::new(Server { listener, address, waiting, setup, connection: None }))
    }

    fn connect(
        &self,
        setup: &Setup,
        advertisement: &Advertisement,
    ) -> Result<Box<dyn ClientSide>, TransportError> {
        let address = advertisement
            .addresses
            .first()
            .copied()
            .ok_or(TransportError::Advertisement { what: "address" })?;
        let connection = if setup.test == Test::ConnectionSetup {
            None
        } else {
            Some(Connection::new(connect(address, self.is_multipath)?, self.waiting, setup)?)
        };
        Ok(Box::new(Client { address, waiting: self.waiting, test: setup.test, connection }))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Blocking,
    Polling,
}

impl Waiting {
    fn prepare_listener(self, listener: &TcpListener) -> Result<(), TransportError> {
        match self {
            Self::Polling => listener
                .set_nonblocking(true)
                .map_err(TransportError::io("make a TCP listener non-blocking")),
            Self::Blocking => {
                // In Linux the receive timeout of the listening socket also limits the time that
                // `accept` waits.
                let limit = TimeVal::new(PHASE_TIME_MAX.as_secs().cast_signed(), 0);
                setsockopt(listener, sockopt::ReceiveTimeout, &limit)
                    .map_err(io::Error::from)
                    .map_err(TransportError::io("limit the time of accept"))
            }
        }
    }

    fn prepare_stream(self, stream: &TcpStream) -> Result<(), TransportError> {
        stream.set_nodelay(true).map_err(TransportError::io("set TCP_NODELAY"))?;
        match self {
            Self::Polling => stream
                .set_nonblocking(true)
                .map_err(TransportError::io("make a TCP socket non-blocking")),
            Self::Blocking => stream
                .set_read_timeout(Some(PHASE_TIME_MAX))
                .and_then(|()| stream.set_write_timeout(Some(PHASE_TIME_MAX)))
                .map_err(TransportError::io("limit the time of TCP reads and writes")),
        }
    }

    /// Accepts one connection.
    fn accept(self, listener: &TcpListener) -> Result<TcpStream, TransportError> {
        let mut idle_limit = IdleLimit::new("accept a TCP connection");
        loop {
            match listener.accept() {
                Ok((stream, _)) => return Ok(stream),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => match self {
                    Self::Blocking => return Err(timed_out("accept a TCP connection")),
                    Self::Polling => idle_limit.on_idle()?,
                },
                Err(error) => {
                    return Err(TransportError::io("accept a TCP connection")(error));
                }
            }
        }
    }
}

struct Server {
    listener: TcpListener,
    address: SocketAddr,
    waiting: Waiting,
    setup: Setup,
    connection: Option<Connection>,
}

impl Server {
    fn accept_many(&mut self, connections: u64) -> Result<(), TransportError> {
        for _ in 0..connections {
            let stream = self.waiting.accept(&self.listener)?;
            // Notify the client that the application has the connection. After that, the client
            // resets the connection.
            (&stream).write_all(&[DONE]).map_err(TransportError::io("greet a TCP connection"))?;
        }
        Ok(())
    }
}

impl ServerSide for Server {
    fn advertisement(&self) -> Advertisement {
        Advertisement { addresses: vec![self.address], ..Advertisement::default() }
    }

    fn accept(&mut self) -> Result<(), TransportError> {
        if self.setup.test != Test::ConnectionSetup {
            let stream = self.waiting.accept(&self.listener)?;
            self.connection = Some(Connection::new(stream, self.waiting, &self.setup)?);
        }
        Ok(())
    }

    fn run(&mut self, phase: Phase) -> Result<Observed, TransportError> {
        let Some(connection) = &mut self.connection else {
            self.accept_many(phase.operations)?;
            return Ok(Observed::default());
        };
        match self.setup.test {
            Test::PingPong | Test::ManyConnections | Test::ConnectionSetup => {
                for _ in 0..phase.operations {
                    connection.receive_message()?;
                    connection.send_message()?;
                }
            }
            Test::OneWay | Test::OperationRate | Test::VerifiedStream | Test::SmallBesideStream => {
                connection.receive_messages(phase.operations)?;
                connection.send_done()?;
            }
            Test::TwoWay => {
                connection.exchange_messages(phase.operations)?;
                connection.send_done()?;
            }
        }
        Ok(Observed::default())
    }
}

struct Client {
    address: SocketAddr,
    waiting: Waiting,
    test: Test,
    connection: Option<Connection>,
}

impl Client {
    fn connect_many(
        &mut self,
        connections: u64,
        latencies: &mut Latencies,
    ) -> Result<(), TransportError> {
        for _ in 0..connections {
            let started = Stopwatch::start();
            let stream = connect(self.address, false)?;
            self.waiting.prepare_stream(&stream)?;
            read_exact(&stream, self.waiting, &mut [0])?;
            latencies.record_ns(started.elapsed_ns());
            // Close with a reset, so that no port stays in `TIME_WAIT`.
            let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
            setsockopt(&stream, sockopt::Linger, &linger)
                .map_err(io::Error::from)
                .map_err(TransportError::io("set SO_LINGER to 0"))?;
        }
        Ok(())
    }
}

impl ClientSide for Client {
    fn run(&mut self, phase: Phase, latencies: &mut Latencies) -> Result<Observed, TransportError> {
        let Some(connection) = &mut self.connection else {
            self.connect_many(phase.operations, latencies)?;
            return Ok(Observed::default());
        };
        match self.test {
            Test::PingPong | Test::ManyConnections | Test::ConnectionSetup => {
                for _ in 0..phase.operations {
                    let started = Stopwatch::start();
                    connection.send_message()?;
                    connection.receive_message()?;
                    latencies.record_ns(started.elapsed_ns() / 2);
                }
            }
            Test::OneWay | Test::OperationRate | Test::VerifiedStream | Test::SmallBesideStream => {
                for _ in 0..phase.operations {
                    connection.send_message()?;
                }
                connection.receive_done()?;
            }
            Test::TwoWay => {
                connection.exchange_messages(phase.operations)?;
                connection.receive_done()?;
            }
        }
        Ok(Observed::default())
    }
}

/// A connected stream with the buffers of its messages.
struct Connection {
    stream: TcpStream,
    waiting: Waiting,
    message_bytes: usize,
    outgoing: Vec<u8>,
    /// The buffer for incoming messages. It holds a whole number of messages, so that no message
    /// wraps around.
    incoming: Vec<u8>,
}

impl Connection {
    fn new(stream: TcpStream, waiting: Waiting, setup: &Setup) -> Result<Self, TransportError> {
        waiting.prepare_stream(&stream)?;
        let message_bytes = setup.message_bytes.clamp(1, MESSAGE_BYTES_MAX) as usize;
        let messages = (RECEIVE_BUFFER_BYTES / message_bytes).max(1);
        Ok(Self {
            stream,
            waiting,
            message_bytes,
            // Nonzero bytes make the kernel allocate the pages before the measurement starts.
            outgoing: vec![0x5a; message_bytes],
            incoming: vec![0xa5; message_bytes * messages],
        })
    }

    fn send_message(&self) -> Result<(), TransportError> {
        write_all(&self.stream, self.waiting, &self.outgoing)
    }

    fn receive_message(&mut self) -> Result<(), TransportError> {
        let (message, _) = self.incoming.split_at_mut(self.message_bytes);
        read_exact(&self.stream, self.waiting, message)
    }

    fn send_done(&self) -> Result<(), TransportError> {
        write_all(&self.stream, self.waiting, &[DONE])
    }

    fn receive_done(&self) -> Result<(), TransportError> {
        read_exact(&self.stream, self.waiting, &mut [0])
    }

    fn receive_messages(&mut self, messages: u64) -> Result<(), TransportError> {
        receive(&self.stream, self.waiting, &mut self.incoming, self.message_bytes, messages)
    }

    /// Sends `messages` messages, and receives the same number at the same time.
    fn exchange_messages(&mut self, messages: u64) -> Result<(), TransportError> {
        match self.waiting {
            Waiting::Polling => self.exchange_by_polling(messages),
            Waiting::Blocking => {
                let (stream, waiting, outgoing) = (&self.stream, self.waiting, &self.outgoing);
                let (incoming, message_bytes) = (&mut self.incoming, self.message_bytes);
                thread::scope(|scope| {
                    let sender = scope.spawn(move || {
                        (0..messages).try_for_each(|_| write_all(stream, waiting, outgoing))
                    });
                    let received = receive(stream, waiting, incoming, message_bytes, messages);
                    let sent = sender
                        .join()
                        .map_err(|_| TransportError::Other("the sending thread panicked".into()))?;
                    received.and(sent)
                })
            }
        }
    }

    fn exchange_by_polling(&mut self, messages: u64) -> Result<(), TransportError> {
        let total_bytes = messages * self.message_bytes as u64;
        let (mut to_send_bytes, mut to_receive_bytes) = (total_bytes, total_bytes);
        let (mut sent_of_message, mut filled) = (0, 0);
        let mut idle_limit = IdleLimit::new("exchange messages over TCP");
        while to_send_bytes > 0 || to_receive_bytes > 0 {
            let mut progress = false;
            if to_send_bytes > 0 {
                let rest = self.outgoing.get(sent_of_message..).unwrap_or_default();
                if let Some(bytes) = try_write(&self.stream, rest)? {
                    sent_of_message = (sent_of_message + bytes) % self.message_bytes;
                    to_send_bytes -= bytes as u64;
                    progress = true;
                }
            }
            if to_receive_bytes > 0 {
                let room = room(&mut self.incoming, filled, to_receive_bytes);
                if let Some(bytes) = try_read(&self.stream, room)? {
                    filled = (filled + bytes) % self.incoming.len();
                    to_receive_bytes -= bytes as u64;
                    progress = true;
                }
            }
            if progress { idle_limit.on_progress() } else { idle_limit.on_idle()? }
        }
        Ok(())
    }
}

/// Receives `messages` messages into `incoming`. When `incoming` is full, continues at its start.
fn receive(
    stream: &TcpStream,
    waiting: Waiting,
    incoming: &mut [u8],
    message_bytes: usize,
    messages: u64,
) -> Result<(), TransportError> {
    let mut left_bytes = messages * message_bytes as u64;
    let mut filled = 0;
    let mut idle_limit = IdleLimit::new("receive over TCP");
    while left_bytes > 0 {
        let Some(bytes) = try_read(stream, room(incoming, filled, left_bytes))? else {
            waiting.after_would_block(&mut idle_limit, "receive over TCP")?;
            continue;
        };
        idle_limit.on_progress();
        filled = (filled + bytes) % incoming.len();
        left_bytes -= bytes as u64;
    }
    Ok(())
}

/// Returns the part of `incoming` after its first `filled` bytes, limited to `left_bytes`.
fn room(incoming: &mut [u8], filled: usize, left_bytes: u64) -> &mut [u8] {
    let end = incoming.len().min(filled.saturating_add(left_bytes as usize));
    incoming.get_mut(filled..end).unwrap_or_default()
}

fn read_exact(
    stream: &TcpStream,
    waiting: Waiting,
    destination: &mut [u8],
) -> Result<(), TransportError> {
    let mut filled = 0;
    let mut idle_limit = IdleLimit::new("receive over TCP");
    while let Some(rest) = destination.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match try_read(stream, rest)? {
            Some(bytes) => {
                filled += bytes;
                idle_limit.on_progress();
            }
            None => waiting.after_would_block(&mut idle_limit, "receive over TCP")?,
        }
    }
    Ok(())
}

fn write_all(stream: &TcpStream, waiting: Waiting, source: &[u8]) -> Result<(), TransportError> {
    let mut rest = source;
    let mut idle_limit = IdleLimit::new("send over TCP");
    while !rest.is_empty() {
        match try_write(stream, rest)? {
            Some(bytes) => {
                rest = rest.get(bytes..).unwrap_or_default();
                idle_limit.on_progress();
            }
            None => waiting.after_would_block(&mut idle_limit, "send over TCP")?,
        }
    }
    Ok(())
}

impl Waiting {
    /// Handles a `WouldBlock` error. A blocking socket returns this error only after its timeout,
    /// so the error then ends the phase.
    #[inline]
    fn after_would_block(
        self,
        idle_limit: &mut IdleLimit,
        attempt: &'static str,
    ) -> Result<(), TransportError> {
        match self {
            Self::Blocking => Err(timed_out(attempt)),
            Self::Polling => idle_limit.on_idle(),
        }
    }
}

/// Reads the available bytes. Returns `None` if there are none, or if a blocking socket's timeout
/// has passed.
fn try_read(mut stream: &TcpStream, room: &mut [u8]) -> Result<Option<usize>, TransportError> {
    loop {
        match stream.read(room) {
            Ok(0) => return Err(TransportError::Closed { attempt: "receive over TCP" }),
            Ok(bytes) => return Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(TransportError::io("receive over TCP")(error)),
        }
    }
}

/// Writes as many bytes as the socket accepts. Returns `None` if it accepts none.
fn try_write(mut stream: &TcpStream, bytes: &[u8]) -> Result<Option<usize>, TransportError> {
    loop {
        match stream.write(bytes) {
            Ok(written) => return Ok(Some(written)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(TransportError::io("send over TCP")(error)),
        }
    }
}

fn bind(address: SocketAddr, is_multipath: bool) -> io::Result<TcpListener> {
    if !is_multipath {
        return TcpListener::bind(address);
    }
    let socket = multipath_socket(address)?;
    socket.bind(&address.into())?;
    socket.listen(1)?;
    Ok(socket.into())
}

fn connect(address: SocketAddr, is_multipath: bool) -> Result<TcpStream, TransportError> {
    let connected = if is_multipath {
        let socket = multipath_socket(address);
        socket.and_then(|socket| socket.connect(&address.into()).map(|()| socket.into()))
    } else {
        TcpStream::connect(address)
    };
    connected.map_err(TransportError::io(format!("connect by TCP to {address}")))
}

fn multipath_socket(address: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::MPTCP))
}

/// The byte by which the server confirms that it has received all data.
const DONE: u8 = 0xd0;

/// Size of the receive buffer, in bytes. With this size, one call can read many small messages. 256
/// KiB are 0.25 ms of a stream of a gigabyte per second, and still fit in a second-level cache.
const RECEIVE_BUFFER_BYTES: usize = 256 << 10;
