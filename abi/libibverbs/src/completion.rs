//! Completion channels and completion queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs::{Arm, CompletionChannel, CompletionOpcode, CompletionQueue, Error, WorkCompletion};

use crate::device::of;
use crate::failure::{code, invalid, number, pointer, silent, unsupported};
use crate::layout::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc,
};
use crate::memory::handle;
use crate::turn::CallerTurn;
use crate::{clock, shell};

/// The library's state of a completion channel.
pub(crate) struct Channel {
    channel: Arc<CompletionChannel>,
}

/// The library's state of a completion queue.
pub(crate) struct Completions {
    pub(crate) queue: Arc<CompletionQueue>,
    /// Lock that a thread holds from `ibv_start_poll` to `ibv_end_poll`, because only one thread at
    /// a time can read completions one by one.
    turn: CallerTurn,
    /// The completion that the thread which holds `turn` is reading. No other thread accesses this
    /// field.
    current: UnsafeCell<WorkCompletion>,
}

/// Implements `ibv_create_comp_channel`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_create_comp_channel")]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    pointer("ibv_create_comp_channel", || {
        // SAFETY: the caller meets the requirements of this function.
        let channel = unsafe { of(context) }?.create_channel()?;
        let fd = channel.descriptor().as_raw_fd();
        Ok(shell::Channel::make(ibv_comp_channel { context, fd, refcnt: 0 }, Channel { channel }))
    })
}

/// Implements `ibv_destroy_comp_channel`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_destroy_comp_channel")]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    code("ibv_destroy_comp_channel", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { shell::Channel::ours(channel, "completion channel") }?.channel.destroy()?;
        // SAFETY: the handle is alive, because the call above has checked it. That call fails if
        // another object still uses the handle. The program must not use a handle in another call
        // while it destroys the handle.
        unsafe { shell::Channel::free(channel) };
        Ok(())
    })
}

/// Implements `ibv_get_cq_event`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_get_cq_event")]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    queue_context: *mut *mut c_void,
) -> c_int {
    number("ibv_get_cq_event", || {
        // SAFETY: the caller meets the requirements of this function.
        let channel = unsafe { shell::Channel::ours(channel, "completion channel") }?;
        if queue.is_null() || queue_context.is_null() {
            return invalid("a pointer for the event is null");
        }
        let found = channel.channel.get()?;
        let cookie = found.user.load(Ordering::Acquire);
        let found = ptr::with_exposed_provenance_mut::<ibv_cq>(cookie);
        // SAFETY: a queue with an unacknowledged event cannot be destroyed. The caller guarantees
        // room for the results.
        unsafe {
            *queue_context = (*found).cq_context;
            *queue = found;
        }
        Ok(0)
    })
}

/// Implements `ibv_ack_cq_events`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_ack_cq_events")]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(queue: *mut ibv_cq, events: c_uint) {
    silent("ibv_ack_cq_events", (), || {
        // SAFETY: the caller meets the requirements of this function.
        let ours = &unsafe { shell::completions(queue) }?.queue;
        // SAFETY: the queue exists, and only acknowledgements write to the field. Count before the
        // acknowledgement, because another thread may destroy the queue as soon as its events are
        // acknowledged.
        unsafe { shell::count(&raw mut (*queue).comp_events_completed, events) };
        ours.acknowledge_events(events);
        Ok(())
    });
}

/// Implements `ibv_create_cq`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_create_cq")]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    queue_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    pointer("ibv_create_cq", || {
        let entries = u32::try_from(entries).unwrap_or(0);
        let vector = u32::try_from(vector).unwrap_or(u32::MAX);
        // SAFETY: the caller meets the requirements of this function.
        unsafe { create(context, entries, queue_context, channel, vector, 0) }
            .map(<*mut ibv_cq_ex>::cast)
    })
}

