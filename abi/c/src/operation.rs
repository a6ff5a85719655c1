//! Operations on a peer's memory, messages, and completions.

use std::ffi::c_void;

use ethernot::{OperationHandle, OperationStatus, Order};

use crate::bytes::{given, has_place, limit, put};
use crate::connection::{CONNECTIONS, Connection};
use crate::failure::{Failure, Result, call};
use crate::handle::Table;
use crate::memory::{MEMORY, Memory, Remote};
use crate::options::{Options, known};

/// One pending operation.
pub struct Operation {
    _opaque: [u8; 0],
}

pub(crate) static OPERATIONS: Table<OperationHandle> = Table::new(6, "an operation");

/// Performed only after all earlier operations of the connection.
pub const ETHERNOT_FENCE_BEFORE: u32 = 1;
/// All later operations are performed only after this one.
pub const ETHERNOT_FENCE_AFTER: u32 = 2;
/// In strict order, as on a reliable connection of verbs.
pub const ETHERNOT_STRICT: u32 = 4;
/// A completion is queued here when it succeeds.
pub const ETHERNOT_SIGNALLED: u32 = 8;
/// The peer is notified of a write.
pub const ETHERNOT_NOTIFY: u32 = 16;
/// `immediate` is sent to the peer.
pub const ETHERNOT_IMMEDIATE: u32 = 32;
/// It need not be sent before the next operation without this mark, the next poll or the next wait.
pub const ETHERNOT_MORE: u32 = 64;

/// Order and notification of an operation. All zero is the default: free order, only the handle reports its end.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct OperationOptions {
    /// `sizeof` of the structure as the program was compiled; 0 for that of the first version of the library.
    pub size: usize,
    /// A number that the completion returns.
    pub context: u64,
    /// `ETHERNOT_FENCE_BEFORE` and so on, added.
    pub flags: u32,
    /// For `ETHERNOT_IMMEDIATE`.
    pub immediate: u32,
}

/// What finished.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(i32)]
pub enum CompletionKind {
    /// A write of this side.
    Write = 1,
    /// A read of this side.
    Read = 2,
    /// An atomic of this side.
    Atomic = 3,
    /// A message of this side: the peer has it.
    Send = 4,
    /// A posted receive: a message is in it.
    Receive = 5,
    /// The peer has written here, and said so.
    Notification = 6,
    /// Something else.
    Other = 7,
}

/// The outcome of an operation or a receive, or a notification.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Completion {
    /// What the program gave when it posted; 0 for a notification.
    pub context: u64,
    /// Atomics: what was there before. Notification: the address written to.
    pub value: u64,
    /// What finished.
    pub kind: CompletionKind,
    /// How it ended: `ETHERNOT_RESULT_OK` or `ETHERNOT_RESULT_FAILED`.
    pub result: Result,
    /// The number of bytes that were moved.
    pub bytes: u32,
    /// What came with a message or notification.
    pub immediate: u32,
    /// Not 0: there is an immediate.
    pub has_immediate: u32,
    /// Reserved, always 0.
    pub reserved: u32,
}

impl Completion {
    /// None.
    pub(crate) const NOTHING: Self = Self {
        context: 0,
        value: 0,
        kind: CompletionKind::Other,
        result: Result::Ok,
        bytes: 0,
        immediate: 0,
        has_immediate: 0,
        reserved: 0,
    };
}

// SAFETY: it is numbers in C's layout, without padding, and begins with its size.
unsafe impl Options for OperationOptions {
    const NAME: &'static str = "ethernot_operation_options";
    const FIRST_BYTES: usize = 24;
}

/// # Safety
/// `options` is null or valid.
pub(crate) unsafe fn options_of(
    options: *const OperationOptions,
) -> std::result::Result<ethernot::OperationOptions, Failure> {
    // SAFETY: the caller's promise.
    let Some(options) = unsafe { known(options) }? else {
        return Ok(ethernot::OperationOptions::NONE);
    };
    let has = |flag: u32| options.flags & flag != 0;
    if options.flags >= 2 * ETHERNOT_MORE {
        let text = format!("flags {:#x} of an operation are unknown", options.flags);
        return Err(Failure::new(Result::Invalid, text));
    }
    Ok(ethernot::OperationOptions::NONE
        .fence_before(has(ETHERNOT_FENCE_BEFORE))
        .fence_after(has(ETHERNOT_FENCE_AFTER))
        .order(if has(ETHERNOT_STRICT) { Order::Strict } else { Order::Relaxed })
        .signalled(has(ETHERNOT_SIGNALLED))
        .notify(has(ETHERNOT_NOTIFY))
        .immediate(has(ETHERNOT_IMMEDIATE).then_some(options.immediate))
        .context(options.context)
        .more(has(ETHERNOT_MORE)))
}

