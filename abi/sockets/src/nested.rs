//! Handles `epoll` sets whose descriptors a program polls: in another set, by `poll`, or by
//! `select`.

use std::sync::Arc;

use libc::{c_int, c_short, pollfd};
use sockets::Connection;

use crate::connection_table::{self, Registered};

/// If a set is ready only because of switch markers, returns the connections of these markers. A
/// switch marker is data that this library sends in a TCP stream, and that the program must not
/// see. Returns an empty list if the set may be ready for another reason, so that the program must
/// check the set.
pub(crate) fn only_markers(set: c_int) -> Vec<Arc<Connection>> {
    let members = connection_table::lock().members(set, |_| true);
    let mut hidden = Vec::new();
    let mut of_markers = Vec::new();
    for known in members.iter().filter(|known| can_be_hidden(known)) {
        let connections = known.hidden();
        if !connections.is_empty() {
            hidden.push(known);
            of_markers.extend(connections);
        }
    }
    if hidden.is_empty() {
        return of_markers;
    }
    // The set may have other members that are ready, so poll the set without the hidden events. Use
    // `poll` and not `epoll_wait`, which would consume edge-triggered events of the program.
    let is_ready =
        connection_table::lock().without_events(&hidden, OF_BYTES as u32, || is_ready(set));
    if is_ready { Vec::new() } else { of_markers }
}

/// Returns true if the kernel checks this registration for bytes, and the registration can be
/// changed for a moment. Returns false for a one-shot registration: if it has already reported its
/// event, a change would make the kernel report the event twice.
const fn can_be_hidden(known: &Registered) -> bool {
    known.events & OF_BYTES as u32 != 0 && known.events & libc::EPOLLONESHOT as u32 == 0
}

fn is_ready(set: c_int) -> bool {
    let mut entry = pollfd { fd: set, events: libc::POLLIN, revents: 0 };
    // SAFETY: there is one entry, valid during the call.
    unsafe { libc::poll(&raw mut entry, 1, 0) > 0 }
}

/// Events that the kernel reports for a switch marker, and for the end of the TCP stream if it
/// follows the marker. `epoll` uses the same bits.
pub(crate) const OF_BYTES: c_short = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP;
