//! Computes all results of the paper in one run.

use super::super::simulation::{HostCosts, Outcome};
use super::super::statistics::{Summary, mix};
use super::super::workload::{MeshConfiguration, MeshExchange, TokenPass};
use super::configurations::{Configurations, MESH_SIDE, Networks, PaperError, RANKS};
use super::configurations::{linear, mesh_placement};
use super::prices::{Cost, costs};
use super::reference::{Interconnect, Row, SIZES, table1, table2, throughput_mbps};
use super::statements::{Statement, statements};

/// The paper's tables and figures, next to the results of the model.
#[derive(Clone, Debug)]
pub struct Reproduction {
    /// Results for Table 1.
    pub tokens: Vec<Token>,
    /// Results for Table 2.
    pub cells: Vec<Cell>,
    /// Figures 5 and 6: completion times of `mesh`.
    pub curves: Vec<Curve>,
    /// The paper's statements about its figures.
    pub statements: Vec<Statement>,
    /// Results for the cost table.
    pub costs: Vec<Cost>,
    /// Contradictions in the paper's cost table.
    pub findings: Vec<String>,
    /// Hash of the results of all runs.
    pub hash: u64,
    /// Number of events of all runs.
    pub events: u64,
}

/// Results of `token_pass` on one interconnect.
#[derive(Clone, Copy, Debug)]
pub struct Token {
    /// The interconnect.
    pub interconnect: Interconnect,
    /// The model's latencies of one byte, in µs.
    pub model: Row,
    /// The paper's latencies of one byte, in µs.
    pub paper: Row,
    /// The model's throughput with a token of 15 MB, in Mb/s.
    pub model_mbps: f64,
    /// Theoretical throughput, in Mb/s.
    pub theory_mbps: f64,
}

/// A number in Table 2.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The interconnect.
    pub interconnect: Interconnect,
    /// Size of messages, in bytes.
    pub bytes: u32,
    /// Index in [`COLUMNS`](super::reference::COLUMNS).
    pub column: usize,
    /// Value that the paper prints, in µs.
    pub paper: f64,
    /// Value of the model, in µs.
    pub model: f64,
}

/// Completion times of `mesh` for one size of messages and several host overheads.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The interconnect.
    pub interconnect: Interconnect,
    /// Size of messages, in bytes.
    pub bytes: u32,
    /// Pairs of host overhead and completion time in µs, in ascending order of overhead. The
    /// overhead is a fraction of the overhead that hosts had in the year 1999, from 0.
    pub points: Vec<(f64, f64)>,
    /// Host overhead at which the hosts alone would take as long as the network alone, as a
    /// fraction of the overhead that hosts had in the year 1999. With less overhead, the network is
    /// the bottleneck.
    pub knee: f64,
}

impl Cell {
    /// Returns the difference from the paper's value, in percent of that value.
    pub fn error_percent(&self) -> f64 {
        (self.model / self.paper - 1.0) * 100.0
    }

    /// Returns whether the model's value, rounded as in the paper, equals the paper's value.
    pub fn is_exact(&self) -> bool {
        format!("{:.2}", self.model) == format!("{:.2}", self.paper)
    }

    /// Returns the reason for an error above 10 %; `None` if the error is smaller.
    pub fn reason(&self) -> Option<&'static str> {
        if self.error_percent().abs() <= 10.0 {
            return None;
        }
        Some(match (self.interconnect, self.bytes, self.column) {
            (Interconnect::Avici, 2048, 0) => {
                "not reproducible: to store and forward two fragments takes at least 25.3 us"
            }
            (Interconnect::Avici, _, 2) => {
                "not reproducible: a maximum of thousands of latencies depends on which ranks run ahead"
            }
            (Interconnect::Ethernet, 2048, _) => {
                "not reproducible with 6 trunks: the row fits 7 or 8 trunks, and the other rows \
                 fit 6"
            }
            (Interconnect::Ethernet, 512, 1) => {
                "not reproducible: at 512 B, the trunks limit the rate as much as the forwarding \
                 does, and the mean depends on how sources are spread over trunks, which the paper \
                 does not say"
            }
            (Interconnect::Ethernet, _, 2 | 3) => {
                "the deviation depends on how sources are spread over trunks, which the paper does not say"
            }
            (Interconnect::Myrinet, _, 2) => {
                "chaotic: in a closed loop of worms, maxima of equal designs differ by a tenth"
            }
            (Interconnect::Myrinet, _, _) => {
                "chaotic: priorities and timing decide which worms are blocked, and the paper does \
                 not give them"
            }
            _ => "depends on timing that the paper does not give",
        })
    }
}

