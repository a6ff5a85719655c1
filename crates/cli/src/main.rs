//! The `ethernot` command.
#![expect(clippy::disallowed_methods, reason = "the command measures and prints durations")]
#![forbid(unsafe_code)]

mod apache_command;
mod bench_command;
mod calibrate_command;
mod churn_command;
mod compare_command;
mod cost_command;
mod doctor;
mod doctor_command;
mod dsm_command;
mod dsm_run;
mod dsm_top;
mod environment_command;
mod failover_command;
mod ganglia_command;
mod host_costs;
mod keys_command;
mod launch_command;
mod link_names;
mod multiedge_command;
mod output;
mod papers_command;
mod policies_command;
mod program;
mod programs_command;
mod progress;
mod quantities;
mod reality_command;
mod report_command;
mod reports;
mod run_command;
mod saturate_command;
mod scenario_command;
mod serve_command;
mod shaped_command;
mod simulation;
mod simulator_command;
mod sockets_command;
mod stat_command;
mod study_command;
mod surroundings;
mod sweep_command;
mod threads;
mod torture_command;
mod unmodified_arguments;
mod verbs_command;
mod waiting_command;
mod yardsticks_command;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// RDMA over ordinary Ethernet, in user space: run and measure programs, check a host, simulate
/// networks.
#[derive(Debug, Parser)]
#[command(
    name = "ethernot",
    version,
    disable_help_subcommand = true,
    after_help = "Examples:\n  \
        ethernot doctor\n  \
        ethernot run -- ibv_devinfo\n  \
        ethernot bench --quick\n  \
        ethernot sim run cluster.toml\n\n\
        Every command has examples: ethernot bench --help"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(launch_command::Arguments),
    Env(environment_command::Arguments),
    Stat(stat_command::Arguments),
    Bench(Box<bench_command::Arguments>),
    Serve(serve_command::Arguments),
    Report(report_command::Arguments),
    Paper(papers_command::Arguments),
    Doctor(doctor_command::Arguments),
    /// Run programs whose processes share memory, and watch them.
    #[command(
        subcommand,
        after_help = "Examples:\n  \
            ethernot dsm run -n 4 -- ./program\n  \
            ethernot dsm top --once"
    )]
    Dsm(dsm_command::SharedMemory),
    /// Simulate the engine under random faults, and clusters with their networks, in virtual time.
    #[command(
        subcommand,
        after_help = "Examples:\n  \
            ethernot sim torture --seeds 0..500\n  \
            ethernot sim run cluster.toml\n  \
            ethernot sim paper sandia1999"
    )]
    Sim(Box<Simulation>),
    /// The client or the server process that `ethernot bench` starts.
    #[command(name = bench::process::SUBCOMMAND, hide = true)]
    BenchProcess {
        /// The task of the process, as JSON.
        specification: String,
    },
}

#[derive(Debug, Subcommand)]
enum Simulation {
    Torture(torture_command::Arguments),
    Churn(churn_command::Arguments),
    Scenario(scenario_command::Arguments),
    Run(run_command::RunArguments),
    Show(run_command::ShowArguments),
    Keys(keys_command::Arguments),
    Cost(cost_command::Arguments),
    Compare(compare_command::Arguments),
    Verify(run_command::VerifyArguments),
    Goal(run_command::GoalArguments),
    Sweep(sweep_command::Arguments),
    Saturate(saturate_command::Arguments),
    Paper(study_command::Arguments),
    Speed(simulator_command::SpeedArguments),
    Theory(simulator_command::TheoryArguments),
    Calibrate(calibrate_command::Arguments),
    Reality(reality_command::Arguments),
    Policies(policies_command::Arguments),
    Waiting(waiting_command::Arguments),
}

fn main() -> ExitCode {
    if let Err(error) = testbed::cleanup::end_with_parent() {
        eprintln!("ethernot: request to be killed when the parent process ends: {error}");
        return ExitCode::FAILURE;
    }
    let outcome = match Arguments::parse().command {
        Command::Run(arguments) => return launch_command::run(&arguments),
        Command::Env(arguments) => environment_command::run(&arguments),
        Command::Stat(arguments) => stat_command::run(&arguments),
        Command::Bench(arguments) => bench_command::run(&arguments),
        Command::Serve(arguments) => serve_command::run(&arguments),
        Command::Report(arguments) => report_command::run(&arguments),
        Command::Paper(arguments) => papers_command::run(&arguments),
        Command::Doctor(arguments) => doctor_command::run(&arguments),
        Command::Dsm(command) => return dsm_command::run(&command),
        Command::Sim(simulation) => simulate(*simulation),
        Command::BenchProcess { specification } => {
            let succeeded = bench::process::run_child(&specification);
            return if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ethernot: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Runs one of the simulation commands.
fn simulate(simulation: Simulation) -> Result<(), Failure> {
    match simulation {
        Simulation::Torture(arguments) => torture_command::run(&arguments),
        Simulation::Churn(arguments) => churn_command::run(&arguments),
        Simulation::Scenario(arguments) => scenario_command::run(&arguments),
        Simulation::Run(arguments) => run_command::run(&arguments),
        Simulation::Keys(arguments) => keys_command::run(&arguments),
        Simulation::Show(arguments) => run_command::show(&arguments),
        Simulation::Compare(arguments) => compare_command::run(&arguments),
        Simulation::Cost(arguments) => cost_command::run(&arguments),
        Simulation::Sweep(arguments) => sweep_command::run(&arguments),
        Simulation::Saturate(arguments) => saturate_command::run(&arguments),
        Simulation::Goal(arguments) => run_command::goal(&arguments),
        Simulation::Verify(arguments) => run_command::verify(&arguments),
        Simulation::Paper(arguments) => study_command::run(&arguments),
        Simulation::Speed(arguments) => simulator_command::run_speed(&arguments),
        Simulation::Theory(arguments) => simulator_command::run_theory(&arguments),
        Simulation::Calibrate(arguments) => calibrate_command::run(&arguments),
        Simulation::Reality(arguments) => reality_command::run(&arguments),
        Simulation::Policies(arguments) => policies_command::run(&arguments),
        Simulation::Waiting(arguments) => waiting_command::run(&arguments),
    }
}

/// Returns the text of an error. Appends the texts of the error's causes, except those that the
/// text contains already.
fn explain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// Returns the path of this program. Benchmarks start it again as client and as server, and
/// `ethernot run` looks for its libraries beside it.
fn own_program() -> Result<PathBuf, Failure> {
    Ok(env::current_exe().map_err(|error| format!("find the file of this program: {error}"))?)
}

/// The error of a command that cannot continue. It is printed after the program's name.
type Failure = Box<dyn std::error::Error>;
