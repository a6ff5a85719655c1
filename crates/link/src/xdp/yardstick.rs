//! An `AF_XDP` socket and its rings without a link, to measure the cost of the socket alone.

use super::live::Live;
use super::{XdpConfig, XdpError, claim, framing, open_patiently, usable};
use crate::ethernet::{Framing, PortClaim};

/// The socket that [`crate::yardstick::xdp`] measures.
#[derive(Debug)]
pub(crate) struct Bare {
    pub(crate) live: Live,
    pub(crate) framing: Framing,
    _claim: PortClaim,
}

impl Bare {
    pub(crate) fn open(config: &XdpConfig) -> Result<Self, XdpError> {
        let (interface, station) = usable(config)?;
        let claim = claim(config, &interface)?;
        let framing = framing(config, station, claim.port());
        let frame_bytes_max = interface.raw_frame_bytes(config.frame_bytes_max);
        let live = open_patiently(config, &interface, &framing, frame_bytes_max)?;
        Ok(Self { live, framing, _claim: claim })
    }
}
