//! Work requests that a program builds by calls from `ibv_wr_start` to `ibv_wr_complete`.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;

use verbs::{
    AddressVector, DeviceAttributes, Error, QueuePairType, ScatterGather, SendFlags, SendOpcode,
    SendRequest,
};
use work::PIECES_MAX;

use crate::failure::{code, invalid, silent};
use crate::layout::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_sge};
use crate::pair::Pair;
use crate::post::{INLINE_MAX, binding, destination, flags, pieces};
use crate::shell;
use crate::turn::CallerTurn;

/// The work requests that a program is building. Only one thread at a time may build work requests
/// for a queue pair.
#[derive(Default)]
pub(crate) struct Builder {
    turn: CallerTurn,
    /// Only the thread that holds the lock `turn` accesses this field.
    batch: UnsafeCell<Batch>,
}

/// Work requests with their scatter/gather entries and inline bytes. The next batch reuses the
/// memory of a posted batch.
#[derive(Default)]
struct Batch {
    requests: Vec<Request>,
    pieces: Vec<ScatterGather>,
    bytes: Vec<u8>,
    /// The first error that occurred while the program built the batch. `ibv_wr_complete` reports
    /// this error.
    failure: Option<Error>,
}

struct Request {
    id: u64,
    opcode: SendOpcode,
    flags: SendFlags,
    pieces: Range<usize>,
    inline: Option<Range<usize>>,
    to: Option<AddressVector>,
    /// The memory window that the request binds, or null.
    window: *mut ibv_mw,
}

/// Checks the operations that a program wants to build work requests for, as bits of
/// `ibv_qp_create_send_ops_flags`: the device must carry all of them on queue pairs of this type.
pub(crate) fn check_operations(
    device: &DeviceAttributes,
    service: QueuePairType,
    wanted: u64,
) -> Result<(), Error> {
    let lacking = wanted & !device.services.operations(service).bits();
    if lacking == 0 {
        return Ok(());
    }
    let (name, transport) = (&device.name, device.transport());
    Err(Error::NotSupported(format!(
        "send operations {lacking:#x} on {service:?} queue pairs of {name}, a device with the transport {transport}"
    )))
}

/// Returns the C structure of a queue pair, with functions for the operations that the program
/// asked for. The device carries these operations ([`check_operations`]).
pub(crate) fn structure(base: ibv_qp, operations: u64) -> ibv_qp_ex {
    let has = |bit: u32| operations & 1 << bit != 0;
    let any = operations != 0;
    ibv_qp_ex {
        base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: has(5).then_some(wr_atomic_cmp_swp as _),
        wr_atomic_fetch_add: has(6).then_some(wr_atomic_fetch_add as _),
        wr_bind_mw: has(8).then_some(wr_bind_mw as _),
        wr_local_inv: has(7).then_some(wr_local_inv as _),
        wr_rdma_read: has(4).then_some(wr_rdma_read as _),
        wr_rdma_write: has(0).then_some(wr_rdma_write as _),
        wr_rdma_write_imm: has(1).then_some(wr_rdma_write_imm as _),
        wr_send: has(2).then_some(wr_send as _),
        wr_send_imm: has(3).then_some(wr_send_imm as _),
        wr_send_inv: has(9).then_some(wr_send_inv as _),
        wr_send_tso: ptr::null(),
        wr_set_ud_addr: any.then_some(wr_set_ud_addr as _),
        wr_set_xrc_srqn: ptr::null(),
        wr_set_inline_data: any.then_some(wr_set_inline_data as _),
        wr_set_inline_data_list: any.then_some(wr_set_inline_data_list as _),
        wr_set_sge: any.then_some(wr_set_sge as _),
        wr_set_sge_list: any.then_some(wr_set_sge_list as _),
        wr_start: any.then_some(wr_start as _),
        wr_complete: any.then_some(wr_complete as _),
        wr_abort: any.then_some(wr_abort as _),
        wr_atomic_write: ptr::null(),
        wr_flush: ptr::null(),
    }
}

impl Batch {
    fn clear(&mut self) {
        self.requests.clear();
        self.pieces.clear();
        self.bytes.clear();
        self.failure = None;
    }

    fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    fn last(&mut self) -> Result<&mut Request, Error> {
        let nothing = || Error::Invalid("there is no work request to add to".into());
        self.requests.last_mut().ok_or_else(nothing)
    }

    fn set_pieces(&mut self, pieces: &[ScatterGather]) -> Result<(), Error> {
        let start = self.pieces.len();
        self.last()?.pieces = start..start + pieces.len();
        self.pieces.extend_from_slice(pieces);
        Ok(())
    }

    /// Starts the inline bytes of the last work request.
    fn begin_inline(&mut self) -> Result<(), Error> {
        let start = self.bytes.len();
        self.last()?.inline = Some(start..start);
        Ok(())
    }

