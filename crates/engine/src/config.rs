//! Settings of an endpoint: limits, sending policy and timeouts.

use delivery::{
    AckPolicy, CongestionAlgorithm, SILENCE_BUDGET_NS, SchedulingPolicy, SentPool, SettingError,
};
use semantics::{InboundLimits, OPERATION_WINDOW_DEFAULT, PoolLimits, SHARE_BYTES};
use wire_edge::LinkIndex;

use crate::reception::CONFIRM_NS;

/// The rule for when an end that sends data asks its peer for an acknowledgement.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Asking {
    /// The sender asks for acknowledgements so often that they arrive before its window is full. It
    /// also asks with a frame after which it has nothing more to send.
    #[default]
    Spaced,
    /// The sender never asks for an acknowledgement. The peer alone decides when to acknowledge.
    Never,
}

/// Sizes, limits and policies of one endpoint. The defaults suit most programs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Maximum number of connections, at most 2^20. At the start, the endpoint allocates only 16
    /// bytes for each: an entry of the connection table.
    pub connections_max: u32,
    /// Maximum number of connection requests that the application has not answered.
    pub requests_max: u32,
    /// The time that a peer has to confirm an accepted connection, in nanoseconds. The limit
    /// applies only if other requests wait for room. Raise this limit if many processes of one host
    /// often request connections at the same time.
    pub confirm_ns: u64,
    /// Maximum number of links of one connection, 1 to 16.
    pub links_max: u8,
    /// Limits of the operation records that all connections share.
    pub pools: PoolLimits,
    /// Number of a peer's operations that the endpoint tracks, starting at the first operation that
    /// is not delivered, 1 to 65536.
    pub operation_window: u32,
    /// Maximum number of a peer's reads and atomics that the endpoint answers at a time, at most
    /// 4096.
    pub read_depth: u16,
    /// Memory for each connection, in bytes, in which this end holds the peer's fragments that must
    /// wait for earlier operations.
    pub order_pool_bytes: u32,
    /// Maximum number of posted receives per connection.
    pub receives_max: u32,
    /// When to acknowledge.
    pub acknowledgement: AckPolicy,
    /// When to ask for acknowledgements.
    pub asking: Asking,
    /// Congestion control.
    pub congestion: CongestionAlgorithm,
    /// Maximum number of frames in flight on a link whose rate was not measured yet.
    pub initial_window_frames: u32,
    /// Shortest time without an acknowledgement after which the sender sends a probe, in
    /// nanoseconds.
    pub probe_timeout_min_ns: u64,
    /// Longest time between probes, in nanoseconds.
    pub probe_timeout_max_ns: u64,
    /// How long a peer may be silent while this end waits for it, in nanoseconds. After that time
    /// the peer counts as unreachable. The same limit applies to the set-up of a connection.
    pub silence_budget_ns: u64,
    /// Time of silence, in nanoseconds, after which this end asks the peer of an idle connection
    /// whether the peer still runs and which links the peer has. `u64::MAX` turns the question off.
    pub keep_alive_ns: u64,
    /// Time without activity, in nanoseconds and at least 1, after which the endpoint compresses
    /// the state of a connection to a fifth of the memory. `u64::MAX` turns compression off.
    /// Compression has no other effect.
    pub rest_ns: u64,
    /// How the sender distributes data over links.
    pub scheduling: SchedulingPolicy,
    /// Number of connections for which the endpoint allocates memory ahead. At most this many
    /// connections at the same time can have packets in flight, or be expanded from their
    /// compressed state, without a further allocation.
    pub active_connections: usize,
    /// Maximum number of packets in flight on one link of one connection, 256 to 4096.
    pub packets_max: u16,
    /// Whether the endpoint allocates, when it starts, all memory that its limits permit. If this
    /// is true, the data path never allocates. Turn the setting off if thousands of endpoints live
    /// in one process: see [`Engine::exchange_scratch`](crate::Engine::exchange_scratch).
    pub allocates_ahead: bool,
    /// Number of the first packet, operation and message of every connection. The protocol demands
    /// 0. Simulations that test the wrap-around of numbers set another value: at least 2048, and
    /// equal at both ends.
    pub numbers_from: u32,
    /// Whether connections other than queue pairs offer the operations Patch and Swap. They exist
    /// on a connection only if both ends offer them.
    pub patches: bool,
}

