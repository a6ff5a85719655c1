//! Tests that the library returns an error and does not crash if a program misuses it.

use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::thread;

use ethernot_c::attempt::{
    Attempt, ethernot_attempt_free, ethernot_attempt_test, ethernot_attempt_wait,
    ethernot_connect_start, ethernot_request_accept_start,
};
use ethernot_c::connection::{
    Connection, Request, ethernot_accept, ethernot_connect, ethernot_connection_data,
    ethernot_connection_free, ethernot_connection_wait_closed, ethernot_listen,
    ethernot_listener_free, ethernot_request_accept, ethernot_request_reject,
};
use ethernot_c::endpoint::{
    Endpoint, EndpointOptions, ethernot_endpoint_address, ethernot_endpoint_arm,
    ethernot_endpoint_descriptor, ethernot_endpoint_drain, ethernot_endpoint_drive,
    ethernot_endpoint_free, ethernot_endpoint_open,
};
use ethernot_c::failure::{Result, ethernot_last_error, ethernot_result_name};
use ethernot_c::memory::{
    ETHERNOT_LOCAL_WRITE, ETHERNOT_REMOTE_WRITE, Memory, Remote, ethernot_memory_allocate,
    ethernot_memory_data, ethernot_memory_free, ethernot_memory_register, ethernot_memory_remote,
    ethernot_remote_from_bytes, ethernot_remote_to_bytes,
};
use ethernot_c::operation::{
    CompletionKind, Operation, OperationOptions, ethernot_operation_free, ethernot_operation_test,
    ethernot_operation_wait, ethernot_poll, ethernot_send_bytes, ethernot_write,
    ethernot_write_bytes,
};
use ethernot_c::receive::{
    Message, Receive, ethernot_call, ethernot_call_bytes, ethernot_receive_free,
    ethernot_receive_post, ethernot_receive_test, ethernot_receive_wait,
};

use ethernot_c::waiting::{AwaitedKind, Found, WaitedFor, ethernot_wait_any};

fn text() -> String {
    // SAFETY: the pointer is never null. A zero byte ends its text, which is valid until the next
    // call.
    unsafe { CStr::from_ptr(ethernot_last_error()) }.to_string_lossy().into_owned()
}

fn endpoint() -> *mut Endpoint {
    let options = EndpointOptions {
        size: 0,
        links: null(),
        address: c"127.0.0.1:0".as_ptr(),
        port: 0,
        without_progress_thread: 0,
        is_pinned: 0,
        waiting: 0,
        spin_us: 0,
        progress_processor: 0,
    };
    let mut endpoint = null_mut();
    // SAFETY: both pointers are valid.
    let made = unsafe { ethernot_endpoint_open(&raw const options, &raw mut endpoint) };
    assert_eq!(made, Result::Ok, "{}", text());
    endpoint
}

fn memory(endpoint: *mut Endpoint, length: u64) -> *mut Memory {
    memory_for(endpoint, length, ETHERNOT_REMOTE_WRITE)
}

fn memory_for(endpoint: *mut Endpoint, length: u64, rights: u32) -> *mut Memory {
    let mut memory = null_mut();
    // SAFETY: the output pointer is valid.
    let made = unsafe { ethernot_memory_allocate(endpoint, length, rights, &raw mut memory) };
    assert_eq!(made, Result::Ok, "{}", text());
    memory
}

/// Connects two endpoints. Returns the server's connection and the client's connection.
fn connect(server: *mut Endpoint, client: *mut Endpoint) -> (*mut Connection, *mut Connection) {
    let (mut listener, mut address) = (null_mut(), [0; 64]);
    // SAFETY: all output pointers are valid.
    unsafe {
        assert_eq!(ethernot_listen(server, 3, &raw mut listener), Result::Ok);
        let returned = ethernot_endpoint_address(server, 0, address.as_mut_ptr(), address.len());
        assert_eq!(returned, Result::Ok, "{}", text());
    }
    let (listening, client) = (listener.expose_provenance(), client.expose_provenance());
    thread::scope(|scope| {
        let connecting = scope.spawn(move || {
            let options = ethernot_c::connection::ConnectOptions {
                size: 0,
                private_data: c"hi".as_ptr().cast(),
                private_data_length: 2,
                timeout_ms: 20_000,
                service: 3,
                completions: 0,
            };
            let (client, mut connection) =
                (std::ptr::with_exposed_provenance_mut(client), null_mut());
            // SAFETY: all pointers are valid.
            let made = unsafe {
                ethernot_connect(client, address.as_ptr(), &raw const options, &raw mut connection)
            };
            assert_eq!(made, Result::Ok, "{}", text());
            connection.expose_provenance()
        });
        let listener = std::ptr::with_exposed_provenance_mut(listening);
        let (mut request, mut accepted): (*mut Request, _) = (null_mut(), null_mut());
        // SAFETY: all output pointers are valid.
        unsafe {
            assert_eq!(ethernot_accept(listener, 20_000, &raw mut request), Result::Ok);
            let made = ethernot_request_accept(request, null(), &raw mut accepted);
            assert_eq!(made, Result::Ok, "{}", text());
            let again = ethernot_request_accept(request, null(), &raw mut accepted);
            assert_eq!(again, Result::BadHandle, "it was answered");
        }
        assert_eq!(ethernot_listener_free(listener), Result::Ok);
        let connected = connecting.join().expect("no panic");
        (accepted, std::ptr::with_exposed_provenance_mut(connected))
    })
}

