//! `ethernot bench apache`: an unmodified web server over kernel TCP and over the edge.

use bench::apache::{self, CLIENT_HOSTS, CLIENT_HOSTS_MAX, SIZES, SIZES_QUICK, Wishes};
use bench::unmodified::apache_server::Mpm;
use bench::zipf::ALPHAS;
use clap::Args;

use crate::progress::Progress;
use crate::quantities::parse_size;
use crate::shaped_command::{self, OutputArguments};
use crate::unmodified_arguments::ComparisonArguments;
use crate::{Failure, own_program};

/// Measure unmodified Apache, alternately over kernel TCP and over the edge.
///
/// Starts two Apaches with a generated configuration in one network namespace: one directly, one
/// under `ethernot run --sockets`. Starts wrk in three other namespaces. One switch connects the
/// four namespaces. In some tests, wrk requests a single file of 1 KiB to 2 MiB. In others, wrk
/// requests a hundred files of increasing size, chosen by Zipf's law. The slides that this
/// benchmark reproduces print no file sizes and no exponents, so the defaults are our choice.
/// Before measuring, fetches and compares every file.
/// Shows requests per second, 99 % latency and CPU time, and their ratios. Needs root, and the
/// packages apache2, wrk and curl.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ethernot bench apache --quick\n  ethernot bench apache --mpm \
                  prefork --sizes 16K,256K --no-zipf\n  ethernot bench apache --json apache.json \
                  --html apache.html\n  ethernot bench apache --against-tcp tcp           (how \
                  much ratios vary by chance)"
)]
pub(crate) struct Arguments {
    /// Measure four sizes, three exponents, three samples each: less than a minute
    #[arg(long)]
    quick: bool,
    /// Apache's multi-processing module: prefork, worker or event
    #[arg(long, value_name = "MPM", default_value = "event", value_parser = parse_mpm)]
    mpm: Mpm,
    /// Sizes of single files in bytes, such as 1K,64K,2M [default: 1K to 2M by powers of two]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_file_size)]
    sizes: Vec<u64>,
    /// Exponents of Zipf traces [default: 0.1,0.25,0.5,0.75,0.9,1.2]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_alpha)]
    zipf: Vec<f64>,
    /// Omit the Zipf traces
    #[arg(long, conflicts_with = "zipf")]
    no_zipf: bool,
    /// Omit the single files
    #[arg(long, conflicts_with = "sizes")]
    no_files: bool,
    /// Seed for the order of requests in a trace
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Concurrent connections of all client hosts together
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=256))]
    connections: u32,
    /// Number of client hosts; the slides that this benchmark reproduces have three
    #[arg(long, value_name = "N", default_value_t = CLIENT_HOSTS, value_parser = clap::value_parser!(u32).range(1..=i64::from(CLIENT_HOSTS_MAX)))]
    clients: u32,
    /// Open a connection for each request, instead of keeping connections open
    #[arg(long)]
    close: bool,
    #[command(flatten)]
    comparison: ComparisonArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    shaped_command::begin("bench apache")?;
    arguments.output.check()?;
    let wishes = wishes(arguments)?;
    let mut progress = Progress::new();
    let outcome = apache::run(&wishes, &mut progress);
    progress.finish();
    let found = outcome?;
    arguments.output.write(
        || serde_json::to_string_pretty(&found),
        || Ok(report::apache_page(&found)?),
        |columns| report::apache_table(&found, columns),
        130,
    )
}

fn wishes(arguments: &Arguments) -> Result<Wishes, Failure> {
    let is_quick = arguments.quick;
    let sizes = match (arguments.no_files, arguments.sizes.is_empty(), is_quick) {
        (true, _, _) => Vec::new(),
        (_, false, _) => arguments.sizes.clone(),
        (_, _, true) => SIZES_QUICK.to_vec(),
        (_, _, false) => SIZES.to_vec(),
    };
    let alphas = match (arguments.no_zipf, arguments.zipf.is_empty(), is_quick) {
        (true, _, _) => Vec::new(),
        (_, false, _) => arguments.zipf.clone(),
        (_, _, true) => ALPHAS_QUICK.to_vec(),
        (_, _, false) => ALPHAS.to_vec(),
    };
    if sizes.is_empty() && alphas.is_empty() {
        return Err("there is nothing to measure; remove --no-zipf or --no-files".into());
    }
    let (connections, clients) = (arguments.connections, arguments.clients);
    if connections < clients {
        return Err(format!(
            "{connections} connections are too few for {clients} clients; give --connections at \
             least {clients}"
        )
        .into());
    }
    let comparison = &arguments.comparison;
    Ok(Wishes {
        own_program: own_program()?,
        other: comparison.other,
        mpm: arguments.mpm,
        sizes,
        alphas,
        seed: arguments.seed,
        connections,
        client_hosts: clients,
        closes: arguments.close,
        repetitions: comparison.repetitions(is_quick),
        seconds: comparison.seconds,
        mtu: comparison.mtu,
        pinning: !comparison.no_pinning,
    })
}

fn parse_mpm(text: &str) -> Result<Mpm, String> {
    let known = || Mpm::ALL.map(Mpm::name).join(", ");
    let found = Mpm::ALL.into_iter().find(|mpm| mpm.name() == text);
    found.ok_or_else(|| format!("the modules of Apache are: {}", known()))
}

fn parse_file_size(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bytes <= FILE_BYTES_MAX {
        Ok(bytes)
    } else {
        Err("invalid file size: a file has at most 64M".to_string())
    }
}

fn parse_alpha(text: &str) -> Result<f64, String> {
    let alpha: Option<f64> = text.parse().ok();
    let alpha = alpha.filter(|alpha| (0.0..=ALPHA_MAX).contains(alpha));
    alpha.ok_or_else(|| format!("invalid exponent: it must be a number from 0 to {ALPHA_MAX}"))
}

/// The lowest, a middle and the highest of the default exponents.
const ALPHAS_QUICK: [f64; 3] = [0.1, 0.75, 1.2];

/// Highest exponent: with a higher one, nearly all requests are for one file.
const ALPHA_MAX: f64 = 5.0;

/// Largest file, in bytes. A larger file would need too much memory, because each of the two
/// servers has a copy in memory.
const FILE_BYTES_MAX: u64 = 64 << 20;
