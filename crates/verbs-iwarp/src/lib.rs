//! The verbs device that speaks iWARP, RDMA over TCP (RFC 5040, RFC 5041, RFC 5044), over sockets
//! of the kernel. It has a [`verbs::Provider`] and an [`rdma_cm::ConnectionManager`].
//!
//! One machine of the device's runtime ([`runtime::Machine`]) has all streams. The crate `iwarp`
//! keeps the protocol, [`link::tcp`] the sockets.
#![forbid(unsafe_code)]

mod busy;
mod capture;
mod device;
mod ends;
mod entry;
mod exchange;
mod failure;
mod half_open;
mod inside;
mod instance;
mod journal;
mod leaving;
mod limits;
mod memory;
mod parting;
mod ping_pong;
mod reading;
mod receive_wait;
mod settings;
mod source;
mod statistics;
mod streams;
mod wire;
mod work;

pub use device::device;
pub use iwarp::{FPDU_BYTES_MAX, FPDU_BYTES_MIN};
pub use settings::Settings;