delivery::setters!(EngineConfig {
    connections_max: u32,
    requests_max: u32,
    confirm_ns: u64,
    links_max: u8,
    pools: PoolLimits,
    operation_window: u32,
    read_depth: u16,
    order_pool_bytes: u32,
    receives_max: u32,
    acknowledgement: AckPolicy,
    asking: Asking,
    congestion: CongestionAlgorithm,
    initial_window_frames: u32,
    probe_timeout_min_ns: u64,
    probe_timeout_max_ns: u64,
    silence_budget_ns: u64,
    keep_alive_ns: u64,
    rest_ns: u64,
    scheduling: SchedulingPolicy,
    active_connections: usize,
    packets_max: u16,
    allocates_ahead: bool,
    numbers_from: u32,
    patches: bool,
});

impl EngineConfig {
    /// Checks that an endpoint can use each of these settings unchanged.
    ///
    /// # Errors
    /// Returns [`SettingError`] with the setting and its range if a setting is out of range.
    pub fn check(&self) -> Result<(), SettingError> {
        let within =
            |setting, value: u64, wanted| SettingError::unless_within(setting, &value, &wanted);
        within("connections_max", self.connections_max.into(), 1..=CONNECTIONS_MAX.into())?;
        within("links_max", self.links_max.into(), 1..=u64::from(LinkIndex::MAX) + 1)?;
        within("pools.operations", self.pools.operations.into(), 1..=u32::MAX.into())?;
        within("operation_window", self.operation_window.into(), 1..=OPERATION_WINDOW_MAX.into())?;
        within("read_depth", self.read_depth.into(), 0..=READ_DEPTH_MAX.into())?;
        within("initial_window_frames", self.initial_window_frames.into(), 1..=u32::MAX.into())?;
        within("probe_timeout_min_ns", self.probe_timeout_min_ns, 1..=self.probe_timeout_max_ns)?;
        within("silence_budget_ns", self.silence_budget_ns, 1..=u64::MAX)?;
        within("rest_ns", self.rest_ns, 1..=u64::MAX)?;
        let packets = SentPool::<()>::RECORDS_MIN as u64..=SentPool::<()>::RECORDS as u64;
        within("packets_max", self.packets_max.into(), packets)?;
        if self.numbers_from != 0 {
            within("numbers_from", self.numbers_from.into(), NUMBERS_FROM_MIN..=u32::MAX.into())?;
        }
        Ok(())
    }

    /// Returns the limits that each connection grants its peer.
    pub(crate) const fn inbound_limits(&self) -> InboundLimits {
        InboundLimits {
            operation_window: self.operation_window,
            read_depth: self.read_depth,
            order_pool_bytes: self.order_pool_bytes,
            receives: self.receives_max,
            rights: mem::Rights::ALL,
            patches: self.patches,
        }
    }

    /// Returns settings that imitate `MultiEdge` (Karlsson, Passas, Kotsis, Bilas, IPDPS 2007), for
    /// comparisons.
    ///
    /// * The sender distributes frames round robin over the links.
    /// * The window is fixed and counted in frames.
    /// * All data frames carry positive acknowledgements. In addition, the receiver sends a
    ///   separate acknowledgement after every 24 frames, or after 500 µs.
    /// * A coarse timeout retransmits the oldest frame.
    ///
    /// The paper does not state the window, the number of frames for each acknowledgement, and the
    /// timeouts. The values in this function fill one link of 1 Gb/s, and cause as many extra
    /// frames as the paper reports.
    ///
    /// Strict operations correspond to the set-up "2L-1G" of the paper, in which all frames are
    /// delivered in order. Relaxed operations correspond to "2Lu-1G".
    pub fn multiedge() -> Self {
        Self {
            acknowledgement: AckPolicy::default()
                .frames_per_ack(MULTIEDGE_FRAMES_PER_ACK)
                .ack_delay_ns(MULTIEDGE_ACK_DELAY_NS)
                .midway_delay_ns(MULTIEDGE_ACK_DELAY_NS),
            asking: Asking::Never,
            congestion: CongestionAlgorithm::Fixed { frames: MULTIEDGE_WINDOW_FRAMES },
            probe_timeout_min_ns: MULTIEDGE_TIMEOUT_NS,
            scheduling: SchedulingPolicy::RoundRobin,
            ..Self::default()
        }
    }
}

