//! The measurements of a server and its client over kernel TCP and in another configuration, and
//! the comparison of the two.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::running::ProgramError;
use super::way::{PathTaken, Way};
use crate::run::Observer;
use crate::statistics::Summary;

/// A measured quantity of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Requests, operations or gathers answered per second.
    PerSecond,
    /// Bytes received per second.
    BytesPerSecond,
    /// Median time of a request, in microseconds. If the program reports round trips, half a round
    /// trip.
    LatencyP50Us,
    /// 95th percentile of the time of a request, in microseconds. If the program reports round
    /// trips, half a round trip.
    LatencyP95Us,
    /// 99th percentile of the time of a request, in microseconds. If the program reports round
    /// trips, half a round trip.
    LatencyP99Us,
    /// Median time of `connect()`, in microseconds.
    ConnectUs,
    /// Median time from the end of a connection's set-up to its close, in microseconds.
    AnswerUs,
    /// CPU time of the server per request, in microseconds.
    ServerCpuUs,
    /// CPU time of the client per request, in microseconds.
    ClientCpuUs,
}

impl Quantity {
    /// Returns the name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "rate",
            Self::BytesPerSecond => "throughput",
            Self::LatencyP50Us => "latency",
            Self::LatencyP95Us => "95 % latency",
            Self::LatencyP99Us => "99 % latency",
            Self::ConnectUs => "connect",
            Self::AnswerUs => "answer",
            Self::ServerCpuUs => "server CPU",
            Self::ClientCpuUs => "client CPU",
        }
    }

    /// Returns the unit of its values.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::PerSecond => "1/s",
            Self::BytesPerSecond => "B/s",
            _ => "µs",
        }
    }

    /// Returns whether a higher value is better.
    pub const fn is_better_high(self) -> bool {
        matches!(self, Self::PerSecond | Self::BytesPerSecond)
    }
}

/// The results of one run of a server and its client in one configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The measured values.
    pub values: BTreeMap<Quantity, f64>,
    /// Number of failed requests.
    pub errors: u64,
    /// The library's counters in the client's processes.
    pub client_path: PathTaken,
}

/// One quantity, measured over kernel TCP and in the other configuration of the case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The quantity.
    pub quantity: Quantity,
    /// The unit of the quantity.
    pub unit: String,
    /// Values over kernel TCP.
    pub tcp: Summary,
    /// Values in the other configuration of the case.
    pub other: Summary,
    /// Ratio of the value in the other configuration to the value over TCP, computed for each
    /// repetition.
    pub ratio: Summary,
}

/// The results of one case, measured alternately over kernel TCP and in the configuration `other`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// The name, unique in the document.
    pub name: String,
    /// The name of the case's group.
    pub group: String,
    /// The position on the axis of the group. Depending on the group, this is a number of bytes, an
    /// exponent, or a number of hosts.
    pub at: f64,
    /// The configuration of the two programs that the benchmark compared with kernel TCP.
    pub other: Way,
    /// The measured quantities; empty if the case could not run.
    pub figures: Vec<Figure>,
    /// Number of failed requests, first over TCP and then in the configuration `other`.
    pub errors: [u64; 2],
    /// The library's counters in the clients, over all samples in the configuration `other`.
    pub client_path: PathTaken,
    /// Whether the counters of each sample prove that connections moved to the edge, or stayed on
    /// TCP, as the configuration requires.
    pub is_proven: bool,
    /// The reason why the case could not run.
    pub cannot_run: Option<String>,
    /// The two samples of each repetition, first over TCP and then in the configuration `other`.
    pub samples: Vec<[Sample; 2]>,
}

impl Case {
    /// Creates a case that has no figures yet.
    pub fn new(group: &str, name: String, at: f64, other: Way) -> Self {
        Self {
            name,
            group: group.to_string(),
            at,
            other,
            figures: Vec::new(),
            errors: [0; 2],
            client_path: PathTaken::default(),
            is_proven: false,
            cannot_run: None,
            samples: Vec::new(),
        }
    }

    /// Takes samples over kernel TCP and in the configuration `other` alternately, `repetitions` of
    /// each. Each repetition starts with the sample that came second in the previous repetition. If
    /// the case cannot run, stores the reason, so that other cases are still measured.
    #[must_use]
    pub fn measure(
        mut self,
        repetitions: u32,
        observer: &mut dyn Observer,
        mut sample: impl FnMut(Way) -> Result<Sample, ProgramError>,
    ) -> Self {
        let mut in_turn = || {
            let mut samples = Vec::new();
            for repetition in 0..repetitions {
                let mut take = |way: Way| {
                    observer.on_sample(&format!("{}, {}", self.name, way.name()));
                    sample(way).map_err(|error| format!("over {}: {error}", way.name()))
                };
                samples.push(if repetition.is_multiple_of(2) {
                    let tcp = take(Way::Tcp)?;
                    [tcp, take(self.other)?]
                } else {
                    let other = take(self.other)?;
                    [take(Way::Tcp)?, other]
                });
            }
            Ok(samples)
        };
        match in_turn() {
            Ok(samples) => self.take_in(samples),
            Err(reason) => self.cannot_run = Some(reason),
        }
        self
    }

