//! The bytes of a moved connection: the rings, the switch marker, and the readiness of the
//! descriptor.

pub(crate) mod arena;
pub(crate) mod held;
pub(crate) mod non_blocking;
pub(crate) mod readiness;
pub(crate) mod reads_and_writes;
pub(crate) mod receiving;
pub(crate) mod relay;
pub(crate) mod relaying;
pub(crate) mod ring;
pub(crate) mod sending;
pub(crate) mod state;
pub(crate) mod stream;
pub(crate) mod stream_doorbell;
pub(crate) mod switch_marker;
pub(crate) mod tcp_part;
