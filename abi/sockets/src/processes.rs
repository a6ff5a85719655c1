//! Handles forks, `exec` calls, and the end of the process.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, MutexGuard};

use libc::{FILE, aiocb, c_char, c_int, c_void, pid_t};
use sockets::counters::note_left;
use sockets::{Reason, Role, Route};

use crate::connection_table::{self, ConnectionTable};
use crate::handling::Inside;
use crate::inherited::{self, Asking, Channel};
use crate::next::{call_next, interpose};
use crate::sharing::Counters;
use crate::socket::{Owner, Socket};
use crate::{executable, instance, opening, passing, table};

interpose! {
    quick_exit(status: c_int) -> (), else (), if has_to_finish(), by finished();
    _exit(status: c_int) -> (), else (), if has_to_finish(), by finished();
    _Exit(status: c_int) -> (), else (), if has_to_finish(), by finished();
    execve(path: *const c_char, words: *const *const c_char, set: *const *const c_char) -> c_int,
        else -1, if connection_table::has_any(), by replaced(executable::begins(path));
    execv(path: *const c_char, words: *const *const c_char) -> c_int,
        else -1, if connection_table::has_any(), by replaced(executable::begins(path));
    execvp(file: *const c_char, words: *const *const c_char) -> c_int,
        else -1, if connection_table::has_any(), by replaced(executable::begins_on_path(file));
    execvpe(file: *const c_char, words: *const *const c_char, set: *const *const c_char) -> c_int,
        else -1, if connection_table::has_any(), by replaced(executable::begins_on_path(file));
    fexecve(fd: c_int, words: *const *const c_char, set: *const *const c_char) -> c_int,
        else -1, if connection_table::has_any(), by replaced(executable::begins_open(fd));
    execveat(folder: c_int, path: *const c_char, words: *const *const c_char,
        set: *const *const c_char, flags: c_int) -> c_int,
        else -1, if connection_table::has_any(), by replaced(executable::begins_at(folder, path));
    daemon(stays: c_int, keeps: c_int) -> c_int,
        else -1, if connection_table::has_any(), by daemonizing();
    system(command: *const c_char) -> c_int,
        else -1, if connection_table::has_any() && !command.is_null(), by spawning();
    wordexp(words: *const c_char, into: *mut c_void, flags: c_int) -> c_int,
        else WRDE_NOSPACE, if connection_table::has_any(), by spawning();
    posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void,
        attributes: *const c_void, words: *const *mut c_char, set: *const *mut c_char) -> c_int,
        else libc::ENOSYS, if connection_table::has_any(), by spawning();
    posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void,
        attributes: *const c_void, words: *const *mut c_char, set: *const *mut c_char) -> c_int,
        else libc::ENOSYS, if connection_table::has_any(), by spawning();
    posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, to: c_int) -> c_int,
        else libc::ENOSYS, if table::is_known(fd), by given(fd);
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE,
        else std::ptr::null_mut(), if table::is_known(fd), by given(fd);
    aio_read(control: *mut aiocb) -> c_int, else -1, if connection_table::has_any(), by queued(control);
    aio_read64(control: *mut aiocb) -> c_int, else -1, if connection_table::has_any(), by queued(control);
    aio_write(control: *mut aiocb) -> c_int, else -1, if connection_table::has_any(), by queued(control);
    aio_write64(control: *mut aiocb) -> c_int, else -1, if connection_table::has_any(), by queued(control);
    lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut c_void) -> c_int,
        else -1, if connection_table::has_any(), by all_queued(list, count);
    lio_listio64(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut c_void) -> c_int,
        else -1, if connection_table::has_any(), by all_queued(list, count);
}

#[unsafe(export_name = "ethernot_sockets_popen")]
unsafe extern "C" fn popen_of_program(command: *const c_char, mode: *const c_char) -> *mut FILE {
    if connection_table::has_any() {
        let _inside = Inside::enter();
        leave_open_ones();
    }
    let stream = call_next!(
        popen(command: *const c_char, mode: *const c_char) -> *mut FILE, else std::ptr::null_mut()
    );
    if !stream.is_null() {
        // SAFETY: the C library has just created the stream.
        opening::made(unsafe { libc::fileno(stream) });
    }
    stream
}

#[unsafe(export_name = "ethernot_inside_popen")]
unsafe extern "C" fn popen_of_ours(command: *const c_char, mode: *const c_char) -> *mut FILE {
    call_next!(
        popen(command: *const c_char, mode: *const c_char) -> *mut FILE, else std::ptr::null_mut()
    )
}

