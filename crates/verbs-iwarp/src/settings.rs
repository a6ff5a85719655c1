//! Settings of a device.

use std::path::PathBuf;

use link::StreamFaultShares;
use verbs::{LogLevel, SharedCapture, Strictness};

/// Settings of an iWARP device.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name that programs see.
    pub name: String,
    /// Whether the device gives programs more than they ask for.
    pub strictness: Strictness,
    /// The processor to which the device pins its progress thread, numbered as in the kernel. `None`
    /// means any processor.
    pub progress_processor: Option<usize>,
    /// Whether to ask peers for CRCs. A connection also has them if only the peer asks.
    pub crc: bool,
    /// Whether to ask peers for markers (RFC 5044 section 4.3) in what they send. Linux siw
    /// refuses a peer that asks, and only tests do.
    pub markers: bool,
    /// Maximum length of the frames (FPDUs) that the device sends, in bytes, from
    /// [`iwarp::FPDU_BYTES_MIN`] to [`iwarp::FPDU_BYTES_MAX`]. `None` sends long ones to peers that
    /// are known to take them, and others of one TCP segment.
    pub fpdu_bytes: Option<u16>,
    /// Faults to inject into the streams of all connections, for tests.
    pub faults: StreamFaultShares,
    /// Level of the log on standard error.
    pub log: LogLevel,
    /// File to which the device appends events of all levels; `None` for no such file.
    pub trace: Option<PathBuf>,
    /// File to which the device writes the bytes of all connections.
    pub capture: SharedCapture,
}

impl Settings {
    /// Returns the settings of a device with this name that asks its peers for nothing.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            strictness: Strictness::Lenient,
            progress_processor: None,
            crc: false,
            markers: false,
            fpdu_bytes: None,
            faults: StreamFaultShares::default(),
            log: LogLevel::default(),
            trace: None,
            capture: SharedCapture::default(),
        }
    }
}
