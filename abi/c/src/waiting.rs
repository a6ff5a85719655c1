//! Waits for several events at the same time.

use std::ffi::c_void;
use std::sync::Arc;

use ethernot::{Awaited, Occurred};

use crate::bytes::{has_place, limit, put};
use crate::connection::{CONNECTIONS, LISTENERS, REQUESTS, Request};
use crate::endpoint::{ENDPOINTS, Endpoint};
use crate::failure::{Failure, Result, call};
use crate::operation::{Completion, OPERATIONS, completion_of};
use crate::receive::RECEIVES;

/// The kind of an event for which `ethernot_wait_any` can wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(i32)]
pub enum AwaitedKind {
    /// A connection request. `handle` is the handle of a listener.
    Request = 1,
    /// A completion. `handle` is the handle of a connection.
    Completion = 2,
    /// The end of a connection. `handle` is the handle of the connection. If the connection has
    /// already ended, the call returns this event at once.
    End = 3,
    /// The end of an operation. `handle` is the handle of the operation.
    Operation = 4,
    /// A message. `handle` is the handle of a receive.
    Message = 5,
}

/// An event for which `ethernot_wait_any` waits.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WaitedFor {
    /// The handle, of the type that `kind` requires.
    pub handle: *const c_void,
    /// A value of `ethernot_awaited_kind`.
    pub kind: i32,
    /// Reserved, always 0.
    pub reserved: u32,
}

/// The event that `ethernot_wait_any` returns.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Found {
    /// Index of the event in the array `awaited`.
    pub index: usize,
    /// For `ETHERNOT_AWAITED_KIND_REQUEST`, the request that `ethernot_accept` would return.
    /// Otherwise null.
    pub request: *mut Request,
    /// For `ETHERNOT_AWAITED_KIND_COMPLETION`, the completion. Otherwise all fields of the
    /// completion except its kind are zero.
    pub completion: Completion,
    /// For `ETHERNOT_AWAITED_KIND_OPERATION`, the old value of the word if the operation was an
    /// atomic. Otherwise 0.
    pub value: u64,
    /// `ETHERNOT_RESULT_FAILED` if an operation or a receive has failed. `ETHERNOT_RESULT_CLOSED`
    /// if a connection has ended. Otherwise `ETHERNOT_RESULT_OK`.
    pub result: Result,
    /// Reserved, always 0.
    pub reserved: u32,
}

/// The object of a handle.
enum Object {
    Listener(Arc<ethernot::Listener>),
    Completion(Arc<ethernot::Connection>),
    End(Arc<ethernot::Connection>),
    Operation(Arc<ethernot::OperationHandle>),
    Message(Arc<ethernot::ReceiveHandle>),
}

impl Object {
    fn of(waited: &WaitedFor) -> std::result::Result<Self, Failure> {
        let handle = waited.handle;
        Ok(match waited.kind {
            1 => Self::Listener(LISTENERS.get(handle)?),
            2 => Self::Completion(CONNECTIONS.get(handle)?),
            3 => Self::End(CONNECTIONS.get(handle)?),
            4 => Self::Operation(OPERATIONS.get(handle)?),
            5 => Self::Message(RECEIVES.get(handle)?),
            other => {
                let text = format!("kind {other} is none of ethernot_awaited_kind");
                return Err(Failure::new(Result::Invalid, text));
            }
        })
    }

    fn awaited(&self) -> Awaited<'_> {
        match self {
            Self::Listener(listener) => Awaited::Request(listener),
            Self::Completion(connection) => Awaited::Completion(connection.queue()),
            Self::End(connection) => Awaited::End(connection),
            Self::Operation(operation) => Awaited::Operation(operation),
            Self::Message(receive) => Awaited::Message(receive),
        }
    }
}

/// Waits until one of the `count` events in `awaited` has occurred. All events must belong to one
/// endpoint. The call checks the events in the order of the array. If several events have occurred,
/// the call returns the first of these events.
///
/// The call removes a returned request or completion from its queue. A message stays in its
/// receive; `ethernot_receive_wait` returns it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_wait_any(
    endpoint: *mut Endpoint,
    awaited: *const WaitedFor,
    count: usize,
    timeout_ms: i64,
    found: *mut Found,
) -> Result {
    call(|| {
        has_place(found)?;
        let awaited = match (awaited.is_null(), count) {
            (_, 0) => &[],
            (true, _) => return Err(Failure::null("the things to wait for")),
            // SAFETY: the program promises that `awaited` points to `count` elements.
            (false, _) => unsafe { std::slice::from_raw_parts(awaited, count) },
        };
        let endpoint = ENDPOINTS.get(endpoint)?;
        let objects: std::result::Result<Vec<_>, _> = awaited.iter().map(Object::of).collect();
        let objects = objects?;
        let awaited: Vec<_> = objects.iter().map(Object::awaited).collect();
        let (index, occurred) = endpoint.wait_any(&awaited, limit(timeout_ms))?;
        // SAFETY: null was rejected above.
        unsafe { put(found, found_of(index, occurred)?) }
    })
}

fn found_of(index: usize, occurred: Occurred) -> std::result::Result<Found, Failure> {
    let nothing = Found {
        index,
        request: std::ptr::null_mut(),
        completion: Completion::NOTHING,
        value: 0,
        result: Result::Ok,
        reserved: 0,
    };
    Ok(match occurred {
        Occurred::Request(request) => {
            Found { request: REQUESTS.add(std::sync::Mutex::new(Some(request)))?, ..nothing }
        }
        Occurred::Completion(completion) => {
            let completion = completion_of(&completion);
            Found { completion, result: completion.result, ..nothing }
        }
        Occurred::End(..) => Found { result: Result::Closed, ..nothing },
        Occurred::Operation(Ok(value)) => Found { value, ..nothing },
        Occurred::Message(Ok(_)) => nothing,
        // Later versions may add kinds. They cannot occur here, because a program of this version
        // cannot wait for them.
        _ => Found { result: Result::Failed, ..nothing },
    })
}