    /// Appends inline bytes to the last work request.
    ///
    /// # Safety
    /// `from` must have `length` readable bytes.
    unsafe fn add_inline(&mut self, from: *const u8, length: usize) -> Result<(), Error> {
        let end = self.bytes.len();
        let Some(inline) = &mut self.last()?.inline else {
            return invalid("the work request has no inline bytes");
        };
        if length > INLINE_MAX || end + length - inline.start > INLINE_MAX {
            return invalid("too many inline bytes");
        }
        inline.end = end + length;
        if length > 0 {
            // SAFETY: the caller meets the requirements of this function.
            self.bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, length) });
        }
        Ok(())
    }

    /// Posts all work requests, or posts none and returns an error.
    fn post(&self, pair: &Pair) -> Result<(), Error> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let mut posting = pair.pair.begin_sends()?;
        for request in &self.requests {
            posting.add(&SendRequest {
                id: request.id,
                opcode: request.opcode,
                flags: request.flags,
                pieces: self.pieces.get(request.pieces.clone()).unwrap_or_default(),
                inline: request.inline.clone().and_then(|range| self.bytes.get(range)),
                to: request.to,
            })?;
        }
        for request in self.requests.iter().filter(|request| !request.window.is_null()) {
            // SAFETY: the window was valid when the work request was built, after `ibv_wr_start`.
            unsafe { shell::Window::ours(request.window, "memory window") }?
                .window
                .on_posted(&request.opcode);
        }
        posting.post();
        Ok(())
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller meets the requirements of this function.
    silent("ibv_wr_start", (), || unsafe {
        let builder = builder(qp)?.1;
        builder.turn.take();
        // This thread holds the lock `turn` now, so no other thread accesses the batch.
        (*builder.batch.get()).clear();
        Ok(())
    });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller meets the requirements of this function. The calling thread has called
    // `ibv_wr_start`, so it holds the lock `turn`.
    code("ibv_wr_complete", || unsafe {
        let (pair, builder) = builder(qp)?;
        let posted = (*builder.batch.get()).post(pair);
        builder.turn.give_back();
        posted
    })
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller meets the requirements of this function.
    silent("ibv_wr_abort", (), || unsafe {
        builder(qp)?.1.turn.give_back();
        Ok(())
    });
}

unsafe fn builder<'a>(qp: *mut ibv_qp_ex) -> Result<(&'a Pair, &'a Builder), Error> {
    // SAFETY: the caller meets the requirements of this function.
    let pair = unsafe { shell::Pair::ours(qp, "queue pair") }?;
    match &pair.builder {
        Some(builder) => Ok((pair, builder)),
        None => invalid("the queue pair was created without send operations (ibv_create_qp_ex)"),
    }
}

/// Changes the batch. If the change fails, stores the error, which `ibv_wr_complete` reports.
///
/// # Safety
/// The calling thread must have called `ibv_wr_start`, so that it holds the lock `turn`.
unsafe fn with(qp: *mut ibv_qp_ex, change: impl FnOnce(&Pair, &mut Batch) -> Result<(), Error>) {
    silent("ibv_wr", (), || {
        // SAFETY: the caller meets the requirements of this function.
        let (pair, builder) = unsafe { builder(qp) }?;
        // SAFETY: the caller meets the requirements of this function.
        let batch = unsafe { &mut *builder.batch.get() };
        if let Err(error) = change(pair, batch) {
            batch.fail(error);
        }
        Ok(())
    });
}

/// Adds a work request to the batch.
///
/// # Safety
/// The requirements are those of [`with`].
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: SendOpcode, window: *mut ibv_mw) {
    // SAFETY: the caller meets the requirements of this function; the program sets `wr_id` and
    // `wr_flags` before each call.
    unsafe {
        with(qp, |_, batch| {
            let (id, flags) = ((*qp).wr_id, flags((*qp).wr_flags));
            batch.requests.push(Request {
                id,
                opcode,
                flags,
                pieces: 0..0,
                inline: None,
                to: None,
                window,
            });
            Ok(())
        });
    }
}

/// Defines the functions that add a work request.
macro_rules! beginnings {
    ($($name:ident($($argument:ident: $kind:ty),*) => $opcode:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $kind)*) {
            // SAFETY: the caller meets the requirements of this function.
            unsafe { begin(qp, $opcode, ptr::null_mut()) };
        }
    )*};
}

