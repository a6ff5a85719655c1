//! `ethernot sim saturate`: finds the open load that saturates a network.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use interconnect::configuration::Configuration;
use interconnect::saturation::{Curve, Estimate, LoadPoint, Search, Step};
use serde_json::{Value, json};

use crate::Failure;
use crate::output::print;
use crate::run_command::read;

/// Search for the load that saturates a network.
///
/// The workload must be an open load: hosts post messages at a given rate. The command ignores the
/// load of the configuration. It increases the load until a run saturates the network, and then
/// bisects between this load and the load of the run before. A run saturates the network if the
/// mean latency is three times the latency at 1 % load. It also does so if messages remain when the
/// run has lasted twice as long as the period in which hosts post. Offered and accepted loads are
/// in percent of the rate of the hosts' links.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim saturate torus.toml\n  \
    ethernot sim saturate torus.toml --precision 0.25 --replications 5\n  \
    ethernot sim saturate torus.toml --json\n\n\
    A configuration:\n  \
    [topology]\n  kind = \"torus\"\n  sizes = [8, 8]\n  \
    [fabric]\n  kind = \"flit\"\n  router = \"booksim2\"\n  \
    [workload]\n  pattern = \"tornado\"\n  arrivals = \"bernoulli\"\n  bytes = 256\n  until_ps = 20_000_000")]
pub(crate) struct Arguments {
    /// The configuration; `-` for standard input
    configuration: PathBuf,
    /// Distance between the loads of the first runs, in percent; with 10 the runs have loads of 10,
    /// 20 and so on
    #[arg(long, value_name = "PERCENT", default_value_t = Search::default().step_percent,
          value_parser = percent)]
    step: f64,
    /// Final distance between the loads below and above saturation, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = Search::default().precision_percent,
          value_parser = percent)]
    precision: f64,
    /// Runs of each load, with consecutive seeds that begin with the configuration's seed; with
    /// several runs, the command prints 95 % confidence intervals
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    replications: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    let valid = number.filter(|number| (0.01..=100.0).contains(number));
    valid.ok_or_else(|| {
        "invalid percentage: it must be a number from 0.01 to 100, such as 0.5".to_owned()
    })
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let configuration = read(&arguments.configuration)?;
    let search = Search {
        step_percent: arguments.step,
        precision_percent: arguments.precision,
        replications: arguments.replications,
    };
    // Like progress bars, drawn only on a terminal.
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} · {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    let curve = configuration.saturate(search, &mut |step: Step| {
        bar.set_message(message(step, arguments.replications));
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let curve = curve?;
    let text = if arguments.json {
        format!("{:#}\n", to_json(&configuration, &curve, arguments.replications))
    } else {
        to_text(&configuration, &curve)
    };
    print(&text)
}

fn message(step: Step, replications: u32) -> String {
    let Step { load_percent, run, progress } = step;
    let share = progress.share.unwrap_or(0.0) * 100.0;
    format!(
        "load {load_percent:.2} %, run {run} of {replications}, {share:.0} % posted, {} messages in flight",
        progress.messages
    )
}

/// Writing to a `String` cannot fail, so the results of `writeln!` are ignored.
fn to_text(configuration: &Configuration, curve: &Curve) -> String {
    let mut text = format!(
        "{}, {}\n\n{:>8} {:>22} {:>20}\n",
        configuration.topology.name(),
        configuration.fabric.name(),
        "load %",
        "latency us",
        "accepted %"
    );
    for point in &curve.points {
        let LoadPoint { load_percent, latency_us, accepted_percent, is_saturated } = point;
        let _ = writeln!(
            text,
            "{load_percent:>8.2} {:>22} {:>20}{}",
            shown(latency_us, 4),
            shown(accepted_percent, 2),
            if *is_saturated { "  saturated" } else { "" }
        );
    }
    let _ = match &curve.saturation {
        Some(point) => writeln!(
            text,
            "\nsaturation at {:.2} % of load, {} % accepted; latency {} us, idle {:.4} us",
            point.load_percent,
            shown(&point.accepted_percent, 2),
            shown(&point.latency_us, 4),
            curve.idle_us
        ),
        None => writeln!(text, "\nno saturation: the network carries the full rate of the hosts"),
    };
    text
}

fn shown(estimate: &Estimate, digits: usize) -> String {
    match estimate.margin {
        Some(margin) => format!("{:.digits$} +- {margin:.digits$}", estimate.mean),
        None => format!("{:.digits$}", estimate.mean),
    }
}

fn to_json(configuration: &Configuration, curve: &Curve, replications: u32) -> Value {
    let point = |point: &LoadPoint| {
        json!({
            "load_percent": point.load_percent,
            "latency_us": point.latency_us.mean,
            "latency_margin_us": point.latency_us.margin,
            "accepted_percent": point.accepted_percent.mean,
            "accepted_margin_percent": point.accepted_percent.margin,
            "is_saturated": point.is_saturated,
        })
    };
    json!({
        "topology": configuration.topology.name(),
        "fabric": configuration.fabric.name(),
        "replications": replications,
        "idle_latency_us": curve.idle_us,
        "points": curve.points.iter().map(point).collect::<Vec<_>>(),
        "saturation": curve.saturation.as_ref().map(point),
    })
}

const TICK: Duration = Duration::from_millis(500);
