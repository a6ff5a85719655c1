//! Receives with handles, by which threads share a connection: each message goes to one handle alone.

use std::ffi::c_void;

use ethernot::{AccessError, ReceiveHandle};

use crate::bytes::{given, hand_out, has_place, limit, put};
use crate::connection::{CONNECTIONS, Connection};
use crate::failure::{Failure, Result, call};
use crate::handle::Table;
use crate::memory::{MEMORY, Memory};
use crate::operation::{OperationOptions, options_of};

/// A buffer that waits for one message.
pub struct Receive {
    _opaque: [u8; 0],
}

pub(crate) static RECEIVES: Table<ReceiveHandle> = Table::new(7, "a receive");

/// A message that has come.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Message {
    /// The length of the message in bytes.
    pub length: u64,
    /// What the peer sent along.
    pub immediate: u32,
    /// Not 0: there is an immediate.
    pub has_immediate: u32,
}

/// Posts a receive with a handle: memory with the right `ETHERNOT_LOCAL_WRITE` for one message of at most `length` bytes, which
/// `ethernot_receive_wait` of this handle returns, and no completion reports. For programs whose threads share a connection;
/// `ethernot_post_receive` makes a receive without a handle instead. Messages go to the receives of a connection, of
/// both kinds, in the order in which these were posted.
///
/// Of all that make a receive: it is freed by `ethernot_receive_free`. If one was freed before its message was seen, the
/// next `ethernot_receive_post` takes it over, buffer and all: so take the bytes from `ethernot_receive_wait`.
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
        // SAFETY: null was refused above.
        unsafe { put(receive, made) }
    })
}

/// Sends a question, whose bytes must not change until the answer is here, and posts a buffer for the answer, as one: of the questions of
/// several threads the answers come in the order in which they were asked, if the peer answers in order. `options` may be
/// null.
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
        // SAFETY: the program's promise.
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
        // SAFETY: null was refused above.
        unsafe { put(receive, made) }
    })
}

/// Asks as `ethernot_call` does, with a question of up to 64 bytes, which are copied before the call returns.
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
        // SAFETY: the program's promise.
        let (question, options) =
            unsafe { (given(question, question_length)?, options_of(options)?) };
        let (connection, answer) = (CONNECTIONS.get(connection)?, MEMORY.get(answer)?);
        let asked = connection.call(question, &answer.region, offset, length, options)?;
        let made = RECEIVES.add(asked)?;
        // SAFETY: null was refused above.
        unsafe { put(receive, made) }
    })
}

/// Waits for the message of a receive, and copies as much of it as there is room for to `bytes`, which may be null. May be called again
/// after `ETHERNOT_RESULT_TIMED_OUT`; afterwards it returns the same once more.
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
            // SAFETY: the program's promise of room for `capacity` bytes; the copy is an allocation of its own.
            unsafe { hand_out(&copy, bytes, capacity, std::ptr::null_mut()) };
        }
        let description = Message {
            length: received.len() as u64,
            immediate: received.immediate().unwrap_or_default(),
            has_immediate: received.immediate().is_some().into(),
        };
        // SAFETY: null was refused above.
        unsafe { put(message, description) }
    })
}

/// Whether a message has come, or never will: `ETHERNOT_RESULT_OK`, or else `ETHERNOT_RESULT_AGAIN`. Makes no progress by itself.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_receive_test(receive: *mut Receive) -> Result {
    call(|| {
        let is_done = RECEIVES.get(receive)?.is_done();
        let waits = || Failure::new(Result::Again, "no message has come; wait, or test again");
        is_done.then_some(()).ok_or_else(waits)
    })
}

/// Frees the handle of a receive. A message that was not taken goes to the next `ethernot_receive_post` of the connection.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_receive_free(receive: *mut Receive) -> Result {
    call(|| RECEIVES.remove(receive).map(drop))
}
