//! `ethernot sim cost`: the price of a simulated network.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use interconnect::configuration::Configuration;
use interconnect::cost::{Bill, Bisection, PriceList};
use interconnect::paper::prices;
use serde_json::{Value, json};

use crate::Failure;
use crate::output::print;
use crate::run_command::read;

/// Compute the cost of a simulated network: a bill of materials, with prices from a price list.
///
/// The bill contains the parts that the topology needs: an interface for each host, the cables, and
/// for each switch the cheapest product with enough ports of the rate. Reports switches for which
/// no product has enough ports. The included price list is from a study of 1999 and has no current
/// prices, so write your own price list with prices from your suppliers.
/// examples/simulator/prices.toml lists parts of 10, 25 and 100 Gb/s without prices. For each
/// missing price the command prints the line to add.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim cost cluster.toml\n  \
    ethernot sim cost cluster.toml --prices prices.toml --simulate\n  \
    ethernot sim cost cluster.toml --prices prices.toml --result run.json --json\n  \
    ethernot sim cost --print-prices > prices.toml")]
pub(crate) struct Arguments {
    /// The configuration; `-` for standard input
    #[arg(required_unless_present = "print_prices")]
    configuration: Option<PathBuf>,
    /// The price list [default: the list of the study of 1999]
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
    /// Run the simulation, for the cost per speed
    #[arg(long, conflicts_with = "result")]
    simulate: bool,
    /// Read the speed from a manifest that `ethernot sim run --manifest` wrote for this
    /// configuration
    #[arg(long, value_name = "FILE")]
    result: Option<PathBuf>,
    /// Print the included price list, as a template for your own
    #[arg(long, alias = "print-book", exclusive = true)]
    print_prices: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Some(path) = arguments.configuration.as_ref().filter(|_| !arguments.print_prices) else {
        return print(prices::LIST_1999);
    };
    let configuration = read(path)?;
    let list = match &arguments.prices {
        None => prices::list_1999()?,
        Some(path) => {
            let name = path.display().to_string();
            let text = fs::read_to_string(path).map_err(|error| format!("read {name}: {error}"))?;
            PriceList::parse(&name, &text)?
        }
    };
    let completed_us = if arguments.simulate {
        Some(configuration.run()?.completed_ps as f64 * 1e-6)
    } else {
        arguments.result.as_deref().map(|path| completed_us(path, &configuration)).transpose()?
    };
    let cost = Cost {
        bill: bill(&list, &configuration, arguments.prices.is_none())?,
        bisection: configuration.bisection()?,
        hosts: configuration.topology.hosts(),
        list,
        completed_us,
    };
    let text = if arguments.json {
        format!("{:#}\n", to_json(&configuration, &cost))
    } else {
        to_text(&configuration, &cost)
    };
    print(&text)
}

/// Returns the bill. If prices are missing, the error lists them and the places to add them.
fn bill(
    list: &PriceList,
    configuration: &Configuration,
    is_included: bool,
) -> Result<Bill, Failure> {
    let missing = match list.bill(&configuration.wanted()?) {
        Ok(bill) => return Ok(bill),
        Err(missing) => missing,
    };
    let remedy = if is_included {
        "\nexamples/simulator/prices.toml lists parts of 10, 25 and 100 Gb/s: add prices to it, and name \
         it with --prices"
    } else {
        ""
    };
    Err(format!("{missing}{remedy}").into())
}

struct Cost {
    list: PriceList,
    bill: Bill,
    bisection: Option<Bisection>,
    hosts: u32,
    /// Completion time of the simulated program, in microseconds.
    completed_us: Option<f64>,
}

impl Cost {
    fn per_node(&self) -> f64 {
        self.bill.total() / f64::from(self.hosts)
    }

    fn per_bisection_gbps(&self) -> Option<f64> {
        let rate = self.bisection.as_ref()?.bits_per_second;
        (rate > 0).then(|| self.bill.total() / (rate as f64 * 1e-9))
    }

    /// Returns the price divided by the speed, which is the number of runs of the program per
    /// second.
    fn per_speed(&self) -> Option<f64> {
        Some(self.bill.total() * self.completed_us? * 1e-6)
    }
}

