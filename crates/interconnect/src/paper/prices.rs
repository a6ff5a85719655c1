//! The prices of the paper, in US dollars of 1999, and the costs of networks that the paper states.

use super::super::cost::{Bill, LinkRates, PartFabric, PriceList, PriceListError, Wanted};
use super::configurations::Networks;
use super::reference::{self, Interconnect};

/// The cost of one interconnect.
#[derive(Clone, Debug)]
pub struct Cost {
    /// The interconnect.
    pub interconnect: Interconnect,
    /// Bill that the simulator derives from the topology.
    pub bill: Bill,
    /// Cost according to the paper's formula, in dollars.
    pub formula: u64,
    /// Cost that the paper's text states, in thousands of dollars.
    pub quoted_thousands: u64,
}

impl Cost {
    /// Returns whether the total equals the cost in the paper's text. The text rounds to ten
    /// thousand dollars.
    pub fn is_as_quoted(&self) -> bool {
        (self.bill.total() / 10_000.0).round() as u64 * 10 == self.quoted_thousands
    }
}

/// Returns the costs of the three interconnects, and the contradictions found in the paper.
///
/// # Errors
/// Returns [`PriceListError`]; each variant names one cause.
pub fn costs(networks: &Networks) -> Result<(Vec<Cost>, Vec<String>), PriceListError> {
    let list = list_1999()?;
    let costs: Result<Vec<Cost>, PriceListError> =
        [Interconnect::Ethernet, Interconnect::Myrinet, Interconnect::Avici]
            .into_iter()
            .map(|interconnect| cost(&list, networks, interconnect))
            .collect();
    let costs = costs?;
    let mut findings: Vec<String> = costs
        .iter()
        .filter(|cost| cost.interconnect == Interconnect::Ethernet)
        .flat_map(|cost| cost.bill.findings.iter())
        .map(|finding| format!("64 hosts on a 64-port switch leave no port for trunks: {finding}"))
        .collect();
    findings.push(
        "The text counts 20 trunk cables, and the formula of the total counts 4 x 6 = 24; the \
         printed total of 450 200 includes 24 cables."
            .to_owned(),
    );
    Ok((costs, findings))
}

fn cost(
    list: &PriceList,
    networks: &Networks,
    interconnect: Interconnect,
) -> Result<Cost, PriceListError> {
    let (topology, fabric, rate_bps, name) = match interconnect {
        Interconnect::Ethernet => {
            (&networks.ethernet.0, PartFabric::Ethernet, GIGABIT_BPS, "ethernet")
        }
        Interconnect::Myrinet => {
            (&networks.myrinet.0, PartFabric::Wormhole, MYRINET_BPS, "myrinet")
        }
        Interconnect::Avici => (&networks.avici.0, PartFabric::Flit, GIGABIT_BPS, "avici"),
    };
    let number = |kind: &str| reference::number(&format!("cost.{kind}-{name}")) as u64;
    let (formula, quoted_thousands) = (number("total"), number("quoted"));
    let rates = LinkRates { host_bps: rate_bps, trunk_bps: rate_bps };
    let bill = list.bill(&Wanted { topology, fabric, rates, rails: 1 })?;
    Ok(Cost { interconnect, bill, formula, quoted_thousands })
}

/// Returns the price list of the paper.
///
/// # Errors
/// Returns [`PriceListError`]; each variant names one cause.
pub fn list_1999() -> Result<PriceList, PriceListError> {
    PriceList::parse("prices1999.toml (included)", LIST_1999)
}

/// The paper's price list as text. It is also an example of a price list.
pub const LIST_1999: &str = include_str!("prices1999.toml");

const GIGABIT_BPS: u64 = 1_000_000_000;
const MYRINET_BPS: u64 = 1_280_000_000;
