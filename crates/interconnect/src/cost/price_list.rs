//! Reads price lists: parts, their prices, and the sources of the prices.

use std::fmt;

use serde::Deserialize;
use toml::Spanned;

/// Parts and their prices, which [`PriceList::parse`] reads from TOML.
#[derive(Clone, Debug)]
pub struct PriceList {
    /// Name of the file, for errors.
    pub file: String,
    /// Name of the price list.
    pub name: String,
    /// Currency of the prices, such as `US dollars of 1999`.
    pub currency: String,
    /// Parts with a price, in the order of the file.
    pub parts: Vec<Part>,
    /// Parts without a price; their price is NaN. An error can name such a part, but a bill cannot
    /// contain it.
    pub unpriced: Vec<Part>,
}

/// A part and its price.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Name of the part.
    pub name: String,
    /// What the part is used for.
    pub kind: PartKind,
    /// Kind of network that the part fits.
    pub fabric: PartFabric,
    /// Number of ports with the rate `rate_bps`; 0 for a cable.
    pub ports: u32,
    /// Rate of each port or of the cable, in bits per second.
    pub rate_bps: u64,
    /// Number of further ports of a switch, with the rate `uplink_rate_bps`.
    pub uplink_ports: u32,
    /// Rate of each further port, in bits per second.
    pub uplink_rate_bps: u64,
    /// Price of one part, in the currency of the price list; NaN if the list has no price.
    pub price: f64,
    /// Electrical power of one part, in watts; `None` if the price list lacks it.
    pub watts: Option<f64>,
    /// Source of the price.
    pub source: String,
    /// Date of the price.
    pub date: String,
    /// Line of the part in the file, from 1.
    pub line: usize,
}

/// What a part is used for.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// Interface card of a host.
    Interface,
    /// Switch.
    Switch,
    /// All switches of a network and the cables between them, sold together.
    Fabric,
    /// Cable between a host and a switch. If the list has no cable between switches, the bill also
    /// uses this cable between switches.
    Cable,
    /// Cable between switches.
    TrunkCable,
}

/// Kind of network that a part fits.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum PartFabric {
    /// Networks of Ethernet switches.
    Ethernet,
    /// Networks with wormhole switching.
    Wormhole,
    /// Networks of flits with credits.
    Flit,
}

/// Why a price list cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PriceListError {
    /// The text is not TOML, or has keys that a price list cannot have.
    #[error("{file}: {cause}")]
    Syntax {
        /// Name of the file.
        file: String,
        /// Message of the parser, with line and column.
        cause: toml::de::Error,
    },
    /// A value is invalid.
    #[error("{file}:{line}: {what}")]
    Value {
        /// Name of the file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Description of the mistake and of the correct value.
        what: String,
    },
    /// The network needs a part that the price list does not contain.
    #[error(
        "{file}: no {kind} for {fabric} of {rate_bps} b/s among its {parts} parts; add a [[part]] with kind = \"{kind}\", fabric = \"{fabric}\" and rate_bps of at least {rate_bps}, or name another price list"
    )]
    MissingPart {
        /// Name of the file.
        file: String,
        /// What the part is used for.
        kind: PartKind,
        /// Kind of network that the part must fit.
        fabric: PartFabric,
        /// Minimum rate, in bits per second.
        rate_bps: u64,
        /// Number of parts in the price list.
        parts: usize,
    },
    /// The network needs a part that the price list contains without a price.
    #[error(
        "{file}:{line}: {part} has no price; put `price`, `source` and `date` there, as in: price = 100.0, \
         source = \"who quoted it\", date = \"2026-11-01\", a line each"
    )]
    NoPrice {
        /// Name of the file.
        file: String,
        /// Line of the part, from 1.
        line: usize,
        /// Name of the part.
        part: String,
    },
    /// Several errors of this type.
    #[error("{}", .lacks.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several {
        /// The errors.
        lacks: Vec<Self>,
    },
    /// The simulated fabric is a formula without parts, so nothing can be bought.
    #[error(
        "fabric {fabric} is a model without switches and cables, so it has no cost; set [fabric] kind to ethernet, wormhole or flit"
    )]
    NothingToBuy {
        /// Kind of the fabric.
        fabric: &'static str,
    },
}

