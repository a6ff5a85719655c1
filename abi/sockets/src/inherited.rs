//! Connections that a forked child inherits from its parent.
//!
//! A connection that has moved to the edge stays in the parent. When a child begins to use the
//! connection, the child asks the parent to return the connection to TCP. The request goes through
//! a Unix socket pair that the parent created before the fork. After the return, both processes use
//! the connection through the kernel. Most children send no request, because they serve other
//! connections, or write a snapshot and end. If the parent ends before its children, it first
//! returns to TCP all connections that they inherited.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use libc::c_int;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType,
    recvmsg, sendmsg, shutdown, socketpair,
};
use sockets::log::{LogLevel, note};
use sockets::{Reason, Route};

use crate::answering::borrowed;
use crate::connection_table::{self, ConnectionTable};
use crate::passing::{HOME_LIMIT, brought_home};
use crate::socket::{Owner, Socket};

/// A socket pair through which a child sends requests to its parent.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) parent: OwnedFd,
    pub(crate) child: OwnedFd,
}

impl Channel {
    /// Opens the socket pair. Called before the fork.
    pub(crate) fn open() -> Option<Self> {
        let made =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        made.ok().map(|(parent, child)| Self { parent, child })
    }
}

/// Starts a thread that answers the requests of a child and of the child's own children, until all
/// of them have ended. Called in the parent.
pub(crate) fn serve(channel: OwnedFd, connections: Vec<Arc<Socket>>) {
    let served = Arc::new(Served { channel, connections });
    lock(&SERVED).push(Arc::clone(&served));
    let serving = move || {
        while let Some((token, of_child)) = asked(&served.channel) {
            let found = served.connections.iter().find(|socket| socket.token == token);
            let answer = found.map_or(Answer::Left, |socket| of_parent(socket, of_child));
            if send_answer(&served.channel, token, answer).is_err() {
                break;
            }
        }
        lock(&SERVED).retain(|known| !Arc::ptr_eq(known, &served));
    };
    let started = thread::Builder::new().name("ethernot-forks".into()).spawn(serving);
    if let Err(error) = started {
        let what = format_args!("a child cannot use connections of this process: {error}");
        note(LogLevel::Error, what);
    }
}

/// Returns to TCP all connections that children have inherited. Called before the process ends or
/// executes another program. The children then continue on TCP.
pub(crate) fn hand_over() {
    let all: Vec<_> = lock(&SERVED).clone();
    let sockets = || all.iter().flat_map(|served| &served.connections);
    let connections = || sockets().filter_map(|socket| socket.begun());
    // In the first pass, begin the return of every connection without waiting. So in the second
    // pass, all connections return while this thread waits for the first of them.
    for limit in [Duration::ZERO, HOME_LIMIT] {
        let mut limit = limit;
        for connection in connections() {
            if !connection.go_home(limit) && connection.is_going_home() {
                // The peer is stopped or unreachable. Other peers may be in the same state, so do
                // not wait for them.
                limit = Duration::ZERO;
            }
        }
    }
    for served in &all {
        let is_home = |socket: &&Arc<Socket>| {
            socket.begun().is_some_and(|connection| connection.route() == Route::Left(Reason::Home))
        };
        for socket in served.connections.iter().filter(is_home) {
            // The child may have ended, so ignore errors.
            let _ended = send_answer(&served.channel, socket.token, Answer::Home);
        }
    }
}

/// The channel to a child, and the connections that the child may request.
#[derive(Debug)]
struct Served {
    channel: OwnedFd,
    connections: Vec<Arc<Socket>>,
}

/// The channel to the parent, in a child.
#[derive(Debug)]
pub(crate) struct Parent {
    channel: OwnedFd,
    /// Tokens of the connections that the parent has reported to be on TCP again.
    home: Vec<u64>,
}

/// Stores the channel to the parent. Called in a child.
pub(crate) fn begin_child(mut asking: Asking, channel: Option<OwnedFd>) {
    let parent = channel.map(|channel| Parent { channel, home: Vec::new() });
    // The old value is the parent's channel to its own parent. Leak the value, because its
    // descriptor is already closed in this process. This process does not need that channel,
    // because the parent fetched all its inherited connections before this fork.
    std::mem::forget(std::mem::replace(&mut *asking, parent));
    // Forget the children of the parent, because they are not children of this process. Only try to
    // take the lock, because another thread of the parent may have held it at the fork.
    if let Ok(mut served) = SERVED.try_lock() {
        std::mem::forget(std::mem::take(&mut *served));
    }
}

/// Locks the channel to the parent, so that no other thread sends a request during a fork.
pub(crate) fn hold() -> Asking {
    lock(&PARENT)
}