#[test]
fn null_is_an_error_everywhere() {
    let mut place = 0_usize;
    let any = (&raw mut place).cast::<c_void>();
    // SAFETY: null pointers are passed on purpose. All other pointers are valid.
    unsafe {
        assert_eq!(ethernot_endpoint_open(null(), null_mut()), Result::Invalid);
        assert_eq!(ethernot_memory_allocate(null_mut(), 8, 0, any.cast()), Result::BadHandle);
        assert_eq!(ethernot_memory_data(null_mut(), any.cast(), null_mut()), Result::BadHandle);
        assert_eq!(ethernot_connect(null_mut(), null(), null(), any.cast()), Result::Invalid);
        assert_eq!(
            ethernot_connection_data(null_mut(), null_mut(), 0, null_mut()),
            Result::BadHandle
        );
        assert_eq!(ethernot_remote_to_bytes(null(), null_mut()), Result::Invalid);
        assert_eq!(ethernot_remote_from_bytes(null(), 20, null_mut()), Result::Invalid);
        assert_eq!(ethernot_poll(null_mut(), null_mut()), Result::Invalid);
        assert_eq!(ethernot_operation_wait(null_mut(), 0, null_mut()), Result::BadHandle);
    }
    assert_eq!(ethernot_endpoint_free(null_mut()), Result::BadHandle);
    assert_eq!(ethernot_operation_test(null_mut()), Result::BadHandle);
    assert_eq!(ethernot_connection_free(null_mut()), Result::BadHandle);
    assert_eq!(ethernot_memory_free(null_mut()), Result::BadHandle);
    assert!(text().contains("null"), "{}", text());
    assert_eq!(place, 0, "nothing was written");
}

#[test]
fn freed_handles_and_handles_of_another_kind_are_errors() {
    let endpoint = endpoint();
    let memory = memory(endpoint, 64);
    assert_eq!(ethernot_endpoint_drive(memory.cast()), Result::BadHandle);
    assert!(text().contains("another kind"), "{}", text());
    assert_eq!(ethernot_memory_free(memory), Result::Ok);
    assert_eq!(ethernot_memory_free(memory), Result::BadHandle);
    assert_eq!(ethernot_endpoint_free(endpoint), Result::Ok);
    assert_eq!(ethernot_endpoint_drive(endpoint), Result::BadHandle);
}

