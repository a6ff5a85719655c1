//! `ethernot dsm run`: starts the ranks of a program that shares memory.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};

use clap::{Args, ValueEnum};
use dsm::launch::{Ended, Launch, Streams};
use dsm::{METHOD, THREADS};
use serde_json::{Value, json};
use testbed::cleanup::STATUS_INTERRUPTED;

use crate::Failure;
use crate::output::{check_writable, is_standard_output, write_results};

/// Run a program on several ranks, which share memory (docs/dsm.md).
///
/// Each rank is a process. Each line that a rank prints is copied, with the rank in front. Rank 0
/// reads the standard input, unless it runs on another host. If a rank fails, the others get 3 s to
/// end, and are killed then. Ctrl-C and SIGTERM end all ranks. The exit status is that of the rank
/// that failed first, or 128 and the number of the signal that killed it. If the program cannot be
/// started, the status is 2.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot dsm run -n 4 -- ./program\n  \
    ethernot dsm run -n 2 --json result.json -- ./program argument\n  \
    ethernot dsm run -n 8 --hosts node1,node2 -- ./program\n  \
    ethernot dsm run -n 2 --hosts node1,node2 --ssh 'ssh -p 2222' --meet 10.0.0.1:7000 -- ./program")]
pub(crate) struct Arguments {
    /// Number of ranks, 1 to 64
    #[arg(short = 'n', long, value_name = "RANKS", value_parser = clap::value_parser!(u8).range(1..=64))]
    ranks: u8,
    /// Hosts of the ranks, in order: the first ranks run on the first host
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    hosts: Vec<String>,
    /// Program that starts commands on hosts, with its options
    #[arg(
        long,
        value_name = "PROGRAM",
        default_value = "ssh -o BatchMode=yes -o ConnectTimeout=10"
    )]
    ssh: String,
    /// Address at which rank 0 waits for the others (default: a free port of this host, or a port of
    /// the first of the hosts)
    #[arg(long, value_name = "ADDRESS:PORT")]
    meet: Option<String>,
    /// How writes to the memory are found (default: the first that works on the host)
    #[arg(long, value_name = "METHOD")]
    method: Option<Method>,
    /// Threads of each rank that use the memory, if the program names no number (default: 1)
    #[arg(long, value_name = "THREADS", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Write the result as JSON to this file (`-`: standard output; what ranks print there goes to
    /// standard error then)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    program: Vec<OsString>,
}

/// The values of the variable with the method.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Method {
    /// userfaultfd, where the kernel notes writes (Linux 6.7 and later)
    Asynchronous,
    /// userfaultfd, where each first write to a page faults (Linux 5.19 and later)
    Synchronous,
    /// mprotect, everywhere
    Mprotect,
}

/// Runs the command. Returns the status that it ends with.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    run_ranks(arguments).unwrap_or_else(|error| {
        eprintln!("ethernot: {}", crate::explain(&*error));
        ExitCode::from(NOT_RUN)
    })
}

fn run_ranks(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (program, rest) = arguments.program.split_first().ok_or("name a program")?;
    let mut launch = Launch::new(usize::from(arguments.ranks), program)
        .arguments(rest)
        .hosts(&arguments.hosts)
        .shell(arguments.ssh.split_whitespace())
        .with_input();
    if let Some(meet) = &arguments.meet {
        launch = launch.meet(meet);
    }
    if let Some(method) = arguments.method.and_then(|method| method.to_possible_value()) {
        launch = launch.variable(METHOD, method.get_name());
    }
    if let Some(threads) = arguments.threads {
        launch = launch.variable(THREADS, threads.to_string());
    }
    check_writable(arguments.json.as_deref())?;
    ctrlc::set_handler(|| {
        STOPS.fetch_add(1, Ordering::Relaxed);
    })
    .map_err(|error| format!("handle Ctrl-C: {error}"))?;
    let is_quiet = arguments.json.as_deref().is_some_and(is_standard_output);
    let (mut output, mut errors, mut other) = (io::stdout(), io::stderr(), io::stderr());
    let streams =
        Streams { output: if is_quiet { &mut other } else { &mut output }, errors: &mut errors };
    let ended = launch.run(streams, &STOPS)?;
    if let Some((rank, what)) = &ended.failure
        && !ended.is_stopped
    {
        eprintln!("ethernot: rank {rank} {what}; see its output");
    }
    if let Some(path) = &arguments.json {
        write_results(Some(path), || serde_json::to_string_pretty(&result(&ended)), String::new)?;
    }
    Ok(ExitCode::from(if ended.is_stopped { STATUS_INTERRUPTED as u8 } else { ended.exit_code() }))
}

fn result(ended: &Ended) -> Value {
    let ranks = ended.ranks.iter().map(|ended| {
        let signal = std::os::unix::process::ExitStatusExt::signal(&ended.status);
        json!({
            "rank": ended.rank,
            "host": ended.host,
            "exit_code": ended.status.code(),
            "signal": signal,
        })
    });
    let failure = ended.failure.as_ref().map(|(rank, what)| json!({ "rank": rank, "what": what }));
    json!({
        "ranks": ranks.collect::<Vec<_>>(),
        "failure": failure,
        "is_stopped": ended.is_stopped,
        "seconds": ended.duration.as_secs_f64(),
    })
}

/// Number of signals that ask the command to end.
static STOPS: AtomicU32 = AtomicU32::new(0);

/// Exit status if the program did not start.
const NOT_RUN: u8 = 2;
