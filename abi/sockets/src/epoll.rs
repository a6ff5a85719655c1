//! Handles the `epoll` functions.

use std::time::Duration;

use libc::{c_int, epoll_event, pollfd, sigset_t, timespec};
use sockets::Hiding;

use crate::answering::{Answering, answering};
use crate::hidden::Found;
use crate::next::{call_next, fail, interpose};
use crate::polling::{masked, time_of};
use crate::table::{self, Kind, is_known};
use crate::waiting::{of_milliseconds, of_time, wait};
use crate::{begun, connection_table, this_process};

interpose! {
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int,
        else -1, if is_known(fd) || table::kind(epoll) == Kind::Private,
        by changed(epoll, operation, fd, event);
    epoll_wait(epoll: c_int, events: *mut epoll_event, room: c_int, limit: c_int) -> c_int,
        else -1, if is_known(epoll), by waited(epoll, events, room, of_milliseconds(limit));
    epoll_pwait(epoll: c_int, events: *mut epoll_event, room: c_int, limit: c_int,
        mask: *const sigset_t) -> c_int,
        else -1, if is_known(epoll),
        by waited_masked(epoll, events, room, of_milliseconds(limit), mask);
    epoll_pwait2(epoll: c_int, events: *mut epoll_event, room: c_int, limit: *const timespec,
        mask: *const sigset_t) -> c_int,
        else -1, if is_known(epoll), by waited_precisely(epoll, events, room, limit, mask);
}

