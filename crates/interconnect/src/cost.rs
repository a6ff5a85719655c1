//! Computes the costs of a network: derives the parts from its topology, and takes their prices
//! from a price list.

mod bisection;
mod price_list;

pub use bisection::{Bisection, LinkRates};
pub use price_list::{Part, PartFabric, PartKind, PriceList, PriceListError};

use super::topology::{LinkKind, Topology};

/// A network to be bought.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Topology of hosts, switches and cables.
    pub topology: &'a Topology,
    /// Kind of network that the parts must fit.
    pub fabric: PartFabric,
    /// Rates that the parts must support.
    pub rates: LinkRates,
    /// Number of rails: copies of the topology, each with an interface in every host.
    pub rails: u32,
}

/// The bill for a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Bill {
    /// Parts to buy, with one line for each kind of part.
    pub lines: Vec<BillLine>,
    /// Shortcomings of the network, in full sentences.
    pub findings: Vec<String>,
}

/// One line of a bill: a number of equal parts.
#[derive(Clone, Debug, PartialEq)]
pub struct BillLine {
    /// Number of parts.
    pub count: u64,
    /// The part.
    pub part: Part,
}

impl BillLine {
    /// Returns the price of all parts of the line.
    pub fn price(&self) -> f64 {
        self.count as f64 * self.part.price
    }
}

impl Bill {
    /// Returns the total price.
    pub fn total(&self) -> f64 {
        self.lines.iter().map(BillLine::price).sum()
    }

    /// Returns whether the total price differs from `amount` by less than 0.005.
    pub fn is_total(&self, amount: u64) -> bool {
        (self.total() - amount as f64).abs() < 0.005
    }

    /// Returns the electrical power of all parts, in watts. Returns `None` if the price list lacks
    /// the power of a part. A cable without a listed power counts as 0 W.
    pub fn watts(&self) -> Option<f64> {
        let is_passive =
            |line: &&BillLine| matches!(line.part.kind, PartKind::Cable | PartKind::TrunkCable);
        let powered =
            self.lines.iter().filter(|line| line.part.watts.is_some() || !is_passive(line));
        powered.map(|line| Some(line.part.watts? * line.count as f64)).sum()
    }

    fn add(&mut self, part: &Part, count: u64) {
        if count == 0 {
            return;
        }
        match self.lines.iter_mut().find(|line| line.part == *part) {
            Some(line) => line.count += count,
            None => self.lines.push(BillLine { count, part: part.clone() }),
        }
    }
}

impl PriceList {
    /// Returns the cheapest bill of a network. If a switch has fewer ports than cables, the bill
    /// contains a sentence about this shortcoming. If the price list lacks a part, this function
    /// returns an error.
    ///
    /// # Errors
    /// Returns [`PriceListError`]; each variant names one cause.
    pub fn bill(&self, wanted: &Wanted) -> Result<Bill, PriceListError> {
        let Wanted { topology, fabric, rates, rails } = *wanted;
        let mut bill = Bill { lines: Vec::new(), findings: Vec::new() };
        if topology.has_cable_settings() {
            bill.findings.push(
                "Cables have rates of their own; all parts are as fast as the fastest cable of a host, and \
                 as the fastest between switches."
                    .to_owned(),
            );
        }
        let hosts = u64::from(topology.hosts());
        // Collects all parts that the price list lacks, so that one error can list them together.
        let mut lacks = Vec::new();
        let mut take = |bill: &mut Bill, part: Result<&Part, PriceListError>, count| match part {
            Ok(part) => bill.add(part, count),
            Err(lack) => lacks.push(lack),
        };
        take(&mut bill, self.cheapest(PartKind::Interface, fabric, rates.host_bps), hosts);
        let has_switches = self.fitting(PartKind::Switch, fabric).next().is_some();
        let has_fabric = self.fitting(PartKind::Fabric, fabric).next().is_some();
        let whole = if has_fabric && !has_switches {
            self.add_whole_fabric(&mut bill, wanted)
        } else {
            let switches = self.add_switches(&mut bill, wanted);
            let trunks = topology.links().len() as u64 / 2 - hosts;
            if trunks > 0 {
                let cable = self
                    .cheapest(PartKind::TrunkCable, fabric, rates.trunk_bps)
                    .or_else(|_| self.cheapest(PartKind::Cable, fabric, rates.trunk_bps));
                take(&mut bill, cable, trunks);
            }
            switches
        };
        take(&mut bill, self.cheapest(PartKind::Cable, fabric, rates.host_bps), hosts);
        lacks.extend(whole.err());
        // The same part can be missing twice: as the cable of hosts and as the cable of switches.
        lacks.dedup_by_key(|lack| lack.to_string());
        match lacks.pop() {
            Some(only) if lacks.is_empty() => return Err(only),
            Some(last) => {
                lacks.push(last);
                return Err(PriceListError::Several { lacks });
            }
            None => {}
        }
        for line in &mut bill.lines {
            line.count *= u64::from(rails);
        }
        if rails > 1 {
            for finding in &mut bill.findings {
                finding.insert_str(0, &format!("On each of {rails} rails: "));
            }
        }
        Ok(bill)
    }

