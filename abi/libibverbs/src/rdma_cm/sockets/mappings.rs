//! Mappings of sockets: `riomap`, `riounmap` and `riowrite`. For a socket that can have mappings,
//! this module connects a queue pair, which carries the writes to mapped memory. The module also
//! has the additional steps that other calls on such a socket need.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::off_t;
use verbs::Error;

use super::meeting::{Listening, Meeting, look_for};
use super::side::{MAPS_MAX, Side, is_non_blocking};
use super::{address_of, peer_of};

/// A socket for which the program has set `RDMA_IOMAPSIZE`. `maps` is the maximum number of
/// mappings that the peer of the socket may announce.
struct Socket {
    maps: u32,
    role: Role,
}

enum Role {
    /// The socket is neither connected nor listening.
    Fresh,
    Listens(Arc<Listening>),
    /// The socket is connected or connecting. If the socket was accepted, the second field keeps
    /// the listening id open until the queue pair of this socket is connected.
    Connected(Arc<Meeting>, Option<Arc<Listening>>),
}

/// `SOCKETS` contains all sockets that can have mappings, by descriptor. `COUNT` is the number of
/// these sockets. In most programs the number is 0, so that calls do not lock the map.
static SOCKETS: Mutex<BTreeMap<c_int, Socket>> = Mutex::new(BTreeMap::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn sockets() -> MutexGuard<'static, BTreeMap<c_int, Socket>> {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `change` on the map of sockets. Returns `None` at once if the map is empty.
fn with<R>(change: impl FnOnce(&mut BTreeMap<c_int, Socket>) -> Option<R>) -> Option<R> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let mut sockets = sockets();
    let done = change(&mut sockets);
    COUNT.store(sockets.len(), Ordering::Release);
    done
}

/// Handles a new value of `RDMA_IOMAPSIZE`.
pub(super) fn want(socket: c_int, maps: c_int) -> Result<(), Error> {
    let Ok(maps) = u32::try_from(maps) else {
        return Err(Error::Invalid(format!("{maps} mappings")));
    };
    let maps = maps.min(MAPS_MAX);
    let is_connected = peer_of(socket).is_some();
    let known = with(|sockets| Some(!matches!(sockets.get(&socket)?.role, Role::Fresh)));
    if is_connected || known == Some(true) {
        return Err(Error::Invalid(
            "RDMA_IOMAPSIZE must be set before the socket is connected".into(),
        ));
    }
    let role = match listens_at(socket) {
        Some(at) if maps > 0 => Role::Listens(Arc::new(Listening::open(at, maps)?)),
        _ => Role::Fresh,
    };
    let mut sockets = sockets();
    if maps == 0 {
        sockets.remove(&socket);
    } else {
        sockets.insert(socket, Socket { maps, role });
    }
    COUNT.store(sockets.len(), Ordering::Release);
    Ok(())
}

/// Returns the value of `RDMA_IOMAPSIZE`.
pub(super) fn wanted(socket: c_int) -> c_int {
    with(|sockets| c_int::try_from(sockets.get(&socket)?.maps).ok()).unwrap_or(0)
}

/// Starts to listen for connection requests to the queue pairs of accepted sockets, because
/// `socket` has started to listen.
pub(super) fn on_listen(socket: c_int) -> Result<(), Error> {
    let wants = with(|sockets| sockets.get(&socket).map(|known| known.maps));
    let (Some(maps), Some(at)) = (wants, listens_at(socket)) else { return Ok(()) };
    let role = Role::Listens(Arc::new(Listening::open(at, maps)?));
    with(|sockets| sockets.insert(socket, Socket { maps, role }));
    Ok(())
}

/// Starts to wait until the queue pair of an accepted socket is connected.
pub(super) fn on_accept(listener: c_int, socket: c_int) {
    forget(socket);
    with(|sockets| {
        let Socket { maps, role: Role::Listens(listening) } = sockets.get(&listener)? else {
            return None;
        };
        let (maps, listening) = (*maps, Arc::clone(listening));
        let role = Role::Connected(listening.expect(peer_of(socket)?), Some(listening));
        sockets.insert(socket, Socket { maps, role })
    });
}