impl PriceList {
    /// Reads a price list. `file` is the name of the text in errors.
    ///
    /// # Errors
    /// Returns [`PriceListError`]; each variant names one cause.
    pub fn parse(file: &str, text: &str) -> Result<Self, PriceListError> {
        let list: PriceFile = toml::from_str(text)
            .map_err(|cause| PriceListError::Syntax { file: file.to_owned(), cause })?;
        let parts: Result<Vec<Part>, PriceListError> =
            list.part.into_iter().map(|entry| checked(file, text, entry)).collect();
        let (parts, unpriced): (Vec<Part>, Vec<Part>) =
            parts?.into_iter().partition(|part| !part.price.is_nan());
        if parts.is_empty() && unpriced.is_empty() {
            let what = "the list has no [[part]]".to_owned();
            return Err(PriceListError::Value { file: file.to_owned(), line: 1, what });
        }
        Ok(Self {
            file: file.to_owned(),
            name: list.name,
            currency: list.currency,
            parts,
            unpriced,
        })
    }

    /// Returns the cheapest part of a kind with a rate of at least `rate_bps` bits per second.
    ///
    /// # Errors
    /// Returns [`PriceListError`]; each variant names one cause.
    pub fn cheapest(
        &self,
        kind: PartKind,
        fabric: PartFabric,
        rate_bps: u64,
    ) -> Result<&Part, PriceListError> {
        self.fitting(kind, fabric)
            .filter(|part| part.rate_bps >= rate_bps)
            .min_by(|a, b| a.price.total_cmp(&b.price))
            .ok_or_else(|| self.missing(kind, fabric, rate_bps))
    }

    /// Returns the parts of a kind that fit a kind of network, with any rate.
    pub fn fitting(&self, kind: PartKind, fabric: PartFabric) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(move |part| part.kind == kind && part.fabric == fabric)
    }

    /// Returns the error about a part that the list lacks or that has no price.
    pub(super) fn missing(
        &self,
        kind: PartKind,
        fabric: PartFabric,
        rate_bps: u64,
    ) -> PriceListError {
        let unpriced = self.unpriced.iter().filter(|part| {
            part.kind == kind
                && part.fabric == fabric
                && part.rate_bps.max(part.uplink_rate_bps) >= rate_bps
        });
        // Of the parts that are fast enough, the author of the list probably meant the slowest.
        if let Some(part) = unpriced.min_by_key(|part| part.rate_bps.max(part.uplink_rate_bps)) {
            let (file, part, line) = (self.file.clone(), part.name.clone(), part.line);
            return PriceListError::NoPrice { file, line, part };
        }
        let (file, parts) = (self.file.clone(), self.parts.len());
        PriceListError::MissingPart { file, kind, fabric, rate_bps, parts }
    }
}

impl fmt::Display for PartKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Interface => "interface",
            Self::Switch => "switch",
            Self::Fabric => "fabric",
            Self::Cable => "cable",
            Self::TrunkCable => "trunk_cable",
        })
    }
}

impl fmt::Display for PartFabric {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Ethernet => "ethernet",
            Self::Wormhole => "wormhole",
            Self::Flit => "flit",
        })
    }
}

/// The contents of a price list file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceFile {
    name: String,
    currency: String,
    #[serde(default)]
    part: Vec<Spanned<PartEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PartEntry {
    part: String,
    kind: PartKind,
    fabric: PartFabric,
    #[serde(default)]
    ports: u32,
    rate_bps: u64,
    #[serde(default)]
    uplink_ports: u32,
    #[serde(default)]
    uplink_rate_bps: u64,
    price: Option<f64>,
    watts: Option<f64>,
    source: Option<String>,
    date: Option<String>,
}

