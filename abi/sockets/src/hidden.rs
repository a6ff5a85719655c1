//! Corrects the kernel's reports of readable descriptors. When a connection moves, each side sends
//! a switch marker over TCP as the last bytes. The kernel reports these bytes like bytes for the
//! program, but the program must not see them.

use std::sync::Arc;

use libc::{c_int, epoll_event, pollfd};
use sockets::{Connection, Hiding};

use crate::answering::borrowed;
use crate::connection_table::{self, Registered};
use crate::nested::{OF_BYTES, only_markers};
use crate::table::{self, Kind};

/// The corrected result of a poll by the kernel.
#[derive(Debug)]
pub(crate) struct Found {
    /// Number of ready descriptors or events that the kernel has reported, without wrong reports.
    /// -1 means an error.
    pub(crate) count: c_int,
    /// The connections that the kernel has reported as readable, although they have only a switch
    /// marker to read.
    pub(crate) hidden: Vec<Arc<Connection>>,
}

impl Found {
    /// Returns a result with the number that the kernel has reported, without correction.
    pub(crate) const fn uncorrected(count: c_int) -> Self {
        Self { count, hidden: Vec::new() }
    }

    /// Returns true if all reports of the kernel were wrong. In that case a further poll would
    /// return the same reports at once.
    pub(crate) fn is_all_hidden(&self) -> bool {
        self.count == 0 && !self.hidden.is_empty()
    }

    /// Corrects the result of `poll`, which the kernel has stored in `entries`.
    pub(crate) fn of_entries(count: c_int, entries: &mut [pollfd], hiding: Hiding) -> Self {
        let mut found = Self::uncorrected(count);
        if count <= 0 || !hiding.was_possible() {
            return found;
        }
        for entry in entries.iter_mut().filter(|entry| entry.revents & OF_BYTES != 0) {
            let connections = hidden(entry.fd);
            if !connections.is_empty() {
                entry.revents &= !OF_BYTES;
                found.count -= c_int::from(entry.revents == 0);
                found.hidden.extend(connections);
            }
        }
        found
    }

    /// Corrects the result of `select`. `clear` removes a number from the set of readable numbers,
    /// and returns true if the set contained it.
    pub(crate) fn of_numbers(
        count: c_int,
        numbers: impl Iterator<Item = c_int>,
        hiding: Hiding,
        mut clear: impl FnMut(c_int) -> bool,
    ) -> Self {
        let mut found = Self::uncorrected(count);
        if count <= 0 || !hiding.was_possible() {
            return found;
        }
        for fd in numbers {
            let connections = hidden(fd);
            if !connections.is_empty() && clear(fd) {
                found.count -= 1;
                found.hidden.extend(connections);
            }
        }
        found
    }

    /// Corrects the result of `epoll_wait` in `events`. After this call, the first `count` events
    /// are valid.
    pub(crate) fn of_events(
        count: c_int,
        epoll: c_int,
        events: &mut [epoll_event],
        hiding: Hiding,
    ) -> Self {
        if !hiding.was_possible() {
            return Self::uncorrected(count);
        }
        let about: Vec<u64> =
            events.iter().filter(|event| is_of_bytes(event)).map(|event| event.u64).collect();
        // Release the lock of the table before a function of a connection is called, because a
        // connection takes this lock while it holds its own lock.
        let known = connection_table::lock().members(epoll, |data| about.contains(&data));
        let mut hidden = Vec::new();
        let mut left = 0;
        for at in 0..events.len() {
            let mut event = events[at];
            let data = event.u64;
            let is_asked = is_of_bytes(&event);
            let of_event = known.iter().filter(|known| is_asked && known.data == data);
            if let Some(connections) = all_hidden(of_event.clone()) {
                event.events &= !(OF_BYTES as u32);
                let is_dropped = event.events & REPORTED == 0;
                // The library hides this event from the program. If the kernel reports events of
                // this registration only once, arm the registration again, so that the kernel
                // reports a later event.
                of_event.for_each(|known| connection_table::lock().arm_again(known, is_dropped));
                hidden.extend(connections);
                if is_dropped {
                    continue;
                }
            }
            events[left] = event;
            left += 1;
        }
        Self { count: c_int::try_from(left).unwrap_or(c_int::MAX), hidden }
    }
}

/// Returns the connections of a descriptor number, if the kernel wrongly reports the number as
/// readable. Returns an empty list otherwise.
fn hidden(fd: c_int) -> Vec<Arc<Connection>> {
    match table::kind(fd) {
        Kind::Socket => {
            let socket = table::socket(fd);
            let connection = socket.as_ref().and_then(|socket| socket.begun());
            connection
                .filter(|connection| is_nothing(fd, connection))
                .cloned()
                .into_iter()
                .collect()
        }
        Kind::Epoll => only_markers(fd),
        _ => Vec::new(),
    }
}

/// Returns the connections of these registrations, if the kernel wrongly reports all of them as
/// readable. Returns `None` if at least one report is right, or if there are no registrations.
pub(crate) fn all_hidden<'a>(
    known: impl Iterator<Item = &'a Registered>,
) -> Option<Vec<Arc<Connection>>> {
    let mut all = Vec::new();
    for known in known {
        let connections = known.hidden();
        if connections.is_empty() {
            return None;
        }
        all.extend(connections);
    }
    (!all.is_empty()).then_some(all)
}

fn is_nothing(fd: c_int, connection: &Connection) -> bool {
    fd >= 0 && connection.has_nothing_to_read(borrowed(fd))
}

const fn is_of_bytes(event: &epoll_event) -> bool {
    event.events & OF_BYTES as u32 != 0
}

impl Registered {
    /// Returns the connections of this registration, if the kernel wrongly reports it as readable.
    /// Returns an empty list otherwise.
    pub(crate) fn hidden(&self) -> Vec<Arc<Connection>> {
        match &self.connection {
            Some(connection) if is_nothing(self.fd, connection) => vec![Arc::clone(connection)],
            Some(_) => Vec::new(),
            None => only_markers(self.fd),
        }
    }

    /// Returns true if the library must arm the registration again, because the kernel reports the
    /// event only once. `is_dropped` is true if the program gets no event of the registration.
    pub(crate) const fn is_reported_once(&self, is_dropped: bool) -> bool {
        let is_edge = self.events & libc::EPOLLET as u32 != 0;
        let is_one_shot = self.events & libc::EPOLLONESHOT as u32 != 0;
        // If the program gets other events of a one-shot registration, the program arms the
        // registration again.
        if is_one_shot { is_dropped } else { is_edge }
    }
}

/// Mask of the events that the kernel reports, without the flags of a registration.
const REPORTED: u32 = 0xffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_without_connections_are_left_to_the_kernel() {
        let hiding = Hiding::begin();
        let mut entries = [pollfd { fd: -1, events: libc::POLLIN, revents: libc::POLLIN }];
        let found = Found::of_entries(1, &mut entries, hiding);
        assert_eq!((found.count, found.is_all_hidden()), (1, false));
        let mut events = [epoll_event { events: libc::EPOLLIN as u32, u64: 7 }];
        let found = Found::of_events(1, -1, &mut events, hiding);
        assert_eq!((found.count, found.hidden.len()), (1, 0));
        let found = Found::of_numbers(-1, [5].into_iter(), hiding, |_| true);
        assert_eq!(found.count, -1);
    }
}
