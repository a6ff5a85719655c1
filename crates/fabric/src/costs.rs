//! The processor time that the engine costs a simulated host.

/// Processor time per frame, byte, operation and completion, in picoseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct EdgeCosts {
    /// Per frame sent.
    pub frame_send_ps: u64,
    /// Per byte of a frame sent.
    pub frame_send_ps_per_byte: u64,
    /// Per frame received.
    pub frame_receive_ps: u64,
    /// Per byte of a frame received.
    pub frame_receive_ps_per_byte: u64,
    /// Per operation posted.
    pub post_ps: u64,
    /// Per completion polled.
    pub completion_ps: u64,
}