impl Curve {
    /// Returns the completion time in µs at a host overhead, given as a fraction of the overhead
    /// that hosts had in the year 1999; `None` if there is no such point.
    pub fn at(&self, share: f64) -> Option<f64> {
        self.points.iter().find(|(at, _)| (at - share).abs() < 1e-9).map(|(_, time_us)| *time_us)
    }
}

impl Reproduction {
    /// Runs all experiments.
    ///
    /// # Errors
    /// Returns [`PaperError`]; each variant names one cause.
    pub fn new(configurations: &Configurations) -> Result<Self, PaperError> {
        let networks = Networks::new(configurations)?;
        let mut runs = Runs { configurations, networks: &networks, hash: 0, events: 0 };
        let mut tokens = Vec::new();
        let (mut cells, mut curves) = (Vec::new(), Vec::new());
        for interconnect in Interconnect::ALL {
            tokens.push(runs.token(interconnect)?);
            for (row, bytes) in table2(interconnect).into_iter().zip(SIZES) {
                let network_only = runs.mesh(interconnect, bytes, 0.0)?;
                let model = columns(&network_only.latency);
                cells.extend(row.into_iter().zip(model).enumerate().map(
                    |(column, (paper, model))| Cell { interconnect, bytes, column, paper, model },
                ));
                curves.push(runs.curve(interconnect, bytes, &network_only)?);
            }
        }
        let (costs, findings) = costs(&networks)?;
        let (mut hash, mut events) = (runs.hash, runs.events);
        let eight = runs_with_eight_trunks(configurations)?;
        hash = mix(hash, eight.hash);
        events += eight.events;
        let statements = statements(&curves, eight.completed_ps as f64 * 1e-6);
        Ok(Self { tokens, cells, curves, statements, costs, findings, hash, events })
    }

    /// Returns the cells of Table 2 for one interconnect.
    pub fn cells_of(&self, interconnect: Interconnect) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(move |cell| cell.interconnect == interconnect)
    }

    /// Returns the root mean square of ln(model / paper), in percent, over the cells of one
    /// interconnect.
    pub fn rms_log_error_percent(&self, interconnect: Interconnect) -> f64 {
        let squares: Vec<f64> = self
            .cells_of(interconnect)
            .map(|cell| (cell.model / cell.paper).ln().powi(2))
            .collect();
        (squares.iter().sum::<f64>() / squares.len().max(1) as f64).sqrt() * 100.0
    }

    /// Returns the number of cells of Table 2 whose error is at most `percent`.
    pub fn cells_within(&self, percent: f64) -> usize {
        self.cells.iter().filter(|cell| cell.error_percent().abs() <= percent).count()
    }

    /// Returns the number of minima in Table 2 that equal the paper's printed values.
    pub fn minima_exact(&self) -> usize {
        self.cells.iter().filter(|cell| cell.column == 0 && cell.is_exact()).count()
    }

    /// Returns the number of values in Table 1 that equal the paper's printed values.
    pub fn table1_exact(&self) -> usize {
        let numbers = self.tokens.iter().flat_map(|token| token.model.into_iter().zip(token.paper));
        numbers.filter(|(model, paper)| format!("{model:.3}") == format!("{paper:.3}")).count()
    }
}

/// Runs simulations, and sums their hashes and events.
struct Runs<'a> {
    configurations: &'a Configurations,
    networks: &'a Networks,
    hash: u64,
    events: u64,
}