/// Reads the completion time from a manifest. Fails if the manifest has another configuration.
fn completed_us(path: &Path, configuration: &Configuration) -> Result<f64, Failure> {
    let wrong = |what: &str| format!("{}: {what}", path.display());
    let text = fs::read_to_string(path).map_err(|error| wrong(&error.to_string()))?;
    let manifest: Value = serde_json::from_str(&text).map_err(|error| wrong(&error.to_string()))?;
    if manifest["configuration"].as_str() != Some(&configuration.effective) {
        return Err(wrong(
            "the manifest has another configuration; write a new one with `ethernot sim run --manifest`",
        )
        .into());
    }
    let time = manifest["completed_us"].as_f64();
    Ok(time.ok_or_else(|| wrong("no `completed_us`"))?)
}

/// Writing to a `String` cannot fail, so the results of `writeln!` are ignored.
fn to_text(configuration: &Configuration, cost: &Cost) -> String {
    let Cost { list, bill, bisection, .. } = cost;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}, prices of {} in {}",
        configuration.topology.name(),
        list.name,
        list.currency
    );
    let width = bill.lines.iter().map(|line| line.part.name.len()).max().unwrap_or(0);
    for line in &bill.lines {
        let watts = line.part.watts.map_or(String::new(), |watts| format!("  {watts} W each"));
        let _ = writeln!(
            text,
            "{:6} x {:width$}  at {:>12.2} = {:>14.2}  ({}:{}, {}){watts}",
            line.count,
            line.part.name,
            line.part.price,
            line.price(),
            list.file,
            line.part.line,
            line.part.date,
        );
    }
    let _ = writeln!(text, "total {:.2}, {:.2} for each node", bill.total(), cost.per_node());
    if let Some(Bisection { bits_per_second, halving, tried }) = bisection {
        let per = cost
            .per_bisection_gbps()
            .map_or(String::new(), |price| format!(": {price:.2} for each Gb/s"));
        let _ = writeln!(
            text,
            "bisection {:.2} Gb/s in each direction{per} (largest flow, {halving}; the smallest of \
             {tried} halvings tried)",
            *bits_per_second as f64 * 1e-9
        );
    }
    match (cost.completed_us, cost.per_speed()) {
        (Some(time_us), Some(price)) => {
            let _ = writeln!(
                text,
                "the program takes {time_us:.3} us, so it runs {:.3} times per second: {price:.4} \
                 for each run per second",
                1e6 / time_us
            );
        }
        _ => text.push_str("the cost per speed needs a run: add --simulate or --result\n"),
    }
    let _ = match bill.watts() {
        Some(watts) => writeln!(
            text,
            "power {watts:.1} W, {:.2} W for each node",
            watts / f64::from(cost.hosts)
        ),
        None => writeln!(
            text,
            "power: unknown, because the price list lacks the key `watts` for some parts"
        ),
    };
    for finding in &bill.findings {
        let _ = writeln!(text, "FINDING: {finding}");
    }
    text
}

fn to_json(configuration: &Configuration, cost: &Cost) -> Value {
    let Cost { list, bill, bisection, hosts, completed_us } = cost;
    let prices = json!({ "name": list.name, "file": list.file, "currency": list.currency });
    json!({
        "topology": configuration.topology.name(),
        "hosts": hosts,
        "price_list": prices,
        // The former name of the key above, for programs that read it.
        "book": prices,
        "lines": bill.lines.iter().map(|line| json!({
            "part": line.part.name,
            "kind": line.part.kind.to_string(),
            "count": line.count,
            "price_each": line.part.price,
            "price": line.price(),
            "watts_each": line.part.watts,
            "source": line.part.source,
            "date": line.part.date,
        })).collect::<Vec<_>>(),
        "total": bill.total(),
        "per_node": cost.per_node(),
        "watts": bill.watts(),
        "bisection_bits_per_second": bisection.as_ref().map(|found| found.bits_per_second),
        "per_bisection_gigabit_per_second": cost.per_bisection_gbps(),
        "completed_us": completed_us,
        "per_run_per_second": cost.per_speed(),
        "findings": bill.findings,
    })
}
