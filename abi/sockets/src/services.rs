//! Records the outcome of earlier connections of this process. If a peer did not answer, the
//! library tries only once a minute to move a connection with this peer to the edge. If the last
//! connections to a service have lasted long enough for a move to pay, the next connection to this
//! service moves already at its first use.

#![expect(clippy::disallowed_methods, reason = "when a peer was silent")]

use std::net::SocketAddr;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use sockets::{Moving, Peers, Reason, Role, Route, Service};

use crate::chosen;
use crate::socket::Socket;

/// If the peer did not answer recently, returns the reason why a connection stays on TCP. Returns
/// `None` otherwise.
pub(crate) fn silence(role: Role, local: SocketAddr, peer: SocketAddr) -> Option<Reason> {
    if chosen::moving() == Moving::Always {
        return None;
    }
    let may_ask = with_service(Service::of(role, local, peer), Peers::may_ask).unwrap_or(true);
    (!may_ask).then_some(match role {
        Role::Connecting => Reason::NoOffer,
        Role::Accepting => Reason::NoAnswer,
    })
}

/// Returns true if a connection moves at its first use, because earlier connections to the service
/// have lasted long enough.
pub(crate) fn is_known_to_pay(role: Role, local: SocketAddr, peer: SocketAddr) -> bool {
    let service = Service::of(role, local, peer);
    with_service(service, |peers, _, service| peers.lasts(service)).unwrap_or(false)
}

/// Records that a connection was too short for a move to pay.
pub(crate) fn note_short(socket: &Socket) {
    with(socket, Peers::on_short);
}

/// Records the time at which this side begins to move the connection to the edge.
pub(crate) fn note_asked(socket: &Socket) {
    socket.asked.get_or_init(Instant::now);
}

/// Records that a connection has moved. If the connection did not move at its first use, it has
/// lasted long enough for a move to pay, so the function records this too.
pub(crate) fn note_moved(socket: &Socket) {
    with(socket, Peers::on_moved);
    if !socket.is_early {
        with(socket, Peers::on_lasting);
    }
}

/// Records the outcome of a connection that has begun to move to the edge, when it is closed or
/// left to TCP.
pub(crate) fn note_ended(socket: &Socket) {
    let route = socket.begun().map(|connection| connection.route());
    let has_lasted = socket.asked.get().is_some_and(|asked| asked.elapsed() >= LASTING);
    if socket.is_early && (!has_lasted || is_unanswered(socket)) {
        note_short(socket);
    }
    match route {
        // The connection began to move at its first use. In this case, a missing answer does not
        // mean that the peer never answers, because the peer may not know yet that connections to
        // this service last.
        Some(Route::Left(Reason::NoOffer | Reason::NoAnswer) | Route::Undecided)
            if socket.is_early => {}
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

/// Returns true if the connection is left to TCP because its peer has not answered.
pub(crate) fn is_unanswered(socket: &Socket) -> bool {
    let route = socket.begun().map(|connection| connection.route());
    matches!(route, Some(Route::Left(Reason::NoOffer | Reason::NoAnswer)))
}

/// Calls `ask` with the records. If another thread holds their lock, does not wait and returns
/// `None`, because in a forked child that thread may not exist. Callers can do without the result.
fn with<R>(socket: &Socket, ask: impl FnOnce(&mut Peers, Duration, Service) -> R) -> Option<R> {
    with_service(Service::of(socket.role, socket.local, socket.peer), ask)
}

fn with_service<R>(
    service: Service,
    ask: impl FnOnce(&mut Peers, Duration, Service) -> R,
) -> Option<R> {
    let now = BEGINNING.get_or_init(Instant::now).elapsed();
    let mut peers = PEERS.try_lock().ok()?;
    Some(ask(peers.get_or_insert_default(), now, service))
}

/// Time for which a connection that moves at its first use must last. If the connection ends
/// earlier, the move did not pay.
const LASTING: Duration = Duration::from_millis(100);

static PEERS: Mutex<Option<Peers>> = Mutex::new(None);

static BEGINNING: OnceLock<Instant> = OnceLock::new();
