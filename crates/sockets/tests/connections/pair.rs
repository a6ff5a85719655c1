//! Two endpoints, and connections between them.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use sockets::{
    Connection, DescriptorTable, Reason, ReceiveFlags, Route, SendFlags, Settings, Sockets,
};

/// The descriptor table of a program.
#[derive(Default)]
pub(crate) struct Program {
    descriptors: Mutex<HashMap<u64, Arc<Mutex<OwnedFd>>>>,
    /// True if another process also has the descriptors.
    pub(crate) is_shared: AtomicBool,
}

impl Program {
    fn get(&self, token: u64) -> Option<Arc<Mutex<OwnedFd>>> {
        self.descriptors.lock().unwrap().get(&token).cloned()
    }
}

impl DescriptorTable for Program {
    fn duplicate(&self, token: u64) -> Option<OwnedFd> {
        self.get(token)?.lock().unwrap().try_clone().ok()
    }

    fn put(&self, token: u64, end: OwnedFd) -> bool {
        let Some(fd) = self.get(token) else { return false };
        nix::unistd::dup2(end, &mut fd.lock().unwrap()).is_ok()
    }

    fn is_shared(&self, _token: u64) -> bool {
        self.is_shared.load(Ordering::SeqCst)
    }

    fn decided(&self, _token: u64) {}

    fn closed(&self, _token: u64) {}
}

pub(crate) struct Side {
    pub(crate) program: Arc<Program>,
    pub(crate) sockets: Sockets,
}

/// One end of a connection, and the program's descriptor of it.
pub(crate) struct End {
    program: Arc<Program>,
    pub(crate) connection: Arc<Connection>,
    fd: OwnedFd,
}

pub(crate) struct Pair {
    pub(crate) client: Side,
    pub(crate) server: Side,
    listener: TcpListener,
    tokens: AtomicU64,
}

impl Side {
    fn new(set: &[(&str, &str)]) -> Self {
        let program = Arc::new(Program::default());
        let value_of = |name: &str| {
            let is_it = |(other, _): &&(&str, &str)| *other == name;
            let given = set.iter().find(is_it).map(|(_, value)| (*value).into());
            given.or_else(|| (name == "ETHERNOT_SOCKETS_MOVE").then(|| "always".into()))
        };
        let settings = Settings::read(value_of).expect("settings");
        let descriptors = Arc::clone(&program) as Arc<dyn DescriptorTable>;
        let sockets = Sockets::start(Arc::new(settings), descriptors).expect("it starts");
        Self { program, sockets }
    }

    fn end(
        &self,
        token: u64,
        tcp: TcpStream,
        make: impl FnOnce(&Sockets, u64, SocketAddr, SocketAddr) -> Arc<Connection>,
    ) -> End {
        let (local, peer) = (tcp.local_addr().unwrap(), tcp.peer_addr().unwrap());
        // The program's own descriptor has a number that is not in the table, so `put` does not
        // replace it.
        let fd = OwnedFd::from(tcp);
        let known = Arc::new(Mutex::new(fd.try_clone().expect("a descriptor is left")));
        self.program.descriptors.lock().unwrap().insert(token, known);
        let program = Arc::clone(&self.program);
        End { program, connection: make(&self.sockets, token, local, peer), fd }
    }
}