/// Asks the parent to return a connection to TCP, and applies the answer. Called in a child that
/// begins to use the connection.
pub(crate) fn fetch(socket: &Socket, fd: c_int) {
    // The lock lets one thread at a time send a request.
    let mut parent = hold();
    if let Some(now) = crate::table::socket(fd)
        && now.owner != Owner::Inherited
    {
        return;
    }
    let answer = match &mut *parent {
        Some(parent) => parent.ask(socket, fd),
        // There is no channel, because the parent had no free descriptors at the fork.
        None if is_end(fd) => Err(Errno::EMFILE),
        None => Ok(Answer::Carried(None)),
    };
    let mut connection_table = connection_table::lock();
    match answer {
        Ok(Answer::Left) => connection_table.forget(socket.token),
        Ok(Answer::Home) => {
            if let Some(tcp) = socket.tcp() {
                connection_table.put(socket.token, tcp);
            }
            connection_table.forget(socket.token);
        }
        Ok(Answer::Carried(end)) => {
            // If the answer has no descriptor, the child continues with its own.
            if let Some(end) = end {
                connection_table.put(socket.token, &end);
            }
            connection_table.replace(&socket.of_other());
        }
        Err(error) => {
            let what = format_args!("the parent did not answer for a connection: {error}");
            note(LogLevel::Error, what);
            // If the channel is closed, the parent was killed, and no other process carries the
            // bytes of the connection. So end the connection for the peer.
            if let (Errno::EPIPE | Errno::ECONNRESET, Some(tcp)) = (error, socket.tcp()) {
                let _closed = shutdown(tcp.as_raw_fd(), Shutdown::Both);
            }
            break_off(&mut connection_table, socket);
        }
    }
}

/// Makes all calls on a connection fail, as if the peer had reset the connection. The program must
/// not read the old descriptor: its bytes do not come from the peer, because the library uses them
/// only to make the descriptor readable.
fn break_off(connection_table: &mut ConnectionTable, socket: &Socket) {
    match reset_end() {
        Ok(end) => {
            connection_table.put(socket.token, &end);
        }
        Err(error) => {
            let what = format_args!("a connection of the parent cannot be reset: {error}");
            note(LogLevel::Error, what);
        }
    }
    connection_table.replace(&socket.of_other());
}

/// Returns a descriptor that reports a reset: one end of a socket pair whose other end was closed
/// with an unread byte.
fn reset_end() -> Result<OwnedFd, Errno> {
    let (end, other) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    send(&end, b"x", None)?;
    drop(other);
    Ok(end)
}

/// The channel to the parent, locked.
pub(crate) type Asking = MutexGuard<'static, Option<Parent>>;

/// The parent's answer about a connection that a child begins to use.
#[derive(Debug)]
enum Answer {
    /// The connection is on TCP, and was already on TCP at the fork.
    Left,
    /// The connection had moved to the edge, and is now on TCP again.
    Home,
    /// The parent relays the bytes of the connection. If the answer has a descriptor, the child
    /// must use that descriptor.
    Carried(Option<OwnedFd>),
}

/// Makes a connection return to TCP, or relays its bytes if that is impossible. Returns the answer
/// for the child. `of_child` is the child's descriptor of the connection.
fn of_parent(socket: &Socket, of_child: Option<OwnedFd>) -> Answer {
    let Some(connection) = socket.begun() else { return Answer::Left };
    // Wait until it is decided whether the connection moves. This was decided before the fork, or
    // will be decided soon.
    for _ in 0..DECISION_LOOKS {
        if connection.route() != Route::Undecided {
            break;
        }
        #[expect(clippy::disallowed_methods, reason = "nothing notifies this thread")]
        thread::sleep(DECISION_LOOK);
    }
    let was_end = of_child.as_ref().is_some_and(|fd| is_end(fd.as_raw_fd()));
    if brought_home(connection) {
        return if was_end { Answer::Home } else { Answer::Left };
    }
    match of_child {
        Some(end) if was_end => {
            connection.relay(borrowed(end.as_raw_fd()));
            Answer::Carried(None)
        }
        _ => match connection_table::lock().duplicate(socket.token) {
            Some(end) => {
                connection.relay(borrowed(end.as_raw_fd()));
                Answer::Carried(Some(end))
            }
            None => Answer::Left,
        },
    }
}

/// Returns true if a descriptor is an end of a socket pair, and false if it is a TCP socket.
fn is_end(fd: RawFd) -> bool {
    let name = nix::sys::socket::getsockname::<nix::sys::socket::SockaddrStorage>(fd);
    name.is_ok_and(|name| name.as_sockaddr_in().is_none() && name.as_sockaddr_in6().is_none())
}