    /// Adds the cheapest part that is sold as a whole network and has a port for each host. If
    /// every such part has fewer ports than there are hosts, adds the part with the most ports, and
    /// a sentence about this shortcoming.
    fn add_whole_fabric(&self, bill: &mut Bill, wanted: &Wanted) -> Result<(), PriceListError> {
        let Wanted { topology, fabric, rates, .. } = *wanted;
        let missing = || self.missing(PartKind::Fabric, fabric, rates.host_bps);
        let fitting: Vec<&Part> = self
            .fitting(PartKind::Fabric, fabric)
            .filter(|part| part.rate_bps >= rates.host_bps)
            .collect();
        let sufficient = fitting.iter().filter(|part| part.ports >= topology.hosts());
        if let Some(part) = sufficient.min_by(|a, b| a.price.total_cmp(&b.price)) {
            bill.add(part, 1);
            return Ok(());
        }
        let part = fitting.iter().max_by_key(|part| part.ports).ok_or_else(missing)?;
        bill.add(part, 1);
        bill.findings.push(format!(
            "{} hosts need {} ports; {} has {}.",
            topology.hosts(),
            topology.hosts(),
            part.name,
            part.ports
        ));
        Ok(())
    }

    /// Adds a part for each switch. This is the cheapest part with enough ports. If no part has
    /// enough ports, it is the part with the most ports.
    fn add_switches(&self, bill: &mut Bill, wanted: &Wanted) -> Result<(), PriceListError> {
        let Wanted { topology, fabric, rates, .. } = *wanted;
        let mut short: Vec<(String, u32, u32, u64)> = Vec::new();
        for switch in topology.hosts()..topology.nodes() {
            let demand = Demand::of(topology, switch);
            let usable: Vec<&Part> = self
                .fitting(PartKind::Switch, fabric)
                .filter(|part| demand.ports_missing(part, rates).is_some())
                .collect();
            let fits = |part: &&&Part| demand.ports_missing(part, rates) == Some(0);
            if let Some(part) =
                usable.iter().filter(fits).min_by(|a, b| a.price.total_cmp(&b.price))
            {
                bill.add(part, 1);
                continue;
            }
            let fastest_bps = demand.fastest_bps(rates);
            let largest = usable.iter().min_by_key(|part| demand.ports_missing(part, rates));
            let part =
                largest.ok_or_else(|| self.missing(PartKind::Switch, fabric, fastest_bps))?;
            bill.add(part, 1);
            let (needed, has) = (demand.hosts + demand.trunks, part.ports + part.uplink_ports);
            match short.iter_mut().find(|(name, ..)| *name == part.name) {
                Some((_, most, _, count)) => (*most, *count) = ((*most).max(needed), *count + 1),
                None => short.push((part.name.clone(), needed, has, 1)),
            }
        }
        bill.findings.extend(short.into_iter().map(|(part, needed, has, count)| {
            format!(
                "{count} switches of {} need up to {needed} ports; {part} has {has}.",
                topology.name()
            )
        }));
        Ok(())
    }
}

/// Numbers of cables for which a switch needs ports.
#[derive(Clone, Copy)]
struct Demand {
    hosts: u32,
    trunks: u32,
}

impl Demand {
    fn of(topology: &Topology, switch: u32) -> Self {
        let mut demand = Self { hosts: 0, trunks: 0 };
        for &link in topology.outgoing(switch) {
            match topology.links().get(link as usize).map(|link| link.kind) {
                Some(LinkKind::Host) => demand.hosts += 1,
                Some(LinkKind::Switch { .. }) => demand.trunks += 1,
                None => {}
            }
        }
        demand
    }

    const fn fastest_bps(self, rates: LinkRates) -> u64 {
        let host_bps = if self.hosts > 0 { rates.host_bps } else { 0 };
        if self.trunks > 0 && rates.trunk_bps > host_bps { rates.trunk_bps } else { host_bps }
    }

