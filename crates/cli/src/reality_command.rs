//! `ethernot sim reality`: compares the engine on shaped links with its simulation.

use std::panic::resume_unwind;
use std::thread;

use bench::client::WARM_UP_SHARE;
use bench::multiedge::{self, LinkKind, SetUp, Wishes, setups};
use bench::plan::Options;
use bench::reality::{
    Curve, DEFAULTS, FreePath, Point, Quantity, Report, Samples, SetUpComparison,
};
use bench::transport::Test;
use clap::Args;
use fabric::polling::{self, Costs, Length, Outcome, Pauses, Trial};
use fabric::scenario::TransferError;
use testbed::clock;

use crate::Failure;
use crate::host_costs::{self, Free};
use crate::multiedge_command::{chosen_sizes, parse_setup};
use crate::progress::Progress;
use crate::quantities::{parse_seconds, parse_size, parse_test};
use crate::shaped_command::{self, OutputArguments, TESTS, chosen_tests};

/// Compare the simulated engine with the real one, over links of known rate.
///
/// First measures the costs of a host, through a switch whose ports are faster than the hosts. Then
/// runs each set-up of `ethernot bench multiedge` on shaped virtual Ethernet. Then simulates each
/// set-up, with the measured costs of a host, and with token buckets that have the rate, burst and
/// queue of the virtual ports. Prints measured and simulated latency and throughput, and their
/// difference. Repeats points whose samples vary too much, up to three times. Marks points that
/// still vary too much, and excludes them from the error figures. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim reality --quick\n  \
    ethernot sim reality --setups 2L-100M --tests one-way --sizes 1K,1M\n  \
    ethernot sim reality --json reality.json --html reality.html")]
pub(crate) struct Arguments {
    /// Fewer sizes, shorter samples: about four minutes
    #[arg(long)]
    quick: bool,
    /// Set-ups of `ethernot bench multiedge` [default: 1L-100M,2L-100M,1G+100M,1L-1G]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_setup)]
    setups: Vec<SetUp>,
    /// Tests to run: ping-pong, one-way, two-way
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_test)]
    tests: Vec<Test>,
    /// Message sizes in bytes, such as 8,4K,1M
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<u64>,
    /// Samples of each measurement, in three rounds over all set-ups. A round takes samples of all
    /// points of a set-up alternately. The simulation is compared with the median [default: 9]
    #[arg(long, value_name = "N")]
    repetitions: Option<u32>,
    /// Approximate length of each set-up's run [default: 60, with --quick 20]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    time: Option<f64>,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    shaped_command::begin("sim reality")?;
    arguments.output.check()?;
    let unix_seconds = clock::unix_seconds();
    let wishes = wishes(arguments)?;
    let mut progress = Progress::new();
    let compared = compare(arguments, &wishes, unix_seconds, &mut progress);
    progress.finish();
    let report = compared?;
    arguments.output.write(
        || serde_json::to_string_pretty(&report),
        || Ok(report::reality_page(&report)?),
        |columns| report::reality_table(&report, columns),
        120,
    )
}

/// Measures all set-ups in rounds, so that the samples of each point are spread over the whole run.
/// Without rounds, some points would be distorted, because the processors of a virtual machine are
/// fast for some seconds and then slow.
fn compare(
    arguments: &Arguments,
    wishes: &Wishes,
    unix_seconds: u64,
    progress: &mut Progress,
) -> Result<Report, Failure> {
    let free_options = of_round(&host_costs::free_options(arguments.quick)?);
    let wishes = Wishes { options: of_round(&wishes.options), ..wishes.clone() };
    let mut free = Free::new(FreePath::Switch, &free_options);
    let mut real: Vec<(SetUp, Vec<Samples>)> = Vec::new();
    for _ in 0..ROUNDS {
        free.measure(&free_options, progress)?;
        free.measure_two(&free_options, progress)?;
        progress.finish();
        for found in multiedge::run(&wishes, progress)?.setups {
            let known = real.iter().position(|(known, _)| *known == found.setup);
            let at = known.unwrap_or_else(|| {
                real.push((found.setup, Vec::new()));
                real.len() - 1
            });
            Samples::join(&mut real[at].1, found.results.results);
        }
        progress.finish();
    }
    for _ in 0..REPEATS {
        let repeats_free = free.repeat_unsteady(&free_options, progress)?;
        if !repeat_unsteady(&wishes, &mut real, progress)? && !repeats_free {
            break;
        }
    }
    let (calibration, costs) = free.costs()?;
    let setups = real
        .iter()
        .map(|(setup, samples)| simulated(setup, samples, wishes.options.in_flight, costs));
    let setups = setups.collect::<Result<_, _>>()?;
    Ok(Report::new(unix_seconds, calibration, setups))
}

/// Finds the tests and sizes of each set-up whose samples vary too much, and measures them again.
/// Returns false if there are none.
fn repeat_unsteady(
    wishes: &Wishes,
    real: &mut [(SetUp, Vec<Samples>)],
    progress: &mut Progress,
) -> Result<bool, Failure> {
    let mut any = false;
    for (setup, known) in real {
        let Some(options) = host_costs::of_unsteady(&wishes.options, known) else { continue };
        any = true;
        let again = Wishes { setups: vec![setup.clone()], options, ..wishes.clone() };
        for found in multiedge::run(&again, progress)?.setups {
            Samples::join(known, found.results.results);
        }
        progress.finish();
    }
    Ok(any)
}