impl Parent {
    fn ask(&mut self, socket: &Socket, fd: c_int) -> Result<Answer, Errno> {
        // First read the reports that the parent sends without a request: when a parent ends, it
        // reports which connections are on TCP again.
        while self.is_ready(0)? {
            let Ok((of, Answer::Home)) = receive_answer(&self.channel) else { break };
            self.home.push(of);
        }
        if self.home.contains(&socket.token) {
            return Ok(Answer::Home);
        }
        send(&self.channel, &socket.token.to_ne_bytes(), Some(fd))?;
        loop {
            if !self.is_ready(ANSWER_MS)? {
                return Err(Errno::ETIMEDOUT);
            }
            match receive_answer(&self.channel)? {
                (of, answer) if of == socket.token => return Ok(answer),
                (of, Answer::Home) => self.home.push(of),
                // Ignore an answer that arrives too late, because the child no longer waits for it.
                (_, Answer::Left | Answer::Carried(_)) => {}
            }
        }
    }

    fn is_ready(&self, limit_ms: u16) -> Result<bool, Errno> {
        let mut wanted = [PollFd::new(as_borrowed(&self.channel), PollFlags::POLLIN)];
        Ok(poll(&mut wanted, PollTimeout::from(limit_ms))? > 0)
    }
}

fn asked(channel: &OwnedFd) -> Option<(u64, Option<OwnedFd>)> {
    let mut token = [0; 8];
    match receive(channel, &mut token) {
        Ok((8, of_child)) => Some((u64::from_ne_bytes(token), of_child)),
        _ => None,
    }
}

fn send_answer(channel: &OwnedFd, token: u64, answer: Answer) -> Result<(), Errno> {
    let (code, end) = match answer {
        Answer::Left => (LEFT, None),
        Answer::Home => (HOME, None),
        Answer::Carried(end) => (CARRIED, end),
    };
    let mut bytes = [code; ANSWER_BYTES];
    bytes[1..].copy_from_slice(&token.to_ne_bytes());
    send(channel, &bytes, end.as_ref().map(AsRawFd::as_raw_fd))
}

fn receive_answer(channel: &OwnedFd) -> Result<(u64, Answer), Errno> {
    let mut bytes = [0; ANSWER_BYTES];
    let (ANSWER_BYTES, end) = receive(channel, &mut bytes)? else {
        return Err(Errno::ECONNRESET);
    };
    let [code, token @ ..] = bytes;
    let answer = match code {
        LEFT => Answer::Left,
        HOME => Answer::Home,
        _ => Answer::Carried(end),
    };
    Ok((u64::from_ne_bytes(token), answer))
}

fn send(channel: &OwnedFd, bytes: &[u8], fd: Option<RawFd>) -> Result<(), Errno> {
    let fds: Vec<_> = fd.into_iter().collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let rights = if fds.is_empty() { &[][..] } else { &rights[..] };
    let slices = [IoSlice::new(bytes)];
    loop {
        match sendmsg::<()>(channel.as_raw_fd(), &slices, rights, MsgFlags::MSG_NOSIGNAL, None) {
            Err(Errno::EINTR) => {}
            result => return result.map(drop),
        }
    }
}

fn receive(channel: &OwnedFd, into: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut control = nix::cmsg_space!(RawFd);
    let mut slices = [IoSliceMut::new(into)];
    loop {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let fd = channel.as_raw_fd();
        let message = match recvmsg::<()>(fd, &mut slices, Some(&mut control), flags) {
            Err(Errno::EINTR) => continue,
            result => result?,
        };
        let mut end = None;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = control {
                // SAFETY: the kernel has just created the descriptors, and nothing else owns them.
                let mut fds = fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
                end = fds.next();
            }
        }
        return Ok((message.bytes, end));
    }
}

fn as_borrowed(fd: &OwnedFd) -> BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(fd)
}

/// Locks a mutex, even if a thread has panicked while it held the mutex. Therefore the data must be
/// consistent at every point at which a thread with the lock can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The channel to the parent, in a child.
static PARENT: Mutex<Option<Parent>> = Mutex::new(None);

/// The channels to the children, in a parent.
static SERVED: Mutex<Vec<Arc<Served>>> = Mutex::new(Vec::new());

/// Length of an answer in bytes: its kind, and the token of the connection.
const ANSWER_BYTES: usize = 9;

const LEFT: u8 = 0;
const CARRIED: u8 = 1;
const HOME: u8 = 2;

/// Time for which a child waits for an answer, in milliseconds. It is longer than the sum of two
/// times: the time until it is decided whether a connection moves, and the time of a return to TCP.
const ANSWER_MS: u16 = 5000;

/// Number of times that the parent checks whether the move of a connection is decided, and the
/// interval between two checks. Their product covers the longest time that a decision takes.
const DECISION_LOOKS: u32 = 1000;
const DECISION_LOOK: Duration = Duration::from_millis(1);