/// Starts an operation. Its handle goes to `operation`; without a place for it, its outcome cannot be asked for.
///
/// # Safety
/// `options` and `operation` are null or valid.
unsafe fn start(
    options: *const OperationOptions,
    operation: *mut *mut Operation,
    post: impl FnOnce(ethernot::OperationOptions) -> std::result::Result<OperationHandle, Failure>,
) -> Result {
    call(|| {
        // SAFETY: the caller's promise.
        let handle = post(unsafe { options_of(options) }?)?;
        if operation.is_null() {
            drop(handle);
            return Ok(());
        }
        let handle = OPERATIONS.add(handle)?;
        // SAFETY: the caller's promise.
        unsafe { put(operation, handle) }
    })
}

/// # Safety
/// `remote` is null or valid.
unsafe fn remote_of(remote: *const Remote) -> std::result::Result<ethernot::RemoteRegion, Failure> {
    // SAFETY: the caller's promise.
    let remote = unsafe { remote.as_ref() }.ok_or_else(|| Failure::null("remote"))?;
    Ok((*remote).into())
}

/// Copies bytes of this side's memory to the peer's. They must not change until the operation is complete.
///
/// Of all that start an operation: `options` may be null. The handle is freed by `ethernot_operation_free`; with a null
/// `operation` there is none, and the operation goes on unobserved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_write(
    connection: *mut Connection,
    memory: *mut Memory,
    offset: u64,
    remote: *const Remote,
    remote_offset: u64,
    length: u64,
    options: *const OperationOptions,
    operation: *mut *mut Operation,
) -> Result {
    let post = |options| {
        let (connection, memory) = (CONNECTIONS.get(connection)?, MEMORY.get(memory)?);
        // SAFETY: the program's promise.
        let remote = unsafe { remote_of(remote) }?;
        Ok(connection.write(&memory.region, offset, &remote, remote_offset, length, options)?)
    };
    // SAFETY: the program's promise.
    unsafe { start(options, operation, post) }
}

/// Writes up to 64 bytes, which are copied before the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_write_bytes(
    connection: *mut Connection,
    bytes: *const c_void,
    length: usize,
    remote: *const Remote,
    remote_offset: u64,
    options: *const OperationOptions,
    operation: *mut *mut Operation,
) -> Result {
    let post = |options| {
        let connection = CONNECTIONS.get(connection)?;
        // SAFETY: the program's promise.
        let (bytes, remote) = unsafe { (given(bytes, length)?, remote_of(remote)?) };
        Ok(connection.write_bytes(bytes, &remote, remote_offset, options)?)
    };
    // SAFETY: the program's promise.
    unsafe { start(options, operation, post) }
}

/// Copies bytes of the peer's memory to this side's, which has the right `ETHERNOT_LOCAL_WRITE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_read(
    connection: *mut Connection,
    memory: *mut Memory,
    offset: u64,
    remote: *const Remote,
    remote_offset: u64,
    length: u64,
    options: *const OperationOptions,
    operation: *mut *mut Operation,
) -> Result {
    let post = |options| {
        let (connection, memory) = (CONNECTIONS.get(connection)?, MEMORY.get(memory)?);
        // SAFETY: the program's promise.
        let remote = unsafe { remote_of(remote) }?;
        Ok(connection.read(&memory.region, offset, &remote, remote_offset, length, options)?)
    };
    // SAFETY: the program's promise.
    unsafe { start(options, operation, post) }
}

/// Adds to a 64-bit word of the peer's memory. `ethernot_operation_wait` returns the value before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_fetch_add(
    connection: *mut Connection,
    remote: *const Remote,
    remote_offset: u64,
    operand: u64,
    options: *const OperationOptions,
    operation: *mut *mut Operation,
) -> Result {
    let post = |options| {
        // SAFETY: the program's promise.
        let remote = unsafe { remote_of(remote) }?;
        Ok(CONNECTIONS.get(connection)?.fetch_add(&remote, remote_offset, operand, options)?)
    };
    // SAFETY: the program's promise.
    unsafe { start(options, operation, post) }
}

/// Stores `swap` in a 64-bit word of the peer's memory if it holds `compare`. `ethernot_operation_wait` returns what it
/// held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_compare_swap(
    connection: *mut Connection,
    remote: *const Remote,
    remote_offset: u64,
    compare: u64,
    swap: u64,
    options: *const OperationOptions,
    operation: *mut *mut Operation,
) -> Result {
    let post = |options| {
        // SAFETY: the program's promise.
        let remote = unsafe { remote_of(remote) }?;
        let connection = CONNECTIONS.get(connection)?;
        Ok(connection.compare_swap(&remote, remote_offset, compare, swap, options)?)
    };
    // SAFETY: the program's promise.
    unsafe { start(options, operation, post) }
}

