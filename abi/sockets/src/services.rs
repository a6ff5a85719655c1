//! What this process knows of its peers, so that those without the library are not asked for each connection.

#![expect(clippy::disallowed_methods, reason = "when a peer was silent")]

use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use sockets::{Moving, Peers, Reason, Role, Route, Service};

use crate::house;
use crate::socket::Socket;

/// Why a connection stays on TCP, if its peer was silent a moment ago.
pub(crate) fn silence(socket: &Socket) -> Option<Reason> {
    if house::moving() == Moving::Always {
        return None;
    }
    let may_ask = with(socket, Peers::may_ask).unwrap_or(true);
    (!may_ask).then_some(match socket.role {
        Role::Connecting => Reason::NoOffer,
        Role::Accepting => Reason::NoAnswer,
    })
}

/// The peer is about to be asked.
pub(crate) fn note_asked(socket: &Socket) {
    socket.asked.get_or_init(Instant::now);
}

/// A connection has moved.
pub(crate) fn note_moved(socket: &Socket) {
    with(socket, Peers::on_moved);
}

/// A connection is left to TCP, or was closed before that was decided.
pub(crate) fn note_ended(socket: &Socket) {
    let route = socket.begun().map(|connection| connection.route());
    match route {
        Some(Route::Left(Reason::NoOffer | Reason::NoAnswer)) => {
            with(socket, Peers::on_silent);
        }
        Some(Route::Undecided) => {
            let waited = socket.asked.get().map_or(Duration::ZERO, Instant::elapsed);
            with(socket, |peers, now, service| peers.on_unanswered(now, service, waited));
        }
        _ => {}
    }
}

/// `None` if another thread is at it: nothing depends on it, and in a forked child that thread is gone.
fn with<R>(socket: &Socket, ask: impl FnOnce(&mut Peers, Duration, Service) -> R) -> Option<R> {
    let now = BEGINNING.get_or_init(Instant::now).elapsed();
    let service = Service::of(socket.role, socket.local, socket.peer);
    let mut peers = PEERS.try_lock().ok()?;
    Some(ask(peers.get_or_insert_default(), now, service))
}

static PEERS: Mutex<Option<Peers>> = Mutex::new(None);

static BEGINNING: OnceLock<Instant> = OnceLock::new();
