//! What the paper prints.

/// The interconnects it compares.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Interconnect {
    /// Myrinet: wormhole switching over a torus of crossbars.
    Myrinet,
    /// Gigabit Ethernet ports on a router that is a torus of flits inside (Avici).
    Avici,
    /// Five store-and-forward Gigabit Ethernet switches.
    Ethernet,
}

impl Interconnect {
    /// All, in the order of its Table 2.
    pub const ALL: [Self; 3] = [Self::Avici, Self::Myrinet, Self::Ethernet];

    /// What the paper calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Myrinet => "Myrinet",
            Self::Avici => "Avici GigE",
            Self::Ethernet => "Conventional GigE",
        }
    }
}

/// Minimum, mean, maximum and standard deviation, in µs, as printed. (The paper heads the last one
/// σ²; it is σ.)
pub type Row = [f64; 4];

/// Names of the columns.
pub const COLUMNS: [&str; 4] = ["min", "avg", "max", "sigma"];

/// Message sizes of Table 2, in bytes.
pub const SIZES: [u32; 7] = [32, 64, 128, 256, 512, 1024, 2048];

/// Table 1: `token_pass` with one byte.
pub const fn table1(interconnect: Interconnect) -> Row {
    match interconnect {
        Interconnect::Myrinet => [0.388, 0.427, 0.869, 0.093],
        Interconnect::Avici => [1.380, 1.386, 1.530, 0.024],
        Interconnect::Ethernet => [1.564, 1.595, 3.532, 0.244],
    }
}

/// Throughput of a token of 15 MB, theory, in Mb/s.
pub const fn throughput_mbps(interconnect: Interconnect) -> f64 {
    match interconnect {
        Interconnect::Myrinet => 1280.0,
        // 1500 bytes of payload in each 1538 on the wire.
        Interconnect::Avici | Interconnect::Ethernet => 1000.0 * 1500.0 / 1538.0,
    }
}

/// Table 2: latencies in `mesh`, one row for each of [`SIZES`].
pub const fn table2(interconnect: Interconnect) -> [Row; 7] {
    match interconnect {
        Interconnect::Avici => [
            [1.38, 2.57, 5.28, 0.87],
            [1.65, 3.27, 7.11, 1.10],
            [2.76, 5.34, 9.72, 1.75],
            [4.86, 9.18, 17.37, 3.02],
            [9.09, 16.97, 30.93, 5.44],
            [17.49, 32.56, 55.95, 10.25],
            [22.20, 59.20, 112.59, 20.21],
        ],
        Interconnect::Myrinet => [
            [0.58, 1.57, 5.74, 0.90],
            [0.78, 2.23, 9.85, 1.44],
            [1.18, 3.74, 17.58, 2.54],
            [1.98, 7.85, 55.75, 7.07],
            [3.58, 16.73, 226.71, 18.83],
            [6.78, 36.54, 441.90, 43.75],
            [13.18, 75.89, 906.86, 93.33],
        ],
        Interconnect::Ethernet => [
            [1.56, 53.77, 80.64, 11.30],
            [1.85, 53.86, 80.55, 11.37],
            [2.88, 53.47, 81.19, 12.81],
            [4.92, 50.85, 85.45, 13.67],
            [9.02, 57.28, 118.22, 27.03],
            [17.21, 85.60, 254.26, 68.44],
            [29.52, 151.92, 378.46, 94.66],
        ],
    }
}