#[test]
fn invalid_calls_during_the_life_of_an_operation_fail() {
    let (server, client) = (endpoint(), endpoint());
    let (target, source) = (memory(server, 64), memory(client, 64));
    let (accepted, connected) = connect(server, client);
    let mut buffer = [0_u8; 8];
    let mut length = 0;
    let mut remote = Remote { address: 0, length: 0, key: 0, reserved: 0 };
    let mut operation: *mut Operation = null_mut();
    // SAFETY: all output pointers are valid.
    unsafe {
        let data = buffer.as_mut_ptr().cast();
        assert_eq!(ethernot_connection_data(accepted, data, 8, &raw mut length), Result::Ok);
        assert_eq!((length, &buffer[..2]), (2, &b"hi"[..]));
        assert_eq!(ethernot_memory_remote(target, &raw mut remote), Result::Ok);
        let write = |offset, length, options, operation| {
            let remote = &raw const remote;
            ethernot_write(connected, source, 0, remote, offset, length, options, operation)
        };
        assert_eq!(write(0, 64, null(), &raw mut operation), Result::Ok);
        assert_eq!(
            ethernot_operation_wait(operation, 20_000, null_mut()),
            Result::Ok,
            "{}",
            text()
        );
        assert_eq!(ethernot_operation_test(operation), Result::Ok);
        assert_eq!(ethernot_operation_free(operation), Result::Ok);
        assert_eq!(ethernot_operation_wait(operation, 0, null_mut()), Result::BadHandle);
        assert_eq!(write(1, 64, null(), null_mut()), Result::Invalid);
        assert!(text().contains("exceed the remote region"), "{}", text());
        let unknown = OperationOptions { size: 0, context: 0, flags: 1 << 20, immediate: 0 };
        assert_eq!(write(0, 64, &raw const unknown, null_mut()), Result::Invalid);
        let (bytes, of) = ([0_u8; 65], &raw const remote);
        let many = bytes.as_ptr().cast();
        let refused = ethernot_write_bytes(connected, many, 65, of, 0, null(), null_mut());
        assert_eq!(refused, Result::Invalid);
    }
    assert_eq!(ethernot_connection_wait_closed(connected, 0), Result::TimedOut);
    assert_eq!(ethernot_connection_free(connected), Result::Ok);
    assert_eq!(ethernot_connection_wait_closed(accepted, 20_000), Result::Closed);
    assert!(text().contains("closed by the peer"), "{}", text());
    for freed in [ethernot_connection_free(accepted), ethernot_memory_free(target)] {
        assert_eq!(freed, Result::Ok);
    }
    assert_eq!(ethernot_memory_free(source), Result::Ok);
    assert_eq!(ethernot_endpoint_free(server), Result::Ok);
    assert_eq!(ethernot_endpoint_free(client), Result::Ok);
}

const NO_MESSAGE: Message = Message { length: 0, immediate: 0, has_immediate: 0 };

/// Answers `count` questions. Each answer consists of the bytes of its question.
///
/// # Safety
/// There are no requirements, because handles are numbers and any number is allowed.
unsafe fn echo(connection: usize, memory: usize, count: u32) {
    let connection = std::ptr::with_exposed_provenance_mut::<Connection>(connection);
    let memory = std::ptr::with_exposed_provenance_mut::<Memory>(memory);
    for _ in 0..count {
        let (mut receive, mut bytes, mut message) = (null_mut(), [0_u8; 8], NO_MESSAGE);
        // SAFETY: all output pointers are valid.
        unsafe {
            let posted = ethernot_receive_post(connection, memory, 0, 8, &raw mut receive);
            assert_eq!(posted, Result::Ok, "{}", text());
            let into = bytes.as_mut_ptr().cast();
            let waited = ethernot_receive_wait(receive, 20_000, into, 8, &raw mut message);
            assert_eq!(waited, Result::Ok, "{}", text());
            assert_eq!(ethernot_receive_free(receive), Result::Ok);
            let length = message.length as usize;
            let from = bytes.as_ptr().cast();
            let sent = ethernot_send_bytes(connection, from, length, null(), null_mut());
            assert_eq!(sent, Result::Ok, "{}", text());
        }
    }
}

#[test]
fn threads_sharing_a_connection_get_their_own_answers() {
    const EACH: u32 = 500;
    let (server, client) = (endpoint(), endpoint());
    let [inbox, answers] =
        [server, client].map(|endpoint| memory_for(endpoint, 64, ETHERNOT_LOCAL_WRITE));
    let (accepted, connected) = connect(server, client);
    let [accepted, inbox, connected, answers] = [
        accepted.expose_provenance(),
        inbox.expose_provenance(),
        connected.expose_provenance(),
        answers.expose_provenance(),
    ];
    thread::scope(|scope| {
        // SAFETY: both arguments are handles.
        scope.spawn(move || unsafe { echo(accepted, inbox, 2 * EACH) });
        for number in 0..2_u8 {
            scope.spawn(move || {
                let connected = std::ptr::with_exposed_provenance_mut::<Connection>(connected);
                let answers = std::ptr::with_exposed_provenance_mut::<Memory>(answers);
                for round in 0..EACH {
                    let question = [number, 0, 0, 0, round as u8, 1, 2, 3];
                    let (mut receive, mut got, mut message) = (null_mut(), [0_u8; 8], NO_MESSAGE);
                    let (asked, into) = (question.as_ptr().cast(), got.as_mut_ptr().cast());
                    let (at, none) = (u64::from(number) * 8, null());
                    let place = &raw mut receive;
                    // SAFETY: all output pointers are valid.
                    let waited = unsafe {
                        let called =
                            ethernot_call_bytes(connected, asked, 8, answers, at, 8, none, place);
                        assert_eq!(called, Result::Ok, "{}", text());
                        ethernot_receive_wait(receive, 20_000, into, 8, &raw mut message)
                    };
                    assert_eq!(waited, Result::Ok, "{}", text());
                    assert_eq!((got, message.length, message.has_immediate), (question, 8, 0));
                    assert_eq!(ethernot_receive_free(receive), Result::Ok);
                }
            });
        }
    });
    for endpoint in [server, client] {
        assert_eq!(ethernot_endpoint_free(endpoint), Result::Ok);
    }
}

