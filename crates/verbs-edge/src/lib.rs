//! Verbs devices on top of Ethernot's protocol engine. Each device has a [`verbs::Provider`] and an
//! [`rdma_cm::ConnectionManager`].
#![forbid(unsafe_code)]

mod addresses;
mod connection_table;
mod datagrams;
mod draining;
mod edge;
mod failure;
mod greeting;
mod hooks;
mod instance;
mod limits;
mod manager;
mod meeting;
mod numbers;
mod outcome;
mod patience;
mod port;
mod ports;
mod settings;
mod source;
mod statistics_socket;
mod ways;
mod wire;
mod work;

pub use edge::{devices, devices_capturing};
#[doc(hidden)]
pub use greeting::fuzz_greeting;
pub use runtime::send_before_end;
pub use settings::{DeviceKind, DeviceSettings, IwarpSettings, Settings};
pub use verbs::{LogLevel, statistics};
