//! Limits of the device.

use iwarp::{Config, RtrKinds};
use verbs::Strictness;

use crate::settings::Settings;

/// Maximum number of queue pairs. Each that is connected has a TCP socket.
pub(crate) const QUEUE_PAIRS_MAX: u32 = 1 << 16;

/// Maximum number of work requests in each queue of a queue pair.
pub(crate) const WORK_REQUESTS_MAX: u32 = 1 << 14;

/// Maximum number of protection domains.
pub(crate) const DOMAINS_MAX: u32 = 1 << 12;

/// Maximum number of reads in flight in each direction of a connection.
pub(crate) const READ_DEPTH: u8 = 128;

/// Returns the settings of streams that no id has changed.
pub(crate) fn stream_config(settings: &Settings) -> Config {
    Config {
        crc: settings.crc,
        markers: settings.markers,
        fpdu_bytes: settings.fpdu_bytes,
        ird: READ_DEPTH.into(),
        ord: READ_DEPTH.into(),
        ird_max: READ_DEPTH.into(),
        peer_to_peer: Some(RtrKinds::ALL),
        // An adapter ends the stream at once.
        waits_for_receives: settings.strictness == Strictness::Lenient,
        ..Config::default()
    }
}
