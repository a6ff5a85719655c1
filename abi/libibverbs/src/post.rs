//! Posting lists of work requests.

use std::ffi::{c_int, c_uint};
use std::{ptr, slice};

use verbs::{
    AccessFlags, AddressVector, Error, ReceiveRequest, ScatterGather, SendFlags, SendOpcode,
    SendPosting, SendRequest, WindowBinding,
};
use work::PIECES_MAX;

use crate::failure::{code, invalid, unsupported};
use crate::layout::{
    ibv_ah, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge,
};
use crate::pair::Pair;
use crate::shell;

/// Implements `ibv_post_send`.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    refused: *mut *mut ibv_send_wr,
) -> c_int {
    code("ibv_post_send", || {
        // SAFETY: the caller meets the requirements of this function.
        let pair = unsafe { shell::pair(qp) }?;
        // SAFETY: the caller meets the requirements of this function.
        let mut posting =
            pair.pair.begin_sends().inspect_err(|_| unsafe { report_refused(refused, first) })?;
        // SAFETY: the caller meets the requirements of this function.
        let add = |request: &ibv_send_wr| unsafe { add(pair, &mut posting, request) };
        // SAFETY: the caller meets the requirements of this function.
        let added = unsafe { each(first, refused, |request| request.next, add) };
        posting.post();
        added
    })
}

/// Implements `ibv_post_recv`.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    refused: *mut *mut ibv_recv_wr,
) -> c_int {
    code("ibv_post_recv", || {
        // SAFETY: the caller meets the requirements of this function.
        let pair = unsafe { shell::pair(qp) }?;
        // SAFETY: the caller meets the requirements of this function.
        let mut posting = pair
            .pair
            .begin_receives()
            .inspect_err(|_| unsafe { report_refused(refused, first) })?;
        let add = |request: &ibv_recv_wr| {
            // SAFETY: the caller meets the requirements of this function.
            let pieces = unsafe { pieces(request.sg_list, request.num_sge) }?;
            posting.add(&ReceiveRequest { id: request.wr_id, pieces })
        };
        // SAFETY: the caller meets the requirements of this function.
        let added = unsafe { each(first, refused, |request| request.next, add) };
        posting.post();
        added
    })
}

/// Implements `ibv_bind_mw`: binds a memory window of type 1 and gives it a new key.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    code("ibv_bind_mw", || {
        // SAFETY: the caller meets the requirements of this function.
        let pair = unsafe { shell::pair(qp) }?;
        // SAFETY: the caller meets the requirements of this function.
        let Some(bind) = (unsafe { bind.as_ref() }) else {
            return invalid("the bind attributes are null");
        };
        // SAFETY: the caller meets the requirements of this function.
        let window = &unsafe { shell::Window::ours(mw, "memory window") }?.window;
        // SAFETY: the caller meets the requirements of this function.
        let opcode = unsafe { binding(pair, mw, &bind.bind_info, None) }?;
        let mut posting = pair.pair.begin_sends()?;
        posting.add(&SendRequest {
            id: bind.wr_id,
            opcode,
            flags: flags(bind.send_flags),
            pieces: &[],
            inline: None,
            to: None,
        })?;
        window.on_posted(&opcode);
        posting.post();
        // SAFETY: the caller meets the requirements of this function.
        unsafe { (*mw).rkey = window.key() };
        Ok(())
    })
}

