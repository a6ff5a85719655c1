//! A socket at work without a link around it.

use super::{PacketConfig, PacketError, Port, SET_UP, claim, usable};
use crate::ethernet::{Framing, PortClaim};

/// What [`crate::yardstick::packet`] and discovery use.
#[derive(Debug)]
pub(crate) struct Bare {
    pub(crate) port: Port,
    pub(crate) framing: Framing,
    _claim: PortClaim,
}

impl Bare {
    pub(crate) fn open(config: &PacketConfig) -> Result<Self, PacketError> {
        let (interface, station) = usable(config)?;
        let claim = claim(config, &interface)?;
        let (ethertype, vlan) = (config.ethertype, config.vlan);
        let framing = Framing { station, ethertype, vlan, port: claim.port() };
        let port = Port::open(config, &framing, &interface)
            .map_err(|source| PacketError::new(&config.interface, SET_UP, source))?;
        Ok(Self { port, framing, _claim: claim })
    }
}
