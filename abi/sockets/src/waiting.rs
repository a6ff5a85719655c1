//! Calls that wait for several descriptors. The thread sleeps on links and descriptors at the same
//! time, so that bytes from the edge wake it.
//!
//! The kernel knows the readiness of each descriptor, even for connections that have moved to the
//! edge. So the result of each wait is the result of a poll by the kernel. One correction is
//! needed, because the kernel counts [switch markers](crate::hidden) as bytes. All other code here
//! makes sure that the poll happens in time.

#![expect(clippy::disallowed_methods, reason = "programs say how long they wait")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{c_int, c_short, pollfd};
use nix::errno::Errno;
use sockets::handlers::before_sleep;
use sockets::{Connection, Route, Sockets};

use crate::answering::{Answering, answering};
use crate::counted::{Counted, Counting};
use crate::hidden::Found;
use crate::next::fail;
use crate::{begun, instance, table};

/// A connection that a call waits for.
#[derive(Debug)]
pub(crate) struct Awaited {
    /// The connection object; `None` if the connection is on trial, that is, has not begun to move.
    connection: Option<Arc<Connection>>,
    /// As long as this value exists, a connection on trial does not begin to move.
    _on_trial: Option<Counted>,
    events: c_short,
    was_undecided: bool,
}

impl Awaited {
    /// Returns the connection of a number. Returns `None` if the kernel handles all calls on the
    /// number. After this call, the kernel reports the readiness of the connection.
    pub(crate) fn of(fd: c_int, events: c_short) -> Option<Self> {
        if table::kind(fd) != table::Kind::Socket {
            return None;
        }
        match answering(fd) {
            Answering::Connection(connection) => {
                let was_undecided = connection.route() == Route::Undecided;
                connection.watch();
                Some(Self { connection: Some(connection), _on_trial: None, events, was_undecided })
            }
            Answering::Trial(counted) => Some(Self {
                connection: None,
                _on_trial: Some(counted),
                events,
                was_undecided: false,
            }),
            Answering::Kernel | Answering::NoDescriptor => None,
        }
    }

    /// Returns true if the connection may be ready, so that the thread should poll again.
    fn is_ready(&self) -> bool {
        let Some(connection) = &self.connection else { return false };
        if self.was_undecided {
            return connection.route() != Route::Undecided;
        }
        let state = connection.readiness();
        (state.readable && self.events & libc::POLLIN != 0)
            || (state.writable && self.events & libc::POLLOUT != 0)
            || (state.peer_ended && self.events & libc::POLLRDHUP != 0)
            || state.hung_up
            || state.error
    }
}

/// Returns the connections on trial among the numbers that a call waits for. While the result
/// exists, these connections do not begin to move. Returns `None` if the kernel can do the whole
/// wait after this library's function has returned.
pub(crate) fn beside_kernel(numbers: impl Iterator<Item = c_int>) -> Option<Counting> {
    let (mut counting, mut is_any_moving) = (Counting::NOTHING, false);
    for fd in numbers {
        match table::kind(fd) {
            table::Kind::Socket => match answering(fd) {
                Answering::Trial(counted) => counting.add(counted),
                Answering::Connection(_) => is_any_moving = true,
                Answering::Kernel | Answering::NoDescriptor => {}
            },
            table::Kind::Epoll => is_any_moving |= begun::is_any(),
            _ => {}
        }
    }
    if !is_any_moving {
        counting.pend();
        return None;
    }
    Some(counting)
}

/// Waits until `look` returns a count that is not 0, or until `limit` has passed. `None` means no
/// limit. Returns the count, or -1 on an error. Calls `awaited` before each sleep, because more
/// connections may have begun to move.
pub(crate) fn wait(
    limit: Option<Duration>,
    others: &mut [pollfd],
    mut awaited: impl FnMut() -> Vec<Awaited>,
    mut look: impl FnMut() -> Found,
) -> c_int {
    let mut connections = awaited();
    let Some(sockets) = instance::started().filter(|sockets| sockets.is_of_this_process()) else {
        return without(limit, others, look);
    };
    sockets.drive();
    let mut found = look();
    if found.count != 0 || limit == Some(Duration::ZERO) {
        return found.count;
    }
    // A time beyond the range of the clock counts as no limit.
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut looks_in_vain = 0;
    loop {
        let rest = end.map(|end| end.saturating_duration_since(Instant::now()));
        let slept = if found.is_all_hidden() {
            sleep_beside_markers(sockets, rest, &found.hidden)
        } else {
            sleep(sockets, rest, others, &connections, looks_in_vain)
        };
        match slept {
            Ok(()) => {}
            Err(Errno::EINTR) => return fail(libc::EINTR, -1),
            Err(_) => return without(rest, others, look),
        }
        found = look();
        if found.count != 0 || end.is_some_and(|end| end <= Instant::now()) {
            return found.count;
        }
        looks_in_vain += 1;
        connections = awaited();
    }
}