/// Calls `Sockets::accepted` for a connection that has not carried bytes.
fn accepted(sockets: &Sockets, token: u64, local: SocketAddr, peer: SocketAddr) -> Arc<Connection> {
    sockets.accepted(token, local, peer, false)
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::with(&[], &[])
    }

    /// Creates a pair. Sets these environment variables for each side.
    pub(crate) fn with(client: &[(&str, &str)], server: &[(&str, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let tokens = AtomicU64::new(1);
        Self { client: Side::new(client), server: Side::new(server), listener, tokens }
    }

    /// Creates a TCP connection that is not registered with an endpoint. Another socket may have
    /// the connection's UDP port by chance. In that case retries, so that the rendezvous socket can
    /// be opened.
    pub(crate) fn tcp(&self) -> (TcpStream, TcpStream) {
        let address = self.listener.local_addr().unwrap();
        loop {
            let client = TcpStream::connect(address).expect("it listens");
            let server = self.listener.accept().expect("a connection waits").0;
            if UdpSocket::bind(client.local_addr().unwrap()).is_ok() {
                return (client, server);
            }
        }
    }

    pub(crate) fn connected(&self, tcp: TcpStream) -> End {
        self.client.end(self.tokens.fetch_add(1, Ordering::Relaxed), tcp, Sockets::connected)
    }

    pub(crate) fn accepted(&self, tcp: TcpStream) -> End {
        self.server.end(self.tokens.fetch_add(1, Ordering::Relaxed), tcp, accepted)
    }

    /// Creates a connection between the two endpoints. Another socket of this host may have the UDP
    /// port that the rendezvous socket needs. In that case retries.
    pub(crate) fn connect(&self) -> (End, End) {
        loop {
            let (client, server) = self.tcp();
            let client = self.connected(client);
            if client.connection.route() != Route::Left(Reason::NoRendezvousSocket) {
                return (client, self.accepted(server));
            }
        }
    }

    /// Creates a connection that has moved.
    pub(crate) fn moved(&self) -> (End, End) {
        let (client, server) = self.connect();
        client.wait_until(is_moved);
        server.wait_until(is_moved);
        (client, server)
    }
}

impl Drop for End {
    /// Closes the program's descriptors.
    fn drop(&mut self) {
        self.program.descriptors.lock().unwrap().remove(&self.connection.token());
        // Close the program's last descriptor by replacing it.
        let nothing = std::fs::File::open("/dev/null").expect("it is there");
        nix::unistd::dup2(nothing, &mut self.fd).expect("it is closed");
        self.connection.released();
    }
}

impl End {
    pub(crate) fn try_send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let flags = SendFlags { no_signal: true, ..SendFlags::default() };
        self.connection.send(self.fd(), &[IoSlice::new(bytes)], flags)
    }

    pub(crate) fn receive_some(&self) -> Result<Vec<u8>, Errno> {
        let mut room = [0; 1024];
        let mut slices = [IoSliceMut::new(&mut room)];
        let length = self.connection.receive(self.fd(), &mut slices, ReceiveFlags::default())?;
        Ok(room[..length].to_vec())
    }

    /// Checks that no bytes can be received.
    pub(crate) fn expect_nothing(&self) {
        let flags = ReceiveFlags { dont_wait: true, ..ReceiveFlags::default() };
        let mut room = [0; 16];
        let received = self.connection.receive(self.fd(), &mut [IoSliceMut::new(&mut room)], flags);
        assert_eq!(received, Err(Errno::EAGAIN));
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn send_all(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let slices = [IoSlice::new(bytes)];
            let sent = self.connection.send(self.fd(), &slices, SendFlags::default());
            bytes = &bytes[sent.expect("it is sent")..];
        }
    }

    pub(crate) fn expect(&self, bytes: &[u8]) {
        let mut room = vec![0; bytes.len()];
        let mut received = 0;
        while received < room.len() {
            let mut slices = [IoSliceMut::new(&mut room[received..])];
            let flags = ReceiveFlags::default();
            let length = self.connection.receive(self.fd(), &mut slices, flags);
            let length = length.expect("it is received");
            assert!(length > 0, "the end after {received} bytes");
            received += length;
        }
        assert_eq!(room, bytes);
    }

    /// Waits until a condition holds. Has no time limit, because the test runner ends a test that
    /// hangs.
    pub(crate) fn wait_until(&self, is_so: impl Fn(&Connection) -> bool) {
        while !is_so(&self.connection) {
            std::thread::yield_now();
        }
    }
}

/// Returns true if the connection has moved, and false if it is undecided. Panics if it was left to
/// TCP.
pub(crate) fn is_moved(connection: &Connection) -> bool {
    let route = connection.route();
    assert!(!matches!(route, Route::Left(_)), "{route:?}");
    route == Route::Moved
}