#[test]
fn invalid_calls_during_the_life_of_a_receive_fail() {
    let (server, client) = (endpoint(), endpoint());
    let inbox = memory_for(server, 64, ETHERNOT_LOCAL_WRITE);
    let (accepted, connected) = connect(server, client);
    let (mut receive, mut message): (*mut Receive, _) = (null_mut(), NO_MESSAGE);
    let (mut two, into_message) = ([0_u8; 2], &raw mut message);
    let into = two.as_mut_ptr().cast();
    // SAFETY: each output pointer is valid, or null on purpose.
    unsafe {
        let post =
            |offset, length, place| ethernot_receive_post(accepted, inbox, offset, length, place);
        assert_eq!(post(0, 8, null_mut()), Result::Invalid);
        assert_eq!(post(60, 8, &raw mut receive), Result::Invalid);
        assert_eq!(post(0, 8, &raw mut receive), Result::Ok);
        assert_eq!(ethernot_receive_test(receive), Result::Again);
        assert_eq!(ethernot_receive_wait(receive, 0, into, 2, into_message), Result::TimedOut);
        assert_eq!(ethernot_receive_wait(receive, 0, into, 2, null_mut()), Result::Invalid);
        let bytes = c"abc".as_ptr().cast();
        assert_eq!(ethernot_send_bytes(connected, bytes, 3, null(), null_mut()), Result::Ok);
        for _ in 0..2 {
            assert_eq!(ethernot_receive_wait(receive, 20_000, into, 2, into_message), Result::Ok);
        }
        assert_eq!((&two, message.length), (b"ab", 3), "as much as there is room for");
        assert_eq!(ethernot_receive_wait(receive, 0, null_mut(), 0, into_message), Result::Ok);
        assert_eq!(ethernot_receive_test(receive), Result::Ok);
        assert_eq!(ethernot_memory_free(inbox), Result::Ok);
        two = [0; 2];
        assert_eq!(ethernot_receive_wait(receive, 0, into, 2, into_message), Result::Ok);
        assert_eq!(&two, b"ab", "the message keeps the memory");
        assert_eq!(ethernot_receive_free(receive), Result::Ok);
        assert_eq!(ethernot_receive_free(receive), Result::BadHandle);
        assert_eq!(ethernot_receive_wait(receive, 0, into, 2, into_message), Result::BadHandle);
        let mut answer = null_mut();
        let place = &raw mut answer;
        let many = [0_u8; 65];
        let asked = many.as_ptr().cast();
        let refused = ethernot_call_bytes(connected, asked, 65, inbox, 0, 8, null(), place);
        assert_eq!(refused, Result::BadHandle, "the memory was freed");
        let answers = memory_for(client, 64, ETHERNOT_LOCAL_WRITE);
        let refused = ethernot_call_bytes(connected, asked, 65, answers, 0, 8, null(), place);
        assert_eq!(refused, Result::Invalid, "too long a question");
        let refused = ethernot_call(connected, answers, 60, 8, answers, 0, 8, null(), place);
        assert_eq!(refused, Result::Invalid, "it leaves the memory");
        assert_eq!(
            ethernot_call(connected, answers, 8, 8, answers, 0, 8, null(), place),
            Result::Ok
        );
        assert_eq!(ethernot_connection_free(accepted), Result::Ok);
        let closed = ethernot_receive_wait(answer, 20_000, null_mut(), 0, into_message);
        assert!(matches!(closed, Result::Failed | Result::Closed), "{closed:?}: {}", text());
        assert_eq!(ethernot_receive_free(answer), Result::Ok);
    }
    for endpoint in [server, client] {
        assert_eq!(ethernot_endpoint_free(endpoint), Result::Ok);
    }
}

