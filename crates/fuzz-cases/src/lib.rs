//! The code of the fuzz targets: each runs on an input and panics if a property does not hold.
//!
//! The targets in `fuzz/` call this code, and need a fuzzer. In every `./x test`, `tests/replay.rs`
//! runs the same code with a stable compiler, on the corpus and on some thousand inputs derived
//! from it.
#![forbid(unsafe_code)]

mod control_messages;
mod decode_datagram;
mod decode_frame;
mod decode_handshake;
mod goal_trace;
mod redirect_port;

/// Runs one fuzz target on an input.
pub type Case = fn(&[u8]);

/// All fuzz targets by name, except `engine_frames`, which is in the folder of the tests because it
/// uses the engine's test code.
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

/// Decodes arbitrary bytes as a message between two ids of the connection manager. Must not panic;
/// an accepted message must survive encoding.
pub fn connection_manager(bytes: &[u8]) {
    rdma_cm::fuzz_message(bytes);
}

/// Decodes arbitrary bytes as control messages. Must not panic and must end; accepted messages must
/// survive encoding.
pub fn control_messages(bytes: &[u8]) {
    control_messages::run(bytes);
}

/// Decodes arbitrary bytes as a datagram. Must not panic; an accepted datagram must survive
/// encoding.
pub fn decode_datagram(bytes: &[u8]) {
    decode_datagram::run(bytes);
}

/// Decodes arbitrary bytes as a connection frame. Must not panic; an encoder must produce the same
/// bytes for an accepted frame.
pub fn decode_frame(bytes: &[u8]) {
    decode_frame::run(bytes);
}

/// Decodes arbitrary bytes as a handshake frame. Must not panic; an accepted frame must survive
/// encoding.
pub fn decode_handshake(bytes: &[u8]) {
    decode_handshake::run(bytes);
}

/// Passes arbitrary bytes to a redirect port as a datagram. Must not panic; an answer must be
/// well-formed and no longer than protocol.md §4.5 permits.
pub fn redirect_port(bytes: &[u8]) {
    redirect_port::run(bytes);
}

/// Receives arbitrary bytes as an Ethernet frame: must not panic, and must deliver only bytes of
/// the frame. Also sends them as the content of a frame, which must arrive unchanged.
pub fn ethernet_frame(bytes: &[u8]) {
    link::fuzz_ethernet_frame(&mut bytes.to_vec());
}

/// Parses arbitrary bytes as a trace in GOAL. Must not panic; an accepted trace must survive
/// encoding.
pub fn goal_trace(bytes: &[u8]) {
    goal_trace::run(bytes);
}

/// Decodes arbitrary bytes as a greeting between two ends of a queue pair. Must not panic; an
/// accepted greeting must survive encoding.
pub fn greeting(bytes: &[u8]) {
    verbs_edge::fuzz_greeting(bytes);
}

/// Decodes arbitrary bytes as a message over the Unix socket of a shared-memory link. Must not
/// panic; an encoder must produce the same bytes for an accepted message.
pub fn shm_messages(bytes: &[u8]) {
    link::fuzz_shm_messages(bytes);
}

/// Writes arbitrary bytes into shared memory, like a peer. This end must not panic or access memory
/// outside of the shared memory.
pub fn shm_ring(bytes: &[u8]) {
    link::fuzz_shm_ring(bytes);
}

/// Decodes arbitrary bytes as a message of a link group, and as the private data of a request for a
/// group. Must not panic; accepted bytes must survive encoding.
pub fn sockets_message(bytes: &[u8]) {
    sockets::fuzz_message(bytes);
    sockets::fuzz_record(bytes);
}

/// Decodes arbitrary bytes as a datagram at the rendezvous socket of a connection. Must not panic;
/// an accepted datagram must survive encoding.
pub fn sockets_offer(bytes: &[u8]) {
    sockets::fuzz_offer(bytes);
}

/// Parses arbitrary bytes as a file of rules that decide which TCP connections move. Must not
/// panic; accepted rules must survive writing and parsing.
pub fn sockets_rules(bytes: &[u8]) {
    sockets::fuzz_rules(bytes);
}
