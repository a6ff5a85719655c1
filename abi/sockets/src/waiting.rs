//! Calls that wait for descriptors.

use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use crate::closing::refused;
use crate::next::interpose;
use crate::table::is_known;

interpose! {
    poll(list: *mut pollfd, count: nfds_t, limit: c_int) -> c_int,
        else -1, if is_known(-1), by refused(-1);
    __poll_chk(list: *mut pollfd, count: nfds_t, limit: c_int, room: size_t) -> c_int,
        else -1, if is_known(-1), by refused(-1);
    ppoll(list: *mut pollfd, count: nfds_t, limit: *const timespec, mask: *const sigset_t) -> c_int,
        else -1, if is_known(-1), by refused(-1);
    __ppoll_chk(list: *mut pollfd, count: nfds_t, limit: *const timespec, mask: *const sigset_t,
        room: size_t) -> c_int,
        else -1, if is_known(-1), by refused(-1);
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set,
        limit: *mut timeval) -> c_int,
        else -1, if is_known(-1), by refused(-1);
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set,
        limit: *const timespec, mask: *const sigset_t) -> c_int,
        else -1, if is_known(-1), by refused(-1);
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int,
        else -1, if is_known(-1), by refused(-1);
    epoll_wait(epoll: c_int, events: *mut epoll_event, room: c_int, limit: c_int) -> c_int,
        else -1, if is_known(-1), by refused(-1);
    epoll_pwait(epoll: c_int, events: *mut epoll_event, room: c_int, limit: c_int,
        mask: *const sigset_t) -> c_int,
        else -1, if is_known(-1), by refused(-1);
    epoll_pwait2(epoll: c_int, events: *mut epoll_event, room: c_int, limit: *const timespec,
        mask: *const sigset_t) -> c_int,
        else -1, if is_known(-1), by refused(-1);
}
