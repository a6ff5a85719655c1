//! What fuzz targets do with the bytes that they are given. It panics when something that must hold
//! does not.
//!
//! The targets themselves (`fuzz/`) need a fuzzer. `tests/replay.rs` runs the same on a stable
//! compiler with what is in the corpus and some thousand inputs made from it, in every `./x test`.
#![forbid(unsafe_code)]

mod control_messages;
mod decode_datagram;
mod decode_frame;
mod decode_handshake;
mod goal_trace;
mod redirect_port;

/// Runs one fuzz target on an input.
pub type Case = fn(&[u8]);

/// All fuzz targets by name, except `engine_frames`: it uses the test code of the engine, so it is in
/// the folder of the tests.
pub const CASES: [(&str, Case); 14] = [
    ("connection_manager", connection_manager),
    ("control_messages", control_messages),
    ("decode_datagram", decode_datagram),
    ("decode_frame", decode_frame),
    ("decode_handshake", decode_handshake),
    ("redirect_port", redirect_port),
    ("ethernet_frame", ethernet_frame),
    ("goal_trace", goal_trace),
    ("greeting", greeting),
    ("shm_messages", shm_messages),
    ("shm_ring", shm_ring),
    ("sockets_message", sockets_message),
    ("sockets_offer", sockets_offer),
    ("sockets_rules", sockets_rules),
];

/// Takes any bytes as a message between two ids of the connection manager: does not panic, and what is accepted survives
/// encoding.
pub fn connection_manager(bytes: &[u8]) {
    rdma_cm::fuzz_message(bytes);
}

/// Takes any bytes as control messages: does not panic, ends, and what is accepted survives encoding.
pub fn control_messages(bytes: &[u8]) {
    control_messages::run(bytes);
}

/// Takes any bytes as a datagram: does not panic, and what is accepted survives encoding.
pub fn decode_datagram(bytes: &[u8]) {
    decode_datagram::run(bytes);
}

/// Takes any bytes as a connection frame: does not panic, and what is accepted is what an encoder makes.
pub fn decode_frame(bytes: &[u8]) {
    decode_frame::run(bytes);
}

/// Takes any bytes as a handshake frame: does not panic, and what is accepted survives encoding.
pub fn decode_handshake(bytes: &[u8]) {
    decode_handshake::run(bytes);
}

/// Takes any bytes at a redirect port: does not panic, and gives no answer that is malformed, or longer than its cause.
pub fn redirect_port(bytes: &[u8]) {
    redirect_port::run(bytes);
}

/// Takes any bytes as an Ethernet frame: does not panic, and delivers nothing that is not in it; and as the
/// content of one, which arrives as it was sent.
pub fn ethernet_frame(bytes: &[u8]) {
    link::fuzz_ethernet_frame(&mut bytes.to_vec());
}

/// Takes any bytes as a trace in GOAL: does not panic, and what is accepted survives encoding.
pub fn goal_trace(bytes: &[u8]) {
    goal_trace::run(bytes);
}

/// Takes any bytes as a greeting between two ends of a queue pair: does not panic, and what is accepted survives encoding.
pub fn greeting(bytes: &[u8]) {
    verbs_edge::fuzz_greeting(bytes);
}

/// Takes any bytes as what a process says over the Unix socket that goes with shared memory: does not panic, and
/// what is accepted is what an encoder makes.
pub fn shm_messages(bytes: &[u8]) {
    link::fuzz_shm_messages(bytes);
}

/// Takes any bytes as what a peer writes into shared memory: this end stays within it and does not panic.
pub fn shm_ring(bytes: &[u8]) {
    link::fuzz_shm_ring(bytes);
}

/// Takes any bytes as a message of a link group, or what goes along with the request for one: does not panic, and what is accepted
/// survives encoding.
pub fn sockets_message(bytes: &[u8]) {
    sockets::fuzz_message(bytes);
    sockets::fuzz_record(bytes);
}

/// Takes any bytes as a datagram at the rendezvous socket of a connection: does not panic, and what is accepted survives encoding.
pub fn sockets_offer(bytes: &[u8]) {
    sockets::fuzz_offer(bytes);
}

/// Takes any bytes as a file of rules that say which TCP connections move: does not panic, and what is accepted survives writing.
pub fn sockets_rules(bytes: &[u8]) {
    sockets::fuzz_rules(bytes);
}
