//! `ethernot sim calibrate`: measures the costs of a host on this machine.

use std::fmt::Write as _;
use std::path::PathBuf;

use bench::reality::{FreePath, HostCosts};
use clap::Args;

use crate::Failure;
use crate::host_costs::{self, Free};
use crate::output::{check_writable, write_results, write_text};
use crate::progress::Progress;
use crate::shaped_command;

/// Measure the processor time of frames and operations on this machine, for simulated hosts.
///
/// Runs the engine between two network namespaces joined by a veth pair without a rate limit:
/// ping-pong, one-way and two-way over sizes from 8 bytes to 1 MiB. Then runs the same tests in
/// simulation, and adjusts the simulated costs to the closest match. Prints the section [host] of a
/// configuration for `ethernot sim run`. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim calibrate\n  \
    ethernot sim calibrate --output host.toml --json costs.json")]
pub(crate) struct Arguments {
    /// Take shorter samples
    #[arg(long)]
    quick: bool,
    /// Write the costs and all measurements as JSON; `-` for standard output, instead of the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the section [host] to a file instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    shaped_command::begin("sim calibrate")?;
    let Arguments { json, output, quick } = arguments;
    check_writable([json, output].into_iter().flatten().map(PathBuf::as_path))?;
    let options = host_costs::free_options(*quick)?;
    let mut progress = Progress::new();
    let mut free = Free::new(FreePath::Cable, &options);
    let outcome = free.measure(&options, &mut progress);
    progress.finish();
    outcome?;
    let (costs, _) = free.costs()?;
    let mut text = fragment(&costs);
    if let Some(path) = output {
        write_text(path, &text)?;
        text.clear();
    }
    write_results(json.as_deref(), || serde_json::to_string_pretty(&costs), || text)
}

/// Returns the section `[host]` of a configuration, with the measurements as comments.
fn fragment(costs: &HostCosts) -> String {
    let ps = |ns: f64| (ns * 1e3).round() as u64;
    let mut text = String::new();
    // Writing to a `String` cannot fail.
    let _ = writeln!(
        text,
        "# Found by `ethernot sim calibrate`. Simulations with these costs differ from the measurements by\n\
         # {:.1} % (root mean square) and by at most {:.1} %.\n\
         #\n# test       bytes    measured µs   fitted µs",
        costs.rms_error_percent, costs.worst_error_percent
    );
    for point in &costs.points {
        let _ = writeln!(
            text,
            "# {:9} {:7} {:13.3} {:11.3}",
            point.test.name(),
            point.message_bytes,
            point.measured_ns / 1e3,
            point.fitted_ns / 1e3
        );
    }
    // A configuration has fewer kinds of cost than the fit. So the configuration's cost of sending
    // a frame includes the kinds of cost that have no key of their own.
    let frame_send_ns =
        costs.frame_send_ns + costs.return_ns + costs.gather_ns + costs.call_ns / FRAMES_A_CALL;
    let _ = writeln!(
        text,
        "#\n# frame_send_ps includes {:.0} ns to gather payload from the program, and {:.0} ns for \
         the system call that\n# sends several frames. The receiver sees a frame {:.0} ns before \
         the sender has finished: subtract this time from\n# the latency of a cable. Reading a \
         link takes {:.0} ns: add half of this time to the latency of a cable.\n[host]\nkind = \
         \"edge\"\nframe_send_ps = {}\nframe_send_ps_per_byte = {}\nframe_receive_ps = \
         {}\nframe_receive_ps_per_byte = {}\npost_ps = {}\ncompletion_ps = 0",
        costs.gather_ns,
        costs.call_ns / FRAMES_A_CALL,
        costs.return_ns,
        costs.poll_ns,
        ps(frame_send_ns),
        ps(costs.frame_send_ns_per_byte),
        ps(costs.frame_receive_ns),
        ps(costs.frame_receive_ns_per_byte),
        ps(costs.post_ns),
    );
    text
}

/// Frames that a stream passes to the kernel in one call.
const FRAMES_A_CALL: f64 = 32.0;