/// Sends a message into the receive that the peer has posted or will post.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_send(
    connection: *mut Connection,
    memory: *mut Memory,
    offset: u64,
    length: u64,
    options: *const OperationOptions,
    operation: *mut *mut Operation,
) -> Result {
    let post = |options| {
        let (connection, memory) = (CONNECTIONS.get(connection)?, MEMORY.get(memory)?);
        Ok(connection.send(&memory.region, offset, length, options)?)
    };
    // SAFETY: the program's promise.
    unsafe { start(options, operation, post) }
}

/// Sends a message of up to 64 bytes, which are copied before the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_send_bytes(
    connection: *mut Connection,
    bytes: *const c_void,
    length: usize,
    options: *const OperationOptions,
    operation: *mut *mut Operation,
) -> Result {
    let post = |options| {
        // SAFETY: the program's promise.
        let bytes = unsafe { given(bytes, length) }?;
        Ok(CONNECTIONS.get(connection)?.send_bytes(bytes, options)?)
    };
    // SAFETY: the program's promise.
    unsafe { start(options, operation, post) }
}

/// Posts a receive without a handle: memory with the right `ETHERNOT_LOCAL_WRITE` for one message, which a completion of
/// the connection reports, of `ETHERNOT_COMPLETION_KIND_RECEIVE` and with `context`. For programs in which one thread takes all
/// completions (`ethernot_poll`, `ethernot_wait_completion`); `ethernot_receive_post` makes a receive with a handle instead.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_post_receive(
    connection: *mut Connection,
    memory: *mut Memory,
    offset: u64,
    length: u32,
    context: u64,
) -> Result {
    call(|| {
        let (connection, memory) = (CONNECTIONS.get(connection)?, MEMORY.get(memory)?);
        Ok(connection.post_receive(&memory.region, offset, length, context)?)
    })
}

/// Waits until an operation is complete. `value` gets what an atomic found, and may be null. May be called again after
/// `ETHERNOT_RESULT_TIMED_OUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_operation_wait(
    operation: *mut Operation,
    timeout_ms: i64,
    value: *mut u64,
) -> Result {
    call(|| {
        let found = OPERATIONS.get(operation)?.wait(limit(timeout_ms))?;
        // SAFETY: null, or room for it.
        if let Some(value) = unsafe { value.as_mut() } {
            *value = found;
        }
        Ok(())
    })
}

/// Whether an operation is complete or has failed: `ETHERNOT_RESULT_OK` or `ETHERNOT_RESULT_FAILED`, or else `ETHERNOT_RESULT_AGAIN`. Makes no
/// progress by itself.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_operation_test(operation: *mut Operation) -> Result {
    call(|| match OPERATIONS.get(operation)?.status() {
        OperationStatus::Done { .. } => Ok(()),
        OperationStatus::Failed(error) => Err(Failure::new(Result::Failed, error.to_string())),
        OperationStatus::Pending { .. } => Err(Failure::new(Result::Again, "it is under way")),
    })
}

/// Frees the handle of an operation, which goes on.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_operation_free(operation: *mut Operation) -> Result {
    call(|| OPERATIONS.remove(operation).map(drop))
}

/// Takes the oldest completion of a connection, and makes progress; `ETHERNOT_RESULT_AGAIN` if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_poll(
    connection: *mut Connection,
    completion: *mut Completion,
) -> Result {
    call(|| {
        has_place(completion)?;
        let found = CONNECTIONS.get(connection)?.poll()?;
        let none = || Failure::new(Result::Again, "there is no completion");
        // SAFETY: null was refused above.
        unsafe { put(completion, completion_of(&found.ok_or_else(none)?)) }
    })
}

/// Waits for a completion of a connection; `ETHERNOT_RESULT_CLOSED` if it has ended and there is none left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_wait_completion(
    connection: *mut Connection,
    timeout_ms: i64,
    completion: *mut Completion,
) -> Result {
    call(|| {
        has_place(completion)?;
        let found = CONNECTIONS.get(connection)?.wait_completion(limit(timeout_ms))?;
        // SAFETY: null was refused above.
        unsafe { put(completion, completion_of(&found)) }
    })
}

pub(crate) fn completion_of(found: &ethernot::Completion) -> Completion {
    use ethernot::CompletionKind as Kind;
    Completion {
        context: found.context,
        value: found.value,
        kind: match found.kind {
            Kind::Write => CompletionKind::Write,
            Kind::Read => CompletionKind::Read,
            Kind::FetchAdd | Kind::CompareSwap => CompletionKind::Atomic,
            Kind::Send => CompletionKind::Send,
            Kind::Receive => CompletionKind::Receive,
            Kind::Notification => CompletionKind::Notification,
            _ => CompletionKind::Other,
        },
        result: if found.result.is_ok() { Result::Ok } else { Result::Failed },
        bytes: found.bytes,
        immediate: found.immediate.unwrap_or_default(),
        has_immediate: found.immediate.is_some().into(),
        reserved: 0,
    }
}
