//! Mappings of sockets: `riomap`, `riounmap` and `riowrite`, and what other calls do for sockets that may have some.

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

/// A socket for which mappings were asked (`RDMA_IOMAPSIZE`), and how many its peer may announce.
struct Socket {
    maps: u32,
    role: Role,
}

enum Role {
    /// Neither is it connected, nor does it listen.
    Fresh,
    Listens(Arc<Listening>),
    /// It is connected, or about to be. Who listens does so until the end has come.
    Connected(Arc<Meeting>, Option<Arc<Listening>>),
}

/// Those there are. Most programs have none, and never come here.
static SOCKETS: Mutex<BTreeMap<c_int, Socket>> = Mutex::new(BTreeMap::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn sockets() -> MutexGuard<'static, BTreeMap<c_int, Socket>> {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes one, if there is any.
fn with<R>(change: impl FnOnce(&mut BTreeMap<c_int, Socket>) -> Option<R>) -> Option<R> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let mut sockets = sockets();
    let done = change(&mut sockets);
    COUNT.store(sockets.len(), Ordering::Release);
    done
}

/// `RDMA_IOMAPSIZE` is set.
pub(super) fn want(socket: c_int, maps: c_int) -> Result<(), Error> {
    let Ok(maps) = u32::try_from(maps) else {
        return Err(Error::Invalid(format!("{maps} mappings")));
    };
    let maps = maps.min(MAPS_MAX);
    let is_connected = peer_of(socket).is_some();
    let known = with(|sockets| Some(!matches!(sockets.get(&socket)?.role, Role::Fresh)));
    if is_connected || known == Some(true) {
        return Err(Error::Invalid("mappings are asked for before a socket is connected".into()));
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

/// What `RDMA_IOMAPSIZE` is.
pub(super) fn wanted(socket: c_int) -> c_int {
    with(|sockets| c_int::try_from(sockets.get(&socket)?.maps).ok()).unwrap_or(0)
}

/// A socket begins to listen.
pub(super) fn on_listen(socket: c_int) -> Result<(), Error> {
    let wants = with(|sockets| sockets.get(&socket).map(|known| known.maps));
    let (Some(maps), Some(at)) = (wants, listens_at(socket)) else { return Ok(()) };
    let role = Role::Listens(Arc::new(Listening::open(at, maps)?));
    with(|sockets| sockets.insert(socket, Socket { maps, role }));
    Ok(())
}

/// A socket was accepted.
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

/// A socket is connected, or soon.
pub(super) fn on_connect(socket: c_int) {
    with(|sockets| {
        let known = sockets.get_mut(&socket)?;
        if matches!(known.role, Role::Fresh) {
            known.role = Role::Connected(look_for(socket, known.maps), None);
        }
        Some(())
    });
}

/// The number of a socket is that of a new one.
pub(super) fn forget(socket: c_int) {
    // What it had is dropped when no thread waits for the list.
    drop(with(|sockets| sockets.remove(&socket)));
}

/// A socket is to be closed, or sends no more: what was written is placed before the peer sees it.
pub(super) fn on_last(socket: c_int) {
    if let Some(side) = met(socket) {
        // If the peer is gone there is nothing to wait for.
        let _gone = side.settle(true);
    }
}

/// A socket is closed.
pub(super) fn on_close(socket: c_int) {
    on_last(socket);
    let closed = with(|sockets| sockets.remove(&socket));
    if let Some(Socket { role: Role::Connected(meeting, _), .. }) = closed {
        drop(meeting.end());
    }
}

/// What was written to mapped memory is placed before what is sent now.
pub(super) fn before_sending(socket: c_int, flags: c_int) -> Result<(), Error> {
    let Some(side) = met(socket) else { return Ok(()) };
    side.settle(!is_non_blocking(socket, flags))
}

/// `riomap`.
pub(super) fn map(
    socket: c_int,
    address: usize,
    len: usize,
    protection: c_int,
    offset: off_t,
) -> Result<off_t, Error> {
    if protection & !libc::PROT_WRITE != 0 {
        return Err(Error::Invalid("mappings are written to, or not reached at all".into()));
    }
    let side = meeting(socket)?.wait()?;
    with(|sockets| {
        // It has come, so no thread need listen for it.
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

/// `riounmap`.
pub(super) fn unmap(socket: c_int, address: usize, len: usize) -> Result<(), Error> {
    meeting(socket)?.wait()?.unmap(address, len)
}

/// `riowrite`.
///
/// # Safety
/// `from` is memory of `count` bytes that may be read.
pub(super) unsafe fn write(
    socket: c_int,
    from: *const u8,
    count: usize,
    offset: off_t,
    flags: c_int,
) -> Result<usize, Error> {
    let side = meeting(socket)?.wait()?;
    // SAFETY: as the caller says.
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

/// Where a socket listens, if it does.
fn listens_at(socket: c_int) -> Option<SocketAddr> {
    let (mut listens, mut len): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
    let to = (&raw mut listens).cast();
    // SAFETY: there is room for the number.
    unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, to, &raw mut len) };
    if listens == 0 { None } else { address_of(socket, libc::getsockname) }
}
