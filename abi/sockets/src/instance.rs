//! The [`Sockets`] instance of this process. It starts when the first connection begins to move to
//! the edge.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::{c_int, c_void};
use nix::sys::socket::{getsockopt, sockopt};
use sockets::counters::note_left;
use sockets::log::{LogLevel, note};
use sockets::{Choice, Connection, DescriptorTable, Moving, Reason, Role, Sockets};

use crate::answering::borrowed;
use crate::socket::Socket;
use crate::this_process::{self, is_home};
use crate::trial::OnTrial;
use crate::{begun, chosen, connection_table, inherited, reservation, services, table};

/// Prepares this module. Called once, before `main`.
pub(crate) fn begin() {
    chosen::begin();
    this_process::begin();
    // SAFETY: the handler is a function without captured state.
    unsafe { libc::atexit(at_end) };
}

/// Decides whether a new connection may move to the edge or stays on TCP.
pub(crate) fn choice(role: Role, local: SocketAddr, peer: SocketAddr) -> Choice {
    let Some(settings) = chosen::settings() else { return Choice::Tcp(Reason::NoEndpoint) };
    match settings.choice(role, local, peer) {
        Choice::Edge => services::silence(role, local, peer).map_or(Choice::Edge, Choice::Tcp),
        choice @ Choice::Tcp(_) => choice,
    }
}

/// Returns true if a new connection moves to the edge already at its first use, because earlier
/// connections to the service have lasted long enough.
pub(crate) fn is_early(role: Role, local: SocketAddr, peer: SocketAddr) -> bool {
    chosen::moving() == Moving::WhenItPays && services::is_known_to_pay(role, local, peer)
}

/// Returns the trial of a new connection: the time on TCP before it moves.
pub(crate) fn trial(is_early: bool) -> OnTrial {
    match chosen::moving() {
        Moving::WhenItPays if !is_early => OnTrial::begin(),
        _ => OnTrial::none(),
    }
}

/// Returns the instance of this process. Returns `None` before the instance has started.
#[inline]
pub(crate) fn started() -> Option<&'static Sockets> {
    // SAFETY: the pointer is null, or `start` has leaked the instance. Only a forked child frees
    // it, and the child has one thread at that time.
    unsafe { STARTED.load(Ordering::Acquire).as_ref() }
}

/// Makes a connection begin to move to the edge. Returns `None` if the connection stays on TCP.
pub(crate) fn connection(socket: &Socket, fd: c_int) -> Option<Arc<Connection>> {
    let stays = match services::silence(socket.role, socket.local, socket.peer) {
        None if !socket.reservation.make(fd, table::count_private) => Some(Reason::Descriptors),
        stays => stays,
    };
    if let Some(reason) = stays {
        connection_table::lock().forget(socket.token);
        note_left(socket.role, socket.local, socket.peer, reason);
        return None;
    }
    let Some(sockets) = started().or_else(start) else {
        connection_table::lock().forget(socket.token);
        return None;
    };
    services::note_asked(socket);
    socket.is_begun.count();
    let (token, local, peer) = (socket.token, socket.local, socket.peer);
    // Read the options before the move. After the move, the number may no longer refer to the TCP
    // socket.
    let is_prompt = getsockopt(&borrowed(fd), sockopt::TcpNoDelay) == Ok(true);
    let is_corked = is_corked(fd);
    let moving = match socket.role {
        Role::Connecting => sockets.connected(token, local, peer),
        Role::Accepting => sockets.accepted(token, local, peer, socket.trial.has_bytes()),
    };
    // The program may have put the socket into `epoll` sets before, so the descriptor must report
    // readiness from the start.
    let watching = connection_table::lock().watching(socket.token);
    match watching {
        Some(true) => moving.watch_edges(),
        Some(false) => moving.watch(),
        None => {}
    }
    // Apply options that the program has set earlier, on the socket or on its listener.
    if is_prompt {
        moving.set_no_delay(true);
    }
    if is_corked {
        moving.set_cork(true);
    }
    Some(moving)
}

