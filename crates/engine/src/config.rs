//! The settings of an endpoint: its limits, its sending policy, its patience.

use delivery::{
    AckPolicy, CongestionAlgorithm, SILENCE_BUDGET_NS, SchedulingPolicy, SentPool, SettingError,
};
use semantics::{InboundLimits, OPERATION_WINDOW_DEFAULT, PoolLimits, SHARE_BYTES};
use wire_edge::LinkIndex;

use crate::reception::CONFIRM_NS;

/// When the sender of data asks its peer for an acknowledgement.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Asking {
    /// So often that neither its window closes nor frames are wasted, and with the last frame before
    /// it falls silent.
    #[default]
    Spaced,
    /// Never: the peer decides alone.
    Never,
}

/// Sizes, limits and policies of one endpoint. The defaults work with none changed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Connections at a time, at most 2^20. Only a table entry of 16 bytes each is allocated ahead.
    pub connections_max: u32,
    /// Connections asked for by peers that the application has not answered.
    pub requests_max: u32,
    /// Time that a peer has to confirm a connection that was accepted, while others wait for room, in nanoseconds. Where
    /// requests of many processes of one host wait as a matter of course, it is more.
    pub confirm_ns: u64,
    /// Links of one connection, 1 to 16.
    pub links_max: u8,
    /// Records of operations, shared by all connections.
    pub pools: PoolLimits,
    /// Operations of a peer tracked beyond the last delivered one, 1 to 65536.
    pub operation_window: u32,
    /// Reads and atomics of a peer answered at a time, at most 4096.
    pub read_depth: u16,
    /// Bytes held per connection for operations that must wait.
    pub order_pool_bytes: u32,
    /// Receives posted per connection.
    pub receives_max: u32,
    /// When to acknowledge.
    pub acknowledgement: AckPolicy,
    /// When to ask for acknowledgements.
    pub asking: Asking,
    /// Congestion control.
    pub congestion: CongestionAlgorithm,
    /// Frames in flight on a link before anything is known of it.
    pub initial_window_frames: u32,
    /// Shortest time without an answer after which a probe is sent, in nanoseconds.
    pub probe_timeout_min_ns: u64,
    /// Longest time between probes, in nanoseconds.
    pub probe_timeout_max_ns: u64,
    /// Time without any sign of life, while something is awaited, after which a peer counts as
    /// unreachable, in nanoseconds. Also the time a connection may take to be established.
    pub silence_budget_ns: u64,
    /// Time without a frame of the peer after which an idle connection asks whether the peer is still
    /// there and which links it has, in nanoseconds; `u64::MAX` for never.
    pub keep_alive_ns: u64,
    /// Time after which a connection on which nothing happens is packed into a fifth of the memory, in
    /// nanoseconds from 1; `u64::MAX` for never. It goes on as if it had not been.
    pub rest_ns: u64,
    /// How bytes are spread over links.
    pub scheduling: SchedulingPolicy,
    /// Connections with packets in flight at a time that need no allocation, and connections that wake up
    /// from rest at a time that need none.
    pub active_connections: usize,
    /// Packets in flight on one link of one connection, 256 to 4096.
    pub packets_max: u16,
    /// Whether what the limits allow is allocated when the endpoint is made, so that its data path
    /// never allocates. Not so where thousands of endpoints live in one process: see
    /// [`Engine::exchange_scratch`](crate::Engine::exchange_scratch).
    pub allocates_ahead: bool,
    /// The first packet, operation and message of every connection have this number: 0 by the
    /// protocol. Another one, at least 2048 and the same at both ends, is for simulations that see
    /// numbers wrap around.
    pub numbers_from: u32,
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
});

impl EngineConfig {
    /// Refuses what no endpoint works with, or would only work with another value than was asked for.
    ///
    /// # Errors
    /// [`SettingError`] names the setting and its range.
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

    /// What each connection grants its peer.
    pub(crate) const fn inbound_limits(&self) -> InboundLimits {
        InboundLimits {
            operation_window: self.operation_window,
            read_depth: self.read_depth,
            order_pool_bytes: self.order_pool_bytes,
            receives: self.receives_max,
            rights: mem::Rights::ALL,
        }
    }

    /// Returns the rules of `MultiEdge` (Karlsson, Passas, Kotsis, Bilas, IPDPS 2007), to run it side by side:
    /// frames go round robin over the links; a fixed window counted in frames; positive acknowledgements ride on
    /// all data frames, and by themselves go out for every 24 frames or after 500 µs; a coarse timeout retransmits
    /// the oldest frame. The paper does not say how large window, count and timeouts were; these are chosen so that
    /// one 1 Gb/s link is filled and the extra frames are those of the paper.
    ///
    /// The paper's set-up "2L-1G", all frames delivered in order, is strict operations; "2Lu-1G" is
    /// relaxed ones.
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

// Records that every connection gets in any case are allocated beyond the limits of the pools: for 16 384 connections, as
// many as there may be by default, 256 MiB at most if each holds its share.
const _: () = assert!(16_384 * SHARE_BYTES <= 256 << 20);

/// Connections at a time, at most: of 4096 guessed ids one is in use then.
pub(crate) const CONNECTIONS_MAX: u32 = 1 << 20;

/// Largest window of operations that the protocol lets an end announce to its peer.
pub(crate) const OPERATION_WINDOW_MAX: u32 = 65_536;

/// Most reads and atomics of a peer answered at a time, by the protocol.
pub(crate) const READ_DEPTH_MAX: u16 = 4096;

/// Lowest number to begin with, but for 0: what comes before must be older than any window.
const NUMBERS_FROM_MIN: u64 = 2048;

/// Going to rest and waking up take some microseconds together, so a connection that does so all the time
/// costs less than a thousandth of a processor, and one that is in use never does.
const REST_NS: u64 = 10_000_000;

/// Frames of one link for one explicit acknowledgement: 4.2 % of extra frames; the paper has 5.5 %,
/// of which a fifth are drops.
const MULTIEDGE_FRAMES_PER_ACK: u16 = 24;

/// Longest time an acknowledgement waits, in nanoseconds: 41 full frames at 1 Gb/s.
const MULTIEDGE_ACK_DELAY_NS: u32 = 500_000;

/// Frames in flight on each link: more than twice what is acknowledged at a time, less than a switch
/// queues.
const MULTIEDGE_WINDOW_FRAMES: u32 = 64;

/// Shortest time after which a frame is retransmitted because nothing came back, in nanoseconds.
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
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use semantics::StatusTable;

    use super::*;
    use crate::Engine;

    #[test]
    fn an_engine_is_not_made_with_settings_nothing_works_with() {
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
