//! Receives with handles, for threads that share a connection. Each message has exactly one handle.

use std::ffi::c_void;

use ethernot::{AccessError, ReceiveHandle};

use crate::bytes::{given, hand_out, has_place, limit, put};
use crate::connection::{CONNECTIONS, Connection};
use crate::failure::{Failure, Result, call};
use crate::handle::Table;
use crate::memory::{MEMORY, Memory};
use crate::operation::{OperationOptions, options_of};

/// A posted receive: a buffer for one message.
pub struct Receive {
    _opaque: [u8; 0],
}

pub(crate) static RECEIVES: Table<ReceiveHandle> = Table::new(7, "a receive");

/// A received message.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Message {
    /// The length of the message in bytes.
    pub length: u64,
    /// The immediate of the message.
    pub immediate: u32,
    /// Not 0 if the message has an immediate.
    pub has_immediate: u32,
}

/// Posts a receive with a handle for one message of at most `length` bytes. The memory needs the
/// right `ETHERNOT_LOCAL_WRITE`.
///
/// `ethernot_receive_wait` returns the message; no completion reports the message. Use this
/// function if several threads share the connection. `ethernot_post_receive` posts a receive
/// without a handle. Messages consume receives of both kinds in the order in which the program
/// posted the receives.
///
/// For every call that posts a receive with a handle: free the receive with
/// `ethernot_receive_free`. A program may free a receive before it has read the message. The next
/// `ethernot_receive_post` then takes over this receive with its buffer. Therefore read messages
/// with `ethernot_receive_wait`, and not directly from the buffer that was passed to
/// `ethernot_receive_post`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_receive_post(
    connection: *mut Connection,
    memory: *mut Memory,
    offset: u64,
    length: u32,
    receive: *mut *mut Receive,
) -> Result {
    call(|| {
        has_place(receive)?;
        let (connection, memory) = (CONNECTIONS.get(connection)?, MEMORY.get(memory)?);
        let made = RECEIVES.add(connection.receive(&memory.region, offset, length)?)?;
        // SAFETY: null was rejected above.
        unsafe { put(receive, made) }
    })
}

/// Sends a question and posts a receive for the answer, in one step. The program must not change
/// the bytes of the question until the answer has arrived.
///
/// Several threads may call this function on one connection. If the peer answers in order, each
/// thread gets the answer to its own question. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_call(
    connection: *mut Connection,
    question: *mut Memory,
    question_offset: u64,
    question_length: u64,
    answer: *mut Memory,
    offset: u64,
    length: u32,
    options: *const OperationOptions,
    receive: *mut *mut Receive,
) -> Result {
    call(|| {
        has_place(receive)?;
        let (question, answer) = (MEMORY.get(question)?, MEMORY.get(answer)?);
        // SAFETY: the program promises that `options` is null or valid.
        let options = unsafe { options_of(options) }?;
        let asked = CONNECTIONS.get(connection)?.call_from(
            &question.region,
            question_offset,
            question_length,
            &answer.region,
            offset,
            length,
            options,
        )?;
        let made = RECEIVES.add(asked)?;
        // SAFETY: null was rejected above.
        unsafe { put(receive, made) }
    })
}

/// Sends a question of up to 64 bytes, like `ethernot_call`. The call copies the bytes before it
/// returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_call_bytes(
    connection: *mut Connection,
    question: *const c_void,
    question_length: usize,
    answer: *mut Memory,
    offset: u64,
    length: u32,
    options: *const OperationOptions,
    receive: *mut *mut Receive,
) -> Result {
    call(|| {
        has_place(receive)?;
        // SAFETY: the program promises that each pointer is null or valid.
        let (question, options) =
            unsafe { (given(question, question_length)?, options_of(options)?) };
        let (connection, answer) = (CONNECTIONS.get(connection)?, MEMORY.get(answer)?);
        let asked = connection.call(question, &answer.region, offset, length, options)?;
        let made = RECEIVES.add(asked)?;
        // SAFETY: null was rejected above.
        unsafe { put(receive, made) }
    })
}

/// Waits for the message of a receive. Copies at most `capacity` bytes of the message to `bytes`,
/// which may be null.
///
/// After `ETHERNOT_RESULT_TIMED_OUT`, the program may call this function again. After the message
/// has arrived, every call returns the message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_receive_wait(
    receive: *mut Receive,
    timeout_ms: i64,
    bytes: *mut c_void,
    capacity: usize,
    message: *mut Message,
) -> Result {
    call(|| {
        has_place(message)?;
        let received = RECEIVES.get(receive)?.wait(limit(timeout_ms))?;
        if !bytes.is_null() {
            let freed = |error: AccessError| {
                Failure::new(
                    Result::Invalid,
                    format!("the memory of the receive was freed: {error}"),
                )
            };
            let copy = received.to_vec().map_err(freed)?;
            // SAFETY: the program promises room for `capacity` bytes. The copy is a separate
            // allocation, so it does not overlap the program's buffer.
            unsafe { hand_out(&copy, bytes, capacity, std::ptr::null_mut()) };
        }
        let description = Message {
            length: received.len() as u64,
            immediate: received.immediate().unwrap_or_default(),
            has_immediate: received.immediate().is_some().into(),
        };
        // SAFETY: null was rejected above.
        unsafe { put(message, description) }
    })
}

/// Returns `ETHERNOT_RESULT_OK` if the message has arrived or the receive has failed. Otherwise
/// returns `ETHERNOT_RESULT_AGAIN`. This call makes no progress.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_receive_test(receive: *mut Receive) -> Result {
    call(|| {
        let is_done = RECEIVES.get(receive)?.is_done();
        let waits = || Failure::new(Result::Again, "no message has arrived; wait, or test again");
        is_done.then_some(()).ok_or_else(waits)
    })
}

/// Frees the handle of a receive. If the program has not read the message, the next
/// `ethernot_receive_post` of the connection takes over this receive.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_receive_free(receive: *mut Receive) -> Result {
    call(|| RECEIVES.remove(receive).map(drop))
}