/// Implements `ibv_create_cq_ex`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer("ibv_create_cq_ex", || {
        // SAFETY: the caller meets the requirements of this function.
        let Some(init) = (unsafe { init.as_ref() }) else {
            return invalid("the attributes are null");
        };
        if init.comp_mask & !(INIT_FLAGS | INIT_PARENT_DOMAIN) != 0 {
            return invalid("unknown attributes of a completion queue");
        }
        // Reject the flag that allows overruns, because such a queue would lose completions without
        // an error.
        if init.comp_mask & INIT_FLAGS != 0 && init.flags & !SINGLE_THREADED != 0 {
            return unsupported("such flags of a completion queue");
        }
        if init.wc_flags & !(STANDARD_FIELDS | TIMES) != 0 {
            return unsupported("such fields of completions");
        }
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            create(
                context,
                init.cqe,
                init.cq_context,
                init.channel,
                init.comp_vector,
                init.wc_flags,
            )
        }
    })
}

unsafe fn create(
    context: *mut ibv_context,
    entries: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: u32,
    fields: u64,
) -> Result<*mut ibv_cq_ex, Error> {
    // SAFETY: the caller meets the requirements of this function.
    let opened = unsafe { of(context) }?;
    if vector >= VECTORS {
        return invalid("the completion vector must be 0");
    }
    let events = if channel.is_null() {
        None
    } else {
        // SAFETY: the caller meets the requirements of this function.
        Some(&unsafe { shell::Channel::ours(channel, "completion channel") }?.channel)
    };
    let queue = if fields & TIMES == 0 {
        opened.create_completion_queue(entries, events)
    } else {
        opened.create_stamped_completion_queue(entries, events, clock::now_ns)
    }?;
    let base = ibv_cq {
        context,
        channel,
        cq_context,
        handle: handle(),
        cqe: c_int::try_from(queue.entries()).unwrap_or(c_int::MAX),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let ours = Completions {
        queue: Arc::clone(&queue),
        turn: CallerTurn::default(),
        current: UnsafeCell::new(WorkCompletion::NOTHING),
    };
    let made = shell::Completions::make(structure(base, fields), ours);
    queue.user.store(made.expose_provenance(), Ordering::Release);
    Ok(made)
}

fn structure(base: ibv_cq, fields: u64) -> ibv_cq_ex {
    let if_wanted = |read, field| if fields & field == 0 { None } else { Some(read) };
    ibv_cq_ex {
        base,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_dlid_path_bits),
        read_completion_ts: if_wanted(read_completion_ts as _, TIME),
        read_cvlan: None,
        read_flow_tag: None,
        read_tm_info: None,
        read_completion_wallclock_ns: if_wanted(read_completion_wallclock_ns as _, WALL_TIME),
    }
}

/// Implements `ibv_resize_cq`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_resize_cq")]
pub(crate) unsafe extern "C" fn ibv_resize_cq(queue: *mut ibv_cq, entries: c_int) -> c_int {
    code("ibv_resize_cq", || {
        // SAFETY: the caller meets the requirements of this function.
        let ours = &unsafe { shell::completions(queue) }?.queue;
        ours.resize(u32::try_from(entries).unwrap_or(0))?;
        // SAFETY: the caller meets the requirements of this function.
        unsafe { (*queue).cqe = c_int::try_from(ours.entries()).unwrap_or(c_int::MAX) };
        Ok(())
    })
}

/// Implements `ibv_destroy_cq`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_destroy_cq")]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    code("ibv_destroy_cq", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { shell::completions(queue) }?.queue.destroy()?;
        // SAFETY: the handle is alive, because the call above has checked it. That call fails if
        // another object still uses the handle. The program must not use a handle in another call
        // while it destroys the handle.
        unsafe { shell::Completions::free(queue.cast()) };
        Ok(())
    })
}

/// Implements `ibv_req_notify_cq`.
pub(crate) unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, solicited_only: c_int) -> c_int {
    code("ibv_req_notify_cq", || {
        let what = if solicited_only == 0 { Arm::Next } else { Arm::Solicited };
        // SAFETY: the caller meets the requirements of this function.
        unsafe { shell::completions(queue) }?.queue.arm(what)
    })
}

/// Implements `ibv_poll_cq`.
pub(crate) unsafe extern "C" fn poll_cq(
    queue: *mut ibv_cq,
    max: c_int,
    into: *mut ibv_wc,
) -> c_int {
    number("ibv_poll_cq", || {
        // SAFETY: the caller meets the requirements of this function.
        let queue = &unsafe { shell::completions(queue) }?.queue;
        let Ok(max) = usize::try_from(max) else {
            return invalid("the number of completions is negative");
        };
        if into.is_null() && max > 0 {
            return invalid("the pointer for completions is null");
        }
        // SAFETY: the caller guarantees room for `max` completions.
        let total = unsafe {
            if max == 1 {
                take::<1>(queue, max, into)
            } else {
                take::<POLLED_AT_ONCE>(queue, max, into)
            }
        }?;
        Ok(c_int::try_from(total).unwrap_or(c_int::MAX))
    })
}