/// Returns the address of an endpoint as text that ends with a zero byte.
fn address_of(endpoint: *mut Endpoint) -> [std::ffi::c_char; 64] {
    let mut address = [0; 64];
    // SAFETY: the array has room for the address.
    let returned =
        unsafe { ethernot_endpoint_address(endpoint, 0, address.as_mut_ptr(), address.len()) };
    assert_eq!(returned, Result::Ok, "{}", text());
    address
}

#[test]
fn an_attempt_can_be_tested_and_awaited_and_returns_its_outcome_once() {
    let (server, client) = (endpoint(), endpoint());
    let address = address_of(server);
    let mut listener = null_mut();
    let (mut connecting, mut accepting): (*mut Attempt, *mut Attempt) = (null_mut(), null_mut());
    let (mut connected, mut accepted): (*mut Connection, *mut Connection) =
        (null_mut(), null_mut());
    let mut request = null_mut();
    // SAFETY: each output pointer is valid, or null on purpose.
    unsafe {
        assert_eq!(ethernot_listen(server, 0, &raw mut listener), Result::Ok);
        let peer = address.as_ptr();
        let start = |place| ethernot_connect_start(client, peer, null(), place);
        assert_eq!(start(null_mut()), Result::Invalid);
        assert_eq!(start(&raw mut connecting), Result::Ok, "{}", text());
        assert_eq!(ethernot_attempt_test(connecting, null_mut()), Result::Invalid);
        assert_eq!(ethernot_attempt_test(connecting, &raw mut connected), Result::Again);
        assert_eq!(ethernot_attempt_wait(connecting, 0, &raw mut connected), Result::TimedOut);
        assert_eq!(ethernot_accept(listener, 20_000, &raw mut request), Result::Ok);
        let started = ethernot_request_accept_start(request, null(), &raw mut accepting);
        assert_eq!(started, Result::Ok, "{}", text());
        let again = ethernot_request_accept_start(request, null(), &raw mut accepting);
        assert_eq!(again, Result::BadHandle, "it was answered");
        let waited = ethernot_attempt_wait(accepting, 20_000, &raw mut accepted);
        assert_eq!(waited, Result::Ok, "{}", text());
        while ethernot_attempt_test(connecting, &raw mut connected) == Result::Again {}
        assert!(!connected.is_null() && !accepted.is_null(), "{}", text());
        assert_eq!(ethernot_attempt_wait(connecting, 0, &raw mut connected), Result::Invalid);
        assert_eq!(ethernot_attempt_test(accepting, &raw mut accepted), Result::Closed);
        for attempt in [connecting, accepting] {
            assert_eq!(ethernot_attempt_free(attempt), Result::Ok);
            assert_eq!(ethernot_attempt_free(attempt), Result::BadHandle);
        }
        // A cancelled attempt leaves no request at the peer, or a request that fails when the peer
        // accepts it.
        assert_eq!(start(&raw mut connecting), Result::Ok, "{}", text());
        assert_eq!(ethernot_attempt_free(connecting), Result::Ok);
        for connection in [connected, accepted] {
            assert_eq!(ethernot_connection_free(connection), Result::Ok);
        }
        assert_eq!(ethernot_listener_free(listener), Result::Ok);
    }
    for endpoint in [server, client] {
        assert_eq!(ethernot_endpoint_free(endpoint), Result::Ok);
    }
}

