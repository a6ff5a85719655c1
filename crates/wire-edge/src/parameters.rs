//! The parameters that an endpoint announces to its peer in Hello and Accept.

use crate::error::DecodeError;
use crate::fields::{self, Field, Layout, layout_end};
use crate::identity::{Epoch, MessageNumber};
use crate::octets::{get, put};

/// Size of the parameters on the wire, in bytes.
pub const PARAMETERS_BYTES: usize = layout_end(Layout::Parameters);
const _: () = assert!(PARAMETERS_BYTES == 64);

/// Features of an endpoint (protocol.md §2.3).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Features(pub u64);

impl Features {
    /// Frames end with a 16-byte authentication tag. This bit is reserved: ends that speak version
    /// 1 never offer the feature.
    pub const PSK: Self = Self(1 << 0);
    /// The sender of the parameters gives access to its whole address space under the remote key
    /// `0xffff_ffff`.
    pub const WHOLE_ADDRESS_SPACE: Self = Self(1 << 1);
    /// The connection is a queue pair in the sense of verbs (protocol.md §5.8).
    pub const QUEUE_PAIR: Self = Self(1 << 2);
    /// The connection has the operations Patch and Swap. Has no effect on a queue pair.
    pub const PATCH: Self = Self(1 << 3);
    /// No feature.
    pub const NONE: Self = Self(0);

    /// Returns whether all of `features` are set.
    pub const fn contains(self, features: Self) -> bool {
        self.0 & features.0 == features.0
    }

    /// Returns the union of these features and `features`.
    #[must_use]
    pub const fn with(self, features: Self) -> Self {
        Self(self.0 | features.0)
    }

    /// Returns the features that are in both sets.
    #[must_use]
    pub const fn intersection(self, features: Self) -> Self {
        Self(self.0 & features.0)
    }
}

/// The parameters that an endpoint announces in a Hello or an Accept (protocol.md §2.2). In the
/// fields below, "the sender" is the sender of these parameters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Parameters {
    /// Random number that the sender chose when it started.
    pub incarnation: u64,
    /// Features of the sender. The decoder keeps unknown bits.
    pub features: Features,
    /// The epoch that the receiver of the parameters must put into every frame to the sender.
    pub epoch: Epoch,
    /// Maximum number of links that the sender accepts on this connection, 1 to 16.
    pub links_max: u16,
    /// Largest frame that the sender receives, 256 to 65507 bytes.
    pub frame_bytes_max: u16,
    /// Maximum number of reads and atomics that the sender answers at a time, 0 to 4096.
    pub read_depth: u16,
    /// Number of operations that the sender tracks, starting at the first operation that is not
    /// delivered, 1 to 65536.
    pub operation_window: u32,
    /// Memory of the sender for fragments of operations that must wait for earlier operations, in
    /// bytes.
    pub order_pool_bytes: u32,
    /// Size of the receive buffer of one link at the end that sends these parameters, in bytes of
    /// frames.
    pub receive_buffer_bytes: u32,
    /// Longest time for which the sender delays an acknowledgement, in nanoseconds.
    pub ack_delay_max_ns: u32,
    /// The end that sends these parameters has posted receives for all messages before this number.
    pub receive_credit: MessageNumber,
    /// Number of the listener at the endpoint that receives the parameters. 0 by default, and
    /// always 0 in an Accept.
    pub service: u32,
}

impl Parameters {
    //= protocol.md: feature.1
    /// Decodes the parameters. Rejects values out of range.
    pub(crate) fn decode(bytes: &[u8; PARAMETERS_BYTES]) -> Result<Self, DecodeError> {
        Ok(Self {
            incarnation: u64::from_le_bytes(get!(bytes, fields::INCARNATION)),
            features: Features(u64::from_le_bytes(get!(bytes, fields::FEATURES))),
            epoch: Epoch(u16::from_le_bytes(get!(bytes, fields::PARAMETERS_EPOCH))),
            links_max: ranged(
                &fields::LINKS_MAX,
                u16::from_le_bytes(get!(bytes, fields::LINKS_MAX)),
            )?,
            frame_bytes_max: ranged(
                &fields::FRAME_BYTES_MAX,
                u16::from_le_bytes(get!(bytes, fields::FRAME_BYTES_MAX)),
            )?,
            read_depth: ranged(
                &fields::READ_DEPTH,
                u16::from_le_bytes(get!(bytes, fields::READ_DEPTH)),
            )?,
            operation_window: ranged(
                &fields::OPERATION_WINDOW,
                u32::from_le_bytes(get!(bytes, fields::OPERATION_WINDOW)),
            )?,
            order_pool_bytes: u32::from_le_bytes(get!(bytes, fields::ORDER_POOL_BYTES)),
            receive_buffer_bytes: u32::from_le_bytes(get!(bytes, fields::RECEIVE_BUFFER_BYTES)),
            ack_delay_max_ns: u32::from_le_bytes(get!(bytes, fields::ACK_DELAY_MAX_NS)),
            receive_credit: MessageNumber(u32::from_le_bytes(get!(bytes, fields::RECEIVE_CREDIT))),
            service: u32::from_le_bytes(get!(bytes, fields::SERVICE)),
        })
    }

    //= protocol.md: frame.2
    /// Encodes the parameters.
    pub(crate) fn encode(&self) -> [u8; PARAMETERS_BYTES] {
        let mut bytes = [0; PARAMETERS_BYTES];
        let out = &mut bytes;
        put!(out, fields::INCARNATION, self.incarnation.to_le_bytes());
        put!(out, fields::FEATURES, self.features.0.to_le_bytes());
        put!(out, fields::PARAMETERS_EPOCH, self.epoch.0.to_le_bytes());
        put!(out, fields::LINKS_MAX, self.links_max.to_le_bytes());
        put!(out, fields::FRAME_BYTES_MAX, self.frame_bytes_max.to_le_bytes());
        put!(out, fields::READ_DEPTH, self.read_depth.to_le_bytes());
        put!(out, fields::OPERATION_WINDOW, self.operation_window.to_le_bytes());
        put!(out, fields::ORDER_POOL_BYTES, self.order_pool_bytes.to_le_bytes());
        put!(out, fields::RECEIVE_BUFFER_BYTES, self.receive_buffer_bytes.to_le_bytes());
        put!(out, fields::ACK_DELAY_MAX_NS, self.ack_delay_max_ns.to_le_bytes());
        put!(out, fields::RECEIVE_CREDIT, self.receive_credit.0.to_le_bytes());
        put!(out, fields::SERVICE, self.service.to_le_bytes());
        bytes
    }
}

//= protocol.md: preamble.1
/// Returns `value` if it is in the range of the field. Otherwise returns [`DecodeError::Range`].
pub(crate) fn ranged<T: Copy + Into<u64>>(field: &Field, value: T) -> Result<T, DecodeError> {
    if field.accepts(value.into()) {
        Ok(value)
    } else {
        Err(DecodeError::Range { field: field.name, value: value.into() })
    }
}