/// Polls completions until there is none or `max` were written to `into`. Returns the number of
/// completions written. Fetches at most `N` completions at once. With a small `N`, a poll for a
/// single completion does not pay for a large buffer.
///
/// # Safety
/// There must be room for `max` completions at `into`.
#[inline]
unsafe fn take<const N: usize>(
    queue: &CompletionQueue,
    max: usize,
    into: *mut ibv_wc,
) -> Result<usize, Error> {
    let mut found = [WorkCompletion::NOTHING; N];
    let mut total = 0;
    while total < max {
        let wanted = N.min(max - total);
        let Some(room) = found.get_mut(..wanted) else { break };
        let count = queue.poll(room)?;
        for (completion, place) in room.iter().take(count).zip(total..) {
            // SAFETY: the caller meets the requirements of this function.
            unsafe { into.add(place).write(c_completion(completion)) };
        }
        total += count;
        if count < wanted {
            break;
        }
    }
    Ok(total)
}

unsafe extern "C" fn start_poll(queue: *mut ibv_cq_ex, attributes: *mut ibv_poll_cq_attr) -> c_int {
    quietly(|| {
        // SAFETY: the caller meets the requirements of this function.
        let ours = unsafe { shell::Completions::ours(queue, "completion queue") }?;
        // SAFETY: the caller meets the requirements of this function.
        if unsafe { attributes.as_ref() }.is_some_and(|attributes| attributes.comp_mask != 0) {
            return invalid("unknown attributes of a poll");
        }
        ours.turn.take();
        // SAFETY: this thread holds the lock `turn`.
        let found = unsafe { advance(queue, ours) };
        if !matches!(found, Ok(true)) {
            // If a poll finds no completion, the program does not call `ibv_end_poll`. So release
            // the lock here.
            ours.turn.give_back();
        }
        found
    })
}

unsafe extern "C" fn next_poll(queue: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller meets the requirements of this function. The calling thread has called
    // `ibv_start_poll`, so it holds the lock `turn`.
    quietly(|| unsafe { advance(queue, shell::Completions::ours(queue, "completion queue")?) })
}

unsafe extern "C" fn end_poll(queue: *mut ibv_cq_ex) {
    silent("ibv_end_poll", (), || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { shell::Completions::ours(queue, "completion queue") }?.turn.give_back();
        Ok(())
    });
}

/// Runs a poll. Returns 0 if it found a completion, `ENOENT` if there is none, or the error number
/// of a failed poll.
fn quietly(poll: impl FnOnce() -> Result<bool, Error>) -> c_int {
    let mut is_empty = false;
    let failure = code("ibv_start_poll", || {
        is_empty = !poll()?;
        Ok(())
    });
    if failure == 0 && is_empty { libc::ENOENT } else { failure }
}

/// Polls the next completion into `current`. Returns false if there is none.
///
/// # Safety
/// The calling thread must hold the lock `turn`.
unsafe fn advance(queue: *mut ibv_cq_ex, ours: &Completions) -> Result<bool, Error> {
    // SAFETY: the caller meets the requirements of this function.
    let current = unsafe { &mut *ours.current.get() };
    if ours.queue.poll(std::slice::from_mut(current))? == 0 {
        return Ok(false);
    }
    // SAFETY: the caller meets the requirements of this function.
    unsafe {
        (*queue).status = current.status as c_int;
        (*queue).wr_id = current.id;
    }
    Ok(true)
}

/// Defines functions that read a field of the current completion.
macro_rules! readers {
    ($($name:ident -> $kind:ty: $read:expr;)*) => {$(
        unsafe extern "C" fn $name(queue: *mut ibv_cq_ex) -> $kind {
            // SAFETY: the caller passes a completion queue, between `ibv_start_poll` and
            // `ibv_end_poll`.
            silent(stringify!($name), <$kind>::default(), || unsafe {
                let ours = shell::Completions::ours(queue, "completion queue")?;
                let read: fn(&WorkCompletion) -> $kind = $read;
                Ok(read(&*ours.current.get()))
            })
        }
    )*};
}