/// Returns true if the library must do something with connections or counters when the process
/// ends.
fn has_to_finish() -> bool {
    connection_table::has_any() || sockets::counters::is_kept()
}

/// Installs the fork handlers.
pub(crate) fn begin() {
    // If this fails because there is no memory, a forked child does not run the handlers, and the
    // library detects the child by its process ID.
    // SAFETY: the handlers are functions without captured state.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

/// # Safety
/// The arguments must satisfy the contract of the C function `_exit`.
unsafe fn finished<T>() -> Option<T> {
    instance::finish();
    connection_table::lock().all().for_each(|(socket, _)| socket.end_share());
    None
}

/// Prepares the connections for an `exec` call. `begins` is true if the call will succeed. If the
/// call will fail, changes nothing.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `execve`.
unsafe fn replaced<T>(begins: bool) -> Option<T> {
    if begins {
        replace();
    }
    None
}

/// Prepares the connections for another program in this process. That program will use the open
/// descriptors through the kernel.
pub(crate) fn replace() {
    let _inside = Inside::enter();
    leave_open_ones();
    instance::finish();
}

/// Prepares the connections for another process, which executes a program with copies of the open
/// descriptors.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `posix_spawn`.
unsafe fn spawning<T>() -> Option<T> {
    leave_open_ones();
    None
}

/// Prepares the connections for `daemon`: a child process continues with the open descriptors, and
/// the C library ends this process by a call of `_exit` that is not intercepted.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `daemon`.
unsafe fn daemonizing<T>() -> Option<T> {
    for (_, numbers) in all() {
        numbers.first().copied().inspect(|&fd| passing::leave_to_kernel(fd));
    }
    None
}

/// Leaves a connection to the kernel, because functions of the C library that are not intercepted
/// will use its descriptor number.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `fdopen`.
unsafe fn given<T>(fd: c_int) -> Option<T> {
    passing::leave_to_kernel(fd);
    None
}

/// Leaves a connection to the kernel, because threads of the C library will read from it and write
/// to it.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `aio_read`.
unsafe fn queued<T>(control: *const aiocb) -> Option<T> {
    // SAFETY: the caller passes null or a valid pointer.
    if let Some(control) = unsafe { control.as_ref() } {
        passing::leave_to_kernel(control.aio_fildes);
    }
    None
}

/// # Safety
/// The arguments must satisfy the contract of the C function `lio_listio`.
unsafe fn all_queued<T>(list: *const *mut aiocb, count: c_int) -> Option<T> {
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller passes `count` pointers, each null or valid.
        unsafe { queued::<T>(list.add(at).read()) };
    }
    None
}

/// Leaves to the kernel all connections that stay open across `exec`.
fn leave_open_ones() {
    let all: Vec<c_int> =
        connection_table::lock().all().flat_map(|(_, numbers)| numbers.iter().copied()).collect();
    for fd in all {
        // SAFETY: takes no pointers.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            passing::leave_to_kernel(fd);
        }
    }
}

/// The locks that the forking thread holds during the fork, and the channel between parent and
/// child.
struct Forking {
    asking: Asking,
    starting: MutexGuard<'static, ()>,
    connection_table: MutexGuard<'static, ConnectionTable>,
    channel: Option<Channel>,
    /// TCP sockets of moved connections, each with the token of its connection.
    tcp: Vec<(u64, OwnedFd)>,
    /// This must be the last field, because signal handlers run when it is dropped, and then the
    /// thread must hold no lock.
    inside: Inside,
}

