//! The prices of the paper (1999, US dollars), and what it says the networks cost.

use super::super::cost::{Bill, Price, PriceBook};
use super::configurations::Networks;
use super::reference::Interconnect;

/// The cost of one interconnect.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Which.
    pub interconnect: Interconnect,
    /// Derived from its topology.
    pub bill: Bill,
    /// What the paper's formula gives, in dollars.
    pub formula: u64,
    /// What its text says, in thousands of dollars.
    pub quoted_thousands: u64,
}

impl Cost {
    /// The total in thousands of dollars, rounded to tens as in the text.
    pub fn is_as_quoted(&self) -> bool {
        (self.bill.total() + 5_000) / 10_000 * 10 == self.quoted_thousands
    }
}

/// The costs of all three, and where the paper contradicts itself.
pub fn costs(networks: &Networks) -> (Vec<Cost>, Vec<String>) {
    let costs: Vec<Cost> = [Interconnect::Ethernet, Interconnect::Myrinet, Interconnect::Avici]
        .into_iter()
        .map(|interconnect| {
            let (topology, formula, quoted_thousands) = match interconnect {
                Interconnect::Ethernet => {
                    (&networks.ethernet.0, 256 * 700 + 5 * 50_000 + (256 + 4 * 6) * 75, 450)
                }
                Interconnect::Myrinet => {
                    (&networks.myrinet.0, 256 * 1_700 + 32 * 5_000 + 12 * 32 * 200, 670)
                }
                Interconnect::Avici => (&networks.avici.0, 256 * (700 + 75) + 350_000, 550),
            };
            let bill = book(interconnect).bill(topology);
            Cost { interconnect, bill, formula, quoted_thousands }
        })
        .collect();
    let mut findings: Vec<String> = costs
        .iter()
        .filter(|cost| cost.interconnect == Interconnect::Ethernet)
        .flat_map(|cost| cost.bill.findings.iter())
        .map(|finding| format!("64 hosts on a 64-port switch leave no port for trunks: {finding}"))
        .collect();
    findings.push(
        "The text counts 20 trunk cables, the formula of the total 4 x 6 = 24; the total of \
         450 200 is that of 24."
            .to_owned(),
    );
    (costs, findings)
}

/// What the paper gives as prices.
pub fn book(interconnect: Interconnect) -> PriceBook {
    let price = |part: &str, each| Price { part: part.to_owned(), each };
    let source = "Chen, Wyckoff, Moor, 1999, US dollars".to_owned();
    match interconnect {
        Interconnect::Ethernet => PriceBook {
            source,
            interface: price("Gigabit Ethernet card", 700),
            switch: price("64-port Gigabit Ethernet switch", 50_000),
            switch_ports: 64,
            is_whole_fabric: false,
            cable: price("fibre cable", 75),
        },
        Interconnect::Myrinet => PriceBook {
            source,
            interface: price("Myrinet card", 1_700),
            switch: price("16-port Myrinet switch", 5_000),
            switch_ports: 16,
            is_whole_fabric: false,
            cable: price("Myrinet cable", 200),
        },
        Interconnect::Avici => PriceBook {
            source,
            interface: price("Gigabit Ethernet card", 700),
            switch: price("Avici terabit switch router, 256 ports", 350_000),
            switch_ports: 256,
            is_whole_fabric: true,
            cable: price("fibre cable", 75),
        },
    }
}