    /// Returns the figure of a quantity; `None` if the quantity was not measured.
    pub fn figure(&self, quantity: Quantity) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.quantity == quantity)
    }

    fn take_in(&mut self, samples: Vec<[Sample; 2]>) {
        let quantities = samples.iter().flat_map(|[tcp, _]| tcp.values.keys().copied());
        let mut quantities: Vec<Quantity> = quantities.collect();
        quantities.sort_unstable();
        quantities.dedup();
        self.figures = quantities.into_iter().filter_map(|one| figure(one, &samples)).collect();
        for [tcp, other] in &samples {
            self.errors[0] += tcp.errors;
            self.errors[1] += other.errors;
            self.client_path.add(&other.client_path);
        }
        self.is_proven =
            samples.iter().all(|[_, other]| is_as_meant(self.other, &other.client_path));
        self.samples = samples;
    }
}

/// Returns whether all of the client's connections moved to the edge, or stayed on TCP, as `way`
/// requires. A connection also counts as correct if the program closed it before it could move, for
/// example after a short request and its answer. The counters contain the number of such
/// connections.
fn is_as_meant(way: Way, path: &PathTaken) -> bool {
    match way {
        Way::Tcp | Way::ServerOnly => path.processes == 0,
        Way::Edge | Way::EdgePoll => path.moved > 0 && path.left.keys().all(|why| why == CLOSED),
        Way::Default | Way::ClientOnly | Way::LeftAlone => path.moved == 0 && path.left_count() > 0,
    }
}

fn figure(quantity: Quantity, samples: &[[Sample; 2]]) -> Option<Figure> {
    let value = |sample: &Sample| sample.values.get(&quantity).copied();
    let of = |side: usize| Summary::trimmed(samples.iter().filter_map(|pair| value(&pair[side])));
    let ratios = samples.iter().filter_map(|[tcp, other]| Some(value(other)? / value(tcp)?));
    Some(Figure {
        quantity,
        unit: quantity.unit().to_string(),
        tcp: of(0)?,
        other: of(1)?,
        ratio: Summary::trimmed(ratios)?,
    })
}

/// The library's reason why a connection stayed on TCP: it was closed before the decision to move.
const CLOSED: &str = "closed";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_closed_before_they_can_move_do_not_count_against_the_edge() {
        let path = |reason: &str| PathTaken {
            processes: 1,
            moved: 50,
            left: [(reason.to_string(), 1)].into(),
            ..PathTaken::default()
        };
        assert!(is_as_meant(Way::Edge, &path("closed")));
        assert!(!is_as_meant(Way::Edge, &path("refused")));
        assert!(
            !is_as_meant(Way::Default, &path("no-gain"))
                && !is_as_meant(Way::ServerOnly, &path("short"))
        );
        assert!(is_as_meant(Way::Default, &PathTaken { moved: 0, ..path("no-gain") }));
        assert!(!is_as_meant(Way::Edge, &PathTaken { moved: 0, ..path("closed") }));
    }

    struct Silent;

    impl Observer for Silent {
        fn on_note(&mut self, _: &str) {}
        fn on_start(&mut self, _: u64) {}
        fn on_sample(&mut self, _: &str) {}
    }

    fn sample(rate: f64, moved: u64) -> Sample {
        let client_path = PathTaken { processes: 1, moved, ..PathTaken::default() };
        Sample { values: [(Quantity::PerSecond, rate)].into(), errors: 1, client_path }
    }

    #[test]
    fn ratios_compare_adjacent_runs_in_alternating_order() {
        let [tcp, edge] = [Way::Tcp, Way::Edge];
        let mut order = Vec::new();
        let case = case();
        let case = case.measure(3, &mut Silent, |way| {
            order.push(way);
            // Simulates a machine that becomes slower from repetition to repetition.
            let pair = 0.5_f64.powf(((order.len() - 1) / 2) as f64);
            Ok(sample(if way == tcp { pair } else { 3.0 * pair }, 1))
        });
        assert_eq!(order, [tcp, edge, edge, tcp, tcp, edge]);
        let ratio = case.figure(Quantity::PerSecond).unwrap().ratio;
        assert!((ratio.min - 3.0).abs() < 1e-9 && (ratio.max - 3.0).abs() < 1e-9, "{ratio:?}");
        assert_eq!((case.errors, case.is_proven, case.client_path.moved), ([3, 3], true, 3));
    }

    #[test]
    fn one_sample_over_another_route_makes_a_case_unproven() {
        let case = case();
        let mut moved = [1, 0].into_iter();
        let case = case.measure(2, &mut Silent, |way| {
            Ok(sample(1.0, if way == Way::Edge { moved.next().unwrap() } else { 0 }))
        });
        assert!(!case.is_proven);
    }

    #[test]
    fn only_cases_that_cannot_run_are_reported() {
        let case = case();
        let case = case
            .measure(2, &mut Silent, |_| Err(ProgramError::Missing { program: "x", package: "y" }));
        assert!(case.figures.is_empty());
        assert!(case.cannot_run.unwrap().starts_with("over tcp: x is not installed"));
    }

    fn case() -> Case {
        Case::new("group", "name".to_string(), 1.0, Way::Edge)
    }
}