/// # Safety
/// The arguments must satisfy the contract of the C function `epoll_ctl`.
unsafe fn changed(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> Option<c_int> {
    if table::kind(epoll) == Kind::Private {
        return Some(fail(libc::EBADF, -1));
    }
    if matches!(table::kind(fd), Kind::Unconnected | Kind::Epoll | Kind::OtherEpoll) {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        return unsafe { changed_before(epoll, operation, fd, event) };
    }
    let connection = match answering(fd) {
        Answering::Kernel => return None,
        Answering::NoDescriptor => return Some(fail(libc::EBADF, -1)),
        Answering::Trial(_counted) => {
            // While `_counted` exists, the connection does not begin to move, so the move comes
            // after this registration and takes the registration into account.
            // SAFETY: the caller passes the arguments of `epoll_ctl`.
            return unsafe { changed_before(epoll, operation, fd, event) };
        }
        Answering::Connection(connection) => connection,
    };
    if !this_process::is_home() {
        return None;
    }
    // SAFETY: the caller passes null or a valid pointer, which need not be aligned.
    let wanted = if event.is_null() { None } else { Some(unsafe { event.read_unaligned() }) };
    if let Some(wanted) = wanted {
        if wanted.events & libc::EPOLLET as u32 == 0 {
            connection.watch();
        } else {
            connection.watch_edges();
        }
    }
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    Some(unsafe { noted(epoll, operation, fd, event, wanted) })
}

/// Changes the registration of a socket that may be connected later, or of a set that may later
/// contain a connection.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `epoll_ctl`.
unsafe fn changed_before(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> Option<c_int> {
    if !this_process::is_home() {
        return None;
    }
    // SAFETY: the caller passes null or a valid pointer, which need not be aligned.
    let wanted = if event.is_null() { None } else { Some(unsafe { event.read_unaligned() }) };
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    Some(unsafe { noted(epoll, operation, fd, event, wanted) })
}

/// Lets the kernel change a set, and records the change.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `epoll_ctl`.
unsafe fn noted(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
    wanted: Option<epoll_event>,
) -> c_int {
    let mut connection_table = connection_table::lock();
    let result = call_next!(
        epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int,
        else -1
    );
    match (result, operation, wanted) {
        (0, libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(wanted)) => {
            connection_table.register(epoll, fd, wanted);
        }
        (0, libc::EPOLL_CTL_DEL, _) => connection_table.unregister(epoll, fd),
        _ => {}
    }
    result
}

/// # Safety
/// The arguments must satisfy the contract of the C function `epoll_wait`.
unsafe fn waited(
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    limit: Option<Duration>,
) -> Option<c_int> {
    match table::kind(epoll) {
        // The kernel can handle the wait, because no connection has begun to move. If a connection
        // begins to move later, during the wait, its registration moves to the new descriptor, so
        // that the waiting thread gets all events.
        Kind::Epoll if !begun::is_any() => return None,
        Kind::Epoll => {}
        Kind::Private => return Some(fail(libc::EBADF, -1)),
        Kind::Plain | Kind::Socket | Kind::Unconnected | Kind::OtherEpoll => return None,
    }
    let look = || {
        let hiding = Hiding::begin();
        let limit: c_int = 0;
        let found = call_next!(
            epoll_wait(epoll: c_int, events: *mut epoll_event, room: c_int, limit: c_int) -> c_int,
            else -1
        );
        // SAFETY: if `found` is positive, the kernel has written that many events.
        unsafe { corrected(found, epoll, events, hiding) }
    };
    let mut others = [pollfd { fd: epoll, events: libc::POLLIN, revents: 0 }];
    // Pass an empty list of connections to wait for. A thread that sleeps on the set gets all
    // events, because the registration of a connection moves together with the connection.
    Some(wait(limit, &mut others, Vec::new, look))
}

/// # Safety
/// The arguments must satisfy the contract of the C function `epoll_pwait`.
unsafe fn waited_masked(
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> Option<c_int> {
    if mask.is_null() || table::kind(epoll) != Kind::Epoll || !begun::is_any() {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        return unsafe { waited(epoll, events, room, limit) };
    }
    Some(masked(limit, mask, |slice| {
        let hiding = Hiding::begin();
        let limit = c_int::try_from(slice.as_millis()).unwrap_or(c_int::MAX);
        let found = call_next!(
            epoll_pwait(epoll: c_int, events: *mut epoll_event, room: c_int, limit: c_int,
                mask: *const sigset_t) -> c_int,
            else -1
        );
        // SAFETY: if `found` is positive, the kernel has written that many events.
        unsafe { corrected(found, epoll, events, hiding) }
    }))
}

/// # Safety
/// The arguments must satisfy the contract of the C function `epoll_pwait2`.
unsafe fn waited_precisely(
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    limit: *const timespec,
    mask: *const sigset_t,
) -> Option<c_int> {
    // SAFETY: the caller passes null or a valid pointer.
    let limit = match unsafe { limit.as_ref() }.map(|time| of_time(time.tv_sec, time.tv_nsec)) {
        None => None,
        Some(Ok(limit)) => Some(limit),
        Some(Err(error)) => return Some(fail(error as c_int, -1)),
    };
    if mask.is_null() || table::kind(epoll) != Kind::Epoll || !begun::is_any() {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        return unsafe { waited(epoll, events, room, limit) };
    }
    Some(masked(limit, mask, |slice| {
        let hiding = Hiding::begin();
        let slice = time_of(slice);
        let limit = &raw const slice;
        let found = call_next!(
            epoll_pwait2(epoll: c_int, events: *mut epoll_event, room: c_int,
                limit: *const timespec, mask: *const sigset_t) -> c_int,
            else -1
        );
        // SAFETY: if `found` is positive, the kernel has written that many events.
        unsafe { corrected(found, epoll, events, hiding) }
    }))
}

/// Removes the events that the kernel reports only because of a switch marker: bytes that this
/// library sends in the TCP stream, and that the program must not see.
///
/// # Safety
/// If `found` is greater than 0, `events` must point to that many events.
unsafe fn corrected(found: c_int, epoll: c_int, events: *mut epoll_event, hiding: Hiding) -> Found {
    let Ok(count @ 1..) = usize::try_from(found) else { return Found::uncorrected(found) };
    // SAFETY: the caller guarantees that `events` points to `count` events. The type in Rust is
    // packed on the same architectures as the type in C, so the events have the alignment of the
    // type.
    let list = unsafe { std::slice::from_raw_parts_mut(events, count) };
    Found::of_events(found, epoll, list, hiding)
}
