//! Operations on a peer's memory, messages and completions.

use std::ffi::c_void;

use ethernot::{
    OperationHandle, OperationStatus, Order, PATCH_BLOCK_BYTES, PATCH_RECORD_BYTES_MAX,
};

use crate::bytes::{given, hand_out, has_place, limit, put};
use crate::connection::{CONNECTIONS, Connection};
use crate::failure::{Failure, Result, call};
use crate::handle::Table;
use crate::memory::{MEMORY, Memory, Remote};
use crate::options::{Options, known};

/// A pending operation.
pub struct Operation {
    _opaque: [u8; 0],
}

pub(crate) static OPERATIONS: Table<OperationHandle> = Table::new(6, "an operation");

/// The peer performs the operation only after all earlier operations of the connection.
pub const ETHERNOT_FENCE_BEFORE: u32 = 1;
/// The peer performs all later operations of the connection only after this operation.
pub const ETHERNOT_FENCE_AFTER: u32 = 2;
/// The operation has strict order, as on a reliable connection of verbs.
pub const ETHERNOT_STRICT: u32 = 4;
/// If the operation succeeds, it adds a completion at this endpoint.
pub const ETHERNOT_SIGNALLED: u32 = 8;
/// The write notifies the peer.
pub const ETHERNOT_NOTIFY: u32 = 16;
/// The operation sends `immediate` to the peer.
pub const ETHERNOT_IMMEDIATE: u32 = 32;
/// The library may delay the operation until the next operation without this flag, the next poll or
/// the next wait.
pub const ETHERNOT_MORE: u32 = 64;

/// Order, notification and completion of an operation. If all fields are zero, all options have
/// their defaults: relaxed order, and no completion. Only the handle then reports the end of the
/// operation.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct OperationOptions {
    /// `sizeof` of this structure in the program. The size shows the library which fields the
    /// program's version of the structure has. 0 means the size in the library's first version.
    pub size: usize,
    /// Value that the completion returns.
    pub context: u64,
    /// Sum of the flags, such as `ETHERNOT_FENCE_BEFORE`.
    pub flags: u32,
    /// The 32-bit value for the peer. It has an effect only with `ETHERNOT_IMMEDIATE`.
    pub immediate: u32,
}

/// The kind of a completed operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(i32)]
pub enum CompletionKind {
    /// A write by this side.
    Write = 1,
    /// A read by this side.
    Read = 2,
    /// An atomic by this side.
    Atomic = 3,
    /// A message that this side has sent and that has arrived at the peer.
    Send = 4,
    /// A message that has arrived in a posted receive.
    Receive = 5,
    /// A write of the peer that notifies this side.
    Notification = 6,
    /// Any other kind.
    Other = 7,
    /// A patch by this side.
    Patch = 8,
}

/// The result of an operation or a receive, or a notification.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Completion {
    /// The context that the program passed when it posted the work; 0 for a notification.
    pub context: u64,
    /// For an atomic, the old value of the word. For a notification, the address to which the peer
    /// wrote.
    pub value: u64,
    /// The kind of the completed operation.
    pub kind: CompletionKind,
    /// `ETHERNOT_RESULT_OK` or `ETHERNOT_RESULT_FAILED`.
    pub result: Result,
    /// Number of transferred bytes.
    pub bytes: u32,
    /// The immediate of a message or notification.
    pub immediate: u32,
    /// Not 0 if the message or notification has an immediate.
    pub has_immediate: u32,
    /// Reserved, always 0.
    pub reserved: u32,
}

impl Completion {
    /// An empty completion.
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

// SAFETY: the structure consists of numbers in C layout, has no padding, and begins with its size.
unsafe impl Options for OperationOptions {
    const NAME: &'static str = "ethernot_operation_options";
    const FIRST_BYTES: usize = 24;
}

/// # Safety
/// `options` must be null or valid.
pub(crate) unsafe fn options_of(
    options: *const OperationOptions,
) -> std::result::Result<ethernot::OperationOptions, Failure> {
    // SAFETY: the caller meets the requirements of this function.
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

/// Posts an operation and writes its handle to `operation`. If `operation` is null, the operation
/// gets no handle, and the program cannot read its result.
///
/// # Safety
/// `options` and `operation` must be null or valid.
unsafe fn start(
    options: *const OperationOptions,
    operation: *mut *mut Operation,
    post: impl FnOnce(ethernot::OperationOptions) -> std::result::Result<OperationHandle, Failure>,
) -> Result {
    call(|| {
        // SAFETY: the caller meets the requirements of this function.
        let handle = post(unsafe { options_of(options) }?)?;
        if operation.is_null() {
            drop(handle);
            return Ok(());
        }
        let handle = OPERATIONS.add(handle)?;
        // SAFETY: the caller meets the requirements of this function.
        unsafe { put(operation, handle) }
    })
}

/// # Safety
/// `remote` must be null or valid.
unsafe fn remote_of(remote: *const Remote) -> std::result::Result<ethernot::RemoteRegion, Failure> {
    // SAFETY: the caller meets the requirements of this function.
    let remote = unsafe { remote.as_ref() }.ok_or_else(|| Failure::null("remote"))?;
    Ok((*remote).into())
}

/// Copies bytes of local memory to the peer's memory. The program must not change the bytes until
/// the operation is complete.
///
/// For every call that posts an operation: `options` may be null. Free the handle with
/// `ethernot_operation_free`. If `operation` is null, the operation gets no handle, and the program
/// cannot read its result.
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
        // SAFETY: the program promises that `remote` is null or valid.
        let remote = unsafe { remote_of(remote) }?;
        Ok(connection.write(&memory.region, offset, &remote, remote_offset, length, options)?)
    };
    // SAFETY: the program promises that each pointer is null or valid.
    unsafe { start(options, operation, post) }
}

