//! Reads captures in the classic format of libpcap.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the folder with the captures.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire-iwarp/tests/captures")
}

/// Returns the captured bytes of each Ethernet frame in the capture `name`.
///
/// # Panics
/// Panics if the file is missing or is no little-endian capture of Ethernet.
pub(crate) fn frames(name: &str) -> Vec<Vec<u8>> {
    let path = folder().join(format!("{name}.pcap"));
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (header, mut rest) = bytes.split_at(24);
    assert_eq!(word(header, 0), 0xa1b2_c3d4, "{name}: magic");
    assert_eq!(word(header, 20), 1, "{name}: link type Ethernet");
    let mut frames = Vec::new();
    // A capture that was cut may end inside of a record.
    while let Some((record, behind)) = rest.split_at_checked(16) {
        let captured = word(record, 8) as usize;
        let Some((frame, behind)) = behind.split_at_checked(captured) else { break };
        frames.push(frame.to_vec());
        rest = behind;
    }
    frames
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