/// Sleeps once, until a connection or descriptor may be ready, or `rest` has passed.
fn sleep(
    sockets: &Sockets,
    rest: Option<Duration>,
    others: &mut [pollfd],
    connections: &[Awaited],
    looks_in_vain: u32,
) -> Result<(), Errno> {
    let is_any_undecided = connections.iter().any(|awaited| awaited.was_undecided);
    // Sleep in time slices, because a thread that sleeps on the TCP socket does not notice when
    // another descriptor replaces that socket.
    let rest = if is_any_undecided {
        Some(rest.map_or(UNDECIDED_SLICE, |rest| rest.min(UNDECIDED_SLICE)))
    } else {
        rest
    };
    // If connections seemed ready several times but the kernel reported nothing, sleep although
    // they seem ready.
    let asks = looks_in_vain < LOOKS_IN_VAIN_MAX;
    let ready = || asks && connections.iter().any(Awaited::is_ready);
    sockets.wait_beside(others, rest, ready).map(drop)
}

/// Sleeps once without the descriptors, because the kernel counts unread switch markers as bytes,
/// so that a poll of these descriptors would return at once. The sleep ends early when it is
/// decided whether one of the connections moves.
fn sleep_beside_markers(
    sockets: &Sockets,
    rest: Option<Duration>,
    hidden: &[Arc<Connection>],
) -> Result<(), Errno> {
    let limit = rest.map_or(MARKER_SLICE, |rest| rest.min(MARKER_SLICE));
    let ready = || hidden.iter().any(|connection| connection.route() != Route::Undecided);
    sockets.wait_beside(&mut [], Some(limit), ready).map(drop)
}

/// Waits for `others` only, in the kernel. Used if this process has no instance of the library, or
/// if waiting with the instance fails.
fn without(
    limit: Option<Duration>,
    others: &mut [pollfd],
    mut look: impl FnMut() -> Found,
) -> c_int {
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let Some(sleeping) = before_sleep() else { return fail(libc::EINTR, -1) };
    let mask = sleeping.blocked().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the list, the time and the mask are valid during the call.
    let found =
        unsafe { libc::ppoll(others.as_mut_ptr(), others.len() as libc::nfds_t, limit, mask) };
    if found < 0 { found } else { look().count }
}

/// Converts a time in milliseconds. Returns `None` for a negative time, which means no limit.
pub(crate) fn of_milliseconds(limit: c_int) -> Option<Duration> {
    u64::try_from(limit).ok().map(Duration::from_millis)
}

/// Converts a time in the form of C. Returns an error if it is invalid.
pub(crate) fn of_time(seconds: i64, nanoseconds: i64) -> Result<Duration, Errno> {
    let seconds = u64::try_from(seconds).map_err(|_| Errno::EINVAL)?;
    let nanoseconds = u32::try_from(nanoseconds).map_err(|_| Errno::EINVAL)?;
    if nanoseconds < 1_000_000_000 {
        Ok(Duration::new(seconds, nanoseconds))
    } else {
        Err(Errno::EINVAL)
    }
}

/// Longest time for which a thread sleeps in one step while it is undecided whether a connection
/// moves.
pub(crate) const UNDECIDED_SLICE: Duration = Duration::from_millis(20);

/// Longest time for which a thread sleeps in one step after a switch marker has arrived and before
/// the connection has moved. Usually the move follows sooner.
pub(crate) const MARKER_SLICE: Duration = Duration::from_millis(1);

/// Number of times that a thread polls again at once because a connection seems ready although the
/// kernel reports nothing. After that, the thread sleeps before the next poll.
const LOOKS_IN_VAIN_MAX: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_c_times_are_refused() {
        assert_eq!(of_time(1, 999_999_999), Ok(Duration::new(1, 999_999_999)));
        for (seconds, nanoseconds) in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
            assert_eq!(of_time(seconds, nanoseconds), Err(Errno::EINVAL));
        }
        assert_eq!(of_milliseconds(-1), None);
        assert_eq!(of_milliseconds(0), Some(Duration::ZERO));
    }
}