/// Returns true if the program has set `TCP_CORK`.
fn is_corked(fd: c_int) -> bool {
    let (mut on, mut length) = (0, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: `value` has room for `length` bytes.
    let result = unsafe {
        let value = (&raw mut on).cast::<c_void>();
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, value, &raw mut length)
    };
    result == 0 && on != 0
}

/// Sends the bytes that the program has written, because the process is about to end or to execute
/// another program.
pub(crate) fn finish() {
    if !is_home() {
        return;
    }
    note_short();
    if let Some(sockets) = started() {
        inherited::hand_over();
        sockets.finish(FINISH_LIMIT);
    }
    sockets::counters::finish();
}

/// Writes the final values of the counters. Runs after all exit handlers of the program.
extern "C" fn at_end() {
    if is_home() {
        note_short();
        sockets::counters::finish();
    }
}

/// Counts the connections that are still on TCP at the end of the process, because they have not
/// lasted long enough to move.
fn note_short() {
    // Only try to take the lock, because a thread that no longer exists may hold it.
    let Some(connection_table) = connection_table::try_lock() else { return };
    let all: Vec<_> = connection_table.all().map(|(socket, _)| Arc::clone(socket)).collect();
    drop(connection_table);
    for socket in all {
        socket.stay(Reason::Short);
    }
}

/// Takes the lock for starting an instance, so that no other thread starts an instance during a
/// fork.
pub(crate) fn hold() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops the parent's instance. Called in a forked child.
pub(crate) fn forget_in_child() {
    this_process::begin();
    HAS_FAILED.store(false, Ordering::Relaxed);
    reservation::forget_in_child();
    begun::forget_in_child();
    let parents = STARTED.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if !parents.is_null() {
        // SAFETY: `start` has leaked the instance. Nothing else uses it, because this process has
        // only one thread.
        let parents = unsafe { Box::from_raw(parents) };
        parents.forget_in_child();
    }
}

#[cold]
fn start() -> Option<&'static Sockets> {
    let _alone = hold();
    if started().is_some() || HAS_FAILED.load(Ordering::Relaxed) {
        return started();
    }
    let settings = Arc::clone(chosen::settings()?);
    match Sockets::start(settings, Arc::new(ProgramDescriptors)) {
        Ok(sockets) => {
            STARTED.store(Box::into_raw(Box::new(sockets)), Ordering::Release);
            // Register this handler after the runtime's handler, because exit handlers run in
            // reverse order and this one must run first.
            // SAFETY: the handler is a function without captured state.
            unsafe { libc::atexit(at_exit) };
            started()
        }
        Err(error) => {
            HAS_FAILED.store(true, Ordering::Relaxed);
            note(LogLevel::Error, format_args!("{error}; all connections stay on TCP"));
            None
        }
    }
}

extern "C" fn at_exit() {
    finish();
}

/// The implementation of [`DescriptorTable`] for the program's descriptors.
struct ProgramDescriptors;

impl DescriptorTable for ProgramDescriptors {
    fn duplicate(&self, token: u64) -> Option<OwnedFd> {
        connection_table::lock().duplicate(token)
    }

    fn put(&self, token: u64, end: OwnedFd) -> bool {
        let (socket, is_there) = {
            let mut connection_table = connection_table::lock();
            (connection_table.socket(token), connection_table.put(token, &end))
        };
        if let Some(socket) = socket {
            services::note_moved(&socket);
        }
        is_there
    }

    fn is_shared(&self, token: u64) -> bool {
        connection_table::lock().is_shared(token)
    }

    fn decided(&self, token: u64) {
        let Some(socket) = connection_table::lock().socket(token) else { return };
        services::note_ended(&socket);
        match socket.again() {
            Some(again) => connection_table::lock().renew(token, &again),
            None => connection_table::lock().forget(token),
        }
    }

    fn closed(&self, token: u64) {
        connection_table::lock().forget(token);
    }
}

static STARTED: AtomicPtr<Sockets> = AtomicPtr::new(std::ptr::null_mut());
static STARTING: Mutex<()> = Mutex::new(());
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Maximum time for which a program that ends waits until peers have acknowledged its bytes.
const FINISH_LIMIT: Duration = Duration::from_secs(2);
