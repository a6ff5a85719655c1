//! A simulated host: an engine with its queues and timers.

use std::collections::VecDeque;
use std::sync::Arc;

use delivery::{Instant, LinkCaps, LinkId};
use engine::{Engine, EngineConfig};
use mem::{MemoryTable, ProtectionDomain, Region, Rights};
use semantics::{PoolLimits, StatusTable};
use wire_edge::PeerAddr;

use super::open_operations::{ADDRESS_START, ADDRESSES};
use super::{EdgeConfiguration, EdgeError, NEVER_PS, Protocol};
use crate::Random;

/// A host with the real engine.
#[derive(Debug)]
pub(super) struct EngineHost {
    pub(super) engine: Engine,
    pub(super) domain: ProtectionDomain,
    /// The region that the host sends from and that peers write to.
    pub(super) region: Region,
    /// Frames that have arrived and wait until the processor is free.
    pub(super) inbox: VecDeque<Arrived>,
    /// Streams that have something to post; each stream occurs at most once.
    pub(super) blocked: VecDeque<u32>,
    /// Number of outstanding operations.
    pub(super) in_flight: u32,
    /// For each connection, by its index in the engine, the index of the pair of hosts.
    pub(super) pairs: Vec<u32>,
    /// Time when the processor becomes free, in picoseconds.
    pub(super) free_ps: u64,
    /// Earliest time of the next interrupt, in picoseconds.
    pub(super) interrupt_ps: u64,
    /// Time for which the next check of the engine's timers is scheduled, in picoseconds.
    pub(super) timer_ps: u64,
    /// Time for which the next turn of the host is scheduled, in picoseconds. In a turn, the engine
    /// runs.
    pub(super) turn_ps: u64,
    /// Bit mask of the links whose transmit queues became full in the host's current or last turn.
    pub(super) full: u8,
    /// Whether the host's timers are suspended because no message is pending.
    pub(super) is_suspended: bool,
    /// Random numbers that decide which arriving frames are lost.
    pub(super) random: Random,
    /// Rate of the host's cables, in bits per second.
    pub(super) rate_bps: u64,
    /// Time in which a cable of the host carries all frames of a full transmit queue, in
    /// picoseconds.
    pub(super) queue_ps: u64,
}

/// A frame that has arrived at its host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) frame: u32,
    /// Host that sent the frame.
    pub(super) source: u32,
    /// Whether a switch marked the frame for congestion.
    pub(super) is_marked: bool,
    pub(super) at_ps: u64,
}

impl EngineHost {
    pub(super) fn new(
        number: u32,
        (rate_bps, queue_ps): (u64, u64),
        configuration: &EdgeConfiguration,
        frame_bytes_max: u16,
        memory: &MemoryTable,
        status: &Arc<StatusTable>,
        seed: u64,
    ) -> Result<Self, EdgeError> {
        let mut random = Random::stream(seed, u64::from(number));
        let mut entropy = [0; 32];
        random.fill(&mut entropy);
        let settings = engine_configuration(configuration);
        let mut engine = Engine::new(settings, entropy, Arc::clone(status))?;
        for rail in 0..configuration.rails {
            let caps = link_caps((number, rail), configuration, frame_bytes_max, rate_bps);
            let attached = engine.attach_link(LinkId(rail), caps);
            assert_eq!(attached, Ok(()), "rails and sizes of frames were checked");
        }
        engine.listen(SERVICE);
        let domain = memory.allocate_domain();
        let region = memory
            .register_ghost(domain, ADDRESS_START, ADDRESSES, Rights::ALL)
            .map_err(|cause| EdgeError::Memory { host: number, cause })?;
        Ok(Self {
            engine,
            domain,
            region,
            inbox: VecDeque::new(),
            blocked: VecDeque::new(),
            in_flight: 0,
            pairs: Vec::new(),
            free_ps: 0,
            interrupt_ps: 0,
            timer_ps: NEVER_PS,
            turn_ps: NEVER_PS,
            full: 0,
            is_suspended: false,
            random,
            rate_bps,
            queue_ps,
        })
    }

    /// Records the pair of hosts to which a connection of the engine belongs.
    pub(super) fn know(&mut self, connection: u32, pair: u32) {
        let index = connection as usize;
        if self.pairs.len() <= index {
            self.pairs.resize(index + 1, u32::MAX);
        }
        self.pairs[index] = pair;
    }
}

/// Returns the capabilities of a host's link.
pub(super) fn link_caps(
    (host, rail): (u32, u8),
    configuration: &EdgeConfiguration,
    frame_bytes_max: u16,
    rate_bps: u64,
) -> LinkCaps {
    LinkCaps {
        frame_bytes_max,
        frame_bytes_safe: frame_bytes_max,
        segments: configuration.segments,
        offloads: configuration.offloads,
        receive_buffer_bytes: configuration.receive_queue_frames * u32::from(frame_bytes_max),
        rate: Some(rate_bps),
        local: address(host, rail),
    }
}

/// Returns the address of a host on a rail: a station (MAC) address that contains both numbers.
pub const fn address(host: u32, rail: u8) -> PeerAddr {
    let [a, b, c, d] = host.to_be_bytes();
    PeerAddr::mac([LOCALLY_ADMINISTERED | rail << 4, a, b, c, d, 0], PORT)
}

/// Returns the host and the rail that an address contains.
pub(super) const fn host_and_rail(address: PeerAddr) -> Option<(u32, u8)> {
    match address.to_mac() {
        Some(([first, a, b, c, d, _], _)) => Some((u32::from_be_bytes([a, b, c, d]), first >> 4)),
        None => None,
    }
}

fn engine_configuration(configuration: &EdgeConfiguration) -> EngineConfig {
    let protocol = match configuration.protocol {
        Protocol::Edge => EngineConfig::default(),
        Protocol::MultiEdge => EngineConfig::multiedge(),
    };
    let window = configuration.window.max(protocol.operation_window);
    protocol
        .connections_max(CONNECTIONS_MAX)
        .requests_max(CONNECTIONS_MAX)
        .links_max(configuration.rails)
        .pools(PoolLimits::default())
        .operation_window(window)
        .receives_max(1)
        .allocates_ahead(false)
}

/// Converts a time of the simulation to a time of the engines' clocks, which are `base_ns` ahead.
pub(super) const fn instant(base_ns: u64, time_ps: u64) -> Instant {
    Instant(base_ns + time_ps / 1_000)
}

/// Number of the service on which all hosts listen.
pub(super) const SERVICE: u32 = 0;

/// Station address bits: locally administered, not a group.
const LOCALLY_ADMINISTERED: u8 = 2;
const PORT: u16 = 1;

/// Maximum number of connections of a host.
const CONNECTIONS_MAX: u32 = 1 << 16;
