//! Two endpoints, and connections between them.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sockets::{Connection, Place, ReceiveFlags, Route, SendFlags, Settings, Sockets};

/// What stands for the table of descriptors of a program.
#[derive(Default)]
pub struct Program {
    descriptors: Mutex<HashMap<u64, Arc<Mutex<OwnedFd>>>>,
}

impl Program {
    fn get(&self, token: u64) -> Option<Arc<Mutex<OwnedFd>>> {
        self.descriptors.lock().unwrap().get(&token).cloned()
    }
}

impl Place for Program {
    fn duplicate(&self, token: u64) -> Option<OwnedFd> {
        self.get(token)?.lock().unwrap().try_clone().ok()
    }

    fn put(&self, token: u64, end: OwnedFd) -> bool {
        let Some(fd) = self.get(token) else { return false };
        nix::unistd::dup2(end, &mut fd.lock().unwrap()).is_ok()
    }

    fn decided(&self, _token: u64) {}
}

pub struct Side {
    pub program: Arc<Program>,
    pub sockets: Sockets,
}

/// One end of a connection, as a program has it.
pub struct End {
    pub connection: Arc<Connection>,
    fd: OwnedFd,
}

pub struct Pair {
    pub client: Side,
    pub server: Side,
    listener: TcpListener,
    tokens: AtomicU64,
}

impl Side {
    fn new() -> Self {
        let program = Arc::new(Program::default());
        let settings = Settings::read(|_| None).expect("the usual settings");
        let place = Arc::clone(&program) as Arc<dyn Place>;
        let sockets = Sockets::start(Arc::new(settings), place).expect("it starts");
        Self { program, sockets }
    }

    fn adopt(&self, token: u64, tcp: TcpStream) -> OwnedFd {
        // The number that the program knows is another one, which stays what it is when `put` comes.
        let fd = OwnedFd::from(tcp);
        let known = fd.try_clone().expect("a descriptor is left");
        let known = Arc::new(Mutex::new(known));
        self.program.descriptors.lock().unwrap().insert(token, known);
        fd
    }
}

impl Pair {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let tokens = AtomicU64::new(1);
        Self { client: Side::new(), server: Side::new(), listener, tokens }
    }

    /// A new connection, of both sides.
    pub fn connect(&self) -> (End, End) {
        let address = self.listener.local_addr().unwrap();
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        let tcp = TcpStream::connect(address).expect("it listens");
        let (local, peer) = (tcp.local_addr().unwrap(), tcp.peer_addr().unwrap());
        let fd = self.client.adopt(token, tcp);
        let client = End { connection: self.client.sockets.connected(token, local, peer), fd };
        let (tcp, _) = self.listener.accept().expect("a connection waits");
        let (local, peer) = (tcp.local_addr().unwrap(), tcp.peer_addr().unwrap());
        let fd = self.server.adopt(token, tcp);
        let server = End { connection: self.server.sockets.accepted(token, local, peer), fd };
        (client, server)
    }
}

impl End {
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn send_all(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let slices = [IoSlice::new(bytes)];
            let sent = self.connection.send(self.fd(), &slices, SendFlags::default());
            bytes = &bytes[sent.expect("it is sent")..];
        }
    }

    pub fn expect(&self, bytes: &[u8]) {
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

    /// Waits for something to become so, for a long time: a machine may be busy.
    pub fn wait_until(&self, what: &str, is_so: impl Fn(&Connection) -> bool) {
        let begun = Instant::now();
        while !is_so(&self.connection) {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{what}: {:?}",
                self.connection.route()
            );
            std::thread::yield_now();
        }
    }
}

pub fn is_moved(connection: &Connection) -> bool {
    connection.route() == Route::Moved
}
