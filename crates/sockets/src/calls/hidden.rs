//! Hides bytes in TCP that the program must not see: the switch marker of a connection that moves.
//! The kernel counts the marker as bytes for the program, so the library corrects what the kernel
//! reports about the descriptor.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::sys::socket::{MsgFlags, recv};

use crate::calls::connection::{Connection, Route};
use crate::calls::tcp::{Reading, is_ended, make_room_behind};
use crate::lock::lock;
use crate::transport::switch_marker::{Scan, scan};
use crate::wire::SwitchMarker;

impl Connection {
    /// Returns true if a read of `fd`, the program's descriptor, would find no bytes although the
    /// kernel reports `fd` as readable or at its end. The result is also correct if the connection
    /// moved after the kernel's report.
    pub fn has_nothing_to_read(&self, fd: BorrowedFd<'_>) -> bool {
        match self.route() {
            Route::Undecided if self.has_only_marker(fd) => true,
            // The connection may have moved after `route` returned.
            Route::Undecided => self.route() == Route::Moved && self.has_nothing_to_read(fd),
            Route::Moved if self.is_relayed() => false,
            Route::Moved => {
                let state = self.readiness();
                !state.readable && !state.peer_ended
            }
            Route::Left(_) => false,
        }
    }

    /// Returns true if TCP has bytes, and all of them are the switch marker or may be its
    /// beginning.
    pub(crate) fn has_only_marker(&self, fd: BorrowedFd<'_>) -> bool {
        let mut bytes = [0; SwitchMarker::BYTES];
        let Some((count, scan)) = self.scanned(fd, &mut bytes) else { return false };
        let is_only_marker = count > 0 && scan.shown == 0;
        if scan.has_marker {
            self.on_marker_seen();
        } else if is_only_marker {
            // The kernel enlarges the receive buffer only when the program reads. The program sees
            // no bytes, so it does not read. Therefore enlarge the buffer here.
            make_room_behind(fd);
        }
        is_only_marker
    }

    /// Returns how many of the bytes in TCP the program may see, if the connection is undecided.
    /// `counted` is the number of bytes that the kernel reports.
    pub fn shown(&self, fd: BorrowedFd<'_>, counted: usize) -> usize {
        let mut bytes = vec![0; counted];
        self.scanned(fd, &mut bytes).map_or(counted, |(_, scan)| scan.shown)
    }

    /// Searches the bytes in TCP for the switch marker. Returns the number of bytes and the result;
    /// `None` if the connection expects no switch marker.
    fn scanned(&self, fd: BorrowedFd<'_>, bytes: &mut [u8]) -> Option<(usize, Scan)> {
        let reading = lock(&self.reading);
        // A connection moves only under this lock, so `fd` still refers to the TCP socket.
        let scan_bytes: &dyn Fn(&[u8]) -> Scan = match &*reading {
            Reading::Expecting(marker, _) => &|bytes| scan(bytes, marker),
            Reading::Awaiting(watch, _) => &|bytes| watch.scan(bytes),
            Reading::Plain | Reading::Watching(_) => return None,
        };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
        let count = recv(fd.as_raw_fd(), bytes, flags).unwrap_or(0);
        let scan = scan_bytes(&bytes[..count]);
        // If a switch marker has arrived and this side cannot answer it, do not hide the marker:
        // the program's read must return the error.
        let is_held = matches!(*reading, Reading::Awaiting(..)) && scan.shown < count;
        (!is_held || !is_ended(fd, scan.has_marker)).then_some((count, scan))
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;
    use crate::calls::expected::Hiding;
    use crate::world::World;

    /// Returns three reports about the connecting end's descriptor: the kernel's readiness, the
    /// corrected readiness, and the corrected number of bytes.
    fn asked(world: &World) -> (bool, bool, usize) {
        world.ends[0].call(|connection, fd| {
            let mut entries = [PollFd::new(fd, PollFlags::POLLIN)];
            let is_said = poll(&mut entries, PollTimeout::ZERO) == Ok(1);
            (is_said, !connection.has_nothing_to_read(fd), connection.shown(fd, 100))
        })
    }

    #[test]
    fn a_switch_marker_is_not_readable() {
        let before = Hiding::begin();
        let world = World::new();
        world.ends[0].connection.watch();
        assert!(world.move_on(0));
        assert!(before.was_possible());
        assert_eq!(world.send(1, b"ab"), Ok(2));
        assert!(world.move_on(1));
        assert_eq!(asked(&world), (true, true, 2));
        assert_eq!(world.receive(0, 10).as_deref(), Ok(b"ab".as_slice()));
        assert_eq!(asked(&world), (true, false, 0));
        assert!(world.move_on(2));
        assert!(!asked(&world).0);
        let has_nothing =
            |connection: &Connection, fd: BorrowedFd<'_>| connection.has_nothing_to_read(fd);
        assert!(
            world.ends[0].call(has_nothing),
            "the kernel's report from before the move is outdated"
        );
        assert_eq!(world.send(1, b"c"), Ok(1));
        world.network().carry();
        assert!(!world.ends[0].call(has_nothing));
    }
}