fn checked(file: &str, text: &str, entry: Spanned<PartEntry>) -> Result<Part, PriceListError> {
    let line = 1 + text.bytes().take(entry.span().start).filter(|byte| *byte == b'\n').count();
    let entry = entry.into_inner();
    let wrong = |what: String| PriceListError::Value { file: file.to_owned(), line, what };
    let name = &entry.part;
    let is_amount = |amount: f64| amount.is_finite() && amount >= 0.0;
    if let Some(price) = entry.price.filter(|price| !is_amount(*price)) {
        return Err(wrong(format!("the price of {name} is {price}, not 0 or more")));
    }
    if let Some(watts) = entry.watts.filter(|watts| !is_amount(*watts)) {
        return Err(wrong(format!("the watts of {name} are {watts}, not 0 or more")));
    }
    if entry.rate_bps == 0 {
        return Err(wrong(format!("the rate of {name} is 0 b/s")));
    }
    if matches!(entry.kind, PartKind::Switch | PartKind::Fabric) && entry.ports == 0 {
        return Err(wrong(format!("{name} is a {} without ports", entry.kind)));
    }
    if entry.uplink_ports > 0 && entry.uplink_rate_bps == 0 {
        return Err(wrong(format!("{name} has uplink_ports, but no uplink_rate_bps")));
    }
    let (source, date) = (entry.source.unwrap_or_default(), entry.date.unwrap_or_default());
    if entry.price.is_some() && (source.trim().is_empty() || date.trim().is_empty()) {
        return Err(wrong(format!("{name} needs a source and a date for its price")));
    }
    Ok(Part {
        name: entry.part,
        kind: entry.kind,
        fabric: entry.fabric,
        ports: entry.ports,
        rate_bps: entry.rate_bps,
        uplink_ports: entry.uplink_ports,
        uplink_rate_bps: entry.uplink_rate_bps,
        price: entry.price.unwrap_or(f64::NAN),
        watts: entry.watts,
        source,
        date,
        line,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "name = \"a\"\ncurrency = \"euros\"\n";

    fn part(lines: &str) -> String {
        format!("{HEAD}[[part]]\npart = \"p\"\nfabric = \"ethernet\"\n{lines}")
    }

    fn refused(text: &str) -> String {
        PriceList::parse("a.toml", text).expect_err("it is wrong").to_string()
    }

    #[test]
    fn errors_of_a_price_list_name_file_and_line() {
        let rest = "source = \"s\"\ndate = \"2001\"\n";
        let cable = "kind = \"cable\"\nrate_bps = 5\n";
        let error = refused(&part(&format!("{cable}price = -1\n{rest}")));
        assert!(error.starts_with("a.toml:3: the price of p is -1"), "{error}");
        let error = refused(&part(&format!("{cable}prise = 1\n{rest}")));
        assert!(error.contains("line 8") && error.contains("`prise`"), "{error}");
        let error = refused(&part("kind = \"cable\"\nrate_bps = 5\nprice = 1\n"));
        assert!(error.contains("needs a source and a date"), "{error}");
        let switch = "kind = \"switch\"\nrate_bps = 5\nprice = 1\n";
        assert!(refused(&part(&format!("{switch}{rest}"))).contains("without ports"));
        let unsourced = "source = \" \"\ndate = \"2001\"\n";
        assert!(
            refused(&part(&format!("{cable}price = 1\n{unsourced}")))
                .contains("needs a source and a date")
        );
        assert!(refused(HEAD).contains("no [[part]]"));
    }

    #[test]
    fn the_cheapest_part_that_is_fast_enough_is_chosen() {
        let one = |name: &str, rate: u64, price: u32| {
            format!(
                "[[part]]\npart = \"{name}\"\nfabric = \"ethernet\"\nkind = \"cable\"\nrate_bps = \
                 {rate}\nprice = {price}\nsource = \"s\"\ndate = \"2001\"\n"
            )
        };
        let text = format!("{HEAD}{}{}{}", one("a", 1, 1), one("b", 10, 9), one("c", 20, 8));
        let list = PriceList::parse("a.toml", &text).expect("it is well formed");
        let found = list.cheapest(PartKind::Cable, PartFabric::Ethernet, 5).expect("two fit");
        assert_eq!((found.name.as_str(), found.line), ("c", 19));
        let error =
            list.cheapest(PartKind::Cable, PartFabric::Ethernet, 30).expect_err("none fits");
        assert!(error.to_string().contains("a.toml: no cable for ethernet of 30 b/s"), "{error}");
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(
            text in "(name|currency|part|kind|price|ports|=|\"|\\[\\[part\\]\\]|[ \n0-9a-]){0,80}",
        ) {
            let _ = PriceList::parse("a.toml", &text);
        }
    }
}
