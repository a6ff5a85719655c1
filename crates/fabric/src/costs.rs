//! The processor time that the engine costs a simulated host.

/// Processor time per frame, byte, operation and completion, in picoseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct EdgeCosts {
    /// Cost of each sent frame.
    pub frame_send_ps: u64,
    /// Cost of each byte of a sent frame.
    pub frame_send_ps_per_byte: u64,
    /// Cost of each received frame.
    pub frame_receive_ps: u64,
    /// Cost of each byte of a received frame.
    pub frame_receive_ps_per_byte: u64,
    /// Cost of each posted operation.
    pub post_ps: u64,
    /// Cost of each polled completion.
    pub completion_ps: u64,
}
