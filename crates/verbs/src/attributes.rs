//! Attributes of devices, ports and queue pairs.

use std::net::IpAddr;

use crate::services::Services;
use crate::transport::{GidKind, Transport};

/// A GID: 16 bytes that identify an address of a port, in network byte order.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the GID of an IP address. As in `RoCE` version 2, an IPv4 address becomes
    /// `::ffff:a.b.c.d`.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// Returns the GID of a station address (MAC address): the address in the first 6 bytes, and
    /// zeros after it. The kernel gives iWARP devices such a GID.
    pub fn of_station(address: [u8; 6]) -> Self {
        let mut gid = [0; 16];
        gid[..6].copy_from_slice(&address);
        Self(gid)
    }

    /// Returns the IP address that the GID stands for. The result has no meaning if the GID is that
    /// of a station address.
    pub fn address(self) -> IpAddr {
        std::net::Ipv6Addr::from(self.0).to_canonical()
    }

    /// Returns whether the GID is a multicast address.
    pub fn is_group(self) -> bool {
        self.address().is_multicast() || self.0[0] == 0xff
    }
}

/// An entry of a GID table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Kind of the GID.
    pub kind: GidKind,
    /// Index of the entry in the table.
    pub index: u32,
    /// Interface index; 0 if the entry belongs to no interface.
    pub interface: u32,
}

/// Limits and properties of a device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeviceAttributes {
    /// Name of the device, such as `edge0`.
    pub name: String,
    /// GUID of the node, in network byte order.
    pub node_guid: [u8; 8],
    /// Vendor of the device.
    pub vendor: Vendor,
    /// The transport, the services, and the operations that each service carries.
    pub services: Services,
    /// Whether memory regions may be registered with `IBV_ACCESS_ON_DEMAND`.
    pub on_demand_paging: OnDemandPaging,
    /// Maximum length of a message, in bytes; at most [`work::OPERATION_BYTES_MAX`].
    pub message_bytes_max: u32,
    /// Maximum number of queue pairs.
    pub queue_pairs_max: u32,
    /// Maximum number of work requests in each queue of a queue pair.
    pub work_requests_max: u32,
    /// Maximum number of scatter/gather entries in a work request.
    pub pieces_max: u32,
    /// Maximum number of scatter/gather entries in a read; at most `pieces_max`.
    pub read_pieces_max: u32,
    /// Maximum number of inline bytes in a send.
    pub inline_max: u32,
    /// Maximum number of completion queues.
    pub completion_queues_max: u32,
    /// Maximum number of entries of a completion queue.
    pub completions_max: u32,
    /// Maximum number of memory regions.
    pub regions_max: u32,
    /// Maximum number of memory windows.
    pub windows_max: u32,
    /// Maximum size of a memory region, in bytes.
    pub region_bytes_max: u64,
    /// Maximum number of protection domains.
    pub domains_max: u32,
    /// Maximum number of reads and atomics that each end of a queue pair's connection may have in
    /// flight.
    pub read_depth_max: u8,
    /// Maximum number of shared receive queues.
    pub shared_queues_max: u32,
    /// Maximum number of receives in a shared receive queue.
    pub shared_receives_max: u32,
    /// Maximum number of address handles.
    pub address_handles_max: u32,
    /// Maximum number of multicast groups that the queue pairs of the device can join.
    pub groups_max: u32,
    /// Whether the device gives programs larger sizes and more retries than they asked for.
    pub strictness: Strictness,
}

impl DeviceAttributes {
    /// Returns the transport of the device.
    pub const fn transport(&self) -> Transport {
        self.services.transport()
    }
}

/// Vendor and model of a device, in numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Vendor {
    /// Vendor number: an organizationally unique identifier (OUI) of 24 bits.
    pub id: u32,
    /// Number of the model, which the vendor has chosen.
    pub part: u32,
}

impl Vendor {
    /// A vendor number that no vendor has, and the model 0. Devices without hardware report these
    /// numbers.
    pub const NONE: Self = Self { id: 0x00ff_ffff, part: 0 };
}

/// Whether a device supports on-demand paging: registered memory whose pages the device does not
/// pin, and maps only when an operation accesses them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnDemandPaging {
    /// All operations that a service carries support it.
    Supported,
    /// No operation supports it. A registration that asks for it fails.
    Unsupported,
}

/// Whether a device gives programs larger sizes and more retries than they asked for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Strictness {
    /// The device gives programs more than they asked for if this costs nothing. Therefore some
    /// programs that fail on a network adapter succeed on this device.
    #[default]
    Lenient,
    /// The device gives programs exactly the queue depths, inline bytes and retries that they asked
    /// for.
    Strict,
}

/// State of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PortState {
    /// No link is up.
    Down,
    /// At least one link is up.
    Active,
}

/// Those attributes of a port that can change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortAttributes {
    /// Whether at least one link of the port is up.
    pub state: PortState,
    /// Largest payload of a datagram: 256, 512, 1024, 2048 or 4096 bytes.
    pub active_mtu: u32,
    /// Number of entries of the port's GID table.
    pub gids: u32,
    /// Rate in bits per second; `None` if unknown.
    pub rate: Option<u64>,
}