/// Writes up to 64 bytes to the peer's memory. The call copies the bytes before it returns.
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
        // SAFETY: the program promises that each pointer is null or valid.
        let (bytes, remote) = unsafe { (given(bytes, length)?, remote_of(remote)?) };
        Ok(connection.write_bytes(bytes, &remote, remote_offset, options)?)
    };
    // SAFETY: the program promises that each pointer is null or valid.
    unsafe { start(options, operation, post) }
}

/// Copies bytes of the peer's memory to local memory. The local memory needs the right
/// `ETHERNOT_LOCAL_WRITE`.
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
        // SAFETY: the program promises that `remote` is null or valid.
        let remote = unsafe { remote_of(remote) }?;
        Ok(connection.read(&memory.region, offset, &remote, remote_offset, length, options)?)
    };
    // SAFETY: the program promises that each pointer is null or valid.
    unsafe { start(options, operation, post) }
}

/// Adds `operand` to a 64-bit word of the peer's memory. `ethernot_operation_wait` returns the old
/// value.
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
        // SAFETY: the program promises that `remote` is null or valid.
        let remote = unsafe { remote_of(remote) }?;
        Ok(CONNECTIONS.get(connection)?.fetch_add(&remote, remote_offset, operand, options)?)
    };
    // SAFETY: the program promises that each pointer is null or valid.
    unsafe { start(options, operation, post) }
}

/// Compares a 64-bit word of the peer's memory with `compare`. If they are equal, stores `swap` in
/// the word. `ethernot_operation_wait` returns the old value.
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
        // SAFETY: the program promises that `remote` is null or valid.
        let remote = unsafe { remote_of(remote) }?;
        let connection = CONNECTIONS.get(connection)?;
        Ok(connection.compare_swap(&remote, remote_offset, compare, swap, options)?)
    };
    // SAFETY: the program promises that each pointer is null or valid.
    unsafe { start(options, operation, post) }
}

/// Stores `value` in a 64-bit word of the peer's memory. `ethernot_operation_wait` returns the old
/// value.
///
/// Returns `ETHERNOT_RESULT_INVALID` if the connection has no swaps. Both endpoints must offer
/// them; endpoints of libraries without `ethernot_swap` do not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_swap(
    connection: *mut Connection,
    remote: *const Remote,
    remote_offset: u64,
    value: u64,
    options: *const OperationOptions,
    operation: *mut *mut Operation,
) -> Result {
    let post = |options| {
        // SAFETY: the program promises that `remote` is null or valid.
        let remote = unsafe { remote_of(remote) }?;
        Ok(CONNECTIONS.get(connection)?.swap(&remote, remote_offset, value, options)?)
    };
    // SAFETY: the program promises that each pointer is null or valid.
    unsafe { start(options, operation, post) }
}

/// Copies scattered words of four bytes to the peer's memory. The local bytes are records of
/// `ethernot_patch_encode`. The program must not change them until the operation is complete.
///
/// The records name words of the area that begins at `remote_offset`. The address of the area must
/// be a multiple of 4. A thread of the peer that reads a word sees the old word or the new word.
/// The operation cannot have `ETHERNOT_STRICT`.
///
/// Returns `ETHERNOT_RESULT_INVALID` if the connection has no patches, like `ethernot_swap`. Use
/// `ethernot_write` then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_patch(
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
        // SAFETY: the program promises that `remote` is null or valid.
        let remote = unsafe { remote_of(remote) }?;
        Ok(connection.patch(&memory.region, offset, &remote, remote_offset, length, options)?)
    };
    // SAFETY: the program promises that each pointer is null or valid.
    unsafe { start(options, operation, post) }
}

