//! Determines the parts to buy for a configuration, and the rates of its links.

use super::super::cost::{Bisection, LinkRates, PartFabric, PriceListError, Wanted};
use super::super::routing::RouteTable;
use super::super::topology::LinkKind;
use super::{Configuration, ConfigurationError, FabricConfiguration};

impl Configuration {
    /// Returns the network to buy for the configuration. If the configured fabric is the fluid
    /// model, this network is an Ethernet with the same rates.
    ///
    /// # Errors
    /// Returns [`PriceListError`]; each variant names one cause.
    pub fn wanted(&self) -> Result<Wanted<'_>, PriceListError> {
        let fabric = match self.fabric {
            FabricConfiguration::Ethernet(_) | FabricConfiguration::Fluid(_) => {
                PartFabric::Ethernet
            }
            FabricConfiguration::Wormhole(_) => PartFabric::Wormhole,
            FabricConfiguration::Flit(_) => PartFabric::Flit,
            FabricConfiguration::LogGp(_) => {
                return Err(PriceListError::NothingToBuy { fabric: self.fabric.name() });
            }
        };
        let rates = self
            .fabric
            .rates()
            .ok_or(PriceListError::NothingToBuy { fabric: self.fabric.name() })?;
        let topology = &self.topology;
        let fastest = |is_host: bool| {
            let links = (0..).zip(topology.links());
            let of_kind = links.filter(|(_, link)| (link.kind == LinkKind::Host) == is_host);
            of_kind.map(|(number, _)| rates.of(topology, number)).max()
        };
        let rates = LinkRates {
            host_bps: fastest(true).unwrap_or(rates.host_bps),
            trunk_bps: fastest(false).unwrap_or(rates.trunk_bps),
        };
        Ok(Wanted { topology, fabric, rates, rails: self.rails() })
    }

    /// Returns the bisection bandwidth over the links that the routes use, for all rails, in bits
    /// per second. Returns `None` for LogGP, because a formula has no links.
    ///
    /// # Errors
    /// Returns [`ConfigurationError`]; each variant names one cause.
    pub fn bisection(&self) -> Result<Option<Bisection>, ConfigurationError> {
        let Some(rates) = self.fabric.rates() else { return Ok(None) };
        let table = RouteTable::new(&self.topology, self.routing)?;
        let used = table.used_links(self.topology.links().len());
        let is_used = |link: u32| used.get(link as usize).copied().unwrap_or_default();
        let bisection = Bisection::new(&self.topology, rates, is_used);
        let bits_per_second = bisection.bits_per_second * u64::from(self.rails());
        Ok(Some(Bisection { bits_per_second, ..bisection }))
    }

    /// Returns the number of rails: copies of the network, each with a link to every host.
    fn rails(&self) -> u32 {
        match (&self.edge, &self.fabric) {
            (Some(edge), _) => edge.rails.into(),
            (None, FabricConfiguration::Ethernet(ethernet)) => ethernet.nic.rails,
            (None, _) => 1,
        }
    }
}

impl FabricConfiguration {
    /// Returns the kind of the fabric, in the spelling of configurations.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Ethernet(_) => "ethernet",
            Self::Wormhole(_) => "wormhole",
            Self::Flit(_) => "flit",
            Self::LogGp(_) => "loggp",
            Self::Fluid(_) => "fluid",
        }
    }

    /// Returns the rates of the links, in bits per second. Returns `None` for LogGP, because a
    /// formula has no links. In a fabric of flits, the rate of a link between routers counts only
    /// payload.
    pub fn rates(&self) -> Option<LinkRates> {
        let rate = |bytes: u32, time_ps: u64| u64::from(bytes) * 8 * PS_PER_S / time_ps.max(1);
        Some(match self {
            Self::Ethernet(ethernet) => {
                LinkRates { host_bps: ethernet.host_rate_bps, trunk_bps: ethernet.trunk_rate_bps }
            }
            Self::Fluid(fluid) => {
                LinkRates { host_bps: fluid.host_rate_bps, trunk_bps: fluid.trunk_rate_bps }
            }
            Self::Wormhole(worm) => {
                let rate_bps = rate(worm.character_bytes, worm.character_ps);
                LinkRates { host_bps: rate_bps, trunk_bps: rate_bps }
            }
            Self::Flit(flit) => {
                let trunk_bps = rate(flit.flit_payload_bytes, flit.flit_ps);
                let host_bps = match flit.ports.rate_bps {
                    0 => trunk_bps,
                    rate_bps => rate_bps,
                };
                LinkRates { host_bps, trunk_bps }
            }
            Self::LogGp(_) => return None,
        })
    }
}

/// Picoseconds in a second. The longest character, the unit that a wormhole network transmits, has
/// 8 × 2^20 bits. The product of this number of bits and `PS_PER_S` stays below 2^64.
const PS_PER_S: u64 = 1_000_000_000_000;
