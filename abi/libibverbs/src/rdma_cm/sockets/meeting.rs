//! Connects the two queue pairs that belong to a connected pair of sockets. The queue pairs carry
//! writes to mapped memory. The side of the connecting socket sends a request to a port of the
//! connection manager. This port has the same number as the port of the peer's socket. The request
//! contains the address of the connecting socket.
//!
//! These steps do not use the byte stream of the socket. So a socket with mappings can be connected
//! to a socket without mappings. In this case, only `riomap` fails, because the queue pair has no
//! peer.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdma_cm::{AcceptOptions, ConnectOptions, Event, EventChannel, EventKind, Id, PortSpace};
use verbs::{Error, start_thread};

use super::super::devices::shared;
use super::side::{Hello, Side};

/// The state of the wait until the queue pair of a connected socket is connected.
#[derive(Default)]
pub(super) struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    Waits,
    Met(Arc<Side>),
    /// The wait has ended, because no peer has connected or the socket is closed.
    Over,
}

impl Meeting {
    /// Returns the connected queue pair; `None` if it is not connected yet.
    pub(super) fn side(&self) -> Option<Arc<Side>> {
        match &*lock(&self.state) {
            State::Met(side) => Some(Arc::clone(side)),
            _ => None,
        }
    }

    /// Waits until the queue pair is connected, but at most for [`PATIENCE`]. Returns the queue
    /// pair, or an error.
    pub(super) fn wait(&self) -> Result<Arc<Side>, Error> {
        let waits = |state: &mut State| matches!(state, State::Waits);
        let state = lock(&self.state);
        let waited = self.changed.wait_timeout_while(state, PATIENCE, waits);
        match &*waited.unwrap_or_else(PoisonError::into_inner).0 {
            State::Met(side) => Ok(Arc::clone(side)),
            _ => Err(Error::NoRoom("the peer has no room for mappings".into())),
        }
    }

    /// Ends the wait. Returns the queue pair if it was connected.
    pub(super) fn end(&self) -> Option<Arc<Side>> {
        let before = std::mem::replace(&mut *lock(&self.state), State::Over);
        self.changed.notify_all();
        match before {
            State::Met(side) => Some(side),
            _ => None,
        }
    }

    /// Stores the connected queue pair. If the wait has already ended, drops the queue pair instead
    /// and returns false.
    fn meet(&self, side: Side) -> bool {
        let mut state = lock(&self.state);
        let waits = matches!(*state, State::Waits);
        if waits {
            *state = State::Met(Arc::new(side));
            self.changed.notify_all();
        }
        waits
    }

    fn has_ended(&self) -> bool {
        matches!(*lock(&self.state), State::Over)
    }
}

/// Starts to connect the queue pair of a connecting socket to the peer's queue pair. A separate
/// thread does this, because the program's call must not block.
pub(super) fn look_for(socket: c_int, maps: u32) -> Arc<Meeting> {
    let meeting = Arc::new(Meeting::default());
    let shared = Arc::clone(&meeting);
    let look = move || {
        // The peer may enable mappings a moment after it has started to listen, so retry for some
        // time.
        for _ in 0..PATIENCE.as_millis() / PAUSE.as_millis() {
            if shared.has_ended() {
                return;
            }
            let known = addresses(socket).filter(|_| !shared.has_ended());
            match known.map(|(own, peer)| ask(own, peer, maps)) {
                Some(Ok(Some(side))) => {
                    shared.meet(side);
                    return;
                }
                Some(Err(_)) => break,
                Some(Ok(None)) | None => pause(),
            }
        }
        drop(shared.end());
    };
    if start_thread("rsocket", look).is_err() {
        drop(meeting.end());
    }
    meeting
}

/// Returns the local address and the peer's address of a connected socket.
fn addresses(socket: c_int) -> Option<(SocketAddr, SocketAddr)> {
    Some((super::address_of(socket, libc::getsockname)?, super::peer_of(socket)?))
}

/// Sends a connection request to the peer, and returns the connected queue pair. Returns `None` if
/// the peer does not accept the request.
fn ask(own: SocketAddr, peer: SocketAddr, maps: u32) -> Result<Option<Side>, Error> {
    let host = &shared()?.host;
    let channel = EventChannel::new(host)?;
    let id = Id::new(host, &channel, PortSpace::Tcp, None)?;
    id.resolve_address(None, peer)?;
    expect(&channel, EventKind::AddressResolved)?;
    id.resolve_route()?;
    expect(&channel, EventKind::RouteResolved)?;
    let side = Side::new(&id, maps)?;
    id.connect(&said(side.hello(own)))?;
    let Ok(answer) = expect(&channel, EventKind::Established) else { return Ok(None) };
    let hello = Hello::decode(&answer);
    Ok(hello.map(|hello| {
        side.take_hello(hello);
        side
    }))
}

/// Waits for the next event, and returns the peer's private data. Returns an error if the event has
/// another kind.
fn expect(channel: &EventChannel, kind: EventKind) -> Result<Vec<u8>, Error> {
    let event = take(channel)?;
    event.acknowledge();
    if event.kind == kind && event.status == 0 {
        return Ok(event.private_data);
    }
    Err(Error::Failed(format!("{:?}, not {kind:?}", event.kind)))
}

fn take(channel: &EventChannel) -> Result<Event, Error> {
    loop {
        match channel.get() {
            Err(Error::System { number: libc::EINTR, .. }) => {}
            other => return other,
        }
    }
}

fn said(hello: Hello) -> ConnectOptions {
    ConnectOptions {
        private_data: hello.encode(),
        retries: RETRIES,
        not_ready_retries: RETRIES,
        ..ConnectOptions::default()
    }
}