/// Adds one work request to the posting.
///
/// # Safety
/// All pointers in the work request must be valid.
unsafe fn add(pair: &Pair, posting: &mut SendPosting<'_>, c: &ibv_send_wr) -> Result<(), Error> {
    let immediate = c.imm_data;
    // SAFETY: the fields of the union that this line reads are plain numbers, which are valid for
    // any opcode. A pointer of the union is dereferenced only for opcodes and queue pair types for
    // which the program must set that pointer.
    let (rdma, atomic) = unsafe { (c.wr.rdma, c.wr.atomic) };
    let opcode = match c.opcode {
        0 | 1 => SendOpcode::Write {
            address: rdma.remote_addr,
            key: rdma.rkey,
            immediate: (c.opcode == 1).then_some(immediate),
        },
        2 | 3 => SendOpcode::Send { immediate: (c.opcode == 3).then_some(immediate) },
        4 => SendOpcode::Read { address: rdma.remote_addr, key: rdma.rkey },
        5 => SendOpcode::CompareSwap {
            address: atomic.remote_addr,
            key: atomic.rkey,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        6 => SendOpcode::FetchAdd {
            address: atomic.remote_addr,
            key: atomic.rkey,
            operand: atomic.compare_add,
        },
        7 => SendOpcode::LocalInvalidate { key: immediate },
        // SAFETY: the caller meets the requirements of this function.
        8 => unsafe { binding(pair, c.bind_mw.mw, &c.bind_mw.bind_info, Some(c.bind_mw.rkey)) }?,
        9 => SendOpcode::SendInvalidate { key: immediate },
        other => return unsupported(&format!("work requests of opcode {other}")),
    };
    // SAFETY: the caller meets the requirements of this function.
    let to = unsafe { destination(pair, c.wr.ud.ah, c.wr.ud.remote_qpn, c.wr.ud.remote_qkey) }?;
    // SAFETY: the caller meets the requirements of this function.
    let pieces = unsafe { pieces(c.sg_list, c.num_sge) }?;
    let (id, flags) = (c.wr_id, flags(c.send_flags));
    if c.send_flags & INLINE == 0 {
        posting.add(&SendRequest { id, opcode, flags, pieces, inline: None, to })?;
    } else {
        let mut bytes = [0; INLINE_MAX];
        // SAFETY: the caller meets the requirements of this function.
        let inline = Some(unsafe { gather(pieces, &mut bytes) }?);
        posting.add(&SendRequest { id, opcode, flags, pieces: &[], inline, to })?;
    }
    if matches!(opcode, SendOpcode::BindWindow { .. }) {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { shell::Window::ours(c.bind_mw.mw, "memory window") }?.window.on_posted(&opcode);
    }
    Ok(())
}

/// Returns the operation that binds a memory window.
///
/// # Safety
/// `mw` and `info.mr` must be valid or null.
pub(crate) unsafe fn binding(
    pair: &Pair,
    mw: *mut ibv_mw,
    info: &ibv_mw_bind_info,
    key: Option<u32>,
) -> Result<SendOpcode, Error> {
    // SAFETY: the caller meets the requirements of this function.
    let window = &unsafe { shell::Window::ours(mw, "memory window") }?.window;
    let region = if info.mr.is_null() {
        None
    } else {
        // SAFETY: the caller meets the requirements of this function.
        Some(&*unsafe { shell::Region::ours(info.mr, "memory region") }?.region)
    };
    let (address, length, access) = (info.addr, info.length, AccessFlags(info.mw_access_flags));
    window.bind(&pair.pair, &WindowBinding { region, address, length, access, key })
}

/// Returns the destination of a datagram. Returns `None` if the queue pair does not carry
/// datagrams.
///
/// # Safety
/// If the queue pair carries datagrams, `ah` must be an address handle or null.
pub(crate) unsafe fn destination(
    pair: &Pair,
    ah: *mut ibv_ah,
    destination: u32,
    queue_key: u32,
) -> Result<Option<AddressVector>, Error> {
    if pair.pair.service() != verbs::QueuePairType::Datagram {
        return Ok(None);
    }
    // SAFETY: the caller meets the requirements of this function.
    let handle = &unsafe { shell::Address::ours(ah, "address handle") }?.handle;
    Ok(Some(AddressVector { to: *handle.attributes(), destination, queue_key }))
}

/// Returns the scatter/gather list of a work request.
///
/// # Safety
/// The list must have `count` entries.
pub(crate) unsafe fn pieces<'a>(
    list: *const ibv_sge,
    count: c_int,
) -> Result<&'a [ScatterGather], Error> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count == 0 {
        return Ok(&[]);
    }
    if count > PIECES_MAX || list.is_null() || !list.is_aligned() {
        return invalid("the scatter/gather list is null, misaligned or too long");
    }
    // SAFETY: the caller meets the requirements of this function. `ScatterGather` has the layout of
    // `ibv_sge`.
    Ok(unsafe { slice::from_raw_parts(list.cast(), count) })
}

/// Copies the bytes of an inline send into one buffer, and returns them.
///
/// # Safety
/// The entries must point to readable memory of this process.
unsafe fn gather<'a>(
    pieces: &[ScatterGather],
    into: &'a mut [u8; INLINE_MAX],
) -> Result<&'a [u8], Error> {
    let mut length = 0;
    for piece in pieces {
        let bytes = piece.length as usize;
        let Some(room) = into.get_mut(length..length + bytes) else {
            return invalid("too many inline bytes");
        };
        if !room.is_empty() {
            let from = ptr::with_exposed_provenance::<u8>(piece.address as usize);
            // SAFETY: the caller meets the requirements of this function. `room` is as long as the
            // entry.
            unsafe { ptr::copy_nonoverlapping(from, room.as_mut_ptr(), bytes) };
        }
        length += bytes;
    }
    Ok(into.get(..length).unwrap_or_default())
}

/// Adds the work requests of a list. Stops at the first request that is rejected, and stores its
/// address in `refused`.
///
/// # Safety
/// A null pointer must end the list, and `refused` must be null or writable.
#[inline]
pub(crate) unsafe fn each<T>(
    first: *mut T,
    refused: *mut *mut T,
    next: impl Fn(&T) -> *mut T,
    mut add: impl FnMut(&T) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut at = first;
    // SAFETY: the caller meets the requirements of this function.
    while let Some(request) = unsafe { at.as_ref() } {
        // SAFETY: the caller meets the requirements of this function.
        add(request).inspect_err(|_| unsafe { report_refused(refused, at) })?;
        at = next(request);
    }
    Ok(())
}

/// Stores the address of the rejected work request for the program.
///
/// # Safety
/// `place` must be null or writable.
pub(crate) unsafe fn report_refused<T>(place: *mut *mut T, request: *mut T) {
    if !place.is_null() {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { *place = request };
    }
}

/// Converts the flags of a work request.
pub(crate) fn flags(c: c_uint) -> SendFlags {
    SendFlags { fence: c & FENCE != 0, signalled: c & SIGNALED != 0, solicited: c & SOLICITED != 0 }
}

/// Values of `IBV_SEND_FENCE`, `IBV_SEND_SIGNALED`, `IBV_SEND_SOLICITED` and `IBV_SEND_INLINE`.
const FENCE: c_uint = 1;
const SIGNALED: c_uint = 1 << 1;
const SOLICITED: c_uint = 1 << 2;
const INLINE: c_uint = 1 << 3;

/// Maximum number of inline bytes of a work request. It equals the limit of this library's devices.
pub(crate) const INLINE_MAX: usize = 256;

const _: () = assert!(size_of::<ScatterGather>() == size_of::<ibv_sge>());
