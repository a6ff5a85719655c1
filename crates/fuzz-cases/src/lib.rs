//! The code of the fuzz targets. Each target runs on one input, and panics if a property does not
//! hold.
//!
//! The programs in `fuzz/`, which need a fuzzer, call this code. `./x test` runs the same code
//! without a fuzzer (`tests/replay.rs`): on the inputs in the corpus, and on some thousand inputs
//! derived from the corpus.
#![forbid(unsafe_code)]

mod control_messages;
mod decode_datagram;
mod decode_frame;
mod decode_handshake;
mod dsm_node;
mod goal_trace;
mod input;
mod iwarp_frames;
mod iwarp_streams;
mod redirect_port;

/// Runs one fuzz target on an input.
pub type Case = fn(&[u8]);

/// All fuzz targets by name, except `engine_frames`, which is in the folder of the tests because it
/// uses the engine's test code.
pub const CASES: [(&str, Case); 18] = [
    ("connection_manager", connection_manager),
    ("control_messages", control_messages),
    ("decode_datagram", decode_datagram),
    ("decode_frame", decode_frame),
    ("decode_handshake", decode_handshake),
    ("dsm_greeting", dsm_greeting),
    ("dsm_node", dsm_node),
    ("redirect_port", redirect_port),
    ("ethernet_frame", ethernet_frame),
    ("goal_trace", goal_trace),
    ("greeting", greeting),
    ("iwarp_frames", iwarp_frames),
    ("iwarp_streams", iwarp_streams),
    ("shm_messages", shm_messages),
    ("shm_ring", shm_ring),
    ("sockets_message", sockets_message),
    ("sockets_offer", sockets_offer),
    ("sockets_rules", sockets_rules),
];

/// Decodes arbitrary bytes as a message between two ids of the connection manager. Decoding must
/// not panic. If the bytes are accepted, encoding and decoding the message must give the same
/// message.
pub fn connection_manager(bytes: &[u8]) {
    rdma_cm::fuzz_message(bytes);
}

/// Decodes arbitrary bytes as control messages. Decoding must end and must not panic. Encoding and
/// decoding accepted messages must give the same messages.
pub fn control_messages(bytes: &[u8]) {
    control_messages::run(bytes);
}

/// Decodes arbitrary bytes as a datagram. Decoding must not panic. Encoding and decoding an
/// accepted datagram must give the same datagram.
pub fn decode_datagram(bytes: &[u8]) {
    decode_datagram::run(bytes);
}

/// Decodes arbitrary bytes as a connection frame. Decoding must not panic. Encoding an accepted
/// frame must give the same bytes.
pub fn decode_frame(bytes: &[u8]) {
    decode_frame::run(bytes);
}

/// Decodes arbitrary bytes as a handshake frame. Decoding must not panic. Encoding and decoding an
/// accepted frame must give the same frame.
pub fn decode_handshake(bytes: &[u8]) {
    decode_handshake::run(bytes);
}

/// Decodes arbitrary bytes as the greeting of two ranks that share memory, and as the table of
/// addresses that rank 0 sends. Decoding must not panic. Encoding and decoding an accepted greeting
/// must give the same greeting.
pub fn dsm_greeting(bytes: &[u8]) {
    dsm::fuzz_greeting(bytes);
}

/// Runs the machine of one node of the distributed shared memory. The bytes decide what its threads
/// call, and what its peers write, send and answer. Nothing may panic, and the machine must not
/// touch or name memory outside of the region.
pub fn dsm_node(bytes: &[u8]) {
    dsm_node::run(bytes);
}

/// Passes arbitrary bytes to a redirect port as a datagram. The port must not panic. Its answers
/// must be well-formed and no longer than protocol.md §4.5 permits.
pub fn redirect_port(bytes: &[u8]) {
    redirect_port::run(bytes);
}

/// Receives arbitrary bytes as an Ethernet frame. The driver must not panic, and must deliver only
/// bytes of the frame. Also sends the bytes as the content of a frame, which must arrive unchanged.
pub fn ethernet_frame(bytes: &[u8]) {
    link::fuzz_ethernet_frame(&mut bytes.to_vec());
}

/// Parses arbitrary bytes as a trace in GOAL. Parsing must not panic. Writing and parsing an
/// accepted trace must give the same trace.
pub fn goal_trace(bytes: &[u8]) {
    goal_trace::run(bytes);
}

/// Decodes arbitrary bytes as a greeting between two ends of a queue pair. Decoding must not panic.
/// Encoding and decoding an accepted greeting must give the same greeting.
pub fn greeting(bytes: &[u8]) {
    verbs_edge::fuzz_greeting(bytes);
}

/// Decodes arbitrary bytes as the stream of an iWARP connection. Decoding must not panic. Encoding an
/// accepted frame must give the same bytes, and the cut of the stream must not matter.
pub fn iwarp_frames(bytes: &[u8]) {
    iwarp_frames::run(bytes);
}

/// Runs two iWARP streams whose users, cuts and attacker the bytes decide. A peer must change only
/// memory to which it has the right, every operation must end once, and nothing may panic.
pub fn iwarp_streams(bytes: &[u8]) {
    iwarp_streams::run(bytes);
}

/// Decodes arbitrary bytes as a message over the Unix socket of a shared-memory link. Decoding must
/// not panic. Encoding an accepted message must give the same bytes.
pub fn shm_messages(bytes: &[u8]) {
    link::fuzz_shm_messages(bytes);
}

/// Writes arbitrary bytes into shared memory, as a peer could. This end must not panic, and must
/// not access memory outside of the shared memory.
pub fn shm_ring(bytes: &[u8]) {
    link::fuzz_shm_ring(bytes);
}

/// Decodes arbitrary bytes as a message of a link group, and as the private data of a request for a
/// group. Decoding must not panic. Encoding and decoding an accepted message must give the same
/// message.
pub fn sockets_message(bytes: &[u8]) {
    sockets::fuzz_message(bytes);
    sockets::fuzz_record(bytes);
}

/// Decodes arbitrary bytes as a datagram at the rendezvous socket of a connection. Decoding must
/// not panic. Encoding and decoding an accepted datagram must give the same datagram.
pub fn sockets_offer(bytes: &[u8]) {
    sockets::fuzz_offer(bytes);
}

/// Parses arbitrary bytes as a file of rules that decide which TCP connections move. Parsing must
/// not panic. Writing and parsing accepted rules must give the same rules.
pub fn sockets_rules(bytes: &[u8]) {
    sockets::fuzz_rules(bytes);
}