/// Starts to connect the queue pair of a socket, because the socket is connected or connecting.
pub(super) fn on_connect(socket: c_int) {
    with(|sockets| {
        let known = sockets.get_mut(&socket)?;
        if matches!(known.role, Role::Fresh) {
            known.role = Role::Connected(look_for(socket, known.maps), None);
        }
        Some(())
    });
}

/// Removes the previous socket of a descriptor, because the kernel has reused the descriptor.
pub(super) fn forget(socket: c_int) {
    // Drop the value here, after the lock is released.
    drop(with(|sockets| sockets.remove(&socket)));
}

/// Waits until all writes are in the peer's memory. Other calls use this function before they close
/// a socket or shut it down for sending, so that all writes are in the peer's memory when the peer
/// sees the end of the stream.
pub(super) fn on_last(socket: c_int) {
    if let Some(side) = met(socket) {
        // Ignore an error. It means that the peer is gone, and no write can reach it any more.
        let _gone = side.settle(true);
    }
}

/// Removes a closed socket. If a thread still waits until the queue pair of the socket is
/// connected, ends the wait.
pub(super) fn on_close(socket: c_int) {
    on_last(socket);
    let closed = with(|sockets| sockets.remove(&socket));
    if let Some(Socket { role: Role::Connected(meeting, _), .. }) = closed {
        drop(meeting.end());
    }
}

/// Waits until earlier writes are in the peer's memory. Calls that send use this function before
/// they send.
pub(super) fn before_sending(socket: c_int, flags: c_int) -> Result<(), Error> {
    let Some(side) = met(socket) else { return Ok(()) };
    side.settle(!is_non_blocking(socket, flags))
}

/// Implements `riomap`.
pub(super) fn map(
    socket: c_int,
    address: usize,
    len: usize,
    protection: c_int,
    offset: off_t,
) -> Result<off_t, Error> {
    if protection & !libc::PROT_WRITE != 0 {
        return Err(Error::Invalid(
            "the protection of a mapping must be PROT_WRITE or PROT_NONE".into(),
        ));
    }
    let side = meeting(socket)?.wait()?;
    with(|sockets| {
        // The queue pair of the socket is connected, so the socket no longer needs the listening
        // id.
        if let Role::Connected(_, listening) = &mut sockets.get_mut(&socket)?.role {
            *listening = None;
        }
        Some(())
    });
    let offset = if offset == -1 { address.cast_signed() as off_t } else { offset };
    if protection & libc::PROT_WRITE == 0 {
        side.map_for_itself(address, len);
    } else {
        side.map(address, len, offset as u64)?;
    }
    Ok(offset)
}

/// Implements `riounmap`.
pub(super) fn unmap(socket: c_int, address: usize, len: usize) -> Result<(), Error> {
    meeting(socket)?.wait()?.unmap(address, len)
}

/// Implements `riowrite`.
///
/// # Safety
/// `from` must have `count` readable bytes.
pub(super) unsafe fn write(
    socket: c_int,
    from: *const u8,
    count: usize,
    offset: off_t,
    flags: c_int,
) -> Result<usize, Error> {
    let side = meeting(socket)?.wait()?;
    // SAFETY: the caller meets the requirements of this function.
    unsafe { side.write(from, count, offset as u64, !is_non_blocking(socket, flags)) }
}

fn meeting(socket: c_int) -> Result<Arc<Meeting>, Error> {
    let known = with(|sockets| match &sockets.get(&socket)?.role {
        Role::Connected(meeting, _) => Some(Arc::clone(meeting)),
        _ => None,
    });
    known.ok_or_else(|| Error::Invalid("the socket is not connected, or has no mappings".into()))
}

fn met(socket: c_int) -> Option<Arc<Side>> {
    meeting_if_any(socket)?.side()
}

fn meeting_if_any(socket: c_int) -> Option<Arc<Meeting>> {
    if COUNT.load(Ordering::Acquire) == 0 { None } else { meeting(socket).ok() }
}

/// Returns the address at which a socket listens. Returns `None` if the socket does not listen.
fn listens_at(socket: c_int) -> Option<SocketAddr> {
    let (mut listens, mut len): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
    let to = (&raw mut listens).cast();
    // SAFETY: the variable has room for the result.
    unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, to, &raw mut len) };
    if listens == 0 { None } else { address_of(socket, libc::getsockname) }
}