// If other connections use all records of the pools, each connection still has a few records for
// itself. For 16 384 connections, the default maximum, these records take at most 256 MiB.
const _: () = assert!(16_384 * SHARE_BYTES <= 256 << 20);

/// Maximum number of connections of any endpoint. With 2^20 connections, one in 4096 ids that an
/// attacker guesses belongs to a connection.
pub(crate) const CONNECTIONS_MAX: u32 = 1 << 20;

/// Largest window of operations that an end may announce; the protocol sets this limit.
pub(crate) const OPERATION_WINDOW_MAX: u32 = 65_536;

/// Maximum number of a peer's reads and atomics that an end answers at a time; the protocol sets
/// this limit.
pub(crate) const READ_DEPTH_MAX: u16 = 4096;

/// Lowest value of `numbers_from`, apart from 0. The value is larger than any window of packets, so
/// that numbers below the first number count as old.
const NUMBERS_FROM_MIN: u64 = 2048;

/// Default of [`EngineConfig::rest_ns`]. Compressing and expanding a connection takes some
/// microseconds in total. If the engine compresses and expands a connection once every 10 ms, this
/// therefore costs less than a thousandth of a processor. The engine never compresses a busy
/// connection.
const REST_NS: u64 = 10_000_000;

/// Number of frames of one link for each separate acknowledgement. The acknowledgements are 4.2 %
/// extra frames. The paper about `MultiEdge` reports 5.5 % extra frames, and a fifth of these
/// replace dropped frames.
const MULTIEDGE_FRAMES_PER_ACK: u16 = 24;

/// Longest delay of an acknowledgement in the imitation of `MultiEdge`, in nanoseconds. In this
/// time, a link of 1 Gb/s sends 41 full frames.
const MULTIEDGE_ACK_DELAY_NS: u32 = 500_000;

/// Window of each link in the imitation of `MultiEdge`, in frames. The window is larger than twice
/// the number of frames for each acknowledgement, and smaller than the queue of a switch.
const MULTIEDGE_WINDOW_FRAMES: u32 = 64;

/// Shortest time without an acknowledgement after which the sender retransmits a frame, in
/// nanoseconds.
const MULTIEDGE_TIMEOUT_NS: u64 = 20_000_000;

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            connections_max: 16_384,
            requests_max: 1024,
            confirm_ns: CONFIRM_NS,
            links_max: 8,
            pools: PoolLimits::default(),
            operation_window: OPERATION_WINDOW_DEFAULT,
            read_depth: 64,
            order_pool_bytes: 256 * 1024,
            receives_max: 1024,
            acknowledgement: AckPolicy::default(),
            asking: Asking::Spaced,
            congestion: CongestionAlgorithm::Aimd,
            initial_window_frames: 16,
            probe_timeout_min_ns: 1_000_000,
            probe_timeout_max_ns: 1_000_000_000,
            silence_budget_ns: SILENCE_BUDGET_NS,
            keep_alive_ns: 30_000_000_000,
            rest_ns: REST_NS,
            scheduling: SchedulingPolicy::EarliestDelivery,
            active_connections: 16,
            packets_max: 2048,
            allocates_ahead: true,
            numbers_from: 0,
            patches: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use semantics::StatusTable;

    use super::*;
    use crate::engine::Engine;

    #[test]
    fn an_engine_refuses_unusable_settings() {
        let make = |packets_max| {
            let config = EngineConfig { packets_max, ..EngineConfig::default() };
            Engine::new(config, [1; 32], Arc::new(StatusTable::new(1)))
        };
        for packets_max in [0, 255, 4097] {
            let expected =
                format!("the setting `packets_max` is {packets_max}; 256 to 4096 would do");
            assert_eq!(make(packets_max).unwrap_err().to_string(), expected);
        }
        assert!(make(256).is_ok() && make(4096).is_ok());
    }
}