#[test]
fn one_call_waits_for_objects_of_every_kind() {
    let (server, client) = (endpoint(), endpoint());
    let inbox = memory_for(server, 64, ETHERNOT_LOCAL_WRITE | ETHERNOT_REMOTE_WRITE);
    let (accepted, connected) = connect(server, client);
    let address = address_of(server);
    let (mut listener, mut receive, mut write) = (null_mut(), null_mut(), null_mut());
    let mut found = std::mem::MaybeUninit::<Found>::uninit();
    let waited_for = |kind: AwaitedKind, handle: *const c_void| WaitedFor {
        handle,
        kind: kind as i32,
        reserved: 0,
    };
    // SAFETY: each output pointer is valid, or null on purpose.
    unsafe {
        assert_eq!(ethernot_listen(server, 0, &raw mut listener), Result::Ok);
        assert_eq!(ethernot_receive_post(accepted, inbox, 0, 8, &raw mut receive), Result::Ok);
        let all = [
            waited_for(AwaitedKind::Message, receive.cast()),
            waited_for(AwaitedKind::Completion, accepted.cast()),
            waited_for(AwaitedKind::Request, listener.cast()),
            waited_for(AwaitedKind::End, accepted.cast()),
        ];
        let place = found.as_mut_ptr();
        let wait = |awaited: &[WaitedFor], timeout_ms| {
            ethernot_wait_any(server, awaited.as_ptr(), awaited.len(), timeout_ms, place)
        };
        assert_eq!(ethernot_wait_any(server, null(), 1, 0, place), Result::Invalid);
        assert_eq!(ethernot_wait_any(server, all.as_ptr(), 4, 0, null_mut()), Result::Invalid);
        assert_eq!(wait(&[WaitedFor { kind: 6, ..all[0] }], 0), Result::Invalid);
        assert!(text().contains("kind 6"), "{}", text());
        assert_eq!(wait(&[WaitedFor { kind: 2, ..all[0] }], 0), Result::BadHandle);
        assert_eq!(wait(&[waited_for(AwaitedKind::End, connected.cast())], 0), Result::Invalid);
        assert_eq!((wait(&all, 0), wait(&[], 0)), (Result::TimedOut, Result::TimedOut));

        let bytes = c"message".as_ptr().cast();
        assert_eq!(ethernot_send_bytes(connected, bytes, 7, null(), null_mut()), Result::Ok);
        assert_eq!(wait(&all, 20_000), Result::Ok, "{}", text());
        let first = found.assume_init();
        assert_eq!((first.index, first.result, first.request), (0, Result::Ok, null_mut()));
        let all = &all[1..];

        let mut remote = Remote { address: 0, length: 0, key: 0, reserved: 0 };
        assert_eq!(ethernot_memory_remote(inbox, &raw mut remote), Result::Ok);
        let notify = OperationOptions { size: 0, context: 0, flags: 16, immediate: 0 };
        let (remote, options) = (&raw const remote, &raw const notify);
        let written = ethernot_write_bytes(connected, bytes, 7, remote, 8, options, &raw mut write);
        assert_eq!(written, Result::Ok, "{}", text());
        assert_eq!(wait(all, 20_000), Result::Ok, "{}", text());
        let second = found.assume_init();
        assert_eq!((second.index, second.result), (0, Result::Ok));
        assert_eq!(
            (second.completion.kind, second.completion.bytes),
            (CompletionKind::Notification, 7)
        );
        let write_ends = [waited_for(AwaitedKind::Operation, write.cast())];
        let ended = ethernot_wait_any(client, write_ends.as_ptr(), 1, 20_000, place);
        assert_eq!((ended, found.assume_init().result), (Result::Ok, Result::Ok), "{}", text());

        let mut connecting = null_mut();
        let started = ethernot_connect_start(client, address.as_ptr(), null(), &raw mut connecting);
        assert_eq!(started, Result::Ok, "{}", text());
        assert_eq!(wait(all, 20_000), Result::Ok, "{}", text());
        let third = found.assume_init();
        assert_eq!(third.index, 1);
        assert_eq!(ethernot_request_reject(third.request, null(), 0), Result::Ok);
        assert_eq!(ethernot_attempt_free(connecting), Result::Ok);

        assert_eq!(ethernot_operation_free(write), Result::Ok);
        assert_eq!(ethernot_connection_free(connected), Result::Ok);
        assert_eq!(wait(all, 20_000), Result::Ok, "{}", text());
        let last = found.assume_init();
        assert_eq!((last.index, last.result), (2, Result::Closed));
        assert_eq!(ethernot_receive_free(receive), Result::Ok);
        assert_eq!(ethernot_listener_free(listener), Result::Ok);
    }
    for endpoint in [server, client] {
        assert_eq!(ethernot_endpoint_free(endpoint), Result::Ok);
    }
}