/// Returns the options of one round.
fn of_round(options: &Options) -> Options {
    Options {
        repetitions: options.repetitions.div_ceil(ROUNDS),
        budget_seconds: options.budget_seconds / f64::from(ROUNDS),
        ..options.clone()
    }
}

/// Simulates the measured points, and compares the results with the measurements.
fn simulated(
    setup: &SetUp,
    samples: &[Samples],
    in_flight: u32,
    costs: Costs,
) -> Result<SetUpComparison, Failure> {
    let links: Vec<_> =
        setup.links.iter().map(|shape| host_costs::link_model(shape, setup.mtu)).collect();
    let mut points: Vec<(Test, Quantity, Point)> = Vec::new();
    for measured in samples {
        let Some(exercise) = host_costs::exercise(measured.test) else { continue };
        let bytes = u32::try_from(measured.message_bytes).map_err(|_| {
            format!("invalid message size of {} bytes: it is too large", measured.message_bytes)
        })?;
        let trial = Trial {
            links: &links,
            exercise,
            message_bytes: bytes,
            in_flight,
            in_order: setup.in_order,
            costs,
            pauses: Pauses::default(),
            length: length(measured),
            seed: 0,
        };
        let outcomes = with_seeds(&trial).map_err(|error| {
            let (setup, test) = (&setup.name, measured.test.name());
            format!("simulate {setup}, {test} of {bytes} bytes: {error}")
        })?;
        points.extend(compared(measured, &outcomes));
    }
    let mut curves = Vec::new();
    for test in TESTS {
        for quantity in [Quantity::Latency, Quantity::Throughput] {
            let of_curve = points.iter().filter(|point| (point.0, point.1) == (test, quantity));
            let of_curve: Vec<Point> = of_curve.map(|point| point.2).collect();
            if !of_curve.is_empty() {
                curves.push(Curve::new(test, quantity, of_curve));
            }
        }
    }
    Ok(SetUpComparison { setup: setup.clone(), curves })
}

/// Simulates a transfer with [`SEEDS`] different seeds, each on its own thread.
fn with_seeds(trial: &Trial<'_>) -> Result<Vec<Outcome>, TransferError> {
    let run = |seed| polling::run(&Trial { seed, ..trial.clone() });
    thread::scope(|scope| {
        let runs: Vec<_> = (1..=SEEDS).map(|seed| scope.spawn(move || run(seed))).collect();
        let join = |run: thread::ScopedJoinHandle<'_, _>| match run.join() {
            Ok(outcome) => outcome,
            Err(panic) => resume_unwind(panic),
        };
        runs.into_iter().map(join).collect()
    })
}

/// Returns the length of a simulation: the number of operations of a measured sample after its
/// warm-up. The simulation must be as long as the sample, because over slow links the measured
/// stream and the simulated stream end before they reach a steady state.
fn length(measured: &Samples) -> Length {
    let mut counts: Vec<u64> = measured.samples.iter().map(|sample| sample.operations).collect();
    counts.sort_unstable();
    let operations = counts.get(counts.len() / 2).copied().unwrap_or(1).min(OPERATIONS_MAX);
    Length::Operations {
        warm_up: (operations as f64 * WARM_UP_SHARE).ceil() as u64,
        measured: operations,
    }
}

/// Compares a measurement with its simulations: by latency for ping-pong, by throughput for other
/// tests.
fn compared(measured: &Samples, outcomes: &[Outcome]) -> Option<(Test, Quantity, Point)> {
    let (quantity, real) = measured.values();
    let simulated = |outcome: &Outcome| match outcome.latency_ns {
        Some(latency_ns) if quantity == Quantity::Latency => latency_ns / 1e3,
        _ => outcome.bytes_per_second / 1e6,
    };
    let simulated: Vec<f64> = outcomes.iter().map(simulated).collect();
    let point = Point::new(measured.message_bytes, &real, &simulated)?;
    Some((measured.test, quantity, point))
}

fn wishes(arguments: &Arguments) -> Result<Wishes, Failure> {
    let is_quick = arguments.quick;
    let setups = if arguments.setups.is_empty() {
        DEFAULTS.iter().filter_map(|name| setups::by_name(name)).collect()
    } else {
        arguments.setups.clone()
    };
    let options = Options {
        tests: chosen_tests(&arguments.tests)?,
        sizes: chosen_sizes(&arguments.sizes, is_quick),
        repetitions: arguments.repetitions.unwrap_or(9),
        budget_seconds: arguments.time.unwrap_or(if is_quick { 20.0 } else { 60.0 }),
        ..host_costs::free_options(is_quick)?
    };
    Ok(Wishes {
        setups,
        kind: LinkKind::Packet,
        mtu: None,
        with_own: true,
        with_multiedge: false,
        with_bare: false,
        with_tcp: false,
        options,
    })
}

/// Number of simulations of a point. They differ in the random numbers of the engines and in the
/// delays of timers, like the repetitions of a measurement.
const SEEDS: u64 = 5;

/// Number of rounds over all measurements.
const ROUNDS: u32 = 3;

/// Highest number of further rounds, which repeat only points with too much variation. A further
/// round takes a third of the usual number of samples of each of these points.
const REPEATS: u32 = 3;

/// Highest number of operations of a simulated sample. Small messages reach a steady state in far
/// fewer operations.
const OPERATIONS_MAX: u64 = 20_000;
