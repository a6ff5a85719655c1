//! What a network costs: a bill derived from its topology, with the prices of a book.

use super::topology::Topology;

/// What the parts of a network cost, in whole units of a currency.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PriceBook {
    /// Where and when these prices were found.
    pub source: String,
    /// Interface card of a host.
    pub interface: Price,
    /// Switch, or everything between the hosts' cables if `is_whole_fabric`.
    pub switch: Price,
    /// Ports of a switch.
    pub switch_ports: u32,
    /// The price of the switch is that of all of them and what joins them.
    pub is_whole_fabric: bool,
    /// Cable.
    pub cable: Price,
}

/// A part and its price.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Price {
    /// What it is.
    pub part: String,
    /// Price of one.
    pub each: u64,
}

/// What a network costs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Bill {
    /// Part, how many, price of one.
    pub lines: Vec<(String, u64, u64)>,
    /// What is wrong with it, in full sentences.
    pub findings: Vec<String>,
}

impl PriceBook {
    /// The bill of a topology. Switches with fewer ports than cables are a finding, not an error.
    pub fn bill(&self, topology: &Topology) -> Bill {
        let hosts = u64::from(topology.hosts());
        let all_cables = topology.links().len() as u64 / 2;
        let (switches, cables) = if self.is_whole_fabric {
            (1, hosts)
        } else {
            (u64::from(topology.switches()), all_cables)
        };
        let line = |price: &Price, count| (price.part.clone(), count, price.each);
        let lines = vec![
            line(&self.interface, hosts),
            line(&self.switch, switches),
            line(&self.cable, cables),
        ];
        Bill { lines, findings: self.short_of_ports(topology) }
    }

    fn short_of_ports(&self, topology: &Topology) -> Vec<String> {
        let needed = topology.switch_ports_max();
        if self.is_whole_fabric || needed <= self.switch_ports as usize {
            return Vec::new();
        }
        let is_short = |&node: &u32| topology.outgoing(node).len() > self.switch_ports as usize;
        let count = (topology.hosts()..topology.nodes()).filter(is_short).count();
        vec![format!(
            "{count} switches of {} need up to {needed} ports; {} has {}.",
            topology.name(),
            self.switch.part,
            self.switch_ports
        )]
    }
}

impl Bill {
    /// The sum.
    pub fn total(&self) -> u64 {
        self.lines.iter().map(|(_, count, each)| count * each).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_counts_the_cables_of_the_topology() {
        let price = |part: &str, each| Price { part: part.to_owned(), each };
        let book = PriceBook {
            source: "made up".to_owned(),
            interface: price("card", 3),
            switch: price("switch", 100),
            switch_ports: 9,
            is_whole_fabric: false,
            cable: price("cable", 2),
        };
        let topology = Topology::leaf_spine(2, 8, 1, 2).expect("a leaf-spine");
        let bill = book.bill(&topology);
        assert_eq!(bill.total(), 16 * 3 + 3 * 100 + (16 + 4) * 2);
        assert_eq!(bill.findings.len(), 1, "leaves have 10 cables each");
        assert!(bill.findings[0].starts_with("2 switches"), "{:?}", bill.findings);
    }
}