#[test]
fn library_memory_is_freed_when_unused_and_program_memory_at_once() {
    let (server, client) = (endpoint(), endpoint());
    let mut own = [0_u8; 8];
    let (mut kept, mut given_up) = (null_mut(), null_mut());
    let (accepted, connected) = connect(server, client);
    let inbox = memory_for(server, 8, ETHERNOT_LOCAL_WRITE);
    let mut message = NO_MESSAGE;
    let mut got = [0_u8; 7];
    let into_message = &raw mut message;
    // SAFETY: all output pointers are valid. The program's memory exists until the call that frees
    // it has returned.
    unsafe {
        let mut memory = null_mut();
        let (start, rights) = (own.as_mut_ptr().cast(), ETHERNOT_LOCAL_WRITE);
        let made = ethernot_memory_register(server, start, 8, rights, &raw mut memory);
        assert_eq!(made, Result::Ok, "{}", text());
        assert_eq!(ethernot_receive_post(accepted, inbox, 0, 8, &raw mut kept), Result::Ok);
        assert_eq!(ethernot_receive_post(accepted, memory, 0, 8, &raw mut given_up), Result::Ok);
        assert_eq!(ethernot_memory_free(inbox), Result::Ok);
        let bytes = c"in time".as_ptr().cast();
        assert_eq!(ethernot_send_bytes(connected, bytes, 7, null(), null_mut()), Result::Ok);
        let into = got.as_mut_ptr().cast();
        assert_eq!(
            ethernot_receive_wait(kept, 20_000, into, 7, into_message),
            Result::Ok,
            "{}",
            text()
        );
        assert_eq!((&got, message.length), (b"in time", 7));

        assert_eq!(ethernot_memory_free(memory), Result::Ok);
        assert_eq!(ethernot_send_bytes(connected, bytes, 7, null(), null_mut()), Result::Ok);
        let ended = ethernot_receive_wait(given_up, 20_000, null_mut(), 0, into_message);
        assert_eq!(ended, Result::Failed, "{}", text());
        assert_eq!(ethernot_connection_wait_closed(accepted, 20_000), Result::Closed);
        for receive in [kept, given_up] {
            assert_eq!(ethernot_receive_free(receive), Result::Ok);
        }
    }
    assert_eq!(own, [0; 8], "nothing was placed there");
    for endpoint in [server, client] {
        assert_eq!(ethernot_endpoint_free(endpoint), Result::Ok);
    }
}

#[test]
fn program_memory_is_registered_in_place() {
    let endpoint = endpoint();
    let mut mine = [7_u64; 8];
    let (mut memory, mut data, mut length) = (null_mut(), null_mut(), 0);
    let start: *mut c_void = (&raw mut mine).cast();
    // SAFETY: the memory exists longer than its registration, and the output pointers are valid.
    unsafe {
        let none = ethernot_memory_register(endpoint, null_mut(), 64, 0, &raw mut memory);
        assert_eq!(none, Result::Invalid);
        let unknown = ethernot_memory_register(endpoint, start, 64, 1 << 9, &raw mut memory);
        assert_eq!(unknown, Result::Invalid);
        let made =
            ethernot_memory_register(endpoint, start, 64, ETHERNOT_REMOTE_WRITE, &raw mut memory);
        assert_eq!(made, Result::Ok, "{}", text());
        assert_eq!(ethernot_memory_data(memory, &raw mut data, &raw mut length), Result::Ok);
    }
    assert_eq!((data, length), (start, 64));
    assert_eq!(ethernot_memory_free(memory), Result::Ok);
    assert_eq!(ethernot_endpoint_free(endpoint), Result::Ok);
}

#[test]
fn an_armed_endpoint_has_a_descriptor_to_sleep_on() {
    let endpoint = endpoint();
    let mut descriptor = -1;
    // SAFETY: the output pointer is valid, or null on purpose.
    unsafe {
        assert_eq!(ethernot_endpoint_descriptor(endpoint, &raw mut descriptor), Result::Ok);
        assert_eq!(ethernot_endpoint_descriptor(endpoint, null_mut()), Result::Invalid);
    }
    assert!(descriptor >= 0);
    while ethernot_endpoint_arm(endpoint) == Result::Again {}
    assert_eq!(ethernot_endpoint_arm(null_mut()), Result::BadHandle);
    assert_eq!(ethernot_endpoint_drain(endpoint), Result::Ok);
    assert_eq!(ethernot_endpoint_free(endpoint), Result::Ok);
}

#[test]
fn every_result_has_a_name() {
    let name = |number| {
        // SAFETY: the function returns a constant that ends with a zero byte.
        unsafe { CStr::from_ptr(ethernot_result_name(number)) }.to_string_lossy()
    };
    assert_eq!((name(0), name(Result::Fault as i32)), ("ok".into(), "fault".into()));
    assert_eq!((name(-1), name(13)), ("unknown".into(), "unknown".into()));
}