    /// Returns how many ports a part lacks for a switch. Returns `None` if no port of the part is
    /// fast enough for one of the cables.
    fn ports_missing(self, part: &Part, rates: LinkRates) -> Option<u32> {
        let mut needs = [(self.hosts, rates.host_bps), (self.trunks, rates.trunk_bps)];
        // Only the fastest cables can need the uplinks, which are the further ports of a switch.
        // Therefore the fastest cables get ports first.
        needs.sort_by_key(|need| std::cmp::Reverse(need.1));
        let (mut ports, mut uplinks, mut missing) = (part.ports, part.uplink_ports, 0);
        for (count, rate_bps) in needs {
            let on_ports = part.rate_bps >= rate_bps;
            let on_uplinks = part.uplink_rate_bps >= rate_bps && part.uplink_ports > 0;
            if count > 0 && !on_ports && !on_uplinks {
                return None;
            }
            let mut left = count;
            for (is_fast, free) in [(on_ports, &mut ports), (on_uplinks, &mut uplinks)] {
                let taken = if is_fast { left.min(*free) } else { 0 };
                *free -= taken;
                left -= taken;
            }
            missing += left;
        }
        Some(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: LinkRates = LinkRates { host_bps: 10, trunk_bps: 40 };

    fn price_list(parts: &[&str]) -> PriceList {
        let mut text = "name = \"made up\"\ncurrency = \"shells\"\n".to_owned();
        for part in parts {
            text.push_str("[[part]]\nfabric = \"ethernet\"\nsource = \"me\"\ndate = \"2001\"\n");
            text.push_str(&part.replace("; ", "\n"));
            text.push('\n');
        }
        PriceList::parse("a.toml", &text).expect("it is well formed")
    }

    const CARD: &str = "part = \"card\"; kind = \"interface\"; rate_bps = 10; price = 3; watts = 1";
    const CABLE: &str = "part = \"cable\"; kind = \"cable\"; rate_bps = 40; price = 2";

    #[test]
    fn a_bill_counts_the_cables_of_the_topology() {
        let switch = "part = \"switch\"; kind = \"switch\"; rate_bps = 40; ports = 9; price = 100";
        let topology = Topology::leaf_spine(2, 8, 1, 2).expect("a leaf-spine");
        let wanted =
            Wanted { topology: &topology, fabric: PartFabric::Ethernet, rates: RATES, rails: 1 };
        let bill = price_list(&[CARD, CABLE, switch]).bill(&wanted).expect("all parts are there");
        assert!((bill.total() - f64::from(16 * 3 + 3 * 100 + (16 + 4) * 2)).abs() < 1e-9);
        assert_eq!(bill.findings.len(), 1, "leaves have 10 cables each");
        assert!(bill.findings[0].starts_with("2 switches"), "{:?}", bill.findings);
        assert_eq!(bill.watts(), None, "the price list does not know the power of the switch");
    }

    #[test]
    fn each_switch_is_the_cheapest_with_enough_ports_and_speed() {
        let small = "part = \"small\"; kind = \"switch\"; rate_bps = 10; ports = 8; uplink_ports = \
                     2; uplink_rate_bps = 40; price = 100; watts = 20";
        let slow = "part = \"slow\"; kind = \"switch\"; rate_bps = 10; ports = 64; price = 5";
        let large = "part = \"large\"; kind = \"switch\"; rate_bps = 40; ports = 64; price = 900; \
                     watts = 50";
        let topology = Topology::leaf_spine(2, 8, 1, 2).expect("a leaf-spine");
        let wanted =
            Wanted { topology: &topology, fabric: PartFabric::Ethernet, rates: RATES, rails: 1 };
        let bill =
            price_list(&[CARD, CABLE, slow, large, small]).bill(&wanted).expect("all are there");
        let count = |name: &str| {
            bill.lines.iter().find(|line| line.part.name == name).map(|line| line.count)
        };
        assert_eq!((count("small"), count("large"), count("slow")), (Some(2), Some(1), None));
        assert!(bill.findings.is_empty());
        assert_eq!(bill.watts(), Some(16.0 + 2.0 * 20.0 + 50.0));
    }

    #[test]
    fn missing_parts_are_reported_with_the_remedy() {
        let topology = Topology::star(4).expect("a star");
        let wanted =
            Wanted { topology: &topology, fabric: PartFabric::Ethernet, rates: RATES, rails: 1 };
        let error = price_list(&[CARD, CABLE]).bill(&wanted).expect_err("no switch").to_string();
        assert!(error.contains("a.toml: no switch for ethernet of 10 b/s"), "{error}");
        assert!(error.contains("add a [[part]] with kind = \"switch\""), "{error}");
    }

    #[test]
    fn each_part_that_lacks_a_price_is_reported_with_its_line() {
        let topology = Topology::leaf_spine(2, 4, 1, 1).expect("a leaf-spine");
        let wanted =
            Wanted { topology: &topology, fabric: PartFabric::Ethernet, rates: RATES, rails: 1 };
        let switch = "part = \"switch\"; kind = \"switch\"; rate_bps = 40; ports = 9";
        let cable = "part = \"cable\"; kind = \"cable\"; rate_bps = 40";
        let error =
            price_list(&[CARD, cable, switch]).bill(&wanted).expect_err("no prices").to_string();
        let lines: Vec<&str> = error.lines().collect();
        let put = "has no price; put `price`, `source` and `date` there, as in: price = 100.0, \
                   source = \"who quoted it\", date = \"2026-11-01\", a line each";
        assert_eq!(
            lines,
            [format!("a.toml:12: cable {put}"), format!("a.toml:19: switch {put}")],
            "{error}"
        );
    }
}