beginnings! {
    wr_atomic_cmp_swp(key: u32, address: u64, compare: u64, swap: u64) =>
        SendOpcode::CompareSwap { address, key, compare, swap };
    wr_atomic_fetch_add(key: u32, address: u64, operand: u64) => SendOpcode::FetchAdd { address, key, operand };
    wr_local_inv(key: u32) => SendOpcode::LocalInvalidate { key };
    wr_rdma_read(key: u32, address: u64) => SendOpcode::Read { address, key };
    wr_rdma_write(key: u32, address: u64) => SendOpcode::Write { address, key, immediate: None };
    wr_rdma_write_imm(key: u32, address: u64, immediate: u32) =>
        SendOpcode::Write { address, key, immediate: Some(immediate) };
    wr_send() => SendOpcode::Send { immediate: None };
    wr_send_imm(immediate: u32) => SendOpcode::Send { immediate: Some(immediate) };
    wr_send_inv(key: u32) => SendOpcode::SendInvalidate { key };
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    key: u32,
    info: *const ibv_mw_bind_info,
) {
    let mut opcode = None;
    // SAFETY: the caller meets the requirements of this function.
    unsafe {
        with(qp, |pair, _| {
            let Some(info) = info.as_ref() else { return invalid("the bind attributes are null") };
            opcode = Some(binding(pair, mw, info, Some(key))?);
            Ok(())
        });
        if let Some(opcode) = opcode {
            begin(qp, opcode, mw);
        }
    }
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    number: u32,
    queue_key: u32,
) {
    // SAFETY: the caller meets the requirements of this function.
    unsafe {
        with(qp, |pair, batch| {
            batch.last()?.to = destination(pair, ah, number, queue_key)?;
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, key: u32, address: u64, length: u32) {
    // SAFETY: the caller meets the requirements of this function.
    unsafe { with(qp, |_, batch| batch.set_pieces(&[ScatterGather { address, length, key }])) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the caller meets the requirements of this function.
    unsafe {
        with(qp, |_, batch| {
            let count = c_int::try_from(count.min(PIECES_MAX + 1)).unwrap_or(c_int::MAX);
            batch.set_pieces(pieces(list, count)?)
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, from: *mut c_void, length: usize) {
    // SAFETY: the caller meets the requirements of this function.
    unsafe {
        with(qp, |_, batch| {
            batch.begin_inline()?;
            batch.add_inline(from.cast(), length)
        });
    }
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the caller meets the requirements of this function.
    unsafe {
        with(qp, |_, batch| {
            batch.begin_inline()?;
            for index in 0..count {
                let buffer = &*list.add(index);
                batch.add_inline(buffer.addr.cast(), buffer.length)?;
            }
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use verbs::{Operations, Services, Transport};
    use verbs_edge::Settings;

    use super::*;

    fn device(transport: Transport) -> DeviceAttributes {
        let devices = verbs_edge::devices(&Settings::default()).expect("devices");
        let edge = devices.first().expect("a device").device.attributes().clone();
        DeviceAttributes { services: Services::of(transport), ..edge }
    }

    /// Returns the operations that a program may ask for, one by one.
    fn possible(transport: Transport, service: QueuePairType) -> u64 {
        let device = device(transport);
        let is_possible = |bit: &u64| match check_operations(&device, service, *bit) {
            Ok(()) => true,
            Err(Error::NotSupported(_)) => false,
            Err(other) => panic!("{other}"),
        };
        (0..64).map(|bit| 1 << bit).filter(is_possible).sum()
    }

    #[test]
    fn a_program_may_ask_for_the_operations_that_the_device_carries() {
        let of = |transport| QueuePairType::ALL.map(|service| possible(transport, service));
        assert_eq!(of(Transport::InfiniBand), [0x3ff, 0x3ff & !0x70, 0xc]);
        assert_eq!(of(Transport::Iwarp), [0x395, 0, 0]);
        let device = device(Transport::Iwarp);
        let wanted = Operations::ALL.bits();
        assert!(check_operations(&device, QueuePairType::Reliable, wanted).is_err());
        assert!(check_operations(&device, QueuePairType::Datagram, 0).is_ok());
    }

    #[test]
    fn the_structure_lacks_the_functions_that_iwarp_does_not_carry() {
        let carried = Services::of(Transport::Iwarp).operations(QueuePairType::Reliable);
        // SAFETY: pointers may be null, and numbers may be 0. The mutex and the condition variable
        // are not used.
        let base = unsafe { std::mem::zeroed::<ibv_qp>() };
        let c = structure(base, carried.bits());
        assert!(c.wr_rdma_write_imm.is_none() && c.wr_send_imm.is_none());
        assert!(c.wr_atomic_cmp_swp.is_none() && c.wr_atomic_fetch_add.is_none());
        assert!(c.wr_rdma_write.is_some() && c.wr_rdma_read.is_some() && c.wr_send.is_some());
        assert!(c.wr_send_inv.is_some() && c.wr_local_inv.is_some() && c.wr_bind_mw.is_some());
        assert!(c.wr_start.is_some() && c.wr_complete.is_some() && c.wr_set_sge.is_some());
    }
}