thread_local! {
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

extern "C" fn before() {
    let inside = Inside::enter();
    let all: Vec<_> = all();
    let mut is_any_begun = false;
    let mut tcp = Vec::new();
    for (socket, numbers) in &all {
        match (socket.owner, socket.begun()) {
            // This process has inherited the connection. Fetch the connection from the parent now,
            // because the new child can ask only this process for it.
            (Owner::Inherited, _) => {
                numbers.first().inspect(|&&fd| inherited::fetch(socket, fd));
            }
            (Owner::Own, Some(connection)) => {
                // If it is not decided yet whether the connection moves, make it stay on TCP,
                // because neither parent nor child could finish the move while both have the
                // connection.
                let stays =
                    connection.route() == Route::Undecided && connection.stay(Reason::Forked);
                is_any_begun |= !stays;
                let moved = connection.tcp().and_then(|tcp| tcp.try_clone().ok());
                tcp.extend(moved.map(|moved| (socket.token, moved)));
            }
            // Make the connection stay on TCP. Parent and child may both use it, but only one
            // process can have the rendezvous socket, the UDP socket that the move needs.
            (Owner::Own, None) if socket.role == Role::Connecting => {
                connection_table::lock().forget(socket.token);
                note_left(socket.role, socket.local, socket.peer, Reason::Forked);
            }
            (Owner::Own | Owner::Other, _) => {}
        }
    }
    let channel = if is_any_begun { Channel::open() } else { None };
    let asking = inherited::hold();
    let starting = instance::hold();
    let mut connection_table = connection_table::lock();
    share_with_child(&mut connection_table);
    let forking = Forking { asking, starting, connection_table, channel, tcp, inside };
    FORKING.with(|place| place.replace(Some(forking)));
}

/// Counts the child among the processes that have unused connections, because either parent or
/// child may use such a connection. By the count, each process sees whether the other process still
/// has the connection.
fn share_with_child(connection_table: &mut ConnectionTable) {
    let all: Vec<_> = connection_table.all().map(|(socket, _)| Arc::clone(socket)).collect();
    let wanting: Vec<_> = all.iter().filter(|socket| socket.wants_share()).collect();
    if let Some(count) = NonZeroUsize::new(wanting.len()) {
        match Counters::new(count) {
            Ok(counters) => {
                for (index, socket) in wanting.into_iter().enumerate() {
                    socket.give_share(counters.share(index));
                }
            }
            // There is no memory for counters, so leave the connections to TCP.
            Err(_) => wanting.into_iter().for_each(|socket| connection_table.forget(socket.token)),
        }
    }
    for socket in all {
        socket.share_with_child();
    }
}

extern "C" fn in_parent() {
    let forking = FORKING.with(RefCell::take);
    let Some(Forking { asking, starting, connection_table, channel, tcp, inside: _inside }) =
        forking
    else {
        return;
    };
    drop((asking, starting, connection_table, tcp));
    if let Some(Channel { parent, child }) = channel {
        drop(child);
        let begun = all().into_iter().map(|(socket, _)| socket);
        inherited::serve(parent, begun.filter(|socket| !socket.is_unused()).collect());
    }
}

extern "C" fn in_child() {
    let forking = FORKING.with(RefCell::take);
    let Some(Forking { asking, starting, mut connection_table, channel, tcp, inside: _inside }) =
        forking
    else {
        return;
    };
    let all: Vec<_> = connection_table.all().map(|(socket, _)| Arc::clone(socket)).collect();
    let mut kept: Vec<c_int> = tcp.iter().map(|(_, tcp)| tcp.as_raw_fd()).collect();
    let mut tcp: BTreeMap<u64, OwnedFd> = tcp.into_iter().collect();
    for socket in &all {
        let of_child = socket.of_child(owner_in_child(socket));
        if let Some(tcp) = tcp.remove(&socket.token) {
            of_child.keep_tcp(tcp);
        }
        connection_table.replace(&of_child);
    }
    drop((connection_table, starting));
    instance::forget_in_child();
    sockets::counters::restart_in_child();
    // Leak the parent's objects, because dropping them requires threads that do not exist in the
    // child.
    std::mem::forget(all);
    let channel = channel.map(|channel| {
        std::mem::forget(channel.parent);
        channel.child
    });
    kept.extend(channel.as_ref().map(AsRawFd::as_raw_fd));
    table::close_private(&kept);
    inherited::begin_child(asking, channel);
}

fn owner_in_child(socket: &Socket) -> Owner {
    match (socket.owner, socket.begun()) {
        _ if socket.is_unused() => Owner::Own,
        (Owner::Own, Some(connection)) if connection.is_relayed() => Owner::Other,
        (Owner::Own | Owner::Inherited, _) => Owner::Inherited,
        (Owner::Other, _) => Owner::Other,
    }
}

/// Returns all connections with their descriptor numbers.
fn all() -> Vec<(Arc<Socket>, Vec<c_int>)> {
    let connection_table = connection_table::lock();
    connection_table.all().map(|(socket, numbers)| (Arc::clone(socket), numbers.to_vec())).collect()
}

/// The error of `wordexp` when there is no memory. This library also returns this error if the C
/// library lacks the function.
const WRDE_NOSPACE: c_int = 1;
