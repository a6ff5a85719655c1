//! `ethernot run`: another program, with an RDMA device.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;

use crate::Failure;
use crate::program::Program;
use crate::surroundings::{DeviceOptions, Variables, hidden_devices};

/// Run an RDMA program on this host's ordinary network: it sees a device, edge0.
///
/// Stock binaries that use libibverbs or librdmacm run as they are, as any user, between processes,
/// containers and hosts; both sides run this way. This program becomes the other one: its signals,
/// its input and its exit status are its own. Programs that it starts get the device, too. Ends with
/// status 2 if the program cannot be given a device, and says why: docs/running-programs.md.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot run -- ibv_devinfo\n  \
    ethernot run -- ib_write_bw                       (on one host)\n  \
    ethernot run -- ib_write_bw 192.0.2.1             (on the other)\n  \
    ethernot run -- mpirun --host a,b ./program       (on both, from one)\n  \
    ethernot run --links eth0,packet:eth1 --faults loss=0.01 -- ib_send_lat 192.0.2.1")]
pub(crate) struct Arguments {
    #[command(flatten)]
    device: DeviceOptions,
    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    program: Vec<OsString>,
}

/// Becomes the program; returns only if that fails.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let Err(error) = become_program(arguments);
    eprintln!("ethernot: {}", crate::explain(&*error));
    ExitCode::from(NOT_RUN)
}

fn become_program(arguments: &Arguments) -> Result<std::convert::Infallible, Failure> {
    let (name, rest) = arguments.program.split_first().ok_or("name a program")?;
    let variables = Variables::of(&arguments.device)?;
    // It is looked for where it will look itself.
    let program = Program::find(name, variables.value("PATH").as_deref())?;
    variables.try_links()?;
    for warning in &program.warnings {
        eprintln!("ethernot: warning: {warning}");
    }
    let hidden = hidden_devices();
    if !hidden.is_empty() {
        let names = hidden.join(", ");
        eprintln!("ethernot: warning: the program does not see this host's own devices: {names}");
    }
    let mut command = Command::new(&program.path);
    command.arg0(name).args(rest).envs(variables.0);
    let error = command.exec();
    Err(format!("start {}: {error}", program.path.display()).into())
}

/// Exit status if the program did not start.
const NOT_RUN: u8 = 2;