impl Runs<'_> {
    fn token(&mut self, interconnect: Interconnect) -> Result<Token, PaperError> {
        let delay_ps = self.configurations.delay_ps;
        let placement = linear();
        let small = TokenPass::new(RANKS, 1, delay_ps, RANKS);
        let small = self
            .configurations
            .run(self.networks, interconnect, small, &placement, HostCosts::default())
            .map_err(|cause| stuck(interconnect, "token_pass", cause))?;
        // A pass of a long token takes thousands of frames, and all passes are equal. One pass is
        // therefore enough.
        let large = TokenPass::new(RANKS, TOKEN_BYTES, delay_ps, 1);
        let large = self
            .configurations
            .run(self.networks, interconnect, large, &placement, HostCosts::default())
            .map_err(|cause| stuck(interconnect, "token_pass with 15 MB", cause))?;
        self.count(&small);
        self.count(&large);
        Ok(Token {
            interconnect,
            model: columns(&small.latency),
            paper: table1(interconnect),
            model_mbps: f64::from(TOKEN_BYTES) * 8.0 / large.latency.mean_us(),
            theory_mbps: throughput_mbps(interconnect),
        })
    }

    fn mesh(
        &mut self,
        interconnect: Interconnect,
        bytes: u32,
        overhead: f64,
    ) -> Result<Outcome, PaperError> {
        let costs = self.configurations.host_costs(interconnect).scaled(overhead);
        let mesh = self.configurations.mesh(bytes);
        let outcome = self
            .configurations
            .run(self.networks, interconnect, mesh, &mesh_placement(interconnect), costs)
            .map_err(|cause| stuck(interconnect, &format!("mesh of {bytes} B"), cause))?;
        self.count(&outcome);
        Ok(outcome)
    }

    fn curve(
        &mut self,
        interconnect: Interconnect,
        bytes: u32,
        network_only: &Outcome,
    ) -> Result<Curve, PaperError> {
        let completed_us = |outcome: &Outcome| outcome.completed_ps as f64 * 1e-6;
        let mut points = vec![(0.0, completed_us(network_only))];
        for overhead in OVERHEADS {
            points.push((overhead, completed_us(&self.mesh(interconnect, bytes, overhead)?)));
        }
        let Configurations { iterations, compute_ps, .. } = *self.configurations;
        let costs = self.configurations.host_costs(interconnect);
        // In each iteration, a host sends four messages and receives four.
        let host_us = 4.0 * (costs.send(bytes) + costs.receive(bytes)) as f64 * 1e-6;
        let compute_us = compute_ps as f64 * 1e-6;
        let network_us = completed_us(network_only) / f64::from(iterations) - compute_us;
        Ok(Curve { interconnect, bytes, points, knee: network_us / host_us })
    }

    const fn count(&mut self, outcome: &Outcome) {
        self.hash = mix(self.hash, outcome.hash);
        self.events += outcome.events;
    }
}

impl Configurations {
    /// Returns the program `mesh` for one size of messages.
    pub fn mesh(&self, bytes: u32) -> MeshExchange {
        MeshExchange::new(MeshConfiguration {
            width: MESH_SIDE,
            height: MESH_SIDE,
            bytes,
            iterations: self.iterations,
            compute_ps: self.compute_ps,
            order: self.order,
        })
    }
}

/// Runs `mesh` with messages of 2 KiB over Ethernet with 8 trunks instead of 6.
fn runs_with_eight_trunks(configurations: &Configurations) -> Result<Outcome, PaperError> {
    let eight = Configurations { ethernet_trunks: 8, ..configurations.clone() };
    let networks = Networks::new(&eight)?;
    let mut runs = Runs { configurations: &eight, networks: &networks, hash: 0, events: 0 };
    runs.mesh(Interconnect::Ethernet, 2048, 0.0)
}

fn stuck(
    interconnect: Interconnect,
    what: &str,
    cause: super::super::simulation::Stuck,
) -> PaperError {
    PaperError::Stuck { interconnect: interconnect.name(), what: what.to_owned(), cause }
}

/// Returns the columns of a table row, in µs. The values are multiples of a picosecond.
fn columns(latency: &Summary) -> Row {
    [latency.min_us(), latency.mean_us(), latency.max_us(), latency.deviation_us()]
}

/// Length of the long token of `token_pass`, in bytes.
const TOKEN_BYTES: u32 = 15_000_000;

/// Host overheads of Fig. 6 except 0, as fractions of the overhead that hosts had in the year 1999.
const OVERHEADS: [f64; 4] = [0.1, 0.2, 0.5, 1.0];
