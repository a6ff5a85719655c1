//! Values printed in the paper, from `papers/sandia1999.toml`.

use papers::printed::{self, paper};

/// The interconnects that the paper compares.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Interconnect {
    /// Myrinet: wormhole switching over a torus of crossbars.
    Myrinet,
    /// Avici: a router with Gigabit Ethernet ports. Inside the router, flits cross a torus.
    Avici,
    /// Five store-and-forward Gigabit Ethernet switches.
    Ethernet,
}

impl Interconnect {
    /// All interconnects, in the order of Table 2.
    pub const ALL: [Self; 3] = [Self::Avici, Self::Myrinet, Self::Ethernet];

    /// Returns the name that the paper uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Myrinet => "Myrinet",
            Self::Avici => "Avici GigE",
            Self::Ethernet => "Conventional GigE",
        }
    }
}

/// Minimum, mean, maximum and standard deviation, in µs, as printed. The paper calls the last
/// column σ², but its values are σ.
pub type Row = [f64; 4];

/// Names of the columns.
pub const COLUMNS: [&str; 4] = printed::COLUMNS;

/// Message sizes of Table 2, in bytes.
pub const SIZES: [u32; 7] = [32, 64, 128, 256, 512, 1024, 2048];

/// Returns the row of Table 1, which contains the results of `token_pass` with one byte.
pub fn table1(interconnect: Interconnect) -> Row {
    row("table1", "table 1", interconnect)
}

/// Returns the theoretical throughput of a token of 15 MB, in Mb/s.
pub const fn throughput_mbps(interconnect: Interconnect) -> f64 {
    match interconnect {
        Interconnect::Myrinet => 1280.0,
        // 1500 bytes of payload take 1538 bytes on the wire.
        Interconnect::Avici | Interconnect::Ethernet => 1000.0 * 1500.0 / 1538.0,
    }
}

/// Returns the rows of Table 2: latencies in `mesh`, one row for each of [`SIZES`].
pub fn table2(interconnect: Interconnect) -> [Row; 7] {
    SIZES.map(|bytes| row("table2", &panel(bytes), interconnect))
}

/// Returns the name of the part of Table 2 with messages of this size.
pub fn panel(bytes: u32) -> String {
    format!("table 2, {bytes} B")
}

/// Returns a number from the paper's text. `name` contains the item and the name in the data.
pub(super) fn number(name: &str) -> f64 {
    printed::number(&format!("{KEY}/{name}"))
}

/// Returns a row of a table. If the data has no such row, all values are NaN.
fn row(item: &str, panel: &str, interconnect: Interconnect) -> Row {
    let item = paper(KEY).and_then(|paper| paper.item(item));
    item.and_then(|item| item.row(panel, interconnect.name())).unwrap_or([f64::NAN; 4])
}

/// Key of this paper in the data of all papers.
pub const KEY: &str = "sandia1999";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_both_tables_is_in_the_data() {
        for interconnect in Interconnect::ALL {
            let rows = table2(interconnect).into_iter().chain([table1(interconnect)]);
            for row in rows {
                assert!(row.iter().all(|value| value.is_finite()), "{interconnect:?}");
            }
        }
    }
}