readers! {
    read_opcode -> c_int: |completion| opcode_code(completion.opcode);
    read_vendor_err -> u32: |_| 0;
    read_byte_len -> u32: |completion| completion.bytes;
    read_imm_data -> u32: immediate_or_key;
    read_qp_num -> u32: |completion| completion.queue_pair;
    read_src_qp -> u32: |completion| completion.source;
    read_wc_flags -> c_uint: flags_of;
    read_slid -> u32: |_| 0;
    read_sl -> u8: |_| 0;
    read_dlid_path_bits -> u8: |_| 0;
    read_completion_ts -> u64: |completion| completion.at_ns;
    read_completion_wallclock_ns -> u64: |completion| clock::wall_ns(completion.at_ns);
}

/// Converts a completion to the C structure.
#[inline]
fn c_completion(completion: &WorkCompletion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.id,
        status: completion.status as c_int,
        opcode: opcode_code(completion.opcode),
        vendor_err: 0,
        byte_len: completion.bytes,
        imm_data: immediate_or_key(completion),
        qp_num: completion.queue_pair,
        src_qp: completion.source,
        wc_flags: flags_of(completion),
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

/// Returns a completion with those fields of a C completion that are needed to answer the datagram
/// which the completion reports.
pub(crate) fn completion_of(c: &ibv_wc) -> WorkCompletion {
    WorkCompletion {
        id: c.wr_id,
        queue_pair: c.qp_num,
        source: c.src_qp,
        has_route_header: c.wc_flags & HAS_ROUTE_HEADER != 0,
        ..WorkCompletion::NOTHING
    }
}

fn immediate_or_key(completion: &WorkCompletion) -> u32 {
    completion.immediate.or(completion.invalidated).unwrap_or(0)
}

fn flags_of(completion: &WorkCompletion) -> c_uint {
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    flag(completion.has_route_header, HAS_ROUTE_HEADER)
        | flag(completion.immediate.is_some(), HAS_IMMEDIATE)
        | flag(completion.invalidated.is_some(), HAS_INVALIDATED)
}

const fn opcode_code(opcode: CompletionOpcode) -> c_int {
    match opcode {
        CompletionOpcode::Send => 0,
        CompletionOpcode::Write => 1,
        CompletionOpcode::Read => 2,
        CompletionOpcode::CompareSwap => 3,
        CompletionOpcode::FetchAdd => 4,
        CompletionOpcode::BindWindow => 5,
        CompletionOpcode::LocalInvalidate => 6,
        CompletionOpcode::Receive => 128,
        CompletionOpcode::ReceiveOfWrite => 129,
    }
}

/// Maximum number of completions that a poll fetches at once. Programs often poll for 16
/// completions. A buffer for 16 completions takes 16 × 48 B on the stack.
const POLLED_AT_ONCE: usize = 16;

/// Number of completion vectors. One is enough, because the library does not distribute events over
/// vectors.
pub(crate) const VECTORS: u32 = 1;

/// Values of `IBV_WC_GRH`, `IBV_WC_WITH_IMM` and `IBV_WC_WITH_INV`.
const HAS_ROUTE_HEADER: c_uint = 1;
const HAS_IMMEDIATE: c_uint = 1 << 1;
const HAS_INVALIDATED: c_uint = 1 << 3;

/// Values of `IBV_CQ_INIT_ATTR_MASK_FLAGS` and `..._PD`.
const INIT_FLAGS: u32 = 1;
const INIT_PARENT_DOMAIN: u32 = 1 << 1;

/// Value of `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`.
const SINGLE_THREADED: u32 = 1;

/// `IBV_WC_STANDARD_FLAGS`: the fields of completions that every device supports.
const STANDARD_FIELDS: u64 = 0x7f;

/// Values of `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP` and `..._WALLCLOCK`.
const TIME: u64 = 1 << 7;
const WALL_TIME: u64 = 1 << 11;
const TIMES: u64 = TIME | WALL_TIME;