/// Counters of a port. They count from the time at which this process opened the device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PortCounters {
    /// Number of bytes in the frames that the port has sent.
    pub sent_bytes: u64,
    /// Number of bytes in the frames that the port has received.
    pub received_bytes: u64,
    /// Frames sent.
    pub sent_frames: u64,
    /// Frames received.
    pub received_frames: u64,
    /// Number of frames that a link did not send, because the frame was too large for the path or
    /// there was no route.
    pub send_discards: u64,
    /// Number of times that a frame had to wait because a link had no room for it.
    pub send_waits: u64,
    /// Number of received frames that a link dropped, because the frame was truncated or damaged,
    /// or because no buffer was free.
    pub receive_errors: u64,
    /// Further counters of the wire (the transport that carries the work): names and values.
    /// Programs see them as hardware counters of the port.
    pub hardware: Vec<(&'static str, u64)>,
}

impl Default for PortCounters {
    /// Returns all counters with the value 0. `hardware` contains every name.
    fn default() -> Self {
        let names = delivery::EndpointCounters::DESCRIPTIONS.iter();
        Self {
            sent_bytes: 0,
            received_bytes: 0,
            sent_frames: 0,
            received_frames: 0,
            send_discards: 0,
            send_waits: 0,
            receive_errors: 0,
            hardware: names.map(|&(name, _)| (name, 0)).collect(),
        }
    }
}

/// The state of a queue pair (IBA volume 1, 10.3.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum QueuePairState {
    /// RESET.
    Reset,
    /// INIT: programs may post receives.
    Init,
    /// RTR, ready to receive.
    ReadyToReceive,
    /// RTS, ready to send.
    ReadyToSend,
    /// SQD: sends in flight complete, and no further send begins.
    SendQueueDrained,
    /// SQE: a send has failed. Only queue pairs with an unreliable service have this state.
    SendQueueError,
    /// ERR: the library flushes all work.
    Error,
}

impl QueuePairState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::ReadyToReceive,
        Self::ReadyToSend,
        Self::SendQueueDrained,
        Self::SendQueueError,
        Self::Error,
    ];

    /// Returns the state with this number in `ibv_qp_state`. Returns ERR for an unknown number.
    #[inline]
    pub fn of_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::Error)
    }
}

/// Sizes of the queues of a queue pair.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QueuePairLimits {
    /// Maximum number of sends that are posted and not complete.
    pub sends: u32,
    /// Maximum number of receives that are posted and not complete.
    pub receives: u32,
    /// Maximum number of scatter/gather entries of a send.
    pub send_pieces: u32,
    /// Maximum number of scatter/gather entries of a receive.
    pub receive_pieces: u32,
    /// Maximum number of inline bytes of a send.
    pub inline: u32,
}

/// Attributes that `ibv_modify_qp` sets and `ibv_query_qp` returns.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QueuePairAttributes {
    /// Path MTU that the program has set, in bytes.
    pub path_mtu: u32,
    /// Queue key (UD).
    pub queue_key: u32,
    /// Expected packet sequence number of the peer's first packet.
    pub receive_psn: u32,
    /// Packet sequence number of this side's first packet.
    pub send_psn: u32,
    /// The peer's queue pair number.
    pub destination: u32,
    /// Access that the queue pair grants to the peer: bits of `ibv_access_flags`.
    pub access: u32,
    /// Path to the peer.
    pub path: AddressVectorAttributes,
    /// Maximum number of reads and atomics that this side may have in flight.
    pub reads_max: u8,
    /// Maximum number of reads and atomics that the peer may have in flight.
    pub peer_reads_max: u8,
    /// RNR timer code, 0 to 31. The code stands for the time after which the peer retransmits a
    /// message for which this side had no receive posted.
    pub not_ready_timer: u8,
    /// Timeout code, 0 to 31. The timeout is 4.096 µs × 2^code; code 0 means no timeout.
    pub timeout: u8,
    /// Number of times that this side retransmits a request which gets no answer, 0 to 7. After
    /// that, the request fails.
    pub retries: u8,
    /// Number of times that this side retransmits a message for which the peer has no receive
    /// posted, 0 to 6; 7 means no limit.
    pub not_ready_retries: u8,
    /// Index in the partition key table.
    pub partition_key_index: u16,
    /// Port number, from 1.
    pub port: u8,
}

/// Address vector that a program sets (`ibv_ah_attr`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AddressVectorAttributes {
    /// GID of the peer.
    pub gid: Gid,
    /// Index of the source GID.
    pub source_index: u8,
    /// Flow label of IPv6, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Local identifier; unused on Ethernet.
    pub lid: u16,
    /// Service level.
    pub service_level: u8,
    /// Low bits of the source's local identifier; unused on Ethernet.
    pub source_path_bits: u8,
    /// Rate code.
    pub rate: u8,
    /// Whether the vector contains a GID.
    pub is_global: bool,
    /// Port number, from 1.
    pub port: u8,
}
