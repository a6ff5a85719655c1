//! Settings of the sending half of a link.

use crate::congestion::CongestionAlgorithm;
use crate::sent_packets::SentPool;

/// Settings for sending on one link of one connection.
#[derive(Clone, Copy, Debug)]
pub struct SendConfig {
    /// Congestion control.
    pub algorithm: CongestionAlgorithm,
    /// Initial window, in frames.
    pub initial_window_frames: u32,
    /// Size of a full frame, in bytes, 256–65507.
    pub frame_bytes: u32,
    /// Size of the receive buffer of the peer's driver, in bytes. It limits the bytes in flight on
    /// this link.
    pub receive_buffer_bytes: u32,
    /// Longest time for which the peer delays an acknowledgement, in nanoseconds.
    pub ack_delay_max_ns: u32,
    /// Shortest probe timeout, in nanoseconds. If all threads poll, 200 µs is enough, because no
    /// thread then waits for the kernel's scheduler.
    pub probe_timeout_min_ns: u64,
    /// Longest probe timeout with backoff, in nanoseconds.
    pub probe_timeout_max_ns: u64,
    /// Round-trip time that is assumed before the first measurement, in nanoseconds.
    pub initial_rtt_ns: u64,
    /// Nominal rate in bytes per second, used before the first measurement.
    pub nominal_rate: Option<u64>,
    /// Maximum number of packets in flight on the link. It is at most the number of records for
    /// each link in the pool.
    pub packets_max: u16,
}

impl Default for SendConfig {
    /// Returns the settings for a host on Ethernet: 16 frames of 1472 bytes, probe timeouts of 1 ms
    /// to 1 s.
    fn default() -> Self {
        Self {
            algorithm: CongestionAlgorithm::Aimd,
            initial_window_frames: 16,
            frame_bytes: 1472,
            receive_buffer_bytes: u32::MAX,
            ack_delay_max_ns: 100_000,
            probe_timeout_min_ns: 1_000_000,
            probe_timeout_max_ns: 1_000_000_000,
            initial_rtt_ns: 1_000_000,
            nominal_rate: None,
            packets_max: SentPool::<()>::RECORDS as u16,
        }
    }
}
