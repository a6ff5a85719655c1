//! The state of the move of one connection, shared by all threads.

use std::net::Shutdown;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

use delivery::Instant;

use super::machine::{Action, Event, Migration, Phase};
use crate::lock::lock;
use crate::reasons::Reason;
use crate::settings::Role;

/// The [`Migration`] of one end, under a lock. Also publishes the end's [`Course`], which the
/// program's calls read without the lock.
///
/// A thread that holds this lock takes no other lock. It holds the lock while it handles one event,
/// and never during I/O.
#[derive(Debug)]
pub(crate) struct Life {
    migration: Mutex<Migration>,
    /// The lower byte holds the course and [`WRITES_NO_MORE`]. The upper byte holds the reason.
    published: AtomicU16,
}

/// The route that the bytes of the program take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Course {
    /// TCP. A switch marker may arrive.
    Tcp,
    /// TCP. The program must wait, because no byte may be written before the switch marker.
    TcpHeld,
    /// The edge.
    Edge,
    /// The edge, until this end can return to TCP.
    Returning,
    /// No route: the connection is returning to TCP. The program's calls wait.
    GoingHome,
    /// The kernel, permanently.
    Kernel(Reason),
}

impl Life {
    pub(crate) fn new(role: Role) -> Self {
        let migration = Migration::new(role);
        let published = AtomicU16::new(published_of(&migration));
        Self { migration: Mutex::new(migration), published }
    }

    /// Handles an event. Returns the actions that the caller must perform. A thread that reads the
    /// new course also sees all writes that preceded this call.
    pub(crate) fn on(&self, event: Event, now: Instant) -> Vec<Action> {
        let mut migration = lock(&self.migration);
        let actions = migration.on(event, now);
        self.published.store(published_of(&migration), Ordering::SeqCst);
        actions
    }

    /// Handles an event of the program or the edge for which the time does not matter.
    pub(crate) fn on_untimed(&self, event: Event) -> Vec<Action> {
        self.on(event, Instant(0))
    }

    /// Returns the current route of the bytes. Costs one atomic load.
    #[inline]
    pub(crate) fn course(&self) -> Course {
        let published = self.published.load(Ordering::SeqCst);
        match published & COURSE {
            TCP => Course::Tcp,
            HELD => Course::TcpHeld,
            EDGE => Course::Edge,
            RETURNING => Course::Returning,
            GOING_HOME => Course::GoingHome,
            _ => Course::Kernel(reason_of(published)),
        }
    }

    /// Returns true if the program shut down writing before the connection moved.
    pub(crate) fn writes_no_more(&self) -> bool {
        self.published.load(Ordering::SeqCst) & WRITES_NO_MORE != 0
    }

    pub(crate) fn phase(&self) -> Phase {
        lock(&self.migration).phase()
    }

    /// Returns the result of [`Migration::due`].
    pub(crate) fn due(&self) -> Instant {
        lock(&self.migration).due()
    }

    /// Returns the result of [`Migration::is_closed`].
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.migration).is_closed()
    }

    /// Returns the result of [`Migration::is_echoing`].
    pub(crate) fn is_echoing(&self) -> bool {
        lock(&self.migration).is_echoing()
    }

    /// Returns the result of [`Migration::has_ended_tcp`].
    pub(crate) fn has_ended_tcp(&self) -> bool {
        lock(&self.migration).has_ended_tcp()
    }

    /// Returns the result of [`Migration::shut`].
    pub(crate) fn shut(&self) -> Option<Shutdown> {
        lock(&self.migration).shut()
    }
}

#[cold]
fn reason_of(published: u16) -> Reason {
    Reason::from_number((published >> 8) as u8).unwrap_or(Reason::Closed)
}

fn published_of(migration: &Migration) -> u16 {
    let shut = migration.shut().is_some_and(|how| how != Shutdown::Read);
    let course = match migration.phase() {
        Phase::Switching if migration.is_held() => HELD,
        Phase::OnTcp
        | Phase::Offering
        | Phase::Grouping
        | Phase::Joining
        | Phase::Switching
        | Phase::Unanswered
        | Phase::Watching => TCP,
        Phase::OnEdge | Phase::PeerLost => EDGE,
        Phase::Returning => RETURNING,
        Phase::GoingHome => GOING_HOME,
        Phase::Ended(reason) => KERNEL | u16::from(reason.number()) << 8,
    };
    course | if shut { WRITES_NO_MORE } else { 0 }
}

const TCP: u16 = 0;
const HELD: u16 = 1;
const EDGE: u16 = 2;
const RETURNING: u16 = 3;
const GOING_HOME: u16 = 4;
const KERNEL: u16 = 5;

/// Mask of the course in the lower byte.
const COURSE: u16 = 7;

/// Set if the program has shut down writing and the connection has not moved.
const WRITES_NO_MORE: u16 = 8;
