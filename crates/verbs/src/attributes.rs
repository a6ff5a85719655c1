//! Attributes of devices, ports and queue pairs, set and queried.

use std::net::IpAddr;

/// A GID: 16 bytes that name an address of a port, in network byte order.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the GID of an IP address; an IPv4 address is written as `::ffff:a.b.c.d` (`RoCE` version 2).
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// Returns the IP address.
    pub fn address(self) -> IpAddr {
        std::net::Ipv6Addr::from(self.0).to_canonical()
    }

    /// Whether it names a group of hosts.
    pub fn is_group(self) -> bool {
        self.address().is_multicast() || self.0[0] == 0xff
    }
}

/// An entry of a GID table. All are of `RoCE` version 2.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Place in the table.
    pub index: u32,
    /// The interface's number, 0 if it has none.
    pub interface: u32,
}

/// What a device can do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeviceAttributes {
    /// Name of the device, such as `edge0`.
    pub name: String,
    /// GUID of the node, in network byte order.
    pub node_guid: [u8; 8],
    /// Queue pairs at a time.
    pub queue_pairs_max: u32,
    /// Work requests in a queue of a queue pair.
    pub work_requests_max: u32,
    /// Pieces of memory of a work request.
    pub pieces_max: u32,
    /// Bytes that a send carries by value.
    pub inline_max: u32,
    /// Completion queues at a time.
    pub completion_queues_max: u32,
    /// Entries of a completion queue.
    pub completions_max: u32,
    /// Memory regions at a time.
    pub regions_max: u32,
    /// Memory windows at a time.
    pub windows_max: u32,
    /// Bytes of a region.
    pub region_bytes_max: u64,
    /// Protection domains at a time.
    pub domains_max: u32,
    /// Reads and atomics that a queue pair has in flight, in either direction.
    pub read_depth_max: u8,
    /// Shared receive queues at a time.
    pub shared_queues_max: u32,
    /// Receives of a shared receive queue.
    pub shared_receives_max: u32,
    /// Address handles at a time.
    pub address_handles_max: u32,
    /// Groups that queue pairs are in.
    pub groups_max: u32,
    /// Whether programs get more than they asked for.
    pub strictness: Strictness,
}

/// Whether a device gives programs more than they ask for, where that costs nothing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Strictness {
    /// It does: programs work that would fail on adapters.
    #[default]
    Lenient,
    /// Depths, inline bytes and retries are exactly as asked for.
    Strict,
}

/// Whether a port carries anything.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PortState {
    /// It has no link that is up.
    Down,
    /// It does.
    Active,
}

/// What a port is like now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortAttributes {
    /// Whether it carries anything.
    pub state: PortState,
    /// Largest payload of a datagram: 256, 512, 1024, 2048 or 4096 bytes.
    pub active_mtu: u32,
    /// Entries of its GID table.
    pub gids: u32,
    /// Bits a second; `None` if unknown.
    pub rate: Option<u64>,
}

/// What a port has counted since this process opened the device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PortCounters {
    /// Bytes of frames sent.
    pub sent_bytes: u64,
    /// Bytes of frames received.
    pub received_bytes: u64,
    /// Frames sent.
    pub sent_frames: u64,
    /// Frames received.
    pub received_frames: u64,
    /// Frames that could not be sent: too large for the path, or without a route.
    pub send_discards: u64,
    /// Times that a link had no room for more frames.
    pub send_waits: u64,
    /// Frames that were received and dropped: cut, damaged, or beyond the room of a buffer.
    pub receive_errors: u64,
    /// Counters of the wire, by name: in the place of those of hardware.
    pub hardware: Vec<(&'static str, u64)>,
}

impl Default for PortCounters {
    /// Nothing was counted; all names are there.
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

/// Which service a queue pair gives.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum QueuePairType {
    /// Reliable connection (RC).
    Reliable,
    /// Unreliable connection (UC): carried by a reliable one, without reads and atomics.
    Unreliable,
    /// Unreliable datagrams (UD).
    Datagram,
}

/// The state of a queue pair (IBA volume 1, 10.3.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum QueuePairState {
    /// RESET.
    Reset,
    /// INIT: receives may be posted.
    Init,
    /// RTR, ready to receive.
    ReadyToReceive,
    /// RTS, ready to send.
    ReadyToSend,
    /// SQD: work in flight ends, none begins.
    SendQueueDrained,
    /// SQE: an unreliable one whose send failed.
    SendQueueError,
    /// ERR: all work is flushed.
    Error,
}

impl QueuePairState {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::ReadyToReceive,
        Self::ReadyToSend,
        Self::SendQueueDrained,
        Self::SendQueueError,
        Self::Error,
    ];

    /// Returns the state of a number, as `ibv_qp_state` counts; ERR of one that means nothing.
    #[inline]
    pub fn of_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::Error)
    }
}

/// Sizes of the queues of a queue pair.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QueuePairLimits {
    /// Sends at a time.
    pub sends: u32,
    /// Receives at a time.
    pub receives: u32,
    /// Pieces of a send.
    pub send_pieces: u32,
    /// Pieces of a receive.
    pub receive_pieces: u32,
    /// Bytes that a send carries by value.
    pub inline: u32,
}

/// Attributes that `ibv_modify_qp` sets and `ibv_query_qp` returns.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QueuePairAttributes {
    /// Path MTU as the program set it, in bytes.
    pub path_mtu: u32,
    /// Queue key (UD).
    pub queue_key: u32,
    /// First packet number that is expected.
    pub receive_psn: u32,
    /// First packet number that is sent.
    pub send_psn: u32,
    /// The peer's queue pair number.
    pub destination: u32,
    /// What peers may do, bits of `ibv_access_flags`.
    pub access: u32,
    /// Where the peer is.
    pub path: AddressVectorAttributes,
    /// Reads and atomics in flight that this side begins.
    pub reads_max: u8,
    /// Those that the peer begins.
    pub peer_reads_max: u8,
    /// RNR timer code for the peer, 0 to 31.
    pub not_ready_timer: u8,
    /// Timeout code, 0 to 31: 4.096 µs times 2 to this power; 0 for ever.
    pub timeout: u8,
    /// How often a request is repeated before it fails, 0 to 7.
    pub retries: u8,
    /// The same for a receiver that is not ready; 7 for ever.
    pub not_ready_retries: u8,
    /// Index in the table of partition keys.
    pub partition_key_index: u16,
    /// Port, from 1.
    pub port: u8,
}

/// Where packets go, as programs say it (`ibv_ah_attr`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AddressVectorAttributes {
    /// GID of the peer.
    pub gid: Gid,
    /// Index of the own GID.
    pub source_index: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Local identifier: of no use on Ethernet.
    pub lid: u16,
    /// Service level.
    pub service_level: u8,
    /// The low bits of the source path.
    pub source_path_bits: u8,
    /// Rate code.
    pub rate: u8,
    /// Whether a GID was given.
    pub is_global: bool,
    /// Port, from 1.
    pub port: u8,
}