/// Writes the words in which `after` differs from `before` as records to `records`, for
/// `ethernot_patch`. Writes the number of bytes to `used`.
///
/// `before` and `after` have `length` bytes each: a multiple of 4, at most 8 MiB. `records` has
/// room for `capacity` bytes. 136 bytes for each 128 bytes of the area, or part of them, are always
/// enough. The three areas must not overlap. Returns `ETHERNOT_RESULT_INVALID` if a size is not
/// allowed or the room is too small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_patch_encode(
    before: *const c_void,
    after: *const c_void,
    length: usize,
    records: *mut c_void,
    capacity: usize,
    used: *mut usize,
) -> Result {
    call(|| {
        has_place(used)?;
        has_place(records)?;
        // SAFETY: the program promises that the pointers are null or point to this number of bytes.
        let (before, after) = unsafe { (given(before, length)?, given(after, length)?) };
        // The program's room may be uninitialised memory, so the records are encoded elsewhere.
        let most = length.div_ceil(PATCH_BLOCK_BYTES).saturating_mul(PATCH_RECORD_BYTES_MAX);
        let mut encoded = vec![0; capacity.min(most)];
        let count = ethernot::encode_patch(before, after, &mut encoded).ok_or_else(|| {
            let text = format!(
                "{length} bytes are no area of a patch (a multiple of 4, at most 8 MiB), or {capacity} bytes are \
                 too few for its records; give 136 bytes for each 128"
            );
            Failure::new(Result::Invalid, text)
        })?;
        let bytes = encoded.get(..count).unwrap_or_default();
        // SAFETY: null was rejected above, and `records` has room for `capacity` bytes.
        unsafe { hand_out(bytes, records, capacity, used) };
        Ok(())
    })
}

/// Sends a message. The message consumes a receive of the peer. The peer may post the receive
/// before or after this call.
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
    // SAFETY: the program promises that each pointer is null or valid.
    unsafe { start(options, operation, post) }
}

/// Sends a message of up to 64 bytes. The call copies the bytes before it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_send_bytes(
    connection: *mut Connection,
    bytes: *const c_void,
    length: usize,
    options: *const OperationOptions,
    operation: *mut *mut Operation,
) -> Result {
    let post = |options| {
        // SAFETY: the program promises that `bytes` points to `length` bytes.
        let bytes = unsafe { given(bytes, length) }?;
        Ok(CONNECTIONS.get(connection)?.send_bytes(bytes, options)?)
    };
    // SAFETY: the program promises that each pointer is null or valid.
    unsafe { start(options, operation, post) }
}

/// Posts a receive for one message. The receive has no handle. The memory needs the right
/// `ETHERNOT_LOCAL_WRITE`.
///
/// A completion of the connection reports the message. The completion has the value `context` and
/// the kind `ETHERNOT_COMPLETION_KIND_RECEIVE`. Use this function if one thread of the program
/// polls all completions (`ethernot_poll`, `ethernot_wait_completion`). If several threads share
/// the connection, use `ethernot_receive_post`, which posts a receive with a handle.
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

/// Waits until an operation is complete. If the operation is an atomic and `value` is not null,
/// writes the old value of the word to `value`. After `ETHERNOT_RESULT_TIMED_OUT`, the program may
/// call this function again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_operation_wait(
    operation: *mut Operation,
    timeout_ms: i64,
    value: *mut u64,
) -> Result {
    call(|| {
        let found = OPERATIONS.get(operation)?.wait(limit(timeout_ms))?;
        // SAFETY: `value` is null, or it points to room for a number.
        if let Some(value) = unsafe { value.as_mut() } {
            *value = found;
        }
        Ok(())
    })
}

/// Returns the state of an operation: `ETHERNOT_RESULT_OK` if it is complete,
/// `ETHERNOT_RESULT_FAILED` if it has failed, `ETHERNOT_RESULT_AGAIN` if it is pending. This call
/// makes no progress.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_operation_test(operation: *mut Operation) -> Result {
    call(|| match OPERATIONS.get(operation)?.status() {
        OperationStatus::Done { .. } => Ok(()),
        OperationStatus::Failed(error) => Err(Failure::new(Result::Failed, error.to_string())),
        OperationStatus::Pending { .. } => Err(Failure::new(Result::Again, "it is pending")),
    })
}

/// Frees the handle of an operation. The operation continues.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_operation_free(operation: *mut Operation) -> Result {
    call(|| OPERATIONS.remove(operation).map(drop))
}

/// Returns the oldest completion of a connection. If there is none, makes progress and checks
/// again. Returns `ETHERNOT_RESULT_AGAIN` if there is no completion after that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_poll(
    connection: *mut Connection,
    completion: *mut Completion,
) -> Result {
    call(|| {
        has_place(completion)?;
        let found = CONNECTIONS.get(connection)?.poll()?;
        let none = || Failure::new(Result::Again, "there is no completion");
        // SAFETY: null was rejected above.
        unsafe { put(completion, completion_of(&found.ok_or_else(none)?)) }
    })
}

/// Waits for a completion of a connection. Returns `ETHERNOT_RESULT_CLOSED` if the connection has
/// ended and has no more completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_wait_completion(
    connection: *mut Connection,
    timeout_ms: i64,
    completion: *mut Completion,
) -> Result {
    call(|| {
        has_place(completion)?;
        let found = CONNECTIONS.get(connection)?.wait_completion(limit(timeout_ms))?;
        // SAFETY: null was rejected above.
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
            Kind::Patch => CompletionKind::Patch,
            Kind::FetchAdd | Kind::CompareSwap | Kind::Swap => CompletionKind::Atomic,
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