/// Listens for connection requests to the queue pairs of accepted sockets, until this value is
/// dropped.
pub(super) struct Listening {
    arrived: Arc<Arrived>,
    /// The other socket of this pair belongs to the serving thread, which polls it. If this socket
    /// is dropped, the thread ends.
    _open: UnixStream,
}

#[derive(Default)]
struct Arrived {
    state: Mutex<Here>,
}

#[derive(Default)]
struct Here {
    /// Connected queue pairs whose sockets the program has not accepted yet, oldest first. Each
    /// entry has the address of the socket's peer.
    sides: VecDeque<(SocketAddr, Side)>,
    /// The accepted sockets whose queue pairs are not connected yet. Each entry has the address of
    /// the socket's peer, and the state of the wait for the queue pair.
    waiting: Vec<(SocketAddr, std::sync::Weak<Meeting>)>,
}

impl Listening {
    /// Starts to listen at `at`, the address at which the socket listens.
    pub(super) fn open(at: SocketAddr, maps: u32) -> Result<Self, Error> {
        let host = &shared()?.host;
        let channel = EventChannel::new(host)?;
        let id = Id::new(host, &channel, PortSpace::Tcp, None)?;
        id.bind(at)?;
        id.listen(0)?;
        let of_system = |error: std::io::Error| Error::System {
            what: "serving mappings".into(),
            number: error.raw_os_error().unwrap_or(libc::EIO),
        };
        let (open, ends) = UnixStream::pair().map_err(of_system)?;
        let arrived = Arc::new(Arrived::default());
        let served = Arc::clone(&arrived);
        let serve = move || {
            while is_open(&channel, &ends) {
                // Ignore failures. A failure affects only one connection, whose peer is notified or
                // times out.
                let _failed = served.serve(&channel, maps);
            }
            let _gone = id.destroy();
        };
        start_thread("rsocket", serve).map_err(of_system)?;
        Ok(Self { arrived, _open: open })
    }

    /// Returns the state of the wait until the queue pair of an accepted socket is connected.
    /// `peer` is the address of the socket's peer.
    pub(super) fn expect(&self, peer: SocketAddr) -> Arc<Meeting> {
        let meeting = Arc::new(Meeting::default());
        let mut here = lock(&self.arrived.state);
        here.waiting.retain(|(_, meeting)| meeting.strong_count() > 0);
        match here.sides.iter().position(|(of, _)| *of == peer) {
            Some(at) => {
                if let Some((_, side)) = here.sides.remove(at) {
                    meeting.meet(side);
                }
            }
            None => here.waiting.push((peer, Arc::downgrade(&meeting))),
        }
        meeting
    }
}

impl Arrived {
    /// Handles the next event of the channel.
    fn serve(&self, channel: &EventChannel, maps: u32) -> Result<(), Error> {
        let event = take(channel)?;
        event.acknowledge();
        if event.kind != EventKind::ConnectRequest {
            return Ok(());
        }
        // Accept a request only for a socket of the requesting host. Without this check, a host
        // could connect to the queue pair of another host's socket.
        let asks = event.id.remote().map(|remote| remote.ip().to_canonical());
        let hello = Hello::decode(&event.private_data);
        let Some(hello) = hello.filter(|hello| Some(hello.socket.ip()) == asks) else {
            return event.id.reject(&[]);
        };
        let side = Side::new(&event.id, maps)?;
        side.take_hello(hello);
        let options = Some(said(side.hello(hello.socket)));
        side.id().accept(&AcceptOptions { options, queue_key: None })?;
        self.put(hello.socket, side);
        Ok(())
    }

    fn put(&self, of: SocketAddr, side: Side) {
        let mut here = lock(&self.state);
        let at = here.waiting.iter().position(|(peer, _)| *peer == of);
        let waits = at.and_then(|at| here.waiting.swap_remove(at).1.upgrade());
        if let Some(meeting) = waits {
            meeting.meet(side);
            return;
        }
        let is_full = here.sides.len() >= ARRIVED_MAX;
        let oldest = if is_full { here.sides.pop_front() } else { None };
        here.sides.push_back((of, side));
        drop(here);
        // Drop the oldest queue pair after the lock is released, because closing its connection
        // takes some time.
        drop(oldest);
    }
}

/// Waits until an event is queued, and returns true. Returns false if the `Listening` is dropped.
fn is_open(channel: &EventChannel, ends: &UnixStream) -> bool {
    let [news, end] = [channel.descriptor().as_raw_fd(), ends.as_raw_fd()];
    let mut wanted = [news, end].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    loop {
        // SAFETY: the list lives until the call returns.
        unsafe { libc::poll(wanted.as_mut_ptr(), 2, -1) };
        match wanted {
            [_, libc::pollfd { revents: 1.., .. }] => return false,
            [libc::pollfd { revents: 1.., .. }, _] => return true,
            _ => {}
        }
    }
}

fn pause() {
    // SAFETY: an empty list of descriptors may be null.
    unsafe { libc::poll(std::ptr::null_mut(), 0, PAUSE.as_millis() as c_int) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum time for which one side waits until its queue pair is connected to the peer's. If both
/// sockets have mappings, a shorter time suffices, because both sides start to connect at about the
/// same time.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(10);

/// Maximum number of connected queue pairs whose sockets the program has not accepted yet. It
/// equals a usual backlog of a listening socket. Each queue pair takes 1 MiB of address space.
const ARRIVED_MAX: usize = 128;

/// The largest number of retries that a connection can have.
const RETRIES: u8 = 7;
